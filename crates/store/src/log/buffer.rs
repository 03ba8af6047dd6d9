//! Records on their way into the log: encoded where they will be written from.
//!
//! ```text
//!  append ─▶ current ──(full)──▶ full, full, … ──take──▶ the leader's hands ──written──▶ spare
//!                                                                                          │
//!             ▲────────────────────────────────────────────────────────────────────────────┘
//! ```
//! Appenders fill one batch while the leader writes others, so no appender waits for a write in
//! progress.

use std::collections::VecDeque;

use bedplate_block::AlignedBuf;

use super::Record;
use super::batch::HEADER_BYTES;
use crate::Lsn;
use crate::planted::{PlantedBug, planted};

/// Size in bytes of an ordinary batch buffer; a longer record gets one of its own.
const BUFFER_BYTES: usize = 256 << 10;
const _: () = assert!(
    BUFFER_BYTES.is_multiple_of(AlignedBuf::ALIGN) && HEADER_BYTES < BUFFER_BYTES,
    "an ordinary log write is made of whole pages and holds more than its header"
);

/// How many buffers are kept for reuse.
const SPARE_MAX: usize = 4;

/// A batch being filled or written.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) buf: AlignedBuf,
    /// Bytes in use, the room for the header included.
    pub(super) used: usize,
    pub(super) first: Lsn,
    pub(super) count: u32,
}

impl Batch {
    pub(super) fn last(&self) -> Lsn {
        debug_assert!(self.count > 0, "I-LOG-1: only a batch with records has a last one");
        Lsn(self.first.0 + u64::from(self.count) - 1)
    }

    /// Length on the device: a multiple of the write unit.
    pub(super) fn padded(&self, unit: usize) -> usize {
        debug_assert!(
            self.used.next_multiple_of(unit) <= self.buf.len(),
            "{} used bytes and their padding lie in a buffer of {}",
            self.used,
            self.buf.len()
        );
        self.used.next_multiple_of(unit)
    }
}

/// Sizes that the ring and its device dictate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Write unit in bytes.
    pub(super) unit: usize,
    /// Longest batch in bytes, a multiple of the unit.
    pub(super) batch: usize,
    /// More buffered bytes than this could not be written at once.
    pub(super) buffered: usize,
}

/// The records not yet written. Lives under the buffer mutex (rank 6).
#[derive(Debug)]
pub(super) struct Buffer {
    limits: Limits,
    full: VecDeque<Batch>,
    current: Option<Batch>,
    spare: Vec<AlignedBuf>,
    /// Padded bytes in `full` and `current`.
    bytes: usize,
    last: Lsn,
    taken: Lsn,
    dropped: Lsn,
    barrier: bool,
    exposing: Lsn,
}

/// What the leader took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    /// Data must be flushed before the batches are written.
    pub(super) barrier: bool,
    /// The last record among them whose data replay would have to check; `Lsn(0)`: none.
    pub(super) exposing: Lsn,
}

impl Buffer {
    pub(super) fn new(limits: Limits, last: Lsn) -> Self {
        debug_assert!(
            limits.unit.is_power_of_two() && limits.batch.is_multiple_of(limits.unit),
            "log writes are whole units: {limits:?}"
        );
        let (full, spare) = (VecDeque::new(), Vec::new());
        let none = Lsn(0);
        Self {
            limits,
            full,
            current: None,
            spare,
            bytes: 0,
            last,
            taken: last,
            dropped: none,
            barrier: false,
            exposing: none,
        }
    }

    /// Encodes a record behind the last one. What no ring could hold is dropped instead: it needs a
    /// metadata commit.
    pub(super) fn append(&mut self, record: &Record) -> Lsn {
        self.last.0 += 1;
        let len = record.encoded_len();
        if len + HEADER_BYTES > self.limits.batch {
            self.drop_all();
            return self.last;
        }
        self.barrier |= record.needs_barrier() && !planted(PlantedBug::BarrierForgotten);
        if record.logged_exposure().is_some() && !planted(PlantedBug::ExposureForgotten) {
            self.exposing = self.last;
        }
        self.make_room(len);
        let (unit, last) = (self.limits.unit, self.last);
        let batch = self.current.as_mut().expect("make_room made one");
        let before = if batch.count == 0 { 0 } else { batch.padded(unit) };
        debug_assert!(
            batch.used + len <= batch.buf.len(),
            "room was made for {len} bytes behind {} of {}",
            batch.used,
            batch.buf.len()
        );
        record.encode(&mut batch.buf[batch.used..batch.used + len]);
        batch.used += len;
        batch.count += 1;
        assert_eq!(batch.last(), last, "I-LOG-1: records of a batch are consecutive");
        self.bytes += batch.padded(unit) - before;
        if self.bytes > self.limits.buffered {
            self.drop_all();
        }
        last
    }

    /// Makes `current` a batch with `len` free bytes.
    fn make_room(&mut self, len: usize) {
        if self.current.as_ref().is_some_and(|batch| batch.used + len <= batch.buf.len()) {
            return;
        }
        self.full.extend(self.current.take());
        let ordinary = BUFFER_BYTES.min(self.limits.batch);
        let needed = (HEADER_BYTES + len).next_multiple_of(self.limits.unit);
        debug_assert!(
            needed.max(ordinary) <= self.limits.batch.next_multiple_of(self.limits.unit),
            "a log write of {needed} bytes is within the limit of {}",
            self.limits.batch
        );
        let spare = if needed <= ordinary { self.spare.pop() } else { None };
        let buf = spare.unwrap_or_else(|| AlignedBuf::zeroed(needed.max(ordinary)));
        self.current = Some(Batch { buf, used: HEADER_BYTES, first: self.last, count: 0 });
    }

    fn drop_all(&mut self) {
        let batches: Vec<_> = self.full.drain(..).chain(self.current.take()).collect();
        for batch in batches {
            self.recycle(batch.buf);
        }
        self.bytes = 0;
        self.barrier = false;
        self.exposing = Lsn(0);
        self.dropped = if planted(PlantedBug::DropNotNoted) { self.dropped } else { self.last };
    }

    /// The lengths of the batches on the device, in order.
    pub(super) fn lengths(&self) -> impl Iterator<Item = u64> + '_ {
        self.full.iter().chain(&self.current).map(|batch| batch.padded(self.limits.unit) as u64)
    }

    /// Moves every batch to `out`.
    pub(super) fn take(&mut self, out: &mut VecDeque<Batch>) -> Taken {
        debug_assert_eq!(
            self.bytes as u64,
            self.lengths().sum::<u64>(),
            "the bytes that are buffered are those of the batches"
        );
        out.append(&mut self.full);
        out.extend(self.current.take());
        debug_assert!(
            out.iter().zip(out.iter().skip(1)).all(|(one, next)| one.last().0 + 1 == next.first.0),
            "I-LOG-1: a batch begins with the record after the last of the one before"
        );
        self.bytes = 0;
        self.taken = self.last;
        Taken {
            barrier: std::mem::take(&mut self.barrier),
            exposing: std::mem::take(&mut self.exposing),
        }
    }

    /// Takes a buffer back for reuse.
    pub(super) fn recycle(&mut self, buf: AlignedBuf) {
        if self.spare.len() < SPARE_MAX && buf.len() == BUFFER_BYTES.min(self.limits.batch) {
            self.spare.push(buf);
        }
    }

    /// Drops the batches that hold nothing after `lsn`. One that straddles it stays whole: replay
    /// skips what the metadata holds.
    pub(super) fn skip_to(&mut self, lsn: Lsn) {
        let held = self.full.partition_point(|batch| batch.last() <= lsn);
        let mut batches: Vec<_> = self.full.drain(..held).collect();
        batches.extend(self.current.take_if(|batch| {
            batch.last() <= lsn || (planted(PlantedBug::SkipsTooMuch) && batch.first <= lsn)
        }));
        for batch in batches {
            self.bytes -= batch.padded(self.limits.unit);
            self.recycle(batch.buf);
        }
        debug_assert!(
            self.full.front().is_none_or(|batch| batch.last() > lsn),
            "I-LOG-1: no whole batch up to {lsn:?} is left"
        );
        if self.bytes == 0 {
            self.barrier = false;
            self.exposing = Lsn(0);
        }
    }

    /// Suits the batches to another ring. What that could not hold is dropped.
    pub(super) fn refit(&mut self, limits: Limits) {
        self.limits = limits;
        self.spare.clear();
        let batches: Vec<Batch> = self.full.drain(..).chain(self.current.take()).collect();
        let padded = |batch: &Batch| batch.used.next_multiple_of(limits.unit);
        self.bytes = batches.iter().map(padded).sum();
        if self.bytes > limits.buffered || batches.iter().any(|one| padded(one) > limits.batch) {
            return self.drop_all();
        }
        self.full.extend(batches.into_iter().map(|batch| {
            let mut buf = AlignedBuf::zeroed(padded(&batch));
            buf[..batch.used].copy_from_slice(&batch.buf[..batch.used]);
            Batch { buf, ..batch }
        }));
    }

    /// Write unit in bytes.
    pub(super) fn unit(&self) -> usize {
        self.limits.unit
    }

    /// Lets the data of buffered record `lsn` be overwritten, by having the data flushed before the
    /// record is written. `false` when the record is no longer here.
    pub(super) fn permit_overwrite(&mut self, lsn: Lsn) -> bool {
        let here = lsn > self.taken || planted(PlantedBug::PermitTooLate);
        self.barrier |= here && lsn > self.dropped && !planted(PlantedBug::PermitWithoutBarrier);
        here
    }

    /// Records up to this one, if not durable yet, will never be written: only a metadata commit
    /// makes them durable.
    pub(super) fn dropped(&self) -> Lsn {
        self.dropped
    }

    pub(super) fn last(&self) -> Lsn {
        self.last
    }

    /// Whether another batch of this length would be written.
    pub(super) fn takes(&self, len: usize) -> bool {
        len <= self.limits.batch && self.bytes + len <= self.limits.buffered
    }

    /// Whether a quarter is buffered of what could be.
    pub(super) fn is_quarter_full(&self) -> bool {
        self.bytes > self.limits.buffered / 4
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}
