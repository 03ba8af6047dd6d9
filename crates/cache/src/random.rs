//! Pages of one file that are written at random, where it is bounded how many of them may be dirty:
//! which writes are at random, and the pages. Pure arithmetic.
//!
//! ```text
//!   write ─► goes on where one of the last ended? ─► yes: sequential, clusters are its measure
//!              │ no                                          (`PageCache::is_completed`)
//!              └► its pages are counted while they are dirty ─► more than there may be: all of them
//!                                                               are written behind, in file order
//! ```

use std::collections::BTreeSet;
use std::ops::Range;

/// Writers of one file that are told apart.
const WRITERS: usize = 8;

/// Where a writer of the file ended.
#[derive(Debug, Clone, Copy, Default)]
struct End {
    byte: u64,
    used_at: u64,
}

/// The dirty pages of a file that were written at random, and where its writers are.
#[derive(Debug, Default)]
pub(super) struct RandomPages {
    pages: BTreeSet<u64>,
    /// At first the file's beginning.
    ends: [End; WRITERS],
    clock: u64,
}

impl RandomPages {
    /// Notes a write; returns whether it is at random: it begins where none of the last ended.
    pub(super) fn note(&mut self, write: &Range<u64>) -> bool {
        self.clock += 1;
        let known = self.ends.iter().position(|end| end.byte == write.start);
        let oldest = || {
            let ends = self.ends.iter().enumerate();
            ends.min_by_key(|(_, end)| end.used_at).map_or(0, |(at, _)| at)
        };
        let at = known.unwrap_or_else(oldest);
        self.ends[at] = End { byte: write.end, used_at: self.clock };
        known.is_none()
    }

    /// Adds a page that became dirty.
    pub(super) fn insert(&mut self, page: u64) {
        self.pages.insert(page);
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Removes pages that are dirty no more, or on their way.
    pub(super) fn remove(&mut self, pages: &Range<u64>) {
        while let Some(page) = self.pages.range(pages.clone()).next().copied() {
            self.pages.remove(&page);
        }
    }

    /// Takes all of them as runs, the last one first.
    pub(super) fn take(&mut self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for page in std::mem::take(&mut self.pages).into_iter().rev() {
            match runs.last_mut().filter(|run| run.start == page + 1) {
                Some(run) => run.start = page,
                None => runs.push(page..page + 1),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_at_random_unless_it_goes_on_where_one_of_the_last_ended() {
        let mut random = RandomPages::default();
        assert!(!random.note(&(0..8192)), "the file's beginning");
        assert!(!random.note(&(8192..9000)) && !random.note(&(9000..20_000)));
        assert!(random.note(&(1 << 20..(1 << 20) + 4096)), "elsewhere");
        assert!(!random.note(&((1 << 20) + 4096..(1 << 20) + 5000)), "and on from there");
        for other in 10..16 {
            assert!(random.note(&(other << 20..(other << 20) + 1)));
        }
        assert!(!random.note(&(20_000..30_000)), "six others later it still is a writer");
        for other in 20..28 {
            assert!(random.note(&(other << 20..(other << 20) + 1)));
        }
        assert!(random.note(&(30_000..40_000)), "eight others later it is not known any more");
    }

    #[test]
    fn pages_are_taken_as_runs_from_the_end() {
        let mut random = RandomPages::default();
        for page in [9, 3, 11, 10, 4, 30, 9] {
            random.insert(page);
        }
        assert_eq!(random.count(), 6);
        random.remove(&(10..11));
        assert_eq!(random.take(), [30..31, 11..12, 9..10, 3..5]);
        assert_eq!((random.count(), random.take()), (0, Vec::new()));
    }
}
