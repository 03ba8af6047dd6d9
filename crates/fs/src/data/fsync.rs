//! Making a file durable: `fsync`, `fdatasync`, and the writes of opens with `O_SYNC` or `O_DSYNC`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::DataPath;
use crate::Result;
use crate::engine::{Engine, Listed};
use crate::inode::Inode;
use crate::statistics::Counters;
use crate::statistics::{Timed, Timing};
use bedplate_cache::CachedFile;
use bedplate_store::{PlantedBug, planted};

impl DataPath<'_> {
    /// `fdatasync`: data, and what is needed to read it back. Without pending metadata one device
    /// flush, shared with all that wait.
    pub(crate) fn sync_data(self) -> Result<()> {
        self.timed(|waits| {
            if self.fs.is_read_only() {
                return Ok(());
            }
            flush_before_sync(self.fs, self.inode)?;
            waits.pages_written();
            self.sync_log()
        })
    }

    /// As [`sync_data`](Self::sync_data), with nothing of the file held or in the cache as the call
    /// began, and no lock of the file taken.
    pub(crate) fn sync_written_data(self) -> Result<()> {
        self.timed(|_| if self.fs.is_read_only() { Ok(()) } else { self.sync_log() })
    }

    fn sync_log(self) -> Result<()> {
        if planted(PlantedBug::SyncWithoutFlush) && self.fs.is_durable(self.inode.data_lsn()) {
            return Ok(());
        }
        self.fs.sync_to(self.inode.data_lsn())
    }

    /// `O_DSYNC`: a range that was just written, and what is needed to read it back.
    pub(crate) fn sync_written(self, offset: u64, len: u64) -> Result<()> {
        self.timed(|waits| {
            if let Some(cached) = self.cached_if_any() {
                cached.flush_range(offset, len)?;
            }
            self.write_if_held()?;
            self.wait_for_truncation();
            waits.pages_written();
            self.fs.sync_to(self.inode.data_lsn())
        })
    }

    /// `fsync`: data and all attributes.
    pub(crate) fn sync_all(self) -> Result<()> {
        self.timed(|waits| {
            if self.fs.is_read_only() {
                return Ok(());
            }
            flush_before_sync(self.fs, self.inode)?;
            waits.pages_written();
            self.fs.commit_times(self.inode);
            self.fs.sync_to(self.inode.meta_lsn())
        })
    }

    /// Counts a sync and what it waits for.
    fn timed(self, sync: impl FnOnce(&mut Waits<'_>) -> Result<()>) -> Result<()> {
        Counters::add(&self.inode.counters.syncs, 1);
        self.state().synced.store(true, Ordering::Relaxed);
        self.state().carried_along.store(0, Ordering::Relaxed);
        if let Some(file) = self.state().lease() {
            file.synced();
        }
        let mut waits = Waits { io: self, timing: self.fs.sampler().begin_sync() };
        sync(&mut waits)?;
        if let Some(timing) = waits.timing {
            Counters::add(&self.inode.counters.sync_wait_ns, nanoseconds(timing.began));
            self.fs.sampler().end(&self.inode.latencies, Timed::Sync, timing);
        }
        Ok(())
    }
}

/// What a sync waits for, in turn.
struct Waits<'a> {
    io: DataPath<'a>,
    timing: Option<Timing>,
}

impl Waits<'_> {
    /// The file's dirty pages are written; the log and the flush remain. A file without a cache
    /// waits for no pages.
    fn pages_written(&mut self) {
        if let Some(timing) = self.timing.filter(|_| self.io.has_cache()) {
            Counters::add(&self.io.inode.counters.sync_pages_ns, nanoseconds(timing.began));
        }
    }
}

fn nanoseconds(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Writes what of an inode is held or dirty in the library cache to the device (no flush), for a
/// caller that is no sync: what a write-behind failed with before stays to be told by the next one.
pub(crate) fn write_inode(fs: &Engine, inode: &Arc<Inode>) -> Result<()> {
    write_with(fs, inode, CachedFile::write_dirty)
}

fn write_with(
    fs: &Engine,
    inode: &Arc<Inode>,
    write: impl FnOnce(&CachedFile) -> Result<()>,
) -> Result<()> {
    let io = DataPath::new(fs, inode);
    if !planted(PlantedBug::HeldWriteNotSynced) {
        io.write_if_held()?;
    }
    io.cached_if_any().map_or(Ok(()), write)
}

/// As [`write_inode`], and tells what a write-behind failed with before; waits for a truncation
/// that has taken dirty pages away.
pub(crate) fn flush_before_sync(fs: &Engine, inode: &Arc<Inode>) -> Result<()> {
    write_with(fs, inode, CachedFile::flush)?;
    DataPath::new(fs, inode).wait_for_truncation();
    Ok(())
}

/// As [`write_inode`], once what changes the file's end has ended: a truncation takes dirty pages
/// away before its first record, and rows read in between show the file as it was at neither time.
pub(crate) fn write_inode_alone(fs: &Engine, inode: &Arc<Inode>) -> Result<()> {
    // Most of it while others work on.
    write_inode(fs, inode)?;
    let _order = DataPath::new(fs, inode).state().order.exclusive(fs);
    write_inode(fs, inode)
}

impl Engine {
    /// Lets the rows of all files tell what was written to them.
    pub(crate) fn flush_all_alone(&self) -> Result<()> {
        self.cache().write_dirty()?;
        let written = [Listed::Cached, Listed::Held, Listed::Delayed, Listed::Leased]
            .map(|why| self.listed(why));
        written.iter().flatten().try_for_each(|inode| write_inode_alone(self, inode))
    }
}
