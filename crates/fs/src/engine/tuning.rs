//! Tunables of a mounted file system: which values are in effect, and which the volume holds.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bedplate_block::sync::{Mutex, MutexGuard, rank};

use crate::options::{
    TUNABLES, Takes, Tunable, TunedBy, extent_size_refusal, is_extent_size, mode_of,
};
use crate::{Error, ErrorKind, IoMode, MountOptions, ReleaseBehind, Result};
use bedplate_cache::CacheOptions;
use bedplate_store::{MetaStore, Table};

/// Threads that read ahead, and threads that write behind; they start with the first use of the
/// cache.
const CACHE_THREADS: usize = 4;

/// What is in effect.
#[derive(Debug)]
pub(crate) struct Tuning {
    /// Rank 0.5.
    state: Mutex<TuningState, { rank::TUNABLES }>,
    mode: AtomicU8,
    sync_interval_ns: AtomicU64,
    extent_size: AtomicU64,
    release_behind: AtomicU8,
    delayed_bytes_max: AtomicU64,
    read_window_bytes_max: AtomicU64,
    /// `u64::MAX` where it is off, so that one comparison answers.
    direct_above: AtomicU64,
    preferred_io_bytes: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct TuningState {
    pub(crate) options: MountOptions,
    pub(crate) by: [TunedBy; TUNABLES.len()],
    pub(crate) stored: [Option<u64>; TUNABLES.len()],
}

/// Returns the name of the setting that holds a tunable.
pub(crate) fn stored_key(tunable: Tunable) -> Vec<u8> {
    format!("tune_{}", tunable.info().name.replace('-', "_")).into_bytes()
}

/// Returns what the volume holds for a tunable.
///
/// # Errors
/// `Corrupt` where that is no value of it (I-TUNE-1); device errors.
pub(crate) fn check_stored(meta: &MetaStore, tunable: Tunable) -> Result<Option<u64>> {
    let Some(bytes) = meta.get(Table::Setting, &stored_key(tunable))? else { return Ok(None) };
    let (info, block_size) = (tunable.info(), meta.region().superblock().block_size);
    let Some(value) = bytes.as_slice().try_into().ok().map(u64::from_le_bytes) else {
        return Err(Error::corrupt(format!(
            "what the volume holds for the tunable '{}' is no number",
            info.name
        )));
    };
    let why = refusal(tunable, value, block_size);
    why.map_or(Ok(Some(value)), |why| {
        Err(Error::corrupt(format!(
            "the volume holds for the tunable '{}' what it cannot be: {why}",
            info.name
        )))
    })
}

/// Says why a value cannot be one of a tunable on a volume with such blocks; nothing where it can.
pub(crate) fn refusal(tunable: Tunable, value: u64, block_size: u32) -> Option<String> {
    let info = tunable.info();
    if !tunable.allows(value) {
        return Some(format!("{} is not {}", info.unit.format(value), info.range()));
    }
    let odd = tunable == Tunable::ExtentSize && !is_extent_size(value, block_size.into());
    odd.then(|| extent_size_refusal(value, block_size.into()))
}

/// Refuses mount options that this volume cannot be served with.
///
/// # Errors
/// `Invalid`.
pub(crate) fn check_options(options: &MountOptions, block_size: u32) -> Result<()> {
    let (tunable, value) = (Tunable::ExtentSize, options.extent_size_bytes);
    let why = refusal(tunable, value, block_size);
    why.map_or(Ok(()), |why| {
        Err(Error::new(ErrorKind::Invalid, format!("{}{value}: {why}", tunable.info().option)))
    })
}

/// Settles which values a mount begins with: options that were given, else what the volume holds,
/// else defaults.
pub(crate) fn initial_tuning(
    meta: &MetaStore,
    mut options: MountOptions,
) -> Result<(MountOptions, Tuning)> {
    let (mut by, mut stored) = ([TunedBy::Default; TUNABLES.len()], [None; TUNABLES.len()]);
    for info in &TUNABLES {
        let (tunable, at) = (info.tunable, info.tunable as usize);
        if info.takes == Takes::Format {
            by[at] = TunedBy::Format;
            continue;
        }
        stored[at] = if info.takes == Takes::MountOption {
            None
        } else {
            usable(check_stored(meta, tunable))?
        };
        if options.given.contains(tunable) || tunable.of(&options) != tunable.default_value() {
            by[at] = TunedBy::MountOption;
        } else if let Some(value) = stored[at] {
            by[at] = TunedBy::Volume;
            assert!(
                tunable.allows(value),
                "I-TUNE-1: {value} of {} was refused when it was read",
                info.name
            );
            tunable.put(value, &mut options);
        }
    }
    // An option and what is stored for the other of a pair may contradict each other: the option
    // counts.
    if options.read_ahead_bytes_min > options.read_ahead_bytes_max {
        meet(&by, Tunable::ReadAheadMin, Tunable::ReadAheadMax, &mut options);
    }
    if options.write_behind_percent_start > options.write_behind_percent_max {
        meet(&by, Tunable::WriteBehindStart, Tunable::WriteBehindMax, &mut options);
    }
    let tuning = Tuning {
        mode: AtomicU8::new(options.mode as u8),
        sync_interval_ns: AtomicU64::new(Tunable::Sync.of(&options)),
        extent_size: AtomicU64::new(options.extent_size_bytes),
        release_behind: AtomicU8::new(options.release_behind as u8),
        delayed_bytes_max: AtomicU64::new(options.delay_writes_bytes),
        read_window_bytes_max: AtomicU64::new(options.read_window_bytes),
        direct_above: AtomicU64::new(or_never(options.direct_above_bytes)),
        preferred_io_bytes: AtomicU32::new(options.preferred_io_bytes),
        state: Mutex::new(TuningState { options: options.clone(), by, stored }),
    };
    Ok((options, tuning))
}

/// A damaged value is no reason not to mount: the default serves, and a check mends it.
fn usable(stored: Result<Option<u64>>) -> Result<Option<u64>> {
    match stored {
        Err(error) if error.kind == ErrorKind::Corrupt => {
            tracing::warn!("{error}; the default is taken instead: run a check to mend it");
            Ok(None)
        }
        stored => stored,
    }
}

/// Gives both of a pair the value of the one that a mount option set.
fn meet(by: &[TunedBy], low: Tunable, high: Tunable, options: &mut MountOptions) {
    let low_counts =
        by[low as usize] == TunedBy::MountOption && by[high as usize] != TunedBy::MountOption;
    let (from, to) = if low_counts { (low, high) } else { (high, low) };
    to.put(from.of(options), options);
}

/// Returns what the cache needs to know of mount options.
pub(crate) fn cache_options(
    options: &MountOptions,
    io_align: u32,
    block_size: u32,
) -> CacheOptions {
    CacheOptions {
        cap_bytes: options.cache_bytes,
        io_align,
        block_size,
        read_ahead_bytes_min: options.read_ahead_bytes_min,
        read_ahead_bytes_max: options.read_ahead_bytes_max,
        write_behind_percent_start: options.write_behind_percent_start,
        write_behind_percent_max: options.write_behind_percent_max,
        write_behind_clusters: options.write_behind_clusters,
        write_behind_random: options.write_behind_random,
        read_threads: CACHE_THREADS,
        write_threads: CACHE_THREADS,
    }
}

/// Returns what no request is as large as, where a size is 0.
fn or_never(bytes: u64) -> u64 {
    if bytes == 0 { u64::MAX } else { bytes }
}

impl Tuning {
    /// Reads or changes tunables alone.
    pub(crate) fn lock(&self) -> MutexGuard<'_, TuningState> {
        self.state.lock()
    }

    /// The mode of files that nothing else gives one.
    pub(crate) fn mode(&self) -> IoMode {
        mode_of(self.mode.load(Ordering::SeqCst).into())
    }

    /// How often the sync daemon works.
    pub(crate) fn sync_interval(&self) -> Duration {
        Duration::from_nanos(self.sync_interval_ns.load(Ordering::Relaxed))
    }

    /// How many bytes of a file are wanted in one run, where nothing else says.
    pub(crate) fn extent_size(&self) -> u64 {
        self.extent_size.load(Ordering::Relaxed)
    }

    /// Which pages leave the caches, where nothing else says.
    pub(crate) fn release_behind(&self) -> ReleaseBehind {
        ReleaseBehind::of_code(self.release_behind.load(Ordering::Relaxed).into())
            .unwrap_or_default()
    }

    /// How many bytes of writes all files together delay at most.
    pub(crate) fn delayed_bytes_max(&self) -> u64 {
        self.delayed_bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_delayed_bytes_max(&self, bytes: u64) {
        self.delayed_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// How many bytes all files together read ahead past the caches at most.
    pub(crate) fn read_window_bytes_max(&self) -> u64 {
        self.read_window_bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_read_window_bytes_max(&self, bytes: u64) {
        self.read_window_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// From how many bytes on I/O is so large that it may pass the library cache.
    #[inline]
    pub(crate) fn direct_above(&self) -> u64 {
        self.direct_above.load(Ordering::Relaxed)
    }

    /// As in [`MountOptions::direct_above_bytes`].
    pub(crate) fn set_direct_above_bytes(&self, bytes: u64) {
        self.direct_above.store(or_never(bytes), Ordering::Relaxed);
    }

    /// The I/O size that programs are told to prefer; 0: the allocation unit.
    pub(crate) fn preferred_io_bytes(&self) -> u32 {
        self.preferred_io_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_preferred_io_bytes(&self, bytes: u32) {
        self.preferred_io_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns the value in effect.
    pub(crate) fn value(&self, tunable: Tunable) -> u64 {
        tunable.of(&self.state.lock().options)
    }

    pub(crate) fn set_mode(&self, mode: IoMode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }

    pub(crate) fn set_sync_interval_ns(&self, nanoseconds: u64) {
        self.sync_interval_ns.store(nanoseconds, Ordering::Relaxed);
    }

    pub(crate) fn set_extent_size(&self, bytes: u64) {
        self.extent_size.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_release_behind(&self, release: ReleaseBehind) {
        self.release_behind.store(release as u8, Ordering::Relaxed);
    }
}
