//! Messages to the kernel, which are no answers.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::channel::Channel;
use crate::protocol::{OUT_HEADER_BYTES, write_out_header};

/// `enum fuse_notify_code`.
const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const STORE: i32 = 4;
const INC_EPOCH: i32 = 8;

/// The minor version of the protocol that has `FUSE_NOTIFY_INC_EPOCH` (Linux 6.16).
const EPOCHS_SINCE: u32 = 44;

/// `FUSE_EXPIRE_ONLY`, since Linux 6.2.
const EXPIRE_ONLY: u32 = 1;

/// Tells the kernel to drop what it holds. Each call but [`expire_all`](Self::expire_all) waits for
/// the kernel, and so may wait for requests: not for threads that [serve](crate::is_serving).
#[derive(Debug, Clone)]
pub struct Notifier {
    channel: Arc<Channel>,
    has_epochs: bool,
}

impl Notifier {
    pub(crate) fn new(channel: Arc<Channel>, minor: u32) -> Self {
        Self { channel, has_epochs: minor >= EPOCHS_SINCE }
    }

    /// Returns whether the kernel can [expire all names](Self::expire_all).
    #[must_use]
    pub fn has_epochs(&self) -> bool {
        self.has_epochs
    }

    /// Has the kernel look up each name again before it uses it next, also what it took for absent and
    /// what it is looking up now. Waits for nothing.
    ///
    /// # Errors
    /// What the kernel says; one that [has no epochs](Self::has_epochs) does not know it.
    pub fn expire_all(&self) -> io::Result<()> {
        self.send(INC_EPOCH, &[], &[])
    }

    /// Has the kernel ask for attributes again, and write and drop its pages of a range. `len` 0: to
    /// the end; an offset below 0: no pages. An inode that the kernel does not know is no error.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn inval_inode(&self, node: u64, offset: i64, len: i64) -> io::Result<()> {
        let mut body = [0; 24];
        body[..8].copy_from_slice(&node.to_ne_bytes());
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        body[16..].copy_from_slice(&len.to_ne_bytes());
        self.send(INVAL_INODE, &body, &[])
    }

    /// Puts bytes of a file into the kernel's page cache, and has the kernel take the file for at
    /// least so long. An inode that the kernel does not know is no error.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn store(&self, node: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut body = [0; 24];
        body[..8].copy_from_slice(&node.to_ne_bytes());
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        body[16..20].copy_from_slice(&len.to_ne_bytes());
        self.send(STORE, &body, &[bytes])
    }

    /// Has the kernel forget a name. One that it does not know is no error.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn inval_entry(&self, dir: u64, name: &OsStr) -> io::Result<()> {
        self.entry(dir, name, 0)
    }

    /// Has the kernel look a name up again before it uses it next, and keep it until then, with what
    /// is mounted on it. One that it does not know is no error.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn expire_entry(&self, dir: u64, name: &OsStr) -> io::Result<()> {
        self.entry(dir, name, EXPIRE_ONLY)
    }

    fn entry(&self, dir: u64, name: &OsStr, flags: u32) -> io::Result<()> {
        let len = u32::try_from(name.len()).map_err(io::Error::other)?;
        let mut body = [0; 16];
        body[..8].copy_from_slice(&dir.to_ne_bytes());
        body[8..12].copy_from_slice(&len.to_ne_bytes());
        body[12..].copy_from_slice(&flags.to_ne_bytes());
        self.send(INVAL_ENTRY, &body, &[name.as_bytes(), &[0]])
    }

    /// Sends what looks like an answer to no request, with the code where its error would be.
    fn send(&self, code: i32, body: &[u8], rest: &[&[u8]]) -> io::Result<()> {
        let len = body.len() + rest.iter().map(|part| part.len()).sum::<usize>();
        let mut header = [0; OUT_HEADER_BYTES];
        write_out_header(&mut header, 0, -code, len);
        let parts = [&header, body].into_iter().chain(rest.iter().copied());
        let parts: Vec<_> = parts.map(IoSlice::new).collect();
        match rustix::io::writev(&self.channel, &parts) {
            Ok(_) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
