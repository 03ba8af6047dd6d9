//! Counters of what is going on, without locks and without two threads that count in the same place.
//!
//! Every thread adds to a shard of its own, as long as there are not more threads than shards; a reader adds the shards up. All is relaxed: the
//! counters order nothing.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate_block::{LogScale, RequestKind};

use crate::watch::Watch;
use crate::{OperationStatistics, VolumeStatistics};

/// Four buckets for every doubling, in quarters of a microsecond; the last holds everything slower
/// than a minute.
const SCALE: LogScale = LogScale { sub_bits: 2, shift_max: 25 };
/// The first buckets, below 1 µs, are not used.
const BELOW: usize = 4;
const BUCKETS: usize = SCALE.buckets() - BELOW;
/// How many threads count without meeting.
const SHARDS: usize = 8;

/// Returns the shard of the calling thread.
#[inline]
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: usize = NEXT.fetch_add(1, Relaxed) % SHARDS);
    // A thread that is just ending counts with the first.
    OWN.try_with(|own| *own).unwrap_or(0)
}

/// Two cache lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub T);

/// One thread's part of a [`Meter`].
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
    errors: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Shard {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            bytes: zero(),
            nanoseconds: zero(),
            errors: zero(),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

/// The live counters of one kind of operation.
#[derive(Debug)]
pub(crate) struct Meter {
    shards: Box<[Shard]>,
}

impl Default for Meter {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

impl Meter {
    /// Counts an operation that took so long.
    #[inline]
    pub fn note(&self, took: Duration, bytes: u64, ok: bool) {
        let shard = &self.shards[shard()];
        if !ok {
            shard.errors.fetch_add(1, Relaxed);
            return;
        }
        if bytes > 0 {
            shard.bytes.fetch_add(bytes, Relaxed);
        }
        shard.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        shard.buckets[bucket(took)].fetch_add(1, Relaxed);
    }

    pub fn reset(&self) {
        for shard in &self.shards {
            [&shard.bytes, &shard.nanoseconds, &shard.errors]
                .into_iter()
                .chain(&shard.buckets)
                .for_each(|counter| counter.store(0, Relaxed));
        }
    }

    pub fn statistics(&self) -> OperationStatistics {
        let sum = |of: &dyn Fn(&Shard) -> &AtomicU64| {
            self.shards.iter().map(|shard| of(shard).load(Relaxed)).sum::<u64>()
        };
        let counts = (0..BUCKETS).map(|at| (bucket_end_us(at), sum(&|shard| &shard.buckets[at])));
        let histogram: Vec<(u64, u64)> = counts.filter(|(_, count)| *count > 0).collect();
        let operations = histogram.iter().map(|(_, count)| count).sum();
        let (bytes, errors) = (sum(&|shard| &shard.bytes), sum(&|shard| &shard.errors));
        OperationStatistics::of(
            operations,
            bytes,
            errors,
            sum(&|shard| &shard.nanoseconds) / 1000,
            histogram,
        )
    }
}

/// The live counters of a volume.
#[derive(Debug, Default)]
pub(crate) struct VolumeMeter {
    reads: Meter,
    writes: Meter,
    flushes: Meter,
    /// Operations that began, and that ended, by the thread that saw it.
    counts: [Padded<(AtomicU64, AtomicU64)>; SHARDS],
    /// What is measured while members are copied.
    pub watch: Watch,
}

impl VolumeMeter {
    pub fn statistics(&self) -> VolumeStatistics {
        let (reads, writes, flushes) =
            (self.reads.statistics(), self.writes.statistics(), self.flushes.statistics());
        VolumeStatistics { reads, writes, flushes, queue_depth: self.busy() }
    }

    /// Returns how many operations began.
    pub fn begun(&self) -> u64 {
        self.counts.iter().map(|shard| shard.0.0.load(Relaxed)).sum()
    }

    /// Returns how many operations are under way.
    pub fn busy(&self) -> u64 {
        let ended: u64 = self.counts.iter().map(|shard| shard.0.1.load(Relaxed)).sum();
        self.begun().saturating_sub(ended)
    }

    /// Counts operations that begin.
    #[inline]
    pub fn begin(&self, count: u64) {
        self.counts[shard()].0.0.fetch_add(count, Relaxed);
    }

    /// Counts operations that end.
    #[inline]
    pub fn end(&self, count: u64) {
        self.counts[shard()].0.1.fetch_add(count, Relaxed);
    }

    /// Counts what an operation was that began at `start` and ended at `end`.
    #[inline]
    pub fn note(&self, kind: RequestKind, (start, end): (Instant, Instant), bytes: u64, ok: bool) {
        let took = end.saturating_duration_since(start);
        let meter = match kind {
            RequestKind::Read => &self.reads,
            RequestKind::Write => &self.writes,
            RequestKind::Flush => &self.flushes,
        };
        meter.note(took, bytes, ok);
        self.watch.note(kind, start, took);
    }

    /// Counts what `operation` does by its outcome.
    pub fn time<T, E>(
        &self,
        kind: RequestKind,
        bytes: u64,
        operation: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.begin(1);
        let start = Instant::now();
        let result = operation();
        self.note(kind, (start, Instant::now()), bytes, result.is_ok());
        self.end(1);
        result
    }

    pub fn reset(&self) {
        [&self.reads, &self.writes, &self.flushes].into_iter().for_each(Meter::reset);
    }
}

/// Returns the bucket of a time.
#[inline]
fn bucket(took: Duration) -> usize {
    let quarters = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).saturating_mul(4).max(4);
    SCALE.bucket_of(quarters) - BELOW
}

/// Returns the upper end of a bucket in microseconds.
fn bucket_end_us(bucket: usize) -> u64 {
    let (start, width) = SCALE.bounds_of((bucket + BELOW) as u32);
    (start + width) >> 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_within_a_fifth_of_its_bucket() {
        let mut last = 0;
        for us in (1..4096).chain([1_000_000, 30_000_000]) {
            let at = bucket(Duration::from_micros(us));
            assert!(
                at >= last && bucket_end_us(at) >= us,
                "{us} µs is in bucket {at}, which ends at {}",
                bucket_end_us(at)
            );
            assert!(
                us < 4 || bucket_end_us(at) <= us + us.div_ceil(4),
                "{us} µs is in bucket {at}, which ends at {}",
                bucket_end_us(at)
            );
            last = at;
        }
        assert_eq!(bucket(Duration::from_secs(86_400)), BUCKETS - 1);
    }

    #[test]
    fn what_all_threads_counted_is_told_together() {
        let meter = Meter::default();
        assert_eq!(meter.statistics(), OperationStatistics::default());
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| {
                    (0..98).for_each(|_| meter.note(Duration::from_secs(1), 512, true));
                    (0..2).for_each(|_| meter.note(Duration::from_mins(1), 512, true));
                    meter.note(Duration::ZERO, 512, false);
                });
            }
        });
        let told = meter.statistics();
        assert_eq!((told.operations, told.bytes, told.errors), (1600, 1600 * 512, 16));
        assert!(
            (1_000_000..2_000_000).contains(&told.time_us_p50)
                && (60_000_000..80_000_000).contains(&told.time_us_p99),
            "{told:?}"
        );
        meter.reset();
        assert_eq!(meter.statistics(), OperationStatistics::default());
    }

    #[test]
    fn an_operation_may_end_in_another_thread() {
        let meter = VolumeMeter::default();
        meter.begin(3);
        std::thread::scope(|scope| drop(scope.spawn(|| meter.end(2))));
        assert_eq!(meter.busy(), 1);
        meter.time(RequestKind::Read, 512, || Ok::<(), ()>(())).unwrap();
        let told = meter.statistics();
        assert_eq!(
            (told.queue_depth, told.reads.operations, told.reads.bytes, told.writes.operations),
            (1, 1, 512, 0)
        );
    }
}
