//! Calls that wait for the end of deletions of checkpoints: they carry these out themselves, and the
//! sync daemon leaves them to it.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many calls wait.
#[derive(Debug, Default)]
pub(crate) struct Deleters(AtomicU32);

/// One of them; it waits until this is dropped.
#[derive(Debug)]
pub(crate) struct Deleter<'a>(&'a AtomicU32);

impl Deleters {
    /// Counts a call from now on.
    pub(crate) fn enter(&self) -> Deleter<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Deleter(&self.0)
    }

    /// Returns whether any call waits.
    pub(crate) fn are_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Deleter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
