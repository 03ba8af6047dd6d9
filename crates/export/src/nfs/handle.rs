//! What clients know files by.
//!
//! ```text
//!   version 1 │ kind 1 │ len 1 │ the kernel's handle, len │ seal 16
//! ```
//! The kernel's handle names a file of the whole file system, wherever it lies. The seal, made with
//! a key that lies in the exported directory, shows that this export gave the handle: a client
//! cannot make one of a file that it was never shown.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bedplate_block::FileHandle;
use rustix::fs::XattrFlags;

use super::status::Status;
use crate::{Error, Result};

/// The most bytes of a handle in the protocol.
pub use bedplate_nfs::wire::numbers::HANDLE_BYTES_MAX;
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 3;
const SEAL_BYTES: usize = 16;
const KERNEL_BYTES_MAX: usize = HANDLE_BYTES_MAX - HEAD_BYTES - SEAL_BYTES;

/// The extended attribute of the exported directory that holds the key; for the superuser alone.
const KEY_ATTRIBUTE: &CStr = c"trusted.bedplate.nfs-key";

/// What handles of one export are sealed with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Reads the key of a directory; `None` where it has none.
    pub fn read(dir: impl AsFd) -> io::Result<Option<Self>> {
        let mut key = [0; 32];
        match rustix::fs::fgetxattr(dir, KEY_ATTRIBUTE, &mut key) {
            Ok(32) => Ok(Some(Self(key))),
            Ok(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the attribute trusted.bedplate.nfs-key has not 32 bytes: remove it, which makes \
                 clients mount again",
            )),
            Err(rustix::io::Errno::NODATA) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the key of a directory, or gives it one, which is durable then.
    pub fn read_or_make(dir: &OwnedFd) -> io::Result<Self> {
        if let Some(key) = Self::read(dir)? {
            return Ok(key);
        }
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        match rustix::fs::fsetxattr(dir, KEY_ATTRIBUTE, &key, XattrFlags::CREATE) {
            Ok(()) => {}
            // Another server was first.
            Err(rustix::io::Errno::EXIST) => return Self::read_or_make(dir),
            Err(error) => return Err(error.into()),
        }
        rustix::fs::fsync(dir)?;
        Ok(Self(key))
    }

    #[cfg(test)]
    pub fn forged(byte: u8) -> Self {
        Self([byte; 32])
    }

    fn hash(&self, what: u8, bytes: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[what]).update(bytes);
        *hasher.finalize().as_bytes()
    }

    /// Returns a number of this export that tells nothing of the key.
    pub fn number(&self, what: u8, bytes: &[u8]) -> u64 {
        let hash = self.hash(what, bytes);
        hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Makes what clients are given for a file.
    pub fn seal(&self, handle: &FileHandle) -> Result<Vec<u8>, Status> {
        let kind = u8::try_from(handle.kind).map_err(|_| Status::NotSupported)?;
        let len = u8::try_from(handle.bytes.len()).map_err(|_| Status::NotSupported)?;
        if handle.bytes.len() > KERNEL_BYTES_MAX {
            return Err(Status::NotSupported);
        }
        let mut sealed = vec![VERSION, kind, len];
        sealed.extend_from_slice(&handle.bytes);
        let seal = self.hash(0, &sealed);
        sealed.extend_from_slice(&seal[..SEAL_BYTES]);
        Ok(sealed)
    }

    /// Returns the kernel's handle in what a client sent.
    pub fn unseal(&self, sealed: &[u8]) -> Result<FileHandle, Status> {
        let at = sealed.len().checked_sub(SEAL_BYTES).ok_or(Status::BadHandle)?;
        let (head, seal) = sealed.split_at(at);
        let [VERSION, kind, len, bytes @ ..] = head else { return Err(Status::BadHandle) };
        if bytes.len() != usize::from(*len) {
            return Err(Status::BadHandle);
        }
        // The time that the comparison takes does not tell how much of a guess was right.
        let differing = self.hash(0, head).iter().zip(seal).fold(0, |all, (a, b)| all | (a ^ b));
        // One of another export, or of this one before its key was lost.
        if differing == 0 {
            Ok(FileHandle { kind: i32::from(*kind), bytes: bytes.to_vec() })
        } else {
            Err(Status::Stale)
        }
    }
}

/// Makes the error of a directory that cannot be exported.
pub fn cannot_keep_key(path: &std::path::Path, error: io::Error) -> Error {
    if error.raw_os_error() == Some(rustix::io::Errno::ROFS.raw_os_error()) {
        return Error::Usage(format!(
            "{} lies on a read-only file system and has no key for file handles yet: export it \
             once while it can be written",
            path.display()
        ));
    }
    Error::system("keep the key of file handles in", path, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_465_a_handle_that_was_not_given_leads_nowhere() {
        let key = Key::forged(1);
        let handle = FileHandle { kind: 0x81, bytes: (0..12).collect() };
        let sealed = key.seal(&handle).unwrap();
        assert!(sealed.len() <= HANDLE_BYTES_MAX);
        assert_eq!(key.unseal(&sealed), Ok(handle.clone()));
        assert_eq!(Key::forged(2).unseal(&sealed), Err(Status::Stale));
        for at in 0..sealed.len() {
            let mut forged = sealed.clone();
            forged[at] ^= 1;
            assert!(key.unseal(&forged).is_err(), "byte {at}");
            assert!(key.unseal(&sealed[..at]).is_err(), "cut at {at}");
        }
        let long = FileHandle { bytes: vec![0; KERNEL_BYTES_MAX + 1], ..handle };
        assert_eq!(key.seal(&long), Err(Status::NotSupported));
    }
}
