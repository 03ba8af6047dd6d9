//! Which blocks more or fewer rows cover and need: what the changes of a commit add up to.

use std::borrow::Cow;
use std::ops::Range;

use super::Head;
use super::counts::Change;
use crate::extent::Run;
use crate::images::Referrer;
use crate::{Error, Result};

/// From a block on: how many rows more cover what follows, and how many more need it.
type Step = (u64, i32, i32);

/// How rows that come and go change which blocks are covered. A commit has a million of them, so
/// each is a few bytes.
#[derive(Debug, Default)]
pub(crate) struct Covers(Vec<Step>);

impl Covers {
    /// A row that covered the run is changed or removed.
    pub(crate) fn remove(&mut self, run: Run, row: Referrer) {
        self.add(run, -1, -i32::from(row.needs()));
    }

    /// A row covers the run from now on.
    pub(crate) fn insert(&mut self, run: Run, row: Referrer) {
        self.add(run, 1, row.needs().into());
    }

    fn add(&mut self, run: Run, rows: i32, needing: i32) {
        debug_assert!(run.blocks > 0, "I-EXT-1: a row covers a block: {run:?}");
        self.0.extend([(run.start.0, rows, needing), (run.end(), -rows, -needing)]);
    }

    /// Puts it in order, so that reading it copies nothing.
    pub(crate) fn sort(&mut self) {
        self.0.sort_unstable_by_key(|(at, ..)| *at);
    }

    fn sorted(&self) -> Cow<'_, [Step]> {
        if self.0.is_sorted_by_key(|(at, ..)| *at) {
            return Cow::Borrowed(&self.0);
        }
        let mut steps = self.0.clone();
        steps.sort_unstable_by_key(|(at, ..)| *at);
        Cow::Owned(steps)
    }

    /// Visits the runs that more or fewer rows cover, or need, than before, in order: how many more
    /// cover and need them.
    pub(crate) fn net_changes(
        &self,
        mut visit: impl FnMut(Range<u64>, i64, i64) -> Result<()>,
    ) -> Result<()> {
        let (mut rows, mut needing, mut from) = (0_i64, 0_i64, 0);
        for (at, more, more_needing) in self.sorted().iter() {
            if *at > from && (rows != 0 || needing != 0) {
                visit(from..*at, rows, needing)?;
            }
            rows += i64::from(*more);
            needing += i64::from(*more_needing);
            from = *at;
        }
        debug_assert!(rows == 0 && needing == 0, "I-SPC-6: every row that covers blocks ends");
        Ok(())
    }

    /// Visits the changes of each region that has some, in order.
    pub(crate) fn by_region(
        &self,
        head: Head,
        mut visit: impl FnMut(u64, &[Change]) -> Result<()>,
    ) -> Result<()> {
        let (mut of, mut changes): (u64, Vec<Change>) = (0, Vec::new());
        self.net_changes(|range, rows, needing| {
            let mut at = range.start;
            while at < range.end {
                let region = at >> head.shift;
                if region != of {
                    if !changes.is_empty() {
                        visit(of, &changes)?;
                    }
                    changes.clear();
                    of = region;
                }
                let first = region << head.shift;
                let end = range.end.min(first + u64::from(head.region_blocks()));
                let within = |at: u64| u32::try_from(at - first).expect("a region is small");
                changes.push((within(at)..within(end), rows, needing));
                at = end;
            }
            Ok::<_, Error>(())
        })?;
        if changes.is_empty() { Ok(()) } else { visit(of, &changes) }
    }
}
