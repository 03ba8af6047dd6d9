//! What a commit must keep for checkpoints: the images of rows that it is about to change.
//!
//! ```text
//!   record's rows ─► the newest checkpoint that holds the row's inode ─► has it an image? ─ yes ─► nothing to keep
//!                                                                           └ no ─► the old row joins the record
//! ```
//!
//! - I-CKP-1: a row of a checkpoint is the image in it, or else in the next newer one that has one,
//!   or else the live row.
//! - I-CKP-2: a block is free when no extent row, live or image, covers it.
//! - I-CKP-3: images are part of the record that changes the rows: a crash keeps both or neither.
//! - I-CKP-7: blocks that were shared, or kept for a checkpoint, are written in place only once the
//!   record that ended that is sealed; where that is the deletion of a checkpoint, and the file the
//!   one that had them, once it is durable.
//! - I-CKP-9: blocks move for all rows that have them by one record, which keeps no images: what
//!   every checkpoint shows is as it was.
//! - I-CKP-10: a checkpoint that is being deleted gets no images more. It hands on those it has, or
//!   drops them, in steps; between any two of them I-CKP-1 holds for every other one, which looks
//!   through what it still has.
//! - I-CKP-8: no checkpoint is made between a file's look at what the newest one has and the record
//!   that changes its rows (I-CHG-1).

use std::collections::HashSet;
use std::sync::Arc;

use super::block_refs::{BlockRefs, Deltas, Others, Referrer, Uncovered};
use super::checkpoint_row::{
    CheckpointRow, before_key, has_before_images, image_extent, put_image, split_before_key,
};
use super::pending_unshare::PendingUnshare;
use crate::extent::Run;
use crate::planted::{PlantedBug, planted};
use crate::row::{ExtentRow, RowChange, Table, split_key};
use crate::{Epoch, Error, InodeNo, Lsn, Result};

/// A checkpoint in memory.
#[derive(Debug)]
pub struct Checkpoint {
    /// Extents born up to this epoch may belong to it.
    pub epoch: Epoch,
    /// Its row.
    pub row: CheckpointRow,
    /// The inodes of one of named files; `None`: all that existed.
    pub members: Option<HashSet<InodeNo>>,
}

impl Checkpoint {
    /// Returns whether retention and a full volume may delete it.
    pub fn is_removable(&self) -> bool {
        self.row.automatic && (!self.row.kept || planted(PlantedBug::KeptIsRemovable))
    }

    /// Returns whether the checkpoint keeps the past of an inode's rows.
    pub fn holds(&self, ino: InodeNo) -> bool {
        let existed = ino < self.row.ino_end || planted(PlantedBug::LaterInodesHeld);
        existed
            && (self.members.as_ref().is_none_or(|members| members.contains(&ino))
                || planted(PlantedBug::NamedHoldsAll))
    }
}

/// The checkpoints and the blocks that they share with the present.
#[derive(Debug, Default)]
pub struct CheckpointSet {
    /// Oldest first, with those that are being deleted (I-CKP-10).
    pub checkpoints: Vec<Arc<Checkpoint>>,
    /// How far the deletion of one of them is: its rows up to this key of a table are gone.
    pub deleted_up_to: Option<DeletedUpTo>,
    /// Deleted ones whose deletion is not durable: what they had is still kept (I-CKP-7).
    pub going: Vec<Arc<Checkpoint>>,
    /// The blocks that several rows refer to.
    pub block_refs: BlockRefs,
    /// Runs that may be written in place once a record is sealed.
    pub pending_unshare: PendingUnshare,
    /// The files that share blocks with others, or did since the mount: those that were cloned, and
    /// their clones.
    pub cloned: HashSet<InodeNo>,
    /// Extents of these born up to this epoch may be shared.
    pub cloned_upto: Epoch,
}

/// How far a deletion in steps is, so that the next one does not pass over what the ones before
/// removed.
#[derive(Debug, Clone)]
pub struct DeletedUpTo {
    /// The checkpoint.
    pub epoch: Epoch,
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Vec<u8>,
}

/// What a record keeps and frees.
#[derive(Debug, Default)]
pub struct ImagePlan {
    /// Rows to add to the record.
    pub images: Vec<RowChange>,
    pub deltas: Deltas,
}

/// What a file knows of the extent rows that a record changes: they are its first rows, in this
/// order, each key once.
#[derive(Debug)]
pub struct PriorRows {
    /// The newest checkpoint that holds the file.
    pub epoch: Epoch,
    /// Its rows before the record.
    pub rows: Vec<PriorRow>,
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub struct PriorRow {
    /// The row before the record.
    pub old: Option<ExtentRow>,
    /// Whether the checkpoint has an image of it, where that is known.
    pub imaged: Option<bool>,
}

/// Decodes a row of an extent whose blocks can be counted.
fn decode_extent(row: &[u8]) -> Result<ExtentRow> {
    countable(ExtentRow::decode(row)?)
}

/// Refuses an extent behind the end of every volume.
fn countable(row: ExtentRow) -> Result<ExtentRow> {
    if row.start.0 >> 60 == 0 {
        return Ok(row);
    }
    Err(Error::corrupt(format!("an extent lies at block {}, behind every volume", row.start.0)))
}

fn run_of(row: ExtentRow) -> Run {
    Run { start: row.start, blocks: row.len.into() }
}

impl CheckpointSet {
    /// Returns whether commits need not look here.
    pub fn is_idle(&self) -> bool {
        self.checkpoints.is_empty() && self.block_refs.is_empty()
    }

    /// Returns the checkpoints that can be looked into, oldest first: not those that are being
    /// deleted.
    pub fn listed(&self) -> impl DoubleEndedIterator<Item = &Arc<Checkpoint>> {
        self.checkpoints.iter().filter(|checkpoint| !checkpoint.row.deleting)
    }

    /// Puts a changed checkpoint in the place of the one of its epoch.
    pub fn replace(&mut self, changed: Arc<Checkpoint>) {
        let mut all = self.checkpoints.iter_mut();
        if let Some(old) = all.find(|checkpoint| checkpoint.epoch == changed.epoch) {
            *old = changed;
        }
    }

    /// Returns those that are being deleted, oldest first.
    pub fn deleting(&self) -> impl DoubleEndedIterator<Item = &Arc<Checkpoint>> {
        self.checkpoints.iter().filter(|checkpoint| checkpoint.row.deleting)
    }

    /// Returns the checkpoint of a name.
    pub fn named(&self, name: &[u8]) -> Option<&Arc<Checkpoint>> {
        self.listed().find(|checkpoint| checkpoint.row.name == name)
    }

    /// Returns the newest checkpoint that holds an inode.
    pub fn newest(&self, ino: InodeNo) -> Option<&Arc<Checkpoint>> {
        let mut holders = self.listed().filter(|checkpoint| checkpoint.holds(ino));
        if planted(PlantedBug::ImageForOldest) { holders.next() } else { holders.next_back() }
    }

    /// Returns whether the newest checkpoint that holds a row finds an image of it: its own, or one
    /// that a newer one has which is being deleted, and will hand on (I-CKP-10).
    fn has_image(
        &self,
        newest: Epoch,
        table: Table,
        key: &[u8],
        get: &mut impl FnMut(Table, &[u8]) -> Result<Option<Vec<u8>>>,
    ) -> Result<bool> {
        let newer = self
            .deleting()
            .map(|checkpoint| checkpoint.epoch)
            .filter(|one| *one > newest && !planted(PlantedBug::DeletingNotAsked));
        for epoch in std::iter::once(newest).chain(newer) {
            if get(Table::Before, &before_key(epoch, table, key))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Plans what a record has to keep; `get` finds rows as they are before it, and is not asked
    /// for what is known.
    pub fn plan(
        &self,
        rows: &[RowChange],
        known: Option<&PriorRows>,
        mut get: impl FnMut(Table, &[u8]) -> Result<Option<Vec<u8>>>,
    ) -> Result<ImagePlan> {
        let mut plan = ImagePlan::default();
        let first = known.map_or(&[][..], |known| &known.rows);
        debug_assert!(
            first.len() <= rows.len(),
            "the rows whose old values are known are the first of a record: {} of {}",
            first.len(),
            rows.len()
        );
        debug_assert!(
            self.checkpoints.iter().is_sorted_by_key(|checkpoint| checkpoint.epoch),
            "I-CKP-1: checkpoints stand in the order of their epochs"
        );
        for (row, known_row) in rows.iter().zip(first) {
            self.keep_extent(
                row,
                Some((known.map_or(Epoch(0), |known| known.epoch), *known_row)),
                &mut plan,
                &mut get,
            )?;
        }
        let mut seen = HashSet::new();
        for row in &rows[first.len()..] {
            if row.table == Table::Before {
                self.count_image(row, &mut plan, &mut get)?;
            } else if has_before_images(row.table) && seen.insert((row.table, row.key.as_slice())) {
                if row.table == Table::Extent {
                    self.keep_extent(row, None, &mut plan, &mut get)?;
                } else {
                    self.keep(row, &mut plan, &mut get)?;
                }
            }
        }
        debug_assert!(
            plan.images.iter().all(|image| {
                let gets = split_before_key(&image.key).map(|(epoch, ..)| epoch).ok();
                !self.deleting().any(|checkpoint| Some(checkpoint.epoch) == gets)
            }),
            "I-CKP-10: a checkpoint that is being deleted gets no images more"
        );
        Ok(plan)
    }

    /// Plans a record that says of extents, live and in images, where their blocks are from then
    /// on: the bytes are the same, so nothing is kept (I-CKP-9).
    pub fn plan_moved(
        &self,
        rows: &[RowChange],
        mut get: impl FnMut(Table, &[u8]) -> Result<Option<Vec<u8>>>,
    ) -> Result<ImagePlan> {
        let mut plan = ImagePlan::default();
        for row in rows {
            match row.table {
                Table::Before => self.count_image(row, &mut plan, &mut get)?,
                Table::Extent => {
                    let old =
                        get(row.table, &row.key)?.as_deref().map(decode_extent).transpose()?;
                    let new = row.value.as_deref().map(decode_extent).transpose()?;
                    if let Some(old) = old {
                        plan.deltas.remove(run_of(old), Referrer::Live(old.state.unsummed()));
                    }
                    if let Some(new) = new {
                        plan.deltas.insert(run_of(new), Referrer::Live(new.state.unsummed()));
                    }
                }
                other => {
                    debug_assert!(other == Table::Sum, "I-CKP-9: extents move, and not {other:?}");
                }
            }
        }
        debug_assert!(plan.images.is_empty(), "I-CKP-9: a move keeps nothing");
        Ok(plan)
    }

    fn keep(
        &self,
        row: &RowChange,
        plan: &mut ImagePlan,
        get: &mut impl FnMut(Table, &[u8]) -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        let Some(checkpoint) = self.newest(split_key(&row.key)?.0) else { return Ok(()) };
        let absent = !self.has_image(checkpoint.epoch, row.table, &row.key, get)?;
        if (absent || planted(PlantedBug::ImageOverwritten)) && !planted(PlantedBug::ImageForgotten)
        {
            let old = get(row.table, &row.key)?;
            plan.images.push(put_image(checkpoint.epoch, row.table, &row.key, old.as_deref()));
        }
        Ok(())
    }

    /// Returns the checkpoint that is to keep the old row of an extent, if one is and has not yet.
    fn image_wanted(
        &self,
        row: &RowChange,
        known: Option<(Epoch, PriorRow)>,
        get: &mut impl FnMut(Table, &[u8]) -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<Epoch>> {
        let Some(checkpoint) = self.newest(split_key(&row.key)?.0) else { return Ok(None) };
        let epoch = checkpoint.epoch;
        assert!(
            known.is_none_or(|(held, _)| epoch <= held),
            "I-CKP-8: checkpoint {} was made while inode rows changed",
            epoch.0
        );
        let mut has_image = || self.has_image(epoch, row.table, &row.key, get);
        let imaged = match known {
            Some((held, PriorRow { imaged: Some(imaged), .. })) if held == epoch => {
                debug_assert!(
                    has_image()? == imaged,
                    "I-CKP-1: what has an image in checkpoint {} is known",
                    epoch.0
                );
                imaged
            }
            _ => has_image()?,
        };
        Ok(Some(epoch).filter(|_| !imaged && !planted(PlantedBug::ExtentImageForgotten)))
    }

    /// As [`keep`](Self::keep), and counts the blocks that come and go.
    fn keep_extent(
        &self,
        row: &RowChange,
        known: Option<(Epoch, PriorRow)>,
        plan: &mut ImagePlan,
        get: &mut impl FnMut(Table, &[u8]) -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        debug_assert!(
            row.table == Table::Extent,
            "only extents cover blocks, and not {:?}",
            row.table
        );
        let mut read = |table, key: &[u8]| get(table, key);
        let mut old_row =
            || read(Table::Extent, &row.key)?.as_deref().map(decode_extent).transpose();
        let old = match known {
            Some((_, known)) => {
                debug_assert!(
                    old_row()? == known.old,
                    "the map of a file and its rows are the same"
                );
                known.old
            }
            None => old_row()?,
        };
        let target = self.image_wanted(row, known, get)?;
        let new = row.value.as_deref().map(decode_extent).transpose()?;
        old.into_iter()
            .for_each(|old| plan.deltas.remove(run_of(old), Referrer::Live(old.state.unsummed())));
        new.into_iter()
            .for_each(|new| plan.deltas.insert(run_of(new), Referrer::Live(new.state.unsummed())));
        old.filter(|_| target.is_some())
            .into_iter()
            .for_each(|old| plan.deltas.insert(run_of(old), Referrer::Image(old.state.unsummed())));
        plan.images.extend(target.map(|epoch| {
            put_image(epoch, row.table, &row.key, old.map(ExtentRow::encode).as_deref())
        }));
        Ok(())
    }

    /// Counts an image that comes, goes or is handed on.
    fn count_image(
        &self,
        row: &RowChange,
        plan: &mut ImagePlan,
        get: &mut impl FnMut(Table, &[u8]) -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        debug_assert!(row.table == Table::Before, "an image is counted, and not {:?}", row.table);
        let (_, table, _) = split_before_key(&row.key)?;
        if table != Table::Extent {
            return Ok(());
        }
        let old = get(Table::Before, &row.key)?
            .map(|image| image_extent(table, &image))
            .transpose()?
            .flatten()
            .map(countable)
            .transpose()?;
        let new =
            row.value.as_deref().map(|image| image_extent(table, image)).transpose()?.flatten();
        old.into_iter()
            .for_each(|old| plan.deltas.remove(run_of(old), Referrer::Image(old.state.unsummed())));
        new.into_iter()
            .for_each(|new| plan.deltas.insert(run_of(new), Referrer::Image(new.state.unsummed())));
        Ok(())
    }

    /// Carries out what [`plan`](Self::plan) found; returns the runs that became free (I-CKP-2) and
    /// those that one row alone has now (I-CKP-7).
    pub fn apply(&mut self, plan: &ImagePlan, others: Others) -> Result<Uncovered> {
        self.block_refs.apply(&plan.deltas, others)
    }

    /// Records block runs whose reference count dropped to one. Where no files share blocks a
    /// change of a file leaves them to a checkpoint alone, which is never written. What the
    /// deletion of a checkpoint left, the others being as they were, may be unwritten blocks of a
    /// file.
    pub fn note_unshared(&mut self, lsn: Lsn, runs: &[Run], others: Others, sealed: Lsn) {
        if !self.cloned.is_empty() || others == Others::Covered {
            self.pending_unshare.note(lsn, runs, sealed);
        }
    }

    /// Returns a run in parts, each with whether its blocks are needed elsewhere, and else the record
    /// that must be sealed before they are written in place, if one is known (I-CKP-7).
    pub fn sharing(&self, run: Run) -> Vec<(Run, bool, Option<Lsn>)> {
        let parts = self.block_refs.needed_elsewhere(run).into_iter();
        parts
            .map(|(part, needed)| {
                let left = if needed { None } else { self.pending_unshare.last(part) };
                (part, needed, left)
            })
            .collect()
    }

    /// Returns the epoch up to which checkpoints may need extents of an inode, with those whose
    /// deletion may not survive (I-CKP-7).
    pub fn held(&self, ino: InodeNo) -> Epoch {
        self.held_without(ino, &[])
    }

    /// As [`held`](Self::held), were the checkpoints of some epochs gone.
    pub fn held_without(&self, ino: InodeNo, without: &[Epoch]) -> Epoch {
        let all = self
            .listed()
            .filter(|checkpoint| !without.contains(&checkpoint.epoch))
            .chain(self.going.iter().filter(|_| !planted(PlantedBug::DeletedWrittenAtOnce)));
        all.filter(|checkpoint| checkpoint.holds(ino))
            .map(|checkpoint| checkpoint.epoch)
            .max()
            .unwrap_or(Epoch(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;

    /// S-53: a checkpoint keeps the past of the inodes that there were, and one of named files that
    /// of these alone: not of those that are younger.
    #[test]
    fn s_53_a_checkpoint_holds_inodes_that_there_were() {
        let row = CheckpointRow {
            name: b"c".to_vec(),
            created: Timestamp(1),
            ino_end: InodeNo(10),
            automatic: false,
            kept: false,
            deleting: false,
            paths: Vec::new(),
        };
        let all = Checkpoint { epoch: Epoch(1), row: row.clone(), members: None };
        assert_eq!([5, 9, 10, 11].map(|ino| all.holds(InodeNo(ino))), [true, true, false, false]);
        let named = Checkpoint {
            epoch: Epoch(1),
            row,
            members: Some(HashSet::from([InodeNo(5), InodeNo(11)])),
        };
        assert_eq!(
            [5, 9, 10, 11].map(|ino| named.holds(InodeNo(ino))),
            [true, false, false, false]
        );
    }
}
