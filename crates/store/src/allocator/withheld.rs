//! Free blocks that are out of reach for a while: those of a region that a mount counts again, or
//! while the device discards them.
//!
//! What asks for blocks meanwhile and finds too few waits until they are given back, so it is
//! refused nothing that it would have had. What withholds takes no lock of a file until then.

use std::ops::Range;

use super::{Allocator, Inner, SpaceClass, Turn};
use crate::BlockNo;
use crate::extent::Run;

/// Free blocks that nothing uses until they are given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WithheldRun {
    /// The blocks; `None`: there are no more in the range.
    pub run: Option<Run>,
    /// Where to look on.
    pub next: BlockNo,
    /// Free blocks before `next` that were left where they are.
    pub passed_blocks: u64,
}

impl Allocator {
    /// Takes what is free of these runs out of reach and returns it; [`free`](Self::free) gives it
    /// back.
    pub fn withhold(&self, runs: impl Iterator<Item = Run>) -> Vec<Run> {
        let mut inner = self.give_up_lots();
        let mut held = Vec::new();
        for run in runs {
            inner.load_run(run);
            debug_assert!(run.end() <= inner.end, "what is withheld lies in the volume: {run:?}");
            while let Some(part) = inner.last_free_in(run) {
                held.push(inner.take(part.start.0, part.blocks));
            }
        }
        held
    }

    /// Takes the first free run of a range out of reach that has at least `blocks_min` blocks, or
    /// its first `blocks_max`, so that nothing uses them meanwhile; [`give_back`](Self::give_back)
    /// gives them back. What lies in lots is passed by, and half of what there is for data and in
    /// memory is left to others at any time.
    pub fn withhold_first(&self, range: Run, blocks_min: u64, blocks_max: u64) -> WithheldRun {
        let mut inner = self.turn();
        let range = Run {
            start: range.start,
            blocks: range.blocks.min(inner.end.saturating_sub(range.start.0)),
        };
        inner.load_run(range);
        let spare = inner.available(SpaceClass::Data).min(inner.free) / 2;
        let (mut at, mut passed_blocks) = (range.start.0, 0);
        while let Some(run) = inner.first_free_in(at..range.end()) {
            let blocks = run.blocks.min(blocks_max).min(spare);
            if run.blocks >= blocks_min && blocks > 0 {
                let taken = inner.take(run.start.0, blocks);
                inner.withheld += taken.blocks;
                debug_assert!(
                    taken.start >= range.start && taken.end() <= range.end(),
                    "what is withheld of {range:?} lies in it: {taken:?}"
                );
                inner.check_totals();
                return WithheldRun { next: BlockNo(taken.end()), run: Some(taken), passed_blocks };
            }
            passed_blocks += run.blocks;
            at = run.end();
        }
        WithheldRun { run: None, next: BlockNo(range.end()), passed_blocks }
    }

    /// Notes from now on what becomes free, for [`take_freed`](Self::take_freed), or does not any
    /// more.
    pub fn set_noting_freed(&self, is_noted: bool) {
        let mut inner = self.turn();
        if inner.freed.is_some() != is_noted {
            inner.freed = is_noted.then(Vec::new);
        }
    }

    /// Returns what became free since the last call, by rising blocks and joined where it touches;
    /// parts of it may be in use again.
    pub fn take_freed(&self) -> Vec<Run> {
        let mut freed = self.turn().freed.as_mut().map(std::mem::take).unwrap_or_default();
        freed.sort_unstable_by_key(|run| run.start);
        let mut joined: Vec<Run> = Vec::with_capacity(freed.len());
        for run in freed {
            match joined.last_mut() {
                Some(last) if last.end() >= run.start.0 => {
                    last.blocks = last.blocks.max(run.end() - last.start.0);
                }
                _ => joined.push(run),
            }
        }
        joined
    }

    /// Gives back what [`withhold_first`](Self::withhold_first) took.
    pub fn give_back(&self, run: Run) {
        let mut inner = self.turn();
        inner.withheld =
            inner.withheld.checked_sub(run.blocks).expect("what is given back was withheld");
        debug_assert!(
            inner.last_free_in(run).is_none(),
            "I-SPC-1: nothing frees what is withheld: {run:?}"
        );
        inner.insert(run);
        inner.check_totals();
        drop(inner);
        self.given_back.notify_all();
    }

    /// Waits until withheld blocks are given back; `false`: none are withheld.
    pub(super) fn wait_for_withheld(&self, turn: &mut Turn<'_>) -> bool {
        let any = turn.withheld > 0;
        if any {
            turn.told.note(&turn.inner);
            self.given_back.wait(&mut turn.inner);
        }
        any
    }
}

/// No more freed runs are noted between two calls that take them; the others are left to a trim of
/// everything.
const FREED_MAX: usize = 1 << 18;

impl Inner {
    /// Notes what became free, where that is wanted.
    pub(super) fn note_freed(&mut self, run: Run) {
        if let Some(freed) = self.freed.as_mut().filter(|freed| freed.len() < FREED_MAX) {
            freed.push(run);
        }
    }

    /// The first free part of a range.
    fn first_free_in(&self, range: Range<u64>) -> Option<Run> {
        let from = self.first_free_from(range.start)?;
        let (start, len) = self.by_start.range(..=from).next_back()?;
        let to = (start + len).min(range.end);
        (from < to).then(|| Run { start: BlockNo(from), blocks: to - from })
    }
}
