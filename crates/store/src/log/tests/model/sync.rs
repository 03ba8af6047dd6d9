//! Stands in for the surroundings of the protocol: every step of these is a point where the checker
//! may switch threads.

pub(super) use bedplate_block::sync::{Place, rank};
pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
pub(super) use shuttle::thread::yield_now;
pub(super) use std::sync::PoisonError;

use std::cell::Cell;

use shuttle::rand::{Rng, thread_rng};

/// A clock by which every wait is over after a few looks at it, or at once: then the thread parks,
/// or the leader sets out.
#[derive(Debug)]
pub(super) struct Clock {
    looks: Cell<u32>,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { looks: Cell::new(thread_rng().gen_range(0..4)) }
    }

    pub(super) fn elapsed_ns(&self) -> u64 {
        let left = self.looks.get();
        self.looks.set(left.saturating_sub(1));
        if left == 0 { u64::MAX } else { 0 }
    }
}
