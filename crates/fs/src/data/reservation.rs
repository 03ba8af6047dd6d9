//! Blocks for file data: allocated now, or reserved for data that is still in the library cache.

use std::ops::Range;

use super::DataPath;
use crate::engine::Engine;
use crate::{BlockNo, Error, ErrorKind, Result};
use bedplate_store::{AllocRequest, Elsewhere, ExtentMap, Piece, Run, SpaceClass};

/// What is kept ahead of a growing file doubles with it, between these bounds, in bytes.
const AHEAD_BYTES_MIN: u64 = 64 << 10;
const _: () = assert!(
    AHEAD_BYTES_MIN <= AHEAD_BYTES_MAX && AHEAD_BYTES_MIN.is_power_of_two(),
    "the bounds of what is kept ahead are in order"
);

const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a file whose small allocations come from one place on the volume.
const PART_BYTES: u64 = 1 << 20;

pub(super) fn count(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Returns how many blocks the holes among the pieces have.
pub(super) fn hole_blocks(pieces: &[Piece]) -> u64 {
    pieces.iter().filter(|piece| piece.mapped.is_none()).map(|piece| piece.blocks).sum()
}

/// Where blocks from a file block on would continue what the file has.
fn goal_at(map: &ExtentMap, at: u64) -> Option<BlockNo> {
    map.before(at).map(|(first, extent)| BlockNo(extent.start.0 + (at - first.0)))
}

/// Blocks that were allocated for holes and that no record names yet.
#[must_use]
pub(super) struct Fresh {
    pub(super) runs: Vec<Run>,
    /// The file blocks for which they had been reserved.
    reserved: Vec<Range<u64>>,
}

impl DataPath<'_> {
    /// Allocates blocks for all holes among the pieces of the locked map, so that they continue
    /// what the file has, as far as the blocks before them are in memory; an extension keeps some more ahead, and so does whatever a file that
    /// wants its extents large allocates.
    pub(super) fn allocate_holes(
        self,
        map: impl std::ops::Deref<Target = ExtentMap>,
        pieces: &[Piece],
        extends: bool,
    ) -> Result<Fresh> {
        let blocks = hole_blocks(pieces);
        let Some(first) = pieces.iter().find(|piece| piece.mapped.is_none()) else {
            return Ok(Fresh { runs: Vec::new(), reserved: Vec::new() });
        };
        let at = first.file_block;
        let (goal, growth) = (goal_at(&map, at), self.growth(&map, blocks));
        drop(map);
        let wanted = self.extent_blocks();
        let ahead = if extends { growth } else { 0 }.max(wanted.saturating_sub(blocks));
        let reserved = self.take_reserved(pieces);
        let ahead = (extends || wanted > 0).then_some((self.inode.ino, ahead));
        debug_assert!(
            count(&reserved) <= blocks,
            "I-SPC-5: no more was reserved for these holes than they have blocks"
        );
        let want = AllocRequest {
            goal,
            blocks,
            ahead,
            class: SpaceClass::Data,
            reserved: count(&reserved),
            part: Some((self.inode.ino.0 << 32) ^ (self.fs.grid().start_of(at) / PART_BYTES)),
        };
        match self.allocate_placed(want) {
            Ok(runs) => Ok(Fresh { runs, reserved }),
            Err(error) => {
                self.put_back(reserved);
                Err(error)
            }
        }
    }

    /// Allocates blocks for a window of a move that begins at a file block, in certain parts of the
    /// volume or not at all, and keeps room behind them for the next window.
    pub(super) fn allocate_to_move(self, at: u64, blocks: u64, ranges: &[Run]) -> Result<Fresh> {
        let map = self.map(at.saturating_sub(1)..at + 1)?;
        let (goal, growth) = (goal_at(&map, at), self.growth(&map, blocks));
        drop(map);
        let ahead = Some((self.inode.ino, growth));
        let want =
            AllocRequest { goal, blocks, ahead, class: SpaceClass::Data, reserved: 0, part: None };
        let placed = self.fs.with_freed_blocks(blocks, || {
            self.fs.allocate_within(want, ranges, Elsewhere::Refused)
        })?;
        Ok(Fresh { runs: placed.runs, reserved: Vec::new() })
    }

    /// How many blocks are kept ahead of a file that grows by some.
    fn growth(self, map: &ExtentMap, blocks: u64) -> u64 {
        let block = u64::from(self.fs.block_size());
        (map.blocks() + blocks).clamp(AHEAD_BYTES_MIN / block, AHEAD_BYTES_MAX / block)
    }

    /// Gives back blocks whose data did not reach them.
    pub(super) fn give_back(self, fresh: Fresh) {
        self.fs.free_unused(&fresh.runs, count(&fresh.reserved));
        self.put_back(fresh.reserved);
    }

    fn take_reserved(self, pieces: &[Piece]) -> Vec<Range<u64>> {
        let mut set = self.state().reserved.lock();
        if set.is_empty() {
            return Vec::new();
        }
        let holes = pieces.iter().filter(|piece| piece.mapped.is_none());
        holes
            .flat_map(|piece| set.remove(&(piece.file_block..piece.file_block + piece.blocks)))
            .collect()
    }

    fn put_back(self, reserved: Vec<Range<u64>>) {
        let mut set = self.state().reserved.lock();
        reserved.into_iter().for_each(|range| set.insert(range));
    }

    /// Makes sure that the holes of a byte range will find blocks when their data comes.
    pub(super) fn reserve_blocks(self, bytes: &Range<u64>) -> Result<()> {
        let _held = self.state().lock.shared(self.fs);
        self.reserve_under_lock(bytes)
    }

    /// As [`reserve_blocks`](Self::reserve_blocks), with the inode lock held.
    pub(super) fn reserve_under_lock(self, bytes: &Range<u64>) -> Result<()> {
        let blocks = self.fs.grid().blocks(bytes);
        let map = self.map(self.with_end(&blocks, bytes.end))?;
        let mut set = self.state().reserved.lock();
        let (pieces, _) = self.pieces_to_write(&map, blocks);
        let tail = self.shared_tail(&map, bytes);
        let holes = pieces
            .iter()
            .filter(|piece| piece.mapped.is_none())
            .map(|hole| hole.file_block..hole.file_block + hole.blocks);
        let missing: Vec<Range<u64>> =
            holes.chain(tail).flat_map(|hole| set.missing(hole)).collect();
        let blocks = count(&missing);
        debug_assert!(
            missing.iter().all(|range| range.start < range.end),
            "I-SPC-5: what is reserved is some: {missing:?}"
        );
        if blocks > 0 {
            self.fs.with_freed_blocks(blocks, || self.fs.reserve_blocks(blocks))?;
            missing.into_iter().for_each(|range| set.insert(range));
        }
        Ok(())
    }

    /// The block in which the file ends, where a write behind it moves the end and must zero what
    /// follows in the block, but another row needs it as it is.
    fn shared_tail(self, map: &ExtentMap, bytes: &Range<u64>) -> Option<Range<u64>> {
        let (grid, logged) = (self.fs.grid(), self.state().logged_size());
        let tail = grid.block_of(logged);
        if bytes.end <= logged || grid.on_block(logged) || tail >= grid.block_of(bytes.start) {
            return None;
        }
        let is_written = map.pieces(tail..tail + 1).all(|piece| piece.written().is_some());
        (is_written && self.pieces_to_change(map, tail..tail + 1).1).then_some(tail..tail + 1)
    }

    /// Takes back what was reserved for file blocks that have their blocks now, or whose data is
    /// gone.
    pub(super) fn forget_reserved(self, blocks: &Range<u64>) {
        let mut set = self.state().reserved.lock();
        if !set.is_empty() {
            self.fs.release_reserved(count(&set.remove(blocks)));
        }
    }
}

impl Engine {
    /// Takes `blocks` from the free space; on a full volume first lets go of what a record freed
    /// that needs sealing.
    pub(crate) fn with_freed_blocks<T>(
        &self,
        blocks: u64,
        take: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let is_worth = |error: &Error| error.kind == ErrorKind::NoSpace && self.would_fit(blocks);
        let mut refused = match take() {
            Err(error) if is_worth(&error) => error,
            other => return other,
        };
        // What is sealed already needs no flush.
        if self.release_sealed() {
            refused = match take() {
                Err(error) if is_worth(&error) => error,
                other => return other,
            };
        }
        let Some(lsn) = self.release_waits_for() else { return Err(refused) };
        self.seal_to(lsn)?;
        self.release_sealed();
        take()
    }
}
