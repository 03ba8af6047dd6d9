//! Addresses of PostgreSQL servers,
//! `postgresql://[USER[:PASSWORD]@][HOST][/DATABASE][?NAME=VALUE&…]`. A password in one is taken
//! out of it and goes to a program that connects by its environment, because every user can read
//! command lines; as libpq reads it, so that nothing else is meant then.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::failure::{Failure, Result, plain};

/// The variable that libpq takes a password from.
pub const PASSWORD: &str = "PGPASSWORD";

/// An address without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// The address; it holds no password.
    pub text: String,
    /// The password that it had.
    pub password: Option<OsString>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

impl Address {
    /// Reads an address.
    pub fn parse(scheme: &str, rest: &str) -> std::result::Result<Self, &'static str> {
        let end = rest.find(['@', '/']).filter(|at| rest[*at..].starts_with('@'));
        let (user, place) = end.map_or((None, rest), |at| (Some(&rest[..at]), &rest[at + 1..]));
        let (user, mut password) = match user.and_then(|user| user.split_once(':')) {
            Some((user, password)) => (Some(user), Some(password)),
            None => (user, None),
        };
        let (place, parameters) = place
            .split_once('?')
            .map_or((place, None), |(place, parameters)| (place, Some(parameters)));
        if place.contains('@') {
            return Err(
                "its address has an '@' too many: in a name or password '@' is written %40, '/' \
                 %2F and ':' %3A",
            );
        }
        let mut kept = Vec::new();
        for parameter in parameters.into_iter().flat_map(|parameters| parameters.split('&')) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match decoded(name)?.as_slice() {
                b"password" => password = Some(value),
                b"sslpassword" => {
                    return Err(
                        "an sslpassword in its address could be read by every user: put it into a \
                         service file, and name that with ?service=",
                    );
                }
                _ => kept.push(parameter),
            }
        }
        let mut text = format!("{scheme}://");
        user.into_iter().for_each(|user| text.extend([user, "@"]));
        text.push_str(place);
        if !kept.is_empty() {
            text.extend(["?", &kept.join("&")]);
        }
        let password = password.filter(|password| !password.is_empty()).map(decoded).transpose()?;
        Ok(Self { text, password: password.map(OsString::from_vec) })
    }

    /// Begins this command anew without the password among its own arguments, where it has one
    /// there; it returns only without.
    pub fn hide(&self) -> Result<()> {
        let Some(password) = &self.password else { return Ok(()) };
        let mut found = false;
        let mut hidden = |argument: OsString| {
            let text = argument.to_str().unwrap_or_default();
            let (option, value) = text
                .split_once('=')
                .filter(|(option, _)| option.starts_with("--"))
                .map_or(("", text), |(option, value)| (option, value));
            let is_this = value
                .split_once("://")
                .is_some_and(|(scheme, rest)| Self::parse(scheme, rest).as_ref() == Ok(self));
            found |= is_this;
            match (is_this, option) {
                (false, _) => argument,
                (true, "") => self.text.clone().into(),
                (true, option) => format!("{option}={}", self.text).into(),
            }
        };
        let mut arguments = std::env::args_os();
        let name = arguments.next().unwrap_or_else(|| "bedplate".into());
        let arguments: Vec<OsString> = arguments.map(&mut hidden).collect();
        let refused = |why: &str| {
            Failure::new(
                "unavailable",
                format!("cannot hide the password of the address: {why}; give it in {PASSWORD}"),
            )
        };
        if !found {
            // It would begin anew for ever.
            return Err(refused("it is not among the arguments"));
        }
        Err(refused(&plain(
            &Command::new("/proc/self/exe")
                .arg0(name)
                .args(arguments)
                .env(PASSWORD, password)
                .exec(),
        )))
    }
}

/// Returns what a part of an address stands for.
fn decoded(part: &str) -> std::result::Result<Vec<u8>, &'static str> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .filter(|digits| !digits.starts_with('+'));
        match (first, digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte @ 1..)) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            (b'%', _) => {
                return Err(
                    "its address has a '%' that no byte follows: '%' itself is written %25",
                );
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = behind;
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_taken_out_of_an_address_as_libpq_would_read_it() {
        for (address, text, password) in [
            ("postgresql:///app?host=/run", "postgresql:///app?host=/run", None),
            ("postgres://me@host/app", "postgres://me@host/app", None),
            (
                "postgresql://me:secret@host:5432/app",
                "postgresql://me@host:5432/app",
                Some("secret"),
            ),
            ("postgresql://:secret@host", "postgresql://@host", Some("secret")),
            ("postgresql://me:@host", "postgresql://me@host", None),
            (
                "postgresql://me:s%40c%2Fr:t?@[::1]:1/a",
                "postgresql://me@[::1]:1/a",
                Some("s@c/r:t?"),
            ),
            ("postgresql:///app?password=s%26t&host=h", "postgresql:///app?host=h", Some("s&t")),
            ("postgresql://me:one@/app?p%61ssword=two", "postgresql://me@/app", Some("two")),
        ] {
            let (scheme, rest) = address.split_once("://").unwrap();
            let parsed = Address::parse(scheme, rest).unwrap();
            assert_eq!(
                (
                    parsed.text.as_str(),
                    parsed.password.as_ref().and_then(|password| password.to_str())
                ),
                (text, password),
                "{address}"
            );
            assert!(
                !format!("{parsed:?}").contains("s%40")
                    && !format!("{parsed:?}").contains("secret"),
                "{parsed:?}"
            );
        }
        for wrong in [
            "me:se/cret@host",
            "me:se@cret@host",
            "me:%zz@host",
            "me:%00@host",
            "me:%+1@host",
            "host/?sslpassword=x",
        ] {
            assert!(Address::parse("postgresql", wrong).is_err(), "{wrong}");
        }
    }
}
