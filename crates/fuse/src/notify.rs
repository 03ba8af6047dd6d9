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

/// Tells the kernel to drop what it holds. Each call waits for the kernel, and so may wait for
/// requests: not for threads that [serve](crate::is_serving).
#[derive(Debug, Clone)]
pub struct Notifier(Arc<Channel>);

impl Notifier {
    pub(crate) fn new(channel: Arc<Channel>) -> Self {
        Self(channel)
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
        self.send(INVAL_INODE, &body, None)
    }

    /// Has the kernel forget a name. One that it does not know is no error.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn inval_entry(&self, dir: u64, name: &OsStr) -> io::Result<()> {
        let len = u32::try_from(name.len()).map_err(io::Error::other)?;
        let mut body = [0; 16];
        body[..8].copy_from_slice(&dir.to_ne_bytes());
        body[8..12].copy_from_slice(&len.to_ne_bytes());
        self.send(INVAL_ENTRY, &body, Some(name))
    }

    /// Sends what looks like an answer to no request, with the code where its error would be.
    fn send(&self, code: i32, body: &[u8], name: Option<&OsStr>) -> io::Result<()> {
        let end = name.map_or(&[][..], |_| &[0]);
        let name = name.map_or(&[][..], OsStr::as_bytes);
        let mut header = [0; OUT_HEADER_BYTES];
        write_out_header(&mut header, 0, -code, body.len() + name.len() + end.len());
        let parts = [&header, body, name, end].map(IoSlice::new);
        match rustix::io::writev(&self.0, &parts) {
            Ok(_) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
