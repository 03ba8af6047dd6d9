//! Counters of what is going on, without locks and without two threads that count in the same
//! place.

use std::time::{Duration, Instant};

use bedplate_block::{LogScale, RequestKind, StripedCounters};

use crate::watch::Watch;
use crate::{OperationStatistics, VolumeStatistics};

/// Four buckets for every doubling, in quarters of a microsecond; the last holds everything slower
/// than a minute.
const SCALE: LogScale = LogScale { sub_bits: 2, shift_max: 25 };
/// The first buckets, below 1 µs, are not used.
const BELOW: usize = 4;
const BUCKETS: usize = SCALE.buckets() - BELOW;

/// Indexes of a meter's counters, and where the buckets begin.
const BYTES: usize = 0;
const NANOSECONDS: usize = 1;
const ERRORS: usize = 2;
const FIRST_BUCKET: usize = 3;
const _: () = assert!(
    ERRORS < FIRST_BUCKET && BYTES != NANOSECONDS,
    "what is summed lies before what is counted by duration"
);

/// Indexes of the counters of operations that began, and that ended.
const BEGUN: usize = 0;
const ENDED: usize = 1;

/// Two cache lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub T);

/// The live counters of one kind of operation.
#[derive(Debug, Default)]
pub(crate) struct Meter(StripedCounters<{ FIRST_BUCKET + BUCKETS }>);

impl Meter {
    /// Counts an operation that took so long.
    #[inline]
    pub fn note(&self, took: Duration, bytes: u64, ok: bool) {
        if ok {
            let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            let bucket = FIRST_BUCKET + bucket(took);
            self.0.add([(BYTES, bytes), (NANOSECONDS, nanoseconds), (bucket, 1)]);
        } else {
            self.0.add([(ERRORS, 1)]);
        }
    }

    pub fn reset(&self) {
        self.0.reset();
    }

    pub fn statistics(&self) -> OperationStatistics {
        let totals = self.0.totals();
        let counts = totals[FIRST_BUCKET..].iter().enumerate();
        let counts = counts.map(|(at, count)| (bucket_end_us(at), *count));
        let histogram: Vec<(u64, u64)> = counts.filter(|(_, count)| *count > 0).collect();
        let operations = histogram.iter().map(|(_, count)| count).sum();
        OperationStatistics::of(
            operations,
            totals[BYTES],
            totals[ERRORS],
            totals[NANOSECONDS] / 1000,
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
    /// Operations that began, and that ended.
    counts: StripedCounters<2>,
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
        self.counts.total(BEGUN)
    }

    /// Returns how many operations are under way.
    pub fn busy(&self) -> u64 {
        let ended = self.counts.total(ENDED);
        self.begun().saturating_sub(ended)
    }

    /// Counts operations that begin.
    #[inline]
    pub fn begin(&self, count: u64) {
        self.counts.add([(BEGUN, count)]);
    }

    /// Counts operations that end.
    #[inline]
    pub fn end(&self, count: u64) {
        self.counts.add([(ENDED, count)]);
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
    let bucket = SCALE.bucket_of(quarters) - BELOW;
    debug_assert!(bucket < BUCKETS, "every duration has a bucket: {took:?} is in {bucket}");
    bucket
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
            for _ in 0..16 {
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
