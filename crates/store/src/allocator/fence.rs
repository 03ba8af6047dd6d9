//! The fence of a volume that becomes smaller: blocks from some block on are given to nothing any
//! more, and are counted as they become free.
//!
//! ```text
//!   fence ─► free blocks beyond leave the indexes ─► what is freed beyond is counted ─► all beyond are free ─► end_at_fence
//!                └────────────────── lift_fence: they are free again, nothing else happened ◄──┘
//! ```
//!
//! - I-SPC-8: no block beyond the fence is handed out. So once all of them are free they stay free,
//!   and the volume may end there.

use std::collections::BTreeMap;

use super::{Allocator, Inner, reserve_of};
use crate::extent::Run;
use crate::planted::{PlantedBug, planted};
use crate::{BlockNo, Error, ErrorKind, Result};

/// The blocks beyond a fence that are free.
#[derive(Debug)]
pub(super) struct Fence {
    /// The first block beyond.
    limit: u64,
    /// Free runs: length by start. They do not touch the indexes, and may touch each other.
    free: BTreeMap<u64, u64>,
    blocks: u64,
}

impl Fence {
    fn add(&mut self, run: Run) {
        assert!(
            !self.meets(run),
            "blocks are freed once: {run:?} meets free blocks beyond the fence"
        );
        self.blocks += run.blocks;
        self.free.insert(run.start.0, run.blocks);
    }

    pub(super) fn meets(&self, run: Run) -> bool {
        let before = self.free.range(..run.end()).next_back();
        before.is_some_and(|(start, len)| start + len > run.start.0)
    }
}

/// What there is on both sides of a fence, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FenceTotals {
    /// In use beyond it: of files, of checkpoints, of the volume itself, about to become free.
    pub used_beyond: u64,
    /// Free before it, also what is about to become free.
    pub free_below: u64,
    /// Kept from data where the volume ends at the fence, with what is reserved for cached writes.
    pub kept_below: u64,
    /// In use on the whole volume.
    pub used: u64,
}

impl FenceTotals {
    /// Returns how many blocks lack for all that lies beyond to move before the fence.
    #[must_use]
    pub fn lacking(&self) -> u64 {
        (self.used_beyond + self.kept_below).saturating_sub(self.free_below)
    }
}

impl Allocator {
    /// Takes over a larger volume. The new size is not below the old one.
    pub fn grow(&self, blocks: u64) {
        let mut inner = self.turn();
        assert!(blocks >= inner.end, "a volume grows here, and ends earlier at a fence");
        assert!(inner.fence.is_none(), "a volume does not grow while it becomes smaller");
        let added = Run { start: BlockNo(inner.end), blocks: blocks - inner.end };
        inner.end = blocks;
        inner.reserve = inner.reserve.max(reserve_of(blocks, self.block_bytes));
        debug_assert_eq!(added.end(), blocks, "what a volume grows by ends where it ends");
        if added.blocks > 0 {
            inner.insert(added);
        }
    }

    /// Gives blocks from `limit` on to nothing any more. The second of two fences replaces the
    /// first. `false`: what is reserved for cached writes would not be found before it (I-SPC-5), and
    /// there is no fence.
    #[must_use]
    pub fn fence(&self, limit: BlockNo) -> bool {
        // Of what is in lots some may lie beyond.
        let mut inner =
            if planted(PlantedBug::LotsBeyondFence) { self.turn() } else { self.give_up_lots() };
        inner.lift_fence();
        // Of what is kept for a file some may lie beyond.
        inner.revoke_all();
        let beyond = Run { start: limit, blocks: inner.end.saturating_sub(limit.0) };
        inner.load_run(beyond);
        let mut fence = Fence { limit: limit.0, free: BTreeMap::new(), blocks: 0 };
        while let Some(part) = inner.last_free_in(beyond) {
            fence.add(inner.take(part.start.0, part.blocks));
        }
        inner.fence = Some(fence);
        inner.check_totals();
        let is_kept = inner.reachable() >= inner.reserve + inner.reserved || inner.reserved == 0;
        if !is_kept {
            inner.lift_fence();
        }
        is_kept
    }

    /// Gives all blocks to whatever asks again.
    pub fn lift_fence(&self) {
        self.turn().lift_fence();
        self.given_back.notify_all();
    }

    /// Returns what there is on both sides of a fence at `limit`, were there one.
    pub fn fence_totals(&self, limit: BlockNo) -> FenceTotals {
        let mut inner = self.give_up_lots();
        let beyond = Run { start: limit, blocks: inner.end.saturating_sub(limit.0) };
        inner.load_run(beyond);
        let within = |start: u64, len: u64| (start + len).saturating_sub(start.max(limit.0));
        let fenced = inner.fence.as_ref().map_or(0, |fence| {
            fence.free.iter().map(|(start, len)| within(*start, *len)).sum::<u64>()
        });
        let indexed =
            inner.by_start.iter().rev().take_while(|(start, len)| *start + *len > limit.0);
        let mut free_beyond =
            fenced + indexed.map(|(start, len)| within(*start, *len)).sum::<u64>();
        free_beyond += inner.ahead.values().map(|run| within(run.start.0, run.blocks)).sum::<u64>();
        let pending = |(_, start, len): &(_, u64, u64)| within(*start, *len);
        let pending_beyond: u64 = inner.pending_free.iter().map(pending).sum();
        let free = inner.reachable() + inner.fenced() + inner.left + inner.withheld;
        FenceTotals {
            used_beyond: beyond.blocks.saturating_sub(free_beyond + pending_beyond),
            free_below: free.saturating_sub(free_beyond + pending_beyond),
            kept_below: inner.reserve_below(limit.0, self.block_bytes) + inner.reserved,
            used: inner.end.saturating_sub(free),
        }
    }

    /// Returns how many blocks beyond the fence are not free yet; 0 without a fence.
    pub fn left_beyond_fence(&self) -> u64 {
        let inner = self.turn();
        let fence = inner.fence.as_ref();
        fence.map_or(0, |fence| (inner.end - fence.limit).saturating_sub(fence.blocks))
    }

    /// Ends the volume at the fence, beyond which all is free.
    ///
    /// # Errors
    /// `Busy` where a block beyond it is in use.
    pub fn end_at_fence(&self) -> Result<()> {
        let mut inner = self.turn();
        let end = inner.end;
        let is_free = |fence: &mut Fence| {
            fence.blocks >= end - fence.limit || planted(PlantedBug::ShrinkBeforeMoved)
        };
        let Some(fence) = inner.fence.take_if(is_free) else {
            let message = "blocks beyond the new end of the volume are still in use";
            return Err(Error::new(ErrorKind::Busy, message));
        };
        inner.end = fence.limit;
        inner.reserve = inner.reserve_below(fence.limit, self.block_bytes);
        inner.check_totals();
        Ok(())
    }
}

impl Inner {
    /// How many blocks are kept from data where the volume ends at `limit`: what the metadata may
    /// want does not become less.
    fn reserve_below(&self, limit: u64, block_bytes: u64) -> u64 {
        reserve_of(limit, block_bytes).max(self.reserve.min(limit / 8))
    }

    /// Free blocks that the fence keeps from everything.
    pub(super) fn fenced(&self) -> u64 {
        // The mistake counts them twice: they are in the indexes too.
        let fence = self.fence.as_ref().filter(|_| !planted(PlantedBug::FenceLetsThrough));
        fence.map_or(0, |fence| fence.blocks)
    }

    /// Takes what of a freed run lies beyond the fence; returns what lies before it.
    pub(super) fn behind_fence(&mut self, run: Run) -> Option<Run> {
        let Some(fence) = &mut self.fence else { return Some(run) };
        let from = run.start.0.max(fence.limit);
        if from < run.end() {
            if planted(PlantedBug::FenceLetsThrough) {
                fence.blocks += run.end() - from;
                return Some(run);
            }
            fence.add(Run { start: BlockNo(from), blocks: run.end() - from });
        }
        let blocks = fence.limit.saturating_sub(run.start.0).min(run.blocks);
        (blocks > 0).then_some(Run { blocks, ..run })
    }

    fn lift_fence(&mut self) {
        let Some(fence) = self.fence.take() else { return };
        for (start, blocks) in fence.free {
            self.insert(Run { start: BlockNo(start), blocks });
        }
        self.check_totals();
    }
}
