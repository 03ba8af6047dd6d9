//! Reading directories.

use std::ops::{Bound, ControlFlow};

use super::NAME_BYTES_MAX;
use crate::row::{DentryRow, Table, pair_key, split_key};
use crate::state::Fs;
use crate::{Attr, DirEntry, Error, ErrorKind, InodeNo, Result};

impl Fs {
    pub(crate) fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, format!("a name of {} bytes is longer than {NAME_BYTES_MAX}", name.len())));
        }
        let inode = match name {
            b"." => self.directory(dir)?,
            b".." => self.inode(self.parent(dir)?)?,
            _ => {
                self.directory(dir)?;
                self.named(dir, self.need(dir, name)?)?
            }
        };
        Ok(inode.stat(self.block_size))
    }

    pub(crate) fn read_dir(&self, dir: InodeNo, after: Option<&[u8]>, limit: usize) -> Result<Vec<DirEntry>> {
        self.directory(dir)?;
        let from = pair_key(dir, after.unwrap_or_default());
        let from = if after.is_some() { Bound::Excluded(from.as_slice()) } else { Bound::Included(from.as_slice()) };
        let end = (dir.0 + 1).to_be_bytes();
        let mut entries = Vec::new();
        if limit == 0 {
            return Ok(entries);
        }
        self.meta.scan(Table::Dentry, from, Bound::Excluded(&end), |key, value| {
            let row = DentryRow::decode(value)?;
            entries.push(DirEntry { name: split_key(key)?.1.to_vec(), ino: row.ino, kind: row.kind });
            Ok(if entries.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(entries)
    }

    pub(crate) fn parent(&self, dir: InodeNo) -> Result<InodeNo> {
        let inode = self.directory(dir)?;
        let attr = inode.attr_lock();
        Ok(attr.row.parent)
    }
}
