//! Blocks that left a file under the shared inode lock, and become free once all that held it have
//! let go (I-IO-7).

use std::sync::Arc;

use bedplate_block::sync::{Mutex, rank};

use super::Engine;
use crate::Lsn;
use crate::inode::Inode;
use bedplate_store::Run;

/// How many such runs of one list wake the sync daemon.
const DEFERRED_RUNS_DUE: usize = 256;
/// Lists, a power of two: threads that write at the same time seldom meet at one.
const LISTS: usize = 16;
/// Blocks, as a power of two, whose runs go to one list.
const LIST_SHIFT: u32 = 6;

type DeferredRun = (Arc<Inode>, Lsn, Run);

/// Whole cache lines, in pairs, because processors fetch them so. Its mutex is a leaf.
#[derive(Default)]
#[repr(align(128))]
struct DeferredRuns(Mutex<Vec<DeferredRun>, { rank::DEFERRED_FREES }>);

/// Blocks that left a file under the shared inode lock (I-IO-7), in lists by their place.
#[derive(Default)]
pub(crate) struct DeferredFree([DeferredRuns; LISTS]);

impl DeferredFree {
    fn list_of(&self, run: Run) -> &DeferredRuns {
        let spread = (run.start.0 >> LIST_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(spread >> 32) as usize % LISTS]
    }

    /// Takes all of them, those of one file together.
    fn take(&self) -> Vec<DeferredRun> {
        let mut all: Vec<_> =
            self.0.iter().flat_map(|list| std::mem::take(&mut *list.0.lock())).collect();
        all.sort_by_key(|(inode, ..)| inode.ino);
        all
    }
}

impl Engine {
    /// Gives the blocks that left files under shared locks to the free space; returns whether there
    /// were any. The caller holds no inode lock.
    pub(crate) fn free_deferred(&self) -> bool {
        // Not locked while the inode locks are waited for: a holder of one may want to put
        // something in.
        let left = self.deferred_free.take();
        for of_file in left.chunk_by(|one, next| Arc::ptr_eq(&one.0, &next.0)) {
            // All of them left before, so one wait for the lock is enough for all runs of a file.
            drop(of_file[0].0.data.lock.exclusive(self));
            debug_assert!(
                of_file.iter().all(|(inode, ..)| Arc::ptr_eq(inode, &of_file[0].0)),
                "I-IO-7: all that held the lock of inode {} have let go",
                of_file[0].0.ino.0
            );
            let freed: Vec<_> = of_file.iter().map(|(_, lsn, run)| (*lsn, *run)).collect();
            self.allocator.release_all_after(&freed);
        }
        !left.is_empty()
    }

    /// Keeps blocks that left a file under the shared inode lock, with the record that removed
    /// them.
    pub(crate) fn defer_free(&self, inode: &Arc<Inode>, lsn: Lsn, runs: Vec<Run>) {
        for run in runs {
            let mut list = self.deferred_free.list_of(run).0.lock();
            list.push((Arc::clone(inode), lsn, run));
            if list.len().is_multiple_of(DEFERRED_RUNS_DUE) {
                self.sync_waker.wake();
            }
        }
    }
}
