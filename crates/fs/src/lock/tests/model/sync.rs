//! What the model has in place of the surroundings of the locks.

pub(super) use shuttle::sync::atomic::{AtomicU64, Ordering};

pub(super) use bedplate_block::sync::model::{Condvar, Mutex, MutexGuard};
pub(super) use bedplate_block::sync::{Held, Place};
