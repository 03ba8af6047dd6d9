//! Memory that all files of a mount take together for one purpose, below a bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much is taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedBytes(Arc<AtomicU64>);

/// What one holder has of it, until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    all: SharedBytes,
    bytes: u64,
}

impl SharedBytes {
    /// Returns how much is taken now.
    pub(crate) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes so many bytes unless all together would pass `max`.
    pub(super) fn take(&self, bytes: u64, max: u64) -> Option<Share> {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
            Some(all + bytes).filter(|all| *all <= max)
        });
        taken.ok().map(|_| Share { all: self.clone(), bytes })
    }
}

impl Share {
    /// Takes so many bytes of the same.
    pub(super) fn take_other(&self, bytes: u64, max: u64) -> Option<Self> {
        self.all.take(bytes, max)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let before = self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(before >= self.bytes, "a share is of what is taken: {before} bytes");
    }
}
