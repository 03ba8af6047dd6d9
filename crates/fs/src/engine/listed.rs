//! Which inodes are loaded, are open, have pages in the library cache, a held or delayed write, or a
//! lease, and how many there are.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::Engine;
#[cfg(test)]
use crate::inode::InodeTable;
use crate::inode::{HeldBytes, Inode, InodeList, SharedBytes};
use crate::{CounterSnapshot, InodeNo, Result};

/// Why an inode is listed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Listed {
    /// It is open.
    Open,
    /// It may have pages in the library cache.
    Cached,
    /// A write of it is held.
    Held,
    /// Writes that made it grow are delayed.
    Delayed,
    /// It may have windows that were read ahead.
    Windowed,
    /// A truncation of it is under way, and has taken dirty pages out of the library cache.
    Truncated,
    /// It is published to processes with leases.
    Leased,
}

impl Engine {
    fn list_of(&self, why: Listed) -> &InodeList {
        match why {
            Listed::Open => &self.open_files,
            Listed::Cached => &self.cached_files,
            Listed::Held => &self.held_files,
            Listed::Delayed => &self.delayed_files,
            Listed::Windowed => &self.windowed_files,
            Listed::Truncated => &self.truncated_files,
            Listed::Leased => &self.leased_files,
        }
    }

    /// Lists an inode.
    pub(crate) fn list(&self, why: Listed, inode: &Arc<Inode>) {
        self.list_of(why).add(inode);
    }

    /// Takes an inode off a list; one of the same number that was loaded since stays.
    pub(crate) fn unlist(&self, why: Listed, ino: InodeNo, inode: &Weak<Inode>) {
        self.list_of(why).remove(ino, inode);
    }

    /// Returns the inodes of a list in the order of their numbers.
    pub(crate) fn listed(&self, why: Listed) -> Vec<Arc<Inode>> {
        self.list_of(why).all()
    }

    /// Returns a loaded inode, reading it where needed.
    pub(crate) fn inode(&self, ino: InodeNo) -> Result<Arc<Inode>> {
        self.inodes.get_or_load(ino, self.meta.sealed_lsn(), || self.inode_row(ino))
    }

    /// Returns an inode that is loaded already.
    pub(crate) fn loaded_inode(&self, ino: InodeNo) -> Option<Arc<Inode>> {
        self.inodes.if_loaded(ino)
    }

    /// Returns those of the loaded inodes that `pick` picks.
    pub(crate) fn loaded_inodes(&self, pick: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        self.inodes.loaded(pick)
    }

    /// Adds an inode that was just made.
    pub(crate) fn add_inode(&self, inode: Arc<Inode>) {
        self.inodes.insert(inode, self.meta.sealed_lsn());
    }

    /// Forgets a loaded inode.
    pub(crate) fn forget_inode(&self, ino: InodeNo) {
        self.inodes.remove(ino);
    }

    /// Forgets loaded inodes.
    pub(crate) fn forget_inodes(&self, inodes: &[Arc<Inode>]) {
        self.inodes.drop_all(inodes);
    }

    /// Forgets an inode that does not exist any more; what has it open finds that out.
    pub(crate) fn kill_inode(&self, inode: &Inode) {
        self.inodes.kill(inode);
    }

    /// Returns whether an inode is pinned, loaded or not.
    pub(crate) fn is_pinned(&self, ino: InodeNo) -> bool {
        self.inodes.is_pinned(ino)
    }

    /// Takes pins off an inode, loaded or not; returns it where none is left.
    pub(crate) fn unpin_number(&self, ino: InodeNo, count: u64) -> Option<Arc<Inode>> {
        self.inodes.unpin(ino, count)
    }

    /// Returns whether more inodes are loaded than idle ones are kept.
    pub(crate) fn inodes_are_many(&self) -> bool {
        self.inodes.are_many()
    }

    /// Lets go of idle inodes beyond a bound.
    pub(crate) fn let_idle_inodes_go(&self) {
        self.inodes.let_idle_go(self.meta.sealed_lsn());
    }

    /// Returns the sums of the counters of all inodes.
    pub(crate) fn counters(&self) -> CounterSnapshot {
        self.inodes.counters()
    }

    /// Counts again from 0, for every inode.
    pub(crate) fn reset_counters(&self) {
        self.inodes.reset_statistics();
    }

    /// Returns the inodes that are loaded, with what tests count of them.
    #[cfg(test)]
    pub(crate) fn inode_table(&self) -> &InodeTable {
        &self.inodes
    }

    /// Returns what the files hold together of sectors and writes.
    pub(crate) fn held_bytes(&self) -> &HeldBytes {
        &self.held_bytes
    }

    /// Returns what the files keep together of writes that are delayed.
    pub(crate) fn delayed_bytes(&self) -> &SharedBytes {
        &self.delayed_bytes
    }

    /// Returns what the windows of all files take together.
    pub(crate) fn window_bytes(&self) -> &SharedBytes {
        &self.window_bytes
    }

    /// Returns how many inodes there are.
    pub(crate) fn inode_count(&self) -> u64 {
        self.inode_count.load(Ordering::Relaxed)
    }

    /// Counts inodes that were made, or negative, removed.
    pub(crate) fn count_inodes(&self, made: i64) {
        self.inode_count.fetch_add(made.cast_unsigned(), Ordering::Relaxed);
    }
}
