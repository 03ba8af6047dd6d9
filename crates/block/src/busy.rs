//! How busy a device is: for how long at least one operation was under way, and how many on
//! average.
//!
//! ```text
//!   state:  operations under way (24 bits) | when that last changed (40 bits, in 64 ns)
//!
//!   begin, end   change both at once; the time since the last change adds to the sums
//! ```
//! One line of memory that every operation writes: for devices whose operations take longer than
//! that.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bits of the time in the state; the rest counts operations.
const TIME_BITS: u32 = 40;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
/// One operation in the state.
const ONE: u64 = 1 << TIME_BITS;
/// A unit of time is 2 to the power of this in nanoseconds.
const UNIT_SHIFT: u32 = 6;

/// Measures while operations begin and end.
#[derive(Debug)]
pub struct BusyMeter {
    /// What times count from.
    base: Instant,
    state: AtomicU64,
    /// Units with at least one operation, until the last change.
    busy: AtomicU64,
    /// Units of all operations together, until the last change.
    queued: AtomicU64,
    /// When measuring began, in units since `base`.
    since: AtomicU64,
    /// The most that was told of the two, so that neither is ever told smaller than before.
    told: [AtomicU64; 2],
}

/// How busy a device was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BusyTime {
    /// Operations under way now.
    pub under_way: u64,
    /// How long at least one was under way, of the time measured.
    pub busy: Duration,
    /// How long all operations were under way together: as a part of the time measured, the mean
    /// depth of the device's queue.
    pub queued: Duration,
    /// The time measured.
    pub measured: Duration,
}

impl Default for BusyMeter {
    fn default() -> Self {
        let [state, busy, queued, since] = Default::default();
        Self { base: Instant::now(), state, busy, queued, since, told: Default::default() }
    }
}

impl BusyMeter {
    /// Takes note of operations that begin now.
    #[inline]
    pub fn begin(&self, count: u32) {
        self.change(|state| state + u64::from(count) * ONE);
    }

    /// Takes note of operations that end now.
    #[inline]
    pub fn end(&self, count: u32) {
        self.change(|state| {
            let left = (state >> TIME_BITS).checked_sub(count.into());
            left.expect("what ends has begun") << TIME_BITS | state & TIME_MASK
        });
    }

    /// Returns how many operations are under way.
    #[inline]
    #[must_use]
    pub fn under_way(&self) -> u64 {
        self.state.load(Relaxed) >> TIME_BITS
    }

    fn change(&self, count: impl Fn(u64) -> u64) {
        let now = self.now();
        let changed = |state: u64| {
            // A thread that looked at the clock earlier comes later.
            let at = state.wrapping_add(passed(state, now)) & TIME_MASK;
            Some(count(state) & !TIME_MASK | at)
        };
        let before = self
            .state
            .fetch_update(Relaxed, Relaxed, changed)
            .expect("there is a next state of each");
        let (under_way, passed) = (before >> TIME_BITS, passed(before, now));
        if under_way > 0 && passed > 0 {
            self.busy.fetch_add(passed, Relaxed);
            self.queued.fetch_add(passed * under_way, Relaxed);
        }
    }

    /// Returns how busy the device was since it is measured.
    #[must_use]
    pub fn time(&self) -> BusyTime {
        let now = self.now();
        // The sums first: what is added to them meanwhile is missing then, and not told twice.
        let sums = [self.busy.load(Relaxed), self.queued.load(Relaxed)];
        let state = self.state.load(Relaxed);
        let (under_way, passed) = (state >> TIME_BITS, passed(state, now));
        let open = [passed * under_way.min(1), passed * under_way];
        let [busy, queued] = [0, 1].map(|at| {
            let found = sums[at] + open[at];
            duration(self.told[at].fetch_max(found, Relaxed).max(found))
        });
        let measured = duration(now.saturating_sub(self.since.load(Relaxed)));
        BusyTime { under_way, busy: busy.min(measured), queued, measured }
    }

    /// Measures from now on.
    pub fn reset(&self) {
        // What is under way is measured from here.
        self.change(|state| state);
        for sum in [&self.busy, &self.queued, &self.told[0], &self.told[1]] {
            sum.store(0, Relaxed);
        }
        self.since.store(self.now(), Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(u64::MAX) >> UNIT_SHIFT
    }
}

/// Returns the time from a state's last change to `now`; times go round.
fn passed(state: u64, now: u64) -> u64 {
    let passed = now.wrapping_sub(state) & TIME_MASK;
    if passed > TIME_MASK / 2 { 0 } else { passed }
}

fn duration(units: u64) -> Duration {
    Duration::from_nanos(units << UNIT_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAP: Duration = Duration::from_millis(20);

    #[test]
    fn an_idle_device_is_not_busy_and_a_busy_one_is_busy_once() {
        let meter = BusyMeter::default();
        std::thread::sleep(NAP);
        let idle = meter.time();
        assert_eq!((idle.under_way, idle.busy, idle.queued), (0, Duration::ZERO, Duration::ZERO));
        assert!(idle.measured >= NAP, "{idle:?}");
        meter.begin(3);
        std::thread::sleep(NAP);
        let under_way = meter.time();
        assert_eq!(under_way.under_way, 3);
        assert!(under_way.busy >= NAP - Duration::from_millis(1), "{under_way:?}");
        // Three at once: busy once, queued three times.
        assert!(
            under_way.queued == 3 * under_way.busy && under_way.busy < under_way.measured,
            "{under_way:?}"
        );
        meter.end(2);
        meter.end(1);
        let ended = meter.time();
        std::thread::sleep(NAP);
        let later = meter.time();
        assert_eq!((ended.busy, ended.queued), (later.busy, later.queued));
        assert!(ended.busy >= under_way.busy && later.measured >= ended.measured + NAP);
    }

    #[test]
    fn what_is_under_way_at_a_reset_counts_from_there() {
        let meter = BusyMeter::default();
        meter.begin(1);
        std::thread::sleep(NAP);
        meter.reset();
        let told = meter.time();
        assert_eq!(told.under_way, 1);
        assert!(told.busy < NAP && told.measured < NAP, "{told:?}");
        meter.end(1);
        assert_eq!(meter.under_way(), 0);
    }

    #[test]
    fn threads_lose_no_time_of_each_other() {
        let meter = BusyMeter::default();
        meter.begin(1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        meter.begin(1);
                        let before = meter.time();
                        meter.end(1);
                        let after = meter.time();
                        assert!(before.busy <= after.busy && before.queued <= after.queued);
                    }
                });
            }
        });
        let told = meter.time();
        assert_eq!(told.under_way, 1);
        // One operation was under way all the time.
        assert!(told.busy + Duration::from_millis(1) >= told.measured, "{told:?}");
        assert!(told.queued >= told.busy, "{told:?}");
    }

    #[test]
    fn times_go_round() {
        assert_eq!(passed(TIME_MASK - 1, 1), 3);
        assert_eq!(passed(7 << TIME_BITS | 5, 9), 4);
        assert_eq!(passed(9, 5), 0, "another thread was earlier at the clock");
    }
}
