//! The cache that the files of a client share.

use std::sync::Arc;

use bedplate_cache::{CacheOptions, PageCache};

use crate::url::Url;

/// The unit of validity in the cache, and its pages.
const UNIT_BYTES: u32 = 512;
const PAGE_BYTES: u32 = 4096;
/// The first window that is read ahead.
const AHEAD_BYTES_MIN: u32 = 64 << 10;
/// Threads that read ahead, and that write behind: each waits for the server.
const THREADS: usize = 4;

/// Makes the cache that the files of a client share.
pub(super) fn cache(url: &Url) -> Arc<PageCache> {
    PageCache::new(&CacheOptions {
        cap_bytes: url.cache_bytes,
        io_align: UNIT_BYTES,
        block_size: PAGE_BYTES,
        read_ahead_bytes_min: AHEAD_BYTES_MIN.min(url.read_ahead_bytes),
        read_ahead_bytes_max: url.read_ahead_bytes,
        write_behind_percent_start: url.dirty_percent / 2,
        write_behind_percent_max: url.dirty_percent,
        write_behind_clusters: 0,
        write_behind_random: 0,
        read_threads: THREADS,
        write_threads: THREADS,
    })
}
