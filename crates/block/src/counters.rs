//! What reached a device, counted without locks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::{DeviceCounters, Operation};

/// The live counters of one open device. Relaxed: they order nothing, they only add up.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: Transfers,
    writes: Transfers,
    flushes: AtomicU64,
    errors: AtomicU64,
    saturated: AtomicU64,
}

/// A number of transfers and their bytes, counted by one atomic addition: it is the dearest thing that a transfer costs beside the system
/// call (5 ns), so there is one and not two.
///
/// ```text
///   live:  sectors of 512 bytes (40 bits) | transfers (24 bits)
/// ```
/// The thread that finds a field half full moves both to `spilled`. Others may add meanwhile: half a field is more than they could.
#[derive(Debug, Default)]
struct Transfers {
    live: AtomicU64,
    /// Transfers and bytes; a leaf lock.
    spilled: Mutex<(u64, u64)>,
}

impl Transfers {
    const COUNT_BITS: u32 = 24;
    /// The top bits of both fields.
    const HALF_FULL: u64 = 1 << 63 | 1 << (Self::COUNT_BITS - 1);

    #[inline]
    fn add(&self, count: u64, bytes: u64) {
        // A range of a tebibyte, zeroed: not for the live field.
        if bytes >> 40 != 0 {
            let mut spilled = self.spilled.lock();
            *spilled = (spilled.0 + count, spilled.1 + bytes);
            return;
        }
        let before = self.live.fetch_add((bytes / 512) << Self::COUNT_BITS | count, Relaxed);
        if before & Self::HALF_FULL != 0 {
            self.spill();
        }
    }

    /// Moves what is live to where there is room for all time, and returns all there is.
    #[cold]
    fn spill(&self) -> (u64, u64) {
        let mut spilled = self.spilled.lock();
        let live = self.live.swap(0, Relaxed);
        spilled.0 += live & ((1 << Self::COUNT_BITS) - 1);
        spilled.1 += (live >> Self::COUNT_BITS) * 512;
        *spilled
    }
}

impl Counters {
    /// Counts one operation.
    #[inline]
    pub fn note(&self, operation: Operation, bytes: u64, ok: bool) {
        let mut batch = DeviceCounters::default();
        tally(&mut batch, operation, bytes, ok);
        self.add(&batch);
    }

    /// Counts one operation by its outcome and hands the outcome on.
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
            self.reads.add(batch.reads, batch.read_bytes);
        }
        if batch.writes != 0 {
            self.writes.add(batch.writes, batch.written_bytes);
        }
        add(&self.flushes, batch.flushes);
        add(&self.errors, batch.errors);
        add(&self.saturated, batch.saturated);
    }

    pub fn snapshot(&self) -> DeviceCounters {
        let ((reads, read_bytes), (writes, written_bytes)) =
            (self.reads.spill(), self.writes.spill());
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

/// Adds only what is there: an atomic add costs more than the test.
#[inline]
fn add(counter: &AtomicU64, value: u64) {
    if value != 0 {
        counter.fetch_add(value, Relaxed);
    }
}

/// Counts one operation into a batch. A write of zeros over a range counts as a write.
#[inline]
pub(crate) fn tally(batch: &mut DeviceCounters, operation: Operation, bytes: u64, ok: bool) {
    match (ok, operation) {
        (false, _) => batch.errors += 1,
        (true, Operation::Read) => {
            batch.reads += 1;
            batch.read_bytes += bytes;
        }
        (true, Operation::Write | Operation::Discard) => {
            batch.writes += 1;
            batch.written_bytes += bytes;
        }
        (true, Operation::Flush) => batch.flushes += 1,
        (true, Operation::Open | Operation::Queue | Operation::Resize) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_a_field_fills_up() {
        let counters = Counters::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        counters.add(&DeviceCounters {
                            reads: 1000,
                            read_bytes: 1 << 39,
                            writes: 1,
                            written_bytes: 512,
                            ..DeviceCounters::default()
                        });
                    }
                });
            }
        });
        let all = counters.snapshot();
        assert_eq!((all.reads, all.read_bytes), (40_000_000, 40_000 << 39));
        assert_eq!((all.writes, all.written_bytes), (40_000, 40_000 * 512));
        assert_eq!(counters.snapshot(), all);
        counters.note(Operation::Write, 100 << 40, true);
        assert_eq!(counters.snapshot().written_bytes, all.written_bytes + (100 << 40));
    }
}
