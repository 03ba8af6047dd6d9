//! Checkpoints: what they are made of can be read and belongs to one that exists. What they show is
//! looked at in `past.rs`.

use std::collections::BTreeSet;

use super::Examined;
use super::inodes::hex;
use super::past::DELETE;
use crate::{Epoch, FindingKind, Result};
use bedplate_store::{
    CheckpointRow, DentryRow, ExtentRow, InodeRow, RowChange, Table, decode_image,
    split_before_key, split_checkpoint_key, split_scope_key,
};

pub(super) fn check(examined: &mut Examined<'_>) -> Result<()> {
    let now = super::settings::epoch(examined)?;
    let (mut epochs, mut names) = (BTreeSet::new(), BTreeSet::new());
    examined.each_row(Table::Checkpoint, |examined, key, value| {
        match split_checkpoint_key(key).and_then(|epoch| Ok((epoch, CheckpointRow::decode(value)?)))
        {
            Ok((epoch, row)) => {
                epochs.insert(epoch);
                // The name of one that is being deleted is free.
                let is_named_twice = !row.deleting && !names.insert(row.name.clone());
                if now.is_some_and(|now| epoch >= now) || is_named_twice {
                    let message = format!(
                        "checkpoint {} ('{}') is of the future, or has the name of another",
                        epoch.0,
                        row.name.escape_ascii()
                    );
                    examined.notes.broken(FindingKind::Checkpoint, message, DELETE);
                }
                if !row.ino_end.is_possible() {
                    let message = format!(
                        "checkpoint {} holds inodes below {}, which is no number of an inode",
                        epoch.0, row.ino_end.0
                    );
                    examined.notes.broken(FindingKind::Checkpoint, message, DELETE);
                }
            }
            Err(e) => examined.notes.broken(
                FindingKind::Checkpoint,
                format!("checkpoint {}: {e}", hex(key)),
                DELETE,
            ),
        }
    })?;
    examined.each_row(Table::Scope, |examined, key, _| {
        belongs(examined, Table::Scope, key, split_scope_key(key).map(|(epoch, _)| epoch), &epochs);
    })?;
    examined.each_row(Table::Before, |examined, key, value| {
        belongs(examined, Table::Before, key, readable_image(key, value), &epochs);
    })
}

/// Reads an image; returns whose it is.
fn readable_image(key: &[u8], value: &[u8]) -> Result<Epoch> {
    let (epoch, table, row) = split_before_key(key)?;
    bedplate_store::split_key(row)?;
    if let Some(image) = decode_image(value)? {
        match table {
            Table::Inode => drop(InodeRow::decode(image)?),
            Table::Dentry => drop(DentryRow::decode(image)?),
            Table::Extent => {
                bedplate_store::split_extent_key(row)?;
                ExtentRow::decode(image)?;
            }
            _ => {}
        }
    }
    Ok(epoch)
}

fn belongs(
    examined: &mut Examined<'_>,
    table: Table,
    key: &[u8],
    epoch: Result<Epoch>,
    epochs: &BTreeSet<Epoch>,
) {
    match epoch {
        Ok(epoch) if epochs.contains(&epoch) => {}
        Ok(epoch) => {
            let message = format!("a row of checkpoint {} is left, which does not exist", epoch.0);
            examined.notes.mend_by(
                RowChange::delete(table, key.to_vec()),
                FindingKind::Leftover,
                message,
                "a repair removes it",
            );
        }
        Err(e) => examined.notes.broken(
            FindingKind::Checkpoint,
            format!("a row of a checkpoint, {}: {e}", hex(key)),
            DELETE,
        ),
    }
}
