//! What a member did, counted without locks: operations, bytes, times, errors.

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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

/// The live counters of a volume.
#[derive(Debug, Default)]
pub(crate) struct VolumeMeter {
    pub reads: Meter,
    pub writes: Meter,
    pub flushes: Meter,
}

/// What a volume did since its group was imported or the statistics were reset: as its users saw it, whatever the members did for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeStatistics {
    /// Reads.
    pub reads: OperationStatistics,
    /// Writes.
    pub writes: OperationStatistics,
    /// Flushes.
    pub flushes: OperationStatistics,
}

impl VolumeMeter {
    pub fn statistics(&self) -> VolumeStatistics {
        VolumeStatistics { reads: self.reads.statistics(), writes: self.writes.statistics(), flushes: self.flushes.statistics() }
    }

    pub fn reset(&self) {
        [&self.reads, &self.writes, &self.flushes].into_iter().for_each(Meter::reset);
    }
}

impl Meter {
    /// Counts what `operation` does by its outcome.
    pub fn time<T, E>(&self, bytes: u64, operation: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let start = Instant::now();
        let result = operation();
        self.note(start, bytes, result.is_ok());
        result
    }

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
        let buckets: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let operations = self.operations.load(Relaxed);
        OperationStatistics {
            operations,
            bytes: self.bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
            time_us_average: self.nanoseconds.load(Relaxed) / 1000 / operations.max(1),
            time_us_p50: quantile(&buckets, 50),
            time_us_p99: quantile(&buckets, 99),
        }
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

fn quantile(buckets: &[u64], percent: u64) -> u64 {
    let total: u64 = buckets.iter().sum();
    let mut before = 0;
    let reached = buckets.iter().position(|count| {
        before += count;
        total > 0 && before * 100 >= total * percent
    });
    reached.map_or(0, bucket_end_us)
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
    fn quantiles_are_where_the_operations_are() {
        let mut buckets = vec![0; BUCKETS];
        buckets[bucket(Duration::from_micros(100))] = 98;
        buckets[bucket(Duration::from_millis(8))] = 2;
        assert!((100..=125).contains(&quantile(&buckets, 50)));
        assert!((8000..=10_000).contains(&quantile(&buckets, 99)));
        assert_eq!(quantile(&[0; BUCKETS], 50), 0);
    }
}
