//! Extended attributes: owned, and no larger than they can be; access control lists that are some,
//! and a note on the volume that there are any.

use super::Examined;
use super::inodes::hex;
use crate::AclKind;
use crate::engine::ACLS;
use crate::namespace::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, decode_stored};
use crate::{FindingKind, Result};
use bedplate_store::{RowChange, Table, split_key};

pub(super) fn check(examined: &mut Examined<'_>) -> Result<()> {
    let mut lists = 0_u64;
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
            Ok((ino, name)) => {
                let Some(kind) = AclKind::of_name(name) else { return };
                lists += 1;
                if let Err(error) = decode_stored(ino, kind, value) {
                    notes.broken(FindingKind::Row, error.message, "nothing tells what it was");
                }
            }
            Err(e) => {
                let message = format!("the attribute with key {} cannot be read: {e}", hex(key));
                notes.broken(
                    FindingKind::Row,
                    message,
                    "nothing tells whose it is: copy out the volume with 'bedplate salvage'",
                );
            }
        }
    })?;
    if lists > 0 && examined.meta.get(Table::Setting, ACLS)?.is_none() {
        examined.notes.mend_by(
            RowChange::put(Table::Setting, ACLS.to_vec(), vec![1]),
            FindingKind::Setting,
            format!("there are {lists} access control lists, and the setting 'acls' is missing"),
            "a repair sets it, so that 'chmod' and new files go by them",
        );
    }
    Ok(())
}
