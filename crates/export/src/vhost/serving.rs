//! Requests of a queue on their way through the disk.
//!
//! ```text
//!   begin ─┬─ aligned read, write ─► queue ─┬─ written through? ─► lane: sync ─┬─► answer
//!          └─ all else ────────────► lane ──┘                                  │
//!                                     └────────────────────────────────────────┘
//! ```
//! I-VHO-2: a request keeps its slot until it is answered, and is answered once.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use bedplate_block::AlignedBuf;
use virtio_bindings::bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK};
use vm_memory::GuestAddress;

use super::device::Device;
use super::memory::{Segment, gather, scatter};
use super::request::{Change, Command, Piece, Request};
use super::ring::{Halt, Ring};
use crate::buffers::Buffers;
use crate::lane::{Job, Lane, Work};
use crate::{DiskQueue, Done, Error};

/// Requests of one queue that are under way at once.
const DEPTH_MAX: usize = 128;

/// A request that is under way.
#[derive(Debug)]
struct Pending {
    answer: Answer,
    step: Step,
    offset: u64,
    len: usize,
}

/// Where a request is answered.
#[derive(Debug, Clone, Copy)]
struct Answer {
    head: u16,
    status: GuestAddress,
    data_len: u64,
}

/// What is done for a request, and what comes next.
#[derive(Debug)]
enum Step {
    Read {
        to: Vec<Segment>,
    },
    Write,
    /// The pieces that follow the one under way.
    Change {
        left: std::vec::IntoIter<Piece>,
    },
    /// The last step of all that becomes durable.
    Sync,
}

/// What a queue has under way, and what it does that with.
pub struct Serving {
    device: Arc<Device>,
    ring: Ring,
    buffers: Buffers,
    slots: Vec<Option<Pending>>,
    free: Vec<usize>,
    queue: Option<Queue>,
    lane: Option<Lane>,
    /// What the lane has and has not given back.
    handed_over: usize,
    done: Vec<Done>,
    /// A request that waits for memory.
    waiting: Option<Request>,
    /// A refused request was told of: a guest fills no log.
    told: bool,
}

struct Queue {
    disk: Box<dyn DiskQueue>,
    ready: Option<OwnedFd>,
}

/// Why no more requests are begun for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// There is none.
    Input,
    /// There are too many under way.
    Room,
    /// There is no memory.
    Memory,
    /// What is under way has its turn.
    Turn,
}

impl Serving {
    pub fn new(device: &Arc<Device>, ring: Ring) -> Self {
        Self {
            device: Arc::clone(device),
            ring,
            buffers: Buffers::new(Arc::clone(&device.budget)),
            slots: (0..DEPTH_MAX).map(|_| None).collect(),
            free: (0..DEPTH_MAX).rev().collect(),
            queue: None,
            lane: None,
            handed_over: 0,
            done: Vec::new(),
            waiting: None,
            told: false,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Begins the requests that are there and for which there is room.
    pub fn take_requests(&mut self) -> Result<Pause, Halt> {
        self.ring.begin_looking()?;
        for _ in 0..2 * DEPTH_MAX {
            if self.free.is_empty() {
                return Ok(Pause::Room);
            }
            let next = match self.waiting.take() {
                Some(request) => Some(request),
                None => self.ring.next(&self.device.terms)?,
            };
            match next {
                Some(request) => {
                    if let Some(request) = self.begin(request)? {
                        self.waiting = Some(request);
                        return Ok(Pause::Memory);
                    }
                }
                None if self.ring.end_looking()? => {}
                None => return Ok(Pause::Input),
            }
        }
        Ok(Pause::Turn)
    }

    /// Begins a request; returns it where there is no memory for it.
    fn begin(&mut self, request: Request) -> Result<Option<Request>, Halt> {
        let Request { head, status, data_len, command } = request;
        let answer = Answer { head, status, data_len };
        match command {
            Err(refused) => {
                match std::mem::replace(&mut self.told, true) {
                    false => tracing::warn!("a request of the guest is refused: {}", refused.text),
                    true => tracing::debug!("one more request is refused: {}", refused.text),
                }
                self.answer(answer, refused.status)?;
            }
            Ok(Command::Identify { to }) => {
                let wanted = (data_len as usize).min(self.device.terms.serial.len());
                let given = scatter(self.ring.memory(), &self.device.terms.serial[..wanted], &to);
                self.answer_data(answer, given, wanted as u64)?;
            }
            Ok(Command::Flush) => self.start(answer, Step::Sync, 0, 0, Work::Sync)?,
            Ok(Command::Change(pieces)) => self.next_piece(answer, pieces.into_iter())?,
            Ok(Command::Read { len: 0, .. } | Command::Write { len: 0, .. }) => {
                self.answer(answer, VIRTIO_BLK_S_OK as u8)?;
            }
            Ok(Command::Read { offset, len, to }) => match self.buffers.take(len) {
                Some(buf) => self.queue_up(answer, Step::Read { to }, offset, buf)?,
                None => {
                    let command = Ok(Command::Read { offset, len, to });
                    return Ok(Some(Request { head, status, data_len, command }));
                }
            },
            Ok(Command::Write { offset, len, from }) => {
                let Some(mut buf) = self.buffers.take(len) else {
                    let command = Ok(Command::Write { offset, len, from });
                    return Ok(Some(Request { head, status, data_len, command }));
                };
                if gather(self.ring.memory(), &from, &mut buf) {
                    self.queue_up(answer, Step::Write, offset, buf)?;
                } else {
                    self.buffers.give(buf);
                    self.answer(answer, VIRTIO_BLK_S_IOERR as u8)?;
                }
            }
        }
        Ok(None)
    }

    fn occupy(&mut self, answer: Answer, step: Step, offset: u64, len: usize) -> usize {
        let end = offset.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= self.device.terms.size_bytes),
            "I-VHO-1: {len} bytes at {offset} lie within the disk"
        );
        let slot = self.free.pop().expect("I-VHO-2: a request begins where there is a slot");
        let held = self.slots[slot].replace(Pending { answer, step, offset, len });
        assert!(held.is_none(), "I-VHO-2: a free slot holds no request");
        slot
    }

    /// Puts a read or write in the queue, or hands it over where that takes none.
    fn queue_up(
        &mut self,
        answer: Answer,
        step: Step,
        offset: u64,
        buf: AlignedBuf,
    ) -> Result<(), Halt> {
        let reads = matches!(step, Step::Read { .. });
        let (len, disk) = (buf.len(), Arc::clone(&self.device.disk));
        let slot = self.occupy(answer, step, offset, len);
        let queue = match disk.is_for_queue(offset, len as u64) {
            true => self.disk_queue(),
            false => None,
        };
        let refused = match queue {
            Some(queue) if reads => queue.read(buf, offset, slot as u64).err(),
            Some(queue) => queue.write(buf, offset, slot as u64).err(),
            None => Some(buf),
        };
        match refused {
            None => Ok(()),
            Some(buf) if reads => self.hand_over(slot, offset, len as u64, Work::Read(buf)),
            Some(buf) => self.hand_over(slot, offset, len as u64, Work::Write(buf)),
        }
    }

    /// Returns the disk's queue; `None` where the system has none to give, and all goes by the lane.
    fn disk_queue(&mut self) -> Option<&mut Box<dyn DiskQueue>> {
        if self.queue.is_none() {
            let opened = self.device.disk.queue(DEPTH_MAX).and_then(|disk| {
                let ready = disk.readiness();
                let ready = ready.map_err(|e| Error::system("wait for", Path::new("a disk"), e))?;
                Ok(Queue { disk, ready })
            });
            match opened {
                Ok(queue) => self.queue = Some(queue),
                Err(error) => tracing::debug!("a queue of the guest has none of the disk: {error}"),
            }
        }
        self.queue.as_mut().map(|queue| &mut queue.disk)
    }

    fn start(
        &mut self,
        answer: Answer,
        step: Step,
        offset: u64,
        len: u64,
        work: Work,
    ) -> Result<(), Halt> {
        let slot = self.occupy(answer, step, offset, len as usize);
        self.hand_over(slot, offset, len, work)
    }

    fn hand_over(&mut self, slot: usize, offset: u64, len: u64, work: Work) -> Result<(), Halt> {
        let token = slot as u64;
        if self.lane.is_none() {
            match Lane::start(&self.device.disk, "bedplate-vhu-l") {
                Ok(lane) => self.lane = Some(lane),
                Err(error) => {
                    let error = Error::system("start a thread for", Path::new("a disk"), error);
                    let buf = work.into_buf();
                    return self.finish(token, Err(error), buf);
                }
            }
        }
        let lane = self.lane.as_ref().expect("it was started");
        lane.push(Job { token, offset, len, work });
        self.handed_over += 1;
        Ok(())
    }

    /// Begins the next change of a request that is not of nothing, or ends it.
    fn next_piece(
        &mut self,
        answer: Answer,
        mut left: std::vec::IntoIter<Piece>,
    ) -> Result<(), Halt> {
        match left.find(|piece| piece.len > 0) {
            Some(Piece { offset, len, change }) => {
                let work = match change {
                    Change::Trim => Work::Trim,
                    Change::Zero(zeroing) => Work::Zero(zeroing),
                };
                self.start(answer, Step::Change { left }, offset, len, work)
            }
            None if self.device.writes_through() => {
                self.start(answer, Step::Sync, 0, 0, Work::Sync)
            }
            None => self.answer(answer, VIRTIO_BLK_S_OK as u8),
        }
    }

    /// Returns what becomes readable when the disk's queue has something; `None` where it has
    /// nothing under way, or cannot be waited for so.
    pub fn queue_event(&self) -> Option<&OwnedFd> {
        self.queue.as_ref().filter(|queue| queue.disk.in_flight() > 0)?.ready.as_ref()
    }

    /// Returns whether only [`collect`](Self::collect) can wait for the disk's queue.
    pub fn waits_for_queue(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.ready.is_none() && queue.disk.in_flight() > 0)
    }

    /// Returns whether the disk's queue has something under way.
    pub fn uses_queue(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.disk.in_flight() > 0)
    }

    pub fn lane(&self) -> Option<&Lane> {
        self.lane.as_ref()
    }

    /// Submits what was begun, answers what is done, and tells the guest; waits for `min`
    /// operations of the disk's queue. Returns whether anything was done.
    pub fn collect(&mut self, min: usize) -> Result<bool, Halt> {
        let (mut any, mut halt) = (false, Ok(()));
        if let Some(queue) = self.queue.as_mut().filter(|queue| queue.disk.in_flight() > 0) {
            let mut done = std::mem::take(&mut self.done);
            queue.disk.complete(min, &mut done).map_err(Halt::Disk)?;
            any = !done.is_empty();
            for Done { token, result, buf } in done.drain(..) {
                halt = halt.and(self.finish(token, result, buf));
            }
            self.done = done;
        }
        for outcome in self.lane.as_ref().map(Lane::take).unwrap_or_default() {
            any = true;
            self.handed_over -= 1;
            halt = halt.and(self.finish(outcome.token, outcome.result, outcome.buf));
        }
        halt.and(self.ring.tell()).map(|()| any)
    }

    fn finish(
        &mut self,
        token: u64,
        result: crate::Result<()>,
        buf: Option<AlignedBuf>,
    ) -> Result<(), Halt> {
        let slot = token as usize;
        let Some(Pending { answer, step, offset, len }) = self.slots[slot].take() else {
            panic!("I-VHO-2: what ends has a slot");
        };
        self.free.push(slot);
        if let Err(error) = result {
            self.give_back(&step, len, buf);
            tracing::warn!("a request of the guest failed: {error}");
            return self.answer(answer, VIRTIO_BLK_S_IOERR as u8);
        }
        match step {
            Step::Read { to } => {
                let Some(buf) = buf else { unreachable!("a read that succeeds has its buffer") };
                let given = scatter(self.ring.memory(), &buf, &to);
                self.buffers.give(buf);
                self.answer_data(answer, given, len as u64)
            }
            Step::Write => {
                self.give_back(&Step::Write, len, buf);
                if self.device.writes_through() {
                    return self.start(answer, Step::Sync, offset, len as u64, Work::SyncRange);
                }
                self.answer(answer, VIRTIO_BLK_S_OK as u8)
            }
            Step::Change { left } => self.next_piece(answer, left),
            Step::Sync => self.answer(answer, VIRTIO_BLK_S_OK as u8),
        }
    }

    /// Takes the buffer of a read or write back, or counts it as lost.
    fn give_back(&mut self, step: &Step, len: usize, buf: Option<AlignedBuf>) {
        match (buf, step) {
            (Some(buf), _) => self.buffers.give(buf),
            (None, Step::Read { .. } | Step::Write) => self.buffers.release(len),
            (None, Step::Change { .. } | Step::Sync) => {}
        }
    }

    fn answer_data(&mut self, answer: Answer, given: bool, written: u64) -> Result<(), Halt> {
        if !given {
            return self.answer(answer, VIRTIO_BLK_S_IOERR as u8);
        }
        // The status follows the data where that fills its buffers.
        let all = written + u64::from(written == answer.data_len);
        let Answer { head, status, .. } = answer;
        self.ring.answer(head, status, VIRTIO_BLK_S_OK as u8, all as u32)
    }

    /// Answers what fills no buffer but the status.
    fn answer(&mut self, answer: Answer, status: u8) -> Result<(), Halt> {
        // Of buffers, the first bytes count; before a status there may be some that hold nothing.
        let written = u32::from(answer.data_len == 0);
        self.ring.answer(answer.head, answer.status, status, written)
    }

    /// Answers what is under way, and takes no more.
    pub fn drain(&mut self) -> Result<(), Halt> {
        while self.uses_queue() || self.handed_over > 0 {
            let min = usize::from(self.uses_queue());
            if !self.collect(min)? && min == 0 {
                self.lane.as_ref().map(Lane::wait).transpose()?;
            }
        }
        self.ring.tell()
    }

    /// Gives back memory that is kept for the next requests.
    pub fn rest(&mut self) {
        self.buffers.shrink();
    }

    /// Returns whether there is any.
    pub fn is_keeping(&self) -> bool {
        self.buffers.is_keeping()
    }

    /// Gives the guest's queue back. A request that waited for memory is not taken from it.
    pub fn into_queue(self) -> virtio_queue::Queue {
        let mut queue = self.ring.into_queue();
        if self.waiting.is_some() {
            use virtio_queue::QueueOwnedT;
            queue.go_to_previous_position();
        }
        queue
    }
}
