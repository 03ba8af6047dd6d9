//! The threads that serve a mount: how busy they are, now and lately, and how many there are to be.
//!
//! ```text
//!   Load (crates/fuse), counted by the threads ── note_moment(), every 5 s ──► moments ──┐
//!        └────────────────────────────────────────────────────────────────► now ────────┴──► report()
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bedplate_fuse::{Load, LoadReport, ProcessorTime, ThreadCount};
use parking_lot::Mutex;

use crate::control::{ThreadActivity, ThreadReport};

/// How long after one moment the next one is noted.
const MOMENT_INTERVAL: Duration = Duration::from_secs(5);
/// How many moments are kept: the oldest is 10 to 15 seconds old.
const MOMENTS_MAX: usize = 3;

/// The threads that serve a mount. Where it outlives the mount it tells of no thread.
#[derive(Debug, Default)]
pub struct ServingThreads {
    /// There once the kernel is served.
    started: OnceLock<Started>,
    /// A leaf, but for the lists of threads in the loads.
    history: Mutex<History>,
}

#[derive(Debug)]
struct Started {
    /// Over io_uring one for each processor.
    loads: Vec<Arc<Load>>,
    /// Sets how many there are; `None` over io_uring.
    count: Option<ThreadCount>,
    at: Instant,
}

#[derive(Debug, Default)]
struct History {
    /// The oldest first.
    moments: VecDeque<Moment>,
    busy_max: u32,
    wanted: u32,
}

/// What had been counted at a moment.
#[derive(Debug, Clone)]
struct Moment {
    at: Instant,
    loads: Vec<LoadReport>,
    /// The most that were busy since the moment before.
    busy_max: u32,
}

impl ServingThreads {
    /// Notes what serves from now on.
    pub(super) fn begin(&self, loads: Vec<Arc<Load>>, count: Option<ThreadCount>) {
        let at = Instant::now();
        let wanted = loads.iter().map(|load| load.threads()).sum();
        let nothing = vec![LoadReport::default(); loads.len()];
        let mut history = self.history.lock();
        history.wanted = wanted;
        history.moments.push_back(Moment { at, loads: nothing, busy_max: 0 });
        let begun = self.started.set(Started { loads, count, at });
        assert!(begun.is_ok(), "a mount is served once");
    }

    /// Notes how busy they are, where that was not noted lately; returns after how long it is to be
    /// noted next.
    pub(super) fn note_moment(&self) -> Duration {
        let Some(started) = self.started.get() else { return MOMENT_INTERVAL };
        let mut history = self.history.lock();
        let since_last = history.moments.back().map(|last| last.at.elapsed());
        if let Some(since_last) = since_last.filter(|time| *time < MOMENT_INTERVAL) {
            return MOMENT_INTERVAL - since_last;
        }
        let busy_max = started.loads.iter().map(|load| load.take_busy_max()).sum();
        let loads = started.loads.iter().map(|load| load.look()).collect();
        history.busy_max = history.busy_max.max(busy_max);
        history.moments.push_back(Moment { at: Instant::now(), loads, busy_max });
        if history.moments.len() > MOMENTS_MAX {
            history.moments.pop_front();
        }
        MOMENT_INTERVAL
    }

    /// Tells how busy they are.
    #[must_use]
    pub fn report(&self) -> ThreadReport {
        let Some(started) = self.started.get() else { return ThreadReport::default() };
        let history = self.history.lock();
        let now: Vec<LoadReport> = started.loads.iter().map(|load| load.look()).collect();
        let latest = started.loads.iter().map(|load| load.busy_max()).sum();
        let first = history.moments.front().expect("one is noted at the beginning");
        let later = history.moments.iter().skip(1).map(|moment| moment.busy_max);
        let recent = ThreadActivity {
            seconds: first.at.elapsed().as_secs_f64(),
            busy_max: later.fold(latest, u32::max),
            ..between(&first.loads, &now)
        };
        let total = ThreadActivity {
            seconds: started.at.elapsed().as_secs_f64(),
            busy_max: history.busy_max.max(latest),
            ..between(&vec![LoadReport::default(); now.len()], &now)
        };
        let transport = if started.count.is_some() { "device" } else { "io_uring" };
        ThreadReport {
            transport: transport.to_owned(),
            processors: started.loads.len(),
            threads: now.iter().map(|load| load.threads).sum(),
            wanted: history.wanted,
            busy: now.iter().map(|load| load.busy).sum(),
            total,
            recent,
        }
    }

    /// Returns how many threads serve each processor, where they are divided among processors and
    /// their number is fixed.
    pub(super) fn fixed_each(&self) -> Option<u32> {
        let started = self.started.get().filter(|started| started.count.is_none())?;
        started.loads.first().map(|load| load.threads())
    }

    /// Has so many threads serve; where their number is fixed nothing is changed.
    ///
    /// # Errors
    /// When the system has no further thread: as many serve as before.
    pub(super) fn set_count(&self, count: usize) -> std::io::Result<()> {
        let Some(threads) = self.started.get().and_then(|started| started.count.as_ref()) else {
            return Ok(());
        };
        threads.set(count)?;
        self.history.lock().wanted = u32::try_from(count).unwrap_or(u32::MAX);
        Ok(())
    }

    /// Returns how many threads there are beyond those wanted, of which one waits for a request and
    /// does not end before it comes.
    pub(super) fn idle_surplus(&self) -> usize {
        let Some(started) = self.started.get().filter(|started| started.count.is_some()) else {
            return 0;
        };
        let wanted = self.history.lock().wanted;
        let surplus = |load: &Arc<Load>| {
            let surplus = load.threads().saturating_sub(wanted) as usize;
            if load.has_free() { surplus } else { 0 }
        };
        started.loads.iter().map(surplus).sum()
    }
}

/// What was done between two moments, as far as the loads tell.
fn between(before: &[LoadReport], now: &[LoadReport]) -> ThreadActivity {
    let pairs = || before.iter().zip(now);
    let sum = |of: fn(&LoadReport) -> u64| -> u64 {
        pairs().map(|(before, now)| of(now).saturating_sub(of(before))).sum()
    };
    let all_busy = pairs().map(|(before, now)| now.all_busy_ns.saturating_sub(before.all_busy_ns));
    let processor = |of: fn(ProcessorTime) -> u64| -> Option<u64> {
        let of_load = |(before, now): (&LoadReport, &LoadReport)| {
            Some(of(now.processor?).saturating_sub(before.processor.map_or(0, of)))
        };
        pairs().map(of_load).sum()
    };
    ThreadActivity {
        requests: sum(|load| load.requests),
        all_busy_ns: all_busy.max().unwrap_or(0),
        cpu_run_ns: processor(|time| time.ran_ns),
        cpu_wait_ns: processor(|time| time.waited_ns),
        ..ThreadActivity::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(requests: u64, all_busy_ns: u64, times: Option<(u64, u64)>) -> LoadReport {
        let processor = times.map(|(ran_ns, waited_ns)| ProcessorTime { ran_ns, waited_ns });
        LoadReport { threads: 4, busy: 1, requests, all_busy_ns, processor }
    }

    /// S-507: what was done lately is the difference of two moments; of several processors the one
    /// counts whose threads were all busy for longest.
    #[test]
    fn s_507_what_was_done_lately_is_the_difference_of_two_moments() {
        let before = [load(10, 5_000, Some((100, 10))), load(1, 900_000, Some((50, 5)))];
        let now = [load(25, 8_000, Some((150, 40))), load(2, 901_000, Some((60, 5)))];
        let done = between(&before, &now);
        assert_eq!((done.requests, done.all_busy_ns), (16, 3_000), "S-507");
        assert_eq!((done.cpu_run_ns, done.cpu_wait_ns), (Some(60), Some(30)), "S-507");
        assert!(!done.lacks_processors(), "S-507: it waited for half as long as it ran");
        let unknown = between(&before, &[now[0], load(2, 901_000, None)]);
        assert_eq!((unknown.requests, unknown.cpu_wait_ns), (16, None), "S-507: not told");
    }

    #[test]
    fn s_507_shares_are_of_the_time_that_is_told() {
        let done = ThreadActivity {
            seconds: 10.0,
            all_busy_ns: 3_400_000_000,
            cpu_run_ns: Some(10),
            cpu_wait_ns: Some(6),
            ..ThreadActivity::default()
        };
        assert!((done.all_busy_share() - 0.34).abs() < 1e-9 && done.lacks_processors(), "S-507");
        assert!(ThreadActivity::default().all_busy_share() < 1e-9, "S-507: no time has passed");
    }
}
