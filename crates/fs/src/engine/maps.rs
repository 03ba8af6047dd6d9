//! The memory that the extent maps of all files take, and its cap. `data/sweep.rs` gives memory back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::Engine;
use crate::MountOptions;
use bedplate_store::{EXTENTS_OF_PART, ExtentMap, MapMemory};

/// What the extent maps of all files take and what was done about it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapCounts {
    /// Memory in bytes.
    pub bytes: u64,
    /// Its cap in bytes.
    pub bytes_max: u64,
    /// Parts that were read because a lookup or a change needed them.
    pub misses: u64,
    /// Parts that left memory because of the cap.
    pub evictions: u64,
}

/// The memory of the extent maps.
#[derive(Debug)]
pub(crate) struct Maps {
    memory: Arc<MapMemory>,
    bytes_max: AtomicU64,
    extents_of_part: usize,
    misses: AtomicU64,
    evictions: AtomicU64,
    /// One sweep at a time.
    sweeping: AtomicBool,
    /// Sweeps so far: the next begins with another file.
    turn: AtomicU64,
}

impl Maps {
    pub(super) fn new(options: &MountOptions) -> Self {
        Self {
            memory: Arc::default(),
            bytes_max: AtomicU64::new(options.map_bytes),
            extents_of_part: options.limits.extents_per_part.unwrap_or(EXTENTS_OF_PART),
            misses: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            sweeping: AtomicBool::new(false),
            turn: AtomicU64::new(0),
        }
    }

    /// Has a map counted.
    pub(crate) fn begin(&self, mut map: ExtentMap) -> ExtentMap {
        map.set_bounds(Arc::clone(&self.memory), self.extents_of_part);
        map
    }

    /// How many extents a part is read with.
    pub(crate) fn extents_of_part(&self) -> usize {
        self.extents_of_part
    }

    /// Counts a part that was read.
    pub(crate) fn count_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_bytes_max(&self, bytes: u64) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> MapCounts {
        MapCounts {
            bytes: self.memory.bytes(),
            bytes_max: self.bytes_max.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
        }
    }

    /// Returns whether maps take more than the cap.
    #[inline]
    pub(crate) fn are_over(&self) -> bool {
        self.memory.bytes() > self.bytes_max.load(Ordering::Relaxed)
    }

    /// Returns whether a sweep goes on: the next one is not to be due at once.
    pub(crate) fn are_many(&self) -> bool {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        self.memory.bytes() > bytes_max - bytes_max / 8
    }

    /// Begins a sweep where none is under way.
    pub(crate) fn begin_sweep(&self) -> Option<Sweeping<'_>> {
        let begins = !self.sweeping.swap(true, Ordering::Acquire);
        begins.then(|| Sweeping { maps: self, turn: self.turn.fetch_add(1, Ordering::Relaxed) })
    }
}

/// A sweep under way.
pub(crate) struct Sweeping<'a> {
    maps: &'a Maps,
    /// Sweeps before it.
    pub(crate) turn: u64,
}

impl Sweeping<'_> {
    /// Counts parts that left memory.
    pub(crate) fn count(&self, evicted: u64) {
        self.maps.evictions.fetch_add(evicted, Ordering::Relaxed);
    }
}

impl Drop for Sweeping<'_> {
    fn drop(&mut self) {
        self.maps.sweeping.store(false, Ordering::Release);
    }
}

impl Engine {
    /// Returns the memory of the extent maps.
    #[inline]
    pub(crate) fn maps(&self) -> &Maps {
        &self.maps
    }
}
