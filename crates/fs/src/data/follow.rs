//! Whether the I/O of one open file goes on where it ended before.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Reads that begin so many bytes before where a reader goes on, or behind it, are near: those of a
/// program that asks for pages ahead of its reads.
const NEAR_BEFORE_BYTES: u64 = 512 << 10;
const NEAR_BEHIND_BYTES: u64 = 128 << 10;

/// Readers that share a scan, as PostgreSQL's parallel ones, each read some pages in order and pass
/// over fewer than so many bytes that the others read.
const SKIP_BYTES: u64 = 128 << 10;

/// How much of the largest window the first one has.
const FIRST_PART: u64 = 16;

/// Where the reads, or the writes, of one open file go on.
#[derive(Debug)]
pub(crate) struct Follow {
    next: AtomicU64,
    /// Something went on since the last skip.
    in_order: AtomicBool,
    /// How often the window has doubled.
    widened: AtomicU32,
}

impl Default for Follow {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(u64::MAX),
            in_order: AtomicBool::new(false),
            widened: AtomicU32::new(0),
        }
    }
}

impl Follow {
    /// Returns whether I/O of a range goes on where the one before it ended, and follows it. What
    /// goes on nowhere and reaches no multiple of `step` leaves nothing behind: most I/O of programs
    /// that jump writes nothing here that another processor would have to fetch.
    #[inline]
    pub(crate) fn goes_on(&self, range: &Range<u64>, step: u64) -> bool {
        let goes_on = self.next.load(Ordering::Relaxed) == range.start;
        if goes_on || range.start / step != range.end / step {
            self.next.store(range.end, Ordering::Relaxed);
        }
        goes_on
    }

    /// As [`goes_on`](Self::goes_on), where readers share a scan: what begins a little behind where
    /// the one before ended goes on too, if that had gone on itself. Pages that are read one by one
    /// with gaps between them do not.
    #[inline]
    pub(crate) fn goes_on_or_skips(&self, range: &Range<u64>, step: u64) -> bool {
        let skipped = range.start.checked_sub(self.next.load(Ordering::Relaxed));
        if !skipped.is_some_and(|bytes| (1..SKIP_BYTES).contains(&bytes)) {
            let goes_on = self.goes_on(range, step);
            if goes_on && !self.in_order.load(Ordering::Relaxed) {
                self.in_order.store(true, Ordering::Relaxed);
            }
            return goes_on;
        }
        self.next.store(range.end, Ordering::Relaxed);
        self.in_order.swap(false, Ordering::Relaxed)
    }

    /// Returns whether I/O at an offset lies near where the one before it ended.
    #[inline]
    pub(crate) fn is_near(&self, offset: u64) -> bool {
        let from = self.next.load(Ordering::Relaxed).saturating_sub(NEAR_BEFORE_BYTES);
        offset.wrapping_sub(from) < NEAR_BEFORE_BYTES + NEAR_BEHIND_BYTES
    }

    /// Returns how many bytes are read ahead next, twice as many each time, up to `max`.
    pub(crate) fn widen(&self, max: u64) -> u64 {
        let widened = self.widened.load(Ordering::Relaxed);
        let bytes = (max / FIRST_PART) << widened;
        if bytes < max {
            self.widened.store(widened + 1, Ordering::Relaxed);
        }
        bytes.min(max)
    }

    /// Begins with small windows again: I/O jumped.
    #[inline]
    pub(crate) fn jumped(&self) {
        if self.widened.load(Ordering::Relaxed) > 0 {
            self.widened.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_BYTES: u64 = 64 << 10;

    #[test]
    fn a_stream_is_followed_from_a_step_on() {
        let follow = Follow::default();
        let pages: Vec<bool> = (0..12)
            .map(|page| follow.goes_on(&(page * 8192..(page + 1) * 8192), STEP_BYTES))
            .collect();
        assert_eq!(pages.iter().position(|goes_on| *goes_on), Some(8), "{pages:?}");
        assert!(pages[8..].iter().all(|goes_on| *goes_on));
        assert!(!follow.goes_on(&(0..8192), STEP_BYTES), "a jump");
        assert!(follow.goes_on(&(98_304..106_496), STEP_BYTES), "it left nothing behind");
        assert!(
            !follow.goes_on(&(0..100_000), STEP_BYTES)
                && follow.goes_on(&(100_000..100_001), STEP_BYTES)
        );
        assert!(
            !Follow::default().goes_on(&(0..8192), STEP_BYTES),
            "the first I/O goes on nowhere"
        );
    }

    #[test]
    fn a_scan_is_followed_over_what_others_read_of_it() {
        let follow = Follow::default();
        let page = |page: u64| follow.goes_on_or_skips(&(page * 8192..(page + 1) * 8192), 65_536);
        let chunk = |chunk: u64| (chunk * 4..chunk * 4 + 4).filter(|at| page(*at)).count();
        let followed: Vec<usize> = [1, 4, 6, 8, 11].map(chunk).to_vec();
        assert_eq!(followed, [0, 3, 4, 4, 4], "from the second page of its second chunk on");
        assert_eq!(chunk(40), 0, "a jump");
        let single = Follow::default();
        let followed = (0..100)
            .filter(|at| single.goes_on_or_skips(&(at * 24_576..at * 24_576 + 8192), STEP_BYTES));
        assert_eq!(followed.count(), 0, "pages with gaps between them");
        assert!(
            !Follow::default().goes_on_or_skips(&(0..8192), STEP_BYTES),
            "the first I/O goes on nowhere"
        );
    }
}
