//! Settings that a mount needs: the next number of an inode, the epoch. And those that it can do
//! without: tunables, and what was decided of checkpoints.

use super::Examined;
use super::inodes::first_unused;
use crate::engine::{EPOCH, NEXT_INO};
use crate::engine::{SPACE_POLICY, decode_policy};
use crate::engine::{check_stored, stored_key};
use crate::schedule::SCHEDULE_PREFIX;
use crate::{Epoch, ErrorKind, FindingKind, InodeNo, Result, Schedule, TUNABLES, Tunable};
use bedplate_store::{RowChange, Table};

pub(super) fn check(examined: &mut Examined<'_>) -> Result<()> {
    check_next_ino(examined)?;
    check_epoch(examined)?;
    check_keeping(examined)?;
    TUNABLES.iter().try_for_each(|info| check_tunable(examined, info.tunable))
}

/// Schedules of checkpoints, and what a full volume does with them: one that does not decode is not
/// followed.
fn check_keeping(examined: &mut Examined<'_>) -> Result<()> {
    examined.each_row(Table::Setting, |examined, key, value| {
        let damage = if key.starts_with(SCHEDULE_PREFIX) {
            Schedule::decode(key, value).err().map(|e| e.message)
        } else if key == SPACE_POLICY {
            decode_policy(value).is_none().then(|| "it is neither 0 nor 1".to_owned())
        } else {
            None
        };
        if let Some(damage) = damage {
            let message = format!("the setting '{}' does not decode: {damage}", key.escape_ascii());
            let change = RowChange::delete(Table::Setting, key.to_vec());
            examined.notes.mend_by(
                change,
                FindingKind::Setting,
                message,
                "a repair removes it: set it again",
            );
        }
    })
}

/// A number that is given twice would make two files one.
fn check_next_ino(examined: &mut Examined<'_>) -> Result<()> {
    let first = first_unused(examined)?;
    let least = examined.lost_and_found.map_or(first, |lost| InodeNo(lost.0 + 1)).0;
    let stored = examined
        .meta
        .get(Table::Setting, NEXT_INO)?
        .and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)));
    let possible = stored.filter(|next| InodeNo(*next).is_possible());
    if possible.is_some_and(|next| next >= least) {
        return Ok(());
    }
    let change = RowChange::put(Table::Setting, NEXT_INO.to_vec(), least.to_le_bytes().to_vec());
    if possible.is_some_and(|next| next >= first.0) {
        // Only `/lost+found` needs it.
        examined.notes.repairs.push(change);
        return Ok(());
    }
    let message = match stored {
        Some(next) => format!(
            "the next inode is to be number {next}, but numbers up to {} exist or existed",
            first.0 - 1
        ),
        None => "the setting 'next_ino' is missing or damaged".to_owned(),
    };
    examined.notes.mend_by(
        change,
        FindingKind::Setting,
        message,
        format!("a repair sets {least}, behind the last one in use"),
    );
    Ok(())
}

/// The epoch of the present, where one is said that can be.
pub(super) fn epoch(examined: &Examined<'_>) -> Result<Option<Epoch>> {
    let stored = examined.meta.get(Table::Setting, EPOCH)?;
    let epoch =
        stored.and_then(|bytes| Some(Epoch(u32::from_le_bytes(bytes.as_slice().try_into().ok()?))));
    Ok(epoch.filter(|epoch| epoch.0 > 0))
}

fn check_epoch(examined: &mut Examined<'_>) -> Result<()> {
    if epoch(examined)?.is_none() {
        let message = "the setting 'epoch' is missing or damaged";
        examined.notes.broken(
            FindingKind::Setting,
            message,
            "what was born when is told by nothing else: copy out the volume with 'bedplate \
             salvage'",
        );
    }
    Ok(())
}

/// I-TUNE-1.
fn check_tunable(examined: &mut Examined<'_>, tunable: Tunable) -> Result<()> {
    match check_stored(examined.meta, tunable) {
        Err(error) if error.kind == ErrorKind::Corrupt => {
            let change = RowChange::delete(Table::Setting, stored_key(tunable));
            examined.notes.mend_by(
                change,
                FindingKind::Setting,
                error.message,
                "a repair forgets it, so that the default serves".to_owned(),
            );
            Ok(())
        }
        other => other.map(drop),
    }
}
