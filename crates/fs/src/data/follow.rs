//! Whether the I/O of one open file goes on where it ended before.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the reads, or the writes, of one open file go on.
#[derive(Debug)]
pub(crate) struct Follow {
    next: AtomicU64,
}

impl Default for Follow {
    fn default() -> Self {
        Self { next: AtomicU64::new(u64::MAX) }
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
}
