//! The rows that say where blocks are that moved, as changes of one record.
//!
//! A row keeps its key as far as it moves in one piece. Where a part of it stays, or goes elsewhere,
//! each further piece gets a row of its own, under a new key, and every checkpoint must show there
//! what it showed in the middle of the old row:
//!
//! ```text
//!   checkpoint 1        the image at 0 has blocks 0 to 9     ─►  images at 0 and at 4
//!   checkpoint 2        no image: it shows the present           an image at 4 that says: nothing is here
//!   present             the row at 0 has other blocks 0 to 9 ─►  as it was
//! ```
//!
//! A key has images only where a checkpoint shows something else than the next newer one, or had an
//! image before (I-CKP-1).

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::MovedRow;
use crate::{BlockNo, Epoch, Error, FileBlock, InodeNo, Result};
use bedplate_store::{
    ExtentRow, RowChange, Run, State, Table, before_key, decode_image, extent_key, put_image,
};

/// Blocks that moved, and where to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) from: Run,
    pub(super) to: BlockNo,
}

/// Returns the pieces that a row becomes, with how far each begins behind its first block.
pub(super) fn pieces(row: ExtentRow, segments: &[Segment]) -> Vec<(u32, ExtentRow)> {
    let end = row.start.0 + u64::from(row.len);
    let mut pieces: Vec<(u32, ExtentRow)> = Vec::with_capacity(1);
    let mut push = |from: u64, to: u64, start: u64| {
        if from >= to {
            return;
        }
        let (skip, len) = ((from - row.start.0) as u32, (to - from) as u32);
        match pieces.last_mut() {
            Some((_, last)) if last.start.0 + u64::from(last.len) == start => last.len += len,
            _ => pieces.push((skip, ExtentRow { start: BlockNo(start), len, ..row })),
        }
    };
    let mut at = row.start.0;
    for segment in segments {
        let (from, to) = (segment.from.start.0.max(at), segment.from.end().min(end));
        if from < to {
            push(at, from, at);
            push(from, to, segment.to.0 + (from - segment.from.start.0));
            at = to;
        }
    }
    push(at, end, at);
    pieces
}

/// Collects the changes of one move. Nothing else changes meanwhile.
pub(super) struct Rewrite<'a> {
    rows: &'a State,
    /// By rising blocks.
    segments: &'a [Segment],
    /// Checkpoints, the newest first.
    epochs: Vec<Epoch>,
    changes: BTreeMap<MovedRow, Option<ExtentRow>>,
    /// Rows of which a part gets another key.
    split: BTreeMap<InodeNo, BTreeSet<FileBlock>>,
}

/// What all views of a file show under one key, the present first; a checkpoint that does not hold
/// the file shows only what it keeps itself.
struct Shown {
    /// What a view shows, and whether it keeps that itself.
    views: Vec<(Option<ExtentRow>, bool)>,
}

impl<'a> Rewrite<'a> {
    pub(super) fn new(rows: &'a State, segments: &'a [Segment]) -> Self {
        let epochs = rows.checkpoint_set.checkpoints.iter().rev().map(|one| one.epoch).collect();
        Self { rows, segments, epochs, changes: BTreeMap::new(), split: BTreeMap::new() }
    }

    /// Returns what a place keeps: `None`, nothing; `Some(None)`, that nothing is there.
    pub(super) fn kept(rows: &State, place: MovedRow) -> Result<Option<Option<ExtentRow>>> {
        let key = extent_key(place.ino, place.at);
        let Some(epoch) = place.epoch else {
            let row = rows.get(Table::Extent, &key)?;
            return Ok(Some(row.as_deref().map(ExtentRow::decode).transpose()?));
        };
        let image = rows.get(Table::Before, &before_key(epoch, Table::Extent, &key))?;
        image.map(|image| decode_image(&image)?.map(ExtentRow::decode).transpose()).transpose()
    }

    /// Adds a row that has blocks which moved.
    pub(super) fn add(&mut self, place: MovedRow, row: ExtentRow) {
        let pieces = pieces(row, self.segments);
        self.changes.insert(place, Some(pieces[0].1));
        if pieces.len() > 1 {
            self.split.entry(place.ino).or_default().insert(place.at);
        }
    }

    /// Returns the changes.
    pub(super) fn finish(mut self) -> Result<Vec<RowChange>> {
        for (ino, at) in std::mem::take(&mut self.split) {
            self.split_rows(ino, &at)?;
        }
        let changes = self.changes.into_iter().map(|(place, row)| {
            let key = extent_key(place.ino, place.at);
            let row = row.map(ExtentRow::encode);
            match (place.epoch, row) {
                (Some(epoch), row) => put_image(epoch, Table::Extent, &key, row.as_deref()),
                (None, Some(row)) => RowChange::put(Table::Extent, key, row),
                (None, None) => RowChange::delete(Table::Extent, key),
            }
        });
        Ok(changes.collect())
    }

    fn shown(&self, ino: InodeNo, at: FileBlock) -> Result<Shown> {
        let kept = |epoch| Self::kept(self.rows, MovedRow { epoch, ino, at });
        let live = kept(None)?.flatten();
        let mut views = vec![(live, true)];
        let mut below = live;
        for (epoch, checkpoint) in
            self.epochs.iter().zip(self.rows.checkpoint_set.checkpoints.iter().rev())
        {
            match kept(Some(*epoch))? {
                Some(own) => {
                    below = own;
                    views.push((own, true));
                }
                None if checkpoint.holds(ino) => views.push((below, false)),
                None => views.push((None, false)),
            }
        }
        Ok(Shown { views })
    }

    /// Gives further pieces of a file's rows keys of their own, in all views.
    fn split_rows(&mut self, ino: InodeNo, rows: &BTreeSet<FileBlock>) -> Result<()> {
        // What each view is to show under each new key.
        let mut new: BTreeMap<FileBlock, BTreeMap<usize, ExtentRow>> = BTreeMap::new();
        for at in rows {
            for (view, (row, _)) in self.shown(ino, *at)?.views.into_iter().enumerate() {
                for (skip, piece) in
                    row.into_iter().flat_map(|row| pieces(row, self.segments).into_iter().skip(1))
                {
                    let key = FileBlock(at.0 + u64::from(skip));
                    if new.entry(key).or_default().insert(view, piece).is_some() {
                        return Err(overlap(ino, key));
                    }
                }
            }
        }
        for (at, pieces) in new {
            self.show(ino, at, &pieces)?;
        }
        Ok(())
    }

    /// Has each view show its piece under a key, and the others what they showed.
    fn show(
        &mut self,
        ino: InodeNo,
        at: FileBlock,
        new: &BTreeMap<usize, ExtentRow>,
    ) -> Result<()> {
        let mut below = None;
        for (view, (before, kept)) in self.shown(ino, at)?.views.into_iter().enumerate() {
            let wanted = match (new.get(&view), before) {
                (Some(_), Some(_)) => return Err(overlap(ino, at)),
                (Some(piece), None) => Some(*piece),
                (None, before) => before.map(|row| pieces(row, self.segments)[0].1),
            };
            let Some(index) = view.checked_sub(1) else {
                if wanted.is_some() || before.is_some() {
                    self.changes.insert(MovedRow { epoch: None, ino, at }, wanted);
                }
                below = wanted;
                continue;
            };
            let epoch = self.epochs[index];
            let holds = self.rows.checkpoint_set.checkpoints[self.epochs.len() - view].holds(ino);
            if !kept && !holds {
                continue;
            }
            if kept || wanted != below {
                self.changes.insert(MovedRow { epoch: Some(epoch), ino, at }, wanted);
            }
            below = wanted;
        }
        Ok(())
    }
}

fn overlap(ino: InodeNo, at: FileBlock) -> Error {
    Error::corrupt(format!(
        "the extent of inode {} at file block {} overlaps another; run a check",
        ino.0, at.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_store::ExtentState;

    #[test]
    fn a_row_becomes_the_pieces_that_stay_and_go() {
        let row = |start, len| ExtentRow {
            start: BlockNo(start),
            len,
            state: ExtentState::Written,
            birth: Epoch(3),
        };
        let segment = |from, blocks, to| Segment {
            from: Run { start: BlockNo(from), blocks },
            to: BlockNo(to),
        };
        let segments = [segment(100, 10, 20), segment(110, 5, 40)];
        assert_eq!(pieces(row(102, 3), &segments), [(0, row(22, 3))]);
        assert_eq!(
            pieces(row(95, 30), &segments),
            [(0, row(95, 5)), (5, row(20, 10)), (15, row(40, 5)), (20, row(115, 10))]
        );
        assert_eq!(pieces(row(50, 50), &segments), [(0, row(50, 50))]);
        let joined = [segment(100, 10, 20), segment(110, 5, 30)];
        assert_eq!(pieces(row(100, 15), &joined), [(0, row(20, 15))]);
    }
}
