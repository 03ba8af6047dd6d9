//! Which clients may hold locks, durable on the exported directory: what a server that starts again
//! goes by.
//!
//! ```text
//!   trusted.bedplate.nfs-locks:   version 1 │ client 16 │ client 16 │ …
//! ```
//! A client is in it before its first lock is granted, and is out of it before its locks are taken from
//! it. So after a start exactly those clients may take back locks that no other had meanwhile.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// By what a client is known: a hash of its name and its secret.
pub type SessionId = [u8; 16];

/// How many clients may hold locks at once.
pub const CLIENTS_MAX: usize = 128;

/// The extended attribute of the exported directory; for the superuser alone.
const ATTRIBUTE: &CStr = c"trusted.bedplate.nfs-locks";
const VERSION: u8 = 1;
const BYTES_MAX: usize = 1 + CLIENTS_MAX * size_of::<SessionId>();

/// The note, and what it says.
#[derive(Debug)]
pub struct Note {
    dir: OwnedFd,
    written: BTreeSet<SessionId>,
}

impl Note {
    /// Reads it.
    ///
    /// # Errors
    /// The system's, and what no server has written.
    pub fn read(dir: OwnedFd) -> io::Result<Self> {
        let mut bytes = [0; BYTES_MAX + 1];
        let len = match rustix::fs::fgetxattr(&dir, ATTRIBUTE, &mut bytes) {
            Ok(len) => len,
            Err(Errno::NODATA) => return Ok(Self { dir, written: BTreeSet::new() }),
            Err(error) => return Err(error.into()),
        };
        let written = decode(&bytes[..len]).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the attribute trusted.bedplate.nfs-locks is none of this server: once no client \
                 of before writes any more, remove it, which gives up the locks of all clients",
            )
        })?;
        Ok(Self { dir, written })
    }

    /// Returns the clients that it names.
    pub fn clients(&self) -> &BTreeSet<SessionId> {
        &self.written
    }

    /// Makes it name other clients, which is durable then.
    pub fn write(&mut self, clients: BTreeSet<SessionId>) -> io::Result<()> {
        if clients == self.written {
            return Ok(());
        }
        let mut bytes = vec![VERSION];
        clients.iter().for_each(|client| bytes.extend_from_slice(client));
        match rustix::fs::fsetxattr(&self.dir, ATTRIBUTE, &bytes, XattrFlags::empty()) {
            Ok(()) => rustix::fs::fsync(&self.dir)?,
            // Where nothing can be written there is nothing to keep a writer from.
            Err(Errno::ROFS) => {}
            Err(error) => return Err(error.into()),
        }
        self.written = clients;
        Ok(())
    }
}

fn decode(bytes: &[u8]) -> Option<BTreeSet<SessionId>> {
    let (VERSION, clients) = bytes.split_first().map(|(version, rest)| (*version, rest))? else {
        return None;
    };
    let (clients, []) = clients.as_chunks() else { return None };
    Some(clients.iter().copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_names_clients_or_is_none() {
        let all = [[1; 16], [2; 16]].concat();
        assert_eq!(decode(&[&[VERSION][..], &all].concat()), Some([[1; 16], [2; 16]].into()));
        assert_eq!(decode(&[VERSION]), Some(BTreeSet::new()));
        for bad in [&b""[..], &[2], &[VERSION, 5], &[VERSION; 18]] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
    }
}
