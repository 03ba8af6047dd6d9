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
//!
//! | file | holds |
//! | --- | --- |
//! | `layout` | pages, units, groups: how a file's bytes are cut |
//! | `shard`, `replace` | frames, the look-up, which page leaves (S3-FIFO) |
//! | `core`, `runs` | what is kept per file: dirty runs, writes under way, the latched error |
//! | `file` | reading and writing through pages |
//! | `fill`, `flight`, `readahead` | bringing pages in; what must not be brought in; how far ahead |
//! | `writeback` | carrying dirty pages out |
//! | `change` | direct writes, truncations, punches |
//! | `pool`, `staging`, `counters`, `sync` | threads, memory for requests, counters, locks |
//!
//! Data is copied between a request's memory and the pages, at both ends. The copy costs a tenth of what a fast device needs for the same bytes, and buys
//! requests of 1 MiB over 4 KiB pages, pages that can be written while they are carried out, and a cap that no request in flight can hold up.
//!
//! # Invariants
//!
//! - **I-CACHE-1** A page has one frame at most, and a valid unit holds what a reader must see: a fill never overwrites it.
//! - **I-CACHE-2** What a fill read is kept only if nothing wrote its pages, in the cache or past it, between its announcement and its landing.
//! - **I-CACHE-3** When direct writes of one page overlap in time, no cached copy of it survives the last of them, and none is made while one is under way.
//! - **I-CACHE-4** A dirty or flying page stays in memory; of a page, one write at a time is under way.
//! - **I-CACHE-5** While the map changes, nothing of the file enters the cache by a fill, and nothing read before the change enters after it.
//! - **I-CACHE-6** Pages in memory never pass the cap; a writer who would pass half of it with dirty pages writes some back first.
//! - **I-CACHE-7** A frame is in one queue of the replacement at most, a pinned one in none.
//! - **I-CACHE-8** In a valid unit, bytes beyond the logical size are zero.
//!
//! # Lock ranks
//!
//! The caller's ordering lock, then a shard's `state`, then `FileCore::state`, then `PageCache::listed`. `FileCore::streams`, the pools' and the staging locks
//! are leaves. No lock of this room is held across a call to the backing.

mod change;
mod core;
mod counters;
mod file;
mod fill;
mod flight;
mod layout;
mod pool;
mod readahead;
mod replace;
mod runs;
mod shard;
mod staging;
mod sync;
mod writeback;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use self::core::FileCore;
use self::counters::Counters;
use self::layout::Layout;
use self::pool::Pool;
use self::readahead::Windows;
use self::shard::{Key, Shard};
use self::staging::Staging;
use crate::Result;

pub(crate) use self::change::MapChange;
pub(crate) use self::counters::CacheCounters;
pub(crate) use self::file::CachedFile;

/// Bytes of the largest request to the backing.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Frames that one shard should have, so that a group more or less does not unbalance it.
const SHARD_FRAMES: u64 = 1024;
const SHARDS_MAX: u64 = 256;
/// The smallest cache.
const FRAMES_MIN: u64 = 16;

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
pub(crate) struct PageCache {
    layout: Layout,
    io_align: usize,
    shards: Box<[Shard]>,
    counters: Arc<Counters>,
    windows: Windows,
    /// Pages of the largest request.
    request_pages: u64,
    /// Pages that may be read ahead and not yet used, all files together.
    ahead_pages_max: u64,
    /// Dirty pages at which a writer writes back by itself.
    pinned_max: u64,
    /// Dirty pages at which the background begins.
    pinned_background: u64,
    write_threads: usize,
    next_file: AtomicU64,
    next_flight: AtomicU64,
    staging: Staging,
    readers: Pool,
    writers: Pool,
    /// Files that have, or had not long ago, dirty pages.
    listed: parking_lot::Mutex<BTreeMap<u64, Weak<FileCore>>>,
}

impl PageCache {
    /// Makes an empty cache; memory and threads come with use. A cap below 16 pages is raised to that.
    pub(crate) fn new(options: &CacheOptions) -> Arc<Self> {
        let layout = Layout::new(options.io_align, options.block_size);
        let page_size = layout.page_size() as u64;
        let frames = (options.cap_bytes / page_size).max(FRAMES_MIN);
        let shards = 1 << (frames / SHARD_FRAMES).clamp(1, SHARDS_MAX).ilog2();
        let quota = (frames / shards).min(u64::from(u32::MAX - 1)) as usize;
        let frames = quota as u64 * shards;
        let counters = Arc::<Counters>::default();
        let request_pages = (REQUEST_BYTES_MAX / page_size).min(frames / 8).max(1);
        let window = |bytes: u32, share: u64| u64::from(bytes).div_ceil(page_size).min((frames / share).max(1));
        Arc::new(Self {
            layout,
            io_align: options.io_align as usize,
            shards: (0..shards).map(|_| Shard::new(layout, quota, Arc::clone(&counters))).collect(),
            counters,
            windows: Windows { min: window(options.read_ahead_bytes_min.max(1), 16), max: window(options.read_ahead_bytes_max, 8) },
            request_pages,
            ahead_pages_max: frames / 12,
            pinned_max: frames / 2,
            pinned_background: frames / 4,
            write_threads: options.write_threads,
            next_file: AtomicU64::new(1),
            next_flight: AtomicU64::new(1),
            staging: Staging::new((request_pages * page_size) as usize),
            readers: Pool::new("bedplate-ahead", options.read_threads),
            writers: Pool::new("bedplate-behind", options.write_threads),
            listed: parking_lot::Mutex::default(),
        })
    }

    /// Makes the cache's part of one inode. `size` is the inode's logical size: the inode reads it, `write_at` and `begin_truncate` move it.
    /// `backing` is weak because the inode that owns the `CachedFile` usually *is* the backing; whoever drops the inode flushes it first.
    pub(crate) fn file(self: &Arc<Self>, ino: u64, backing: Weak<dyn Backing>, size: Arc<AtomicU64>) -> CachedFile {
        let id = self.next_file.fetch_add(1, Relaxed);
        CachedFile { cache: Arc::clone(self), core: Arc::new(FileCore::new(id, ino, backing, size)) }
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> CacheCounters {
        let hits = self.shards.iter().map(|s| s.hits.load(Relaxed)).sum();
        self.counters.snapshot(hits, self.layout.page_size() as u64)
    }

    #[inline]
    fn shard(&self, file: u64, group: u64) -> &Shard {
        let hash = Key { file, group }.hash();
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }

    fn io_align(&self) -> usize {
        self.io_align
    }

    fn flight_id(&self) -> u64 {
        self.next_flight.fetch_add(1, Relaxed)
    }

    fn pinned_pages(&self) -> u64 {
        self.counters.pinned_pages.load(Relaxed)
    }

    /// A page has become dirty; returns whether the background should begin to write.
    fn count_pinned(&self, core: &FileCore) -> bool {
        core.pinned_pages.fetch_add(1, Relaxed);
        self.counters.pinned_pages.fetch_add(1, Relaxed) >= self.pinned_background
    }

    fn count_unpinned(&self, core: &FileCore) {
        core.pinned_pages.fetch_sub(1, Relaxed);
        self.counters.pinned_pages.fetch_sub(1, Relaxed);
    }

    /// Adds a page to its file's dirty ones; returns the run that it is part of. Called under the shard's lock, so that the run and the frame agree.
    fn add_dirty(&self, core: &Arc<FileCore>, page: u64) -> std::ops::Range<u64> {
        let (run, list) = core.add_dirty(page);
        if list {
            self.listed.lock().insert(core.id, Arc::downgrade(core));
        }
        run
    }
}
