//! How much of a run was waiting for I/O.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::trace::{Event, Trace};

/// Waiting for reads, writes and syncs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Waits {
    /// From the start of the run to its end.
    pub run_ns: u64,
    /// Time in calls, of all threads together.
    pub in_calls_ns: u64,
    /// Time in which at least one call was under way.
    pub any_ns: u64,
    /// Time from the first call of each thread to its last, of all threads together.
    pub threads_ns: u64,
}

impl Waits {
    /// Returns the part of the run in which at least one thread was in a call, from 0 to 1.
    #[must_use]
    pub fn any_share(&self) -> f64 {
        share(self.any_ns, self.run_ns)
    }

    /// Returns the part of its time that a thread was in calls on average, from 0 to 1.
    #[must_use]
    pub fn thread_share(&self) -> f64 {
        share(self.in_calls_ns, self.threads_ns.max(self.in_calls_ns))
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
}

fn is_waited_for(event: &Event) -> bool {
    event.file.is_some() && event.is_done() && (event.call.is_move() || event.call.is_sync())
}

/// Sums up how a trace's threads waited.
#[must_use]
pub fn waits(trace: &Trace) -> Waits {
    let mut waits = Waits { run_ns: trace.about.took_ns, ..Waits::default() };
    let mut threads: BTreeMap<(u32, u32), (u64, u64)> = BTreeMap::new();
    let mut seen_until = 0;
    // Events lie in the order in which they began.
    for event in trace.events.iter().filter(|event| is_waited_for(event)) {
        let end = event.end_ns();
        waits.run_ns = waits.run_ns.max(end);
        waits.in_calls_ns = waits.in_calls_ns.saturating_add(event.took_ns);
        waits.any_ns += end.saturating_sub(event.begin_ns.max(seen_until));
        seen_until = seen_until.max(end);
        let span = threads.entry((event.process, event.thread)).or_insert((event.begin_ns, end));
        span.1 = span.1.max(end);
    }
    waits.threads_ns = threads
        .values()
        .fold(0, |sum: u64, (first, last)| sum.saturating_add(last.saturating_sub(*first)));
    waits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Call;

    fn read(thread: u32, begin_ns: u64, took_ns: u64) -> Event {
        Event {
            process: 0,
            thread,
            call: Call::Read,
            how: 0,
            errno: 0,
            file: Some(0),
            flags: 0,
            begin_ns,
            took_ns,
            offset: 0,
            asked: 1,
            moved: 1,
            memory_align: 1,
        }
    }

    #[test]
    fn time_that_calls_share_counts_once_for_the_run_and_twice_for_their_threads() {
        let events = vec![read(1, 0, 100), read(2, 50, 100), read(1, 300, 100), read(2, 310, 10)];
        let mut trace = Trace { events, ..Trace::default() };
        trace.about.took_ns = 1000;
        let told = waits(&trace);
        assert_eq!((told.any_ns, told.in_calls_ns, told.threads_ns), (250, 310, 400 + 270));
        assert!((told.any_share() - 0.25).abs() < 1e-9);
        assert!((told.thread_share() - 310.0 / 670.0).abs() < 1e-9);
    }

    #[test]
    fn what_failed_was_not_waited_for_and_an_empty_trace_has_no_share() {
        let failed = Event { errno: 5, ..read(1, 0, 100) };
        let told = waits(&Trace { events: vec![failed], ..Trace::default() });
        assert_eq!((told.any_share(), told.thread_share()), (0.0, 0.0));
    }
}
