//! Which inodes are open, have pages in the library cache, a held write or a lease, and how many
//! there are.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::Engine;
use crate::InodeNo;
use crate::inode::{HeldBytes, Inode, InodeList};

/// Why an inode is listed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Listed {
    /// It is open.
    Open,
    /// It may have pages in the library cache.
    Cached,
    /// A write of it is held.
    Held,
    /// It is published to processes with leases.
    Leased,
}

impl Engine {
    fn list_of(&self, why: Listed) -> &InodeList {
        match why {
            Listed::Open => &self.open_files,
            Listed::Cached => &self.cached_files,
            Listed::Held => &self.held_files,
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

    /// Returns what the files hold together of sectors and writes.
    pub(crate) fn held_bytes(&self) -> &HeldBytes {
        &self.held_bytes
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
