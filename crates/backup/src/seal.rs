//! What an encrypted repository seals its objects with: keys made of one data key.
//!
//! ```text
//!   data key, random ─┬─► key of contents: XChaCha20-Poly1305 of every chunk and manifest
//!                     ├─► key of chunks:   keyed BLAKE3 of a content, the name of its chunk
//!                     └─► key of names:    keyed BLAKE3 of a backup's name, the name of its manifest
//!   object = nonce, 24 bytes │ as many bytes as the content │ tag, 16 bytes
//! ```
//!
//! The nonce is random, never made of the content: one content may be written twice, compressed and
//! not, and two contents under one nonce would give both away. Of 24 random bytes no two are the
//! same in all the objects that can be written. The tag covers the object's key in the store, too:
//! an object that lies under the name of another does not open.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// A key that is forgotten when it is dropped.
pub type Secret = Zeroizing<[u8; KEY_BYTES]>;

const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// How many bytes an object has more than its content.
pub const OVERHEAD_BYTES: u64 = (NONCE_BYTES + TAG_BYTES) as u64;

/// The purposes of keys, as BLAKE3 wants them: no other program makes keys for the same.
const OF_CONTENTS: &str = "bedplate backup format 2: contents of objects";
const OF_CHUNKS: &str = "bedplate backup format 2: names of chunks";
const OF_NAMES: &str = "bedplate backup format 2: names of backups";

/// Fills bytes from the system's source of randomness.
pub fn fill_random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|error| {
        Error::new(ErrorKind::Io, format!("the system gives no random bytes for keys: {error}"))
    })
}

/// Encrypts a content under a key, for one place: `about` has to be the same when it is opened.
pub fn close(key: &Secret, about: &str, content: &[u8]) -> Result<Vec<u8>> {
    close_with(&cipher(key), about, content)
}

/// Returns the content of what [`close`] made; `None` where the key, the place or a byte of it is
/// another.
pub fn open(key: &Secret, about: &str, closed: &[u8]) -> Option<Vec<u8>> {
    open_with(&cipher(key), about, closed)
}

fn cipher(key: &Secret) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&Key::from(**key))
}

fn close_with(cipher: &XChaCha20Poly1305, about: &str, content: &[u8]) -> Result<Vec<u8>> {
    let mut nonce = [0; NONCE_BYTES];
    fill_random(&mut nonce)?;
    let payload = Payload { msg: content, aad: about.as_bytes() };
    let hidden = cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| {
        Error::new(ErrorKind::Unsupported, format!("{about} is too large to be encrypted"))
    })?;
    let closed = [&nonce[..], &hidden].concat();
    debug_assert_eq!(
        closed.len() as u64,
        content.len() as u64 + OVERHEAD_BYTES,
        "an object is its content, a nonce and a tag: {about}"
    );
    Ok(closed)
}

fn open_with(cipher: &XChaCha20Poly1305, about: &str, closed: &[u8]) -> Option<Vec<u8>> {
    let (nonce, hidden) = closed.split_first_chunk::<NONCE_BYTES>()?;
    let payload = Payload { msg: hidden, aad: about.as_bytes() };
    cipher.decrypt(&XNonce::from(*nonce), payload).ok()
}

/// The keys of an encrypted repository.
pub struct Seal {
    contents: XChaCha20Poly1305,
    chunks: Secret,
    names: Secret,
}

impl Seal {
    /// Makes the keys of a data key.
    pub fn new(data_key: &Secret) -> Self {
        let key = |purpose| Secret::from(blake3::derive_key(purpose, &**data_key));
        Self { contents: cipher(&key(OF_CONTENTS)), chunks: key(OF_CHUNKS), names: key(OF_NAMES) }
    }

    /// Returns the hash by which a chunk is named: without the key it cannot be told of which
    /// content it is, nor compared with that of another repository.
    pub fn hash(&self, content: &[u8]) -> String {
        blake3::keyed_hash(&self.chunks, content).to_hex().to_string()
    }

    /// Returns what the manifest of a backup is called.
    pub fn name(&self, backup: &str) -> String {
        blake3::keyed_hash(&self.names, backup.as_bytes()).to_hex().to_string()
    }

    /// Encrypts what is to lie under a key of the store.
    pub fn close(&self, key: &str, content: &[u8]) -> Result<Vec<u8>> {
        close_with(&self.contents, key, content)
    }

    /// Returns what was encrypted for a key of the store, if that is what lies there.
    pub fn open(&self, key: &str, closed: &[u8]) -> Option<Vec<u8>> {
        open_with(&self.contents, key, closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::from([byte; KEY_BYTES])
    }

    /// S-325, S-326
    #[test]
    fn s_326_what_was_closed_opens_under_its_key_and_place_alone() {
        let (one, two) = (Seal::new(&secret(1)), Seal::new(&secret(2)));
        let content = b"a content that is read by nothing else";
        let closed = one.close("chunks/a", content).unwrap();
        assert_eq!(closed.len() as u64, content.len() as u64 + OVERHEAD_BYTES);
        assert_eq!(one.open("chunks/a", &closed).as_deref(), Some(&content[..]));
        assert!(one.open("chunks/b", &closed).is_none() && one.open("", &closed).is_none());
        assert!(two.open("chunks/a", &closed).is_none(), "another repository's");
        assert_ne!(closed, one.close("chunks/a", content).unwrap(), "the nonce is never the same");
        for bit in 0..closed.len() * 8 {
            let mut damaged = closed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(one.open("chunks/a", &damaged).is_none(), "bit {bit}");
        }
        for len in 0..closed.len() {
            assert!(one.open("chunks/a", &closed[..len]).is_none(), "cut at {len}");
        }
    }

    /// S-325: names say nothing without the key, and chunks and backups have no names in common.
    #[test]
    fn s_325_names_are_of_the_key() {
        let (one, two) = (Seal::new(&secret(1)), Seal::new(&secret(2)));
        let names = [one.hash(b"x"), two.hash(b"x"), one.name("x"), blake3::hash(b"x").to_string()];
        for (at, name) in names.iter().enumerate() {
            assert!(name.len() == 64 && !names[..at].contains(name), "{names:?}");
        }
        assert_eq!(one.hash(b"x"), Seal::new(&secret(1)).hash(b"x"));
    }
}
