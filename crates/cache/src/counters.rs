//! What the cache counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Live counters; updated without a lock. Hits are not here: the caller learns of each, and a count
/// of them would cost a hit a fifth of its time.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) misses: AtomicU64,
    pub(super) read_ahead_issued: AtomicU64,
    pub(super) read_ahead_used: AtomicU64,
    pub(super) read_ahead_wasted: AtomicU64,
    /// Pages read ahead and not used yet.
    pub(super) ahead_unused: AtomicU64,
    pub(super) write_behind_runs: AtomicU64,
    pub(super) write_behind_bytes: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) released: AtomicU64,
    /// Pages dirty or being written.
    pub(super) pinned_pages: AtomicU64,
    pub(super) resident_pages: AtomicU64,
    pub(super) throttled: AtomicU64,
}

impl Counters {
    pub(super) fn snapshot(&self, page_size: u64) -> CacheCounters {
        CacheCounters {
            misses: self.misses.load(Relaxed),
            read_ahead_issued: self.read_ahead_issued.load(Relaxed),
            read_ahead_used: self.read_ahead_used.load(Relaxed),
            read_ahead_wasted: self.read_ahead_wasted.load(Relaxed),
            write_behind_runs: self.write_behind_runs.load(Relaxed),
            write_behind_bytes: self.write_behind_bytes.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            released: self.released.load(Relaxed),
            dirty_bytes: self.pinned_pages.load(Relaxed) * page_size,
            resident_bytes: self.resident_pages.load(Relaxed) * page_size,
            throttled: self.throttled.load(Relaxed),
        }
    }
}

/// What the library cache counted since the mount; single values are exact, the whole is not
/// atomic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheCounters {
    /// Reads that had to wait for the device.
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
    /// Pages that left behind a sequential read or write, because their file asks for it.
    pub released: u64,
    /// Bytes dirty or being written now.
    pub dirty_bytes: u64,
    /// Bytes of pages in memory now.
    pub resident_bytes: u64,
    /// Times a writer had to write back pages before it could go on.
    pub throttled: u64,
}
