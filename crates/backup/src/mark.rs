//! The mark of a repository: which format it has and, where it is encrypted, its data key, wrapped
//! by a key that is made of a passphrase.
//!
//! ```text
//!   passphrase, salt ─ Argon2id ─► wrapping key ─ XChaCha20-Poly1305 ─► data key
//! ```
//!
//! Another passphrase wraps the same data key anew: nothing else is written.

use argon2::{Algorithm, Argon2, Params, Version};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};
use crate::seal::{self, KEY_BYTES, Secret};

/// The mark of a repository that is not encrypted.
const PLAIN: &[u8] = b"format 1\n";
/// How the mark of an encrypted one begins; one JSON document follows.
const ENCRYPTED: &[u8] = b"format 2\n";
/// The name of the functions that are used; another one is a newer format.
const METHOD: &str = "argon2id xchacha20-poly1305";
const SALT_BYTES: usize = 16;
/// The most a mark may ask for: nothing in it is trusted.
const MEMORY_KIB_MAX: u32 = 1 << 20;
const PASSES_MAX: u32 = 32;
const LANES_MAX: u32 = 16;
/// The second choice of RFC 9106: 64 MiB, some tenths of a second.
const COST: Cost = Cost { memory_kib: 64 << 10, passes: 3, lanes: 4 };

/// What opens an encrypted repository. It is forgotten when it is dropped.
#[derive(Clone)]
pub struct Passphrase(Zeroizing<Vec<u8>>);

impl Passphrase {
    /// Takes bytes without the end of line behind them.
    ///
    /// # Errors
    /// `Usage` where nothing is left.
    pub fn new(bytes: Vec<u8>) -> Result<Self> {
        let mut bytes = Zeroizing::new(bytes);
        if bytes.ends_with(b"\n") {
            bytes.pop();
            if bytes.ends_with(b"\r") {
                bytes.pop();
            }
        }
        if bytes.is_empty() {
            return Err(Error::new(ErrorKind::Usage, "the passphrase is empty: give one"));
        }
        Ok(Self(bytes))
    }
}

impl PartialEq for Passphrase {
    fn eq(&self, other: &Self) -> bool {
        *self.0 == *other.0
    }
}

/// How an encrypted repository is opened.
pub enum Unlock<'a> {
    /// With this passphrase. A repository that is not encrypted is refused: what was meant to be
    /// encrypted never lies open.
    With(Passphrase),
    /// With the one that this returns, if the repository is encrypted; it is told the place.
    Ask(&'a dyn Fn(&str) -> Result<Passphrase>),
}

/// What making a key of a passphrase costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// KiB of memory.
    memory_kib: u32,
    /// Passes over it.
    passes: u32,
    /// Lanes.
    lanes: u32,
}

#[cfg(test)]
impl Cost {
    /// The least there is, for tests.
    pub const LEAST: Self = Self { memory_kib: 8, passes: 1, lanes: 1 };
}

/// A data key that a passphrase opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrapped {
    method: String,
    #[serde(flatten)]
    cost: Cost,
    /// Hexadecimal, as the key.
    salt: String,
    /// Nonce, wrapped key and tag.
    key: String,
}

/// What a mark says.
#[derive(Debug, PartialEq, Eq)]
pub enum Mark {
    /// The repository is not encrypted.
    Plain,
    /// It is.
    Encrypted(Wrapped),
}

impl Mark {
    /// Makes the mark of a new encrypted repository, with a new data key.
    pub fn encrypted(passphrase: &Passphrase) -> Result<Self> {
        Self::encrypted_at(passphrase, COST)
    }

    /// As [`encrypted`](Self::encrypted), at a cost.
    pub fn encrypted_at(passphrase: &Passphrase, cost: Cost) -> Result<Self> {
        let mut data_key = Secret::default();
        seal::fill_random(&mut *data_key)?;
        Ok(Self::Encrypted(Wrapped::new(&data_key, passphrase, cost)?))
    }

    /// Returns the bytes of the mark.
    pub fn text(&self) -> Vec<u8> {
        match self {
            Self::Plain => PLAIN.to_vec(),
            Self::Encrypted(wrapped) => {
                let line = serde_json::to_vec(wrapped).expect("texts and numbers are written");
                [ENCRYPTED, &line, b"\n"].concat()
            }
        }
    }

    /// Reads the mark that lies at `place`.
    pub fn read(text: &[u8], place: &str) -> Result<Self> {
        if text == PLAIN {
            return Ok(Self::Plain);
        }
        let newer = || {
            Error::new(
                ErrorKind::NewerFormat,
                format!("{place} is of another format: use a newer bedplate"),
            )
        };
        let line = text.strip_prefix(ENCRYPTED).ok_or_else(newer)?;
        let wrapped: Wrapped = serde_json::from_slice(line).map_err(|_| damaged(place))?;
        if wrapped.method != METHOD {
            return Err(newer());
        }
        Ok(Self::Encrypted(wrapped))
    }
}

fn damaged(place: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("{place}, which holds the key of all backups, is damaged: put a copy of it back"),
    )
}

impl Wrapped {
    /// Wraps a data key by a passphrase, with a new salt.
    fn new(data_key: &Secret, passphrase: &Passphrase, cost: Cost) -> Result<Self> {
        let mut salt = [0; SALT_BYTES];
        seal::fill_random(&mut salt)?;
        let mut wrapped =
            Self { method: METHOD.into(), cost, salt: digits(&salt), key: String::new() };
        let key = wrapped.wrapping_key(&salt, passphrase).ok_or_else(no_memory)?;
        wrapped.key = digits(&seal::close(&key, &wrapped.about(), &**data_key)?);
        Ok(wrapped)
    }

    /// Wraps the same data key by another passphrase.
    pub fn again(&self, data_key: &Secret, passphrase: &Passphrase) -> Result<Self> {
        // A mark that was made at another cost keeps it.
        Self::new(data_key, passphrase, self.cost)
    }

    /// What the wrapped key is bound to.
    fn about(&self) -> String {
        let Cost { memory_kib, passes, lanes } = self.cost;
        format!("bedplate backup key: {METHOD} {memory_kib} {passes} {lanes} {}", self.salt)
    }

    /// Makes the key that wraps; `None` where there is no memory for it.
    fn wrapping_key(&self, salt: &[u8], passphrase: &Passphrase) -> Option<Secret> {
        let Cost { memory_kib, passes, lanes } = self.cost;
        let params = Params::new(memory_kib, passes, lanes, Some(KEY_BYTES)).ok()?;
        let mut key = Secret::default();
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into(&passphrase.0, salt, &mut *key)
            .ok()?;
        Some(key)
    }

    /// Returns the data key. `place` is where the mark lies.
    pub fn open(&self, passphrase: &Passphrase, place: &str) -> Result<Secret> {
        let Cost { memory_kib, passes, lanes } = self.cost;
        let is_possible = (1..=LANES_MAX).contains(&lanes)
            && (1..=PASSES_MAX).contains(&passes)
            && (8..=MEMORY_KIB_MAX).contains(&memory_kib)
            && memory_kib / 8 >= lanes;
        let parts = bytes(&self.salt).zip(bytes(&self.key));
        let Some((salt, closed)) =
            parts.filter(|(salt, _)| is_possible && salt.len() == SALT_BYTES)
        else {
            return Err(damaged(place));
        };
        let key = self.wrapping_key(&salt, passphrase).ok_or_else(no_memory)?;
        let opened = seal::open(&key, &self.about(), &closed).map(Zeroizing::new);
        let data_key = opened.and_then(|opened| opened.as_slice().try_into().ok());
        data_key.map(Secret::new).ok_or_else(|| {
            Error::new(
                ErrorKind::NotPermitted,
                format!(
                    "the passphrase does not open {place}: give the one it was made with, or, if \
                     it is that, put a copy of the file back"
                ),
            )
        })
    }
}

fn no_memory() -> Error {
    Error::new(
        ErrorKind::NoSpace,
        "there is no memory to make a key of the passphrase: free 64 MiB of it".to_owned(),
    )
}

/// Returns hexadecimal digits.
fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns what hexadecimal digits say.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    let is_whole = digits.len().is_multiple_of(2)
        && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let pairs = is_whole.then(|| (0..digits.len()).step_by(2))?;
    pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passphrase(text: &str) -> Passphrase {
        Passphrase::new(text.into()).unwrap()
    }

    fn wrapped(mark: Mark) -> Wrapped {
        match mark {
            Mark::Encrypted(wrapped) => wrapped,
            Mark::Plain => panic!("it is encrypted"),
        }
    }

    fn made(text: &str) -> (Mark, Secret) {
        let mark = Mark::encrypted_at(&passphrase(text), Cost::LEAST).unwrap();
        let key =
            wrapped(Mark::read(&mark.text(), "m").unwrap()).open(&passphrase(text), "m").unwrap();
        (mark, key)
    }

    /// S-326: no damage of a mark opens another key, or panics; and no key opens with another
    /// passphrase.
    #[test]
    fn s_326_a_mark_opens_with_its_passphrase_alone() {
        let (mark, key) = made("right");
        let text = mark.text();
        let wrong = wrapped(mark).open(&passphrase("wrong"), "m").unwrap_err();
        assert!(wrong.kind == ErrorKind::NotPermitted && wrong.message.contains("does not open m"));
        for bit in 0..text.len() * 8 {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let opened = match Mark::read(&damaged, "m") {
                Ok(Mark::Encrypted(wrapped)) => wrapped.open(&passphrase("right"), "m").ok(),
                Ok(Mark::Plain) => panic!("bit {bit} makes it plain"),
                Err(_) => None,
            };
            // The line's own end is nothing that is said.
            assert!(
                opened.is_none_or(|opened| opened == key && bit / 8 + 1 == text.len()),
                "{bit}"
            );
        }
    }

    /// S-326: nothing in a mark makes the command take more memory or time than a key needs.
    #[test]
    fn s_326_a_mark_that_asks_for_too_much_is_damaged() {
        let (mark, _) = made("right");
        let line = String::from_utf8(mark.text()).unwrap();
        for (from, to) in [
            ("\"memory_kib\":8", "\"memory_kib\":4294967295"),
            ("\"passes\":1", "\"passes\":4294967295"),
            ("\"lanes\":1", "\"lanes\":536870912"),
            ("\"lanes\":1", "\"lanes\":0"),
            ("\"memory_kib\":8", "\"memory_kib\":7"),
            ("\"salt\":\"", "\"salt\":\"00"),
        ] {
            let asked = line.replace(from, to);
            assert_ne!(asked, line);
            let read = wrapped(Mark::read(asked.as_bytes(), "m").unwrap());
            let refused = read.open(&passphrase("right"), "m").unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Corrupt, "{to}");
        }
        let newer = line.replace("argon2id", "argon3");
        let refused = Mark::read(newer.as_bytes(), "m").unwrap_err();
        assert_eq!(refused.kind, ErrorKind::NewerFormat);
        assert_eq!(Mark::read(b"format 1\n", "m").unwrap(), Mark::Plain);
    }

    /// S-325: two repositories of one passphrase have nothing in common, and another passphrase
    /// opens the same data key.
    #[test]
    fn s_325_a_passphrase_wraps_a_random_key() {
        let ((one, key), (two, other)) = (made("same"), made("same"));
        assert!(one != two && key != other);
        let changed = wrapped(one).again(&key, &passphrase("new")).unwrap();
        assert!(*changed.open(&passphrase("new"), "m").unwrap() == *key);
        assert!(changed.open(&passphrase("same"), "m").is_err());
    }

    #[test]
    fn passphrases_end_before_the_end_of_their_line() {
        assert!(passphrase("x\n") == passphrase("x") && passphrase("x\r\n") == passphrase("x"));
        assert_eq!(*passphrase(" x \n\n").0, b" x \n");
        for empty in ["", "\n", "\r\n"] {
            assert!(Passphrase::new(empty.into()).is_err());
        }
    }
}
