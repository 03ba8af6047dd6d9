//! What the locks need of their surroundings. The concurrency model puts its own in this place.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};

pub(super) use bedplate_block::sync::{Held, Place};
pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};
