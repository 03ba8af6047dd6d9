//! Extended attributes: owned, and no larger than they can be.

use super::Examined;
use super::inodes::hex;
use crate::namespace::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::{FindingKind, Result};
use bedplate_store::{RowChange, Table, split_key};

pub(super) fn check(examined: &mut Examined<'_>) -> Result<()> {
    examined.each_row(Table::Xattr, |examined, key, value| {
        let notes = &mut examined.notes;
        match split_key(key) {
            Ok((ino, name)) if !examined.inodes.contains_key(&ino) => notes.mend_by(
                RowChange::delete(Table::Xattr, key.to_vec()),
                FindingKind::Leftover,
                format!(
                    "attribute '{}' belongs to inode {}, which does not exist",
                    name.escape_ascii(),
                    ino.0
                ),
                "a repair removes it",
            ),
            Ok((ino, name))
                if name.is_empty()
                    || name.len() > XATTR_NAME_BYTES_MAX
                    || value.len() > XATTR_VALUE_BYTES_MAX =>
            {
                let message = format!(
                    "inode {} has an attribute that cannot be: {} bytes of name, {} of value",
                    ino.0,
                    name.len(),
                    value.len()
                );
                notes.broken(
                    FindingKind::Row,
                    message,
                    "remove it by hand, or copy out the volume with 'bedplate salvage'",
                );
            }
            Ok(_) => {}
            Err(e) => {
                let message = format!("the attribute with key {} cannot be read: {e}", hex(key));
                notes.broken(
                    FindingKind::Row,
                    message,
                    "nothing tells whose it is: copy out the volume with 'bedplate salvage'",
                );
            }
        }
    })
}
