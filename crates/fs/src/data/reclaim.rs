//! Pins, and what happens to an inode that loses the last of them and has no name.

use std::ops::{Bound, ControlFlow, Deref};
use std::sync::Arc;

use crate::engine::Engine;
use crate::inode::Inode;
use crate::lock::Changing;
use crate::pause::{Pause, pause};
use crate::{InodeNo, Result};
use bedplate_store::{RecordKind, RowChange, Table, inode_key, pair_key};

/// An inode that is neither reclaimed nor dropped from memory while this lives: for changes by path
/// or number.
pub(crate) struct Pinned<'a> {
    fs: &'a Engine,
    inode: Arc<Inode>,
}

impl Deref for Pinned<'_> {
    type Target = Arc<Inode>;

    fn deref(&self) -> &Arc<Inode> {
        &self.inode
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.fs.unpin(&self.inode, 1);
    }
}

impl Engine {
    /// Pins an inode for a change. Under the change lock: a rollback before it may have removed the
    /// inode, and none comes after.
    pub(crate) fn pin(&self, _changing: &Changing<'_>, inode: &Arc<Inode>) -> Result<Pinned<'_>> {
        inode.pin()?;
        Ok(Pinned { fs: self, inode: Arc::clone(inode) })
    }

    /// As [`pin`](Self::pin), of an inode by its number.
    pub(crate) fn pin_number(&self, changing: &Changing<'_>, ino: InodeNo) -> Result<Pinned<'_>> {
        self.pin(changing, &self.inode(ino)?)
    }

    /// Removes an inode that has neither names nor pins, in bounded records (the caller holds the
    /// only claim, I-INO-2, since this hold of the change lock began: a rollback before would have
    /// given the inode its name back).
    pub(crate) fn reclaim(&self, changing: &Changing<'_>, inode: &Arc<Inode>) -> Result<()> {
        pause(Pause::Reclaim);
        super::free_all(changing, self, inode)?;
        pause(Pause::Reclaim);
        let mut rows = vec![
            RowChange::delete(Table::Inode, inode_key(inode.ino)),
            RowChange::delete(Table::Orphan, inode_key(inode.ino)),
        ];
        self.rows_of(Table::Xattr, inode.ino, Bound::Unbounded, |name, _| {
            rows.push(RowChange::delete(Table::Xattr, pair_key(inode.ino, name)));
            Ok(ControlFlow::Continue(()))
        })?;
        let _attr = inode.attr_lock();
        self.commit(RecordKind::Remove, rows);
        self.count_inodes(-1);
        self.forget_inode(inode.ino);
        Ok(())
    }

    /// Gives back pins, and reclaims the inode where they were the last thing that kept it.
    pub(crate) fn unpin(&self, inode: &Arc<Inode>, count: u64) {
        if inode.unpin(count) {
            self.reclaim_if_dead(inode);
        }
    }

    /// Reclaims an inode that lost its last name and is pinned by nothing; what fails here is an
    /// orphan that the next mount removes. The caller holds no lock but the change lock.
    pub(crate) fn reclaim_if_dead(&self, inode: &Arc<Inode>) {
        if self.is_read_only() || !inode.is_dying() {
            return;
        }
        // The claim under the same hold as the records.
        let changing = self.change();
        if !inode.lost_name() {
            return;
        }
        if let Err(e) = self.reclaim(&changing, inode) {
            tracing::warn!(
                "inode {} could not be removed now and is left to the next mount: {e}",
                inode.ino.0
            );
        }
    }
}
