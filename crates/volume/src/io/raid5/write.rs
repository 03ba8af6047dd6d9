//! A batch of windows: read what the parity needs, log, write all members at once. It does one step
//! after the other and never waits.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, Operation, RequestKind, Result, Segment};

use super::gate::Pass;
use super::log::{BATCH_BYTES, BATCH_PLACES, RecordPart};
use super::plan::{self, Out, ParityMethod, Window};
use super::rows::Span;
use super::{Parity, xor};
use crate::group::{Handles, MemberHandle};
use crate::io::fanout::{Done, Fanout, Job};
use crate::io::volume_io::VolumeIo;
use crate::planted::{Mistake, is_planted};

/// The most that one batch moves, because it passes through buffers of our own.
const ROUND_BYTES: usize = 8 << 20;

/// Members whose operation failed.
pub(super) type Failures = Vec<(Arc<MemberHandle>, bedplate_block::Error)>;

/// What a batch works on.
#[derive(Clone, Copy)]
pub(super) struct BatchContext<'a> {
    pub io: &'a VolumeIo,
    pub parity: &'a Parity,
    /// What is to be written, as the windows name it.
    pub buffers: &'a [&'a [u8]],
    /// The windows that are not written yet.
    pub windows: &'a [Window],
}

/// What one member reads or writes for a batch: places in order, and their bytes one behind the
/// other.
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

/// What the members are doing for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Read,
    Log,
    Flush,
    Write,
}

/// How a batch ended.
pub(super) enum Outcome {
    /// So many windows are written.
    Written(usize),
    /// Nothing was written in place: members failed before.
    Again,
    /// There is no room in the log.
    Full,
}

/// A batch under way.
pub(super) struct Batch {
    _pass: Pass,
    handles: Arc<Handles>,
    out: Option<Out>,
    /// For each window of the batch, whether it is logged.
    logged: Vec<bool>,
    methods: Vec<ParityMethod>,
    old: Vec<Column>,
    new: Vec<Column>,
    stage: Stage,
    pub fanout: Fanout,
    pub failures: Failures,
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
                Some(last) if last.offset + u64::from(last.len) == slot.offset => {
                    last.len += slot.len as u32;
                }
                _ => places.push(Segment { offset: slot.offset, len: slot.len as u32 }),
            }
        }
        places
    }
}

impl Parity {
    /// Returns the member of a column that is open.
    pub(crate) fn handle<'a>(
        &self,
        handles: &'a Handles,
        column: usize,
    ) -> Option<&'a Arc<MemberHandle>> {
        handles[usize::from(self.raid5.copy(column, 0).member)].as_ref()
    }

    /// Returns the column that cannot be read, if one cannot.
    ///
    /// # Errors
    /// The second of them, when there are two.
    pub(crate) fn out(&self, handles: &Handles) -> std::result::Result<Option<Out>, usize> {
        let mut out = None;
        for column in 0..self.raid5.columns().len() {
            let handle = self.handle(handles, column);
            if handle.is_some_and(|handle| handle.is_active()) {
                continue;
            }
            if out.is_some() {
                return Err(column);
            }
            out = Some(Out {
                column,
                takes_writes: handle.is_some_and(|handle| handle.takes_writes()),
            });
        }
        Ok(out)
    }

    /// Returns the rows of a range.
    pub(super) fn span(&self, at: u64, len: u64) -> Span {
        (self.raid5.place(at).row, self.raid5.place(at + len - 1).row)
    }
}

impl Batch {
    /// Takes as many windows as fit, and starts to read what the parity needs.
    pub fn begin(pass: Pass, on: BatchContext<'_>) -> Result<Self> {
        let handles = on.io.group_state.handles();
        let lost =
            |_| on.io.no_copy(Operation::Write, on.windows[0].row * on.parity.raid5.row_bytes());
        let out = on.parity.out(&handles).map_err(lost)?;
        let (methods, old, new) = (Vec::new(), Vec::new(), Vec::new());
        let (fanout, failures) = (Fanout::default(), Failures::new());
        let mut batch = Self {
            _pass: pass,
            handles,
            out,
            logged: Vec::new(),
            methods,
            old,
            new,
            stage: Stage::Read,
            fanout,
            failures,
        };
        batch.logged = batch.choose(on);
        batch.methods = batch
            .windows(on)
            .iter()
            .map(|window| plan::method(&on.parity.raid5, window, out))
            .collect();
        batch.start_reads(on);
        Ok(batch)
    }

    fn windows<'a>(&self, on: BatchContext<'a>) -> &'a [Window] {
        &on.windows[..self.logged.len()]
    }

    /// Takes how a trip ended and starts the next one. Returns how the batch ended, once it has.
    pub fn next(&mut self, on: BatchContext<'_>, done: Vec<Done>) -> Result<Option<Outcome>> {
        match self.stage {
            Stage::Read => {
                self.take_reads(on, done)?;
                self.new = self.make_new(on);
                let old = std::mem::take(&mut self.old);
                old.into_iter()
                    .filter_map(|column| column.buf)
                    .for_each(|buf| on.io.buffers.give(buf));
                if !self.logged.contains(&true) {
                    self.start_writes(on);
                } else if !self.start_log(on) {
                    return Ok(Some(Outcome::Full));
                }
            }
            Stage::Log => {
                self.note(on, done);
                if !self.failures.is_empty() {
                    return Ok(Some(Outcome::Again));
                }
                self.start_flushes(on);
            }
            Stage::Flush => {
                self.note(on, done);
                if !self.failures.is_empty() {
                    return Ok(Some(Outcome::Again));
                }
                self.start_writes(on);
            }
            Stage::Write => {
                self.note(on, done);
                return Ok(Some(Outcome::Written(self.logged.len())));
            }
        }
        Ok(None)
    }

    fn note(&mut self, on: BatchContext<'_>, done: Vec<Done>) {
        self.failures.extend(on.io.take_back(done));
    }

    /// Takes windows while they fit, and says which of them are logged.
    fn choose(&self, on: BatchContext<'_>) -> Vec<bool> {
        let raid5 = &on.parity.raid5;
        let tail = on.parity.tail.lock();
        let (mut logged, mut bytes, mut log_bytes, mut places) = (Vec::new(), 0, 0, 0);
        for (at, window) in on.windows.iter().enumerate() {
            let whole = window.new.len() == raid5.data_units() && self.out.is_none();
            let alone = self.written_columns(on, window).len() < 2;
            let log = (tail.rows.contains(&window.row) && !is_planted(Mistake::RecordOutlivesRow))
                || !(whole || alone);
            // Whole rows behind each other are one place on every member.
            let follows = at > 0 && whole && window.lo == 0 && {
                let before = &on.windows[at - 1];
                before.row + 1 == window.row
                    && before.hi == raid5.unit_bytes()
                    && before.new.len() == raid5.data_units()
            };
            bytes += window.len() * raid5.columns().len();
            log_bytes += if log { window.len() as u64 } else { 0 };
            places += usize::from(!follows);
            if at > 0 && (bytes > ROUND_BYTES || log_bytes > BATCH_BYTES || places > BATCH_PLACES) {
                break;
            }
            logged.push(log);
        }
        logged
    }

    /// Returns the columns that a window writes and whose members take it: data in the order of the
    /// units, then parity.
    fn written_columns(&self, on: BatchContext<'_>, window: &Window) -> Vec<usize> {
        let raid5 = &on.parity.raid5;
        let gone =
            |column: &usize| self.out.is_some_and(|out| out.column == *column && !out.takes_writes);
        let data = window.new.iter().map(|new| raid5.data_column(window.row, new.unit));
        data.chain([raid5.parity_column(window.row)]).filter(|column| !gone(column)).collect()
    }

    fn job(
        &self,
        on: BatchContext<'_>,
        column: usize,
        kind: RequestKind,
        segments: Vec<Segment>,
        buf: Option<AlignedBuf>,
    ) -> Job {
        let handle =
            on.parity.handle(&self.handles, column).expect("the gate keeps members that take part");
        Job { handle: Arc::clone(handle), kind, buf, segments }
    }

    /// Reads what the ways need.
    fn start_reads(&mut self, on: BatchContext<'_>) {
        let raid5 = &on.parity.raid5;
        let mut columns = empty(on);
        for (at, (window, method)) in self.windows(on).iter().zip(&self.methods).enumerate() {
            for column in plan::reads(raid5, window, *method) {
                columns[column].add(at, offset(on, column, window), window.len());
            }
        }
        self.old = columns;
        let job = |column: usize| {
            let own = &self.old[column];
            self.job(
                on,
                column,
                RequestKind::Read,
                own.places(|_| true),
                Some(on.io.buffers.take(own.len)),
            )
        };
        let jobs = used(&self.old).map(job).collect();
        self.fanout = on.io.lanes.begin(jobs);
    }

    /// Takes what was read; what cannot be read is made from the others.
    fn take_reads(&mut self, on: BatchContext<'_>, done: Vec<Done>) -> Result<()> {
        let asked: Vec<usize> = used(&self.old).collect();
        for (column, done) in asked.into_iter().zip(done) {
            self.old[column].buf = match (done.result, done.buf) {
                (Ok(()), Some(buf)) => Some(buf),
                (result, _) => {
                    Some(self.make_old(on, column).map_err(|error| result.err().unwrap_or(error))?)
                }
            };
        }
        Ok(())
    }

    #[cold]
    fn make_old(&self, on: BatchContext<'_>, column: usize) -> Result<AlignedBuf> {
        let own = &self.old[column];
        let mut buf = on.io.buffers.take(own.len);
        for slot in &own.slots {
            let window = &on.windows[slot.window];
            let part = &mut buf[slot.start..slot.start + slot.len];
            on.io.reconstruct(on.parity, &self.handles, column, window.row, window.lo, part)?;
        }
        Ok(buf)
    }

    /// Puts together what every member gets.
    fn make_new(&self, on: BatchContext<'_>) -> Vec<Column> {
        let raid5 = &on.parity.raid5;
        let mut columns = empty(on);
        for (at, window) in self.windows(on).iter().enumerate() {
            for column in self.written_columns(on, window) {
                columns[column].add(at, offset(on, column, window), window.len());
            }
        }
        for (at, column) in columns.iter_mut().enumerate().filter(|(_, column)| column.len > 0) {
            let mut buf = on.io.buffers.take(column.len);
            for slot in &column.slots {
                let window = &on.windows[slot.window];
                let part = &mut buf[slot.start..slot.start + slot.len];
                match window.new.iter().find(|new| raid5.data_column(window.row, new.unit) == at) {
                    Some(new) => part.copy_from_slice(window.bytes(new, on.buffers)),
                    None => self.sum(on, slot.window, part),
                }
            }
            column.buf = Some(buf);
        }
        columns
    }

    /// Computes the parity of a window.
    fn sum(&self, on: BatchContext<'_>, at: usize, sum: &mut [u8]) {
        let window = &on.windows[at];
        let mut read = plan::reads(&on.parity.raid5, window, self.methods[at]);
        read.truncate(if is_planted(Mistake::ParityOfNewAlone) { 0 } else { read.len() });
        let new = window.new.iter().map(|new| window.bytes(new, on.buffers));
        let mut parts = new.chain(read.iter().map(|column| self.old[*column].bytes(at)));
        sum.copy_from_slice(parts.next().expect("a window writes a unit"));
        parts.for_each(|part| xor(sum, part));
    }

    /// Returns how many bytes of a column are logged.
    fn logged_bytes(&self, column: usize) -> usize {
        self.new[column]
            .slots
            .iter()
            .filter(|slot| self.logged[slot.window])
            .map(|slot| slot.len)
            .sum()
    }

    /// Returns the columns that take part in the record.
    fn taking(&self) -> Vec<usize> {
        (0..self.new.len()).filter(|column| self.logged_bytes(*column) > 0).collect()
    }

    /// Writes a record of the windows that are logged to every member that takes part. Returns
    /// whether there was room.
    fn start_log(&mut self, on: BatchContext<'_>) -> bool {
        let taking = self.taking();
        let longest = taking.iter().map(|column| self.logged_bytes(*column)).max().unwrap_or(0);
        let mut tail = on.parity.tail.lock();
        let Some((at, ordinal)) = tail.take(longest) else { return false };
        // From here on a crash may write these rows again, so nothing goes to them without a
        // record.
        tail.rows.extend(
            self.windows(on)
                .iter()
                .zip(&self.logged)
                .filter(|(_, logged)| **logged)
                .map(|(window, _)| window.row),
        );
        let incarnation = tail.head.incarnation;
        drop(tail);
        let columns = taking.iter().fold(0, |columns, column| columns | 1_u128 << column);
        let job = |column: &usize| {
            let (own, mut bytes) =
                (&self.new[*column], Vec::with_capacity(self.logged_bytes(*column)));
            own.slots
                .iter()
                .filter(|slot| self.logged[slot.window])
                .for_each(|slot| bytes.extend_from_slice(own.bytes(slot.window)));
            let places = own.places(|window| self.logged[window]);
            let buf =
                RecordPart { incarnation, ordinal, column: *column as u16, columns, places, bytes }
                    .encode(on.parity.group);
            let place = Segment { offset: on.parity.area + at, len: buf.len() as u32 };
            self.job(on, *column, RequestKind::Write, vec![place], Some(buf))
        };
        let jobs = taking.iter().map(job).collect();
        self.fanout = on.io.lanes.begin(jobs);
        self.stage = Stage::Log;
        true
    }

    /// Makes the record durable.
    fn start_flushes(&mut self, on: BatchContext<'_>) {
        let needs = |column: &usize| {
            !is_planted(Mistake::RecordNotFlushed)
                && on
                    .parity
                    .handle(&self.handles, *column)
                    .is_some_and(|handle| handle.needs_flush().is_some())
        };
        let flushes = self
            .taking()
            .into_iter()
            .filter(needs)
            .map(|column| self.job(on, column, RequestKind::Flush, Vec::new(), None));
        let jobs = flushes.collect();
        self.fanout = on.io.lanes.begin(jobs);
        self.stage = Stage::Flush;
    }

    /// Writes all members in place.
    fn start_writes(&mut self, on: BatchContext<'_>) {
        let whole = |window: &Window| {
            window.new.len() == on.parity.raid5.data_units() && self.out.is_none()
        };
        let needs_none = |window| self.written_columns(on, window).len() < 2 || whole(window);
        assert!(
            self.windows(on).iter().zip(&self.logged).all(|(window, logged)| needs_none(window) || *logged && self.stage == Stage::Flush),
            "I-PAR-1: what is not logged durably is a whole row, or one member of it"
        );
        let new = std::mem::take(&mut self.new);
        let jobs = new.into_iter().enumerate().filter(|(_, column)| column.len > 0);
        let jobs = jobs
            .map(|(at, column)| {
                self.job(on, at, RequestKind::Write, column.places(|_| true), column.buf)
            })
            .collect();
        self.fanout = on.io.lanes.begin(jobs);
        self.stage = Stage::Write;
    }
}

fn empty(on: BatchContext<'_>) -> Vec<Column> {
    on.parity.raid5.columns().iter().map(|_| Column::default()).collect()
}

/// Returns the columns that have something to do.
fn used(columns: &[Column]) -> impl Iterator<Item = usize> {
    (0..columns.len()).filter(|column| columns[*column].len > 0)
}

/// Returns where on its member a column's part of a window lies.
fn offset(on: BatchContext<'_>, column: usize, window: &Window) -> u64 {
    on.parity.raid5.copy(column, window.row).offset + window.lo
}
