//! What reached a device, counted without locks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{DeviceCounters, Operation};

/// The live counters of one open device. Relaxed: they order nothing, they only add up.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    errors: AtomicU64,
    saturated: AtomicU64,
}

impl Counters {
    /// Counts one operation by its outcome and hands the outcome on.
    #[inline]
    pub fn count<T>(&self, operation: Operation, bytes: u64, result: crate::Result<T>) -> crate::Result<T> {
        let mut batch = DeviceCounters::default();
        tally(&mut batch, operation, bytes, result.is_ok());
        self.add(&batch);
        result
    }

    /// Adds a batch that one owner counted by itself.
    #[inline]
    pub fn add(&self, batch: &DeviceCounters) {
        add(&self.reads, batch.reads);
        add(&self.read_bytes, batch.read_bytes);
        add(&self.writes, batch.writes);
        add(&self.written_bytes, batch.written_bytes);
        add(&self.flushes, batch.flushes);
        add(&self.errors, batch.errors);
        add(&self.saturated, batch.saturated);
    }

    pub fn snapshot(&self) -> DeviceCounters {
        DeviceCounters {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
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

/// Counts one operation into a batch.
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
