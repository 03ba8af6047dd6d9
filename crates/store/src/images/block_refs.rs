//! Reference counts of blocks: how many extent rows refer to a block that more than one refers to,
//! live ones and before-images.
//!
//! Blocks that one row covers are the ordinary case and cost nothing here. A record that changes
//! rows changes the counts; a block that no row covers any more is free (I-CKP-2). Rebuilt at mount
//! from the rows, as the free space is.
//!
//! An image of an unwritten extent covers blocks without needing what is in them: they read as
//! zeros there whatever it is. A live row needs its blocks in either state, because its file may
//! begin to write them at any time.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::extent::{Extent, ExtentChange, ExtentState, Run};
use crate::planted::{PlantedBug, planted};
use crate::{BlockNo, Error, Result};

/// Runs of blocks that several rows cover, by first block.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct BlockRefs(BTreeMap<u64, SharedRun>);

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SharedRun {
    /// The block behind the last.
    end: u64,
    refs: RefCount,
}

/// The rows that cover a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RefCount {
    /// How many there are.
    pub rows: u32,
    /// How many of them need what is in it.
    pub needing: u32,
}

/// How one record changes which rows cover blocks.
#[derive(Debug, Default)]
pub struct Deltas(Vec<(u64, Step)>);

/// What kind of row covers a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Referrer {
    /// An extent of a file.
    Live(ExtentState),
    /// What one was in a checkpoint.
    Image(ExtentState),
}

impl Referrer {
    /// Returns whether it needs what is in its blocks.
    pub(crate) fn needs(self) -> bool {
        self != Self::Image(ExtentState::Unwritten)
            && !(self == Self::Live(ExtentState::Unwritten)
                && planted(PlantedBug::UnwrittenNotNeeded))
    }
}

/// What changes at a block: how many of the rows that the record changes begin to cover it there,
/// less those that cease to.
#[derive(Debug, Default, Clone, Copy)]
struct Step {
    /// Before the record.
    old: i64,
    old_needing: i64,
    /// After it.
    new: i64,
    new_needing: i64,
    /// Of the new ones.
    new_written: i64,
}

impl Step {
    fn and(self, other: Self) -> Self {
        Self {
            old: self.old + other.old,
            old_needing: self.old_needing + other.old_needing,
            new: self.new + other.new,
            new_needing: self.new_needing + other.new_needing,
            new_written: self.new_written + other.new_written,
        }
    }

    fn net(self) -> i64 {
        self.new - self.old
    }

    fn net_needing(self) -> i64 {
        self.new_needing - self.old_needing
    }

    fn ending(self) -> Self {
        Self {
            old: -self.old,
            old_needing: -self.old_needing,
            new: -self.new,
            new_needing: -self.new_needing,
            new_written: -self.new_written,
        }
    }
}

/// What is known of blocks that no row changed by a record covered before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// They were just allocated.
    Free,
    /// Other rows cover them. Where that is one row, the record copies it: a rollback and a clone
    /// take what a checkpoint shows, a copied range what a file has.
    Covered,
    /// They were just allocated, for what the rows of the record had elsewhere: every row that
    /// covered the blocks there is in it, and no checkpoint keeps the place that it had.
    Moved,
}

/// What fewer rows cover after a record, in order.
#[derive(Debug, Default)]
pub struct Uncovered {
    /// Runs that nothing covers any more.
    pub freed: Vec<Run>,
    /// Runs that others needed, and now at most one of the rows that cover them does.
    pub left: Vec<Run>,
}

fn append(runs: &mut Vec<Run>, range: Range<u64>) {
    debug_assert!(range.start < range.end, "blocks are noted that there are: {range:?}");
    debug_assert!(
        runs.last().is_none_or(|last| last.end() <= range.start),
        "runs are noted in order: {range:?}"
    );
    match runs.last_mut() {
        Some(last) if last.end() == range.start => last.blocks += range.end - range.start,
        _ => runs.push(Run { start: BlockNo(range.start), blocks: range.end - range.start }),
    }
}

impl Deltas {
    /// A row that covered the run is changed or removed.
    pub fn remove(&mut self, run: Run, row: Referrer) {
        self.add(run, Step { old: 1, old_needing: row.needs().into(), ..Step::default() });
    }

    /// A row covers the run from now on.
    pub fn insert(&mut self, run: Run, row: Referrer) {
        let written = matches!(
            row,
            Referrer::Live(ExtentState::Written) | Referrer::Image(ExtentState::Written)
        );
        self.add(
            run,
            Step {
                new: 1,
                new_needing: row.needs().into(),
                new_written: written.into(),
                ..Step::default()
            },
        );
    }

    fn add(&mut self, run: Run, step: Step) {
        debug_assert!(run.blocks > 0, "I-EXT-1: a row covers a block: {run:?}");
        self.0.extend([(run.start.0, step), (run.end(), step.ending())]);
    }

    /// The runs that fewer rows cover than before.
    pub fn gone(&self) -> Vec<Run> {
        let less = self.changes().into_iter().filter(|(_, step)| step.net() < 0);
        less.map(|(range, _)| Run { start: BlockNo(range.start), blocks: range.end - range.start })
            .collect()
    }

    /// The runs that more or fewer rows cover, or need, than before.
    fn changes(&self) -> Vec<(Range<u64>, Step)> {
        let mut steps = self.0.clone();
        steps.sort_unstable_by_key(|(at, _)| *at);
        let mut changes = Vec::with_capacity(steps.len());
        let (mut now, mut from) = (Step::default(), 0);
        for (at, step) in steps {
            if at > from && (now.net() != 0 || now.net_needing() != 0) {
                changes.push((from..at, now));
            }
            (now, from) = (now.and(step), at);
        }
        debug_assert!(
            now.net() == 0 && now.net_needing() == 0,
            "I-CKP-2: every row that begins to cover blocks ends"
        );
        changes
    }
}

impl BlockRefs {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts all rows.
    pub(crate) fn build(rows: impl IntoIterator<Item = (Run, Referrer)>) -> Self {
        let mut deltas = Deltas::default();
        rows.into_iter().for_each(|(run, row)| deltas.insert(run, row));
        let mut shares = Self::default();
        for (range, step) in deltas.changes() {
            let count = |n: i64| u32::try_from(n).expect("fewer rows than fit into memory");
            let refs = RefCount { rows: count(step.new), needing: count(step.new_needing) };
            if refs.rows > 1 {
                shares.join(&range, refs);
            }
        }
        shares
    }

    /// Takes over runs that more than one row covers, in order.
    pub(crate) fn from_counts(runs: impl Iterator<Item = (Range<u64>, RefCount)>) -> Self {
        let mut shares = Self::default();
        runs.for_each(|(range, refs)| shares.join(&range, refs));
        shares
    }

    /// Returns the parts of a run that more than one row covers, and how many do.
    pub fn covering(&self, run: Run) -> Vec<(Run, u32)> {
        let parts = self.parts(run.start.0..run.end()).into_iter();
        parts
            .filter_map(|(part, refs)| {
                let run = Run { start: BlockNo(part.start), blocks: part.end - part.start };
                refs.map(|refs| (run, refs.rows))
            })
            .collect()
    }

    /// Returns a run in parts, each with whether more rows than that of a file's own extent need its
    /// blocks.
    pub fn needed_elsewhere(&self, run: Run) -> Vec<(Run, bool)> {
        let mut parts: Vec<(Run, bool)> = Vec::with_capacity(1);
        for (range, refs) in self.parts(run.start.0..run.end()) {
            let rows_max = 1 + u32::from(planted(PlantedBug::TwoAreNone));
            let needed = refs.is_some_and(|refs| refs.needing > rows_max);
            match parts.last_mut() {
                Some((last, same)) if *same == needed => last.blocks += range.end - range.start,
                _ => {
                    let blocks = range.end - range.start;
                    parts.push((Run { start: BlockNo(range.start), blocks }, needed));
                }
            }
        }
        if planted(PlantedBug::SharedAsAWhole) {
            return vec![(run, parts.iter().any(|(_, needed)| *needed))];
        }
        parts
    }

    /// Carries out a record's changes.
    ///
    /// # Errors
    /// `Corrupt` when the rows contradict each other; nothing is changed then.
    pub fn apply(&mut self, deltas: &Deltas, others: Others) -> Result<Uncovered> {
        let plan = self.plan(deltas, others)?;
        let mut uncovered = Uncovered::default();
        for (range, refs, less) in plan {
            self.cut(&range);
            if refs.rows > 1 {
                self.join(&range, refs);
            }
            match refs {
                RefCount { rows: 0, .. } => append(&mut uncovered.freed, range),
                RefCount { needing: ..=1, .. } if less => append(&mut uncovered.left, range),
                _ => {}
            }
        }
        Ok(uncovered)
    }

    /// Returns how many blocks a record would free.
    pub fn would_free(&self, deltas: &Deltas) -> Result<u64> {
        let plan = self.plan(deltas, Others::Covered)?;
        Ok(plan
            .iter()
            .filter(|(_, refs, _)| refs.rows == 0)
            .map(|(range, ..)| range.end - range.start)
            .sum())
    }

    /// Which rows cover every run that changes, from then on, and whether fewer need it than
    /// before.
    fn plan(&self, deltas: &Deltas, others: Others) -> Result<Vec<(Range<u64>, RefCount, bool)>> {
        let mut plan = Vec::new();
        for (range, step) in deltas.changes() {
            for (part, counted) in self.parts(range) {
                let before = counted.unwrap_or_else(|| before(step, others));
                let count = |before: u32, net: i64| u32::try_from(i64::from(before) + net).ok();
                let (rows, needing) =
                    (count(before.rows, step.net()), count(before.needing, step.net_needing()));
                let (Some(rows), Some(needing)) = (rows, needing) else {
                    let RefCount { rows, needing } = before;
                    let message = format!(
                        "block {} is covered by {rows} extents, {needing} of which need it, and \
                         more of them go; run a check",
                        part.start
                    );
                    return Err(Error::corrupt(message));
                };
                plan.push((part, RefCount { rows, needing }, step.net_needing() < 0));
            }
        }
        Ok(plan)
    }

    /// A range in parts that the same rows cover; `None` where that is at most one.
    fn parts(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<RefCount>)> {
        let mut parts = Vec::new();
        let mut at = range.start;
        let before =
            self.0.range(..=range.start).next_back().filter(|(start, _)| **start < range.start);
        for (start, share) in before.into_iter().chain(self.0.range(range.clone())) {
            let (start, end) = ((*start).max(at), share.end.min(range.end));
            if end <= start {
                continue;
            }
            if start > at {
                parts.push((at..start, None));
            }
            parts.push((start..end, Some(share.refs)));
            at = end;
        }
        if at < range.end {
            parts.push((at..range.end, None));
        }
        debug_assert_eq!(
            parts.iter().map(|(part, _)| part.end - part.start).sum::<u64>(),
            range.end - range.start,
            "the parts of a range are all of it: {range:?}"
        );
        parts
    }

    /// Takes a range out.
    fn cut(&mut self, range: &Range<u64>) {
        let first = self
            .0
            .range(..range.start)
            .next_back()
            .filter(|(_, share)| share.end > range.start)
            .map_or(range.start, |(start, _)| *start);
        let met: Vec<(u64, SharedRun)> =
            self.0.range(first..range.end).map(|(start, share)| (*start, *share)).collect();
        for (start, share) in met {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, SharedRun { end: range.start, ..share });
            }
            if share.end > range.end && !planted(PlantedBug::ShareTailLost) {
                self.0.insert(range.end, share);
            }
        }
    }

    /// Puts in a range of which nothing is in, joined with equal neighbours.
    fn join(&mut self, range: &Range<u64>, refs: RefCount) {
        debug_assert!(
            refs.rows > 1 && range.start < range.end,
            "I-CKP-2: counted are blocks under more than one row: {refs:?} at {range:?}"
        );
        let next = self.0.get(&range.end).filter(|share| share.refs == refs).map(|share| share.end);
        let end = next.map_or(range.end, |further| {
            self.0.remove(&range.end);
            further
        });
        debug_assert!(
            self.0.range(range.start..end).next().is_none(),
            "I-CKP-2: a block is counted once: {range:?}"
        );
        match self
            .0
            .range_mut(..range.start)
            .next_back()
            .filter(|(_, share)| share.end == range.start && share.refs == refs)
        {
            Some((_, share)) => share.end = end,
            None => drop(self.0.insert(range.start, SharedRun { end, refs })),
        }
    }
}

/// What covered blocks that are not counted, because that was at most one row.
fn before(step: Step, others: Others) -> RefCount {
    let one = |needs: bool| RefCount { rows: 1, needing: needs.into() };
    match others {
        _ if step.old > 0 => one(step.old_needing > 0),
        // A row of which a live one becomes a copy: an image of the same state, or, of written
        // blocks only, another live one.
        Others::Covered => one(step.new_written > 0),
        Others::Free | Others::Moved => RefCount::default(),
    }
}

/// Returns the volume blocks that belonged to a file before `changes`, each of a row that was
/// `old`, and do not any more.
pub fn freed_by(changes: &[ExtentChange], old: &[Option<Extent>]) -> Vec<Run> {
    let mut deltas = Deltas::default();
    // Their states make no difference here.
    let row = Referrer::Live(ExtentState::Written);
    let run = |extent: &Extent| Run { start: extent.start, blocks: extent.blocks.into() };
    old.iter().flatten().for_each(|extent| deltas.remove(run(extent), row));
    for change in changes {
        if let ExtentChange::Put(_, extent) = change {
            deltas.insert(run(extent), row);
        }
    }
    deltas.gone()
}

#[cfg(test)]
mod tests {
    use ExtentState::{Unwritten, Written};

    use super::*;

    fn run(start: u64, blocks: u64) -> Run {
        Run { start: BlockNo(start), blocks }
    }

    const BLOCKS: u64 = 64;

    /// Rows, and what covers every block, counted one by one.
    #[derive(Default)]
    struct Model(Vec<(Run, Referrer)>);

    impl Model {
        fn rows(&self, at: u64) -> impl Iterator<Item = Referrer> {
            self.0
                .iter()
                .filter(move |(run, _)| (run.start.0..run.end()).contains(&at))
                .map(|(_, row)| *row)
        }

        /// How many rows cover a block, and how many need it.
        fn count(&self, at: u64) -> (usize, usize) {
            (self.rows(at).count(), self.rows(at).filter(|row| row.needs()).count())
        }

        /// Whether one record may put a live row there: all its blocks are free, or all covered;
        /// and where one row covers one it becomes a copy of that.
        fn admits(&self, run: Run, state: ExtentState, fresh: bool) -> bool {
            (run.start.0..run.end()).all(|at| match (self.rows(at).count(), self.rows(at).next()) {
                (1, Some(row)) => {
                    !fresh
                        && (row == Referrer::Image(state)
                            || (row == Referrer::Live(Written) && state == Written))
                }
                (count, _) => fresh == (count == 0),
            })
        }
    }

    /// Whether any block of a run is needed elsewhere.
    fn is_needed(shares: &BlockRefs, run: Run) -> bool {
        shares.needed_elsewhere(run).iter().any(|(_, needed)| *needed)
    }

    struct Dice(u64);

    impl Dice {
        fn next(&mut self, below: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % below
        }

        /// Live rows that a record puts over free blocks, or over covered ones.
        fn come(&mut self, model: &Model, fresh: bool) -> Vec<(Run, Referrer)> {
            let mut came: Vec<(Run, Referrer)> = Vec::new();
            for _ in 0..self.next(3) {
                let start = self.next(BLOCKS - 4);
                let (new, state) = (
                    run(start, 1 + self.next(BLOCKS - start)),
                    [Written, Unwritten][self.next(2) as usize],
                );
                let meets = |other: &Run| other.start.0 < new.end() && start < other.end();
                if model.admits(new, state, fresh) && !came.iter().any(|(other, _)| meets(other)) {
                    came.push((new, Referrer::Live(state)));
                }
            }
            came
        }

        /// What becomes of a row: nothing, or, of a live one, the rows that a write into it makes,
        /// with an image of what it was.
        fn change(&mut self, (old, row): (Run, Referrer)) -> Vec<(Run, Referrer)> {
            let Referrer::Live(state) = row else { return Vec::new() };
            let kept =
                if self.next(2) == 0 { vec![(old, Referrer::Image(state))] } else { Vec::new() };
            if self.next(2) == 0 {
                return kept;
            }
            let at = old.start.0 + self.next(old.blocks);
            let rest = [(old.start.0, at), (at + 1, old.end())]
                .into_iter()
                .filter(|(start, end)| start < end);
            let parts = rest
                .map(|(start, end)| (run(start, end - start), row))
                .chain([(run(at, 1), Referrer::Live(Written))]);
            parts.chain(kept).collect()
        }
    }

    /// I-CKP-2: against a count a block, over random records, and against a rebuild.
    #[test]
    fn i_ckp_2_a_block_is_free_when_no_row_covers_it() {
        let (mut dice, mut shares, mut model) = (Dice(11), BlockRefs::default(), Model::default());
        let mut shared = 0;
        for _ in 0..3000 {
            let before: Vec<_> = (0..BLOCKS).map(|at| model.count(at)).collect();
            let fresh = dice.next(2) == 0;
            let mut came = dice.come(&model, fresh);
            let mut deltas = Deltas::default();
            for _ in 0..dice.next(3) {
                if !model.0.is_empty() {
                    let gone = model.0.swap_remove(dice.next(model.0.len() as u64) as usize);
                    deltas.remove(gone.0, gone.1);
                    came.extend(dice.change(gone));
                }
            }
            came.iter().for_each(|(run, row)| deltas.insert(*run, *row));
            let uncovered =
                shares.apply(&deltas, if fresh { Others::Free } else { Others::Covered }).unwrap();
            model.0.extend(came);
            let now = |at: &u64| (before[*at as usize], model.count(*at));
            let freed = |at: &u64| matches!(now(at), ((1.., _), (0, _)));
            let left = |at: &u64| matches!(now(at), ((_, before), (1.., needing)) if needing <= 1 && needing < before);
            let blocks = |runs: &[Run]| {
                runs.iter().flat_map(|run| run.start.0..run.end()).collect::<Vec<_>>()
            };
            assert_eq!(
                blocks(&uncovered.freed),
                (0..BLOCKS).filter(freed).collect::<Vec<_>>(),
                "I-CKP-2"
            );
            assert_eq!(
                blocks(&uncovered.left),
                (0..BLOCKS).filter(left).collect::<Vec<_>>(),
                "I-CKP-7"
            );
            assert_eq!(shares, BlockRefs::build(model.0.clone()), "a rebuild finds the same");
            for at in 0..BLOCKS {
                let (rows, needing) = model.count(at);
                assert_eq!(is_needed(&shares, run(at, 1)), needing > 1);
                shared += usize::from(needing < rows && needing > 1);
            }
            let parts = shares.needed_elsewhere(run(0, BLOCKS));
            let by_part = parts.iter().flat_map(|(run, is)| (run.start.0..run.end()).map(|_| *is));
            let by_block = (0..BLOCKS).map(|at| model.count(at).1 > 1);
            assert!(by_part.eq(by_block), "blocks are asked one by one");
        }
        assert!(shared > 100, "blocks that some rows need and others cover: {shared}");
    }

    /// S-12, S-55: what is left of preallocated blocks after a write into them is not needed,
    /// though an image covers it too.
    #[test]
    fn blocks_that_hold_no_data_in_a_checkpoint_are_not_needed_there() {
        let (mut shares, mut deltas) = (BlockRefs::default(), Deltas::default());
        deltas.remove(run(100, 10), Referrer::Live(Unwritten));
        deltas.insert(run(100, 10), Referrer::Image(Unwritten));
        for (at, blocks, state) in [(100, 4, Unwritten), (104, 1, Written), (105, 5, Unwritten)] {
            deltas.insert(run(at, blocks), Referrer::Live(state));
        }
        assert!(shares.apply(&deltas, Others::Free).unwrap().freed.is_empty());
        assert!(!shares.is_empty() && !is_needed(&shares, run(100, 10)));
    }

    /// Two clones whose shared blocks were zeroed may both begin to write them.
    #[test]
    fn unwritten_blocks_of_two_files_are_needed_by_both() {
        let shares = BlockRefs::build([
            (run(100, 10), Referrer::Live(Unwritten)),
            (run(100, 10), Referrer::Live(Unwritten)),
        ]);
        assert!(is_needed(&shares, run(109, 1)) && !is_needed(&shares, run(110, 1)));
    }

    #[test]
    fn rows_that_contradict_each_other_are_corruption() {
        let mut deltas = Deltas::default();
        deltas.remove(run(5, 1), Referrer::Live(Written));
        deltas.remove(run(5, 1), Referrer::Live(Written));
        assert!(BlockRefs::default().apply(&deltas, Others::Free).is_err());
    }
}
