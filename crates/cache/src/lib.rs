//! The library cache: pages of files in memory, read ahead and written behind, for the modes
//! `cached` and `concurrent+cache`.
//!
//! ```text
//!   ordering lock of the inode (the caller's: shared to read, exclusive to write, see docs/locks.md)
//!        │
//!   CachedFile::{read_at, write_at, flush, begin_truncate, begin_direct_write …}      this crate
//!        │
//!   Backing::{read_direct, write_direct, reserve, size}                               the data path, per inode
//!        │
//!   lock of the extent map (InodeLock and below)
//! ```
//!
//! The cache calls [`Backing`] from its own threads and from inside its own methods. So a caller
//! may hold its *ordering* lock (the one that makes `cached` writes exclusive) across a call into
//! the cache, but never a lock that a `Backing` method takes.
//!
//! | file | holds |
//! | --- | --- |
//! | `pages` | the cache as a whole: shards, limits and their change, threads |
//! | `layout` | pages, units, groups: how a file's bytes are cut |
//! | `shard`, `replace` | frames, the look-up, which page leaves (S3-FIFO) |
//! | `core`, `runs` | what is kept per file: dirty runs, writes under way, the latched error |
//! | `file` | reading and writing through pages |
//! | `fill`, `flight`, `readahead` | bringing pages in; what must not be brought in; how far ahead |
//! | `writeback` | carrying dirty pages out |
//! | `change`, `forget` | direct writes, truncations, punches; pages that leave with them |
//! | `behind`, `release` | pages that leave behind a sequential reader or writer |
//! | `random` | pages that are written at random: how many of a file may be dirty |
//! | `sharing`, `slab` | pages that other processes read, and the memory of frames |
//! | `staging`, `counters`, `sync` | memory for requests, counters, locks |
//!
//! Data is copied between a request's memory and the pages, at both ends. The copy costs a tenth of
//! what a fast device needs for the same bytes, and buys requests of 1 MiB over 4 KiB pages, pages
//! that can be written while they are carried out, and a cap that no request in flight can hold up.
//!
//! # Invariants
//!
//! - **I-CACHE-1** A page has one frame at most, and a valid unit holds what a reader must see: a
//!   fill never overwrites it.
//! - **I-CACHE-2** What a fill read is kept only if nothing wrote its pages, in the cache or past
//!   it, between its announcement and its landing.
//! - **I-CACHE-3** When direct writes of one page overlap in time, no cached copy of it survives
//!   the last of them, and none is made while one is under way.
//! - **I-CACHE-4** A dirty or flying page stays in memory; of a page, one write at a time is under
//!   way.
//! - **I-CACHE-5** While the map changes, nothing of the file enters the cache by a fill, and
//!   nothing read before the change enters after it.
//! - **I-CACHE-6** Pages in memory never pass the cap, also when that has just become smaller; a
//!   writer that would pass its share for dirty pages (half, unless tuned) writes some back first.
//! - **I-CACHE-7** A frame is in one queue of the replacement at most, a pinned one in none.
//! - **I-CACHE-8** In a valid unit, bytes beyond the logical size are zero.
//! - **I-CACHE-9** A read sees all of a `cached` write or nothing of it, with the ordering lock or
//!   without.
//! - **I-CACHE-10** What other processes read of a page is what a reader of the mount may see: a frame
//!   is published whole, of a page within the file, and withdrawn before its bytes change; those of
//!   one group that one write changes, together.
//!
//! # Lock ranks
//!
//! The caller's ordering lock (1.7), a shard's `state` (9), `FileCore::state` (9.1),
//! `PageCache::listed` (9.2). `FileCore::streams`, the pools' and the staging locks are leaves. No
//! lock of this crate is held across a call to the backing.

#![forbid(unsafe_code)]

mod behind;
mod change;
mod core;
mod counters;
mod file;
mod fill;
mod flight;
mod forget;
mod layout;
mod pages;
mod random;
mod readahead;
mod release;
mod replace;
mod runs;
mod shard;
mod sharing;
mod slab;
mod staging;
mod sync;
mod writeback;

#[cfg(test)]
mod tests;

use bedplate_store::Result;

pub use self::behind::Release;
pub use self::change::{DirectWrite, MapChange};
pub use self::counters::CacheCounters;
pub use self::file::CachedFile;
pub use self::layout::CLUSTER_BYTES;
pub use self::pages::PageCache;
pub use self::slab::SharedCache;

/// What the cache needs of one file's direct data path. Called from any thread, several at once, on
/// disjoint and on overlapping ranges (overlapping: reads only; the cache never has two writes of
/// one page in flight).
pub trait Backing: Send + Sync {
    /// Fills `buf` from `offset` (aligned to the I/O alignment, as is the buffer's length). Holes
    /// and unwritten blocks read as zeros. Returns the bytes read; short only at the end of the
    /// file's blocks. What lies beyond [`size`](Self::size) may be anything.
    fn read_direct(&self, buf: &mut [u8], offset: u64) -> Result<usize>;
    /// Writes all of `buf` (offset and length aligned). The durable size becomes `max(size,
    /// min(offset + len, size_after))` before it returns; a gap between the old size and `offset`
    /// reads as zeros.
    fn write_direct(&self, buf: &[u8], offset: u64, size_after: u64) -> Result<()>;
    /// Sets blocks aside for a range, so that a later `write_direct` of it cannot find the volume
    /// full. Repeating it for the same blocks costs nothing and takes nothing; what a truncate or
    /// punch removes gives its reservation back. Called before a page becomes dirty.
    fn reserve(&self, offset: u64, len: u64) -> Result<()>;
    /// Returns the size that reached the data path: what `write_direct` and truncations made it.
    /// The logical size of the inode is never below what the application wrote; this one follows
    /// when write-behind has done its work.
    fn size(&self) -> u64;
    /// Hears of bytes that were released behind a sequential reader or writer, for its counters.
    fn released(&self, bytes: u64) {
        let _not_counted = bytes;
    }
}

/// How a cache works; validated by [`PageCache::new`].
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// Cap of all pages, clean and dirty, in bytes. Hard.
    pub cap_bytes: u64,
    /// I/O alignment of every `Backing`: the device's logical block size. The unit of validity and
    /// of dirtiness.
    pub io_align: u32,
    /// Block size of the file system: a write-behind may fill up a page with clean bytes when that
    /// allocates nothing more.
    pub block_size: u32,
    /// First read-ahead window in bytes.
    pub read_ahead_bytes_min: u32,
    /// Largest read-ahead window in bytes; 0: no read-ahead.
    pub read_ahead_bytes_max: u32,
    /// Share of the cap in percent that may be dirty before the background begins to write.
    pub write_behind_percent_start: u32,
    /// Share of the cap in percent that may be dirty before a writer writes back by itself; at most
    /// 75.
    pub write_behind_percent_max: u32,
    /// Clusters of [`CLUSTER_BYTES`] of consecutive dirty pages of a file, complete, that are
    /// written behind together; 0: as many as make a request.
    pub write_behind_clusters: u32,
    /// Pages of a file, written at random, that may be dirty before all of them are written behind;
    /// 0: any number.
    pub write_behind_random: u32,
    /// Threads that read ahead; 0: the reader issues it itself, in order (for tests).
    pub read_threads: usize,
    /// Threads that write behind; 0: the writer does it itself, in order (for tests).
    pub write_threads: usize,
}
