//! Writing rows: read what the parity needs, log, write all members at once.

use std::sync::Arc;

use block::{AlignedBuf, Operation, RequestKind, Result, Segment};

use super::log::{BATCH_BYTES, BATCH_PLACES, Part};
use super::plan::{self, Out, Put, Way, Window};
use super::rows::Span;
use super::{Parity, xor};
use crate::core::Core;
use crate::live::Live;
use crate::parallel::{Done, Job};
use crate::shared::Lives;

/// The most that one batch moves, because it passes through buffers of our own.
const ROUND_BYTES: usize = 8 << 20;

/// Members whose operation failed.
pub(super) type Failures = Vec<(Arc<Live>, block::Error)>;

/// What one member reads or writes for a batch: places in order, and their bytes one behind the other.
#[derive(Default)]
struct Column {
    slots: Vec<Slot>,
    len: usize,
    buf: Option<AlignedBuf>,
}

struct Slot {
    window: usize,
    /// On the member.
    offset: u64,
    /// In the column's bytes.
    start: usize,
    len: usize,
}

/// How far a batch came.
enum Outcome {
    /// So many windows are written.
    Written(usize),
    /// Nothing was written in place: members failed before.
    Again,
    /// There is no room in the log.
    Full,
}

/// A batch under the gate.
struct Batch<'a, 'b> {
    core: &'a Core,
    parity: &'a Parity,
    lives: Arc<Lives>,
    out: Option<Out>,
    windows: &'b [Window<'b>],
    failures: Failures,
}

impl Column {
    fn add(&mut self, window: usize, offset: u64, len: usize) {
        self.slots.push(Slot { window, offset, start: self.len, len });
        self.len += len;
    }

    fn bytes(&self, window: usize) -> &[u8] {
        let slot = &self.slots[self.slots.partition_point(|slot| slot.window < window)];
        let buf = self.buf.as_ref().expect("the column was read");
        &buf[slot.start..slot.start + slot.len]
    }

    /// Returns the places of the slots that are wanted; neighbours become one.
    fn places(&self, wanted: impl Fn(usize) -> bool) -> Vec<Segment> {
        let mut places: Vec<Segment> = Vec::new();
        for slot in self.slots.iter().filter(|slot| wanted(slot.window)) {
            match places.last_mut() {
                Some(last) if last.offset + u64::from(last.len) == slot.offset => last.len += slot.len as u32,
                _ => places.push(Segment { offset: slot.offset, len: slot.len as u32 }),
            }
        }
        places
    }
}

impl Parity {
    /// Returns the member of a column that is open.
    pub(super) fn live<'a>(&self, lives: &'a Lives, column: usize) -> Option<&'a Arc<Live>> {
        lives[usize::from(self.raid5.copy(column, 0).member)].as_ref()
    }

    /// Returns the column that cannot be read, if one cannot.
    ///
    /// # Errors
    /// The second of them, when there are two.
    pub(super) fn out(&self, lives: &Lives) -> std::result::Result<Option<Out>, usize> {
        let mut out = None;
        for column in 0..self.raid5.columns().len() {
            let live = self.live(lives, column);
            if live.is_some_and(|live| live.is_active()) {
                continue;
            }
            if out.is_some() {
                return Err(column);
            }
            out = Some(Out { column, takes_writes: live.is_some_and(|live| live.takes_writes()) });
        }
        Ok(out)
    }

    fn span(&self, at: u64, len: u64) -> Span {
        (self.raid5.place(at).row, self.raid5.place(at + len - 1).row)
    }
}

impl Core {
    /// Writes ranges that do not overlap, sorted by address, whose regions the caller has entered.
    pub fn write_rows(&self, parity: &Parity, puts: &[Put<'_>]) -> Result<()> {
        let mut spans: Vec<Span> = Vec::with_capacity(puts.len());
        for (first, last) in puts.iter().filter(|put| !put.bytes.is_empty()).map(|put| parity.span(put.at, put.bytes.len() as u64)) {
            match spans.last_mut() {
                Some(before) if before.1 >= first => before.1 = last.max(before.1),
                _ => spans.push((first, last)),
            }
        }
        let _rows = parity.rows.lock(spans);
        let windows = plan::windows(&parity.raid5, puts);
        let mut left = &windows[..];
        while !left.is_empty() {
            self.check_latch()?;
            let (outcome, failures) = self.write_some(parity, left)?;
            self.settle(failures)?;
            match outcome {
                Outcome::Written(count) => left = &left[count..],
                Outcome::Again => {}
                Outcome::Full => self.checkpoint_parity(parity)?,
            }
        }
        Ok(())
    }

    /// Writes as many windows as fit one batch.
    fn write_some(&self, parity: &Parity, windows: &[Window<'_>]) -> Result<(Outcome, Failures)> {
        let _gate = parity.gate.read();
        let lives = self.shared.lives();
        let first = &windows[0];
        let lost = |_| self.no_copy(Operation::Write, first.row * parity.raid5.row_bytes());
        let out = parity.out(&lives).map_err(lost)?;
        let mut batch = Batch { core: self, parity, lives, out, windows, failures: Vec::new() };
        let logged = batch.choose();
        let outcome = batch.run(&logged)?;
        Ok((outcome, batch.failures))
    }
}

impl Batch<'_, '_> {
    /// Takes windows while they fit, and says which of them are logged.
    fn choose(&mut self) -> Vec<bool> {
        let raid5 = &self.parity.raid5;
        let tail = self.parity.tail.lock();
        let (mut logged, mut bytes, mut log_bytes, mut places) = (Vec::new(), 0, 0, 0);
        for (at, window) in self.windows.iter().enumerate() {
            let whole = window.new.len() == raid5.data_units() && self.out.is_none();
            let alone = self.written_columns(window).len() < 2;
            let log = tail.rows.contains(&window.row) || !(whole || alone);
            // Whole rows behind each other are one place on every member.
            let follows = at > 0 && whole && window.lo == 0 && {
                let before = &self.windows[at - 1];
                before.row + 1 == window.row && before.hi == raid5.unit_bytes() && before.new.len() == raid5.data_units()
            };
            bytes += window.len() * raid5.columns().len();
            log_bytes += if log { window.len() as u64 } else { 0 };
            places += usize::from(!follows);
            if at > 0 && (bytes > ROUND_BYTES || log_bytes > BATCH_BYTES || places > BATCH_PLACES) {
                break;
            }
            logged.push(log);
        }
        self.windows = &self.windows[..logged.len()];
        logged
    }

    /// Returns the columns that a window writes and whose members take it: data in the order of the units, then parity.
    fn written_columns(&self, window: &Window<'_>) -> Vec<usize> {
        let raid5 = &self.parity.raid5;
        let gone = |column: &usize| self.out.is_some_and(|out| out.column == *column && !out.takes_writes);
        let data = window.new.iter().map(|(unit, _)| raid5.data_column(window.row, *unit));
        data.chain([raid5.parity_column(window.row)]).filter(|column| !gone(column)).collect()
    }

    fn offset(&self, column: usize, window: &Window<'_>) -> u64 {
        self.parity.raid5.copy(column, window.row).offset + window.lo
    }

    fn run(&mut self, logged: &[bool]) -> Result<Outcome> {
        let ways: Vec<Way> = self.windows.iter().map(|window| plan::way(&self.parity.raid5, window, self.out)).collect();
        let old = self.read_old(&ways)?;
        let new = self.make_new(&ways, &old);
        if logged.contains(&true) {
            if !self.log(&new, logged)? {
                return Ok(Outcome::Full);
            }
            if !self.failures.is_empty() {
                return Ok(Outcome::Again);
            }
        }
        let jobs = new.into_iter().enumerate().filter(|(_, column)| column.len > 0);
        let jobs = jobs.map(|(at, column)| self.job(at, RequestKind::Write, column.places(|_| true), column.buf));
        let done = self.core.lanes.run(jobs.collect(), || ()).0;
        self.note(done);
        Ok(Outcome::Written(self.windows.len()))
    }

    fn job(&self, column: usize, kind: RequestKind, segments: Vec<Segment>, buf: Option<AlignedBuf>) -> Job {
        let live = self.parity.live(&self.lives, column).expect("the gate keeps whoever takes part");
        Job { live: Arc::clone(live), kind, buf, segments }
    }

    fn note(&mut self, done: Vec<Done>) {
        self.failures.extend(done.into_iter().filter_map(|done| Some((done.live, done.result.err()?))));
    }

    /// Reads what the ways need; what cannot be read is made from the others.
    fn read_old(&mut self, ways: &[Way]) -> Result<Vec<Column>> {
        let raid5 = &self.parity.raid5;
        let mut columns: Vec<Column> = raid5.columns().iter().map(|_| Column::default()).collect();
        for (at, (window, way)) in self.windows.iter().zip(ways).enumerate() {
            for column in plan::reads(raid5, window, *way) {
                columns[column].add(at, self.offset(column, window), window.len());
            }
        }
        let asked: Vec<usize> = (0..columns.len()).filter(|column| columns[*column].len > 0).collect();
        let job = |column: &usize| {
            let buf = AlignedBuf::zeroed(columns[*column].len);
            self.job(*column, RequestKind::Read, columns[*column].places(|_| true), Some(buf))
        };
        let done = self.core.lanes.run(asked.iter().map(job).collect(), || ()).0;
        for (column, done) in asked.into_iter().zip(done) {
            columns[column].buf = match (done.result, done.buf) {
                (Ok(()), Some(buf)) => Some(buf),
                (result, _) => {
                    let mut buf = AlignedBuf::zeroed(columns[column].len);
                    for slot in &columns[column].slots {
                        let window = &self.windows[slot.window];
                        let part = &mut buf[slot.start..slot.start + slot.len];
                        let made = self.core.reconstruct(self.parity, &self.lives, column, window.row, window.lo, part);
                        made.map_err(|error| result.clone().err().unwrap_or(error))?;
                    }
                    Some(buf)
                }
            };
        }
        Ok(columns)
    }

    /// Puts together what every member gets.
    fn make_new(&self, ways: &[Way], old: &[Column]) -> Vec<Column> {
        let raid5 = &self.parity.raid5;
        let mut columns: Vec<Column> = raid5.columns().iter().map(|_| Column::default()).collect();
        for (at, window) in self.windows.iter().enumerate() {
            for column in self.written_columns(window) {
                columns[column].add(at, self.offset(column, window), window.len());
            }
        }
        for (at, column) in columns.iter_mut().enumerate().filter(|(_, column)| column.len > 0) {
            let mut buf = AlignedBuf::zeroed(column.len);
            for slot in &column.slots {
                let window = &self.windows[slot.window];
                let part = &mut buf[slot.start..slot.start + slot.len];
                match window.new.iter().find(|(unit, _)| raid5.data_column(window.row, *unit) == at) {
                    Some((_, bytes)) => part.copy_from_slice(bytes),
                    None => self.sum(slot.window, ways[slot.window], old, part),
                }
            }
            column.buf = Some(buf);
        }
        columns
    }

    /// Computes the parity of a window.
    fn sum(&self, at: usize, way: Way, old: &[Column], sum: &mut [u8]) {
        let window = &self.windows[at];
        let read = plan::reads(&self.parity.raid5, window, way);
        let mut parts = window.new.iter().map(|(_, bytes)| *bytes).chain(read.iter().map(|column| old[*column].bytes(at)));
        sum.copy_from_slice(parts.next().expect("a window writes a unit"));
        parts.for_each(|part| xor(sum, part));
    }

    /// Makes a record of the windows that are logged durable on every member that takes part. Returns whether there was room.
    fn log(&mut self, new: &[Column], logged: &[bool]) -> Result<bool> {
        let len = |column: &Column| column.slots.iter().filter(|slot| logged[slot.window]).map(|slot| slot.len).sum::<usize>();
        let taking: Vec<usize> = (0..new.len()).filter(|column| len(&new[*column]) > 0).collect();
        let longest = taking.iter().map(|column| len(&new[*column])).max().unwrap_or(0);
        let mut tail = self.parity.tail.lock();
        let Some((at, ordinal)) = tail.take(longest) else { return Ok(false) };
        // From here on a crash may write these rows again, so nothing goes to them without a record.
        tail.rows.extend(self.windows.iter().zip(logged).filter(|(_, logged)| **logged).map(|(window, _)| window.row));
        let epoch = tail.head.epoch;
        drop(tail);
        let columns = taking.iter().fold(0, |columns, column| columns | 1_u128 << column);
        let job = |column: &usize| {
            let (own, mut bytes) = (&new[*column], Vec::with_capacity(len(&new[*column])));
            own.slots.iter().filter(|slot| logged[slot.window]).for_each(|slot| bytes.extend_from_slice(own.bytes(slot.window)));
            let part = Part { epoch, ordinal, column: *column as u16, columns, places: own.places(|window| logged[window]), bytes };
            let buf = part.encode(self.parity.group);
            let place = Segment { offset: self.parity.area + at, len: buf.len() as u32 };
            self.job(*column, RequestKind::Write, vec![place], Some(buf))
        };
        let written = self.core.lanes.run(taking.iter().map(job).collect(), || ()).0;
        self.note(written);
        if !self.failures.is_empty() {
            return Ok(true);
        }
        let unflushed = taking.iter().filter(|column| self.parity.live(&self.lives, **column).is_some_and(|live| live.needs_flush().is_some()));
        let flushes = unflushed.map(|column| self.job(*column, RequestKind::Flush, Vec::new(), None));
        let flushed = self.core.lanes.run(flushes.collect(), || ()).0;
        self.note(flushed);
        // I-PAR-1
        assert!(
            !self.failures.is_empty()
                || self.windows.iter().zip(logged).all(|(window, log)| {
                    *log || self.written_columns(window).len() < 2 || (window.new.len() == self.parity.raid5.data_units() && self.out.is_none())
                }),
            "what is not logged is a whole row, or one member of it"
        );
        Ok(true)
    }
}
