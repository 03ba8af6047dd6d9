//! How an export is named: `nbd://HOST[:PORT]/NAME`, or `nbd+unix:///NAME?socket=/PATH`.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Refusal;
use super::wire::STRING_BYTES_MAX;
use crate::{ErrorKind, Part, in_place_device, in_place_path};

/// The port where none is named.
const PORT: u16 = 10809;
/// The longest that may be said.
const TIMEOUT_S_MAX: u64 = 3600;
/// What every URI of the protocol begins with, also those that are refused.
const SCHEMES: [&str; 6] =
    ["nbd://", "nbd+unix://", "nbds://", "nbds+unix://", "nbd+vsock://", "nbds+vsock://"];

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A name or an address, without brackets.
    Tcp { host: String, port: u16 },
    /// A socket in the file system, by its whole path.
    Unix(PathBuf),
}

/// A server, the name of its export, and how long it may take to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Uri {
    pub place: Place,
    pub name: Vec<u8>,
    pub timeout: Duration,
}

/// Returns whether a path is the URI of an export, though it may be one that is refused.
#[must_use]
pub fn is_nbd_uri(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    SCHEMES.iter().any(|scheme| bytes.starts_with(scheme.as_bytes()))
}

/// Returns what names a device from wherever it is opened: the URI of an export in its one
/// spelling, or a path of the system that is absolute and without links, of a part that of its device.
///
/// # Errors
/// `InvalidInput` for a URI that names no export; those of the system for a path.
pub fn device_path(path: &Path) -> io::Result<PathBuf> {
    if let Some(device) = in_place_device(path) {
        return Ok(in_place_path(&device.canonicalize()?));
    }
    if let Some(part) = Part::parse(path) {
        return Ok(Part { device: part.device.canonicalize()?, ..part }.path());
    }
    if !is_nbd_uri(path) {
        return path.canonicalize();
    }
    let refused = |refusal: Refusal| io::Error::new(io::ErrorKind::InvalidInput, refusal.detail);
    Uri::parse(path).map(|uri| uri.to_string().into()).map_err(refused)
}

fn refused(detail: impl Into<String>) -> Refusal {
    Refusal::new(ErrorKind::Unsupported, detail)
}

impl Uri {
    /// How long a server may take to answer where nothing else is said.
    pub const TIMEOUT: Duration = Duration::from_secs(30);

    /// Reads a URI.
    pub fn parse(path: &Path) -> Result<Self, Refusal> {
        let text = path.to_str().ok_or_else(|| refused("the URI is no text"))?;
        let (scheme, rest) = text.split_once("://").ok_or_else(|| refused("this is no URI"))?;
        if rest.contains('#') {
            return Err(refused("the URI has a part behind '#', which NBD has no use for"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, name) = rest.split_once('/').unwrap_or((rest, ""));
        let name = decoded(name)?;
        if name.len() > STRING_BYTES_MAX {
            return Err(refused("the name of the export is longer than 4096 bytes"));
        }
        let Query { socket, timeout } = Query::parse(query)?;
        let place = match (scheme, socket) {
            ("nbd", None) => Place::host(authority)?,
            ("nbd", Some(_)) => {
                return Err(refused("a socket in the file system is named with nbd+unix:///"));
            }
            ("nbd+unix", Some(socket)) if authority.is_empty() => Place::Unix(socket),
            ("nbd+unix", Some(_)) => {
                return Err(refused("nbd+unix:// is followed by /NAME, and by no host"));
            }
            ("nbd+unix", None) => {
                return Err(refused("the socket is missing: nbd+unix:///NAME?socket=/PATH"));
            }
            ("nbds" | "nbds+unix", _) => {
                return Err(refused(
                    "a device over TLS is not offered: use nbd:// through a tunnel that encrypts",
                ));
            }
            _ => return Err(refused(format!("{scheme}:// is not offered: use nbd://HOST/NAME"))),
        };
        Ok(Self { place, name, timeout })
    }
}

impl Place {
    fn host(authority: &str) -> Result<Self, Refusal> {
        let missing = || refused("the host is missing: nbd://HOST[:PORT]/NAME");
        if authority.contains('@') {
            return Err(refused("NBD knows no users: leave out what stands before '@'"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(missing)?,
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => PORT,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| refused(format!("'{digits}' is no port")))?,
            _ => return Err(refused(format!("'{port}' behind the host is no port"))),
        };
        let host = String::from_utf8(decoded(host)?).map_err(|_| missing())?;
        if host.is_empty() {
            Err(missing())
        } else {
            Ok(Self::Tcp { host: host.to_lowercase(), port })
        }
    }
}

/// What stands behind '?'.
struct Query {
    socket: Option<PathBuf>,
    timeout: Duration,
}

impl Query {
    fn parse(query: &str) -> Result<Self, Refusal> {
        let mut read = Self { socket: None, timeout: Uri::TIMEOUT };
        for part in query.split(['&', ';']).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = decoded(value)?;
            match key {
                "socket" => {
                    let path = PathBuf::from(OsString::from_vec(value));
                    if !path.is_absolute() {
                        return Err(refused("the socket is named by its whole path: socket=/PATH"));
                    }
                    read.socket = Some(path);
                }
                "timeout" => {
                    let seconds =
                        std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
                    let seconds = seconds.filter(|seconds| (1..=TIMEOUT_S_MAX).contains(seconds));
                    read.timeout = seconds.map(Duration::from_secs).ok_or_else(|| {
                        refused(format!("timeout= takes seconds, from 1 to {TIMEOUT_S_MAX}"))
                    })?;
                }
                _ => {
                    return Err(refused(format!(
                        "'{key}' is not known in the URI of a device: it takes socket= and timeout="
                    )));
                }
            }
        }
        Ok(read)
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mark = '?';
        match &self.place {
            Place::Tcp { host, port } => {
                if host.contains(':') {
                    write!(f, "nbd://[{host}]")?;
                } else {
                    write!(f, "nbd://{}", encoded(host.as_bytes()))?;
                }
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                write!(f, "/{}", encoded(&self.name))?;
            }
            Place::Unix(socket) => {
                let socket = encoded(socket.as_os_str().as_bytes());
                write!(f, "nbd+unix:///{}?socket={socket}", encoded(&self.name))?;
                mark = '&';
            }
        }
        if self.timeout != Self::TIMEOUT {
            write!(f, "{mark}timeout={}", self.timeout.as_secs())?;
        }
        Ok(())
    }
}

/// Puts `%` and two digits in the place of what a URI, or a list of options, means otherwise.
fn encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/:@".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Takes [`encoded`] back.
fn decoded(text: &str) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        if *byte != b'%' {
            bytes.push(*byte);
            rest = tail;
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(refused("'%' in a URI is followed by two hexadecimal digits"));
        };
        bytes.push((high << 4 | low) as u8);
        rest = &tail[2..];
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Uri {
        Uri::parse(Path::new(text)).unwrap_or_else(|refusal| panic!("{text}: {}", refusal.detail))
    }

    fn tcp(host: &str, port: u16, name: &str) -> Uri {
        let place = Place::Tcp { host: host.to_owned(), port };
        Uri { place, name: name.into(), timeout: Uri::TIMEOUT }
    }

    #[test]
    fn s_548_a_uri_names_a_server_and_its_export() {
        assert_eq!(parsed("nbd://host/disk"), tcp("host", PORT, "disk"));
        assert_eq!(parsed("nbd://Host:10809/a%20b/c"), tcp("host", PORT, "a b/c"));
        assert_eq!(parsed("nbd://[::1]:7/"), tcp("::1", 7, ""));
        assert_eq!(parsed("nbd://10.0.0.1"), tcp("10.0.0.1", PORT, ""));
        let unix = parsed("nbd+unix:///v?socket=/run/a%2Cb.sock&timeout=5");
        assert_eq!(unix.place, Place::Unix("/run/a,b.sock".into()));
        assert_eq!((&unix.name[..], unix.timeout.as_secs()), (&b"v"[..], 5));
    }

    #[test]
    fn s_548_two_spellings_of_a_uri_are_one() {
        for (told, whole) in [
            ("nbd://HOST:10809/disk", "nbd://host/disk"),
            ("nbd://[::1]:10809/%64?timeout=30", "nbd://[::1]/d"),
            (
                "nbd+unix:///x?timeout=7&socket=/run/a=b",
                "nbd+unix:///x?socket=/run/a%3Db&timeout=7",
            ),
        ] {
            let path = device_path(Path::new(told)).unwrap();
            assert_eq!(path.to_str(), Some(whole), "S-548");
            assert_eq!(device_path(&path).unwrap(), path, "S-548: it names itself");
        }
        assert!(!is_nbd_uri(Path::new("/nbd://host")) && !is_nbd_uri(Path::new("nbd:/x")));
    }

    #[test]
    fn s_548_what_names_no_export_is_refused_in_one_sentence() {
        for (told, part) in [
            ("nbds://host/disk", "TLS"),
            ("nbds+unix:///x?socket=/s", "TLS"),
            ("nbd+vsock://1/x", "nbd+vsock:// is not offered"),
            ("nbd:///disk", "host is missing"),
            ("nbd://[::1/disk", "host is missing"),
            ("nbd://host:0/disk", "'0' is no port"),
            ("nbd://host:65536/disk", "no port"),
            ("nbd://[::1]7/disk", "no port"),
            ("nbd://me@host/disk", "no users"),
            ("nbd://host/d?socket=/s", "nbd+unix:///"),
            ("nbd+unix:///d", "socket is missing"),
            ("nbd+unix://host/d?socket=/s", "no host"),
            ("nbd+unix:///d?socket=s", "whole path"),
            ("nbd://host/d?timeout=0", "seconds"),
            ("nbd://host/d?tls-certificates=/x", "'tls-certificates' is not known"),
            ("nbd://host/%4", "hexadecimal"),
            ("nbd://host/d#x", "'#'"),
        ] {
            let refusal = Uri::parse(Path::new(told)).unwrap_err();
            assert!(refusal.detail.contains(part), "{told}: {}", refusal.detail);
            assert!(is_nbd_uri(Path::new(told)), "{told}");
        }
        let long = format!("nbd://host/{}", "x".repeat(4097));
        assert!(Uri::parse(Path::new(&long)).is_err());
    }
}
