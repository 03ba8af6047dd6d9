//! What reached a device, counted without locks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{DeviceCounters, Operation, StripedCounters};

/// The live counters of one open device. Relaxed: they order nothing, they only add up.
#[derive(Debug, Default)]
pub struct LiveCounters {
    transfers: StripedCounters<4>,
    flushes: AtomicU64,
    errors: AtomicU64,
    saturated: AtomicU64,
}

/// Indexes of what is counted of transfers.
const READS: usize = 0;
const READ_BYTES: usize = 1;
const WRITES: usize = 2;
const WRITTEN_BYTES: usize = 3;
const _: () = assert!(
    WRITTEN_BYTES == 3 && READS < READ_BYTES && READ_BYTES < WRITES && WRITES < WRITTEN_BYTES,
    "each counter of transfers has a place of its own"
);

impl LiveCounters {
    /// Counts one operation.
    #[inline]
    pub fn note(&self, operation: Operation, bytes: u64, ok: bool) {
        match class_of(operation, ok) {
            Class::Read => self.transfers.add([(READS, 1), (READ_BYTES, bytes)]),
            Class::Write => self.transfers.add([(WRITES, 1), (WRITTEN_BYTES, bytes)]),
            Class::Flush => add(&self.flushes, 1),
            Class::Error => add(&self.errors, 1),
            Class::Uncounted => {}
        }
    }

    /// Counts one operation by its outcome and hands the outcome on.
    ///
    /// # Errors
    /// Those of the outcome.
    #[inline]
    pub fn count<T>(
        &self,
        operation: Operation,
        bytes: u64,
        result: crate::Result<T>,
    ) -> crate::Result<T> {
        self.note(operation, bytes, result.is_ok());
        result
    }

    /// Adds a batch that one owner counted by itself.
    #[inline]
    pub fn add(&self, batch: &DeviceCounters) {
        if batch.reads != 0 {
            self.transfers.add([(READS, batch.reads), (READ_BYTES, batch.read_bytes)]);
        }
        if batch.writes != 0 {
            self.transfers.add([(WRITES, batch.writes), (WRITTEN_BYTES, batch.written_bytes)]);
        }
        add(&self.flushes, batch.flushes);
        add(&self.errors, batch.errors);
        add(&self.saturated, batch.saturated);
    }

    /// Returns what was counted so far.
    #[must_use]
    pub fn snapshot(&self) -> DeviceCounters {
        let [reads, read_bytes, writes, written_bytes] = self.transfers.totals();
        DeviceCounters {
            reads,
            read_bytes,
            writes,
            written_bytes,
            flushes: self.flushes.load(Relaxed),
            errors: self.errors.load(Relaxed),
            saturated: self.saturated.load(Relaxed),
        }
    }
}

impl std::iter::Sum for DeviceCounters {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            reads: sum.reads + one.reads,
            read_bytes: sum.read_bytes + one.read_bytes,
            writes: sum.writes + one.writes,
            written_bytes: sum.written_bytes + one.written_bytes,
            flushes: sum.flushes + one.flushes,
            errors: sum.errors + one.errors,
            saturated: sum.saturated + one.saturated,
        })
    }
}

/// Adds only what is there: an atomic add costs more than the test.
#[inline]
fn add(counter: &AtomicU64, value: u64) {
    if value != 0 {
        counter.fetch_add(value, Relaxed);
    }
}

/// What an operation counts as.
enum Class {
    Read,
    Write,
    Flush,
    Error,
    Uncounted,
}

/// A write of zeros over a range counts as a write.
#[inline]
fn class_of(operation: Operation, ok: bool) -> Class {
    match (ok, operation) {
        (false, _) => Class::Error,
        (true, Operation::Read) => Class::Read,
        (true, Operation::Write | Operation::Discard) => Class::Write,
        (true, Operation::Flush) => Class::Flush,
        (true, Operation::Open | Operation::Queue | Operation::Resize) => Class::Uncounted,
    }
}

/// Counts one operation into a batch.
#[inline]
pub(crate) fn tally(batch: &mut DeviceCounters, operation: Operation, bytes: u64, ok: bool) {
    match class_of(operation, ok) {
        Class::Read => {
            batch.reads += 1;
            batch.read_bytes += bytes;
        }
        Class::Write => {
            batch.writes += 1;
            batch.written_bytes += bytes;
        }
        Class::Flush => batch.flushes += 1,
        Class::Error => batch.errors += 1,
        Class::Uncounted => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_operations_and_batches_add_up() {
        let counters = LiveCounters::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counters.note(Operation::Read, 512, true);
                        counters.note(Operation::Discard, 100 << 40, true);
                        counters.note(Operation::Flush, 0, true);
                        counters.note(Operation::Write, 512, false);
                        let mut batch = DeviceCounters { saturated: 1, ..Default::default() };
                        tally(&mut batch, Operation::Read, 1024, true);
                        tally(&mut batch, Operation::Write, 512, true);
                        tally(&mut batch, Operation::Resize, 0, true);
                        counters.add(&batch);
                    }
                });
            }
        });
        let expected = DeviceCounters {
            reads: 8000,
            read_bytes: 4000 * (512 + 1024),
            writes: 8000,
            written_bytes: 4000 * ((100 << 40) + 512),
            flushes: 4000,
            errors: 4000,
            saturated: 4000,
        };
        assert_eq!(counters.snapshot(), expected);
    }
}
