//! Sharing a range of one file with another: the copy of whole blocks is a record, and no data
//! moves.
//!
//! ```text
//!   source  |aaaa|bbbb| hole |cccc|          target  |xxxx|yyyy|zzzz|
//!               └────┬────────┘                          └───┬──┘
//!                    └── the same blocks, by reference ──────┘    xxxx stays, yyyy and zzzz become free
//!
//!   same place in a block, one family, target in no checkpoint ─► record with a barrier
//!   anything else ─► to be copied
//! ```
//!
//! What holds of clones holds of the two files from then on: both write what they share to new
//! blocks (`data/cow.rs`), and blocks become free with the last row that covers them (I-CKP-2). The
//! target joins the family of the source (I-CKP-6).
//!
//! - I-CPY-1: no file has a block twice. What the target has elsewhere, because it got it from the
//!   source or gave it to that, is copied.
//! - I-CPY-2: the record comes to be durable after what was written in place of the source before:
//!   a crash shows no older bytes in the target than it got.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use super::commit_map::{Change, Shares, SizeChange};
use super::write::too_large;
use super::{Alone, DataPath};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Epoch, FileBlock, InodeNo, Result};
use bedplate_cache::MapChange;
use bedplate_store::{Extent, Grid, Mapped, Piece, PlantedBug, RecordKind, Run, planted};

/// How many pieces of a target are looked at for blocks that it has already; in one with more,
/// bytes are copied.
const PIECES_MAX: usize = 100_000;

/// What became of a range, or of its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShareStep {
    /// So many bytes are the target's now; 0 at the end of the source.
    Shared(u64),
    /// Nothing changed; so many bytes are to be copied before anything may be shared.
    Copy(u64),
}

/// A range of the source, and where it goes.
#[derive(Clone, Copy)]
struct Pair<'a> {
    fs: &'a Engine,
    source: DataPath<'a>,
    target: DataPath<'a>,
    /// Where the range begins in the source, in bytes.
    from: u64,
    /// Where it begins in the target, in bytes.
    to: u64,
}

/// What one record shares, from the beginning of a range on.
struct Gathered {
    /// File blocks, counted from the beginning of the range.
    blocks: u64,
    /// What has data of them, by file block of the target.
    extents: Vec<(FileBlock, Extent)>,
    /// How many blocks behind them have to be copied.
    to_copy: u64,
}

/// Shares the beginning of a range of the source with the target, as much as one record holds. Both
/// are open, and no lock is held.
pub(crate) fn share_range(
    fs: &Engine,
    (source, from): (&Arc<Inode>, u64),
    (target, to): (&Arc<Inode>, u64),
    len: u64,
) -> Result<ShareStep> {
    let pair =
        Pair { fs, source: DataPath::new(fs, source), target: DataPath::new(fs, target), from, to };
    if let Some(bytes) = pair.copied_first(len) {
        return Ok(ShareStep::Copy(bytes));
    }
    if to.checked_add(len).is_none_or(|end| end > Grid::FILE_BYTES_MAX) {
        return Err(too_large(to, len));
    }
    pair.source.take_overwrites()?;
    pair.target.take_overwrites()?;
    let _changing = fs.change();
    let source_first = source.ino < target.ino;
    let (first, second) =
        if source_first { (pair.source, pair.target) } else { (pair.target, pair.source) };
    let _orders = (first.state().order.exclusive(fs), second.state().order.exclusive(fs));
    let _change = pair.announce(len)?;
    let locks = (first.state().lock.exclusive(fs), second.state().lock.exclusive(fs));
    let (held_source, held) =
        if source_first { (&locks.0, &locks.1) } else { (&locks.1, &locks.0) };
    pair.source.write_held_write(held_source)?;
    pair.target.write_held_write(held)?;
    // Processes with a lease of the target read the device.
    fs.write_homes()?;
    pair.share(held, len)
}

impl Pair<'_> {
    /// Returns how many bytes are to be copied at first, as far as that can be told without a lock.
    fn copied_first(&self, len: u64) -> Option<u64> {
        let grid = self.fs.grid();
        let same_place = grid.in_block(self.from) == grid.in_block(self.to);
        let (source, target) = (self.source.inode.ino, self.target.inode.ino);
        if !same_place || source == target || self.fs.is_past(source) || !self.may_join() {
            return Some(len);
        }
        let head = grid.start_of(grid.block_after(self.from)) - self.from;
        if head > 0 {
            return Some(head.min(len));
        }
        (len < grid.block && self.from + len < self.source.inode.seen_size()).then_some(len)
    }

    /// The family of the source, and whether the target is of it or may join it: it has nothing in
    /// common with other files, and no checkpoint has it as it was.
    fn family(&self) -> (InodeNo, bool) {
        let (source, target) = (self.source.inode, self.target.inode);
        let family = source.attr_lock().row.family(source.ino);
        let (theirs, parent) = {
            let attr = target.attr_lock();
            (attr.row.family(target.ino), attr.row.parent)
        };
        let is_alone = || {
            let cloned =
                self.fs.reading(|rows| Ok(rows.checkpoint_set.cloned.contains(&target.ino)));
            parent == InodeNo(0) && !cloned.expect("nothing is read from the device")
        };
        (family, theirs == family || is_alone())
    }

    fn may_join(&self) -> bool {
        self.target.cow_epochs().0 == Epoch(0) && self.family().1
    }

    /// Prepares the caches: what is dirty reaches the device, and what changes is forgotten. The
    /// order locks keep more from becoming dirty.
    fn announce(&self, len: u64) -> Result<Option<MapChange>> {
        if let Some(cached) = self.source.cached_if_any() {
            cached.write_dirty()?;
        }
        let Some(cached) = self.target.cached_if_any() else { return Ok(None) };
        cached.write_dirty()?;
        let size = self.target.inode.seen_size();
        let first = self.to.min(size);
        cached.begin_map_change(first, self.to + len - first).map(Some)
    }

    /// Shares, with all locks held.
    fn share(&self, held: &Alone<'_>, len: u64) -> Result<ShareStep> {
        let grid = self.fs.grid();
        // The sizes come with the maps.
        drop(self.source.map(0..0)?);
        drop(self.target.map(0..0)?);
        let source_size = self.source.state().logged_size();
        let size = self.target.state().logged_size();
        let len = len.min(source_size.saturating_sub(self.from));
        // What lies behind the end of both is zeroed before either grows over it.
        let ends = self.from + len == source_size && self.to + len >= size;
        let blocks = if ends { len.div_ceil(grid.block) } else { len / grid.block };
        if len == 0 {
            return Ok(ShareStep::Shared(0));
        }
        if blocks == 0 || !self.may_join() {
            return Ok(ShareStep::Copy(len));
        }
        let gathered = self.gather(blocks)?;
        if gathered.blocks == 0 {
            return Ok(ShareStep::Copy(len.min(grid.start_of(gathered.to_copy))));
        }
        let bytes = len.min(grid.start_of(gathered.blocks));
        if self.has_already(&gathered)? {
            return Ok(ShareStep::Copy(bytes));
        }
        self.publish(held, &gathered, self.to + bytes)?;
        Ok(ShareStep::Shared(bytes))
    }

    /// Finds what one record shares of so many blocks.
    fn gather(&self, blocks: u64) -> Result<Gathered> {
        let grid = self.fs.grid();
        let (first, at) = (grid.block_of(self.from), grid.block_of(self.to));
        let extents_max = self.fs.limits().extents_per_record;
        let needs_sums = self.target.gives_sums();
        let mut found = Gathered { blocks: 0, extents: Vec::new(), to_copy: 0 };
        self.source.walk(first..first + blocks, |map, stretch| {
            for piece in map.pieces(stretch) {
                let data = piece.mapped.filter(|mapped| mapped.state.has_data());
                if data.is_some() && needs_sums && !piece.is_summed() {
                    found.to_copy = piece.blocks;
                    return ControlFlow::Break(());
                }
                if let Some(Mapped { start, state, birth }) = data {
                    if found.extents.len() == extents_max {
                        return ControlFlow::Break(());
                    }
                    let blocks = u32::try_from(piece.blocks).expect("a part of an extent");
                    let extent = Extent { start, blocks, state, birth };
                    found.extents.push((FileBlock(at + (piece.file_block - first)), extent));
                }
                found.blocks = piece.file_block + piece.blocks - first;
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// Returns whether the target has some of the blocks elsewhere, or has so many extents that it
    /// is not looked (I-CPY-1).
    fn has_already(&self, gathered: &Gathered) -> Result<bool> {
        let mut runs: Vec<Run> = Vec::new();
        self.fs.reading(|rows| {
            for (_, Extent { start, blocks, .. }) in &gathered.extents {
                let run = Run { start: *start, blocks: u64::from(*blocks) };
                // What one row has, the source's, the target has not.
                let shared = rows.checkpoint_set.block_refs.covering(run).into_iter();
                runs.extend(shared.map(|(run, _)| run));
            }
            Ok(())
        })?;
        if runs.is_empty() || planted(PlantedBug::BlockHadTwice) {
            return Ok(false);
        }
        runs.sort_unstable();
        let at = self.fs.grid().block_of(self.to);
        let replaced = at..at + gathered.blocks;
        let mut count = 0;
        let met = self.target.walk(0..u64::MAX, |map, stretch| {
            for piece in map.pieces(stretch) {
                count += 1;
                if count > PIECES_MAX || outside(piece, &replaced).any(|run| meets(&runs, run)) {
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(met.is_some())
    }

    /// Gives the target what was gathered, up to a byte of it, in one record.
    fn publish(&self, held: &Alone<'_>, gathered: &Gathered, end: u64) -> Result<()> {
        let size = self.target.state().logged_size();
        if self.to > size {
            // Zeros behind the old end, which are the file's with its new size.
            self.target.zero_tail(held, self.to)?;
        }
        let grows = if end > size { SizeChange::AtLeast(end) } else { SizeChange::Keep };
        let shares = Shares { source: self.source.inode.ino, family: self.family().0 };
        let change = Change { shares: Some(shares), ..Change::new(RecordKind::Remap, grows) };
        let at = self.fs.grid().block_of(self.to);
        self.target.publish_extents(at..at + gathered.blocks, &gathered.extents, change)?;
        // Before either may be written: what was found to be a file's own may be no more.
        if !planted(PlantedBug::RangeWrittenInPlace) {
            self.fs.epochs_changed();
        }
        Ok(())
    }
}

/// The blocks of the volume that a piece has outside of a range of file blocks.
fn outside(piece: Piece, range: &Range<u64>) -> impl Iterator<Item = Run> {
    let (first, end) = (piece.file_block, piece.file_block + piece.blocks);
    let parts = [first..end.min(range.start), first.max(range.end)..end];
    let start = piece.mapped.map(|mapped| mapped.start);
    parts.into_iter().filter(|part| part.start < part.end).filter_map(move |part| {
        let start = crate::BlockNo(start?.0 + (part.start - first));
        Some(Run { start, blocks: part.end - part.start })
    })
}

/// Returns whether a run has a block in common with one of others, which stand in order and do not
/// overlap.
fn meets(runs: &[Run], run: Run) -> bool {
    let next = runs.partition_point(|other| other.end() <= run.start.0);
    runs.get(next).is_some_and(|other| other.start.0 < run.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockNo;
    use bedplate_store::ExtentState;

    fn run(start: u64, blocks: u64) -> Run {
        Run { start: BlockNo(start), blocks }
    }

    #[test]
    fn i_cpy_1_what_a_file_has_outside_of_a_range_is_found() {
        let mapped = Mapped { start: BlockNo(100), state: ExtentState::Written, birth: Epoch(1) };
        let piece = Piece { file_block: 10, blocks: 10, mapped: Some(mapped) };
        let found = |range: Range<u64>| outside(piece, &range).collect::<Vec<_>>();
        assert_eq!(found(0..5), [run(100, 10)]);
        assert_eq!(found(12..14), [run(100, 2), run(104, 6)]);
        assert_eq!(found(5..15), [run(105, 5)]);
        assert!(found(10..20).is_empty());
        assert_eq!(outside(Piece { mapped: None, ..piece }, &(0..5)).count(), 0);
        let runs = [run(50, 10), run(100, 5), run(105, 1)];
        for (asked, is) in [
            (run(40, 10), false),
            (run(40, 11), true),
            (run(59, 1), true),
            (run(60, 40), false),
            (run(60, 41), true),
            (run(105, 9), true),
            (run(106, 9), false),
        ] {
            assert_eq!(meets(&runs, asked), is, "{asked:?}");
        }
    }
}
