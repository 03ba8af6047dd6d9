//! What the model has in place of the locks of the cache.

pub(super) use shuttle::sync::atomic::AtomicU64;

pub(super) use bedplate_block::sync::rank;

pub(super) use crate::model_locks::{Condvar, Mutex, MutexGuard, RwLock};
