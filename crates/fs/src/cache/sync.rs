//! The locks of the cache.

pub(super) use parking_lot::{Condvar, Mutex, MutexGuard};
