//! Settings that a mount needs: the next number of an inode, the epoch. And those that it can do without: tunables.

use super::Examined;
use crate::row::{RowChange, Table};
use crate::state::{EPOCH, NEXT_INO};
use crate::tune::{check_stored, stored_key};
use crate::{ErrorKind, FindingKind, InodeNo, Result, TUNABLES, Tunable};

pub(super) fn check(examined: &mut Examined<'_>) -> Result<()> {
    check_next_ino(examined)?;
    check_epoch(examined)?;
    TUNABLES.iter().try_for_each(|info| check_tunable(examined, info.tunable))
}

/// A number that is given twice would make two files one.
fn check_next_ino(examined: &mut Examined<'_>) -> Result<()> {
    let last = examined.inodes.last_key_value().map_or(InodeNo::ROOT, |(ino, _)| *ino);
    let least = examined.lost_and_found.unwrap_or(last).0 + 1;
    let stored = examined.meta.get(Table::Setting, NEXT_INO)?.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    let possible = stored.filter(|next| InodeNo(*next).is_possible());
    if possible.is_some_and(|next| next >= least) {
        return Ok(());
    }
    let change = RowChange::put(Table::Setting, NEXT_INO.to_vec(), least.to_le_bytes().to_vec());
    if possible.is_some_and(|next| next > last.0) {
        // Only `/lost+found` needs it.
        examined.notes.repairs.push(change);
        return Ok(());
    }
    let message = match stored {
        Some(next) => format!("the next inode is to be number {next}, but number {} exists", last.0),
        None => "the setting 'next_ino' is missing or damaged".to_owned(),
    };
    examined.notes.mend_by(change, FindingKind::Setting, message, format!("a repair sets {least}, behind the last one in use"));
    Ok(())
}

fn check_epoch(examined: &mut Examined<'_>) -> Result<()> {
    let stored = examined.meta.get(Table::Setting, EPOCH)?;
    let epoch = stored.as_ref().and_then(|bytes| Some(u32::from_le_bytes(bytes.as_slice().try_into().ok()?)));
    if epoch.is_none_or(|epoch| epoch == 0) {
        let message = "the setting 'epoch' is missing or damaged";
        examined.notes.broken(
            FindingKind::Setting,
            message,
            "what was born when is told by nothing else: copy out the volume with 'bedplate salvage'",
        );
    }
    Ok(())
}

/// I-TUNE-1.
fn check_tunable(examined: &mut Examined<'_>, tunable: Tunable) -> Result<()> {
    match check_stored(examined.meta, tunable) {
        Err(error) if error.kind == ErrorKind::Corrupt => {
            let change = RowChange::delete(Table::Setting, stored_key(tunable));
            examined.notes.mend_by(change, FindingKind::Setting, error.message, "a repair forgets it, so that the default serves".to_owned());
            Ok(())
        }
        other => other.map(drop),
    }
}
