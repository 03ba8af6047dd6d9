//! Fresh volumes, and how they are mounted.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bedplate_block::{Geometry, MemoryDevice, Snapshot};
use bedplate_fs::{FileSystem, FormatOptions, MountOptions};

use super::{Bed, Snapshots};
use crate::workload::{Backend, Setup};

/// Size of a fresh volume in bytes.
const SIZE: u64 = 48 << 20;
/// Size below which it does not become smaller.
const SIZE_MIN: u64 = 32 << 20;
/// Size to which its device may grow.
pub(crate) const SIZE_MAX: u64 = 64 << 20;
/// Size of a log's own device in bytes: its head, and room for a ring that grows.
const LOG_SIZE: u64 = (64 << 10) + (3 << 20);
/// What the device held before it was formatted, so that a stale block shows.
const STALE: u8 = 0xdb;

/// Mount options under which nothing happens by itself, so that a run repeats exactly.
pub(crate) fn quiet() -> MountOptions {
    MountOptions {
        sync_interval: Duration::from_secs(86_400),
        cache_bytes: 8 << 20,
        metadata_cache_bytes: 8 << 20,
        ..MountOptions::default()
    }
}

/// The size of a file system that becomes smaller by so many MiB.
pub(crate) fn smaller(fs: &FileSystem, mib: u8) -> u64 {
    fs.info().size_bytes.saturating_sub(u64::from(mib) << 20).max(SIZE_MIN)
}

/// Makes a file system smaller, step by step.
pub(crate) fn shrink(fs: &FileSystem, size: u64) -> bedplate_fs::Result<()> {
    while !fs.shrink(size)?.is_done {}
    Ok(())
}

fn geometry(setup: &Setup) -> Geometry {
    Geometry {
        logical_block_size: setup.sector,
        physical_block_size: setup.sector,
        untorn_unit: setup.untorn_unit,
        volatile_cache: setup.volatile_cache,
        ..MemoryDevice::GEOMETRY
    }
}

/// Returns a fresh volume on devices that were full of something else, made once for each kind.
fn fresh(setup: &Setup) -> Snapshots {
    type Made = Mutex<HashMap<(u32, u32, bool, Backend), Snapshots>>;
    static MADE: OnceLock<Made> = OnceLock::new();
    let mut made = MADE.get_or_init(Made::default).lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let bed = stale_bed(setup, 0);
        let wires = bed.connect();
        wires.make_group().expect("devices that belong to no group can be members");
        let volume = wires.volume(true).expect("a new group opens");
        FileSystem::format(&volume, wires.log(), &format_options(setup))
            .expect("a device without a volume can be formatted");
        drop(volume);
        bed.snapshots()
    };
    made.entry((setup.sector, setup.block_size, setup.separate_log, setup.backend))
        .or_insert_with(make)
        .clone()
}

/// Makes devices without a volume, full of something else.
pub(crate) fn stale_bed(setup: &Setup, seed: u64) -> Bed {
    let size = if setup.backend == Backend::One { SIZE_MAX } else { setup.backend.member_bytes() };
    let mut contents = vec![Snapshot::filled(size, STALE); setup.backend.members()];
    contents.extend(setup.separate_log.then(|| Snapshot::filled(LOG_SIZE, STALE)));
    let bed = Bed::over(setup.backend, &contents, geometry(setup), seed);
    start_small(bed)
}

/// A single device may grow later; members of a group stay as they are.
fn start_small(bed: Bed) -> Bed {
    if bed.backend() == Backend::One {
        bed.data().start_smaller(SIZE);
    }
    bed
}

/// How volumes are made.
pub(crate) fn format_options(setup: &Setup) -> FormatOptions {
    FormatOptions {
        block_size: setup.block_size,
        log_bytes: Some(1 << 20),
        ..FormatOptions::default()
    }
}

/// Makes the devices of a run, with a fresh volume on them.
pub(crate) fn fresh_bed(setup: &Setup, seed: u64) -> Bed {
    let bed = Bed::over(setup.backend, &fresh(setup), geometry(setup), seed);
    start_small(bed.limited(setup.per_record, setup.small_maps)).leasing(setup.leases)
}
