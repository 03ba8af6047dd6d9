//! What a volume, a plex and a member did, counted without locks: operations, bytes, times, errors.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Four buckets for every doubling from 1 µs on; the last holds everything slower than a minute.
const BUCKETS: usize = 4 * 26;

/// The live counters of one kind of operation. Relaxed: they order nothing, they only add up.
#[derive(Debug)]
pub(crate) struct Meter {
    operations: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
    errors: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            operations: AtomicU64::default(),
            bytes: AtomicU64::default(),
            nanoseconds: AtomicU64::default(),
            errors: AtomicU64::default(),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

/// What a kind of operation came to. Times are from submission to completion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperationStatistics {
    /// Completed operations.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Average time in microseconds.
    pub time_us_average: u64,
    /// Half of the operations were faster, in microseconds, to within a fifth.
    pub time_us_p50: u64,
    /// 99 of 100 operations were faster, in microseconds, to within a fifth.
    pub time_us_p99: u64,
    /// The sum of all times in microseconds.
    pub time_us_total: u64,
    /// How many operations took up to so many microseconds and longer than the entry before says; only what is not zero.
    pub histogram: Vec<(u64, u64)>,
}

impl OperationStatistics {
    /// Makes the averages and percentiles of counts.
    #[must_use]
    pub fn of(operations: u64, bytes: u64, errors: u64, time_us_total: u64, histogram: Vec<(u64, u64)>) -> Self {
        let (time_us_p50, time_us_p99) = (quantile(&histogram, 50), quantile(&histogram, 99));
        Self { operations, bytes, errors, time_us_average: time_us_total / operations.max(1), time_us_p50, time_us_p99, time_us_total, histogram }
    }

    /// Returns what came after `earlier`, statistics of the same thing; everything where that was set to zero in between.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |at: u64| earlier.histogram.iter().find(|(end, _)| *end == at).map_or(0, |(_, count)| *count);
        let grew = earlier.histogram.iter().all(|(at, count)| self.histogram.iter().any(|(end, now)| end == at && now >= count));
        if !grew || self.operations < earlier.operations || self.errors < earlier.errors || self.time_us_total < earlier.time_us_total {
            return self.clone();
        }
        let histogram = self.histogram.iter().map(|(at, count)| (*at, count.saturating_sub(before(*at)))).filter(|(_, count)| *count > 0).collect();
        let (operations, bytes) = (self.operations - earlier.operations, self.bytes.saturating_sub(earlier.bytes));
        Self::of(operations, bytes, self.errors - earlier.errors, self.time_us_total - earlier.time_us_total, histogram)
    }

    /// Adds what another one did.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut histogram: std::collections::BTreeMap<u64, u64> = self.histogram.iter().copied().collect();
        other.histogram.iter().for_each(|(at, count)| *histogram.entry(*at).or_default() += count);
        let (operations, bytes) = (self.operations + other.operations, self.bytes + other.bytes);
        let time_us_total = self.time_us_total + other.time_us_total;
        Self::of(operations, bytes, self.errors + other.errors, time_us_total, histogram.into_iter().collect())
    }
}

/// What a member did since the group was imported or the statistics were reset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberStatistics {
    /// Reads.
    pub reads: OperationStatistics,
    /// Writes.
    pub writes: OperationStatistics,
    /// Flushes.
    pub flushes: OperationStatistics,
    /// Reads that failed and were made good from another copy.
    pub corrected: u64,
    /// Operations under way now.
    pub queue_depth: u64,
}

impl MemberStatistics {
    /// Adds what another member did.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            reads: self.reads.plus(&other.reads),
            writes: self.writes.plus(&other.writes),
            flushes: self.flushes.plus(&other.flushes),
            corrected: self.corrected + other.corrected,
            queue_depth: self.queue_depth + other.queue_depth,
        }
    }
}

/// What the members of a plex, one whole copy of a volume, did together. Where the volume has one copy there is one plex, of all its members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlexStatistics {
    /// The members by their index.
    pub members: Vec<usize>,
    /// What they did. A member that holds parts of several plexes or volumes counts in each.
    pub statistics: MemberStatistics,
}

/// The live counters of a volume.
#[derive(Debug, Default)]
pub(crate) struct VolumeMeter {
    pub reads: Meter,
    pub writes: Meter,
    pub flushes: Meter,
    /// Operations under way.
    busy: AtomicU64,
}

/// What a volume did since its group was imported or the statistics were reset: as its users saw it, whatever the members did for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeStatistics {
    /// Reads.
    pub reads: OperationStatistics,
    /// Writes.
    pub writes: OperationStatistics,
    /// Flushes.
    pub flushes: OperationStatistics,
    /// Operations under way now.
    pub queue_depth: u64,
}

impl VolumeMeter {
    pub fn statistics(&self) -> VolumeStatistics {
        let queue_depth = self.busy.load(Relaxed);
        VolumeStatistics { reads: self.reads.statistics(), writes: self.writes.statistics(), flushes: self.flushes.statistics(), queue_depth }
    }

    /// Counts operations that begin.
    pub fn begin(&self, count: u64) {
        self.busy.fetch_add(count, Relaxed);
    }

    /// Counts operations that end.
    pub fn end(&self, count: u64) {
        self.busy.fetch_sub(count, Relaxed);
    }

    /// Counts what `operation` does by its outcome.
    pub fn time<T, E>(&self, meter: &Meter, bytes: u64, operation: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.begin(1);
        let start = Instant::now();
        let result = operation();
        meter.note(start, bytes, result.is_ok());
        self.end(1);
        result
    }

    pub fn reset(&self) {
        [&self.reads, &self.writes, &self.flushes].into_iter().for_each(Meter::reset);
    }
}

impl Meter {
    pub fn note(&self, since: Instant, bytes: u64, ok: bool) {
        if !ok {
            self.errors.fetch_add(1, Relaxed);
            return;
        }
        let took = since.elapsed();
        self.operations.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        self.buckets[bucket(took)].fetch_add(1, Relaxed);
    }

    pub fn reset(&self) {
        for counter in [&self.operations, &self.bytes, &self.nanoseconds, &self.errors].into_iter().chain(&self.buckets) {
            counter.store(0, Relaxed);
        }
    }

    pub fn statistics(&self) -> OperationStatistics {
        let count = |(at, bucket): (usize, &AtomicU64)| Some((bucket_end_us(at), bucket.load(Relaxed))).filter(|(_, count)| *count > 0);
        let histogram = self.buckets.iter().enumerate().filter_map(count).collect();
        let (operations, time_us_total) = (self.operations.load(Relaxed), self.nanoseconds.load(Relaxed) / 1000);
        OperationStatistics::of(operations, self.bytes.load(Relaxed), self.errors.load(Relaxed), time_us_total, histogram)
    }
}

/// Returns the bucket of a time: its power of two in microseconds, and the quarter within.
fn bucket(took: Duration) -> usize {
    let quarters = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).saturating_mul(4).max(4);
    let power = quarters.ilog2() as usize - 2;
    let quarter = (quarters >> power) as usize - 4;
    (power * 4 + quarter).min(BUCKETS - 1)
}

/// Returns the upper end of a bucket in microseconds.
fn bucket_end_us(bucket: usize) -> u64 {
    (5 + bucket as u64 % 4) << (bucket / 4) >> 2
}

/// Returns the time in which so many percent of a histogram's operations ended; 0 where there are none.
fn quantile(histogram: &[(u64, u64)], percent: u128) -> u64 {
    // Counts may come from another process, and add up to anything.
    let total: u128 = histogram.iter().map(|(_, count)| u128::from(*count)).sum();
    let mut before = 0;
    let reached = histogram.iter().find(|(_, count)| {
        before += u128::from(*count);
        before * 100 >= total * percent
    });
    reached.map_or(0, |(end, _)| *end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_within_a_fifth_of_its_bucket() {
        let mut last = 0;
        for us in (1..4096).chain([1_000_000, 30_000_000]) {
            let at = bucket(Duration::from_micros(us));
            assert!(at >= last && bucket_end_us(at) >= us, "{us} µs is in bucket {at}, which ends at {}", bucket_end_us(at));
            assert!(us < 4 || bucket_end_us(at) <= us + us.div_ceil(4), "{us} µs is in bucket {at}, which ends at {}", bucket_end_us(at));
            last = at;
        }
        assert_eq!(bucket(Duration::from_secs(86_400)), BUCKETS - 1);
    }

    #[test]
    fn counts_that_cannot_be_make_no_sums_that_cannot_be() {
        let told = OperationStatistics::of(u64::MAX, u64::MAX, u64::MAX, u64::MAX, vec![(7, u64::MAX), (7, 1), (9, u64::MAX)]);
        assert_eq!((told.time_us_p50, told.time_us_p99), (7, 9));
        assert_eq!(told.since(&told).operations, 0);
    }

    #[test]
    fn quantiles_are_where_the_operations_are_and_intervals_are_differences() {
        let meter = Meter::default();
        let past = |us: u64| Instant::now().checked_sub(Duration::from_micros(us)).unwrap();
        let fill = |slow: u64| {
            (0..98).for_each(|_| meter.note(past(1_000_000), 512, true));
            (0..slow).for_each(|_| meter.note(past(60_000_000), 512, true));
            meter.note(Instant::now(), 0, false);
        };
        assert_eq!(meter.statistics(), OperationStatistics::default());
        fill(2);
        let first = meter.statistics();
        assert_eq!((first.operations, first.bytes, first.errors), (100, 51_200, 1));
        assert!((1_000_000..2_000_000).contains(&first.time_us_p50) && (60_000_000..80_000_000).contains(&first.time_us_p99), "{first:?}");
        fill(0);
        let second = meter.statistics().since(&first);
        assert_eq!((second.operations, second.bytes, second.errors), (98, 50_176, 1));
        assert!((1_000_000..2_000_000).contains(&second.time_us_p99) && (1_000_000..2_000_000).contains(&second.time_us_average), "{second:?}");
        assert_eq!(first.plus(&second), meter.statistics());
        meter.reset();
        fill(0);
        assert_eq!(meter.statistics().since(&first).operations, 98, "set to zero in between");
    }
}
