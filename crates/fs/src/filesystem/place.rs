//! On which members of the group below the volume files lie.

use super::FileSystem;
use crate::{FilePlacement, InodeNo, PlaceStep, Result};

impl FileSystem {
    /// Has a file's new blocks, also a live one's, lie on members of the group below the volume, or
    /// those of what is created in a directory from then on; `None`: anywhere. Members are named by
    /// identity, by path or by the last part of it. Where they are full, blocks come from anywhere,
    /// and are counted ([`Reason::Elsewhere`](crate::Reason::Elsewhere)); what lies elsewhere by
    /// then is moved by [`move_placed`](Self::move_placed).
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for other kinds, for what is no member, and where no part of the
    /// volume lies on these alone; `Busy` during a relayout; `ReadOnly`.
    pub fn set_placement(&self, ino: InodeNo, members: Option<&[String]>) -> Result<()> {
        self.inner.fs.set_placement(ino, members)
    }
    /// Returns on which members a file or directory is placed, and where the file lies now.
    ///
    /// # Errors
    /// `NotFound`, `Io`, `Corrupt`.
    pub fn placement(&self, ino: InodeNo) -> Result<FilePlacement> {
        self.inner.fs.placement(&self.inner.fs.inode(ino)?)
    }
    /// Moves the next part of a file, 1 MiB of data at most, at or after the offset `from` in
    /// bytes, that lies elsewhere than the file is placed to where it is to lie; call it again with
    /// [`PlaceStep::next`]. Reads and writes of the file wait for one step at a time. Blocks that
    /// checkpoints or other files need are left alone unless `unshare`: then the file gets copies
    /// of its own.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for what is not a regular file, `ReadOnly`, `Io`.
    pub fn move_placed(&self, ino: InodeNo, from: u64, unshare: bool) -> Result<PlaceStep> {
        self.inner.fs.move_placed(&self.inner.fs.inode(ino)?, from, unshare)
    }
}
