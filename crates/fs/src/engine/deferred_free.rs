//! Blocks that left a file under the shared inode lock, and become free once all that held it have
//! let go (I-IO-7).

use std::sync::Arc;

use bedplate_block::sync::{Mutex, rank};

use super::Engine;
use crate::Lsn;
use crate::inode::Inode;
use bedplate_store::Run;

/// How many such runs wake the sync daemon.
const DEFERRED_RUNS_DUE: usize = 1024;

/// Blocks that left a file under the shared inode lock (I-IO-7). Its mutex is a leaf.
#[derive(Default)]
pub(crate) struct DeferredFree(Mutex<Vec<(Arc<Inode>, Lsn, Run)>, { rank::DEFERRED_FREES }>);

impl Engine {
    /// Gives the blocks that left files under shared locks to the free space; returns whether there
    /// were any. The caller holds no inode lock.
    pub(crate) fn free_deferred(&self) -> bool {
        let mut any = false;
        // Not locked while the inode locks are waited for: a holder of one may want to put
        // something in.
        let left = std::mem::take(&mut *self.deferred_free.0.lock());
        let mut waited: Option<Arc<Inode>> = None;
        for (inode, lsn, run) in left {
            let ino = inode.ino;
            // All of them left before, so one wait for the lock is enough for all runs of a file.
            if waited.as_ref().is_none_or(|waited| !Arc::ptr_eq(waited, &inode)) {
                drop(inode.data.lock.exclusive(self));
                waited = Some(inode);
            }
            debug_assert!(
                waited.as_ref().is_some_and(|waited| waited.ino == ino),
                "I-IO-7: all that held the lock of inode {} have let go",
                ino.0
            );
            self.allocator.release_after(lsn, run);
            any = true;
        }
        any
    }

    /// Keeps blocks that left a file under the shared inode lock, with the record that removed
    /// them.
    pub(crate) fn defer_free(&self, inode: &Arc<Inode>, lsn: Lsn, runs: Vec<Run>) {
        let mut deferred_free = self.deferred_free.0.lock();
        deferred_free.extend(runs.into_iter().map(|run| (Arc::clone(inode), lsn, run)));
        if deferred_free.len().is_multiple_of(DEFERRED_RUNS_DUE) {
            self.sync_waker.wake();
        }
    }
}
