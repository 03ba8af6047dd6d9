//! Options: plain structs, passed whole, validated once; and the table of tunables.

mod extent_size;
mod meant;
mod share;
mod threads;
mod tunable_set;
mod tunables;
mod unit;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use extent_size::{
    BYTES_MAX as EXTENT_SIZE_MAX, is_possible as is_extent_size, refusal as extent_size_refusal,
};
pub use meant::meant;
pub use tunable_set::TunableSet;
pub use tunables::{TUNABLES, Takes, Tunable, TunableInfo, TunableState, TuneOptions, TunedBy};
pub(crate) use tunables::{check_pairs, mode_of};
pub use unit::Unit;

use crate::{Error, ErrorKind, IoMode, ReleaseBehind, Result};
use bedplate_store::Exposure;

/// Options of `format`.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Allocation unit in bytes: a power of two, 512 to 65,536, not below the device's logical
    /// block size.
    pub block_size: u32,
    /// Size of the intent log in bytes; `None`: 1/256 of the volume, 1 MiB to 128 MiB (a separate
    /// log device is used whole, up to 1 GiB).
    pub log_bytes: Option<u64>,
    /// Formats although the device already holds a volume.
    pub force: bool,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { block_size: 4096, log_bytes: None, force: false, uid: 0, gid: 0 }
    }
}

/// How the inode lock is taken by writers in `direct` mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InodeLockSetting {
    /// Byte ranges: disjoint writes run in parallel.
    #[default]
    Range,
    /// The whole file, as JFS2's Direct I/O had it; for comparison.
    Whole,
}

/// How much one record carries when a change takes several, and what runs between two of them. The
/// defaults are the product's values. Tests and the crash judge make them small, so that a file of
/// ten extents spans several records; nothing else sets them.
#[doc(hidden)]
#[derive(Clone)]
pub struct Limits {
    /// Extents that one record frees or shares, at least 1.
    pub extents_per_record: usize,
    /// Before-images that one record of the deletion of a checkpoint hands on or drops, at least 1.
    pub images_per_record: usize,
    /// Names that one record of a clone makes, at least 1.
    pub names_per_record: usize,
    /// The longest piece of delayed writes in bytes, a power of two; a longer write is not delayed.
    pub delayed_piece_bytes: u64,
    /// Threads that write such pieces; 0: the writer that filled one writes it too.
    pub delayed_piece_threads: usize,
    /// The most bytes that an append brings of which the log has the data; 0: it never has.
    pub logged_write_bytes: u64,
    /// The longest piece that is read ahead past the caches, in bytes.
    pub read_window_bytes: u64,
    /// Threads that read such pieces; 0: the reader before reads them too.
    pub read_window_threads: usize,
    /// I/O of an open file is followed once it has reached a multiple of so many bytes.
    pub follow_step_bytes: u64,
    /// Extents that one row of the metadata holds, at least 2; `None` for as many as serve best.
    pub extents_per_pack: Option<usize>,
    /// Extents that a part of a file's map in memory is read with, at least 1; `None` for as many as
    /// serve best.
    pub extents_per_part: Option<usize>,
    /// Free runs that are in memory at full length before regions are packed; `None` for as many as
    /// serve best.
    pub free_runs_open: Option<usize>,
    /// Allocation groups, and what part of the free space their lots together may take, one in so
    /// many; `None` for as many as serve best.
    pub lots: Option<(usize, u64)>,
    /// Whether the sync daemon goes on with deletions of checkpoints that were cut short. Where it does
    /// not, [`FileSystem::delete_step`](crate::FileSystem::delete_step) does.
    pub deletes_behind: bool,
    /// Called between two records of a change that takes several, with the locks that the change
    /// holds there.
    pub between_records: Option<BetweenRecords>,
}

/// A call between two records of a change; its argument names the change: `truncate`, `reclaim`,
/// `punch`, `clone` or `deletion`.
#[doc(hidden)]
pub type BetweenRecords = Arc<dyn Fn(&'static str) + Send + Sync>;

impl Default for Limits {
    fn default() -> Self {
        // Some 64 KiB of log.
        Self {
            extents_per_record: 1024,
            images_per_record: 256,
            names_per_record: 256,
            // Its checksum still fits into its record, so that no barrier is needed.
            delayed_piece_bytes: 1 << 20,
            delayed_piece_threads: 2,
            logged_write_bytes: 16 << 10,
            read_window_bytes: 2 << 20,
            read_window_threads: 2,
            follow_step_bytes: 64 << 10,
            extents_per_pack: None,
            extents_per_part: None,
            free_runs_open: None,
            lots: None,
            deletes_behind: true,
            between_records: None,
        }
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            extents_per_record,
            images_per_record,
            names_per_record,
            delayed_piece_bytes,
            delayed_piece_threads,
            logged_write_bytes,
            read_window_bytes,
            read_window_threads,
            follow_step_bytes,
            extents_per_pack,
            extents_per_part,
            free_runs_open,
            lots,
            deletes_behind,
            between_records,
        } = self;
        write!(
            f,
            "Limits({extents_per_record} extents, {images_per_record} images, {names_per_record} names, \
             {delayed_piece_bytes} delayed bytes by {delayed_piece_threads} threads, {logged_write_bytes} in the log, windows of {read_window_bytes} bytes by {read_window_threads} threads, steps of {follow_step_bytes} bytes"
        )?;
        if let Some(extents) = extents_per_pack {
            write!(f, ", packs of {extents}")?;
        }
        if let Some(extents) = extents_per_part {
            write!(f, ", parts of {extents}")?;
        }
        if let Some(runs) = free_runs_open {
            write!(f, ", {runs} free runs open")?;
        }
        if let Some((groups, share)) = lots {
            write!(f, ", {groups} allocation groups with 1/{share}")?;
        }
        if !deletes_behind {
            f.write_str(", deletions by hand")?;
        }
        f.write_str(if between_records.is_some() { ", with a call between records)" } else { ")" })
    }
}

impl Limits {
    /// Refuses limits under which no change would ever end.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.delayed_piece_bytes.is_power_of_two()
            || !(4096..=1 << 20).contains(&self.delayed_piece_bytes)
        {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a piece of delayed writes has a power of two of bytes: set a limit from 4 KiB to 1 MiB",
            ));
        }
        if self.logged_write_bytes > Exposure::LOGGED_BYTES_MAX / 2 {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a record carries at most 32 KiB of data: set a smaller limit",
            ));
        }
        if self.follow_step_bytes == 0 || !self.read_window_bytes.is_power_of_two() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "I/O is followed in steps of at least one byte, and a window has a power of two of \
                 bytes: set limits like that",
            ));
        }
        let packs = self.extents_per_pack.is_none_or(|extents| (2..=1024).contains(&extents));
        let parts = self.extents_per_part.is_none_or(|extents| extents > 0);
        let records = [self.extents_per_record, self.images_per_record, self.names_per_record];
        if records.iter().all(|count| *count > 0) && packs && parts {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Invalid,
            "a record of a change carries at least one extent, one image and one name, a pack two to 1024 \
             extents, a part of a map at least one: set limits like that",
        ))
    }

    /// Marks the place between two records of the change `what`.
    pub(crate) fn between_records(&self, what: &'static str) {
        if let Some(call) = &self.between_records {
            call(what);
        }
    }
}

/// Options of `mount`.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The mode of files that neither an open, nor the file, nor its directory gives one.
    pub mode: IoMode,
    /// Shows this checkpoint instead of the present; read-only.
    pub checkpoint: Option<Vec<u8>>,
    /// Carries the schedules of checkpoints out by itself, and warns of checkpoints that fill the
    /// volume, on a thread of its own; otherwise
    /// [`run_schedules`](crate::FileSystem::run_schedules) does when it is called.
    pub schedules: bool,
    /// Refuses every change; replays the log in memory only.
    pub read_only: bool,
    /// Locking of `direct` writers.
    pub inode_lock: InodeLockSetting,
    /// Cap of the library cache in bytes; by default a 32nd of the memory that there is, between
    /// 128 MiB and 1 GiB.
    pub cache_bytes: u64,
    /// First read-ahead window in bytes; doubles with every sequential hit.
    pub read_ahead_bytes_min: u32,
    /// Largest read-ahead window in bytes; 0 turns read-ahead off.
    pub read_ahead_bytes_max: u32,
    /// Share of the cache in percent that may be dirty before write-behind begins.
    pub write_behind_percent_start: u32,
    /// Share of the cache in percent that may be dirty before writers write back themselves; at
    /// most 75.
    pub write_behind_percent_max: u32,
    /// Clusters of 128 KiB of consecutive dirty pages of a file, complete, that are written behind
    /// together; 0: as many as make a request of the cache, 1 MiB.
    pub write_behind_clusters: u32,
    /// Pages of a file, written at random, that may be dirty before all of them are written behind;
    /// 0: any number.
    pub write_behind_random: u32,
    /// How often the sync daemon writes dirty pages, the log and, when due, the metadata.
    pub sync_interval: Duration,
    /// Cap in bytes of the metadata tree's cache.
    pub metadata_cache_bytes: u64,
    /// Cap in bytes of what the extent maps of all files take in memory.
    pub map_bytes: u64,
    /// Of how many reads and writes at least one is timed for the latency histograms: 1 times all,
    /// 0 none.
    pub latency_sample: u32,
    /// How many bytes of a file are wanted in one run of the volume, where neither it nor its
    /// directory says; 0: whatever comes.
    pub extent_size_bytes: u64,
    /// Which pages leave the caches behind a sequential read or write, where neither the file nor
    /// its directory says.
    pub release_behind: ReleaseBehind,
    /// How many bytes a second are moved in the background to put scattered files together; 0:
    /// none.
    pub defrag_rate_bytes: u64,
    /// Above how many reads, writes and syncs a second nothing is moved.
    pub defrag_load_max: u32,
    /// How many bytes of writes all files together delay at most, of opens that let them
    /// ([`OpenOptions::delay_writes`]); 0: none.
    pub delay_writes_bytes: u64,
    /// How many bytes are read ahead past the caches at most for all files together, of opens that
    /// ask for it ([`OpenOptions::read_windows`]); 0: none.
    pub read_window_bytes: u64,
    /// From how many bytes on aligned reads and writes of files in `cached`, and reads in
    /// `concurrent+cache`, pass the library cache; 0: never.
    pub direct_above_bytes: u64,
    /// The I/O size that a front end tells programs to prefer for files past the caller's caches; 0:
    /// the allocation unit.
    pub preferred_io_bytes: u32,
    /// Whether the device is told of blocks as they become free.
    pub discard: bool,
    /// How many requests a front end serves at once.
    pub threads: u32,
    /// Tunables that were given: of them, what the volume holds does not count. Those with another
    /// value than the default count as given anyway.
    pub given: TunableSet,
    /// Whether reads update the access time at most once a day (`relatime`); otherwise never.
    pub relatime: bool,
    /// How much one record carries; for tests.
    #[doc(hidden)]
    pub limits: Limits,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            mode: IoMode::Cached,
            checkpoint: None,
            schedules: false,
            read_only: false,
            inode_lock: InodeLockSetting::Range,
            cache_bytes: share::default_bytes(),
            read_ahead_bytes_min: 64 << 10,
            read_ahead_bytes_max: 2 << 20,
            write_behind_percent_start: 25,
            write_behind_percent_max: 50,
            write_behind_clusters: 0,
            write_behind_random: 0,
            sync_interval: Duration::from_secs(5),
            metadata_cache_bytes: 64 << 20,
            map_bytes: 96 << 20,
            latency_sample: crate::statistics::SAMPLE_DEFAULT,
            extent_size_bytes: 0,
            delay_writes_bytes: 16 << 20,
            read_window_bytes: 32 << 20,
            direct_above_bytes: 0,
            preferred_io_bytes: 128 << 10,
            release_behind: ReleaseBehind::Off,
            defrag_rate_bytes: 0,
            defrag_load_max: 200,
            threads: threads::threads_default(),
            discard: false,
            given: TunableSet::default(),
            relatime: true,
            limits: Limits::default(),
        }
    }
}

/// Options of one open.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Allows reads.
    pub read: bool,
    /// Allows writes.
    pub write: bool,
    /// Every write goes to the end of the file.
    pub append: bool,
    /// Cuts the file to zero.
    pub truncate: bool,
    /// Creates the file when the name is free; with the permission bits below (path interface
    /// only).
    pub create: bool,
    /// Refuses an existing file (with `create`).
    pub exclusive: bool,
    /// Permission bits of a file that this open creates.
    pub permissions: u32,
    /// The mode this open asks for; the highest precedence.
    pub mode: Option<IoMode>,
    /// The open carried `O_DIRECT`: never served with less than `direct`.
    pub direct_flag: bool,
    /// Every write is durable before it returns (`O_DSYNC`).
    pub data_sync: bool,
    /// The caller caches by itself (the kernel's page cache above a mount): of `cached` files the
    /// library cache takes small writes, and keeps nothing.
    pub caller_caches: bool,
    /// Reads do not move the access time (`O_NOATIME`).
    pub keep_atime: bool,
    /// Writes of up to 1 MiB that make the file grow, or go on over it where the one before ended, in
    /// a mode without a write cache, may return before they reach the device, within the tunable
    /// `delay-writes`; not with `data_sync` or `direct_flag`.
    pub delay_writes: bool,
    /// Sequential reads, in a mode without a cache or with `caller_caches`, are read ahead, within the
    /// tunable `read-window`; with `direct_flag` those of at least 512 KiB.
    pub read_windows: bool,
}

impl OpenOptions {
    /// Returns options that allow reads only.
    #[must_use]
    pub fn read_only() -> Self {
        Self { read: true, ..Self::default() }
    }

    /// Returns options that allow reads and writes.
    #[must_use]
    pub fn read_write() -> Self {
        Self { read: true, write: true, ..Self::default() }
    }

    /// Returns options that allow reads and writes and create the file with permissions `0o644`.
    #[must_use]
    pub fn create() -> Self {
        Self { read: true, write: true, create: true, permissions: 0o644, ..Self::default() }
    }
}
