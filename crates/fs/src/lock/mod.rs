//! Locks: those of one file, the inode lock and, for `direct`, byte ranges; and those that a freeze
//! takes, in `change` and `names`.
//!
//! Rank 2 of the lock order (SPEC of the room: namespace, *inode lock, byte ranges*, extent map,
//! attributes, metadata store, log). Both locks can be held by I/O in flight on a
//! [`Queue`](crate::Queue), whose owner may take its time to look at completions. So a thread that
//! waits here *helps*: it calls back, from time to time, into something that completes the I/O of
//! idle queues.

mod change;
mod inode_lock;
mod names;
mod range_lock;
mod sync;

#[cfg(test)]
mod tests;

pub(crate) use change::{ChangeLock, Changing, Unchanging, is_covered};
pub(crate) use inode_lock::{Exclusive, InodeLock, Shared};
pub(crate) use names::{Names, NamesLock};
pub(crate) use range_lock::{RangeLock, Sharing};

use std::time::Duration;

use crate::statistics::WaitMeter;

/// Completes I/O in flight whose owner is not looking, so that a lock it holds comes free.
pub(crate) trait Help {
    /// Does one round; returns soon, whether or not anything came free.
    fn help(&self);
    /// Returns where waits for locks are counted; `None`: those of this caller are not.
    fn meter(&self) -> Option<&WaitMeter> {
        None
    }
}

/// What does I/O on a file without holding its lock: processes with a lease of it.
pub(crate) trait Outside: std::fmt::Debug + Send + Sync {
    /// Lets none begin, and waits until those under way have ended; calls `help` from time to time.
    fn recall(&self, help: &mut dyn FnMut());
    /// Lets them begin again, where nothing else speaks against it.
    fn readmit(&self);
}

/// Nothing to help with: no queue exists.
#[cfg(test)]
struct NoHelp;

#[cfg(test)]
impl Help for NoHelp {
    fn help(&self) {}
}

/// How long a waiter sleeps before it helps: long against a device's latency, short against a
/// person's patience.
const HELP_AFTER: Duration = Duration::from_millis(2);
