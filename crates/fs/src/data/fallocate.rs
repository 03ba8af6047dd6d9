//! Changes of a file's allocation: preallocate, punch, zero, collapse, insert. All under the
//! exclusive inode lock.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::commit_map::{Change, SizeChange};
use super::fill::{Before, Target, place};
use super::reservation::hole_blocks;
use super::write::too_large;
use super::{Alone, DataPath};
use crate::{AllocateMode, Error, ErrorKind, FileBlock, Result};
use bedplate_cache::MapChange;
use bedplate_store::{Extent, ExtentMap, ExtentState, Grid, Piece, RecordKind};

/// Checks what can be refused before any lock is taken.
fn check(grid: &Grid, mode: AllocateMode, offset: u64, len: u64) -> Result<Range<u64>> {
    if len == 0 {
        return Err(Error::new(
            ErrorKind::Invalid,
            "a change of allocation needs a length of at least one byte",
        ));
    }
    let end = offset
        .checked_add(len)
        .filter(|end| *end <= Grid::FILE_BYTES_MAX)
        .ok_or_else(|| too_large(offset, len))?;
    let moves = matches!(mode, AllocateMode::CollapseRange | AllocateMode::InsertRange);
    if moves && !(grid.on_block(offset) && grid.on_block(len)) {
        let message = format!(
            "{len} bytes from byte {offset} cannot be cut out or put in: both must be multiples of \
             the block size {}",
            grid.block
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(offset..end)
}

/// The blocks wholly inside a byte range; blocks that reach beyond the end of the file count as
/// inside when the range covers the end.
pub(super) fn inner_blocks(grid: &Grid, bytes: &Range<u64>, size: u64) -> Range<u64> {
    debug_assert!(bytes.start <= bytes.end, "a range ends behind its start: {bytes:?}");
    let first = grid.block_after(bytes.start);
    let last =
        if bytes.end >= size { grid.block_after(bytes.end) } else { grid.block_of(bytes.end) };
    first..last.max(first)
}

/// The parts of a byte range before and behind its inner blocks, up to the end of the file.
pub(super) fn edges(
    grid: &Grid,
    bytes: &Range<u64>,
    inner: &Range<u64>,
    size: u64,
) -> [Range<u64>; 2] {
    let (start, end) = (bytes.start, bytes.end.min(size).max(bytes.start));
    if inner.is_empty() {
        return [start..end, end..end];
    }
    let head = grid.start_of(inner.start).min(end);
    let tail = grid.start_of(inner.end).min(end);
    debug_assert!(
        start <= head && head <= tail && tail <= end,
        "the edges of a range lie around its blocks: {start}..{head}, {tail}..{end}"
    );
    [start..head, tail..end]
}

/// The extents of targets that become unwritten; those with data only when `all` do.
fn unwritten(targets: &[Target], all: bool) -> Vec<(FileBlock, Extent)> {
    let state = |target: &Target| match target.was {
        Before::Written if !all => ExtentState::Written,
        Before::Summed if !all => ExtentState::Summed,
        _ => ExtentState::Unwritten,
    };
    let extents = |target: &Target| {
        target.extents(false).map({
            let state = state(target);
            move |(at, extent)| (at, Extent { state, ..extent })
        })
    };
    targets.iter().flat_map(extents).collect()
}

impl DataPath<'_> {
    /// Changes the allocation of a range.
    pub(crate) fn change_allocation(self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        let bytes = check(self.fs.grid(), mode, offset, len)?;
        let _order = self.state().order.exclusive(self.fs);
        let _change = self.announce(mode, &bytes)?;
        let held = self.state().lock.exclusive(self.fs);
        self.write_held_write(&held)?;
        self.allocate(&held, mode, bytes)
    }

    /// Prepares the cache: what is dirty reaches the device, so that the size that the log knows is
    /// the size, and what changes is forgotten.
    fn announce(self, mode: AllocateMode, bytes: &Range<u64>) -> Result<Option<MapChange>> {
        debug_assert!(bytes.start < bytes.end, "a change of allocation has bytes: {bytes:?}");
        let Some(cached) = self.cached_if_any() else { return Ok(None) };
        cached.write_dirty()?;
        let size = self.inode.size.load(Ordering::Acquire);
        let change = match mode {
            AllocateMode::Preallocate { keep_size } if keep_size || bytes.end <= size => {
                return Ok(None);
            }
            // Only the size changes, and it grows.
            AllocateMode::Preallocate { .. } => return Ok(Some(cached.begin_map_change(size, 1)?)),
            AllocateMode::PunchHole | AllocateMode::ZeroRange { .. } => {
                cached.begin_map_change(bytes.start, bytes.end - bytes.start)?
            }
            AllocateMode::CollapseRange | AllocateMode::InsertRange => {
                self.forget_reserved(&(0..u64::MAX));
                cached.begin_map_change(bytes.start, u64::MAX - bytes.start)?
            }
        };
        Ok(Some(change))
    }

    fn allocate(self, held: &Alone<'_>, mode: AllocateMode, bytes: Range<u64>) -> Result<()> {
        drop(self.map(0..0)?);
        match mode {
            AllocateMode::Preallocate { keep_size } => self.preallocate(held, &bytes, keep_size),
            AllocateMode::PunchHole => self.punch(held, &bytes),
            AllocateMode::ZeroRange { keep_size } => self.zero_range(held, &bytes, keep_size),
            AllocateMode::CollapseRange => self.collapse(held, &bytes),
            AllocateMode::InsertRange => self.insert(held, &bytes),
        }
    }

    /// Fills the holes of a range with unwritten blocks.
    fn preallocate(self, held: &Alone<'_>, bytes: &Range<u64>, keep_size: bool) -> Result<()> {
        self.fill_unwritten(held, self.fs.grid().blocks(bytes), bytes.end, keep_size, false)
    }

    /// Frees the blocks wholly inside a range and zeroes its edges.
    fn punch(self, held: &Alone<'_>, bytes: &Range<u64>) -> Result<()> {
        let grid = self.fs.grid();
        let size = self.state().logged_size();
        let inner = inner_blocks(grid, bytes, size);
        for edge in edges(grid, bytes, &inner, size) {
            self.zero_written(held, &edge)?;
        }
        let mut rest = inner;
        loop {
            let (from, remains) = self.tail(&rest)?;
            debug_assert!(
                rest.start <= from && from <= rest.end,
                "a part of a hole lies in it: {from} in {rest:?}"
            );
            self.forget_reserved(&(from..rest.end));
            let change = Change::new(RecordKind::Punch, SizeChange::Keep);
            self.commit_map(change, from..rest.end, |map| map.plan_remove(from..rest.end))?;
            if !remains {
                return Ok(());
            }
            rest.end = from;
            self.fs.limits().between_records("punch");
            self.fs.begin_removal()?;
        }
    }

    /// Makes a range read as zeros and keeps it allocated.
    fn zero_range(self, held: &Alone<'_>, bytes: &Range<u64>, keep_size: bool) -> Result<()> {
        let grid = self.fs.grid();
        let size = self.state().logged_size();
        let inner = inner_blocks(grid, bytes, size);
        for edge in edges(grid, bytes, &inner, size) {
            self.zero_written(held, &edge)?;
        }
        self.fill_unwritten(held, grid.blocks(bytes), bytes.end, keep_size, false)?;
        self.fill_unwritten(held, inner, bytes.end, true, true)
    }

    /// Allocates the holes of `blocks`; with `all` what is written there becomes unwritten too.
    /// Grows the file to `end` unless told not to.
    fn fill_unwritten(
        self,
        held: &Alone<'_>,
        blocks: Range<u64>,
        end: u64,
        keep_size: bool,
        all: bool,
    ) -> Result<()> {
        let grows = !keep_size && end > self.state().logged_size();
        if grows {
            // Before the plan is made: it would put the shared block back, whose tail must not be
            // zeroed.
            self.unshare_tail(held, end)?;
        }
        let map = self.map(ExtentMap::around(&blocks))?;
        let pieces: Vec<Piece> = map.pieces(blocks.clone()).collect();
        let holes = hole_blocks(&pieces);
        if blocks.is_empty() || (holes == 0 && !grows && !all) {
            return Ok(());
        }
        let fresh = self.allocate_holes(map, &pieces, false)?;
        let extents = unwritten(&place(&pieces, &fresh.runs, self.fs.epoch()), all);
        let (size, end) =
            if grows { (SizeChange::AtLeast(end), end) } else { (SizeChange::Keep, 0) };
        let exposing = match self.zero_tail(held, end) {
            Ok(exposing) => exposing,
            Err(error) => {
                self.give_back(fresh);
                return Err(error);
            }
        };
        let change = Change {
            touches: grows || all,
            ..Change::new(RecordKind::Allocate, size).exposing(exposing)
        };
        let lsn = self.publish_extents(blocks, &extents, change)?;
        if all && pieces.iter().any(Piece::is_summed) {
            // The next write goes to these very blocks: a crash must not find them summed.
            self.fs.seal_to(lsn)?;
        }
        Ok(())
    }

    /// Cuts a range out of the file. Durable before the next write: an overwrite in place, through
    /// the new map, of blocks that a crash would still find under their old offset would show bytes
    /// where they were not written (S-9).
    fn collapse(self, _held: &Alone<'_>, bytes: &Range<u64>) -> Result<()> {
        let size = self.state().logged_size();
        if bytes.end >= size {
            let message = format!(
                "a range that ends at byte {} cannot be cut out of a file of {size} bytes: \
                 truncate it instead",
                bytes.end
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let blocks = self.fs.grid().blocks(bytes);
        let change =
            Change::new(RecordKind::Remap, SizeChange::Set(size - (bytes.end - bytes.start)));
        self.fs.drop_ahead(self.inode.ino);
        let lsn =
            self.commit_map(change, blocks.start..u64::MAX, |map| map.plan_collapse(blocks))?;
        self.fs.sync_to(lsn)
    }

    /// Puts a hole into the file. Durable before the next write, as [`collapse`](Self::collapse).
    fn insert(self, _held: &Alone<'_>, bytes: &Range<u64>) -> Result<()> {
        let size = self.state().logged_size();
        let len = bytes.end - bytes.start;
        if bytes.start >= size {
            let message = format!(
                "a hole cannot be put in at byte {} of a file of {size} bytes: extend it instead",
                bytes.start
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let grid = self.fs.grid();
        let at = grid.block_of(bytes.start);
        let end = self.map(at..u64::MAX)?.end();
        if end.saturating_mul(grid.block).max(size) > Grid::FILE_BYTES_MAX - len {
            return Err(too_large(size, len));
        }
        let change = Change::new(RecordKind::Remap, SizeChange::Set(size + len));
        self.fs.drop_ahead(self.inode.ino);
        let lsn =
            self.commit_map(change, at..u64::MAX, |map| map.plan_insert(at, grid.block_of(len)))?;
        self.fs.sync_to(lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        Grid::new(4096, 512, 1)
    }

    #[test]
    fn a_range_is_its_inner_blocks_and_two_edges() {
        let inner = |bytes: Range<u64>, size| {
            let inner = inner_blocks(&grid(), &bytes, size);
            (inner.clone(), edges(&grid(), &bytes, &inner, size))
        };
        assert_eq!(inner(100..10_000, 50_000), (1..2, [100..4096, 8192..10_000]));
        assert_eq!(inner(100..200, 50_000), (1..1, [100..200, 200..200]));
        assert_eq!(inner(4096..8192, 50_000), (1..2, [4096..4096, 8192..8192]));
        assert_eq!(
            inner(100..10_000, 9000),
            (1..3, [100..4096, 9000..9000]),
            "covers the end of the file"
        );
        assert_eq!(
            inner(10_000..20_000, 9000),
            (3..5, [10_000..10_000, 10_000..10_000]),
            "beyond the end"
        );
        assert_eq!(inner(100..200, 150), (1..1, [100..150, 150..150]));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let kind =
            |mode, offset, len| check(&grid(), mode, offset, len).map_err(|error| error.kind);
        assert_eq!(kind(AllocateMode::PunchHole, 5, 0), Err(ErrorKind::Invalid));
        assert_eq!(kind(AllocateMode::PunchHole, u64::MAX, 2), Err(ErrorKind::TooLarge));
        assert_eq!(kind(AllocateMode::CollapseRange, 4096, 100), Err(ErrorKind::Invalid));
        assert_eq!(kind(AllocateMode::InsertRange, 100, 4096), Err(ErrorKind::Invalid));
        assert_eq!(kind(AllocateMode::CollapseRange, 4096, 8192), Ok(4096..12288));
    }
}
