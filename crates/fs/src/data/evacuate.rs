//! Evacuation: blocks of a file beyond an end that the file system is to have move before it, a
//! window at a time, while the file is in use.
//!
//! As a step of defragmentation (`defrag.rs`), and for the same reasons. What checkpoints or other
//! files may need too is left alone: it moves for all of them at once (`shrink/shared.rs`).

use std::ops::ControlFlow;
use std::sync::Arc;

use super::commit_map::{Change, SizeChange};
use super::fill::place;
use super::{Alone, DataPath, write_inode};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{BlockNo, FileBlock, FileKind, Result};
use bedplate_store::{Exposure, Extent, ExtentState, Mapped, Piece, RecordKind};

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
        let changing = self.change();
        let inode = &*self.pin(&changing, inode)?;
        let io = DataPath::new(self, inode);
        let _order = io.state().order.exclusive(self);
        write_inode(self, inode)?;
        let held = io.state().lock.exclusive(self);
        io.write_held_write(&held)?;
        let step = io.evacuate(&held, from, limit)?;
        if step.next.is_none() && !inode.data.is_open() {
            self.drop_ahead(inode.ino);
        }
        Ok(step)
    }
}

impl DataPath<'_> {
    fn evacuate(self, held: &Alone<'_>, from: u64, limit: BlockNo) -> Result<Evacuated> {
        let found = self.gather_beyond(from, limit)?;
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
        if has_data(&first) {
            self.move_pieces(held, &found.pieces, fresh)?;
        } else {
            let targets = place(&holes, &fresh.runs, self.fs.epoch());
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
            let change =
                Change { touches: false, ..Change::new(RecordKind::Remap, SizeChange::Keep) };
            self.publish_extents(first.file_block..end, &extents, change)?;
        }
        Ok(Evacuated { next: Some(end), blocks: found.blocks() })
    }

    /// Looks for blocks beyond an end that this file alone has.
    fn gather_beyond(self, from: u64, limit: BlockNo) -> Result<Gathered> {
        let block = self.fs.grid().block;
        let (held, cloned) = self.cow_epochs();
        let of_others = held.max(cloned);
        let (mut found, mut count) = (Gathered::default(), 0);
        let blocks_max = |piece: &Piece| {
            let bytes = if has_data(piece) { Exposure::BYTES_MAX } else { UNWRITTEN_BYTES_MAX };
            (bytes / block).max(1)
        };
        self.walk(from..u64::MAX, |map, stretch| {
            for piece in map.pieces(stretch) {
                count += 1;
                if count > PIECES_MAX {
                    found.next = Some(piece.file_block);
                    return ControlFlow::Break(());
                }
                let piece = piece.mapped.and_then(|mapped| beyond(piece, mapped, limit, from));
                let own = piece
                    .filter(|piece| piece.mapped.is_some_and(|mapped| mapped.birth > of_others));
                let ends = found.end().is_some_and(|end| {
                    own.is_none_or(|own| {
                        own.file_block != end || has_data(&own) != has_data(&found.pieces[0])
                    })
                });
                if ends || own.is_some_and(|own| !found.take(own, blocks_max(&own))) {
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
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
