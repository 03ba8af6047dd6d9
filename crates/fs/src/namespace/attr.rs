//! Attributes and the I/O mode of a file or directory.

use std::sync::Arc;

use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Attr, Error, ErrorKind, FileKind, InodeNo, IoMode, Result, SetAttr, Timestamp};
use bedplate_store::{PlantedBug, RecordKind, planted};

impl Engine {
    pub(crate) fn attr(&self, ino: InodeNo) -> Result<Attr> {
        Ok(self.inode(ino)?.stat(self.block_size()))
    }

    /// Begins to change attributes: no room is made for what is refused here.
    pub(crate) fn begin_set_attr(&self, ino: InodeNo, change: &SetAttr) -> Result<Arc<Inode>> {
        self.need_live(ino)?;
        let inode = self.inode(ino)?;
        match change.size {
            Some(size) => crate::data::begin_set_size(self, &inode, size)?,
            None => self.begin_change()?,
        }
        Ok(inode)
    }

    /// Changes attributes, after [`begin_set_attr`](Self::begin_set_attr).
    pub(crate) fn set_attr(&self, inode: &Arc<Inode>, change: &SetAttr) -> Result<Attr> {
        let ino = inode.ino;
        if let Some(size) = change.size {
            match inode.kind {
                FileKind::File => {
                    let changing = self.change();
                    crate::data::set_size(&changing, self, &*self.pin(&changing, inode)?, size)?;
                }
                FileKind::Directory => {
                    return Err(Error::new(
                        ErrorKind::IsDirectory,
                        format!("inode {} is a directory and has no size to set", ino.0),
                    ));
                }
                _ => {
                    return Err(Error::new(
                        ErrorKind::Invalid,
                        format!("inode {} is not a regular file and has no size to set", ino.0),
                    ));
                }
            }
        }
        if change.has_fields() {
            let changing = self.change();
            self.set_fields(&*self.pin(&changing, inode)?, change)?;
        }
        Ok(inode.stat(self.block_size()))
    }

    fn set_fields(&self, inode: &Inode, change: &SetAttr) -> Result<()> {
        // An access control list is set under these names too, and says the same as the mode.
        let _names = change.mode.map(|_| self.lock_names_in(inode.ino));
        let acl = change.mode.map(|mode| self.acl_after(inode.ino, mode)).transpose()?.flatten();
        let mut attr = inode.attr_lock();
        attr.merge_times();
        let row = &mut attr.row;
        row.mode = change.mode.map_or(row.mode, |mode| mode & 0o7777);
        row.uid = change.uid.unwrap_or(row.uid);
        row.gid = change.gid.unwrap_or(row.gid);
        row.atime = change.atime.unwrap_or(row.atime);
        row.mtime = change.mtime.unwrap_or(row.mtime);
        row.ctime = change.ctime.unwrap_or_else(Timestamp::now);
        let rows = [attr.change()].into_iter().chain(acl).collect();
        let lsn = self.commit(RecordKind::SetAttr, rows);
        inode.note_lsn(lsn, false);
        Ok(())
    }

    pub(crate) fn sync_inode(&self, ino: InodeNo) -> Result<()> {
        let inode = self.inode(ino)?;
        crate::data::flush_before_sync(self, &inode)?;
        self.commit_times(&inode);
        // A directory has nothing but records: where its last is durable there is nothing to flush. The
        // sync of a new file before has made its name durable.
        let is_synced = inode.kind == FileKind::Directory
            && (self.is_durable(inode.meta_lsn()) || planted(PlantedBug::DirectoryNotSynced))
            && !self.has_failed();
        if is_synced { Ok(()) } else { self.sync_to(inode.meta_lsn()) }
    }

    pub(crate) fn set_io_mode(&self, ino: InodeNo, mode: Option<IoMode>) -> Result<()> {
        self.begin_change()?;
        self.need_live(ino)?;
        let changing = self.change();
        let inode = self.pin_number(&changing, ino)?;
        if !matches!(inode.kind, FileKind::File | FileKind::Directory) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("inode {} is neither a file nor a directory: it has no I/O mode", ino.0),
            ));
        }
        {
            let mut attr = inode.attr_lock();
            attr.row.io_mode = mode;
            attr.row.ctime = Timestamp::now();
            let row = attr.change();
            let lsn = self.commit(RecordKind::Mode, vec![row]);
            inode.note_lsn(lsn, false);
        }
        if inode.kind == FileKind::File { crate::data::mode_changed(self, &inode) } else { Ok(()) }
    }
}

impl SetAttr {
    /// Returns whether anything but the size is to change.
    fn has_fields(&self) -> bool {
        self.mode.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || self.atime.is_some()
            || self.mtime.is_some()
            || self.ctime.is_some()
    }
}
