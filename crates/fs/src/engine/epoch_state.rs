//! The epoch, and a count of the changes of the set of checkpoints.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::Epoch;

/// The epoch, and a count of the changes of the set of checkpoints.
#[derive(Debug)]
pub(crate) struct EpochState {
    /// The epoch that new extents are born in.
    pub(crate) epoch: AtomicU32,
    generation: AtomicU32,
}

impl EpochState {
    pub(crate) fn new(epoch: Epoch) -> Self {
        Self { epoch: AtomicU32::new(epoch.0), generation: AtomicU32::new(1) }
    }

    /// Makes every file look up its copy-on-write epoch again.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the count of changes of the set of checkpoints.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }
}
