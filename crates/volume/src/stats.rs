//! What a volume, a plex and a member did: operations, bytes, times, errors, as values.

use serde::{Deserialize, Serialize};

/// What a kind of operation came to. Times are from submission to completion.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// How many operations took up to so many microseconds and longer than the entry before says;
    /// only what is not zero.
    pub histogram: Vec<(u64, u64)>,
}

impl OperationStatistics {
    /// Makes the averages and percentiles of counts.
    #[must_use]
    pub fn of(
        operations: u64,
        bytes: u64,
        errors: u64,
        time_us_total: u64,
        histogram: Vec<(u64, u64)>,
    ) -> Self {
        let (time_us_p50, time_us_p99) = (quantile(&histogram, 50), quantile(&histogram, 99));
        Self {
            operations,
            bytes,
            errors,
            time_us_average: time_us_total / operations.max(1),
            time_us_p50,
            time_us_p99,
            time_us_total,
            histogram,
        }
    }

    /// Returns what came after `earlier`, statistics of the same thing; everything where that was
    /// set to zero in between.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |at: u64| {
            earlier.histogram.iter().find(|(end, _)| *end == at).map_or(0, |(_, count)| *count)
        };
        let grew = earlier
            .histogram
            .iter()
            .all(|(at, count)| self.histogram.iter().any(|(end, now)| end == at && now >= count));
        if !grew
            || self.operations < earlier.operations
            || self.errors < earlier.errors
            || self.time_us_total < earlier.time_us_total
        {
            return self.clone();
        }
        let histogram = self
            .histogram
            .iter()
            .map(|(at, count)| (*at, count.saturating_sub(before(*at))))
            .filter(|(_, count)| *count > 0)
            .collect();
        let (operations, bytes) =
            (self.operations - earlier.operations, self.bytes.saturating_sub(earlier.bytes));
        Self::of(
            operations,
            bytes,
            self.errors - earlier.errors,
            self.time_us_total - earlier.time_us_total,
            histogram,
        )
    }

    /// Adds what another one did.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut histogram: std::collections::BTreeMap<u64, u64> =
            self.histogram.iter().copied().collect();
        other.histogram.iter().for_each(|(at, count)| *histogram.entry(*at).or_default() += count);
        let (operations, bytes) = (self.operations + other.operations, self.bytes + other.bytes);
        let time_us_total = self.time_us_total + other.time_us_total;
        Self::of(
            operations,
            bytes,
            self.errors + other.errors,
            time_us_total,
            histogram.into_iter().collect(),
        )
    }
}

/// What a member did since the group was imported or the statistics were reset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// How long at least one operation was under way, in microseconds.
    #[serde(default)]
    pub busy_us: u64,
    /// How long all operations were under way together, in microseconds.
    #[serde(default)]
    pub queued_us: u64,
    /// The time in microseconds in which that was measured; of a plex the sum over its members.
    #[serde(default)]
    pub measured_us: u64,
}

impl MemberStatistics {
    /// Returns the part of the time in which at least one operation was under way; `None` where
    /// nothing was measured.
    #[must_use]
    pub fn utilisation(&self) -> Option<f64> {
        (self.measured_us > 0).then(|| (self.busy_us as f64 / self.measured_us as f64).min(1.0))
    }

    /// Returns how many operations were under way on average; `None` where nothing was measured.
    #[must_use]
    pub fn queue_depth_mean(&self) -> Option<f64> {
        (self.measured_us > 0).then(|| self.queued_us as f64 / self.measured_us as f64)
    }

    /// Returns what came after `earlier`, statistics of the same member or plex.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let is_reset = self.measured_us < earlier.measured_us || self.busy_us < earlier.busy_us;
        let time = |now: u64, then: u64| if is_reset { now } else { now.saturating_sub(then) };
        Self {
            reads: self.reads.since(&earlier.reads),
            writes: self.writes.since(&earlier.writes),
            flushes: self.flushes.since(&earlier.flushes),
            corrected: self.corrected.checked_sub(earlier.corrected).unwrap_or(self.corrected),
            queue_depth: self.queue_depth,
            busy_us: time(self.busy_us, earlier.busy_us),
            queued_us: time(self.queued_us, earlier.queued_us),
            measured_us: time(self.measured_us, earlier.measured_us),
        }
    }

    /// Adds what another member did.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            reads: self.reads.plus(&other.reads),
            writes: self.writes.plus(&other.writes),
            flushes: self.flushes.plus(&other.flushes),
            corrected: self.corrected + other.corrected,
            queue_depth: self.queue_depth + other.queue_depth,
            busy_us: self.busy_us + other.busy_us,
            queued_us: self.queued_us + other.queued_us,
            measured_us: self.measured_us + other.measured_us,
        }
    }
}

/// What the members of a plex, one whole copy of a volume, did together. Where the volume has one
/// copy there is one plex, of all its members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlexStatistics {
    /// The members by their index.
    pub members: Vec<usize>,
    /// What they did. A member that holds parts of several plexes or volumes counts in each.
    pub statistics: MemberStatistics,
}

/// What a volume did since its group was imported or the statistics were reset: as its users saw
/// it, whatever the members did for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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

impl VolumeStatistics {
    /// Returns what came after `earlier`, statistics of the same volume.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads.since(&earlier.reads),
            writes: self.writes.since(&earlier.writes),
            flushes: self.flushes.since(&earlier.flushes),
            queue_depth: self.queue_depth,
        }
    }
}

/// Returns the time in which so many percent of a histogram's operations ended; 0 where there are
/// none.
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

    fn of(histogram: &[(u64, u64)], errors: u64) -> OperationStatistics {
        let operations = histogram.iter().map(|(_, count)| count).sum();
        let time = histogram.iter().map(|(us, count)| us * count).sum();
        OperationStatistics::of(operations, operations * 512, errors, time, histogram.to_vec())
    }

    #[test]
    fn counts_that_cannot_be_make_no_sums_that_cannot_be() {
        let told = OperationStatistics::of(
            u64::MAX,
            u64::MAX,
            u64::MAX,
            u64::MAX,
            vec![(7, u64::MAX), (7, 1), (9, u64::MAX)],
        );
        assert_eq!((told.time_us_p50, told.time_us_p99), (7, 9));
        assert_eq!(told.since(&told).operations, 0);
    }

    #[test]
    fn quantiles_are_where_the_operations_are_and_intervals_are_differences() {
        let (first, second) =
            (of(&[(1000, 98), (60_000, 2)], 1), of(&[(1000, 98 + 7), (60_000, 2), (80_000, 1)], 3));
        assert_eq!(
            (first.operations, first.time_us_p50, first.time_us_p99, first.time_us_average),
            (100, 1000, 60_000, 2180)
        );
        let between = second.since(&first);
        assert_eq!((between.operations, between.bytes, between.errors), (8, 8 * 512, 2));
        assert_eq!((between.time_us_p50, between.time_us_p99), (1000, 80_000));
        assert_eq!(first.plus(&between), second);
        assert_eq!(first.since(&second), first, "set to zero in between");
    }

    #[test]
    fn utilisation_is_of_the_interval_and_a_plex_has_the_mean_of_its_members() {
        let of = |busy_us, queued_us, measured_us| MemberStatistics {
            busy_us,
            queued_us,
            measured_us,
            ..MemberStatistics::default()
        };
        let (first, second) = (of(100, 150, 1000), of(600, 2150, 2000));
        let between = second.since(&first);
        assert_eq!(
            (between.utilisation(), between.queue_depth_mean()),
            (Some(0.5), Some(2.0)),
            "of the second 1000 µs"
        );
        assert_eq!(first.since(&second), first, "set to zero in between");
        assert_eq!(first.plus(&of(900, 900, 1000)).utilisation(), Some(0.5));
        assert_eq!(MemberStatistics::default().utilisation(), None);
    }
}
