//! Making a file durable.

use std::sync::Arc;
use std::time::Instant;

use super::Io;
use crate::Result;
use crate::cache::CachedFile;
use crate::inode::Inode;
use crate::planted::{PlantedBug, planted};
use crate::state::Fs;
use crate::stats::Counters;

impl Io<'_> {
    /// `fdatasync`: data, and what is needed to read it back. Without pending metadata one device flush, shared with whoever else waits.
    pub(crate) fn sync_data(self) -> Result<()> {
        Counters::add(&self.inode.counters.syncs, 1);
        if self.fs.options.read_only {
            return Ok(());
        }
        flush_inode(self.fs, self.inode)?;
        if planted(PlantedBug::SyncWithoutFlush) && self.fs.meta.is_durable(self.inode.data_lsn()) {
            return Ok(());
        }
        self.fs.meta.sync(self.inode.data_lsn())
    }

    /// `O_DSYNC`: a range that was just written, and what is needed to read it back.
    pub(crate) fn sync_written(self, offset: u64, len: u64) -> Result<()> {
        Counters::add(&self.inode.counters.syncs, 1);
        if let Some(cached) = self.cached_if_any() {
            cached.flush_range(offset, len)?;
        }
        self.fs.meta.sync(self.inode.data_lsn())
    }

    /// `fsync`: data and all attributes.
    pub(crate) fn sync_all(self) -> Result<()> {
        Counters::add(&self.inode.counters.syncs, 1);
        if self.fs.options.read_only {
            return Ok(());
        }
        flush_inode(self.fs, self.inode)?;
        self.fs.commit_times(self.inode);
        self.fs.meta.sync(self.inode.meta_lsn())
    }
}

/// Writes an inode's dirty library-cache pages to the device (no flush).
pub(crate) fn flush_inode(fs: &Fs, inode: &Arc<Inode>) -> Result<()> {
    Io::new(fs, inode).cached_if_any().map_or(Ok(()), CachedFile::flush)
}

/// Writes all dirty library-cache pages to the device (no flush).
pub(crate) fn flush_all(fs: &Fs) -> Result<()> {
    fs.cache.flush_all()
}

/// Writes pages that are dirty since before `then`.
pub(crate) fn flush_aged(fs: &Fs, then: Instant) -> Result<()> {
    fs.cache.flush_aged(then)
}
