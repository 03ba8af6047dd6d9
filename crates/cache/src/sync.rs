//! What the cache needs of its surroundings to be shared by threads. The concurrency model puts its
//! own in this place.

pub(super) use std::sync::atomic::AtomicU64;

pub(super) use bedplate_block::sync::{Condvar, Mutex, MutexGuard, RwLock, rank};
