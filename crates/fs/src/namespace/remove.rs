//! Removing names.

use std::sync::Arc;

use super::{delete_name, touch_directory};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::lock::Names;
use crate::{Error, ErrorKind, FileKind, InodeNo, Result, Timestamp};
use bedplate_store::{
    DentryRow, PlantedBug, RecordKind, RowChange, Table, check_name, inode_key, planted,
};

impl Engine {
    pub(crate) fn unlink(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.begin_removal()?;
        self.need_live(dir)?;
        let inode = {
            let _names = self.lock_names_in(dir);
            let parent = self.directory(dir)?;
            let dentry = self.need(dir, name)?;
            if dentry.kind == FileKind::Directory {
                return Err(Error::new(
                    ErrorKind::IsDirectory,
                    format!("'{}' is a directory", bedplate_store::told_name(name)),
                ));
            }
            let inode = self.named(dir, dentry)?;
            self.commit_removal(&parent, name, &inode, 0);
            inode
        };
        self.reclaim_if_dead(&inode);
        Ok(())
    }

    pub(crate) fn rmdir(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.begin_removal()?;
        self.need_live(dir)?;
        let inode = {
            let (_names, dentry) = self.lock_names_and_victim(dir, name)?;
            let parent = self.directory(dir)?;
            let inode = self.named(dir, dentry)?;
            self.need_live(inode.ino)?;
            if inode.kind != FileKind::Directory {
                return Err(Error::new(
                    ErrorKind::NotDirectory,
                    format!("'{}' is not a directory", bedplate_store::told_name(name)),
                ));
            }
            self.need_empty(inode.ino, name)?;
            self.commit_removal(&parent, name, &inode, -1);
            inode
        };
        self.reclaim_if_dead(&inode);
        Ok(())
    }

    /// Locks the names of a directory and those of the one that a name in it leads to, which is
    /// about to be removed: nothing is made in it until it is gone (I-NAM-1).
    fn lock_names_and_victim(&self, dir: InodeNo, name: &[u8]) -> Result<(Names<'_>, DentryRow)> {
        loop {
            let seen = self.need(dir, name)?;
            let names = if planted(PlantedBug::VictimNotLocked) {
                self.lock_names_in(dir)
            } else {
                self.lock_names_in_both(dir, seen.ino)
            };
            let dentry = self.need(dir, name)?;
            // Another thread may have replaced what the name leads to.
            if dentry == seen {
                return Ok((names, dentry));
            }
        }
    }

    /// Removes a name with one record, under the lock of its directory; `links` is added to the link count
    /// of the directory.
    fn commit_removal(&self, dir: &Inode, name: &[u8], inode: &Inode, links: i32) {
        let mut rows = vec![delete_name(dir.ino, name)];
        let locks = (touch_directory(dir, links, &mut rows), drop_name(inode, &mut rows));
        let lsn = self.commit(RecordKind::Unlink, rows);
        drop(locks);
        inode.note_lsn(lsn, false);
        dir.note_lsn(lsn, false);
    }

    pub(crate) fn need_empty(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        if self.read_dir(dir, None, 1)?.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NotEmpty,
            format!("directory '{}' is not empty", bedplate_store::told_name(name)),
        ))
    }

    /// Removes a name, in a directory that no other thread can reach; `counts`: the directory's
    /// link count has its subdirectories.
    pub(crate) fn drop_child(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        child: &Arc<Inode>,
        counts: bool,
    ) {
        {
            let _names = self.lock_names_in_both(dir.ino, child.ino);
            self.commit_removal(
                dir,
                name,
                child,
                if counts && child.kind == FileKind::Directory { -1 } else { 0 },
            );
        }
        self.reclaim_if_dead(child);
    }
}

/// Takes one name from an inode (a directory loses all of its links) and adds its rows; the lock is
/// to be held until they are committed.
pub(super) fn drop_name<'a>(
    inode: &'a Inode,
    rows: &mut Vec<RowChange>,
) -> crate::inode::AttrGuard<'a> {
    let mut attr = inode.attr_lock();
    attr.row.nlink =
        if inode.kind == FileKind::Directory { 0 } else { attr.row.nlink.saturating_sub(1) };
    attr.row.ctime = Timestamp::now();
    rows.push(attr.change());
    if attr.row.nlink == 0 {
        rows.push(RowChange::put(Table::Orphan, inode_key(inode.ino), Vec::new()));
    }
    attr
}
