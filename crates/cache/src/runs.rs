//! The dirty pages of a file, in order, as runs: what a write-behind takes its large contiguous
//! writes from.

use std::ops::Range;
use std::time::Instant;

use bedplate_block::IntervalMap;

/// The pages as runs; each with the time when its oldest page became dirty.
#[derive(Debug, Default)]
pub(super) struct Runs(IntervalMap<Instant>);

impl Runs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a page; returns the run that it is now part of. The clock is asked only when a run
    /// begins.
    pub(super) fn insert(&mut self, page: u64, now: impl FnOnce() -> Instant) -> Range<u64> {
        self.0.grow(page..page + 1, now, |one, other| *one.min(other))
    }

    /// Removes a range of pages.
    pub(super) fn remove(&mut self, pages: &Range<u64>) {
        self.0.remove(pages);
    }

    /// Returns the first run that has been dirty since `moment` or longer.
    pub(super) fn first_since(&self, moment: Instant, from: u64) -> Option<Range<u64>> {
        self.0.overlapping(from..u64::MAX).find(|(_, since)| **since <= moment).map(|(run, _)| run)
    }

    /// Takes the first pages of `within` that are in the set and touch none of `blocked`, at most
    /// `len_max` and not across a multiple of it. The second answer says whether pages were passed
    /// over because they are blocked.
    pub(super) fn take(
        &mut self,
        within: &Range<u64>,
        len_max: u64,
        blocked: &[Range<u64>],
    ) -> (Option<Range<u64>>, bool) {
        debug_assert!(len_max > 0, "a run that is taken has a page");
        let mut at = within.start;
        let mut passed = false;
        while let Some((start, end)) = self.next_at(at).filter(|(start, _)| *start < within.end) {
            if let Some(obstacle) = blocked.iter().find(|b| b.contains(&start)) {
                passed = true;
                at = obstacle.end;
                continue;
            }
            let first_obstacle =
                blocked.iter().map(|b| b.start).filter(|&b| b > start).min().unwrap_or(u64::MAX);
            let end = end.min(within.end).min(first_obstacle).min((start / len_max + 1) * len_max);
            debug_assert!(
                start < end && end - start <= len_max && within.start <= start && end <= within.end,
                "I-CACHE-4: what is taken to be written lies where it is looked for: {start}..{end}"
            );
            self.remove(&(start..end));
            return (Some(start..end), passed);
        }
        (None, passed)
    }

    /// The first page at or after `at`, and the end of its run.
    fn next_at(&self, at: u64) -> Option<(u64, u64)> {
        self.0.at_or_after(at).map(|(run, _)| (run.start.max(at), run.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn pages(runs: &Runs) -> Vec<u64> {
        runs.0.iter().flat_map(|(run, _)| run).collect()
    }

    proptest! {
        #[test]
        fn agrees_with_a_set_of_pages(steps in prop::collection::vec((0_u8..3, 0_u64..40, 1_u64..9), 1..80)) {
            let mut runs = Runs::default();
            let mut set = BTreeSet::new();
            for (step, at, len) in steps {
                match step {
                    0 => {
                        let run = runs.insert(at, Instant::now);
                        set.insert(at);
                        prop_assert!(run.clone().all(|p| set.contains(&p)) && run.contains(&at));
                        prop_assert!(!set.contains(&run.end) && (run.start == 0 || !set.contains(&(run.start - 1))),
                            "a run is as long as it can be");
                    }
                    1 => {
                        runs.remove(&(at..at + len));
                        set.retain(|p| !(at..at + len).contains(p));
                    }
                    _ => {
                        let blocked = at + 2..at + 3;
                        let free = |p: &u64| !blocked.contains(p);
                        let expected = set.range(at..at + 2 * len).copied().find(free);
                        let (taken, _) = runs.take(&(at..at + 2 * len), len, std::slice::from_ref(&blocked));
                        prop_assert_eq!(taken.as_ref().map(|t| t.start), expected);
                        for page in taken.into_iter().flatten() {
                            prop_assert!(free(&page) && set.remove(&page));
                        }
                    }
                }
                prop_assert_eq!(pages(&runs), set.iter().copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn takes_at_multiples() {
        let mut runs = Runs::default();
        for page in 3..30 {
            runs.insert(page, Instant::now);
        }
        let mut take = |from| runs.take(&(from..100), 8, &[]).0;
        assert_eq!((take(0), take(0), take(16)), (Some(3..8), Some(8..16), Some(16..24)));
    }
}
