//! The epoch, and a count of the changes of the set of checkpoints.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Epoch;

/// The epoch, and a count of the changes of the set of checkpoints.
pub(crate) struct EpochState {
    /// The epoch that new extents are born in.
    epoch: AtomicU32,
    generation: AtomicU32,
    /// Is called after each change.
    watch: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl EpochState {
    pub(crate) fn new(epoch: Epoch) -> Self {
        Self {
            epoch: AtomicU32::new(epoch.0),
            generation: AtomicU32::new(1),
            watch: OnceLock::new(),
        }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    pub(crate) fn begin(&self, epoch: Epoch) {
        self.epoch.store(epoch.0, Ordering::Release);
    }

    /// Makes every file look up its copy-on-write epoch again.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        if let Some(watch) = self.watch.get() {
            watch();
        }
    }

    /// Has every change call `watch` from now on, which takes leaf locks only. The first one stays.
    pub(crate) fn watch(&self, watch: impl Fn() + Send + Sync + 'static) {
        self.watch.get_or_init(|| Box::new(watch));
    }

    /// Returns the count of changes of the set of checkpoints.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }
}
