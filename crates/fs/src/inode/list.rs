//! A list of inodes that something holds for, kept as it comes and goes, so that finding them takes
//! no look at every inode in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use bedplate_block::sync::{Mutex, rank};

use super::Inode;
use crate::InodeNo;

/// Inodes by number. Its mutex is a leaf; the list keeps no inode in memory.
#[derive(Default)]
pub(crate) struct InodeList(Mutex<BTreeMap<InodeNo, Weak<Inode>>, { rank::INODE_LISTS }>);

impl std::fmt::Debug for InodeList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InodeList")
    }
}

impl InodeList {
    pub(crate) fn add(&self, inode: &Arc<Inode>) {
        self.0.lock().insert(inode.ino, Arc::downgrade(inode));
    }

    /// Takes an inode out; one of the same number that was loaded since stays.
    pub(crate) fn remove(&self, ino: InodeNo, inode: &Weak<Inode>) {
        let mut list = self.0.lock();
        if list.get(&ino).is_some_and(|listed| listed.ptr_eq(inode)) {
            list.remove(&ino);
        }
    }

    /// Returns the inodes in the order of their numbers.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }
}
