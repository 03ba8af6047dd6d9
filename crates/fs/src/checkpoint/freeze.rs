//! The freeze: holds all changes back for a moment, so that a checkpoint cuts through no write
//! (I-CKP-4).
//!
//! ```text
//!   change lock ─► names lock: no opens, no changes by path ─► order locks of all open files ─► flush the library cache
//!                                                                                                       │
//!                  release everything ◄─ commit ◄─ held writes ◄─ inode locks of all open files ◄────────┘
//! ```
//!
//! Changes of closed files, of one record or of many, hold the change lock (`lock/change.rs`).
//! Dirty pages and held writes of closed files are written before the commit, and none come
//! meanwhile: a write needs an open file.
//!
//! The time this takes follows from the number of open files and of dirty pages, not from the
//! number of files, in memory or not, or their size. Order locks come before inode locks, all of
//! them: a holder of an order lock may wait for the inode lock of another file (its page makes room
//! by writing another one's), and a holder of an inode lock waits for no lock of another file. A
//! queue's I/O in flight is helped out of the way.

use std::sync::Arc;

use crate::Result;
use crate::engine::{Engine, Listed, Unhurried};
use crate::inode::Inode;
use crate::lock::ChangeLock;
use bedplate_store::{PlantedBug, planted};

impl Engine {
    /// Runs `work` while no name is changed, no file opened and no open file written. Nothing dirty
    /// is left in the library cache.
    pub(crate) fn frozen<T>(&self, work: impl FnOnce(&[Arc<Inode>]) -> Result<T>) -> Result<T> {
        self.freeze(Pages::Kept, work)
    }

    /// As [`frozen`](Self::frozen); the library cache holds nothing of any file while `work` runs.
    pub(super) fn frozen_and_forgetting<T>(
        &self,
        work: impl FnOnce(&[Arc<Inode>]) -> Result<T>,
    ) -> Result<T> {
        self.freeze(Pages::Forgotten, work)
    }

    fn freeze<T>(&self, pages: Pages, work: impl FnOnce(&[Arc<Inode>]) -> Result<T>) -> Result<T> {
        // Most of what is dirty goes to the device while others work on.
        self.cache().write_dirty()?;
        self.free_deferred();
        self.recall_leases_once();
        let beside = ChangeLock::default();
        let unchanging = if planted(PlantedBug::FreezeBesideChanges) {
            beside.alone()
        } else {
            self.lock_changes()
        };
        let _names = self.lock_names();
        let (files, patient) = (self.listed(Listed::Open), Unhurried(self));
        let orders: Vec<_> =
            files.iter().map(|inode| inode.data.order.exclusive(&patient)).collect();
        if !planted(PlantedBug::FreezeLeavesDirty) {
            self.cache().write_dirty()?;
        }
        if !planted(PlantedBug::FreezeLeavesHeld) {
            self.write_all_held()?;
        }
        // Of a file that is just being closed too: what is closed none of the locks below has.
        self.end_tails(None)?;
        self.commit_all_times(&unchanging.changing());
        // Before the inode locks: filling a page takes one.
        let mut with_pages =
            if pages == Pages::Forgotten && !planted(PlantedBug::RollbackKeepsPages) {
                self.listed(Listed::Cached)
            } else {
                Vec::new()
            };
        with_pages.retain(|inode| !self.is_past(inode.ino));
        let changes = with_pages
            .iter()
            .map(|inode| crate::data::forget_pages(self, inode))
            .collect::<Result<Vec<_>>>()?;
        let locks: Vec<_> = files.iter().map(|inode| inode.data.lock.exclusive(&patient)).collect();
        let left = planted(PlantedBug::FreezeLeavesHeld);
        let held = files.iter().zip(&locks).try_for_each(|(inode, lock)| {
            if left { Ok(()) } else { crate::data::write_held(self, inode, lock) }
        });
        let result = held.and_then(|()| work(&files));
        drop((locks, changes, orders));
        result
    }
}

impl Engine {
    /// Waits for each process that does I/O under a lease while nothing else has to wait: one that
    /// was stopped in the midst of it would keep the whole file system frozen.
    fn recall_leases_once(&self) {
        let files = self.listed(Listed::Leased);
        files.iter().for_each(|inode| drop(inode.data.lock.exclusive(&Unhurried(self))));
    }
}

/// What becomes of clean pages in the library cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pages {
    Kept,
    Forgotten,
}
