//! What the group commit protocol needs from its surroundings. The concurrency model puts its own
//! in this place.

pub(super) use bedplate_block::sync::{Place, rank};
pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
pub(super) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A point in time, to measure distances from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Gives the processor to another thread that is ready.
pub(super) fn yield_now() {
    std::thread::yield_now();
}
