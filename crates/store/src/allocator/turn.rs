//! A turn of the allocator's mutex, and what others hear of the free space without one.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bedplate_block::sync::MutexGuard;

use super::Inner;

/// So many blocks were free or about to become free after the last turn. On cache lines of its own:
/// it is read by every change once the log is not nearly empty.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct FreeAtLeast(AtomicU64);

impl FreeAtLeast {
    pub(super) fn blocks(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(super) fn note(&self, inner: &Inner) {
        self.0.store(inner.free_or_pending(), Relaxed);
    }
}

/// A hold of the allocator's mutex.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) inner: MutexGuard<'a, Inner>,
    pub(super) told: &'a FreeAtLeast,
}

impl Deref for Turn<'_> {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.told.note(&self.inner);
    }
}
