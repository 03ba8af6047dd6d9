//! Names: directories, links, renames, attributes, extended attributes, paths.
//!
//! Every change of names holds the directories that it changes, or the names lock alone
//! (`lock/names.rs`), plans its rows from what it finds, and commits them as one record: it is atomic
//! in memory and after a crash.

mod access;
mod acl;
mod attr;
mod dir;
pub(crate) mod make;
mod path;
mod remove;
mod rename;
mod settings;
mod xattr;

pub use access::SetGroupId;
#[cfg(any(test, feature = "forge"))]
pub(crate) use access::decode_acl;
pub(crate) use access::{NewAcl, decode_stored};
pub use acl::AclKind;
pub(crate) use make::{MODE_BITS, target_is_possible};
pub use path::split_mode_suffix;
pub(crate) use xattr::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};

use std::sync::Arc;

use crate::engine::Engine;
use crate::inode::{AttrGuard, Inode};
use crate::{Error, ErrorKind, FileKind, InodeNo, Result, Timestamp};
use bedplate_store::{DentryRow, RowChange, Table, pair_key};

impl Engine {
    /// Returns a directory that still exists.
    pub(crate) fn directory(&self, ino: InodeNo) -> Result<Arc<Inode>> {
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Directory {
            return Err(Error::new(
                ErrorKind::NotDirectory,
                format!("inode {} is not a directory", ino.0),
            ));
        }
        if inode.attr_lock().row.nlink == 0 {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("directory {} was removed", ino.0),
            ));
        }
        Ok(inode)
    }

    /// Returns the inode that a name in `dir` points to. A name that says another kind than its
    /// inode, or that leads back to its own directory, is damage: locking both would lock one inode
    /// twice, or walk in circles.
    pub(crate) fn named(&self, dir: InodeNo, row: DentryRow) -> Result<Arc<Inode>> {
        let damaged = |what: &str| {
            let message = format!(
                "a name in directory {} leads to inode {}, {what}: run a check",
                dir.0, row.ino.0
            );
            Err(Error::corrupt(message))
        };
        if row.ino == dir {
            return damaged("that directory itself");
        }
        match self.inode(row.ino) {
            Ok(inode) if inode.kind == row.kind => Ok(inode),
            Ok(_) => damaged("which is of another kind"),
            Err(e) if e.kind == ErrorKind::NotFound => damaged("which does not exist"),
            Err(e) => Err(e),
        }
    }

    /// Returns the inode that a name points to at this moment, with no lock held: where another
    /// file takes the name after it was read, and the first is removed, the name is read again.
    ///
    /// # Errors
    /// `NotFound` name; `Corrupt` as [`named`](Self::named).
    pub(crate) fn follow(&self, dir: InodeNo, name: &[u8]) -> Result<Arc<Inode>> {
        let mut row = self.need(dir, name)?;
        loop {
            let error = match self.named(dir, row) {
                Ok(inode) => return Ok(inode),
                Err(error) => error,
            };
            let now = self.need(dir, name)?;
            if now == row {
                return Err(error);
            }
            row = now;
        }
    }

    /// Returns what a name points to, or `NotFound`.
    pub(crate) fn need(&self, dir: InodeNo, name: &[u8]) -> Result<DentryRow> {
        self.find(dir, name)?.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("'{}' does not exist", bedplate_store::told_name(name)),
            )
        })
    }

    /// Refuses a name that exists.
    pub(crate) fn need_free(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        match self.find(dir, name)? {
            None => Ok(()),
            Some(_) => Err(Error::new(
                ErrorKind::Exists,
                format!("'{}' exists", bedplate_store::told_name(name)),
            )),
        }
    }
}

fn put_name(dir: InodeNo, name: &[u8], ino: InodeNo, kind: FileKind) -> RowChange {
    RowChange::put(Table::Dentry, pair_key(dir, name), DentryRow { ino, kind }.encode())
}

fn delete_name(dir: InodeNo, name: &[u8]) -> RowChange {
    RowChange::delete(Table::Dentry, pair_key(dir, name))
}

/// Changes a directory's link count (for a subdirectory that came or went) and its times, and adds
/// its row; the lock is to be held until the rows are committed (I-INO-1).
#[must_use]
fn touch_directory<'a>(dir: &'a Inode, links: i32, rows: &mut Vec<RowChange>) -> AttrGuard<'a> {
    let mut attr = dir.attr_lock();
    // A damaged count must not end the mount: a check finds it.
    attr.row.nlink = attr.row.nlink.saturating_add_signed(links);
    let now = Timestamp::now();
    attr.merge_times();
    attr.row.mtime = now;
    attr.row.ctime = now;
    rows.push(attr.change());
    attr
}
