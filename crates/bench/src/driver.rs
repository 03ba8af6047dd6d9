//! Runs threads against a target and reads the instruments around them.
//!
//! ```text
//!   set up ──ready──► go ──► warm-up ──► counted window ──► halt ──► join
//!    (each thread)    │       instruments read at both ends of it    │
//!                     └─ fixed work: counted from go to the last end ┘
//! ```
//! Threads share nothing that they write: each has its own random numbers, buffers, histogram and a
//! cache line for the sampler. The clock is read once an operation, whatever the target, and an
//! operation counts only when it began and ended inside the window.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use bedplate::Waits;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::measure::{
    CpuTimes, DeviceLog, DeviceOps, DeviceUse, Latencies, LatencySummary, page_cache_bytes,
    processor_s, thread_waits,
};
use crate::results::{CpuUse, Measurement, TimePoint};
use crate::target::Target;
use crate::{Error, Result};

/// What an operation was, for its own histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Class {
    Read = 0,
    Write = 1,
    Commit = 2,
    Transaction = 3,
    /// A checkpoint, a reflink or a snapshot.
    Image = 4,
}

impl Class {
    pub(crate) const ALL: [Self; 5] =
        [Self::Read, Self::Write, Self::Commit, Self::Transaction, Self::Image];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Commit => "commit",
            Self::Transaction => "transaction",
            Self::Image => "image",
        }
    }
}

/// How long a measurement lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// So long before counting, so long counted, and so long after it (for clients that leave one
    /// by one).
    Timed { warm_up: Duration, time: Duration, after: Duration },
    /// Until every thread has done its part.
    Work,
}

/// One measurement to run.
pub(crate) struct Job<'a> {
    pub target: &'a dyn Target,
    pub threads: usize,
    pub phase: Phase,
    pub classes: &'a [Class],
    /// The classes whose operations make the rate.
    pub rated: &'a [Class],
    /// How often the timeline is sampled; `None`: not at all.
    pub sample_every: Option<Duration>,
    /// Set from outside to end everything early.
    pub stop: &'a AtomicBool,
}

/// One thread's operations so far, on a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Live {
    ops: AtomicU64,
}

/// The window in which operations count.
#[derive(Debug, Clone, Copy)]
struct Window {
    go: Instant,
    from: Instant,
    until: Instant,
    /// When the last thread ends.
    end: Instant,
}

/// What a thread has in its loop.
pub(crate) struct Worker<'a> {
    pub index: usize,
    pub threads: usize,
    /// Seeded by the thread's index alone: every target and every round gets the same sequence.
    pub rng: Xoshiro256PlusPlus,
    window: Window,
    halt: &'a AtomicBool,
    live: &'a Live,
    rated: [bool; Class::ALL.len()],
    tally: Tally,
}

/// What one thread counted.
struct Tally {
    latencies: [Option<Latencies>; Class::ALL.len()],
    ops: [u64; Class::ALL.len()],
    bytes: u64,
    rated_total: u64,
    waits: u64,
    finished: Instant,
}

impl Worker<'_> {
    /// Returns whether the loop must end; `now` is the end of the last operation.
    pub(crate) fn done(&self, now: Instant) -> bool {
        now >= self.window.end || self.halt.load(Relaxed)
    }

    /// Ends the whole measurement: for a thread that met an error and has to stay for the others,
    /// or whose work was all that there was to do.
    pub(crate) fn end_all(&self) {
        self.halt.store(true, Relaxed);
    }

    /// Returns when the threads were let go.
    pub(crate) fn go(&self) -> Instant {
        self.window.go
    }

    /// Returns when counting begins.
    pub(crate) fn counted_from(&self) -> Instant {
        self.window.from
    }

    /// Returns when counting ends.
    pub(crate) fn counted_until(&self) -> Instant {
        self.window.until
    }

    /// Returns when the last thread ends.
    pub(crate) fn end(&self) -> Instant {
        self.window.end
    }

    /// Counts one operation.
    pub(crate) fn record(&mut self, class: Class, begin: Instant, end: Instant, bytes: u64) {
        debug_assert!(begin <= end, "an operation ends after it began");
        let tally = &mut self.tally;
        if self.rated[class as usize] {
            tally.rated_total += 1;
            self.live.ops.store(tally.rated_total, Relaxed);
        }
        if begin < self.window.from || end > self.window.until {
            return;
        }
        tally.ops[class as usize] += 1;
        tally.bytes += bytes;
        if let Some(latencies) = &mut tally.latencies[class as usize] {
            latencies.record(end - begin);
        }
    }
}

/// What the threads and the main thread share while a job runs.
struct Shared<'a> {
    job: &'a Job<'a>,
    ready: Barrier,
    started: Barrier,
    window: OnceLock<Window>,
    halt: AtomicBool,
    running: AtomicUsize,
    live: Vec<Live>,
}

/// Runs a job. `setup` is called in each thread before the clock starts and returns the thread's
/// loop.
///
/// # Errors
/// The first error of any thread; `Interrupted` when `stop` was set.
pub(crate) fn run<S, B>(job: &Job<'_>, setup: S) -> Result<Measurement>
where
    S: Fn(usize) -> Result<B> + Sync,
    B: FnOnce(&mut Worker<'_>) -> Result<()>,
{
    debug_assert!(
        job.threads > 0 && job.rated.iter().all(|class| job.classes.contains(class)),
        "what makes the rate is measured: {:?} of {:?}",
        job.rated,
        job.classes
    );
    let shared = Shared {
        job,
        ready: Barrier::new(job.threads + 1),
        started: Barrier::new(job.threads + 1),
        window: OnceLock::new(),
        halt: AtomicBool::new(false),
        running: AtomicUsize::new(job.threads),
        live: (0..job.threads).map(|_| Live::default()).collect(),
    };
    let (watched, tallies) = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..job.threads)
            .map(|index| {
                let (shared, setup) = (&shared, &setup);
                scope.spawn(move || thread_main(shared, index, setup))
            })
            .collect();
        let watched = watch(&shared);
        let tallies: Vec<Result<Tally>> = handles
            .into_iter()
            .map(|handle| handle.join().expect("a worker does not panic"))
            .collect();
        (watched, tallies)
    });
    let tallies = tallies.into_iter().collect::<Result<Vec<_>>>()?;
    if job.stop.load(Relaxed) {
        return Err(Error::interrupted());
    }
    Ok(conclude(job, &shared, watched, &tallies))
}

fn thread_main<S, B>(shared: &Shared<'_>, index: usize, setup: &S) -> Result<Tally>
where
    S: Fn(usize) -> Result<B>,
    B: FnOnce(&mut Worker<'_>) -> Result<()>,
{
    let body = setup(index);
    shared.ready.wait();
    shared.started.wait();
    let window = *shared.window.get().expect("set before the start");
    let mut worker = Worker {
        index,
        threads: shared.job.threads,
        rng: Xoshiro256PlusPlus::seed_from_u64(0x5eed ^ ((index as u64) << 20)),
        window,
        halt: &shared.halt,
        live: &shared.live[index],
        rated: Class::ALL.map(|class| shared.job.rated.contains(&class)),
        tally: Tally {
            latencies: Class::ALL
                .map(|class| shared.job.classes.contains(&class).then(Latencies::new)),
            ops: [0; Class::ALL.len()],
            bytes: 0,
            rated_total: 0,
            waits: thread_waits(),
            finished: window.go,
        },
    };
    let result = body.and_then(|body| body(&mut worker));
    worker.tally.finished = Instant::now();
    worker.tally.waits = thread_waits().saturating_sub(worker.tally.waits);
    if result.is_err() {
        // One failure ends the measurement: the others must not run on for minutes.
        shared.halt.store(true, Relaxed);
    }
    shared.running.fetch_sub(1, Relaxed);
    result.map(|()| worker.tally)
}

/// The instruments at one moment.
#[derive(Clone)]
struct Reading {
    at: Instant,
    cpu: CpuTimes,
    device: Option<DeviceOps>,
    waits: Option<Waits>,
    page_cache_bytes: u64,
    /// Processor time of this process and of those that serve the target.
    processor_s: Option<f64>,
    ops: u64,
}

impl Reading {
    fn waits_since(&self, earlier: &Self) -> Option<Waits> {
        Some(self.waits.as_ref()?.since(earlier.waits.as_ref()?))
    }
}

fn read_instruments(shared: &Shared<'_>) -> Reading {
    Reading {
        at: Instant::now(),
        cpu: CpuTimes::now(),
        device: shared.job.target.device_ops(),
        waits: shared.job.target.waits(),
        page_cache_bytes: page_cache_bytes(),
        processor_s: processor_s(shared.job.target.processes()),
        ops: shared.live.iter().map(|live| live.ops.load(Relaxed)).sum(),
    }
}

/// What the main thread saw.
struct Watched {
    first: Reading,
    last: Reading,
    timeline: Vec<TimePoint>,
    devices: Vec<DeviceUse>,
}

/// Shortest and longest sleep of the watching thread: seldom enough to be free, often enough to see
/// the end.
const NAP_MIN: Duration = Duration::from_micros(200);
const NAP_MAX: Duration = Duration::from_millis(5);

fn watch(shared: &Shared<'_>) -> Watched {
    shared.ready.wait();
    let before = read_instruments(shared);
    let window = window_of(shared.job.phase);
    debug_assert!(
        window.go <= window.from && window.from <= window.until && window.until <= window.end,
        "the threads are let go, counted, and ended: {window:?}"
    );
    shared.window.set(window).expect("set once");
    shared.started.wait();
    let mut watched = Watched {
        first: before.clone(),
        last: before.clone(),
        timeline: Vec::new(),
        devices: Vec::new(),
    };
    let mut previous = before;
    let device_times = || shared.job.target.device_times();
    let mut devices = DeviceLog::begin(device_times());
    // Each reading is taken once, when its moment has come.
    let mut first_due = (window.from > window.go).then_some(window.from);
    let mut last_due = Some(window.until);
    loop {
        let now = Instant::now();
        if shared.job.stop.load(Relaxed) {
            shared.halt.store(true, Relaxed);
        }
        if first_due.take_if(|due| now >= *due).is_some() {
            watched.first = read_instruments(shared);
            devices.mark(0, device_times());
        }
        let over = shared.running.load(Relaxed) == 0;
        if last_due.take_if(|due| over || now >= *due).is_some() {
            watched.last = read_instruments(shared);
            devices.mark(1, device_times());
        }
        let sample_due = previous.at + shared.job.sample_every.unwrap_or(NEVER);
        if now >= sample_due {
            let reading = read_instruments(shared);
            watched.timeline.push(point(window.go, &previous, &reading));
            previous = reading;
        }
        let device_due = devices.due();
        if over || device_due.is_some_and(|due| now >= due) {
            devices.sample(device_times());
        }
        if over {
            watched.devices = devices.conclude(window.go);
            return watched;
        }
        let next = [first_due, last_due, Some(sample_due), device_due]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(window.end);
        // The end of fixed work, and of threads that ran out of it, comes at no known moment.
        std::thread::sleep(next.saturating_duration_since(now).clamp(NAP_MIN, NAP_MAX));
    }
}

/// A hundred days: later than the end of any measurement.
const NEVER: Duration = Duration::from_secs(100 * 86_400);

fn window_of(phase: Phase) -> Window {
    let go = Instant::now();
    match phase {
        Phase::Timed { warm_up, time, after } => {
            let (from, until) = (go + warm_up, go + warm_up + time);
            Window { go, from, until, end: until + after }
        }
        Phase::Work => Window { go, from: go, until: go + NEVER, end: go + NEVER },
    }
}

fn point(go: Instant, a: &Reading, b: &Reading) -> TimePoint {
    debug_assert!(go <= b.at && a.at <= b.at, "a sample is taken while the threads run");
    let seconds = (b.at - a.at).as_secs_f64();
    let device = match (a.device, b.device) {
        (Some(a), Some(b)) => b.since(&a),
        _ => DeviceOps::default(),
    };
    let cpu = CpuUse::of(&b.cpu.since(&a.cpu));
    TimePoint {
        t_s: (b.at - go).as_secs_f64(),
        rate: (b.ops - a.ops) as f64 / seconds,
        device_reads_per_s: device.reads as f64 / seconds,
        device_writes_per_s: device.writes as f64 / seconds,
        device_flushes_per_s: device.flushes as f64 / seconds,
        user_percent: cpu.user_percent,
        system_percent: cpu.system_percent,
        idle_percent: cpu.idle_percent + cpu.iowait_percent,
        iowait_percent: cpu.iowait_percent,
        lock_waits_per_s: b.waits_since(a).map(|waits| waits.lock_count() as f64 / seconds),
        waits_per_s: b.cpu.since(&a.cpu).context_switches as f64 / seconds,
    }
}

/// Puts the threads' latencies together, by kind of operation.
fn latencies(tallies: &[Tally]) -> BTreeMap<String, LatencySummary> {
    let of_class = |class: Class| {
        let mut merged = Latencies::new();
        let parts = tallies.iter().filter_map(|tally| tally.latencies[class as usize].as_ref());
        parts.for_each(|part| merged.merge(part));
        Some((class.name().to_owned(), merged.summary()?))
    };
    Class::ALL.into_iter().filter_map(of_class).collect()
}

/// Returns the processor time of each operation between two readings.
fn cpu_us_per_op(first: &Reading, last: &Reading) -> Option<f64> {
    let spent_s = (last.processor_s? - first.processor_s?).max(0.0);
    (last.ops > first.ops).then(|| spent_s * 1e6 / (last.ops - first.ops) as f64)
}

fn conclude(
    job: &Job<'_>,
    shared: &Shared<'_>,
    watched: Watched,
    tallies: &[Tally],
) -> Measurement {
    let window = shared.window.get().expect("set before the start");
    let elapsed = match job.phase {
        Phase::Timed { time, .. } => {
            // Threads that ran out of work end the window early.
            let last = tallies.iter().map(|t| t.finished).max().unwrap_or(window.until);
            last.saturating_duration_since(window.from).min(time)
        }
        Phase::Work => tallies.iter().map(|t| t.finished).max().unwrap_or(window.go) - window.go,
    };
    let elapsed_s = elapsed.as_secs_f64().max(1e-9);
    let ops: u64 = tallies
        .iter()
        .map(|t| job.rated.iter().map(|&class| t.ops[class as usize]).sum::<u64>())
        .sum();
    let waits: u64 = tallies.iter().map(|t| t.waits).sum();
    let rated_total: u64 = tallies.iter().map(|t| t.rated_total).sum();
    debug_assert!(ops <= rated_total, "what counts was done: {ops} of {rated_total} operations");
    let (first, last) = (&watched.first, &watched.last);
    debug_assert!(
        first.ops <= last.ops && last.ops <= rated_total,
        "the instruments are read in order: {} and {} of {rated_total}",
        first.ops,
        last.ops
    );
    let cpu = last.cpu.since(&first.cpu);
    let waited = last.waits_since(first);
    Measurement {
        rate: ops as f64 / elapsed_s,
        elapsed_s,
        ops,
        ops_observed: last.ops - first.ops,
        bytes: tallies.iter().map(|t| t.bytes).sum(),
        latency: latencies(tallies),
        cpu: CpuUse::of(&cpu),
        cpu_us_per_op: cpu_us_per_op(first, last),
        waits_per_op: if rated_total == 0 { 0.0 } else { waits as f64 / rated_total as f64 },
        lock_waits_per_op: waited
            .as_ref()
            .filter(|_| last.ops > first.ops)
            .map(|waits| waits.lock_count() as f64 / (last.ops - first.ops) as f64),
        waits: waited
            .iter()
            .flat_map(Waits::by_name)
            .map(|(class, time)| (class.to_owned(), time))
            .collect(),
        devices: watched.devices,
        context_switches_per_s: cpu.context_switches as f64
            / (last.at - first.at).as_secs_f64().max(1e-9),
        device: last.device.zip(first.device).map(|(b, a)| b.since(&a)),
        page_cache_growth_bytes: last.page_cache_bytes as i64 - first.page_cache_bytes as i64,
        timeline: watched.timeline,
        figures: BTreeMap::new(),
    }
}
