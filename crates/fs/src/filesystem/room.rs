//! Changes that are tried again once room was made for them on a full volume. No lock is held here.

use super::FileSystem;
use crate::data::{DataPath, SpaceDemand};
use crate::namespace::make::Making;
use crate::{Attr, ErrorKind, InodeNo, Result, SetAttr};

impl FileSystem {
    /// Makes an object under a name.
    pub(super) fn make_with_room(
        &self,
        dir: InodeNo,
        name: &[u8],
        making: &Making<'_>,
    ) -> Result<Attr> {
        let fs = self.state();
        fs.begin_make(dir, name)?;
        fs.with_room(|| fs.make(dir, name, making))
    }

    /// Changes attributes; a growth may need the block in which the file ended.
    pub(super) fn set_attr_with_room(&self, ino: InodeNo, change: &SetAttr) -> Result<Attr> {
        let fs = self.state();
        let inode = fs.begin_set_attr(ino, change)?;
        loop {
            match (fs.set_attr(&inode, change), change.size) {
                (Err(error), Some(size)) if error.kind == ErrorKind::NoSpace => {
                    fs.make_room(error, &|without| {
                        DataPath::new(fs, &inode).demand(&SpaceDemand::SetSize(size), without)
                    })?;
                }
                (other, _) => return other,
            }
        }
    }
}
