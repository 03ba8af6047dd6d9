//! The library cache: pages of files in memory, read ahead and written behind, for the modes `cached` and `concurrent+cache`.
//!
//! ```text
//!   ordering lock of the inode (the caller's: shared to read, exclusive to write, see DESIGN section 3)
//!        │
//!   CachedFile::{read_at, write_at, flush, begin_truncate, begin_direct_write …}      this room
//!        │
//!   Backing::{read_direct, write_direct, reserve, size}                               the data path, per inode
//!        │
//!   lock of the extent map (InodeLock and below)
//! ```
//!
//! The cache calls [`Backing`] from its own threads and from inside its own methods. So a caller may hold its *ordering* lock (the one that
//! makes `cached` writes exclusive) across a call into the cache, but never a lock that a `Backing` method takes.
#![allow(dead_code, reason = "the data path takes it into use")]

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::Result;

/// What the cache needs of one file's direct data path. Called from any thread, several at once, on disjoint and on overlapping ranges
/// (overlapping: reads only; the cache never has two writes of one page in flight).
pub(crate) trait Backing: Send + Sync {
    /// Fills `buf` from `offset` (aligned to the I/O alignment, as is the buffer's length). Holes and unwritten blocks read as zeros. Returns the
    /// bytes read; short only at the end of the file's blocks. What lies beyond [`size`](Self::size) may be anything.
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all of `buf` (offset and length aligned). The durable size becomes `max(size, min(offset + len, size_after))` before it returns;
    /// a gap between the old size and `offset` reads as zeros.
    fn write_direct(&self, buf: &[u8], offset: u64, size_after: u64) -> Result<()>;
    /// Sets blocks aside for a range, so that a later `write_direct` of it cannot find the volume full. Repeating it for the same blocks costs nothing
    /// and takes nothing; what a truncate or punch removes gives its reservation back. Called before a page becomes dirty.
    fn reserve(&self, offset: u64, len: u64) -> Result<()>;
    /// Returns the size that reached the data path: what `write_direct` and truncations made it. The logical size of the inode is never below what
    /// the application wrote; this one follows when write-behind has done its work.
    fn size(&self) -> u64;
}

/// How a cache works; validated by [`PageCache::new`].
#[derive(Debug, Clone)]
pub(crate) struct CacheOptions {
    /// Cap of all pages, clean and dirty, in bytes. Hard.
    pub(crate) cap_bytes: u64,
    /// I/O alignment of every `Backing`: the device's logical block size. The unit of validity and of dirtiness.
    pub(crate) io_align: u32,
    /// Block size of the file system: a write-behind may fill up a page with clean bytes when that allocates nothing more.
    pub(crate) block_size: u32,
    /// First read-ahead window in bytes.
    pub(crate) read_ahead_bytes_min: u32,
    /// Largest read-ahead window in bytes; 0: no read-ahead.
    pub(crate) read_ahead_bytes_max: u32,
    /// Threads that read ahead; 0: the reader issues it itself, in order (for tests).
    pub(crate) read_threads: usize,
    /// Threads that write behind; 0: the writer does it itself, in order (for tests).
    pub(crate) write_threads: usize,
}

/// The pages of all files of one mounted file system.
#[derive(Debug)]
pub(crate) struct PageCache {}

impl PageCache {
    /// Makes an empty cache; memory and threads come with use.
    pub(crate) fn new(options: CacheOptions) -> Arc<Self> {
        todo!("lands next: {options:?}")
    }
    /// Makes the cache's part of one inode. `size` is the inode's logical size: the inode reads it, `write_at` and `begin_truncate` move it.
    /// `backing` is weak because the inode that owns the `CachedFile` usually *is* the backing; whoever drops the inode flushes it first.
    pub(crate) fn file(self: &Arc<Self>, ino: u64, backing: Weak<dyn Backing>, size: Arc<AtomicU64>) -> CachedFile {
        todo!("lands next: {ino} {size:?} {}", backing.strong_count())
    }
    /// Writes pages that became dirty at or before `older_than`, of all files: the sync daemon's turn. Errors stay latched on their file; returns the first.
    pub(crate) fn flush_aged(&self, older_than: Instant) -> Result<()> {
        todo!("lands next: {older_than:?}")
    }
    /// Writes all dirty pages of all files (`sync`, unmount); goes on after an error and returns the first.
    pub(crate) fn flush_all(&self) -> Result<()> {
        todo!("lands next")
    }
    /// Returns the counters.
    pub(crate) fn counters(&self) -> CacheCounters {
        todo!("lands next")
    }
}

/// One inode's pages. Dropping it discards them all, dirty ones too.
#[derive(Debug)]
pub(crate) struct CachedFile {}

impl CachedFile {
    /// Reads up to `buf.len()` bytes at `offset`, from memory where possible, else from the backing (and keeps what it read). Short only at the logical size.
    /// Serves `cached` (caller holds the ordering lock shared) and `concurrent+cache` (no ordering lock needed). Returns the bytes read and whether
    /// all came from memory.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(usize, bool)> {
        todo!("lands next: {} {offset}", buf.len())
    }
    /// Writes into pages (`cached`; caller holds the ordering lock exclusive) and moves the logical size up. Returns the bytes taken: fewer than
    /// `buf.len()` when an error (no space, a failed read of a partly written block) stopped it in the middle, which the caller reports as a short
    /// write or, by trying again, as the error. May write back pages on the caller's thread when too many are dirty.
    pub(crate) fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        todo!("lands next: {} {offset}", buf.len())
    }
    /// Announces a direct write of a range (`concurrent+cache`). Hold the answer across the device write, then call [`DirectWrite::refresh`] with what
    /// was written, after success only. Dropping it instead (the write failed) makes the cache forget the range. Writes back dirty pages of the range first.
    pub(crate) fn begin_direct_write(&self, offset: u64, len: u64) -> Result<DirectWrite> {
        todo!("lands next: {offset} {len}")
    }
    /// Writes all dirty pages, in file order, in large runs, and waits for those under way. Returns a latched error of an earlier write-behind too.
    /// Durable only after the caller's device flush.
    pub(crate) fn flush(&self) -> Result<()> {
        todo!("lands next")
    }
    /// As [`flush`](Self::flush), for the pages that a range touches.
    pub(crate) fn flush_range(&self, offset: u64, len: u64) -> Result<()> {
        todo!("lands next: {offset} {len}")
    }
    /// Announces a truncation to `size` (caller holds the ordering lock exclusive): sets the logical size, forgets what is beyond it, dirty or not, waits for
    /// writes of it under way. Hold the answer until the backing's map and size are changed; until then nothing of this file enters the cache.
    /// Growing goes through here too.
    pub(crate) fn begin_truncate(&self, size: u64) -> MapChange {
        todo!("lands next: {size}")
    }
    /// Announces a change of what a range holds other than by a write (punch, zero range, collapse, insert: there the range runs to `u64::MAX`). Writes back
    /// dirty pages that the range cuts, forgets all pages it touches. Hold the answer until the backing is changed.
    pub(crate) fn begin_map_change(&self, offset: u64, len: u64) -> Result<MapChange> {
        todo!("lands next: {offset} {len}")
    }
    /// Forgets the clean pages.
    pub(crate) fn drop_clean(&self) {
        todo!("lands next")
    }
    /// Forgets every page, dirty ones too (the last link of an unlinked file is gone).
    pub(crate) fn drop_all(&self) {
        todo!("lands next")
    }
    /// Returns the bytes that are dirty or being written.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        todo!("lands next")
    }
}

/// A direct write under way; see [`CachedFile::begin_direct_write`]. Owned: it may live in a queue's in-flight table.
#[derive(Debug)]
#[must_use]
pub(crate) struct DirectWrite {}

impl DirectWrite {
    /// The device has `data` (all of the announced range): cached copies take it over, or are forgotten when another write of the range was under way.
    pub(crate) fn refresh(self, data: &[u8]) {
        todo!("lands next: {}", data.len())
    }
}

/// A change of the map under way; dropping it lets the file's pages into the cache again.
#[derive(Debug)]
#[must_use]
pub(crate) struct MapChange {}

/// What the cache counted since it was made; single values are exact, the whole is not atomic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheCounters {
    /// Reads answered from memory.
    pub hits: u64,
    /// Reads that waited for the device.
    pub misses: u64,
    /// Pages asked for by read-ahead.
    pub read_ahead_issued: u64,
    /// Pages read ahead and then used.
    pub read_ahead_used: u64,
    /// Pages read ahead and forgotten unused.
    pub read_ahead_wasted: u64,
    /// Device writes made by write-behind, flushes and the sync daemon.
    pub write_behind_runs: u64,
    /// Bytes of those writes.
    pub write_behind_bytes: u64,
    /// Pages evicted to make room.
    pub evictions: u64,
    /// Bytes dirty or being written now.
    pub dirty_bytes: u64,
    /// Bytes of memory held by pages now.
    pub resident_bytes: u64,
    /// Writers that had to write back pages before they could go on.
    pub throttled: u64,
}
