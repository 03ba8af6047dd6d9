//! What becomes of the rows of a checkpoint that is deleted: what an older one still needs is handed
//! on, the rest is dropped.
//!
//! ```text
//!   few rows: all of them and its own row, in one record
//!
//!   marked, durable ─► images, so many a record ─► members, so many a record ─► its own row, with the last of them
//!     nothing shows it        older ones look through what is left (I-CKP-10)
//! ```
//!
//! A step takes no time that a program would notice, and between two of them everything else goes on.
//! What a crash leaves is as good as what any step leaves: the next mount goes on from there.

use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::report::CheckpointSpace;
use crate::{Epoch, Result};
use bedplate_store::{
    Checkpoint, DeletedUpTo, PlantedBug, RowChange, State, Table, before_key, checkpoint_key,
    planted, split_before_key, split_key,
};

/// The most bytes of images that one step hands on.
const STEP_BYTES: usize = 128 << 10;

/// The checkpoints that may get what one that is deleted has: all that stay and are older, the
/// oldest first.
struct Heirs<'a> {
    rows: &'a State,
    older: Vec<&'a Arc<Checkpoint>>,
}

impl<'a> Heirs<'a> {
    fn of(rows: &'a State, epoch: Epoch, goes: impl Fn(Epoch) -> bool) -> Self {
        let all = rows.checkpoint_set.listed();
        Self { rows, older: all.filter(|one| one.epoch < epoch && !goes(one.epoch)).collect() }
    }

    /// Returns where an image goes: to the next older one that holds the inode and has none.
    fn key_for(&self, key: &[u8]) -> Result<Option<bedplate_store::Bytes>> {
        let (_, table, row) = split_before_key(key)?;
        let ino = split_key(row)?.0;
        let mut holders = self
            .older
            .iter()
            .filter(|other| other.holds(ino) && !planted(PlantedBug::ImagesNotHandedOn));
        let heir = if planted(PlantedBug::ImagesToOldestHeir) {
            holders.next()
        } else {
            holders.next_back()
        };
        let Some(heir) = heir else { return Ok(None) };
        let key = before_key(heir.epoch, table, row);
        let has_none = self.rows.get(Table::Before, &key)?.is_none();
        Ok((has_none || planted(PlantedBug::HeirOverwritten)).then_some(key))
    }
}

/// The row changes that delete checkpoints, given oldest first, all at once: what that frees is
/// counted by them.
fn deletion(rows: &State, checkpoints: &[Arc<Checkpoint>]) -> Result<Vec<RowChange>> {
    debug_assert!(
        checkpoints.is_sorted_by_key(|checkpoint| checkpoint.epoch),
        "I-CKP-1: checkpoints are deleted in the order of their epochs"
    );
    let goes = |epoch| checkpoints.iter().any(|checkpoint| checkpoint.epoch == epoch);
    let mut changes = Vec::new();
    // What an older one of them handed on is nearer to the heir than what a newer one has.
    let mut handed = HashSet::new();
    for epoch in checkpoints.iter().map(|checkpoint| checkpoint.epoch) {
        let heirs = Heirs::of(rows, epoch, goes);
        visit(rows, Table::Before, epoch, None, |key, image| {
            let heir = heirs.key_for(key)?;
            if let Some(heir) = heir.filter(|heir| handed.insert(heir.clone())) {
                changes.push(RowChange::put(Table::Before, heir, image.to_vec()));
            }
            changes.push(RowChange::delete(Table::Before, key.to_vec()));
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(changes)
}

/// Counts what deleting checkpoints, given oldest first, frees.
pub(super) fn would_free(
    rows: &State,
    checkpoints: &[Arc<Checkpoint>],
    block_size: u32,
) -> Result<CheckpointSpace> {
    let changes = deletion(rows, checkpoints)?;
    let images = changes.iter().filter(|change| change.value.is_none()).count();
    let plan = rows.checkpoint_set.plan(&changes, None, |table, key| rows.get(table, key))?;
    let blocks = rows.checkpoint_set.block_refs.would_free(&plan.deltas)?;
    Ok(CheckpointSpace { rows: images as u64, alone_bytes: blocks * u64::from(block_size) })
}

/// What one step of a deletion changes.
pub(super) struct Step {
    pub(super) epoch: Epoch,
    pub(super) changes: Vec<RowChange>,
    /// Where the next one goes on; `None`: this is the last.
    pub(super) up_to: Option<DeletedUpTo>,
}

/// Returns the next step of the deletions under way, with no more than `limit` rows of the
/// checkpoint; `None` where there are none. The oldest comes first: what it has is nearer to the
/// heirs of newer ones than what these have (I-CKP-10).
pub(super) fn next_step(rows: &State, limit: usize) -> Result<Option<Step>> {
    let mut deleting = rows.checkpoint_set.deleting();
    let next = if planted(PlantedBug::NewestDeletedFirst) {
        deleting.next_back()
    } else {
        deleting.next()
    };
    next.map(|checkpoint| step_of(rows, checkpoint.epoch, limit)).transpose()
}

/// Returns the one step that deletes a checkpoint of fewer than `limit` rows: it needs no mark.
/// `None` where it takes several, or has to wait for an older one.
pub(super) fn only_step(rows: &State, epoch: Epoch, limit: usize) -> Result<Option<Step>> {
    let waits = rows.checkpoint_set.deleting().next().is_some();
    if waits && !planted(PlantedBug::ShortDeletionFirst) {
        return Ok(None);
    }
    Ok(Some(step_of(rows, epoch, limit)?).filter(|step| step.up_to.is_none()))
}

/// Returns the next step of the deletion of a checkpoint.
fn step_of(rows: &State, epoch: Epoch, limit: usize) -> Result<Step> {
    let heirs = Heirs::of(rows, epoch, |_| false);
    let (mut changes, mut left, mut bytes) = (Vec::new(), limit, 0);
    for table in [Table::Before, Table::Scope] {
        let from = rows.checkpoint_set.deleted_up_to.as_ref().filter(|at| at.epoch == epoch);
        if from.is_some_and(|at| at.table == Table::Scope && table == Table::Before) {
            continue;
        }
        let from = from.filter(|at| at.table == table).map(|at| at.key.as_slice());
        let mut last = None;
        visit(rows, table, epoch, from, |key, value| {
            if table == Table::Before
                && let Some(heir) = heirs.key_for(key)?
            {
                bytes += value.len();
                changes.push(RowChange::put(Table::Before, heir, value.to_vec()));
            }
            changes.push(RowChange::delete(table, key.to_vec()));
            left -= 1;
            if left > 0 && bytes < STEP_BYTES {
                return Ok(ControlFlow::Continue(()));
            }
            last = Some(key.to_vec());
            Ok(ControlFlow::Break(()))
        })?;
        if let Some(key) = last.filter(|_| !planted(PlantedBug::DeletionEndsEarly)) {
            return Ok(Step { epoch, changes, up_to: Some(DeletedUpTo { epoch, table, key }) });
        }
    }
    changes.push(RowChange::delete(Table::Checkpoint, checkpoint_key(epoch)));
    Ok(Step { epoch, changes, up_to: None })
}

/// Visits the rows of a table whose keys begin with an epoch, those behind `after` only.
fn visit(
    rows: &State,
    table: Table,
    epoch: Epoch,
    after: Option<&[u8]>,
    visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let first = checkpoint_key(epoch);
    let from = after.map_or(Bound::Included(first.as_slice()), Bound::Excluded);
    let to = epoch.0.checked_add(1).map(|next| checkpoint_key(Epoch(next)));
    let to = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    rows.scan(table, from, to, visit)
}
