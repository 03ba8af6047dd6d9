//! Changed blocks: how a file differs between two moments, found without reading it.
//!
//! ```text
//!   images of the file's extents in checkpoints from the older moment to before the newer one ─► keys of rows that changed
//!      rows under these keys then ─┐
//!      rows under these keys now  ─┴─► compared block by block: other blocks, or none ─► ranges
//! ```
//!
//! A row without an image in between is the same in both (I-CKP-1), and no block of a checkpoint is
//! written in place while it exists (I-IO-6): so a block that is mapped where it was holds what it
//! held. The cost follows from the number of rows that changed.

use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

use super::clone::UNFINISHED;
use super::report::{ChangedKind, ChangedRange};
use super::subtree::inside;
use crate::engine::Engine;
use crate::{Epoch, Error, ErrorKind, FileKind, InodeNo, Result};
use bedplate_store::{
    Checkpoint, CheckpointSet, DentryRow, ExtentRow, InodeRow, PlantedBug, State, Table, inode_key,
    planted, split_extent_key, split_key,
};

/// How a file differs between two moments: the ranges, in order. Bytes outside of them, and before
/// both ends, are the same.
#[derive(Debug, Clone)]
pub struct ChangedBlocks {
    /// The size it had; `None`: it did not exist or had no name, and the ranges are all its data.
    pub size_before: Option<u64>,
    /// The size it has.
    pub size: u64,
    ranges: std::vec::IntoIter<ChangedRange>,
}

impl Iterator for ChangedBlocks {
    type Item = ChangedRange;

    fn next(&mut self) -> Option<ChangedRange> {
        self.ranges.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ranges.size_hint()
    }
}

/// An extent: where in the file, how long, and where on the volume if there is data.
type Piece = (u64, u64, Option<u64>);

/// A moment: a checkpoint, or the present.
pub(super) type CheckpointRef = Option<Epoch>;

impl Engine {
    /// Finds a checkpoint by its name; no name means the present.
    pub(super) fn moment(&self, name: Option<&[u8]>) -> Result<CheckpointRef> {
        name.map(|name| self.checkpoint(name).map(|checkpoint| checkpoint.epoch)).transpose()
    }

    /// Compares a file at two moments.
    pub(crate) fn changed_blocks(
        &self,
        ino: InodeNo,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<ChangedBlocks> {
        let ino = self.place(ino)?.ino;
        let (from, to) = (self.checkpoint(from)?.epoch, self.moment(to)?);
        if to.is_none()
            && let Ok(inode) = self.inode(ino)
        {
            crate::data::write_inode_alone(self, &inode)?;
        }
        let block = u64::from(self.block_size());
        self.reading(|rows| {
            let now = row_at(rows, to, ino)?;
            let now = now.ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!("inode {} did not exist at the second moment", ino.0),
                )
            })?;
            let hidden = self.views().hidden(from, || hidden_at(rows, Some(from)))?;
            let from = Some(from);
            let then = shown_at(rows, from, &hidden, ino)?;
            let ranges = match &then {
                Some(then) => {
                    with_old_end(changed(rows, ino, from, to)?, then.size, now.size, block)
                }
                None => compare(&[], &all_pieces(rows, ino, to)?),
            };
            let ranges: Vec<_> = ranges
                .into_iter()
                .filter_map(|(start, end, kind)| {
                    clip(start * block, end.saturating_mul(block), now.size, kind)
                })
                .collect();
            Ok(ChangedBlocks {
                size_before: then.map(|row| row.size),
                size: now.size,
                ranges: ranges.into_iter(),
            })
        })
    }
}

/// Adds the block in which a file that has become longer had ended: what its copy has there behind
/// the old end are zeros, and the block may hold what an earlier moment had, as after a rollback.
pub(super) fn with_old_end(
    mut ranges: Vec<(u64, u64, ChangedKind)>,
    size_before: u64,
    size: u64,
    block: u64,
) -> Vec<(u64, u64, ChangedKind)> {
    let last = size_before / block;
    let index = ranges.partition_point(|(_, end, _)| *end <= last);
    let told = ranges.get(index).is_some_and(|(start, ..)| *start <= last);
    if size > size_before && !size_before.is_multiple_of(block) && !told {
        ranges.insert(index, (last, last + 1, ChangedKind::Data));
    }
    debug_assert!(
        ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0),
        "ranges that changed are in order and apart"
    );
    ranges
}

fn clip(start: u64, end: u64, size: u64, kind: ChangedKind) -> Option<ChangedRange> {
    debug_assert!(start <= end, "a range that changed ends behind its start: {start}..{end}");
    let end = end.min(size);
    (start < end).then(|| ChangedRange { offset: start, len: end - start, kind })
}

/// The row of an inode at a moment; an inode that a checkpoint of named files does not hold cannot
/// be compared.
pub(super) fn row_at(
    rows: &State,
    moment: CheckpointRef,
    ino: InodeNo,
) -> Result<Option<InodeRow>> {
    if let Some(checkpoint) = moment.and_then(|epoch| {
        rows.checkpoint_set.checkpoints.iter().find(|checkpoint| checkpoint.epoch == epoch)
    }) && ino < checkpoint.row.ino_end
        && !checkpoint.holds(ino)
    {
        let name = bedplate_store::told_name(&checkpoint.row.name);
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "inode {} does not belong to checkpoint '{name}', which is of named files",
                ino.0
            ),
        ));
    }
    get(rows, moment, Table::Inode, &inode_key(ino))?.map(|row| InodeRow::decode(&row)).transpose()
}

/// The inodes of clones of directories that were still being made at a moment: rows of them exist,
/// and what the moment shows does not lead to them.
pub(super) fn hidden_at(rows: &State, moment: CheckpointRef) -> Result<BTreeSet<InodeNo>> {
    let mut tops = Vec::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        if value == UNFINISHED && !planted(PlantedBug::UnfinishedCompared) {
            tops.push(split_key(key)?.0);
        }
        Ok(ControlFlow::Continue(()))
    };
    match moment {
        None => rows.scan(Table::Orphan, Bound::Unbounded, Bound::Unbounded, &mut visit)?,
        Some(epoch) => {
            rows.scan_at(epoch, Table::Orphan, (Bound::Unbounded, Bound::Unbounded), &mut visit)?;
        }
    }
    let mut hidden = BTreeSet::new();
    for ino in tops {
        let top = DentryRow { ino, kind: FileKind::Directory };
        hidden.extend(inside(rows, moment, top)?.into_keys());
    }
    Ok(hidden)
}

/// The row of an inode at a moment that showed it. What had no name then, such as a clone that was
/// being made, counts as what came later: a copy of what the moment shows has nothing of it.
pub(super) fn shown_at(
    rows: &State,
    moment: CheckpointRef,
    hidden: &BTreeSet<InodeNo>,
    ino: InodeNo,
) -> Result<Option<InodeRow>> {
    let is_shown = |row: &InodeRow| {
        planted(PlantedBug::UnfinishedCompared) || row.nlink > 0 && !hidden.contains(&ino)
    };
    Ok(row_at(rows, moment, ino)?.filter(is_shown))
}

/// A row at a moment.
pub(super) fn get(
    rows: &State,
    moment: CheckpointRef,
    table: Table,
    key: &[u8],
) -> Result<Option<Vec<u8>>> {
    match moment {
        None => rows.get(table, key),
        Some(epoch) => rows.get_at(epoch, table, key),
    }
}

/// The checkpoints whose images say what changed between two moments.
pub(super) fn between(
    checkpoint_set: &CheckpointSet,
    a: CheckpointRef,
    b: CheckpointRef,
) -> impl Iterator<Item = &Checkpoint> {
    let at = |moment: CheckpointRef| moment.unwrap_or(Epoch(u32::MAX));
    let (first, end) = (at(a).min(at(b)), at(a).max(at(b)));
    checkpoint_set
        .checkpoints
        .iter()
        .map(AsRef::as_ref)
        .filter(move |checkpoint| (first..end).contains(&checkpoint.epoch))
}

/// The file blocks that differ.
pub(super) fn changed(
    rows: &State,
    ino: InodeNo,
    from: CheckpointRef,
    to: CheckpointRef,
) -> Result<Vec<(u64, u64, ChangedKind)>> {
    let (first, end) = (inode_key(ino), inode_key(InodeNo(ino.0 + 1)));
    let mut keys = BTreeSet::new();
    for checkpoint in between(&rows.checkpoint_set, from, to) {
        rows.scan_images(
            checkpoint.epoch,
            Table::Extent,
            (Bound::Included(&first), Bound::Excluded(&end)),
            |key, _| {
                keys.insert(key.to_vec());
                Ok(())
            },
        )?;
    }
    let (mut then, mut now) = (Vec::new(), Vec::new());
    for key in &keys {
        then.extend(get(rows, from, Table::Extent, key)?.map(|row| piece(key, &row)).transpose()?);
        now.extend(get(rows, to, Table::Extent, key)?.map(|row| piece(key, &row)).transpose()?);
    }
    Ok(compare(&then, &now))
}

fn piece(key: &[u8], row: &[u8]) -> Result<Piece> {
    let row = ExtentRow::decode(row)?;
    Ok((split_extent_key(key)?.1.0, row.len.into(), row.state.has_data().then_some(row.start.0)))
}

/// All extents of a file.
fn all_pieces(rows: &State, ino: InodeNo, moment: CheckpointRef) -> Result<Vec<Piece>> {
    let found = super::subtree::of_inode(rows, moment, Table::Extent, ino)?;
    found.iter().map(|(key, row)| piece(key, row)).collect()
}

/// Compares two maps of the same blocks; adjacent ranges of one kind are one.
fn compare(then: &[Piece], now: &[Piece]) -> Vec<(u64, u64, ChangedKind)> {
    let mut edges: Vec<u64> =
        then.iter().chain(now).flat_map(|(at, len, _)| [*at, at.saturating_add(*len)]).collect();
    debug_assert!(
        then.iter().chain(now).all(|(_, len, _)| *len > 0),
        "I-EXT-1: pieces that are compared hold a block"
    );
    edges.sort_unstable();
    edges.dedup();
    let (mut then, mut now) = (then.iter().peekable(), now.iter().peekable());
    let mut ranges: Vec<(u64, u64, ChangedKind)> = Vec::new();
    for pair in edges.windows(2) {
        let (start, end) = (pair[0], pair[1]);
        let (old, new) = (at(&mut then, start), at(&mut now, start));
        let kind = if new.is_some() { ChangedKind::Data } else { ChangedKind::Hole };
        if old == new {
            continue;
        }
        match ranges.last_mut() {
            Some((_, last, same)) if *last == start && *same == kind => *last = end,
            _ => ranges.push((start, end, kind)),
        }
    }
    ranges
}

/// Where a block is on the volume, if it has data; blocks are asked for in rising order.
fn at<'a>(
    pieces: &mut std::iter::Peekable<impl Iterator<Item = &'a Piece>>,
    block: u64,
) -> Option<u64> {
    while pieces.next_if(|(at, len, _)| at.saturating_add(*len) <= block).is_some() {}
    pieces
        .peek()
        .filter(|(at, ..)| *at <= block)
        .and_then(|(at, _, start)| start.map(|start| start + (block - at)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ChangedKind::{Data, Hole};

    #[test]
    fn what_is_mapped_elsewhere_changed() {
        let then = [(0, 4, Some(100)), (4, 2, None), (10, 5, Some(200))];
        let now = [
            (0, 1, Some(100)),
            (1, 2, Some(300)),
            (3, 1, Some(103)),
            (4, 1, None),
            (5, 1, Some(7)),
            (10, 2, None),
            (20, 1, Some(9)),
        ];
        assert_eq!(
            compare(&then, &now),
            [(1, 3, Data), (5, 6, Data), (10, 15, Hole), (20, 21, Data)]
        );
        assert_eq!(compare(&then, &then), []);
        assert_eq!(compare(&[], &then), [(0, 4, Data), (10, 15, Data)]);
        assert_eq!(
            clip(0, 8192, 5000, Data),
            Some(ChangedRange { offset: 0, len: 5000, kind: Data })
        );
        assert_eq!(clip(8192, 9000, 5000, Hole), None);
    }
}
