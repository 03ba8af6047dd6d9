//! Extended attributes.

use std::ops::{Bound, ControlFlow};

use super::access::decode_stored;
use super::acl::AclKind;
use crate::data::Pinned;
use crate::engine::Engine;
use crate::inode::Inode;
use crate::lock::Changing;
use crate::{Error, ErrorKind, FileKind, InodeNo, Lsn, Result, Timestamp};
use bedplate_store::{NAME_BYTES_MAX, RecordKind, RowChange, Table, pair_key};

/// Longest value in bytes (`XATTR_SIZE_MAX`).
pub(crate) const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// Longest name in bytes.
pub(crate) const XATTR_NAME_BYTES_MAX: usize = NAME_BYTES_MAX;

fn missing(ino: InodeNo, name: &[u8]) -> Error {
    Error::new(
        ErrorKind::NoAttribute,
        format!("inode {} has no attribute '{}'", ino.0, bedplate_store::told_name(name)),
    )
}

impl Engine {
    pub(crate) fn get_xattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.inode(ino)?;
        let value = self.row_of(Table::Xattr, ino, name)?.ok_or_else(|| missing(ino, name))?;
        if let Some(kind) = AclKind::of_name(name) {
            decode_stored(ino, kind, &value)?;
        }
        Ok(value)
    }

    /// Begins to set an attribute: no room is made for what is refused here.
    pub(crate) fn begin_set_xattr(&self, ino: InodeNo, name: &[u8], value: &[u8]) -> Result<()> {
        if name.is_empty()
            || name.len() > XATTR_NAME_BYTES_MAX
            || value.len() > XATTR_VALUE_BYTES_MAX
        {
            return Err(Error::new(
                ErrorKind::Range,
                format!(
                    "an attribute has 1 to {XATTR_NAME_BYTES_MAX} bytes of name and up to \
                     {XATTR_VALUE_BYTES_MAX} of value, not {} and {}",
                    name.len(),
                    value.len()
                ),
            ));
        }
        self.begin_change()?;
        self.need_live(ino)
    }

    /// Sets an attribute, after [`begin_set_xattr`](Self::begin_set_xattr).
    pub(crate) fn set_xattr(
        &self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Result<()> {
        let key = pair_key(ino, name);
        let changing = self.change();
        let inode = self.pin_number(&changing, ino)?;
        let _names = self.lock_names_in(ino);
        self.need_attribute(ino, name, create, replace)?;
        self.need_space()?;
        self.change_xattr(&inode, RowChange::put(Table::Xattr, key, value.to_vec()));
        Ok(())
    }

    /// Refuses an attribute that exists and is to be new, or is missing and is to be replaced. The
    /// caller holds the inode's names.
    pub(super) fn need_attribute(
        &self,
        ino: InodeNo,
        name: &[u8],
        create: bool,
        replace: bool,
    ) -> Result<()> {
        let exists = self.row(Table::Xattr, &pair_key(ino, name))?.is_some();
        if create && exists {
            return Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "inode {} has an attribute '{}' already",
                    ino.0,
                    bedplate_store::told_name(name)
                ),
            ));
        }
        if replace && !exists {
            return Err(missing(ino, name));
        }
        Ok(())
    }

    pub(crate) fn remove_xattr(&self, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.begin_change()?;
        self.need_live(ino)?;
        let key = pair_key(ino, name);
        let changing = self.change();
        let inode = self.pin_number(&changing, ino)?;
        let _names = self.lock_names_in(ino);
        if self.row(Table::Xattr, &key)?.is_none() {
            return Err(missing(ino, name));
        }
        self.change_xattr(&inode, RowChange::delete(Table::Xattr, key));
        Ok(())
    }

    /// Returns the file or directory that something is to be asked for; of anything else `refusal`
    /// says why it cannot be.
    pub(crate) fn file_or_directory(
        &self,
        changing: &Changing<'_>,
        ino: InodeNo,
        refusal: &str,
    ) -> Result<Pinned<'_>> {
        self.need_live(ino)?;
        let inode = self.pin_number(changing, ino)?;
        if matches!(inode.kind, FileKind::File | FileKind::Directory) {
            return Ok(inode);
        }
        Err(Error::new(
            ErrorKind::Invalid,
            format!("inode {} is neither a file nor a directory: {refusal}", ino.0),
        ))
    }

    /// Sets or takes away an attribute that the file system itself reads, and makes writers look
    /// again; returns the record that does.
    pub(crate) fn set_own_xattr(&self, inode: &Inode, name: &[u8], value: Option<Vec<u8>>) -> Lsn {
        let key = pair_key(inode.ino, name);
        let change = match value {
            Some(value) => RowChange::put(Table::Xattr, key, value),
            None => RowChange::delete(Table::Xattr, key),
        };
        let names = self.lock_names_in(inode.ino);
        let lsn = self.change_xattr(inode, change);
        drop(names);
        self.epochs_changed();
        lsn
    }

    fn change_xattr(&self, inode: &Inode, change: RowChange) -> Lsn {
        let mut attr = inode.attr_lock();
        attr.row.ctime = Timestamp::now();
        let row = attr.change();
        let lsn = self.commit(RecordKind::Xattr, vec![change, row]);
        inode.note_lsn(lsn, false);
        lsn
    }

    pub(crate) fn list_xattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        self.inode(ino)?;
        let mut names = Vec::new();
        self.rows_of(Table::Xattr, ino, Bound::Unbounded, |name, _| {
            names.push(name.to_vec());
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(names)
    }
}
