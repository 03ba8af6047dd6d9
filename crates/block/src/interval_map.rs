//! Intervals of numbers, each with a value: the map that keeps runs of bytes, blocks or pages.
//!
//! ```text
//!   put(4..9, B) over  [2..6: A]              ->  [2..4: A] [4..9: B]
//!   remove(3..5)  from [2..6: A]              ->  [2..3: A] [5..6: A after 3]
//!   grow(4..6)    into [2..4: A] [6..8: B]    ->  [2..8: A merged with B]
//! ```
//!
//! - I-IVL-1: runs are not empty and do not overlap.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// The value of a run, which may be divided.
pub trait RunValue: Clone {
    /// Returns the value of the part that begins `distance` numbers behind the run's start: the
    /// same unless the value counts along.
    #[must_use]
    fn skip(&self, distance: u64) -> Self {
        let _ = distance;
        self.clone()
    }
}

impl RunValue for () {}
impl RunValue for Instant {}

/// Disjoint runs in the order of their numbers. Cloning takes time in proportion to the number of
/// runs, not to their length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntervalMap<V> {
    /// By start: the end, and the value.
    runs: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for IntervalMap<V> {
    fn default() -> Self {
        Self { runs: BTreeMap::new() }
    }
}

impl<V> IntervalMap<V> {
    /// Says whether there are no runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Returns all runs in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Range<u64>, &V)> {
        self.runs.iter().map(|(start, (end, value))| (*start..*end, value))
    }

    /// Returns the runs that have a number of the range, whole and in order.
    pub fn overlapping(
        &self,
        range: Range<u64>,
    ) -> impl DoubleEndedIterator<Item = (Range<u64>, &V)> {
        let from = self.first_in(&range);
        self.runs
            .range(from..range.end.max(from))
            .map(|(start, (end, value))| (*start..*end, value))
    }

    /// Returns the run that has this number, or else the first behind it.
    #[must_use]
    pub fn at_or_after(&self, at: u64) -> Option<(Range<u64>, &V)> {
        self.overlapping(at..u64::MAX).next()
    }

    /// Returns the parts of a range that no run has, in order.
    #[must_use]
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut at = range.start;
        let mut gaps = Vec::new();
        for (run, _) in self.overlapping(range.clone()) {
            if run.start > at {
                gaps.push(at..run.start);
            }
            debug_assert!(run.end > at, "I-IVL-1: runs follow each other: {run:?} after {at}");
            at = run.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Adds a range to the run that it overlaps or touches, or else as a run with the value that
    /// `value` makes; runs that meet become one, with what `merge` makes of their values. Returns
    /// the run.
    pub fn grow(
        &mut self,
        range: Range<u64>,
        value: impl FnOnce() -> V,
        merge: impl Fn(&V, &V) -> V,
    ) -> Range<u64> {
        assert!(range.start < range.end, "I-IVL-1: a run has numbers");
        let start = match self
            .runs
            .range_mut(..=range.start)
            .next_back()
            .filter(|(_, (end, _))| *end >= range.start)
        {
            Some((start, (end, _))) if *end >= range.end => return *start..*end,
            Some((start, (end, _))) => {
                *end = range.end;
                *start
            }
            None => {
                self.runs.insert(range.start, (range.end, value()));
                range.start
            }
        };
        self.absorb(start, merge)
    }

    /// Joins the run at `start` with those behind it that it overlaps or touches; returns it.
    fn absorb(&mut self, start: u64, merge: impl Fn(&V, &V) -> V) -> Range<u64> {
        loop {
            let end = self.runs[&start].0;
            debug_assert!(start < end, "I-IVL-1: a run has numbers: {start}..{end}");
            let Some((&next, _)) = self.runs.range(start + 1..=end).next() else {
                return start..end;
            };
            let (next_end, value) = self.runs.remove(&next).expect("it was just found");
            let run = self.runs.get_mut(&start).expect("it was just found");
            *run = (end.max(next_end), merge(&run.1, &value));
        }
    }

    fn first_in(&self, range: &Range<u64>) -> u64 {
        let before = self
            .runs
            .range(..range.start)
            .next_back()
            .filter(|(_, (end, _))| *end > range.start && range.start < range.end);
        before.map_or(range.start, |(start, _)| *start)
    }

    fn insert(&mut self, range: Range<u64>, value: V) {
        debug_assert!(
            range.start < range.end && self.overlapping(range.clone()).next().is_none(),
            "I-IVL-1: runs do not overlap"
        );
        self.runs.insert(range.start, (range.end, value));
    }
}

impl<V: RunValue> IntervalMap<V> {
    /// Puts a run over whatever is there. An empty range changes nothing.
    pub fn put(&mut self, range: Range<u64>, value: V) {
        if range.start < range.end {
            self.remove(&range);
            self.insert(range, value);
        }
    }

    /// Takes a range out; returns what was there, in order.
    pub fn remove(&mut self, range: &Range<u64>) -> Vec<(Range<u64>, V)> {
        self.remove_where(range, |_| true)
    }

    /// Takes the part of a range out whose value `goes`; returns it in order.
    pub fn remove_where(
        &mut self,
        range: &Range<u64>,
        goes: impl Fn(&V) -> bool,
    ) -> Vec<(Range<u64>, V)> {
        let met: Vec<u64> = self
            .overlapping(range.clone())
            .filter(|(_, value)| goes(value))
            .map(|(run, _)| run.start)
            .collect();
        met.into_iter().map(|start| self.cut_out(start, range)).collect()
    }

    /// Takes the part of a run out that lies in a range.
    fn cut_out(&mut self, start: u64, range: &Range<u64>) -> (Range<u64>, V) {
        debug_assert!(range.start < range.end, "I-IVL-1: what is cut out is some: {range:?}");
        let (end, value) = self.runs.remove(&start).expect("it was just found");
        if end > range.end {
            self.insert(range.end..end, value.skip(range.end - start));
        }
        if start >= range.start {
            return (start..end.min(range.end), value);
        }
        let cut = (range.start..end.min(range.end), value.skip(range.start - start));
        self.insert(start..range.start, value);
        cut
    }

    /// Divides a range into what the runs have of it, each with its value, and gaps.
    #[must_use]
    pub fn pieces(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<V>)> {
        let mut at = range.start;
        let mut pieces = Vec::new();
        for (run, value) in self.overlapping(range.clone()) {
            if run.start > at {
                pieces.push((at..run.start, None));
            }
            debug_assert!(
                run.end > at && run.start < range.end,
                "I-IVL-1: runs follow each other: {run:?} after {at}"
            );
            let piece = run.start.max(at)..run.end.min(range.end);
            at = piece.end;
            pieces.push((piece.clone(), Some(value.skip(piece.start - run.start))));
        }
        if at < range.end {
            pieces.push((at..range.end, None));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 64;

    /// A value that counts along: the place of the run's first number elsewhere.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct At(u64);

    impl RunValue for At {
        fn skip(&self, distance: u64) -> Self {
            Self(self.0 + distance)
        }
    }

    /// A value that stays the same.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Oldest(u64);

    impl RunValue for Oldest {}

    #[derive(Debug, Clone)]
    enum Step {
        Put(u64),
        Remove,
        RemoveOdd,
    }

    fn step() -> impl Strategy<Value = (Step, Range<u64>)> {
        let step = prop_oneof![3 => (0..1000_u64).prop_map(|at| Step::Put(at * 100)), 1 => Just(Step::Remove), 1 => Just(Step::RemoveOdd)];
        (step, 0..SIZE, 0..20_u64)
            .prop_map(|(step, start, len)| (step, start..(start + len).min(SIZE)))
    }

    proptest! {
        /// I-IVL-1: against a value for each number.
        #[test]
        fn i_ivl_1_behaves_as_an_array_of_values(steps in prop::collection::vec(step(), 0..40)) {
            let mut model: Vec<Option<(u64, At)>> = vec![None; SIZE as usize];
            let mut map = IntervalMap::default();
            for (number, (step, range)) in steps.into_iter().enumerate() {
                // A run keeps the start that it was put with, which is odd or even as the step was.
                let slots = &mut model[range.start as usize..range.end as usize];
                match step {
                    Step::Put(at) => {
                        let at = at * 2 + number as u64 % 2;
                        map.put(range.clone(), At(at));
                        slots.iter_mut().zip(0..).for_each(|(slot, n)| *slot = Some((number as u64 % 2, At(at + n))));
                    }
                    Step::Remove => {
                        let expected: Vec<At> = slots.iter_mut().filter_map(|slot| slot.take().map(|(_, at)| at)).collect();
                        let removed = map.remove(&range);
                        prop_assert!(removed.iter().all(|(part, _)| range.start <= part.start && part.end <= range.end));
                        let found: Vec<At> = removed.into_iter().flat_map(|(part, at)| (0..part.end - part.start).map(move |n| at.skip(n))).collect();
                        prop_assert_eq!(found, expected);
                    }
                    Step::RemoveOdd => {
                        // Only whole values decide: the model asks for the value at the start of
                        // each run as it is now.
                        let runs: Vec<(Range<u64>, At)> = map.overlapping(range.clone()).map(|(run, at)| (run, *at)).collect();
                        map.remove_where(&range, |at| at.0 % 2 == 1);
                        for (run, _) in runs.into_iter().filter(|(_, at)| at.0 % 2 == 1) {
                            (run.start.max(range.start)..run.end.min(range.end)).for_each(|at| model[at as usize] = None);
                        }
                    }
                }
                let numbers = map.iter().flat_map(|(run, at)| (0..run.end - run.start).map(move |n| (run.start + n, at.skip(n))));
                let expected = model.iter().zip(0..).filter_map(|(slot, at)| slot.map(|(_, value)| (at, value)));
                prop_assert!(numbers.eq(expected), "{map:?}");
                prop_assert!(map.iter().all(|(run, _)| run.start < run.end));
                for range in [0..SIZE, 7..23, SIZE / 2..SIZE, 5..6, 9..9] {
                    let pieces = map.pieces(range.clone());
                    let slots = pieces.iter().flat_map(|(part, at)| part.clone().map(move |n| at.map(|at| at.skip(n - part.start))));
                    prop_assert!(slots.eq(model[range.start as usize..range.end as usize].iter().map(|slot| slot.map(|(_, at)| at))),
                        "{pieces:?}");
                    let gaps: Vec<_> = pieces.iter().filter(|(_, at)| at.is_none()).map(|(part, _)| part.clone()).collect();
                    prop_assert_eq!(map.gaps(range.clone()), gaps);
                    let first = (range.start..SIZE).find(|at| model[*at as usize].is_some());
                    prop_assert_eq!(map.at_or_after(range.start).map(|(run, _)| run.start.max(range.start)), first);
                }
            }
        }

        #[test]
        fn what_grows_is_as_long_as_it_can_be(ranges in prop::collection::vec((0..SIZE, 1..9_u64, any::<bool>()), 1..60)) {
            const FREE: u64 = u64::MAX;
            let (mut map, mut model) = (IntervalMap::<Oldest>::default(), vec![FREE; SIZE as usize + 16]);
            for (now, (start, len, grows)) in (0..).zip(ranges) {
                let range = start..start + len;
                if !grows {
                    map.remove(&range);
                    model[range.start as usize..range.end as usize].fill(FREE);
                    continue;
                }
                let run = map.grow(range.clone(), || Oldest(now), |one, other| Oldest(one.0.min(other.0)));
                // A run has the value of the oldest of those that it is made of.
                let met = &mut model[run.start as usize..run.end as usize];
                let oldest = met.iter().copied().min().map_or(now, |oldest| oldest.min(now));
                met.fill(oldest);
                prop_assert!(run.start <= range.start && range.end <= run.end);
                prop_assert!((run.start == 0 || model[run.start as usize - 1] == FREE) && model[run.end as usize] == FREE,
                    "it would have joined");
                prop_assert!(map.iter().all(|(run, value)| model[run.start as usize..run.end as usize].iter().all(|found| *found == value.0)));
                let numbers = map.iter().map(|(run, _)| run.end - run.start).sum::<u64>();
                prop_assert_eq!(numbers, model.iter().filter(|value| **value != FREE).count() as u64);
            }
        }
    }
}
