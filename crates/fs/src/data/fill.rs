//! Filling whole blocks of holes and unwritten extents under the shared inode lock.

use std::ops::Range;

use super::commit_map::{Change, Mark, SizeChange};
use super::exposure::Exposing;
use super::reservation::Fresh;
use super::write::Payload;
use super::{DataPath, Held};
use crate::lock::Sharing;
use crate::{BlockNo, Epoch, FileBlock, Reason, Result};
use bedplate_store::{
    Extent, ExtentMap, ExtentState, Grid, Mapped, Piece, RecordKind, Run, within,
};

/// Where a part of a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) file_block: u64,
    pub(super) blocks: u64,
    pub(super) start: BlockNo,
    pub(super) birth: Epoch,
    /// What the blocks were before.
    pub(super) was: Before,
}

/// What blocks were before a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// Part of the file, with data.
    Written,
    /// Part of the file, with data that has checksums.
    Summed,
    /// Part of the file, without data.
    Unwritten,
    /// Not in use.
    Free,
}

/// A write of whole blocks on its way: it holds the claim of the blocks and what was allocated for
/// them.
pub(crate) struct Filling {
    /// The file blocks that it fills; claimed.
    pub(super) blocks: Range<u64>,
    targets: Vec<Target>,
    fresh: Fresh,
    redirects: bool,
    size: SizeChange,
}

impl Before {
    /// Returns whether blocks become readable that were not.
    pub(super) fn is_filled(self) -> bool {
        match self {
            Self::Written | Self::Summed => false,
            Self::Unwritten | Self::Free => true,
        }
    }
}

impl Target {
    /// The file bytes of the target.
    pub(super) fn bytes(&self, grid: &Grid) -> Range<u64> {
        grid.bytes(&(self.file_block..self.file_block + self.blocks))
    }

    /// The part of the target within a range of file blocks. What lies around a claim may have
    /// grown together with what lies in it.
    fn cut(&self, blocks: &Range<u64>) -> Option<Self> {
        debug_assert!(
            self.blocks > 0 && blocks.start <= blocks.end,
            "a target is cut by a range: {self:?}, {blocks:?}"
        );
        let (first, end) =
            (self.file_block.max(blocks.start), (self.file_block + self.blocks).min(blocks.end));
        (first < end).then(|| Self {
            file_block: first,
            blocks: end - first,
            start: BlockNo(self.start.0 + (first - self.file_block)),
            ..*self
        })
    }

    /// The written extents that the target becomes; `sums`: what is filled gets checksums.
    pub(super) fn extents(&self, sums: bool) -> impl Iterator<Item = (FileBlock, Extent)> + use<> {
        let Self { file_block, blocks, start, birth, was } = *self;
        let state = match was {
            Before::Written => ExtentState::Written,
            Before::Summed => ExtentState::Summed,
            Before::Unwritten | Before::Free if sums => ExtentState::Summed,
            Before::Unwritten | Before::Free => ExtentState::Written,
        };
        debug_assert!(blocks > 0, "I-EXT-1: what is filled becomes extents that hold a block");
        let max = u64::from(Extent::BLOCKS_MAX);
        (0..blocks.div_ceil(max)).map(move |i| {
            let (skip, len) = (i * max, (blocks - i * max).min(max));
            let extent =
                Extent { start: BlockNo(start.0 + skip), blocks: len as u32, state, birth };
            (FileBlock(file_block + skip), extent)
        })
    }
}

/// Gives every hole among the pieces its blocks from `runs`, which hold exactly as many.
pub(super) fn place(pieces: &[Piece], runs: &[Run], epoch: Epoch) -> Vec<Target> {
    let mut runs = runs.iter().copied();
    let mut run = Run { start: BlockNo(0), blocks: 0 };
    let mut targets = Vec::with_capacity(pieces.len());
    for piece in pieces {
        if let Some(Mapped { start, state, birth }) = piece.mapped {
            let was = match state {
                ExtentState::Written => Before::Written,
                ExtentState::Summed => Before::Summed,
                ExtentState::Unwritten => Before::Unwritten,
            };
            targets.push(Target {
                file_block: piece.file_block,
                blocks: piece.blocks,
                start,
                birth,
                was,
            });
            continue;
        }
        let (mut at, mut left) = (piece.file_block, piece.blocks);
        while left > 0 {
            if run.blocks == 0 {
                run = runs.next().expect("as many blocks were allocated as the holes have");
            }
            let blocks = left.min(run.blocks);
            targets.push(Target {
                file_block: at,
                blocks,
                start: run.start,
                birth: epoch,
                was: Before::Free,
            });
            run = Run { start: BlockNo(run.start.0 + blocks), blocks: run.blocks - blocks };
            (at, left) = (at + blocks, left - blocks);
        }
    }
    debug_assert!(
        run.blocks == 0 && runs.next().is_none(),
        "as many blocks were allocated as the holes have"
    );
    debug_assert_eq!(
        targets.iter().map(|target| target.blocks).sum::<u64>(),
        pieces.iter().map(|piece| piece.blocks).sum::<u64>(),
        "every block of a write has its place"
    );
    debug_assert!(
        targets.is_sorted_by_key(|target| target.file_block),
        "the targets of a write follow each other: {targets:?}"
    );
    targets
}

impl DataPath<'_> {
    /// Carries out an aligned write that fills `blocks` wholly: claims them, writes, publishes.
    /// Written blocks in between are overwritten in place. `false`, and nothing is written, where
    /// the plan holds no more, and the write needs the exclusive lock.
    pub(super) fn fill(
        self,
        _held: &Held<'_>,
        data: Payload<'_>,
        blocks: Range<u64>,
    ) -> Result<bool> {
        let _claim = self.state().fill_claims.lock(blocks.clone(), Sharing::Exclusive, self.fs);
        let Some(filling) = self.begin_fill(&data, blocks)? else { return Ok(false) };
        let mut exposing = self.begin_exposing(data.bytes.len() as u64);
        if !filling.redirects && filling.targets.iter().all(|target| target.was.is_filled()) {
            self.log_if_small(&mut exposing, data.bytes.len() as u64);
        }
        let written = self.runs_of(&filling, &data).into_iter().try_for_each(|(part, at)| {
            if exposing.is_logged() {
                self.log_overwrite(&mut exposing, data.part(&part), at)
            } else {
                self.overwrite(data.part(&part), at)
            }
        });
        self.end_fill(filling, data, written, exposing).map(|()| true)
    }

    /// Finds blocks for a write that fills `blocks` wholly, which the caller has claimed. The inode
    /// lock is held, shared, until [`end_fill`](Self::end_fill). `None` where the plan holds no more.
    pub(super) fn begin_fill(
        self,
        data: &Payload<'_>,
        blocks: Range<u64>,
    ) -> Result<Option<Filling>> {
        let logged = self.state().logged_size();
        let extends = data.size_after(logged) > logged;
        debug_assert!(
            !extends || self.fs.grid().on_block(data.size_after(logged)),
            "I-IO-5: an extension under the shared lock ends on a block, and not at {}",
            data.size_after(logged)
        );
        // Looked up again: the holder of the claim before may have filled them.
        let whole = self.fs.grid().blocks(&data.range());
        let map = self.map(ExtentMap::around(&whole))?;
        let (pieces, redirects) = self.pieces_to_write(&map, whole);
        // The file is to be written untorn, or with checksums, since the write was planned: what is
        // not claimed would get new blocks, too, which are not published.
        let is_claimed = |piece: &Piece| {
            blocks.start <= piece.file_block && piece.file_block + piece.blocks <= blocks.end
        };
        if pieces.iter().any(|piece| piece.written().is_none() && !is_claimed(piece)) {
            return Ok(None);
        }
        if !data.was_held {
            self.count_fill(&pieces, extends, redirects);
        }
        let fresh = self.allocate_holes(map, &pieces, extends)?;
        let targets = self.place_to_write(&pieces, &fresh.runs);
        let size =
            if extends { SizeChange::AtLeast(data.size_after(logged)) } else { SizeChange::Keep };
        Ok(Some(Filling { blocks, targets, fresh, redirects, size }))
    }

    /// Returns where the bytes of a write go: parts of the file and their device offsets, joined
    /// where they continue each other on the device.
    pub(super) fn runs_of(self, filling: &Filling, data: &Payload<'_>) -> Vec<(Range<u64>, u64)> {
        let grid = self.fs.grid();
        let mut runs = Vec::with_capacity(filling.targets.len());
        let mut rest = filling.targets.iter().peekable();
        while let Some(first) = rest.next() {
            let mut blocks = first.blocks;
            while let Some(next) = rest.next_if(|next| next.start.0 == first.start.0 + blocks) {
                blocks += next.blocks;
            }
            let blocks = grid.bytes(&(first.file_block..first.file_block + blocks));
            let part = within(&blocks, &data.range());
            let at = grid.start_of(first.start.0) + (part.start - blocks.start);
            debug_assert!(
                self.fs.grid().start_of(first.start.0) <= at && part.start < part.end,
                "a run of a write begins in its target: {part:?} at {at}"
            );
            runs.push((part, at));
        }
        runs
    }

    /// Publishes a write that `written` says has reached its blocks, or gives the blocks back.
    pub(super) fn end_fill(
        self,
        filling: Filling,
        data: Payload<'_>,
        written: Result<()>,
        mut exposing: Exposing,
    ) -> Result<()> {
        let Filling { blocks, targets, fresh, redirects, size } = filling;
        if let Err(error) = written {
            self.give_back(fresh);
            return Err(error);
        }
        for target in targets.iter().filter(|target| target.was.is_filled()) {
            let at = self.fs.grid().start_of(target.start.0);
            let bytes = data.part(&target.bytes(self.fs.grid()));
            exposing.push_blocks(at, bytes);
        }
        let sums = exposing.sums();
        let kind = if size == SizeChange::Keep { RecordKind::Written } else { RecordKind::Extend };
        let filled: Vec<_> = targets
            .iter()
            .filter_map(|target| target.cut(&blocks))
            .flat_map(|target| target.extents(sums))
            .collect();
        // At once, and not step by step: a change is long, and appends pass here.
        let change = Change {
            kind,
            size,
            mark: Mark::None,
            // The modification time moved when a write that waited came.
            touches: !data.was_held,
            only_adds: !redirects,
            readers: redirects,
            exposing: if exposing.is_empty() { None } else { Some(exposing) },
            shares: None,
        };
        self.publish_extents(blocks, &filled, change).map(drop)
    }

    /// As [`place`], for blocks that are about to be written: they are born now.
    pub(super) fn place_to_write(self, pieces: &[Piece], runs: &[Run]) -> Vec<Target> {
        let epoch = self.fs.epoch();
        let mut targets = place(pieces, runs, epoch);
        targets
            .iter_mut()
            .filter(|target| target.was == Before::Unwritten)
            .for_each(|target| target.birth = epoch);
        targets
    }

    pub(super) fn count_fill(self, pieces: &[Piece], extends: bool, redirects: bool) {
        let counters = &self.inode.counters;
        if redirects {
            counters.reason(Reason::Shared);
        }
        if extends {
            counters.reason(Reason::Extend);
        } else if !redirects && pieces.iter().any(|piece| piece.mapped.is_none()) {
            counters.reason(Reason::Hole);
        }
        if pieces
            .iter()
            .any(|piece| piece.mapped.is_some_and(|mapped| mapped.state == ExtentState::Unwritten))
        {
            counters.reason(Reason::Unwritten);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that waited for its claim found that the writer before had joined its blocks with
    /// their neighbours: they were left out of what it published, and the file had a hole in their
    /// place.
    #[test]
    fn what_reaches_beyond_a_claim_is_cut() {
        let target = Target {
            file_block: 10,
            blocks: 5,
            start: BlockNo(100),
            birth: Epoch(1),
            was: Before::Written,
        };
        let cut = |blocks: Range<u64>| {
            target.cut(&blocks).map(|cut| (cut.file_block, cut.blocks, cut.start.0))
        };
        assert_eq!(cut(12..20), Some((12, 3, 102)));
        assert_eq!(cut(0..12), Some((10, 2, 100)));
        assert_eq!(cut(11..13), Some((11, 2, 101)));
        assert_eq!(cut(0..20), Some((10, 5, 100)));
        assert_eq!((cut(0..10), cut(15..20)), (None, None));
    }

    #[test]
    fn holes_take_the_runs_in_order() {
        let hole = |file_block, blocks| Piece { file_block, blocks, mapped: None };
        let mapped = Mapped { start: BlockNo(50), state: ExtentState::Unwritten, birth: Epoch(1) };
        let pieces =
            [hole(0, 3), Piece { file_block: 3, blocks: 1, mapped: Some(mapped) }, hole(4, 2)];
        let runs = [Run { start: BlockNo(100), blocks: 2 }, Run { start: BlockNo(200), blocks: 3 }];
        let targets: Vec<_> = place(&pieces, &runs, Epoch(2))
            .iter()
            .map(|t| (t.file_block, t.blocks, t.start.0, t.was))
            .collect();
        let expected = [
            (0, 2, 100, Before::Free),
            (2, 1, 200, Before::Free),
            (3, 1, 50, Before::Unwritten),
            (4, 2, 201, Before::Free),
        ];
        assert_eq!(targets, expected);
        assert_eq!(crate::data::reservation::hole_blocks(&pieces), 5);
    }
}
