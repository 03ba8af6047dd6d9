//! Blocks for what is to lie in parts of the volume: those that certain devices below hold.
//!
//! ```text
//!   asked for n blocks within ranges: the run behind the goal ─► the tightest run there ─► a region there that has a run of n
//!                       ─► the longest there ─► what was kept for appends, and lies in lots ─► elsewhere, and told
//! ```
//!
//! - I-PLC-2: what is not told to lie elsewhere lies within the ranges, and blocks elsewhere are
//!   given only where the ranges have none that are free.

use std::ops::Range;

use super::turn::Turn;
use super::unread::UnreadRegions;
use super::{AllocRequest, Allocator, Inner, SpaceClass};
use crate::extent::Run;
use crate::planted::{PlantedBug, planted};
use crate::{BlockNo, Error, ErrorKind, InodeNo, Lsn, Result};

/// How many free runs are looked at for one that is hardly longer than what is asked for.
const LOOKS: usize = 256;

/// What happens where the ranges have too few free blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elsewhere {
    /// The rest comes from anywhere.
    Allowed,
    /// Nothing is allocated.
    Refused,
}

/// Blocks that were allocated for ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedRuns {
    /// The blocks.
    pub runs: Vec<Run>,
    /// How many of them, the last ones, lie elsewhere.
    pub elsewhere_blocks: u64,
}

/// Parts of the volume, by rising blocks and apart.
#[derive(Debug, Clone, Copy)]
struct Ranges<'a>(&'a [Run]);

impl Ranges<'_> {
    /// The part of a range of blocks that lies in them first, if any does.
    fn first_part(self, blocks: &Range<u64>) -> Option<Range<u64>> {
        let next = self.0.partition_point(|run| run.end() <= blocks.start);
        let run = self.0.get(next)?;
        let (from, to) = (run.start.0.max(blocks.start), run.end().min(blocks.end));
        (from < to).then_some(from..to)
    }

    /// The first part of a range of blocks that lies in one of them and has so many blocks.
    fn part_of(self, blocks: &Range<u64>, count: u64) -> Option<Range<u64>> {
        let mut rest = blocks.clone();
        while let Some(part) = self.first_part(&rest) {
            if part.end - part.start >= count {
                return Some(part);
            }
            rest.start = part.end;
        }
        None
    }

    fn cover(self, run: Run) -> bool {
        self.first_part(&(run.start.0..run.end())) == Some(run.start.0..run.end())
    }
}

impl Allocator {
    /// Allocates as [`allocate_after`](Self::allocate_after), from `ranges` (by rising blocks,
    /// apart) as long as these have blocks that are free.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn allocate_within(
        &self,
        want: AllocRequest,
        ranges: &[Run],
        elsewhere: Elsewhere,
        sealed: Lsn,
    ) -> Result<PlacedRuns> {
        if planted(PlantedBug::PlacementIgnored) {
            let runs = self.allocate_after(want, sealed)?;
            return Ok(PlacedRuns { runs, elsewhere_blocks: 0 });
        }
        debug_assert!(
            ranges.windows(2).all(|pair| pair[0].end() < pair[1].start.0),
            "ranges to allocate from are in order and apart: {ranges:?}"
        );
        let mut inner = self.turn();
        inner.release_sealed(sealed);
        let (runs, inner) = self.take_within(inner, want, Ranges(ranges), sealed);
        let found: u64 = runs.iter().map(|run| run.blocks).sum();
        assert!(
            runs.iter().all(|run| Ranges(ranges).cover(*run)),
            "I-PLC-2: what is allocated for ranges lies in them: {runs:?}"
        );
        if found == want.blocks {
            self.keep_reserve_whole(inner);
            return Ok(PlacedRuns { runs, elsewhere_blocks: 0 });
        }
        self.complete(inner, want, runs, elsewhere)
    }

    /// Takes what is asked for from the ranges: less of it only once everything that holds free
    /// blocks of them has given them up.
    fn take_within<'a>(
        &'a self,
        mut inner: Turn<'a>,
        want: AllocRequest,
        ranges: Ranges<'_>,
        sealed: Lsn,
    ) -> (Vec<Run>, Turn<'a>) {
        let mut has_waited = false;
        loop {
            let runs = inner.runs_within(want, ranges);
            let found: u64 = runs.iter().map(|run| run.blocks).sum();
            if found == want.blocks {
                return (runs, inner);
            }
            let keepers = inner.keepers_within(ranges);
            // A trim withholds blocks again and again: it is waited for once.
            let (any_lot, waits) = (inner.granted > 0, inner.withheld > 0 && !has_waited);
            if keepers.is_empty() && !any_lot && !waits {
                return (runs, inner);
            }
            inner.give_runs_back(&runs, want);
            if keepers.is_empty() {
                has_waited |= !any_lot;
                inner = self.find_more(inner, want.class).0;
                inner.release_sealed(sealed);
            } else {
                keepers.into_iter().for_each(|ino| inner.revoke(ino));
            }
        }
    }

    /// Finds the rest elsewhere, or gives all of it up.
    fn complete(
        &self,
        mut inner: Turn<'_>,
        want: AllocRequest,
        mut runs: Vec<Run>,
        elsewhere: Elsewhere,
    ) -> Result<PlacedRuns> {
        let found: u64 = runs.iter().map(|run| run.blocks).sum();
        let rest = AllocRequest {
            goal: runs.last().map_or(want.goal, |last| Some(BlockNo(last.end()))),
            blocks: want.blocks - found,
            reserved: want.reserved.saturating_sub(found),
            ..want
        };
        if elsewhere == Elsewhere::Allowed
            && let Some(more) = inner.allocate_runs(rest)
        {
            runs.extend(more);
            self.keep_reserve_whole(inner);
            return Ok(PlacedRuns { runs, elsewhere_blocks: rest.blocks });
        }
        inner.give_runs_back(&runs, want);
        inner.check_totals();
        let error = match elsewhere {
            Elsewhere::Allowed => inner.no_space(want.blocks, self.block_bytes),
            Elsewhere::Refused => Error::new(
                ErrorKind::NoSpace,
                format!(
                    "{} blocks lack where the file is to lie: the members that it was placed on \
                     are full",
                    rest.blocks
                ),
            ),
        };
        Err(error)
    }
}

impl Inner {
    /// Takes up to what is asked for from ranges. What was reserved counts as taken first.
    fn runs_within(&mut self, want: AllocRequest, ranges: Ranges<'_>) -> Vec<Run> {
        debug_assert!(
            want.class == SpaceClass::Data && want.reserved <= want.blocks,
            "data alone is placed: {want:?}"
        );
        let reserved = self.reserved;
        self.reserved = reserved
            .checked_sub(want.reserved)
            .expect("I-SPC-5: what an allocation claims was reserved");
        let (mut runs, mut rest): (Vec<Run>, AllocRequest) = (Vec::new(), want);
        while rest.blocks > 0 {
            let blocks = rest.blocks.min(self.available(want.class));
            let Some(run) = (blocks > 0).then(|| self.run_within(rest, blocks, ranges)).flatten()
            else {
                break;
            };
            let goal = Some(BlockNo(run.end()));
            rest = AllocRequest { goal, blocks: rest.blocks - run.blocks, ..rest };
            runs.push(run);
        }
        // The reservation of what was not found stays.
        self.reserved += want.reserved.saturating_sub(want.blocks - rest.blocks);
        if let (Some((ino, ahead)), Some(last), 0) = (want.ahead, runs.last(), rest.blocks) {
            let behind = ranges.first_part(&(last.end()..last.end().saturating_add(ahead)));
            let behind = behind.filter(|part| part.start == last.end());
            self.keep_ahead(ino, last.end(), behind.map_or(0, |part| part.end - part.start));
        }
        self.pack_some();
        self.check_totals();
        runs
    }

    /// The files for whose appends blocks of the ranges are kept.
    fn keepers_within(&self, ranges: Ranges<'_>) -> Vec<InodeNo> {
        let meets = |run: &Run| ranges.first_part(&(run.start.0..run.end())).is_some();
        self.ahead.iter().filter(|(_, run)| meets(run)).map(|(ino, _)| *ino).collect()
    }

    /// Makes blocks free again that [`runs_within`](Self::runs_within) took, and reserves them
    /// again.
    fn give_runs_back(&mut self, runs: &[Run], want: AllocRequest) {
        let blocks: u64 = runs.iter().map(|run| run.blocks).sum();
        runs.iter().for_each(|run| self.insert(*run));
        self.reserved += want.reserved.min(blocks);
    }

    /// Takes one run of up to so many blocks.
    fn run_within(&mut self, want: AllocRequest, blocks: u64, ranges: Ranges<'_>) -> Option<Run> {
        if let Some((ino, _)) = want.ahead {
            // What was kept before the file was placed may lie elsewhere.
            if self.ahead.get(&ino).is_some_and(|run| !ranges.cover(*run)) {
                self.revoke(ino);
            }
            if let Some(run) = self.take_ahead(want, blocks) {
                return Some(run);
            }
        }
        if let Some(goal) = want.goal
            && let Some(part) = ranges.first_part(&(goal.0..goal.0.saturating_add(blocks)))
            && part.start == goal.0
        {
            let most = part.end - part.start;
            if let Some(run) = self.take_packed(want, most) {
                return Some(run);
            }
            if let Some(at) = self.continuation(goal) {
                return Some(self.take(at, most));
            }
        }
        let part = self.part_within(want, blocks, ranges)?;
        Some(self.take(part.start, blocks.min(part.end - part.start)))
    }

    /// The free part of the ranges that serves a request best.
    fn part_within(
        &mut self,
        want: AllocRequest,
        blocks: u64,
        ranges: Ranges<'_>,
    ) -> Option<Range<u64>> {
        let ahead = want.ahead.map_or(0, |(_, ahead)| ahead);
        for asked in [blocks + ahead, blocks] {
            loop {
                if let Some(part) = self.tightest_within(asked, ranges) {
                    return Some(part);
                }
                let Some(region) = self.unread.fitting_within(asked, ranges.0) else { break };
                self.load(region);
            }
        }
        loop {
            if let Some(part) = self.longest_within(ranges) {
                return Some(part);
            }
            // What is read leaves the regions that are not in the indexes.
            let region = self.unread.fitting_within(1, ranges.0)?;
            self.load(region);
        }
    }

    /// A free part with at least so many blocks, and hardly more if that is found soon.
    fn tightest_within(&self, blocks: u64, ranges: Ranges<'_>) -> Option<Range<u64>> {
        let by_len = self.by_len.range((blocks, 0)..).take(LOOKS);
        by_len
            .filter_map(|(len, start)| ranges.part_of(&(*start..start + len), blocks))
            .next()
            .or_else(|| self.parts_within(ranges).find(|part| part.end - part.start >= blocks))
    }

    /// The longest of the free parts that are looked at.
    fn longest_within(&self, ranges: Ranges<'_>) -> Option<Range<u64>> {
        self.parts_within(ranges).max_by_key(|part| part.end - part.start)
    }

    /// Free parts by rising blocks, so many of each range.
    fn parts_within<'a>(&'a self, ranges: Ranges<'a>) -> impl Iterator<Item = Range<u64>> + 'a {
        ranges.0.iter().flat_map(move |range| {
            let first = self.by_start.range(..range.start.0).next_back();
            first
                .into_iter()
                .chain(self.by_start.range(range.start.0..range.end()).take(LOOKS))
                .filter_map(move |(start, len)| {
                    let (from, to) = ((*start).max(range.start.0), (start + len).min(range.end()));
                    (from < to).then_some(from..to)
                })
        })
    }
}

impl UnreadRegions {
    /// A region that is not in the indexes, meets the ranges and has a run of so many blocks.
    fn fitting_within(&self, blocks: u64, ranges: &[Run]) -> Option<u64> {
        ranges.iter().filter(|range| range.blocks > 0).find_map(|range| {
            let regions = self.region_of(range.start.0)..=self.region_of(range.end() - 1);
            self.with_run(blocks, regions)
        })
    }
}

#[cfg(test)]
mod tests;
