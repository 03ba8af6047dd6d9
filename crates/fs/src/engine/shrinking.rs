//! What a shrink of the file system that is under way has done and has to do.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Engine;
use crate::{Epoch, FileBlock, InodeNo, Result};
use bedplate_store::{
    AllocRequest, BlockNo, ByteRun, Committed, FenceTotals, MovedRegion, Record, Run, SpaceClass,
};

/// A shrink that nothing carries on for so long is given up: the command that asked for it is gone.
const STALE: Duration = Duration::from_secs(60);

/// A row that covers blocks beyond the new end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MovedRow {
    /// The checkpoint that keeps it; `None`: it is of the present.
    pub(crate) epoch: Option<Epoch>,
    pub(crate) ino: InodeNo,
    pub(crate) at: FileBlock,
}

/// Blocks beyond the new end that move together, and the rows that have them.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) run: Run,
    pub(crate) rows: Vec<MovedRow>,
}

/// What a shrink does next.
#[derive(Debug)]
pub(crate) enum Phase {
    /// It looks for files with blocks beyond the new end.
    Survey,
    /// It moves blocks that one file alone has: of the first file, from this file block on.
    Files(VecDeque<InodeNo>, u64),
    /// It looks for what else has blocks there.
    SurveyShared,
    /// It moves blocks for all rows that have them, the last window first.
    Shared(Vec<Window>),
    /// It looks whether all is free.
    End,
}

/// A shrink that is under way.
#[derive(Debug)]
pub(crate) struct Shrinking {
    /// Where the file system is to end.
    pub(crate) limit: BlockNo,
    pub(crate) phase: Phase,
    /// When it was carried on last.
    touched: Instant,
    /// Blocks that were in use beyond when the present pass began.
    pub(crate) left: u64,
    /// How many passes freed nothing.
    pub(crate) idle_passes: u32,
}

impl Shrinking {
    pub(crate) fn touch(&mut self) {
        self.touched = Instant::now();
    }
}

impl Engine {
    /// Gives blocks from `limit` on to nothing any more. `None`: what is reserved for cached writes
    /// would not be found then.
    pub(crate) fn begin_shrinking(&self, limit: BlockNo) -> Option<Shrinking> {
        self.allocator.fence(limit).then(|| Shrinking {
            limit,
            phase: Phase::Survey,
            touched: Instant::now(),
            left: self.allocator.left_beyond_fence(),
            idle_passes: 0,
        })
    }

    /// Gives a shrink up: the file system keeps its size.
    pub(crate) fn give_up_shrinking(&self, shrinking: &mut Option<Shrinking>) {
        if shrinking.take().is_some() {
            self.allocator.lift_fence();
        }
    }

    /// Gives a shrink up that nothing carries on.
    pub(crate) fn give_up_stale_shrink(&self) {
        let Some(mut shrinking) = self.growing.try_lock() else { return };
        if shrinking.as_ref().is_some_and(|one| one.touched.elapsed() > STALE) {
            tracing::warn!("the shrink was not carried on, and the file system keeps its size");
            self.give_up_shrinking(&mut shrinking);
        }
    }

    /// Returns what there is on both sides of an end.
    pub(crate) fn totals_around(&self, limit: BlockNo) -> FenceTotals {
        self.allocator.fence_totals(limit)
    }

    /// Returns how many blocks beyond the new end are not free.
    pub(crate) fn left_beyond(&self) -> u64 {
        self.allocator.left_beyond_fence()
    }

    /// Ends the free space where the file system ends since.
    pub(crate) fn end_space(&self) -> Result<()> {
        self.allocator.end_at_fence()
    }

    /// Finds room for so many bytes of metadata.
    pub(super) fn place_metadata(&self, bytes: u64) -> Result<Vec<ByteRun>> {
        let block = u64::from(self.block_size);
        let want = AllocRequest {
            goal: None,
            blocks: bytes.div_ceil(block),
            ahead: None,
            class: SpaceClass::Metadata,
            reserved: 0,
            part: None,
        };
        let bytes = |run: &Run| ByteRun { start: run.start.0 * block, len: run.blocks * block };
        Ok(self.allocator.allocate_all(want)?.iter().map(bytes).collect())
    }

    /// Gives room of metadata back.
    pub(super) fn give_back_metadata(&self, runs: &[ByteRun]) {
        let block = u64::from(self.block_size);
        let in_blocks =
            |run: &ByteRun| Run { start: BlockNo(run.start / block), blocks: run.len / block };
        self.allocator.free(&runs.iter().map(in_blocks).collect::<Vec<_>>(), 0);
    }

    /// Moves what of the metadata lies beyond an end; returns how many bytes it were.
    pub(crate) fn move_metadata(&self, limit: BlockNo) -> Result<u64> {
        let place = |bytes: u64| self.place_metadata(bytes);
        let give_back = |runs: &[ByteRun]| self.give_back_metadata(runs);
        let block = u64::from(self.block_size);
        let MovedRegion { moved_bytes, left } =
            self.meta.move_region(limit.0 * block, &place, &give_back)?;
        give_back(&left);
        Ok(moved_bytes)
    }

    /// Logs where blocks are from then on, for all rows that have them.
    pub(crate) fn commit_moved(&self, record: Record) -> Result<Committed> {
        self.need_log_room(&record)?;
        self.meta.commit_moved(record)
    }
}
