//! Regions go out of the indexes and stay in memory, packed, so that what is known of the free space
//! takes little whatever the number of runs.
//!
//! ```text
//!            asked for blocks that lie in it
//!   unread ───────────────────────────────────▶ open ◀──────────────────────────┐ asked for blocks
//!     │                                          │  its runs are in the indexes   │ that lie in it
//!     │ blocks leave a file there, or            └──────────────▶ packed ─────────┘
//!     └─ a commit changes what is stored of it ──────────────────▶ ▲ too many runs are open: the next by the clock
//!                                                    blocks become free: they are noted there
//! ```
//!
//! Blocks that become free, and the continuation of a file, change a packed region where it is. Any
//! other allocation opens a region, and then takes many runs of it.
//!
//! - I-SPC-9: a packed region has all that is free of its blocks, and the indexes have none of it.

use std::ops::Range;

use super::packed::Packed;
use super::unread::Unread;
use super::{AllocRequest, Allocator, Inner};
use crate::BlockNo;
use crate::extent::Run;
use crate::planted::{PlantedBug, planted};

/// So many free runs are in the indexes, some 100 bytes each, before regions are packed.
pub(super) const OPEN_RUNS_MAX: usize = 1 << 17;
/// A region with fewer takes no less when it is packed.
const RUNS_WORTH: usize = 4;
/// How many regions are looked at for one to pack.
const LOOKS: usize = 64;

impl Allocator {
    /// Sets how many free runs are in the indexes before regions are packed; `None`: as many as
    /// serve best.
    pub fn limit_runs(&self, runs: Option<usize>) {
        let mut inner = self.turn();
        inner.open_runs_max = runs.unwrap_or(OPEN_RUNS_MAX);
        while inner.pack_some() {}
    }
}

impl Inner {
    /// Adds free blocks: to the packed regions that they lie in, or to the indexes.
    pub(super) fn insert(&mut self, run: Run) {
        assert!(
            run.blocks > 0 && run.end() <= self.end,
            "freed blocks lie within the volume: {run:?}"
        );
        let Some(run) = self.behind_fence(run) else { return };
        let mut at = run.start.0;
        while let Some(region) = self.unread.first_packed(at..run.end()) {
            let bounds = self.unread.bounds(region);
            if at < bounds.start {
                self.insert_open(Run { start: BlockNo(at), blocks: bounds.start - at });
            }
            let to = run.end().min(bounds.end);
            self.unread.change(region, at.max(bounds.start)..to, true);
            at = to;
        }
        if at < run.end() {
            self.insert_open(Run { start: BlockNo(at), blocks: run.end() - at });
        }
    }

    /// Whether a block of a run is known to be free.
    pub(super) fn is_free_in(&self, run: Run) -> bool {
        self.last_free_in(run).is_some() || self.unread.packed_meets(run)
    }

    /// Takes the continuation of a file where it lies in a region that is not open, and is free.
    pub(super) fn take_packed(&mut self, want: AllocRequest, blocks: u64) -> Option<Run> {
        let at = want.goal?.0;
        if want.class == super::SpaceClass::Data {
            self.keep_run(Run { start: BlockNo(at), blocks: 1 });
        }
        let region = self.unread.first_packed(at..at + 1)?;
        let end = self.unread.packed_run_at(at)?.end;
        let taken = Run { start: BlockNo(at), blocks: blocks.min(end - at) };
        self.unread.change(region, at..taken.end(), false);
        Some(taken)
    }

    /// Has the regions that a run lies in in memory.
    pub(super) fn keep_run(&mut self, run: Run) {
        for region in self.unread.in_run(run) {
            self.keep(region);
        }
    }

    /// Has a region in memory, packed where it was not read.
    pub(super) fn keep(&mut self, region: u64) {
        if self.unread.is_packed(region) {
            return;
        }
        let Some((unread, _)) = self.unread.remove(region) else { return };
        let Some(runs) = self.unread.read(&unread) else { return };
        let first = self.unread.bounds(region).start;
        let within = |at: u64| u32::try_from(at - first).expect("a region is small");
        let runs: Vec<Range<u32>> =
            runs.iter().map(|run| within(run.start.0)..within(run.end())).collect();
        self.unread.add(unread, Some(Packed::of(&runs, self.unread.region_blocks())));
    }

    /// Packs a region where too many runs are open; returns whether it did.
    pub(super) fn pack_some(&mut self) -> bool {
        if self.by_start.len() <= self.open_runs_max || !self.unread.is_stored() {
            return false;
        }
        for _ in 0..LOOKS {
            let Some((&start, &len)) = self.by_start.range(self.pack_from..).next() else {
                self.pack_from = 0;
                continue;
            };
            let region = self.unread.region_of(start);
            let bounds = self.unread.bounds(region);
            self.pack_from = bounds.end.max(start + len);
            if self.by_start.range(bounds).take(RUNS_WORTH).count() == RUNS_WORTH
                && !self.unread.is_closed(region)
            {
                self.pack(region);
                return true;
            }
        }
        false
    }

    fn pack(&mut self, region: u64) {
        let bounds = self.unread.bounds(region);
        let (mut runs, mut at) = (Vec::new(), bounds.start);
        while at < bounds.end {
            let Some(from) = self.first_free_from(at).filter(|from| *from < bounds.end) else {
                break;
            };
            let run = self.take(from, bounds.end - from);
            at = run.end();
            let within = |at: u64| u32::try_from(at - bounds.start).expect("a region is small");
            runs.push(within(run.start.0)..within(run.end()));
        }
        if planted(PlantedBug::PackedRunForgotten) {
            runs.pop();
        }
        let unread = Unread {
            region,
            free: runs.iter().map(|run| u64::from(run.end - run.start)).sum(),
            longest: runs.iter().map(|run| u64::from(run.end - run.start)).max().unwrap_or(0),
            runs: runs.len() as u64,
        };
        self.unread.add(unread, Some(Packed::of(&runs, self.unread.region_blocks())));
        debug_assert!(
            self.last_free_in(Run {
                start: BlockNo(bounds.start),
                blocks: bounds.end - bounds.start
            })
            .is_none(),
            "I-SPC-9: the indexes have nothing of region {region} once it is packed"
        );
    }

    /// The first free block of the indexes from one on.
    pub(super) fn first_free_from(&self, at: u64) -> Option<u64> {
        self.continuation(BlockNo(at))
            .or_else(|| self.by_start.range(at..).next().map(|(start, _)| *start))
    }
}
