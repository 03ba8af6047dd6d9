//! How long reads, writes and syncs take: histograms, filled from a sample so that the fastest I/O
//! does not notice.
//!
//! ```text
//!   begin: count down ──> 0? ──> clock read, draw the next distance (1 ‥ 2n−1, n on average)
//!   end:   timed? ──> clock read ──> histogram of the file (if it has one) and of the file system, n times
//! ```
//!
//! Timing costs a third of a read of a memory device, so a thread times one I/O about each
//! [`PACE`], whatever that is in I/Os: each of a disk, one in n of memory; at least one in as many
//! as the tunable `latency-sample` says (0: none). What is timed stands for the n I/Os it was drawn
//! from, so slow times do not weigh more than fast ones. The distance is drawn, because a program
//! that goes round its files would else have the same one timed for ever. Syncs are timed each:
//! they cost more.
//!
//! - I-LAT-1: histograms of files take bounded memory in the whole process,
//!   [`FILE_HISTOGRAMS_MAX`]; a file beyond that has none of its own.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate_block::LogScale;
use serde::{Deserialize, Serialize};

use super::{WaitMeter, counting};

/// Of how many reads and writes at least one is timed by default.
pub(crate) const SAMPLE_DEFAULT: u32 = 512;
/// How much time of a thread one timed I/O may stand for: with many threads that time at once, some
/// thousand times what it costs.
const PACE: Duration = Duration::from_millis(1);
/// How many I/Os a thread lets pass while nothing is timed before it looks again whether that has
/// changed.
const IDLE: u32 = 1024;
/// The most histograms of single files; each takes 4 KiB.
const FILE_HISTOGRAMS_MAX: usize = 4096;
/// Buckets of 1/16 of an octave in nanoseconds; durations from 2^37 ns (two minutes) on share the
/// last.
const SCALE: LogScale = LogScale { sub_bits: 4, shift_max: 32 };
const BUCKETS: usize = SCALE.buckets();

static FILE_HISTOGRAMS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// I/Os to go until one is timed; 0: this thread has drawn none yet.
    static TO_GO: Cell<u32> = const { Cell::new(0) };
    static SEED: Cell<u32> = const { Cell::new(0x9e37_79b9) };
    static DRAWN: Cell<Drawn> = const { Cell::new(Drawn { at: None, distance: 0, mean: 1 }) };
}

/// What a thread drew last.
#[derive(Clone, Copy)]
struct Drawn {
    /// When; `None` while nothing is timed.
    at: Option<Instant>,
    /// How many I/Os were to pass.
    distance: u32,
    /// How many they are on average.
    mean: u32,
}

/// An I/O under way that is timed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) began: Instant,
    /// How many I/Os it is one of.
    pub(super) stands_for: u32,
}

/// Returns of how many I/Os one is to be timed, when so many took a thread so long.
fn paced(ios: u32, took: Duration) -> u32 {
    let mean = u128::from(ios) * PACE.as_nanos() / took.as_nanos().max(1);
    u32::try_from(mean).unwrap_or(u32::MAX).max(1)
}

/// What was timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timed {
    Read,
    Write,
    Sync,
}

/// A live histogram; updated without a lock.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    ns_max: AtomicU64,
    timed: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        let [sum_ns, ns_max, timed] = Default::default();
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum_ns, ns_max, timed }
    }
}

impl Histogram {
    /// Counts a duration as often as said.
    fn record(&self, took: Duration, stands_for: u32) {
        debug_assert!(stands_for > 0, "a sample stands for itself at least");
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX >> 1);
        self.buckets[SCALE.bucket_of(ns)].fetch_add(stands_for.into(), Relaxed);
        self.sum_ns.fetch_add(ns.saturating_mul(stands_for.into()), Relaxed);
        self.timed.fetch_add(1, Relaxed);
        if ns > self.ns_max.load(Relaxed) {
            self.ns_max.fetch_max(ns, Relaxed);
        }
    }

    fn reset(&self) {
        self.buckets
            .iter()
            .chain([&self.sum_ns, &self.ns_max, &self.timed])
            .for_each(|value| value.store(0, Relaxed));
    }

    fn snapshot(&self) -> LatencySnapshot {
        let filled = |(at, count): (usize, &AtomicU64)| {
            Some((at as u32, count.load(Relaxed))).filter(|(_, count)| *count > 0)
        };
        let buckets: Vec<(u32, u64)> = self.buckets.iter().enumerate().filter_map(filled).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let value = |value: &AtomicU64| value.load(Relaxed);
        LatencySnapshot {
            timed: value(&self.timed),
            count,
            sum_ns: value(&self.sum_ns),
            ns_max: value(&self.ns_max),
            buckets,
        }
    }
}

/// A histogram of one file, counted against [`FILE_HISTOGRAMS_MAX`] (I-LAT-1).
#[derive(Debug)]
struct OfFile(Box<Histogram>);

impl OfFile {
    fn take() -> Option<Self> {
        if FILE_HISTOGRAMS.fetch_add(1, Relaxed) < FILE_HISTOGRAMS_MAX {
            return Some(Self(Box::default()));
        }
        FILE_HISTOGRAMS.fetch_sub(1, Relaxed);
        None
    }
}

impl Drop for OfFile {
    fn drop(&mut self) {
        let before = FILE_HISTOGRAMS.fetch_sub(1, Relaxed);
        assert!(before > 0, "I-LAT-1: a histogram is given back once");
    }
}

/// The histograms of one file, made with the first sample.
#[derive(Debug, Default)]
pub(crate) struct FileLatencies {
    read: OnceLock<OfFile>,
    write: OnceLock<OfFile>,
    sync: OnceLock<OfFile>,
}

impl FileLatencies {
    fn of(&self, what: Timed) -> &OnceLock<OfFile> {
        match what {
            Timed::Read => &self.read,
            Timed::Write => &self.write,
            Timed::Sync => &self.sync,
        }
    }

    fn record(&self, what: Timed, took: Duration, stands_for: u32) {
        let place = self.of(what);
        if let Some(histogram) = place.get() {
            return histogram.0.record(took, stands_for);
        }
        if let Some(histogram) = OfFile::take() {
            histogram.0.record(took, stands_for);
            // Of two threads that were first at once, one loses a sample.
            drop(place.set(histogram));
        }
    }

    pub(crate) fn reset(&self) {
        [&self.read, &self.write, &self.sync]
            .into_iter()
            .filter_map(OnceLock::get)
            .for_each(|histogram| histogram.0.reset());
    }

    pub(crate) fn snapshot(&self) -> Latencies {
        let of = |place: &OnceLock<OfFile>| {
            place.get().map(|histogram| histogram.0.snapshot()).unwrap_or_default()
        };
        Latencies { read: of(&self.read), write: of(&self.write), sync: of(&self.sync) }
    }
}

/// What decides which I/O is timed, and the histograms of the whole file system.
#[derive(Debug)]
pub(crate) struct Sampler {
    every: AtomicU32,
    read: Histogram,
    write: Histogram,
    sync: Histogram,
    /// What was waited for in the whole file system.
    waits: WaitMeter,
}

impl Sampler {
    pub(crate) fn new(every: u32) -> Self {
        Self {
            every: AtomicU32::new(every),
            read: Histogram::default(),
            write: Histogram::default(),
            sync: Histogram::default(),
            waits: WaitMeter::default(),
        }
    }

    /// What reads and writes waited for.
    pub(crate) fn waits(&self) -> &WaitMeter {
        &self.waits
    }

    /// Of how many reads and writes at least one is timed; 0: none.
    pub(crate) fn every(&self) -> u32 {
        self.every.load(Relaxed)
    }

    /// Takes effect in every thread after at most as many I/Os as it had still to go.
    pub(crate) fn set_every(&self, every: u32) {
        self.every.store(every, Relaxed);
    }

    /// Begins a read or write; `Some` for the one in n that is timed.
    #[inline]
    pub(crate) fn begin(&self) -> Option<Timing> {
        if !counting() {
            return None;
        }
        TO_GO.with(|to_go| match to_go.get() {
            0 | 1 => self.draw(to_go),
            n => {
                to_go.set(n - 1);
                None
            }
        })
    }

    #[cold]
    fn draw(&self, to_go: &Cell<u32>) -> Option<Timing> {
        let every = self.every();
        let before = DRAWN.get();
        if every == 0 {
            to_go.set(IDLE);
            DRAWN.set(Drawn { at: None, ..before });
            return None;
        }
        let began = Instant::now();
        let mean = before.at.map_or(1, |at| paced(before.distance, began - at)).min(every);
        let random = SEED.with(|seed| {
            let mut x = seed.get();
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            seed.set(x);
            x
        });
        let distance = 1 + random % mean.saturating_mul(2).saturating_sub(1);
        to_go.set(distance);
        DRAWN.set(Drawn { at: Some(began), distance, mean });
        // A thread's first I/O is not typical: it is timed only where all are. After a time without
        // timing, it is not known what one stands for.
        (every == 1 || before.at.is_some()).then_some(Timing { began, stands_for: before.mean })
    }

    /// Begins a sync: each is timed, unless nothing is.
    pub(crate) fn begin_sync(&self) -> Option<Timing> {
        (self.every() != 0).then(|| Timing { began: Instant::now(), stands_for: 1 })
    }

    /// Ends what [`begin`](Self::begin) began.
    #[cold]
    pub(crate) fn end(&self, file: &FileLatencies, what: Timed, timing: Timing) {
        let took = timing.began.elapsed();
        file.record(what, took, timing.stands_for);
        match what {
            Timed::Read => &self.read,
            Timed::Write => &self.write,
            Timed::Sync => &self.sync,
        }
        .record(took, timing.stands_for);
    }

    pub(crate) fn reset(&self) {
        [&self.read, &self.write, &self.sync].into_iter().for_each(Histogram::reset);
        self.waits.reset();
    }

    pub(crate) fn snapshot(&self) -> Latencies {
        Latencies {
            read: self.read.snapshot(),
            write: self.write.snapshot(),
            sync: self.sync.snapshot(),
        }
    }
}

/// How long reads, writes and syncs took, each from its call to its return.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// Of the reads that were timed.
    pub read: LatencySnapshot,
    /// Of the writes that were timed.
    pub write: LatencySnapshot,
    /// Of the syncs.
    pub sync: LatencySnapshot,
}

impl Latencies {
    /// Returns what came since an earlier snapshot of the same histograms.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            read: self.read.since(&earlier.read),
            write: self.write.since(&earlier.write),
            sync: self.sync.since(&earlier.sync),
        }
    }
}

/// A histogram of durations; single values are exact, the whole is not atomic.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencySnapshot {
    /// How many operations were timed.
    pub timed: u64,
    /// How many durations: those that were timed, each as often as the operations it stands for.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
    /// The longest in nanoseconds.
    pub ns_max: u64,
    /// The buckets that are not empty, by rising number, with their counts. Buckets are 1/16 of an
    /// octave wide.
    pub buckets: Vec<(u32, u64)>,
}

impl LatencySnapshot {
    /// Returns the average in nanoseconds; `None` of nothing.
    #[must_use]
    pub fn average_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }

    /// Returns the duration in nanoseconds that a share of all durations does not exceed (0.99: the
    /// 99th percentile), to one part in 32; `None` of nothing.
    #[must_use]
    pub fn percentile_ns(&self, share: f64) -> Option<u64> {
        let total: u64 = self.buckets.iter().map(|(_, count)| count).sum();
        let rank = ((share.clamp(0.0, 1.0) * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut below = 0;
        self.buckets.iter().find_map(|&(bucket, count)| {
            let (start, width) = SCALE.bounds_of(bucket);
            // Spread evenly within the bucket.
            let at = start
                + (u128::from(width) * u128::from(rank.saturating_sub(below))
                    / u128::from(count.max(1))) as u64;
            below += count;
            (below >= rank).then(|| at.min(self.ns_max.max(start)))
        })
    }

    /// Returns how many durations were at most `ns` nanoseconds, to the width of a bucket.
    #[must_use]
    pub fn count_up_to(&self, ns: u64) -> u64 {
        self.buckets
            .iter()
            .filter(|(bucket, _)| SCALE.bounds_of(*bucket).0 <= ns)
            .map(|(_, count)| count)
            .sum()
    }

    /// Adds the durations of another histogram.
    pub fn add(&mut self, other: &Self) {
        let mut buckets: BTreeMap<u32, u64> = self.buckets.drain(..).collect();
        other
            .buckets
            .iter()
            .for_each(|(bucket, count)| *buckets.entry(*bucket).or_default() += count);
        self.buckets = buckets.into_iter().collect();
        self.timed += other.timed;
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.ns_max = self.ns_max.max(other.ns_max);
    }

    /// Returns what came since an earlier snapshot of the same histogram (all of it, after a
    /// reset). The longest stays that of the whole.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if earlier.timed > self.timed || earlier.count > self.count {
            return self.clone();
        }
        let before = |bucket: u32| {
            earlier
                .buckets
                .iter()
                .find(|(other, _)| *other == bucket)
                .map_or(0, |(_, count)| *count)
        };
        let buckets: Vec<_> = self
            .buckets
            .iter()
            .map(|&(b, n)| (b, n.saturating_sub(before(b))))
            .filter(|(_, n)| *n > 0)
            .collect();
        let timed = self.timed - earlier.timed;
        Self {
            timed,
            count: self.count - earlier.count,
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            ns_max: self.ns_max,
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: impl IntoIterator<Item = u64>) -> LatencySnapshot {
        let histogram = Histogram::default();
        values.into_iter().for_each(|ns| histogram.record(Duration::from_nanos(ns), 1));
        histogram.snapshot()
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let snapshot = histogram((1..=10_000).map(|n| n * 100));
        for (share, exact) in
            [(0.5, 500_000.0), (0.9, 900_000.0), (0.99, 990_000.0), (1.0, 1_000_000.0)]
        {
            let found = snapshot.percentile_ns(share).unwrap() as f64;
            assert!(
                (found / exact - 1.0).abs() < 1.0 / 32.0,
                "{share}: {found} instead of {exact}"
            );
        }
        assert_eq!((snapshot.average_ns(), snapshot.ns_max), (Some(500_050), 1_000_000));
        assert_eq!(LatencySnapshot::default().percentile_ns(0.99), None);
        assert_eq!(histogram([7]).percentile_ns(0.0), Some(7));
    }

    #[test]
    fn two_histograms_together_are_that_of_all_their_values() {
        let (low, high): (Vec<u64>, Vec<u64>) =
            ((1..500).map(|n| n * 100).collect(), (300..900).map(|n| n * 100).collect());
        let mut sum = histogram(low.clone());
        sum.add(&histogram(high.clone()));
        assert_eq!(sum, histogram(low.into_iter().chain(high)));
    }

    #[test]
    fn an_interval_is_what_came_since() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(10), 1);
        let earlier = histogram.snapshot();
        histogram.record(Duration::from_micros(300), 1);
        histogram.record(Duration::from_micros(10), 1);
        let interval = histogram.snapshot().since(&earlier);
        assert_eq!((interval.count, interval.sum_ns), (2, 310_000));
        assert_eq!(interval.buckets.iter().map(|(_, n)| n).sum::<u64>(), 2);
        assert_eq!((interval.count_up_to(20_000), interval.count_up_to(400_000)), (1, 2));
        histogram.reset();
        histogram.record(Duration::from_micros(1), 1);
        let fresh = histogram.snapshot();
        assert_eq!(
            fresh.since(&earlier).count,
            0,
            "as many as before: nothing tells a reset from a standstill"
        );
        assert_eq!(LatencySnapshot { count: 9, ..earlier }.count, 9);
    }

    #[test]
    fn one_in_n_is_timed_on_average_and_none_or_all_when_asked() {
        let timed = |every: u32, rounds: u32| {
            std::thread::spawn(move || {
                let sampler = Sampler::new(every);
                (0..rounds).filter(|_| sampler.begin().is_some()).count()
            })
            .join()
            .unwrap()
        };
        assert_eq!(timed(0, 10_000), 0);
        assert_eq!(timed(1, 10_000), 10_000);
        let found = timed(64, 640_000);
        assert!((9_000..11_000).contains(&found), "{found} of 640,000");
    }

    #[test]
    fn slow_operations_are_timed_each_and_fast_ones_stand_for_those_between() {
        let sampler = Sampler::new(SAMPLE_DEFAULT);
        let told = |rounds: u32, pause: Duration| {
            let timings = (0..rounds).filter_map(|_| {
                std::thread::sleep(pause);
                sampler.begin()
            });
            timings.fold((0, 0), |(timed, stood), timing| (timed + 1, stood + timing.stands_for))
        };
        let (timed, stood) = told(50, 2 * PACE);
        assert!(timed >= 48 && stood <= 52, "each but the thread's first: {timed} for {stood}");
        let (timed, stood) = told(4_000_000, Duration::ZERO);
        assert!(timed < 400_000, "{timed}");
        assert!((3_600_000..4_400_000).contains(&stood), "{stood}, and not 4,000,000");
    }

    #[test]
    fn a_duration_weighs_as_much_as_it_stands_for() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(1), 99);
        histogram.record(Duration::from_micros(400), 1);
        let told = histogram.snapshot();
        assert_eq!((told.timed, told.count, told.sum_ns, told.ns_max), (2, 100, 499_000, 400_000));
        assert!(
            told.percentile_ns(0.98).unwrap() < 2_000 && told.percentile_ns(1.0).unwrap() > 390_000,
            "{told:?}"
        );
    }

    #[test]
    fn a_program_that_goes_round_its_files_has_all_of_them_timed() {
        let sampler = Sampler::new(64);
        let mut timed = [0; 64];
        (0..640_000).for_each(|at| timed[at % 64] += usize::from(sampler.begin().is_some()));
        assert!(timed.iter().all(|&n| n > 50), "{timed:?}");
    }

    #[test]
    fn a_change_of_the_rate_reaches_a_running_thread() {
        let sampler = Sampler::new(0);
        assert!(sampler.begin().is_none());
        sampler.set_every(1);
        assert!((0..=2 * IDLE).any(|_| sampler.begin().is_some()));
    }

    #[test]
    fn i_lat_1_histograms_of_files_are_bounded() {
        let files: Vec<FileLatencies> =
            (0..FILE_HISTOGRAMS_MAX + 10).map(|_| FileLatencies::default()).collect();
        files.iter().for_each(|file| file.record(Timed::Read, Duration::from_micros(1), 1));
        let with = files.iter().filter(|file| file.snapshot().read.count > 0).count();
        assert!(with <= FILE_HISTOGRAMS_MAX);
        drop(files);
        let again = FileLatencies::default();
        again.record(Timed::Read, Duration::from_micros(1), 1);
        assert_eq!(again.snapshot().read.count, 1);
    }
}
