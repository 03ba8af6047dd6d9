//! Evacuation: blocks of a file that lie where they are not to lie move, a window at a time, while
//! the file is in use: before an end that the file system is to have, or to the members that the
//! file was placed on.
//!
//! As a step of defragmentation (`defrag.rs`), and for the same reasons. What checkpoints or other
//! files may need too is left alone: before an end it moves for all of them at once
//! (`shrink/shared.rs`), and of a file that was placed it moves where that is asked for.
//!
//! - I-PLC-3: what moves to the members that a file was placed on lies there afterwards, and a step
//!   goes on right behind it: no block is passed over.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::commit_map::{Change, SizeChange};
use super::fill::place;
use super::placed::{PlaceStep, outside};
use super::reservation::Fresh;
use super::{Alone, DataPath, write_inode};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{BlockNo, Error, ErrorKind, FileBlock, FileKind, Result};
use bedplate_store::{
    Exposure, Extent, ExtentMap, ExtentState, Mapped, Piece, PlantedBug, RecordKind, Run, planted,
};

/// How many pieces of a map one step looks at while it holds the locks.
const PIECES_MAX: usize = 1 << 16;
/// How much space without data moves by one record, in bytes.
const UNWRITTEN_BYTES_MAX: u64 = 64 << 20;

/// What one step did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evacuated {
    /// The file block at which the next step goes on; `None`: the end was reached.
    pub(crate) next: Option<u64>,
    /// Blocks that moved.
    pub(crate) blocks: u64,
}

/// Which blocks move.
#[derive(Clone, Copy)]
enum Away<'a> {
    /// What lies beyond an end.
    Beyond(BlockNo),
    /// What lies outside of these runs; `unshare`: also what others need, of which the file gets a
    /// copy.
    Outside { runs: &'a [Run], unshare: bool },
}

impl Away<'_> {
    /// The first part of a piece that moves, at `from` or behind it in the file.
    fn first_part(self, piece: Piece, from: u64) -> Option<Piece> {
        let mapped = piece.mapped?;
        match self {
            Self::Beyond(limit) => beyond(piece, mapped, limit, from),
            Self::Outside { runs, .. } => outside(piece, mapped, runs, from),
        }
    }

    /// The parts of a piece that move; one without blocks, where none does.
    fn parts(self, piece: Piece, from: u64) -> Vec<Option<Piece>> {
        let next = |part: &Piece| self.first_part(piece, part.file_block + part.blocks);
        let parts: Vec<_> =
            std::iter::successors(self.first_part(piece, from), next).map(Some).collect();
        if parts.is_empty() { vec![None] } else { parts }
    }
}

/// Pieces that follow each other in the file, all with data or all without.
#[derive(Default)]
struct Gathered {
    pieces: Vec<Piece>,
    /// Where to look on.
    next: Option<u64>,
}

impl Gathered {
    fn blocks(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.blocks).sum()
    }

    fn end(&self) -> Option<u64> {
        self.pieces.last().map(|last| last.file_block + last.blocks)
    }

    /// Takes a piece, as much of it as there is room for; returns whether there is room for more.
    fn take(&mut self, piece: Piece, blocks_max: u64) -> bool {
        let room = blocks_max - self.blocks();
        self.pieces.push(Piece { blocks: piece.blocks.min(room), ..piece });
        piece.blocks < room
    }

    /// Whether a window ends before a part: it does not follow, or is not of the same kind.
    fn ends_before(&self, part: Option<Piece>) -> bool {
        self.end().is_some_and(|end| {
            part.is_none_or(|part| {
                part.file_block != end || has_data(&part) != has_data(&self.pieces[0])
            })
        })
    }

    /// Leaves the second half to the next window.
    fn halve(&mut self) {
        let mut left = self.blocks() / 2;
        for piece in &mut self.pieces {
            piece.blocks = piece.blocks.min(left);
            left -= piece.blocks;
        }
        self.pieces.retain(|piece| piece.blocks > 0);
    }
}

fn has_data(piece: &Piece) -> bool {
    piece.mapped.is_some_and(|mapped| mapped.state.has_data())
}

impl Engine {
    /// Moves the next blocks of a file, from a file block on, that lie beyond an end and are of no
    /// other.
    pub(crate) fn evacuate(
        &self,
        inode: &Arc<Inode>,
        from: u64,
        limit: BlockNo,
    ) -> Result<Evacuated> {
        if inode.kind != FileKind::File {
            return Ok(Evacuated { next: None, blocks: 0 });
        }
        self.move_some(inode, |io, held| {
            let step = io.evacuate(held, from, limit)?;
            Ok((step, step.next.is_none()))
        })
    }

    /// Moves the next blocks of a file, at or after an offset in bytes, to the members that it was
    /// placed on.
    pub(crate) fn move_placed(
        &self,
        inode: &Arc<Inode>,
        from: u64,
        unshare: bool,
    ) -> Result<PlaceStep> {
        self.begin_change()?;
        self.need_live(inode.ino)?;
        if inode.kind != FileKind::File {
            let message = format!(
                "inode {} is not a regular file: only those have blocks that lie anywhere",
                inode.ino.0
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.move_some(inode, |io, held| {
            let step = io.move_placed(held, self.grid().block_of(from), unshare)?;
            Ok((step, step.next.is_none()))
        })
    }

    /// Does a step of a move of a file, with no dirty page of it and nothing else at work on it.
    fn move_some<T>(
        &self,
        inode: &Arc<Inode>,
        step: impl FnOnce(DataPath<'_>, &Alone<'_>) -> Result<(T, bool)>,
    ) -> Result<T> {
        let changing = self.change();
        let inode = &*self.pin(&changing, inode)?;
        let io = DataPath::new(self, inode);
        let _order = io.state().order.exclusive(self);
        write_inode(self, inode)?;
        let held = io.state().lock.exclusive(self);
        io.write_held_write(&held)?;
        let (done, is_last) = step(io, &held)?;
        if is_last && !inode.data.is_open() {
            self.drop_ahead(inode.ino);
        }
        Ok(done)
    }
}

impl DataPath<'_> {
    fn evacuate(self, held: &Alone<'_>, from: u64, limit: BlockNo) -> Result<Evacuated> {
        let found = self.gather(from, Away::Beyond(limit))?;
        let (Some(first), Some(end)) = (found.pieces.first().copied(), found.end()) else {
            return Ok(Evacuated { next: found.next, blocks: 0 });
        };
        let holes: Vec<Piece> =
            found.pieces.iter().map(|piece| Piece { mapped: None, ..*piece }).collect();
        let before = first.file_block.saturating_sub(1);
        let map = self.map(before..first.file_block + 1)?;
        let fresh = self.allocate_holes(map, &holes, true)?;
        debug_assert!(
            fresh.runs.iter().all(|run| run.end() <= limit.0),
            "I-SPC-8: what moves before block {} is put there: {:?}",
            limit.0,
            fresh.runs
        );
        self.move_gathered(held, &found, &holes, fresh)?;
        Ok(Evacuated { next: Some(end), blocks: found.blocks() })
    }

    fn move_placed(self, held: &Alone<'_>, from: u64, unshare: bool) -> Result<PlaceStep> {
        let grid = self.fs.grid();
        let done = |next: Option<u64>, blocks: u64, is_full: bool| PlaceStep {
            next: next.map(|block| grid.start_of(block)),
            moved_bytes: grid.start_of(blocks),
            is_full,
        };
        let Some(places) = self.places() else { return Ok(done(None, 0, false)) };
        let mut found = self.gather(from, Away::Outside { runs: &places.runs, unshare })?;
        let fresh = loop {
            let Some(first) = found.pieces.first() else {
                return Ok(done(found.next, 0, false));
            };
            match self.allocate_to_move(first.file_block, found.blocks(), &places.runs) {
                Err(error) if error.kind == ErrorKind::NoSpace && found.blocks() > 1 => {
                    found.halve();
                }
                Err(error) if error.kind == ErrorKind::NoSpace => return Ok(done(None, 0, true)),
                fresh => break fresh?,
            }
        };
        let moved = fresh.runs.clone();
        let holes: Vec<Piece> =
            found.pieces.iter().map(|piece| Piece { mapped: None, ..*piece }).collect();
        self.move_gathered(held, &found, &holes, fresh)?;
        let is_there = |run: &Run| {
            places.runs.iter().any(|part| part.start <= run.start && run.end() <= part.end())
        };
        assert!(
            moved.iter().all(is_there),
            "I-PLC-3: what moves to the members of a placement lies there: {moved:?}"
        );
        let skipped = u64::from(planted(PlantedBug::PlacedMoveSkipsBlock));
        Ok(done(found.end().map(|end| end + skipped), found.blocks(), false))
    }

    /// Moves what was gathered to new blocks, and maps these with one record.
    fn move_gathered(
        self,
        held: &Alone<'_>,
        found: &Gathered,
        holes: &[Piece],
        fresh: Fresh,
    ) -> Result<()> {
        if found.pieces.iter().all(has_data) {
            return self.move_pieces(held, &found.pieces, fresh);
        }
        let (Some(first), Some(end)) = (found.pieces.first(), found.end()) else { return Ok(()) };
        let targets = place(holes, &fresh.runs, self.fs.epoch());
        let max = u64::from(Extent::BLOCKS_MAX);
        let extents: Vec<(FileBlock, Extent)> = targets
            .iter()
            .map(|target| {
                debug_assert!(target.blocks <= max, "a window is one extent at most");
                let (start, blocks) = (target.start, target.blocks as u32);
                let state = ExtentState::Unwritten;
                let extent = Extent { start, blocks, state, birth: target.birth };
                (FileBlock(target.file_block), extent)
            })
            .collect();
        let change = Change { touches: false, ..Change::new(RecordKind::Remap, SizeChange::Keep) };
        self.publish_extents(first.file_block..end, &extents, change).map(drop)
    }

    /// Looks for blocks that move, from a file block on.
    fn gather(self, from: u64, away: Away<'_>) -> Result<Gathered> {
        let block = self.fs.grid().block;
        let (mut found, mut count) = (Gathered::default(), 0);
        let blocks_max = |piece: &Piece| {
            let bytes = if has_data(piece) { Exposure::BYTES_MAX } else { UNWRITTEN_BYTES_MAX };
            (bytes / block).max(1)
        };
        self.walk(from..u64::MAX, |map, stretch| {
            for (piece, is_shared) in self.pieces_to_move(map, stretch, away) {
                count += 1;
                if count > PIECES_MAX {
                    found.next = Some(piece.file_block);
                    return ControlFlow::Break(());
                }
                let parts = if is_shared { vec![None] } else { away.parts(piece, from) };
                for part in parts {
                    if found.ends_before(part)
                        || part.is_some_and(|part| !found.take(part, blocks_max(&part)))
                    {
                        return ControlFlow::Break(());
                    }
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// Returns the pieces of a range, each with whether it stays because others need it.
    fn pieces_to_move(
        self,
        map: &ExtentMap,
        blocks: Range<u64>,
        away: Away<'_>,
    ) -> Vec<(Piece, bool)> {
        match away {
            Away::Outside { unshare: false, .. } => self.pieces_by_sharing(map, blocks),
            Away::Outside { unshare: true, .. } => {
                map.pieces(blocks).map(|piece| (piece, false)).collect()
            }
            Away::Beyond(_) => {
                let (held, cloned) = self.cow_epochs();
                let of_others = held.max(cloned);
                let may_be =
                    |piece: &Piece| piece.mapped.is_some_and(|mapped| mapped.birth <= of_others);
                map.pieces(blocks).map(|piece| (piece, may_be(&piece))).collect()
            }
        }
    }
}

/// The part of a piece that lies beyond an end, and at `from` or behind it in the file.
fn beyond(piece: Piece, mapped: Mapped, limit: BlockNo, from: u64) -> Option<Piece> {
    let skip = limit.0.saturating_sub(mapped.start.0).max(from.saturating_sub(piece.file_block));
    (skip < piece.blocks).then(|| Piece {
        file_block: piece.file_block + skip,
        blocks: piece.blocks - skip,
        mapped: Some(Mapped { start: BlockNo(mapped.start.0 + skip), ..mapped }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epoch;

    #[test]
    fn only_what_lies_beyond_moves() {
        let mapped = Mapped { start: BlockNo(90), state: ExtentState::Written, birth: Epoch(1) };
        let piece = Piece { file_block: 5, blocks: 20, mapped: Some(mapped) };
        let part = |limit, from| {
            let part = beyond(piece, mapped, BlockNo(limit), from)?;
            Some((part.file_block, part.blocks, part.mapped?.start.0))
        };
        assert_eq!(part(80, 0), Some((5, 20, 90)));
        assert_eq!(part(100, 0), Some((15, 10, 100)));
        assert_eq!(part(100, 18), Some((18, 7, 103)));
        assert_eq!(part(110, 0), None);
    }
}
