//! What every read and write of a file counts.

use bedplate_block::StripedCounters;

use super::{CounterSnapshot, counting};

/// What is counted, and the index of its counter.
#[derive(Debug, Clone, Copy)]
enum Count {
    /// Those past the cache; the others are counted once, as hits or misses of the cache.
    Reads,
    ReadBytes,
    Writes,
    WrittenBytes,
    /// Of reads past the cache and writes, those that went through a bounce buffer or the cache. So
    /// a direct one counts nothing more.
    Indirect,
    CacheHits,
    CacheMisses,
}

impl Count {
    const ALL: usize = Self::CacheMisses as usize + 1;
}

/// The counts of one file.
#[derive(Debug, Default)]
pub(crate) struct FileCounters(StripedCounters<{ Count::ALL }>);

impl FileCounters {
    #[inline]
    fn add<const N: usize>(&self, counts: [(Count, u64); N]) {
        if counting() {
            self.0.add(counts.map(|(count, n)| (count as usize, n)));
        }
    }

    #[inline]
    pub(crate) fn count_read(&self, bytes: usize) {
        self.add([(Count::Reads, 1), (Count::ReadBytes, bytes as u64)]);
    }

    /// Counts a read through the cache.
    #[inline]
    pub(crate) fn count_cached_read(&self, hit: bool, bytes: usize) {
        self.add([
            (if hit { Count::CacheHits } else { Count::CacheMisses }, 1),
            (Count::ReadBytes, bytes as u64),
        ]);
    }

    #[inline]
    pub(crate) fn count_write(&self, bytes: usize) {
        self.add([(Count::Writes, 1), (Count::WrittenBytes, bytes as u64)]);
    }

    pub(crate) fn count_indirect(&self) {
        self.add([(Count::Indirect, 1)]);
    }

    /// Begins anew at 0.
    pub(crate) fn reset(&self) {
        self.0.reset();
    }

    /// Completes a snapshot of the other counters.
    pub(crate) fn complete(&self, rest: &CounterSnapshot) -> CounterSnapshot {
        let [reads, read_bytes, writes, written_bytes, indirect, cache_hits, cache_misses] =
            self.0.totals();
        let direct = (reads + writes).saturating_sub(indirect);
        let reads = reads + cache_hits + cache_misses;
        CounterSnapshot {
            reads,
            read_bytes,
            writes,
            written_bytes,
            direct,
            cache_hits,
            cache_misses,
            ..*rest
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_and_misses_of_the_cache_are_reads_that_went_through_it() {
        let counters = FileCounters::default();
        counters.count_read(512);
        counters.count_read(100);
        counters.count_indirect();
        counters.count_cached_read(true, 10);
        counters.count_cached_read(false, 20);
        counters.count_write(7);
        let found = counters.complete(&CounterSnapshot::default());
        let expected = CounterSnapshot {
            reads: 4,
            read_bytes: 642,
            writes: 1,
            written_bytes: 7,
            direct: 2,
            cache_hits: 1,
            cache_misses: 1,
            ..CounterSnapshot::default()
        };
        assert_eq!(found, expected);
        counters.reset();
        assert_eq!(counters.complete(&CounterSnapshot::default()), CounterSnapshot::default());
        assert!(size_of::<FileCounters>() <= 112, "{} bytes a file", size_of::<FileCounters>());
    }
}
