//! What a commit must keep for checkpoints: the images of rows that it is about to change.
//!
//! ```text
//!   record's rows ─► the newest checkpoint that holds the row's inode ─► has it an image? ─ yes ─► nothing to keep
//!                                                                           └ no ─► the old row joins the record
//! ```
//!
//! - I-CKP-1: a row of a checkpoint is the image in it, or else in the next newer one that has one, or else the live row.
//! - I-CKP-2: a block is free when no extent row, live or image, covers it.
//! - I-CKP-3: images are part of the record that changes the rows: a crash keeps both or neither.

use std::collections::HashSet;
use std::sync::Arc;

use super::row::{CheckpointRow, before_key, image_extent, is_captured, put_image, split_before_key};
use super::shares::{Deltas, Others, Shares};
use crate::extent::Run;
use crate::row::{ExtentRow, RowChange, Table, split_key};
use crate::{Epoch, InodeNo, Result};

/// A checkpoint in memory.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// Extents born up to this epoch may belong to it.
    pub(crate) epoch: Epoch,
    pub(crate) row: CheckpointRow,
    /// The inodes of one of named files; `None`: all that existed.
    pub(crate) members: Option<HashSet<InodeNo>>,
}

impl Checkpoint {
    /// Returns whether the checkpoint keeps the past of an inode's rows.
    pub(crate) fn holds(&self, ino: InodeNo) -> bool {
        ino < self.row.ino_end && self.members.as_ref().is_none_or(|members| members.contains(&ino))
    }
}

/// The checkpoints and the blocks that they share with the present.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    /// Oldest first.
    pub(crate) checkpoints: Vec<Arc<Checkpoint>>,
    pub(crate) shares: Shares,
    /// Extents born up to this epoch may be shared by files of the present.
    pub(crate) cloned_upto: Epoch,
}

/// What a record keeps and frees.
#[derive(Debug, Default)]
pub(crate) struct Captured {
    /// Rows to add to the record.
    pub(crate) images: Vec<RowChange>,
    pub(crate) deltas: Deltas,
}

pub(crate) fn run_of(row: ExtentRow) -> Run {
    Run { start: row.start, blocks: row.len.into() }
}

impl Capture {
    /// Returns whether commits need not look here.
    pub(crate) fn is_idle(&self) -> bool {
        self.checkpoints.is_empty() && self.shares.is_empty()
    }

    pub(crate) fn named(&self, name: &[u8]) -> Option<&Arc<Checkpoint>> {
        self.checkpoints.iter().find(|checkpoint| checkpoint.row.name == name)
    }

    /// Returns the newest checkpoint that holds an inode.
    pub(crate) fn newest(&self, ino: InodeNo) -> Option<&Arc<Checkpoint>> {
        self.checkpoints.iter().rev().find(|checkpoint| checkpoint.holds(ino))
    }

    /// Plans what a record has to keep; `get` finds rows as they are before it.
    pub(crate) fn plan(&self, rows: &[RowChange], mut get: impl FnMut(Table, &[u8]) -> Result<Option<Vec<u8>>>) -> Result<Captured> {
        let mut captured = Captured::default();
        let mut seen = HashSet::new();
        for row in rows {
            if row.table == Table::Before {
                self.count_image(row, &mut captured, &mut get)?;
            } else if is_captured(row.table) && seen.insert((row.table, row.key.as_slice())) {
                self.keep(row, &mut captured, &mut get)?;
            }
        }
        Ok(captured)
    }

    fn keep(&self, row: &RowChange, captured: &mut Captured, get: &mut impl FnMut(Table, &[u8]) -> Result<Option<Vec<u8>>>) -> Result<()> {
        let target = match self.newest(split_key(&row.key)?.0) {
            Some(checkpoint) if get(Table::Before, &before_key(checkpoint.epoch, row.table, &row.key))?.is_none() => Some(checkpoint.epoch),
            _ => None,
        };
        if target.is_none() && row.table != Table::Extent {
            return Ok(());
        }
        let old = get(row.table, &row.key)?;
        if row.table == Table::Extent {
            let old = old.as_deref().map(ExtentRow::decode).transpose()?;
            let new = row.value.as_deref().map(ExtentRow::decode).transpose()?;
            old.into_iter().for_each(|old| captured.deltas.remove(run_of(old)));
            new.into_iter().for_each(|new| captured.deltas.insert(run_of(new)));
            old.filter(|_| target.is_some()).into_iter().for_each(|old| captured.deltas.insert(run_of(old)));
        }
        captured.images.extend(target.map(|epoch| put_image(epoch, row.table, &row.key, old.as_deref())));
        Ok(())
    }

    /// Counts an image that comes, goes or is handed on.
    fn count_image(&self, row: &RowChange, captured: &mut Captured, get: &mut impl FnMut(Table, &[u8]) -> Result<Option<Vec<u8>>>) -> Result<()> {
        let (_, table, _) = split_before_key(&row.key)?;
        if table != Table::Extent {
            return Ok(());
        }
        let old = get(Table::Before, &row.key)?.map(|image| image_extent(table, &image)).transpose()?.flatten();
        let new = row.value.as_deref().map(|image| image_extent(table, image)).transpose()?.flatten();
        old.into_iter().for_each(|old| captured.deltas.remove(run_of(old)));
        new.into_iter().for_each(|new| captured.deltas.insert(run_of(new)));
        Ok(())
    }

    /// Carries out what [`plan`](Self::plan) found; returns the runs that became free (I-CKP-2).
    pub(crate) fn settle(&mut self, captured: &Captured, others: Others) -> Result<Vec<Run>> {
        self.shares.apply(&captured.deltas, others)
    }
}
