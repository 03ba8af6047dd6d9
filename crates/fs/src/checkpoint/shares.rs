//! Which volume blocks more than one extent row covers: a live one and before-images, or several of either.
//!
//! Blocks that one row covers are the ordinary case and cost nothing here. A record that changes rows changes the counts; a block that no row
//! covers any more is free (I-CKP-2). Rebuilt at mount from the rows, as the free space is.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::extent::Run;
use crate::{BlockNo, Error, Result};

/// Runs of blocks by first block: the block behind the last, and how many rows cover it beyond the first.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Shares(BTreeMap<u64, (u64, u32)>);

/// How one record changes the number of rows that cover blocks.
#[derive(Debug, Default)]
pub(crate) struct Deltas(Vec<(u64, Step)>);

/// What changes at a block.
#[derive(Debug, Default, Clone, Copy)]
struct Step {
    /// Rows that covered it before the record, of those that the record changes.
    old: i64,
    /// The change of the number of rows.
    net: i64,
}

/// What is known of blocks that no row changed by a record covered before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// They were just allocated.
    Free,
    /// Other rows cover them.
    Covered,
}

/// What fewer rows cover after a record, in order.
#[derive(Debug, Default)]
pub(crate) struct Uncovered {
    /// Runs that nothing covers any more.
    pub(crate) freed: Vec<Run>,
    /// Runs that one row alone covers now.
    pub(crate) left: Vec<Run>,
}

fn append(runs: &mut Vec<Run>, range: Range<u64>) {
    match runs.last_mut() {
        Some(last) if last.end() == range.start => last.blocks += range.end - range.start,
        _ => runs.push(Run { start: BlockNo(range.start), blocks: range.end - range.start }),
    }
}

impl Deltas {
    /// A row that covered the run is changed or removed.
    pub(crate) fn remove(&mut self, run: Run) {
        self.add(run, 1, -1);
    }

    /// A row covers the run from now on.
    pub(crate) fn insert(&mut self, run: Run) {
        self.add(run, 0, 1);
    }

    fn add(&mut self, run: Run, old: i64, net: i64) {
        self.0.extend([(run.start.0, 1), (run.end(), -1)].map(|(at, sign)| (at, Step { old: sign * old, net: sign * net })));
    }

    /// The runs that fewer rows cover than before.
    pub(crate) fn gone(&self) -> Vec<Run> {
        let less = self.changes().into_iter().filter(|(_, net, _)| *net < 0);
        less.map(|(range, ..)| Run { start: BlockNo(range.start), blocks: range.end - range.start }).collect()
    }

    /// The runs whose count changes: the change, and whether the record's own rows covered them before.
    fn changes(&self) -> Vec<(Range<u64>, i64, bool)> {
        let mut steps = self.0.clone();
        steps.sort_unstable_by_key(|(at, _)| *at);
        let mut changes = Vec::with_capacity(steps.len());
        let (mut now, mut from) = (Step::default(), 0);
        for (at, step) in steps {
            if at > from && now.net != 0 {
                changes.push((from..at, now.net, now.old > 0));
            }
            (now.old, now.net, from) = (now.old + step.old, now.net + step.net, at);
        }
        changes
    }
}

impl Shares {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts, in order of their starts, all runs that rows cover.
    pub(crate) fn build(mut runs: Vec<Run>) -> Self {
        runs.sort_unstable();
        let mut ends: Vec<u64> = runs.iter().map(|run| run.end()).collect();
        ends.sort_unstable();
        let (mut shares, mut ends, mut covers, mut at) = (Self::default(), ends.into_iter().peekable(), 0u32, 0);
        let mut close = |from: u64, to: u64, covers: u32| {
            if covers > 1 && to > from {
                shares.join(from, to, covers - 1);
            }
        };
        for run in runs {
            while let Some(end) = ends.next_if(|end| *end <= run.start.0) {
                close(at, end, covers);
                (at, covers) = (at.max(end), covers - 1);
            }
            close(at, run.start.0, covers);
            (at, covers) = (run.start.0, covers + 1);
        }
        for end in ends {
            close(at, end, covers);
            (at, covers) = (end, covers - 1);
        }
        shares
    }

    /// Returns whether any block of the run is covered by more than one row.
    pub(crate) fn any(&self, run: Run) -> bool {
        let before = self.0.range(..run.end()).next_back();
        before.is_some_and(|(_, (end, _))| *end > run.start.0)
    }

    /// Carries out a record's changes.
    ///
    /// # Errors
    /// `Corrupt` when the rows contradict each other; nothing is changed then.
    pub(crate) fn apply(&mut self, deltas: &Deltas, others: Others) -> Result<Uncovered> {
        let plan = self.plan(deltas, others)?;
        let mut uncovered = Uncovered::default();
        for (range, net, count) in plan {
            self.cut(&range);
            match count {
                0 => append(&mut uncovered.freed, range),
                1 if net < 0 => append(&mut uncovered.left, range),
                1 => {}
                more => self.join(range.start, range.end, more - 1),
            }
        }
        Ok(uncovered)
    }

    /// Returns how many blocks a record would free.
    pub(crate) fn would_free(&self, deltas: &Deltas) -> Result<u64> {
        let plan = self.plan(deltas, Others::Covered)?;
        Ok(plan.iter().filter(|(.., count)| *count == 0).map(|(range, ..)| range.end - range.start).sum())
    }

    /// The change and the new number of rows of every run that changes.
    fn plan(&self, deltas: &Deltas, others: Others) -> Result<Vec<(Range<u64>, i64, u32)>> {
        let mut plan = Vec::new();
        for (range, net, own) in deltas.changes() {
            for (part, extra) in self.parts(range) {
                let before = if own || extra > 0 || others == Others::Covered { 1 + i64::from(extra) } else { 0 };
                let count = u32::try_from(before + net)
                    .map_err(|_| Error::corrupt(format!("block {} is covered by {before} extents and loses {}; run a check", part.start, -net)))?;
                plan.push((part, net, count));
            }
        }
        Ok(plan)
    }

    /// A range in parts of equal count.
    fn parts(&self, range: Range<u64>) -> Vec<(Range<u64>, u32)> {
        let mut parts = Vec::new();
        let mut at = range.start;
        let before = self.0.range(..=range.start).next_back().filter(|(start, _)| **start < range.start);
        for (start, (end, extra)) in before.into_iter().chain(self.0.range(range.clone())) {
            let (start, end) = ((*start).max(at), (*end).min(range.end));
            if end <= start {
                continue;
            }
            if start > at {
                parts.push((at..start, 0));
            }
            parts.push((start..end, *extra));
            at = end;
        }
        if at < range.end {
            parts.push((at..range.end, 0));
        }
        parts
    }

    /// Takes a range out.
    fn cut(&mut self, range: &Range<u64>) {
        let first = self.0.range(..range.start).next_back().filter(|(_, (end, _))| *end > range.start).map_or(range.start, |(start, _)| *start);
        let met: Vec<(u64, (u64, u32))> = self.0.range(first..range.end).map(|(start, rest)| (*start, *rest)).collect();
        for (start, (end, extra)) in met {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, (range.start, extra));
            }
            if end > range.end {
                self.0.insert(range.end, (end, extra));
            }
        }
    }

    /// Puts in a range of which nothing is in, joined with equal neighbours.
    fn join(&mut self, start: u64, end: u64, extra: u32) {
        let next = self.0.get(&end).filter(|(_, same)| *same == extra).map(|(end, _)| *end);
        let end = next.map_or(end, |further| {
            self.0.remove(&end);
            further
        });
        match self.0.range_mut(..start).next_back().filter(|(_, (met, same))| *met == start && *same == extra) {
            Some((_, (met, _))) => *met = end,
            None => drop(self.0.insert(start, (end, extra))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, blocks: u64) -> Run {
        Run { start: BlockNo(start), blocks }
    }

    /// I-CKP-2: against a count a block, over random records, and against a rebuild.
    #[test]
    fn i_ckp_2_a_block_is_free_when_no_row_covers_it() {
        let mut random = 11u64;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut shares, mut rows, mut counts) = (Shares::default(), Vec::<Run>::new(), [0u32; 64]);
        for _ in 0..3000 {
            let mut deltas = Deltas::default();
            let (mut gone, mut came) = (Vec::new(), Vec::new());
            for _ in 0..next(3) {
                if !rows.is_empty() {
                    gone.push(rows.swap_remove(next(rows.len() as u64) as usize));
                }
            }
            // New rows cover blocks that are covered already, or free ones: never both, as records do.
            let fresh = next(2) == 0;
            for _ in 0..next(3) {
                let start = next(60);
                let new = run(start, 1 + next(64 - start));
                let covered = |at: u64| counts[at as usize] > 0;
                let of_one_kind = if fresh { !(start..new.end()).any(covered) } else { (start..new.end()).all(covered) };
                if of_one_kind && !(fresh && came.iter().any(|other: &Run| other.start.0 < new.end() && start < other.end())) {
                    came.push(new);
                }
            }
            gone.iter().for_each(|run| deltas.remove(*run));
            came.iter().for_each(|run| deltas.insert(*run));
            let uncovered = shares.apply(&deltas, if fresh { Others::Free } else { Others::Covered }).unwrap();
            let before = counts;
            for (run, sign) in gone.iter().map(|run| (run, -1)).chain(came.iter().map(|run| (run, 1))) {
                (run.start.0..run.end()).for_each(|at| counts[at as usize] = counts[at as usize].wrapping_add_signed(sign));
            }
            rows.extend(came);
            let fell_to = |count| (0..64).filter(|at| before[*at as usize] > count && counts[*at as usize] == count).collect::<Vec<u64>>();
            let blocks = |runs: &[Run]| runs.iter().flat_map(|run| run.start.0..run.end()).collect::<Vec<_>>();
            assert_eq!(blocks(&uncovered.freed), fell_to(0), "I-CKP-2");
            assert_eq!(blocks(&uncovered.left), fell_to(1), "I-CKP-7");
            assert_eq!(shares, Shares::build(rows.clone()), "a rebuild finds the same");
            for at in 0..64 {
                assert_eq!(shares.any(run(at, 1)), counts[at as usize] > 1);
            }
        }
    }

    #[test]
    fn rows_that_contradict_each_other_are_corruption() {
        let mut deltas = Deltas::default();
        deltas.remove(run(5, 1));
        deltas.remove(run(5, 1));
        assert!(Shares::default().apply(&deltas, Others::Free).is_err());
    }
}
