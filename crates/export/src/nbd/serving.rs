//! Requests of a connection on their way through the disk.
//!
//! ```text
//!   begin ─┬─ aligned read, write ─► queue ─┬─ durable? ─► lane: sync ─┬─► reply
//!          └─ all else ────────────► lane ──┘                          │
//!                                     └────────────────────────────────┘
//! ```
//! I-NBD-1: a request keeps its slot until its reply is in the outbox, and gets one reply.

use std::os::fd::OwnedFd;

use bedplate_block::AlignedBuf;

use super::handshake::Session;
use super::outbox::{Body, Outbox};
use super::peer::End;
use super::reply::{self, Head};
use super::request::{Command, Refused, Request};
use super::wire::{allocation, chunk, errno};
use crate::buffers::Buffers;
use crate::lane::{Job, Lane, Work};
use crate::{Allocation, DiskQueue, Done, Error, Result, Run};

/// Requests of one connection that are under way at once.
const DEPTH_MAX: usize = 128;
/// Runs that one answer tells of.
const RUNS_MAX: usize = 1024;

/// A request that is under way.
#[derive(Debug, Clone, Copy)]
struct Pending {
    request: Request,
    command: Command,
    /// Its effect is there, and is being made durable.
    syncing: bool,
}

/// What a connection has under way, and what it does that with.
pub struct Serving {
    session: Session,
    pub buffers: Buffers,
    pub outbox: Outbox,
    slots: Vec<Option<Pending>>,
    free: Vec<usize>,
    queue: Option<Queue>,
    lane: Option<Lane>,
    done: Vec<Done>,
}

struct Queue {
    disk: Box<dyn DiskQueue>,
    ready: Option<OwnedFd>,
}

impl Serving {
    pub fn new(session: Session, buffers: Buffers) -> Self {
        Self {
            session,
            buffers,
            outbox: Outbox::default(),
            slots: vec![None; DEPTH_MAX],
            free: (0..DEPTH_MAX).rev().collect(),
            queue: None,
            lane: None,
            done: Vec::new(),
        }
    }

    /// Returns whether one more request can be taken.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() && !self.outbox.is_full()
    }

    pub fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Decides what a request asks for.
    pub fn decide(&self, request: &Request) -> Result<Command, Refused> {
        request.command(&self.session.terms)
    }

    /// Answers a request that is not carried out.
    pub fn refuse(&mut self, request: &Request, refused: &Refused) {
        let structured = request.is_told_in_chunks() && self.session.terms.structured;
        self.answer_error(request.cookie, structured, refused.errno, refused.text);
    }

    /// Begins what a request asks for; reads and writes come with their buffer. There is room.
    pub fn begin(
        &mut self,
        request: Request,
        command: Command,
        buf: Option<AlignedBuf>,
    ) -> Result<(), End> {
        let slot = self.free.pop().expect("I-NBD-1: a request begins where there is a slot");
        self.slots[slot] = Some(Pending { request, command, syncing: false });
        let work = match (command, buf) {
            (Command::Read | Command::Write { .. }, Some(buf)) => {
                let Some(work) = self.queue_up(&request, command, buf, slot)? else {
                    return Ok(());
                };
                work
            }
            (Command::Read | Command::Write { .. }, None) => {
                unreachable!("reads and writes have a buffer")
            }
            (Command::Flush, _) => Work::Sync,
            (Command::Trim { .. }, _) => Work::Trim,
            (Command::Zero { zeroing, .. }, _) => Work::Zero(zeroing),
            (Command::Status { one }, _) => Work::Status { limit: if one { 1 } else { RUNS_MAX } },
        };
        self.hand_over(slot, &request, work)
    }

    /// Puts a read or write in the queue; returns it as work for the lane where it takes none.
    fn queue_up(
        &mut self,
        request: &Request,
        command: Command,
        buf: AlignedBuf,
        slot: usize,
    ) -> Result<Option<Work>, End> {
        let disk = &self.session.export.disk;
        let reads = command == Command::Read;
        let as_work = |buf| if reads { Work::Read(buf) } else { Work::Write(buf) };
        if !disk.is_for_queue(request.offset, request.len.into()) {
            return Ok(Some(as_work(buf)));
        }
        let queue = match &mut self.queue {
            Some(queue) => queue,
            missing => {
                let disk = disk.queue(DEPTH_MAX).map_err(End::Disk)?;
                let ready = disk.readiness()?;
                missing.insert(Queue { disk, ready })
            }
        };
        let queued = if reads {
            queue.disk.read(buf, request.offset, slot as u64)
        } else {
            queue.disk.write(buf, request.offset, slot as u64)
        };
        Ok(queued.err().map(as_work))
    }

    fn hand_over(&mut self, slot: usize, request: &Request, work: Work) -> Result<(), End> {
        let lane = match &self.lane {
            Some(lane) => lane,
            None => self.lane.insert(Lane::start(&self.session.export.disk, "bedplate-nbd-l")?),
        };
        let (offset, len) = (request.offset, request.len.into());
        lane.push(Job { token: slot as u64, offset, len, work });
        Ok(())
    }

    /// Returns what becomes readable when the queue has something; `None` where it has nothing
    /// under way, or cannot be waited for so.
    pub fn queue_event(&self) -> Option<&OwnedFd> {
        self.queue.as_ref().filter(|queue| queue.disk.in_flight() > 0)?.ready.as_ref()
    }

    /// Returns whether only [`collect`](Self::collect) can wait for the queue.
    pub fn waits_for_queue(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.ready.is_none() && queue.disk.in_flight() > 0)
    }

    /// Returns whether the queue has something under way.
    pub fn uses_queue(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.disk.in_flight() > 0)
    }

    pub fn lane(&self) -> Option<&Lane> {
        self.lane.as_ref()
    }

    /// Submits what was begun, and answers what is done; waits for `min` operations of the queue.
    /// Returns whether there was any.
    pub fn collect(&mut self, min: usize, lane_is_ready: bool) -> Result<bool, End> {
        let mut any = false;
        if let Some(queue) = self.queue.as_mut().filter(|queue| queue.disk.in_flight() > 0) {
            let mut done = std::mem::take(&mut self.done);
            queue.disk.complete(min, &mut done).map_err(End::Disk)?;
            any = !done.is_empty();
            for Done { token, result, buf } in done.drain(..) {
                self.finish(token, result, buf, &[])?;
            }
            self.done = done;
        }
        if lane_is_ready {
            let outcomes = self.lane.as_ref().map(Lane::take).unwrap_or_default();
            any |= !outcomes.is_empty();
            for outcome in outcomes {
                self.finish(outcome.token, outcome.result, outcome.buf, &outcome.runs)?;
            }
        }
        Ok(any)
    }

    fn finish(
        &mut self,
        token: u64,
        result: Result<()>,
        buf: Option<AlignedBuf>,
        runs: &[Run],
    ) -> Result<(), End> {
        let slot = token as usize;
        let Some(pending) = self.slots[slot] else {
            panic!("I-NBD-1: what ends has a slot");
        };
        let Pending { request, command, syncing } = pending;
        if result.is_ok() && command.is_durable() && !syncing {
            self.slots[slot] = Some(Pending { syncing: true, ..pending });
            self.give_back(&pending, buf);
            let work = match command {
                Command::Write { .. } => Work::SyncRange,
                _ => Work::Sync,
            };
            return self.hand_over(slot, &request, work);
        }
        self.slots[slot] = None;
        self.free.push(slot);
        match (result, command, buf) {
            (Ok(()), Command::Read, Some(buf)) => self.answer_data(&request, buf),
            (Ok(()), Command::Status { .. }, _) => self.answer_status(&request, runs),
            (Ok(()), _, buf) => {
                self.give_back(&pending, buf);
                self.outbox.push(Head::simple(request.cookie, 0), Body::None);
            }
            (Err(error), _, buf) => {
                self.give_back(&pending, buf);
                tracing::warn!(export = self.session.export.name, "a request failed: {error}");
                let structured = request.is_told_in_chunks() && self.session.terms.structured;
                let text = error.to_string();
                self.answer_error(request.cookie, structured, errno_of(&error), &text);
            }
        }
        Ok(())
    }

    /// Takes the buffer of a read or write back, or counts it as lost.
    fn give_back(&mut self, pending: &Pending, buf: Option<AlignedBuf>) {
        match buf {
            Some(buf) => self.buffers.give(buf),
            None if pending.command.has_data() && !pending.syncing => {
                self.buffers.release(pending.request.len as usize);
            }
            None => {}
        }
    }

    fn answer_data(&mut self, request: &Request, buf: AlignedBuf) {
        let head = if self.session.terms.structured {
            Head::data(request.cookie, request.offset, request.len)
        } else {
            Head::simple(request.cookie, 0)
        };
        self.outbox.push(head, Body::Data(buf));
    }

    fn answer_status(&mut self, request: &Request, runs: &[Run]) {
        let mut payload = allocation::ID.to_be_bytes().to_vec();
        for run in runs {
            payload.extend((run.len as u32).to_be_bytes());
            payload.extend(status_of(run.allocation).to_be_bytes());
        }
        let head = Head::chunk(request.cookie, chunk::BLOCK_STATUS, payload.len() as u32);
        self.outbox.push(head, Body::Bytes(payload));
    }

    fn answer_error(&mut self, cookie: u64, structured: bool, errno: u32, text: &str) {
        if structured {
            let payload = reply::error_payload(errno, text);
            let head = Head::chunk(cookie, chunk::ERROR, payload.len() as u32);
            self.outbox.push(head, Body::Bytes(payload));
        } else {
            self.outbox.push(Head::simple(cookie, errno), Body::None);
        }
    }
}

/// Returns the numbers of the protocol for how a range is allocated.
fn status_of(run: Allocation) -> u32 {
    match run {
        Allocation::Data => 0,
        Allocation::Unwritten => allocation::ZERO,
        Allocation::Hole => allocation::HOLE | allocation::ZERO,
    }
}

/// Returns the error number that a client is told.
fn errno_of(error: &Error) -> u32 {
    use bedplate_block::ErrorKind as Device;
    use bedplate_fs::ErrorKind as Volume;
    match error {
        Error::Volume(error) => match error.kind {
            Volume::NoSpace | Volume::TooLarge => errno::ENOSPC,
            Volume::ReadOnly | Volume::NotPermitted => errno::EPERM,
            Volume::Invalid => errno::EINVAL,
            Volume::Unsupported => errno::ENOTSUP,
            _ => errno::EIO,
        },
        Error::Device(error) => match error.kind {
            Device::NoSpace => errno::ENOSPC,
            Device::ReadOnly | Device::Permission => errno::EPERM,
            Device::Unaligned | Device::OutOfRange => errno::EINVAL,
            Device::Unsupported => errno::ENOTSUP,
            _ => errno::EIO,
        },
        Error::System { source, .. } => match source.kind() {
            std::io::ErrorKind::StorageFull => errno::ENOSPC,
            _ => errno::EIO,
        },
        Error::Usage(_) | Error::Sync(_) => errno::EIO,
    }
}
