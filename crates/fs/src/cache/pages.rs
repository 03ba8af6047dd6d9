//! The cache of one mounted file system: its shards, limits and threads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use super::core::FileCore;
use super::counters::{CacheCounters, Counters};
use super::file::CachedFile;
use super::layout::Layout;
use super::pool::Pool;
use super::readahead::Windows;
use super::shard::{Key, Shard};
use super::staging::Staging;
use super::sync::{AtomicU64, Mutex};
use super::{Backing, CacheOptions};

/// Bytes of the largest request to the backing.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Frames that one shard should have, so that a group more or less does not unbalance it.
const SHARD_FRAMES: u64 = 1024;
const SHARDS_MAX: u64 = 256;
/// The smallest cache.
const FRAMES_MIN: u64 = 16;

/// The pages of all files of one mounted file system.
#[derive(Debug)]
pub(crate) struct PageCache {
    pub(super) layout: Layout,
    pub(super) io_align: usize,
    pub(super) shards: Box<[Shard]>,
    pub(super) counters: Arc<Counters>,
    pub(super) windows: Windows,
    /// Pages of the largest request.
    pub(super) request_pages: u64,
    /// Pages that may be read ahead and not yet used, all files together.
    pub(super) ahead_pages_max: u64,
    /// Dirty pages at which a writer writes back by itself.
    pub(super) pinned_max: u64,
    /// Dirty pages at which the background begins.
    pub(super) pinned_background: u64,
    pub(super) write_threads: usize,
    next_file: AtomicU64,
    next_flight: AtomicU64,
    pub(super) staging: Staging,
    pub(super) readers: Pool,
    pub(super) writers: Pool,
    /// Files that have, or had not long ago, dirty pages. Rank 1.9.
    pub(super) listed: Mutex<BTreeMap<u64, Weak<FileCore>>>,
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
            listed: Mutex::default(),
        })
    }

    /// Makes the cache's part of one inode. `size` is the inode's logical size: the inode reads it, `write_at` and `begin_truncate` move it.
    /// `backing` is weak because the inode that owns the `CachedFile` usually *is* the backing; whoever drops the inode flushes it first.
    pub(crate) fn file(self: &Arc<Self>, ino: u64, backing: Weak<dyn Backing>, size: Arc<AtomicU64>) -> CachedFile {
        let id = FileCore::number(self.next_file.fetch_add(1, Relaxed));
        CachedFile { cache: Arc::clone(self), core: Arc::new(FileCore::new(id, ino, backing, size)) }
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> CacheCounters {
        self.counters.snapshot(self.layout.page_size() as u64)
    }

    #[inline]
    pub(super) fn shard(&self, file: u64, group: u64) -> &Shard {
        let hash = Key { file, group }.mixed();
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }

    pub(super) fn io_align(&self) -> usize {
        self.io_align
    }

    pub(super) fn flight_id(&self) -> u64 {
        self.next_flight.fetch_add(1, Relaxed)
    }

    pub(super) fn pinned_pages(&self) -> u64 {
        self.counters.pinned_pages.load(Relaxed)
    }

    /// A page has become dirty; returns whether the background should begin to write.
    pub(super) fn count_pinned(&self, core: &FileCore) -> bool {
        core.pinned_pages.fetch_add(1, Relaxed);
        self.counters.pinned_pages.fetch_add(1, Relaxed) >= self.pinned_background
    }

    pub(super) fn count_unpinned(&self, core: &FileCore) {
        core.pinned_pages.fetch_sub(1, Relaxed);
        self.counters.pinned_pages.fetch_sub(1, Relaxed);
    }

    /// Adds a page to its file's dirty ones; returns the run that it is part of. Called under the shard's lock, so that the run and the frame agree.
    pub(super) fn add_dirty(&self, core: &Arc<FileCore>, page: u64) -> Range<u64> {
        let (run, list) = core.add_dirty(page);
        if list {
            self.listed.lock().insert(core.id, Arc::downgrade(core));
        }
        run
    }
}
