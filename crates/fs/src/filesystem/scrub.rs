//! What a scrub of the device below asks: which of several copies of a place is what was written.

use bedplate_store::OwnPlace;

use super::FileSystem;
use crate::engine::KeptExtent;
use crate::{InodeNo, Result};

impl FileSystem {
    /// Says whether `bytes`, a whole block that lies at `place` on the volume, are what was written
    /// there, if the extent of the file that begins at `extent_offset` has the block now and says
    /// that it has a checksum; `None` otherwise. It holds as long as nothing is written there.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn is_as_written(
        &self,
        ino: InodeNo,
        (extent_offset, place): (u64, u64),
        bytes: &[u8],
    ) -> Result<Option<bool>> {
        self.inner.fs.is_as_written(ino, (extent_offset, place), bytes)
    }

    /// Returns the extents with data that checkpoints keep and files do not have any more, in the
    /// order of their places on the volume; some may lie over each other.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn kept_extents(&self) -> Result<Vec<KeptExtent>> {
        self.inner.fs.kept_extents()
    }

    /// As [`is_as_written`](Self::is_as_written), of an extent that a checkpoint keeps, if it still
    /// does.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn is_as_kept(&self, kept: &KeptExtent, place: u64, bytes: &[u8]) -> Result<Option<bool>> {
        self.inner.fs.is_as_kept(kept, place, bytes)
    }

    /// Returns what of the file system's own, its superblocks, log and metadata, lies at an address
    /// of its device, or with `of_log` of its log's device; `None` where nothing of it does, or what
    /// must be there is not known. Of pages of the metadata tree it is known after
    /// [`learn_pages`](Self::learn_pages).
    #[must_use]
    pub fn own_at(&self, of_log: bool, address: u64) -> Option<OwnPlace> {
        self.inner.fs.own_at(of_log, address)
    }

    /// Reads all pages of the metadata tree, so that [`own_at`](Self::own_at) knows each.
    ///
    /// # Errors
    /// `Corrupt` where no copy of a page is what was written; the others were read.
    pub fn learn_pages(&self) -> Result<()> {
        self.inner.fs.learn_pages()
    }
}
