//! The period of a schedule, on two clocks.
//!
//! The wall clock says whether a run is due. It may be set back: a run is due then too, so that
//! none is waited for until the clock has caught up; but not before half a period has passed on the
//! clock that never goes back, so that a clock that jumps to and fro does not make many.

use std::time::Duration;

/// A period in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period(pub u64);

impl Period {
    /// The shortest, in seconds: a minute.
    pub const S_MIN: u64 = 60;
    /// The longest, in seconds: ten years.
    pub const S_MAX: u64 = 3650 * 86_400;

    /// Returns what is wrong with it.
    #[must_use]
    pub fn fault(self) -> Option<String> {
        let fits = (Self::S_MIN..=Self::S_MAX).contains(&self.0);
        (!fits).then(|| {
            format!("a period of {} seconds is not between a minute and ten years", self.0)
        })
    }

    /// Returns how long the next run is put off where the wall clock is behind the last run.
    /// `elapsed` is how long ago, on the steady clock, this process began the last one; `None`: it
    /// began none.
    #[must_use]
    pub fn wait_after_clock_went_back(self, elapsed: Option<Duration>) -> Duration {
        elapsed.map_or(Duration::ZERO, |elapsed| {
            (Duration::from_secs(self.0) / 2).saturating_sub(elapsed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_a_minute_to_ten_years() {
        assert!([60, 3600, 315_360_000].iter().all(|s| Period(*s).fault().is_none()));
        assert!(
            [0, 59, 315_360_001, u64::MAX]
                .iter()
                .all(|s| Period(*s).fault().is_some_and(|what| what.contains(&s.to_string())))
        );
    }

    #[test]
    fn a_clock_that_went_back_puts_a_run_off_by_half_a_period_at_most() {
        let wait = |elapsed: Option<u64>| {
            Period(3601).wait_after_clock_went_back(elapsed.map(Duration::from_secs))
        };
        assert_eq!((wait(None), wait(Some(0))), (Duration::ZERO, Duration::from_millis(1_800_500)));
        assert_eq!(
            (wait(Some(1800)), wait(Some(1801)), wait(Some(u64::MAX))),
            (Duration::from_millis(500), Duration::ZERO, Duration::ZERO)
        );
    }
}
