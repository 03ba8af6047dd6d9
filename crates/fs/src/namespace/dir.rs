//! Reading directories.

use crate::engine::Engine;
use crate::{Attr, DirEntry, Error, ErrorKind, InodeNo, Result};
use bedplate_store::NAME_BYTES_MAX;

impl Engine {
    pub(crate) fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::NameTooLong,
                format!("a name of {} bytes is longer than {NAME_BYTES_MAX}", name.len()),
            ));
        }
        let inode = match name {
            b"." => self.directory(dir)?,
            b".." => self.inode(self.parent(dir)?)?,
            _ => {
                self.directory(dir)?;
                self.follow(dir, name)?
            }
        };
        Ok(inode.stat(self.block_size()))
    }

    pub(crate) fn read_dir(
        &self,
        dir: InodeNo,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        self.directory(dir)?;
        self.names_of(dir, after, limit)
    }

    pub(crate) fn parent(&self, dir: InodeNo) -> Result<InodeNo> {
        let inode = self.directory(dir)?;
        let attr = inode.attr_lock();
        Ok(attr.row.parent)
    }
}
