//! The state of a queue: operations on their way through locks, extent map and device.
//!
//! ```text
//!   waiting ──submit──► shared inode lock, byte range ──► all blocks written, and the file's own? ─yes─► device queue ──► done
//!                                                          ├ whole blocks to new ones: claim, allocate ─► device queue ──► publish ──► done
//!                                                          └ anything else: carried out here and now ────────────────────────────────► done
//! ```
//!
//! What a read brings of blocks that have checksums is compared when it completes. What is wrong is
//! looked for in other copies with nothing in flight, and the operation is done then.
//!
//! I-QUE-1: an engine blocks on a lock only with nothing in flight, so no chain of waits can lead
//! through it back to itself.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, Completion, DeviceQueue, Request, RequestKind};

use super::QueueCompletion;
use crate::data::{DataPath, Filling, Planned, Segments};
use crate::engine::Engine;
use crate::lock::Sharing;
use crate::statistics::{Timed, Timing, note_queued};
use crate::{Error, ErrorKind, File, Result};
use bedplate_cache::DirectWrite;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Sync,
}

/// An operation as it was queued.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) file: Arc<File>,
    pub(super) buf: Option<AlignedBuf>,
    pub(super) offset: u64,
    pub(super) token: u64,
}

impl Op {
    pub(super) fn into_buffer(self) -> AlignedBuf {
        self.buf.expect("reads and writes have a buffer")
    }

    fn bytes(&self) -> &[u8] {
        self.buf.as_deref().expect("reads and writes have a buffer")
    }
}

/// An operation that the device works on. Holds its file's inode lock shared, the range, and the
/// order lock where the cache was told.
struct InFlight {
    /// What the device calls it: the slot, and above it a count that tells it from what was in the
    /// slot before.
    ticket: u64,
    kind: Kind,
    file: Arc<File>,
    token: u64,
    offset: u64,
    len: usize,
    range: Option<(Range<u64>, Sharing)>,
    /// What becomes readable when the device is done.
    filling: Option<Filling>,
    /// Where it reads, if that is compared with checksums.
    summed: Option<Segments>,
    announced: Option<DirectWrite>,
    timing: Option<Timing>,
}

/// A read that brought what is not what was written. Holds what it held in flight.
struct Doubted {
    op: InFlight,
    buf: AlignedBuf,
}

/// An operation that holds all it needs to go to the device.
struct Ready {
    segments: Segments,
    range: Option<(Range<u64>, Sharing)>,
    filling: Option<Filling>,
}

/// Bits of a ticket that name the slot: a queue is less deep than this allows.
const SLOT_BITS: u32 = 16;
const _: () = assert!(SLOT_BITS < 32, "a ticket has room for a slot and for how often it was used");

pub(super) struct QueueState {
    fs: Arc<Engine>,
    device: Box<dyn DeviceQueue>,
    slots: Vec<Option<InFlight>>,
    /// Operations handed to the device.
    pushed: u64,
    free: Vec<usize>,
    /// Completed and not yet handed out.
    done: Vec<QueueCompletion>,
    completions: Vec<Completion>,
    doubted: Vec<Doubted>,
    /// Files whose last handle was an operation's. To close one may take locks, so that is for a
    /// time without this engine's (I-QUE-1).
    closing: Vec<File>,
}

impl QueueState {
    pub(super) fn new(fs: Arc<Engine>, device: Box<dyn DeviceQueue>) -> Self {
        let depth = device.depth_max();
        Self {
            fs,
            device,
            slots: (0..depth).map(|_| None).collect(),
            pushed: 0,
            free: (0..depth).rev().collect(),
            done: Vec::with_capacity(depth),
            completions: Vec::with_capacity(depth),
            doubted: Vec::new(),
            closing: Vec::new(),
        }
    }

    pub(super) fn readiness(&self) -> io::Result<Option<OwnedFd>> {
        self.device.readiness().map(|ring| ring.try_clone_to_owned()).transpose()
    }

    pub(super) fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.device.take_buffer()
    }

    pub(super) fn give_buffer(&mut self, buf: AlignedBuf) {
        self.device.give_buffer(buf);
    }

    /// Starts every waiting operation and submits those that go to the device.
    pub(super) fn submit(&mut self, waiting: &mut Vec<Op>) -> Result<()> {
        for op in waiting.drain(..) {
            self.start(op);
        }
        Ok(self.device.submit()?)
    }

    /// Waits until `min` completions can be handed out, and hands out all there are.
    pub(super) fn complete(&mut self, min: usize, out: &mut Vec<QueueCompletion>) -> Result<usize> {
        let before = out.len();
        out.append(&mut self.done);
        // Completions from here on go straight to the caller.
        std::mem::swap(&mut self.done, out);
        let waited = self.reap((before + min).saturating_sub(self.done.len()));
        std::mem::swap(&mut self.done, out);
        waited.map(|()| out.len() - before)
    }

    /// Waits for everything in flight.
    pub(super) fn drain(&mut self) -> Result<()> {
        self.reap(self.device.in_flight())
    }

    fn reap(&mut self, min: usize) -> Result<()> {
        let reaped = self.reap_device(min);
        if self.doubted.is_empty() { reaped } else { reaped.and(self.settle()) }
    }

    /// Carries reads out to the end that brought what is wrong. Other copies are looked at under
    /// locks of the volume, so nothing is in flight meanwhile (I-QUE-1).
    #[cold]
    fn settle(&mut self) -> Result<()> {
        let drained = self.reap_device(self.device.in_flight());
        for Doubted { op, mut buf } in std::mem::take(&mut self.doubted) {
            let segments = op.summed.as_ref().expect("what has no checksums is not doubted");
            let right = op.file.io().make_queued_right(&mut buf, segments, op.offset);
            self.end(op, Some(buf), right, false);
        }
        drained
    }

    fn reap_device(&mut self, min: usize) -> Result<()> {
        if self.device.in_flight() == 0 {
            return Ok(());
        }
        let mut completions = std::mem::take(&mut self.completions);
        let result = self.device.complete(min.min(self.device.in_flight()), &mut completions);
        for completion in completions.drain(..) {
            self.finish(completion);
        }
        self.completions = completions;
        result.map(drop).map_err(Error::from)
    }

    /// Waits for everything in flight before a lock that may not come free otherwise (I-QUE-1). A
    /// device that cannot be waited for is as broken as can be; its owner hears of it at the next
    /// completion.
    fn quiesce(&mut self) {
        if let Err(error) = self.drain() {
            tracing::error!("the I/O in flight on a queue cannot be waited for: {error}");
        }
    }

    fn start(&mut self, mut op: Op) {
        let result = match self.tell_cache(&op).and_then(|announced| self.plan(&op, announced)) {
            Ok((Some(ready), announced)) => return self.push(op, ready, announced),
            Ok((None, _)) => self.carry_out(&mut op),
            Err(error) => Err(error),
        };
        self.closing.extend(Arc::into_inner(op.file));
        self.done.push(QueueCompletion { token: op.token, result, buf: op.buf });
    }

    /// Hands out the files to close, to be dropped when the engine is unlocked.
    pub(super) fn take_closing(&mut self) -> Vec<File> {
        std::mem::take(&mut self.closing)
    }

    /// Announces a write of a `concurrent+cache` file to its cache; holds the order lock, shared,
    /// if so.
    fn tell_cache(&mut self, op: &Op) -> Result<Option<DirectWrite>> {
        if !op.file.fs().is(&self.fs) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the file belongs to another file system than the queue",
            ));
        }
        let io = op.file.io();
        if op.kind != Kind::Write || op.file.writes_specially() || !io.writes_through() {
            return Ok(None);
        }
        if !io.state().order.try_acquire_shared() {
            self.quiesce();
            io.state().order.acquire_shared(&*self.fs);
        }
        let len = op.buf.as_ref().map_or(0, |buf| buf.len());
        let announced = io.announce_write(op.offset, len);
        if !matches!(announced, Ok(Some(_))) {
            io.state().order.release_shared();
        }
        announced
    }

    /// Decides where an operation is carried out; holds the inode lock, shared, when the device is
    /// to do it, and no lock otherwise (`None`).
    fn plan(
        &mut self,
        op: &Op,
        announced: Option<DirectWrite>,
    ) -> Result<(Option<Ready>, Option<DirectWrite>)> {
        let io = op.file.io();
        let planned = self.plan_told(op, announced.is_some());
        if matches!(planned, Ok(Some(_))) {
            return planned.map(|planned| (planned, announced));
        }
        if announced.is_some() {
            drop(announced);
            io.state().order.release_shared();
        }
        planned.map(|planned| (planned, None))
    }

    fn plan_told(&mut self, op: &Op, announced: bool) -> Result<Option<Ready>> {
        match op.kind {
            Kind::Read => {
                op.file.may_read()?;
                op.file.note_read();
            }
            Kind::Write => op.file.may_write()?,
            Kind::Sync => return Ok(None),
        }
        if op.kind == Kind::Write && op.file.writes_specially() {
            return Ok(None);
        }
        let io = op.file.io();
        self.hold(io);
        let bytes = op.bytes();
        let planned = if op.kind == Kind::Read {
            io.plan_queued_read(op.offset, bytes.len())
        } else {
            io.plan_queued_write(op.offset, bytes, announced)
        };
        let ready = planned.and_then(|planned| self.make_ready(op, planned));
        if !matches!(ready, Ok(Some(_))) {
            io.state().lock.release_shared();
        }
        ready
    }

    /// Takes what else an operation holds while the device works on it: the byte range, then the
    /// blocks that it fills.
    fn make_ready(&mut self, op: &Op, planned: Planned) -> Result<Option<Ready>> {
        let (blocks, locks) = match planned {
            Planned::Here => return Ok(None),
            Planned::Device(segments, locks) => {
                let range = locks.then(|| self.lock_range(op));
                return Ok(Some(Ready { segments, range, filling: None }));
            }
            Planned::Fill(blocks, locks) => (blocks, locks),
        };
        let io = op.file.io();
        let range = locks.then(|| self.lock_range(op));
        if !io.state().fill_claims.try_acquire(blocks.clone(), Sharing::Exclusive) {
            self.quiesce();
            io.state().fill_claims.acquire(blocks.clone(), Sharing::Exclusive, &*self.fs);
        }
        match io.begin_queued_fill(op.offset, op.bytes(), blocks.clone()) {
            Ok(Some((filling, segments))) => {
                Ok(Some(Ready { segments, range, filling: Some(filling) }))
            }
            other => {
                io.state().fill_claims.release(blocks, Sharing::Exclusive);
                if let Some((range, sharing)) = range {
                    io.state().ranges.release(range, sharing);
                }
                other.map(|_| None)
            }
        }
    }

    /// Carries an operation out on this thread (I-QUE-1); returns the bytes moved.
    fn carry_out(&mut self, op: &mut Op) -> Result<usize> {
        // A sync takes no lock of a file unless the cache has something to write, or a write is
        // held; one that is held from here on began beside it.
        let io = op.file.io();
        let flushes = op.kind != Kind::Sync || io.has_cache() || io.holds_write();
        if flushes {
            self.quiesce();
        }
        match (op.kind, op.buf.as_mut()) {
            (Kind::Read, Some(buf)) => op.file.read_at(buf, op.offset),
            (Kind::Write, Some(buf)) => op.file.write_at(buf, op.offset).map(|_| buf.len()),
            (Kind::Sync, _) if !flushes => op.file.io().sync_written_data().map(|()| 0),
            (Kind::Sync | Kind::Read | Kind::Write, _) => op.file.sync_data().map(|()| 0),
        }
    }

    /// Takes a file's inode lock shared.
    fn hold(&mut self, io: DataPath<'_>) {
        if !io.state().lock.try_acquire_shared() {
            self.quiesce();
            io.state().lock.acquire_shared(&*self.fs);
        }
    }

    /// Takes the byte range of an operation on a `direct` file.
    fn lock_range(&mut self, op: &Op) -> (Range<u64>, Sharing) {
        let sharing = if op.kind == Kind::Read { Sharing::Shared } else { Sharing::Exclusive };
        let io = op.file.io();
        let range = io.queued_range(op.offset, op.bytes().len(), sharing);
        if !io.state().ranges.try_acquire(range.clone(), sharing) {
            self.quiesce();
            io.state().ranges.acquire(range.clone(), sharing, &*self.fs);
        }
        (range, sharing)
    }

    /// Hands an operation to the device. There is a slot for it: the queue counts what is in
    /// flight.
    fn push(&mut self, op: Op, ready: Ready, announced: Option<DirectWrite>) {
        let timing = self.fs.sampler().begin();
        let Ready { segments, range, filling } = ready;
        let summed = segments.summed.then(|| segments.clone());
        let (offset, len) = (op.offset, op.bytes().len());
        let slot = self.free.pop().expect("no more operations are queued than there are slots");
        let kind = if op.kind == Kind::Read { RequestKind::Read } else { RequestKind::Write };
        self.pushed += 1;
        let ticket = self.pushed << SLOT_BITS | slot as u64;
        let request = Request {
            token: ticket,
            kind,
            buf: op.buf,
            first: segments.first,
            rest: segments.rest,
        };
        assert!(self.device.push(request).is_ok(), "the device queue is as deep as this one");
        self.slots[slot] = Some(InFlight {
            ticket,
            kind: op.kind,
            file: op.file,
            token: op.token,
            offset,
            len,
            range,
            filling,
            summed,
            announced,
            timing,
        });
    }

    fn finish(&mut self, completion: Completion) {
        let slot = (completion.token & ((1 << SLOT_BITS) - 1)) as usize;
        let Some(mut op) = self
            .slots
            .get_mut(slot)
            .and_then(|held| held.take_if(|op| op.ticket == completion.token))
        else {
            // Told twice: the first time counted, and the slot may be in use again by now.
            tracing::warn!("{}: a completion came twice and is ignored", self.fs.device_name());
            return;
        };
        self.free.push(slot);
        if let (Some(timing), Ok(())) = (op.timing, &completion.result) {
            note_queued(timing, completion.waited_ns, op.file.wait_meters());
        }
        let (mut moved, mut buf) = (completion.result.map_err(Error::from), completion.buf);
        let in_place = op.filling.is_none();
        if let Some(filling) = op.filling.take() {
            moved = op.file.io().end_queued_fill(filling, op.offset, buf.as_deref(), moved);
        }
        if let (Ok(()), Some(segments), Some(bytes)) = (&moved, &op.summed, &buf) {
            match op.file.io().is_queued_right(bytes, segments, op.offset) {
                Ok(true) => {}
                Ok(false) => {
                    let buf = buf.take().expect("it was looked at");
                    return self.doubted.push(Doubted { op, buf });
                }
                Err(error) => moved = Err(error),
            }
        }
        self.end(op, buf, moved, in_place);
    }

    /// Gives up what an operation held, and keeps what became of it for the queue's owner.
    fn end(&mut self, op: InFlight, buf: Option<AlignedBuf>, moved: Result<()>, in_place: bool) {
        let io = op.file.io();
        if op.kind == Kind::Write {
            // Whatever was read ahead beside it.
            io.state().read_windows.clear();
        }
        if let Some((range, sharing)) = op.range {
            io.state().ranges.release(range, sharing);
        }
        let result = moved.map(|()| {
            io.queued_done(op.kind == Kind::Write, in_place, op.len);
            op.file
                .timed(if op.kind == Kind::Write { Timed::Write } else { Timed::Read }, op.timing);
            op.len
        });
        io.state().lock.release_shared();
        if let Some(announced) = op.announced {
            if let (Ok(_), Some(buf)) = (&result, &buf) {
                announced.refresh(buf);
            }
            io.state().order.release_shared();
        }
        self.closing.extend(Arc::into_inner(op.file));
        self.done.push(QueueCompletion { token: op.token, result, buf });
    }
}
