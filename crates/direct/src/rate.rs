//! A limit of bytes a second that several threads share.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A limit of bytes a second. Threads share it: each takes its turn later by what the others took.
#[derive(Debug)]
pub struct Rate {
    bytes_per_second: NonZeroU64,
    /// When the next request may begin.
    next: Mutex<Option<Instant>>,
}

impl Rate {
    /// Makes a limit of so many bytes a second.
    #[must_use]
    pub fn new(bytes_per_second: NonZeroU64) -> Self {
        Self { bytes_per_second, next: Mutex::new(None) }
    }

    /// Returns the bytes a second.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second.get()
    }

    /// Waits until so many bytes more are allowed.
    pub(crate) fn take(&self, bytes: u64) {
        let until = self.book(bytes, Instant::now());
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }

    /// Books bytes at `now`; returns when they may begin.
    fn book(&self, bytes: u64, now: Instant) -> Instant {
        let mut next = self.next.lock();
        let start = next.map_or(now, |next| next.max(now));
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.get() as f64);
        *next = Some(start + takes);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_begin_as_far_apart_as_their_bytes_take() {
        let rate = Rate::new(NonZeroU64::new(1000).unwrap());
        let now = Instant::now();
        assert_eq!(rate.book(500, now), now);
        assert_eq!(rate.book(250, now), now + Duration::from_millis(500));
        assert_eq!(rate.book(1, now), now + Duration::from_millis(750));
        let later = now + Duration::from_secs(9);
        assert_eq!(rate.book(1, later), later, "nothing is saved up");
    }
}
