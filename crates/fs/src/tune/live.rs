//! Tunables of a mounted file system: what is in effect, what is stored, and how a change gets there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{TUNABLES, Takes, Tunable, TunableState, TuneOptions, TunedBy, check_pairs, mode_of};
use crate::cache::CacheOptions;
use crate::inode::Inode;
use crate::io::{extent_size_refusal, is_extent_size};
use crate::log::RecordKind;
use crate::meta::MetaStore;
use crate::row::{RowChange, Table};
use crate::state::Fs;
use crate::{Error, ErrorKind, FileKind, IoMode, MountOptions, Result};

/// Threads that read ahead, and threads that write behind; they start with the first use of the cache.
const CACHE_THREADS: usize = 4;

/// What is in effect.
#[derive(Debug)]
pub(crate) struct Tuning {
    /// Rank 0.5.
    state: Mutex<State>,
    mode: AtomicU8,
    sync_interval_ns: AtomicU64,
    extent_size: AtomicU64,
}

#[derive(Debug)]
struct State {
    options: MountOptions,
    by: [TunedBy; TUNABLES.len()],
    stored: [Option<u64>; TUNABLES.len()],
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
        return Err(Error::corrupt(format!("what the volume holds for the tunable '{}' is no number", info.name)));
    };
    let why = refusal(tunable, value, block_size);
    why.map_or(Ok(Some(value)), |why| Err(Error::corrupt(format!("the volume holds for the tunable '{}' what it cannot be: {why}", info.name))))
}

/// Says why a value cannot be one of a tunable on a volume with such blocks; nothing where it can.
fn refusal(tunable: Tunable, value: u64, block_size: u32) -> Option<String> {
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
    why.map_or(Ok(()), |why| Err(Error::new(ErrorKind::Invalid, format!("{}{value}: {why}", tunable.info().option))))
}

/// Settles which values a mount begins with: options that were given, else what the volume holds, else defaults.
pub(crate) fn settle(meta: &MetaStore, mut options: MountOptions) -> Result<(MountOptions, Tuning)> {
    let (mut by, mut stored) = ([TunedBy::Default; TUNABLES.len()], [None; TUNABLES.len()]);
    for info in &TUNABLES {
        let (tunable, at) = (info.tunable, info.tunable as usize);
        if info.takes == Takes::Format {
            by[at] = TunedBy::Format;
            continue;
        }
        stored[at] = if info.takes == Takes::MountOption { None } else { usable(check_stored(meta, tunable))? };
        if options.given.contains(tunable) || tunable.of(&options) != tunable.default_value() {
            by[at] = TunedBy::MountOption;
        } else if let Some(value) = stored[at] {
            by[at] = TunedBy::Volume;
            tunable.put(value, &mut options);
        }
    }
    // An option and what is stored for the other of a pair may contradict each other: the option counts.
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
        state: Mutex::new(State { options: options.clone(), by, stored }),
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
    let low_counts = by[low as usize] == TunedBy::MountOption && by[high as usize] != TunedBy::MountOption;
    let (from, to) = if low_counts { (low, high) } else { (high, low) };
    to.put(from.of(options), options);
}

/// Returns what the cache needs to know of mount options.
pub(crate) fn cache_options(options: &MountOptions, io_align: u32, block_size: u32) -> CacheOptions {
    CacheOptions {
        cap_bytes: options.cache_bytes,
        io_align,
        block_size,
        read_ahead_bytes_min: options.read_ahead_bytes_min,
        read_ahead_bytes_max: options.read_ahead_bytes_max,
        write_behind_percent_start: options.write_behind_percent_start,
        write_behind_percent_max: options.write_behind_percent_max,
        read_threads: CACHE_THREADS,
        write_threads: CACHE_THREADS,
    }
}

impl Tuning {
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

    /// Returns the value in effect.
    pub(crate) fn value(&self, tunable: Tunable) -> u64 {
        tunable.of(&self.state.lock().options)
    }
}

impl Fs {
    /// Returns how all tunables stand.
    pub(crate) fn tunables(&self) -> Vec<TunableState> {
        self.told(&self.tuning.state.lock())
    }

    fn told(&self, state: &State) -> Vec<TunableState> {
        let value = |tunable: Tunable| match tunable {
            Tunable::Cache => self.cache.cap_bytes(),
            Tunable::LogSize => self.meta.region().superblock().log.len,
            Tunable::BlockSize => self.block_size.into(),
            other => other.of(&state.options),
        };
        let told = |info: &super::TunableInfo| TunableState {
            name: info.name.to_owned(),
            unit: info.unit,
            value: value(info.tunable),
            by: state.by[info.tunable as usize],
            stored: state.stored[info.tunable as usize],
            default: (info.takes != Takes::Format).then(|| info.tunable.default_value()),
            min: info.min,
            max: info.max,
            takes: info.takes,
            option: info.option.to_owned(),
            effect: info.effect.to_owned(),
        };
        TUNABLES.iter().map(told).collect()
    }

    /// Changes tunables: all, or none.
    pub(crate) fn tune(&self, change: &TuneOptions) -> Result<Vec<TunableState>> {
        let mut state = self.tuning.state.lock();
        change.changes.iter().try_for_each(|(tunable, value)| check_change(*tunable, *value, change.live_only, self.block_size))?;
        if !change.live_only {
            self.begin_change()?;
        }
        let mut next = state.options.clone();
        for (tunable, value) in change.changes.iter().filter(|(tunable, _)| tunable.info().takes == Takes::Live) {
            let back = if change.live_only { state.stored[*tunable as usize] } else { None };
            tunable.put(value.or(back).unwrap_or_else(|| tunable.default_value()), &mut next);
        }
        check_pairs(&next)?;
        self.take_over(&state.options, &next)?;
        state.options = next;
        for (tunable, value) in &change.changes {
            let at = *tunable as usize;
            if !change.live_only {
                state.stored[at] = *value;
            }
            if tunable.info().takes == Takes::Live {
                state.by[at] = match value {
                    Some(_) if change.live_only => TunedBy::Live,
                    Some(_) => TunedBy::Volume,
                    None if state.stored[at].is_some() => TunedBy::Volume,
                    None => TunedBy::Default,
                };
            }
        }
        if !change.live_only && !change.changes.is_empty() {
            let row = |(tunable, value): &(Tunable, Option<u64>)| match value {
                Some(value) => RowChange::put(Table::Setting, stored_key(*tunable), value.to_le_bytes().to_vec()),
                None => RowChange::delete(Table::Setting, stored_key(*tunable)),
            };
            let lsn = self.commit(RecordKind::Setting, change.changes.iter().map(row).collect());
            self.meta.sync(lsn)?;
        }
        Ok(self.told(&state))
    }

    /// Lets everything that is live go by other options.
    fn take_over(&self, before: &MountOptions, next: &MountOptions) -> Result<()> {
        if before.mode != next.mode
            && let Err(error) = self.serve_in(next.mode)
        {
            self.serve_again_in(before.mode);
            return Err(error);
        }
        let cache = |options: &MountOptions| cache_options(options, self.geometry.logical_block_size, self.block_size);
        if let Err(error) = self.cache.retune(&cache(before), &cache(next)) {
            self.serve_again_in(before.mode);
            return Err(error);
        }
        self.sampler.set_every(next.latency_sample);
        self.tuning.sync_interval_ns.store(Tunable::Sync.of(next), Ordering::Relaxed);
        if before.sync_interval != next.sync_interval {
            self.poke.wake();
        }
        if before.extent_size_bytes != next.extent_size_bytes {
            self.tuning.extent_size.store(next.extent_size_bytes, Ordering::Relaxed);
            self.sharing.changed();
        }
        self.mover.take_over(next);
        Ok(())
    }

    /// Serves files without a mode of their own, open ones too, in another one.
    fn serve_in(&self, mode: IoMode) -> Result<()> {
        // First: an open that comes now finds the new mode, and one that came before is found below.
        self.tuning.mode.store(mode as u8, Ordering::SeqCst);
        let follows = |inode: &Inode| inode.kind == FileKind::File && inode.attr_lock().row.io_mode.is_none();
        let files: Vec<Arc<Inode>> = self.inodes.loaded(|inode| inode.kind == FileKind::File);
        files.iter().filter(|inode| follows(inode)).try_for_each(|inode| crate::io::mode_changed(self, inode))
    }

    fn serve_again_in(&self, mode: IoMode) {
        if self.tuning.mode() != mode
            && let Err(error) = self.serve_in(mode)
        {
            tracing::warn!("some files are served in another mode than '{mode}' until they are opened again: {error}");
        }
    }
}

fn check_change(tunable: Tunable, value: Option<u64>, live_only: bool, block_size: u32) -> Result<()> {
    let info = tunable.info();
    let refuse = |why: String| Err(Error::new(ErrorKind::Invalid, format!("{}: {why}", info.name)));
    match info.takes {
        Takes::Format => refuse(format!("it is set once, by 'bedplate format {}', and cannot be changed", info.option)),
        Takes::MountOption => refuse(format!("it is needed before the volume can be read: give the mount option {}", info.option)),
        Takes::NextMount if live_only => refuse("it counts from the next mount on, so it cannot be set for this one only".to_owned()),
        _ => value.and_then(|value| refusal(tunable, value, block_size)).map_or(Ok(()), refuse),
    }
}
