//! The passphrase of encrypted backups: from a file, from the environment, or asked for at the
//! terminal; never from the command line, which every user of the machine can read.

use std::env;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use bedplate_backup::{Error, ErrorKind, Passphrase, Result, Unlock};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// The variable with the passphrase of a repository.
const VARIABLE: &str = "BEDPLATE_BACKUP_PASSPHRASE";
/// The variable with the one that a repository gets.
const VARIABLE_NEW: &str = "BEDPLATE_BACKUP_NEW_PASSPHRASE";
/// The longest that is read: more is no passphrase, but a file that was named by mistake.
const BYTES_MAX: u64 = 64 << 10;
const TERMINAL: &str = "/dev/tty";

/// Returns how a repository is opened: with what a file or the environment gives, else with what is
/// asked for where the repository is encrypted.
pub fn unlock(file: Option<&Path>) -> Result<Unlock<'static>> {
    Ok(match given(file, VARIABLE)? {
        Some(passphrase) => Unlock::With(passphrase),
        None => Unlock::Ask(&|place| ask(&format!("passphrase of {place}: "), "--key-file")),
    })
}

/// Returns the passphrase for a repository that is made, if one is given.
pub fn given_for_new(file: Option<&Path>) -> Result<Option<Passphrase>> {
    given(file, VARIABLE)
}

/// Returns the passphrase for a repository that is made; it is asked for twice where none is given.
pub fn for_new(file: Option<&Path>) -> Result<Passphrase> {
    given(file, VARIABLE)?.map_or_else(|| ask_twice("--key-file"), Ok)
}

/// Returns the passphrase that takes the place of another; it is asked for twice where none is
/// given.
pub fn other(file: Option<&Path>) -> Result<Passphrase> {
    given(file, VARIABLE_NEW)?.map_or_else(|| ask_twice("--new-key-file"), Ok)
}

fn given(file: Option<&Path>, variable: &str) -> Result<Option<Passphrase>> {
    let Some(path) = file else {
        let value = env::var_os(variable).map(|value| Passphrase::new(value.into_vec()));
        return value.transpose();
    };
    let refused = |error: io::Error| Error {
        kind: match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
            _ => ErrorKind::Io,
        },
        message: format!("cannot read the passphrase from {}: {error}", path.display()),
    };
    let mut text = Vec::new();
    let file = File::open(path).map_err(refused)?;
    file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(refused)?;
    if text.len() as u64 > BYTES_MAX {
        let message = format!("{} is too long for a passphrase: name another file", path.display());
        return Err(Error { kind: ErrorKind::Usage, message });
    }
    Ok(Some(Passphrase::new(text)?))
}

fn ask_twice(option: &str) -> Result<Passphrase> {
    let first = ask("new passphrase: ", option)?;
    if first == ask("the same again: ", option)? {
        return Ok(first);
    }
    let message = "the passphrases differ: repeat the command".to_owned();
    Err(Error { kind: ErrorKind::Usage, message })
}

/// Asks at the terminal, which shows nothing of the answer. `option` is the one that gives it
/// where there is no terminal.
fn ask(question: &str, option: &str) -> Result<Passphrase> {
    let terminal = File::options().read(true).write(true).open(TERMINAL).map_err(|_| Error {
        kind: ErrorKind::Usage,
        message: format!(
            "a passphrase is needed, and there is no terminal to ask at: add {option}"
        ),
    })?;
    let failed = |error: &io::Error| Error {
        kind: ErrorKind::Io,
        message: format!("the terminal cannot be asked for a passphrase: {error}"),
    };
    let quiet = Quiet::new(&terminal).map_err(|error| failed(&error))?;
    let answer = (|| {
        (&terminal).write_all(question.as_bytes())?;
        let answer = line(&mut &terminal)?;
        (&terminal).write_all(b"\r\n")?;
        Ok(answer)
    })();
    drop(quiet);
    Passphrase::new(answer.map_err(|error| failed(&error))?)
}

/// A terminal that shows nothing, and gives every key as it is pressed, until this is dropped.
struct Quiet<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Quiet<'a> {
    fn new(terminal: &File) -> io::Result<Quiet<'_>> {
        let before = tcgetattr(terminal)?;
        let mut quiet = before.clone();
        // No signals either: a command that ends by one leaves the terminal silent.
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        tcsetattr(terminal, OptionalActions::Flush, &quiet)?;
        Ok(Quiet { terminal, before })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _gone = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// Reads keys up to the end of a line.
#[expect(clippy::unbuffered_bytes, reason = "keys come singly, and those behind the line stay")]
fn line(keys: &mut impl Read) -> io::Result<Vec<u8>> {
    const INTERRUPT: u8 = 3;
    const END: u8 = 4;
    let mut answer = Vec::new();
    for key in keys.bytes() {
        match key? {
            b'\r' | b'\n' | END => break,
            INTERRUPT => return Err(io::Error::other("it was interrupted")),
            8 | 127 => while answer.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
            // Ctrl-U takes all away.
            21 => answer.clear(),
            key => answer.push(key),
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_a_line() {
        for (keys, answer) in [
            (&b"right\r"[..], &b"right"[..]),
            (b"right\nmore", b"right"),
            (b"wrong\x7f\x7f\x7f\x7f\x7f\x7fright\n", b"right"),
            (b"wrong\x15right\x04", b"right"),
            ("\u{e9}\u{1f512}\x7f\n".as_bytes(), "\u{e9}".as_bytes()),
            (b"", b""),
        ] {
            assert_eq!(line(&mut &keys[..]).unwrap(), answer, "{}", keys.escape_ascii());
        }
        assert!(line(&mut &b"ri\x03ght\n"[..]).is_err());
    }
}
