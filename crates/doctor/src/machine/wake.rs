//! How long a thread that sleeps takes to run once it is woken. A machine under load makes some
//! wait for a processor, so it is told what nine of ten take at least.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::system::Seen;

const ROUNDS: u64 = 100;
/// How long the thread sleeps before each: its processor is idle then.
const PAUSE: Duration = Duration::from_millis(1);
/// A thread that is not seen to run for so long is not waited for.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// What the two threads share.
struct Shared {
    /// The round that was called for.
    called: AtomicU64,
    /// When the thread ran, in nanoseconds since the start; 0: not yet.
    ran_ns: AtomicU64,
    ended: AtomicBool,
}

pub fn measure() -> Seen<Duration> {
    let start = Instant::now();
    let shared = Arc::new(Shared {
        called: AtomicU64::new(0),
        ran_ns: AtomicU64::new(0),
        ended: AtomicBool::new(false),
    });
    let of_thread = Arc::clone(&shared);
    let sleeper = thread::Builder::new()
        .spawn(move || sleep(&of_thread, start))
        .map_err(|error| super::failed(&error))?;
    let mut times = Vec::new();
    for round in 1..=ROUNDS {
        thread::sleep(PAUSE);
        shared.ran_ns.store(0, Ordering::Relaxed);
        let called = Instant::now();
        shared.called.store(round, Ordering::Release);
        sleeper.thread().unpark();
        while shared.ran_ns.load(Ordering::Acquire) == 0 && called.elapsed() < WAIT_MAX {
            std::hint::spin_loop();
        }
        let ran = Duration::from_nanos(shared.ran_ns.load(Ordering::Acquire));
        times.push((start + ran).saturating_duration_since(called));
    }
    shared.ended.store(true, Ordering::Release);
    sleeper.thread().unpark();
    // It has nothing to say.
    drop(sleeper.join());
    debug_assert_eq!(times.len() as u64, ROUNDS, "each round has a time");
    times.sort_unstable();
    Ok(times[times.len() / 10])
}

fn sleep(shared: &Shared, start: Instant) {
    let mut seen = 0;
    while !shared.ended.load(Ordering::Acquire) {
        let called = shared.called.load(Ordering::Acquire);
        if called == seen {
            thread::park();
            continue;
        }
        seen = called;
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        shared.ran_ns.store(ns.max(1), Ordering::Release);
    }
}
