//! By what clients see that something they wrote and did not commit may be lost.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The write verifier: another one after each start, and after each loss.
#[derive(Debug)]
pub struct Verifier(AtomicU64);

impl Verifier {
    /// Makes one of a number that no earlier start had.
    pub fn new(start: u64) -> Self {
        Self(AtomicU64::new(start))
    }

    /// Returns the present one.
    ///
    /// A write looks before it begins, a commit after its flush: so a loss between the two is
    /// always one between what the client was told.
    pub fn value(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// Says that what was written without a commit may be lost.
    pub fn lost(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}
