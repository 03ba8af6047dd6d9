//! What a file remembers of where it may write in place, and of what is wanted of its extents.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{Epoch, ReleaseBehind};

/// What a file may write in place, as of a generation of the set of checkpoints.
#[derive(Debug, Default)]
pub(crate) struct CowEpoch {
    /// The epoch, in the low half, and the generation, in the high half.
    known: AtomicU64,
    /// The newest checkpoint that holds the file, and the epoch up to which files may share blocks.
    held: AtomicU32,
    cloned: AtomicU32,
}

impl CowEpoch {
    /// Returns the epoch if it is known as of this generation.
    #[inline]
    pub(crate) fn get(&self, generation: u32) -> Option<Epoch> {
        let known = self.known.load(Ordering::Acquire);
        (known >> 32 == u64::from(generation)).then_some(Epoch(known as u32))
    }

    /// Notes the epoch of a generation; [`set_parts`](Self::set_parts) comes before.
    pub(crate) fn set(&self, generation: u32, epoch: Epoch) {
        debug_assert!(generation > 0, "generation 0 is that of a file that was never looked up");
        self.known.store(u64::from(generation) << 32 | u64::from(epoch.0), Ordering::Release);
    }

    /// Notes the newest checkpoint that holds the file, and the epoch up to which files may share
    /// its blocks.
    pub(crate) fn set_parts(&self, held: Epoch, cloned: Epoch) {
        self.held.store(held.0, Ordering::Relaxed);
        self.cloned.store(cloned.0, Ordering::Relaxed);
    }

    /// Returns what [`set_parts`](Self::set_parts) noted.
    pub(crate) fn parts(&self) -> (Epoch, Epoch) {
        (Epoch(self.held.load(Ordering::Relaxed)), Epoch(self.cloned.load(Ordering::Relaxed)))
    }
}

/// A file's unit in bytes; 0: none.
#[derive(Debug, Default)]
pub(crate) struct Unit(AtomicU32);

impl Unit {
    pub(crate) fn bytes(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, bytes: u32) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

/// Which pages of a file leave the caches, as of a generation of what is set on files. One word:
/// unlike [`CowEpoch`] it is looked up without the inode lock.
#[derive(Debug, Default)]
pub(crate) struct KnownRelease(AtomicU64);

impl KnownRelease {
    /// Returns it if it is known as of this generation.
    #[inline]
    pub(crate) fn get(&self, generation: u32) -> Option<ReleaseBehind> {
        let known = self.0.load(Ordering::Acquire);
        (known >> 32 == u64::from(generation))
            .then(|| ReleaseBehind::of_code(known & u64::from(u32::MAX)).unwrap_or_default())
    }

    /// Notes what it is in a generation.
    pub(crate) fn set(&self, generation: u32, found: ReleaseBehind) {
        self.0.store(u64::from(generation) << 32 | found as u64, Ordering::Release);
    }
}

/// What a file wants, in bytes; 0: nothing.
#[derive(Debug, Default)]
pub(crate) struct ExtentSize(AtomicU64);

impl ExtentSize {
    pub(crate) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// Returns whether something was wanted when blocks were allocated last.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Returns the size in bytes; 0: none is wanted.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
