//! What the model has in place of the locks of the cache.

pub(super) use shuttle::sync::atomic::AtomicU64;

pub(super) use bedplate_block::sync::model::{Condvar, Mutex, MutexGuard, RwLock};
pub(super) use bedplate_block::sync::rank;
