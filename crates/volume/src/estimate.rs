//! How fast work in the background goes of late, and how long the rest takes.

use std::time::{Duration, Instant};

/// What is late.
const LATE: Duration = Duration::from_secs(10);

/// What the rate of a resynchronisation or rebuild is told from.
#[derive(Debug, Default)]
pub(crate) struct RateEstimate {
    began: Option<Instant>,
    copied_bytes: u64,
}

impl RateEstimate {
    /// Counts from now on, unless it does.
    pub fn begin(&mut self) {
        self.began.get_or_insert_with(Instant::now);
    }

    /// Counts bytes that a step of the background thread settled.
    pub fn note(&mut self, bytes: u64) {
        let began = *self.began.get_or_insert_with(Instant::now);
        self.copied_bytes += bytes;
        // What was long ago counts less and less: the pace follows the load.
        let elapsed = began.elapsed();
        if elapsed > LATE {
            (self.began, self.copied_bytes) = (Some(began + elapsed / 2), self.copied_bytes / 2);
        }
    }

    /// Returns the rate of late.
    pub fn bytes_per_second(&self) -> Option<u64> {
        let elapsed_ms = u64::try_from(self.began?.elapsed().as_millis()).ok()?.max(1);
        (self.copied_bytes > 0).then(|| self.copied_bytes.saturating_mul(1000) / elapsed_ms)
    }

    /// Forgets the rate: nothing is pending.
    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// Returns how long the rest takes.
    pub fn seconds_left(&self, pending_bytes: u64) -> Option<u64> {
        let rate = self.bytes_per_second()?;
        (pending_bytes > 0).then(|| pending_bytes / rate.max(1))
    }
}
