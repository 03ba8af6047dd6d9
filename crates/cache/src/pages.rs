//! The cache of one mounted file system: its shards, limits and threads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};

use bedplate_block::Workers;

use super::CacheOptions;
use super::core::FileCore;
use super::counters::{CacheCounters, Counters};
use super::layout::{CLUSTER_BYTES, Layout, REQUEST_BYTES_MAX};
use super::readahead::Windows;
use super::shard::{Key, Shard};
use super::slab::SharedCache;
use super::staging::Staging;
use super::sync::{AtomicU64, Mutex, rank};
use bedplate_store::Result;

/// Frames that one shard should have, so that a group more or less does not unbalance it.
const SHARD_FRAMES: u64 = 1024;
const SHARDS_MAX: u64 = 256;
/// The smallest cache.
const FRAMES_MIN: u64 = 16;
/// The most frames of one shard.
const QUOTA_MAX: u64 = u32::MAX as u64 - 1;
/// The most that may be dirty, in percent: the rest can always be evicted.
const PINNED_PERCENT_MAX: u32 = 75;
const _: () = assert!(
    FRAMES_MIN <= SHARD_FRAMES && SHARDS_MAX.is_power_of_two(),
    "the smallest cache has one shard"
);
const _: () = assert!(
    QUOTA_MAX < super::replace::NONE as u64,
    "every frame of a shard has a number that stands for itself"
);
const _: () = assert!(PINNED_PERCENT_MAX < 100, "some pages can always be evicted");

/// The pages of all files of one mounted file system.
#[derive(Debug)]
pub struct PageCache {
    pub(super) layout: Layout,
    pub(super) io_align: usize,
    pub(super) shards: Box<[Shard]>,
    pub(super) counters: Arc<Counters>,
    limits: Limits,
    pub(super) write_threads: usize,
    next_file: AtomicU64,
    next_flight: AtomicU64,
    pub(super) staging: Staging,
    pub(super) readers: Workers,
    pub(super) writers: Workers,
    /// Files that have, or had not long ago, dirty pages. Rank 9.2.
    pub(super) listed: Mutex<BTreeMap<u64, Weak<FileCore>>, { rank::FILES_TO_FLUSH }>,
    /// The memory that other processes are given.
    pub(super) shared: OnceLock<SharedCache>,
}

/// What the cap and the tunables come to, in pages. Changed while I/O goes on: each is read once
/// for one decision.
#[derive(Debug, Default)]
struct Limits {
    /// Frames of one shard.
    quota: AtomicU64,
    window_min: AtomicU64,
    window_max: AtomicU64,
    request_pages: AtomicU64,
    ahead_pages_max: AtomicU64,
    pinned_max: AtomicU64,
    pinned_background: AtomicU64,
    /// Pages of a cluster, and how many of them in a row, completed, are written behind.
    cluster: AtomicU64,
    clusters: AtomicU64,
    /// Pages of a file, written at random, that may be dirty; 0: any number.
    random_max: AtomicU64,
}

impl Limits {
    /// Takes over what `options` ask of a cache of `quota` frames in each of `shards` shards.
    fn set(&self, options: &CacheOptions, page_size: u64, shards: u64, quota: u64) {
        let frames = quota * shards;
        // A reader within one window has the next one on its way: both together may be ahead.
        let ahead = frames / 12;
        let window = |bytes: u32| u64::from(bytes).div_ceil(page_size).min((ahead / 2).max(1));
        let percent = |share: u32| frames * u64::from(share.min(PINNED_PERCENT_MAX)) / 100;
        let request_pages = (REQUEST_BYTES_MAX / page_size).min(frames / 8).max(1);
        let (cluster, clusters) = match u64::from(options.write_behind_clusters) {
            0 => (request_pages, request_pages),
            count => {
                let cluster = (CLUSTER_BYTES / page_size).max(1);
                (cluster, cluster * count)
            }
        };
        for (limit, value) in [
            (&self.quota, quota),
            (&self.window_min, window(options.read_ahead_bytes_min.max(1))),
            (&self.window_max, window(options.read_ahead_bytes_max)),
            (&self.request_pages, request_pages),
            (&self.cluster, cluster),
            (&self.clusters, clusters),
            (&self.random_max, options.write_behind_random.into()),
            (&self.ahead_pages_max, ahead),
            (&self.pinned_max, percent(options.write_behind_percent_max).max(1)),
            (&self.pinned_background, percent(options.write_behind_percent_start)),
        ] {
            limit.store(value, Relaxed);
        }
    }
}

impl PageCache {
    /// Makes an empty cache; memory and threads come with use. A cap below 16 pages is raised to
    /// that.
    pub fn new(options: &CacheOptions) -> Arc<Self> {
        // What is ahead or behind too far is dropped: reads meet it themselves, and the next write
        // schedules again.
        let workers = |name, threads: usize| Workers::new(name, threads, threads * 4);
        let layout = Layout::new(options.io_align, options.block_size);
        let page_size = layout.page_size() as u64;
        let frames = (options.cap_bytes / page_size).max(FRAMES_MIN);
        let shards = 1 << (frames / SHARD_FRAMES).clamp(1, SHARDS_MAX).ilog2();
        let quota = (frames / shards).min(QUOTA_MAX) as usize;
        let counters = Arc::<Counters>::default();
        let limits = Limits::default();
        limits.set(options, page_size, shards, quota as u64);
        Arc::new(Self {
            layout,
            io_align: options.io_align as usize,
            shards: (0..shards).map(|_| Shard::new(layout, quota, Arc::clone(&counters))).collect(),
            counters,
            limits,
            write_threads: options.write_threads,
            next_file: AtomicU64::new(1),
            next_flight: AtomicU64::new(1),
            staging: Staging::default(),
            readers: workers("bedplate-ahead", options.read_threads),
            writers: workers("bedplate-behind", options.write_threads),
            listed: Mutex::default(),
            shared: OnceLock::new(),
        })
    }

    /// Returns the number of a file that is about to have pages.
    pub(super) fn next_file(&self) -> u64 {
        FileCore::number(self.next_file.fetch_add(1, Relaxed))
    }

    /// Takes over another cap, other windows and other limits for dirty pages, while I/O goes on. A
    /// smaller cap writes back what is dirty too much and gives the memory back before it returns;
    /// the pages that are used most stay. As there are as many shards as at the beginning, a cap
    /// below 16 pages for each is raised to that.
    ///
    /// # Errors
    /// That of a dirty page that could not be written: then everything is as before.
    pub fn retune(&self, before: &CacheOptions, options: &CacheOptions) -> Result<()> {
        let (page_size, count) = (self.layout.page_size() as u64, self.shards.len() as u64);
        let old = self.limits.quota.load(Relaxed);
        let quota = if before.cap_bytes == options.cap_bytes {
            old
        } else {
            (options.cap_bytes / page_size / count).clamp(FRAMES_MIN, QUOTA_MAX)
        };
        self.limits.set(options, page_size, count, quota);
        let shards = if quota == old { &[][..] } else { &self.shards[..] };
        let resized = shards.iter().try_for_each(|shard| self.resize(shard, quota as usize));
        if resized.is_err() {
            // Back to what every shard had room for.
            self.shards.iter().for_each(|shard| shard.state.write().grow(old as usize));
            self.limits.set(before, page_size, count, old);
        }
        resized
    }

    fn resize(&self, shard: &Shard, quota: usize) -> Result<()> {
        shard.state.write().grow(quota);
        loop {
            let mut state = shard.state.write();
            if state.shrink(quota) {
                return Ok(());
            }
            let pinned = state.some_pinned(0);
            drop(state);
            self.make_room(pinned)?;
        }
    }

    /// Returns the cap in bytes.
    pub fn cap_bytes(&self) -> u64 {
        self.limits.quota.load(Relaxed) * self.shards.len() as u64 * self.layout.page_size() as u64
    }

    /// Read-ahead windows.
    pub(super) fn windows(&self) -> Windows {
        // The two are tuned one after the other, and 0 turns read-ahead off whatever the first is.
        let max = self.limits.window_max.load(Relaxed);
        Windows { min: self.limits.window_min.load(Relaxed).min(max), max }
    }

    /// Pages of the largest request.
    pub(super) fn request_pages(&self) -> u64 {
        self.limits.request_pages.load(Relaxed)
    }

    /// Returns the bytes of the largest request to the backing.
    pub fn request_bytes(&self) -> u64 {
        self.layout.start_of(self.request_pages())
    }

    /// Returns whether a run of dirty pages that ends before `page`, the one just added to it, is
    /// one that a sequential writer has completed.
    pub(super) fn is_completed(&self, run: &Range<u64>, page: u64) -> bool {
        let limits = &self.limits;
        run.end == page + 1
            && page.is_multiple_of(limits.cluster.load(Relaxed))
            && page - run.start >= limits.clusters.load(Relaxed)
    }

    /// Pages of a file, written at random, that may be dirty; 0: any number.
    #[inline]
    pub(super) fn random_max(&self) -> u64 {
        self.limits.random_max.load(Relaxed)
    }

    /// Pages that may be read ahead and not yet used, all files together.
    pub(super) fn ahead_pages_max(&self) -> u64 {
        self.limits.ahead_pages_max.load(Relaxed)
    }

    /// Dirty pages at which a writer writes back by itself.
    pub(super) fn pinned_max(&self) -> u64 {
        self.limits.pinned_max.load(Relaxed)
    }

    /// Dirty pages at which the background begins.
    pub(super) fn pinned_background(&self) -> u64 {
        self.limits.pinned_background.load(Relaxed)
    }

    /// Returns the counters.
    pub fn counters(&self) -> CacheCounters {
        self.counters.snapshot(self.layout.page_size() as u64)
    }

    #[inline]
    pub(super) fn shard(&self, file: u64, group: u64) -> &Shard {
        debug_assert!(
            self.shards.len().is_power_of_two(),
            "{} shards are told apart by bits of a hash",
            self.shards.len()
        );
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
        self.counters.pinned_pages.fetch_add(1, Relaxed) >= self.pinned_background()
    }

    pub(super) fn count_unpinned(&self, core: &FileCore) {
        let of_file = core.pinned_pages.fetch_sub(1, Relaxed);
        let of_all = self.counters.pinned_pages.fetch_sub(1, Relaxed);
        debug_assert!(
            of_file > 0 && of_all > 0,
            "a page that is unpinned was counted: {of_file} of its file, {of_all} in all"
        );
    }

    /// Counts pages that were released behind a sequential reader or writer; no lock of the cache
    /// is held.
    pub(super) fn count_released(&self, core: &Arc<FileCore>, pages: u64) {
        if pages == 0 {
            return;
        }
        self.counters.released.fetch_add(pages, Relaxed);
        // Without a backing the file is being closed, and its counters are not asked for any more.
        if let Ok(backing) = core.backing() {
            backing.released(pages * self.layout.page_size() as u64);
        }
    }

    /// Adds a page to its file's dirty ones; returns the run that it is part of, and how many pages
    /// of the file, written at random, are dirty. Called under the shard's lock, so that the run and
    /// the frame agree.
    pub(super) fn add_dirty(
        &self,
        core: &Arc<FileCore>,
        page: u64,
        at_random: bool,
    ) -> (Range<u64>, u64) {
        let (run, at_random, list) = core.add_dirty(page, at_random);
        if list {
            self.listed.lock().insert(core.id, Arc::downgrade(core));
        }
        (run, at_random)
    }
}
