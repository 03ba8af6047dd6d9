//! A volume's queue: one thread's submission and completion pair over those of the members.
//!
//! ```text
//!   push ─► submit: start() ─► one request a member ─► complete: part() ─► all parts ended: finish() ─► completion
//! ```
//! A request that concerns one copy on one member is handed on as it is, buffer and all. Any other is dealt out in buffers of our own, and
//! completes when all its parts have. What fails is settled from here as positioned calls settle it: a read is read again from another copy,
//! a write waits until the member has left durably. Writes to a RAID-5 are gathered (`parity/gather.rs`).
//!
//! * I-QUE-1: a write is counted out of its regions exactly once, when its last part has ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use block::{AlignedBuf, Completion, DeviceQueue, ErrorKind, Operation, QueueOptions, Request, RequestKind, Result, Segment};

use crate::core::Core;
use crate::group::Closer;
use crate::live::Live;
use crate::parallel::Wait;
use crate::parity::Gathering;
use crate::plan::{self, Share};
use crate::space::{NAP, Space};

/// What one member does for a request.
struct Part {
    live: Arc<Live>,
    start: Instant,
    covers: u64,
    pieces: Share,
    /// Whether the member has the caller's buffer itself.
    whole: bool,
    error: Option<block::Error>,
    ended: bool,
}

/// A request on its way.
struct Flight {
    token: u64,
    start: Instant,
    kind: RequestKind,
    /// The caller's buffer, unless a member has it.
    buf: Option<AlignedBuf>,
    segments: Vec<Segment>,
    parts: Vec<Part>,
    open: usize,
    /// What it goes by to its end.
    space: Arc<Space>,
}

pub(crate) struct VolumeQueue {
    core: Arc<Core>,
    depth_max: usize,
    options: QueueOptions,
    queues: Vec<(Arc<Live>, Box<dyn DeviceQueue>)>,
    pushed: VecDeque<Request>,
    /// By slot; a part's token is its slot and its ordinal.
    flights: Vec<Option<Flight>>,
    flying: usize,
    /// What is written to a RAID-5.
    gathering: Gathering,
    done: Vec<Completion>,
    scratch: Vec<Completion>,
    /// Keeps the group open.
    _open: Arc<Closer>,
}

const PART_BITS: u32 = 16;

impl VolumeQueue {
    pub fn new(core: Arc<Core>, open: Arc<Closer>, options: &QueueOptions) -> Self {
        let depth_max = options.depth_max.clamp(1, 4096);
        Self {
            core,
            depth_max,
            options: QueueOptions { depth_max, ..options.clone() },
            queues: Vec::new(),
            pushed: VecDeque::new(),
            flights: (0..depth_max).map(|_| None).collect(),
            flying: 0,
            gathering: Gathering::default(),
            done: Vec::new(),
            scratch: Vec::new(),
            _open: open,
        }
    }

    fn queue_at(&mut self, live: &Arc<Live>) -> Result<usize> {
        if let Some(at) = self.queues.iter().position(|(known, _)| Arc::ptr_eq(known, live)) {
            return Ok(at);
        }
        // Registered buffers belong to one member's queue: any will do, and one set is enough.
        let buffers = if self.queues.is_empty() { self.options.buffers } else { 0 };
        let queue = live.device.queue(&QueueOptions { buffers, ..self.options.clone() })?;
        self.queues.push((Arc::clone(live), queue));
        Ok(self.queues.len() - 1)
    }

    /// Opens the queue that registered buffers come from.
    fn first_queue(&mut self) -> Option<usize> {
        if !self.queues.is_empty() {
            return Some(0);
        }
        let (space, lives) = (self.core.spaces.peek(), self.core.shared.lives());
        let live = space.members.iter().find_map(|member| lives[*member].as_ref()).cloned()?;
        self.queue_at(&live).ok()
    }

    fn check(&self, space: &Space, request: &Request) -> Result<()> {
        let refuse = |kind, detail: &str| Err(self.core.error(kind, operation(request.kind), Some(request.first.offset), detail.to_owned()));
        let segments = || std::iter::once(&request.first).chain(&request.rest);
        match (&request.buf, request.kind) {
            (None, RequestKind::Flush) if request.first.len == 0 && request.rest.is_empty() => self.core.check_latch(),
            (_, RequestKind::Flush) => refuse(ErrorKind::Unsupported, "a flush takes neither buffer nor segments"),
            (None, _) => refuse(ErrorKind::Unsupported, "the request has no buffer"),
            (Some(buf), kind) => {
                segments().try_for_each(|segment| self.core.check(space, operation(kind), segment.offset, segment.len.into()))?;
                if segments().map(|segment| segment.len as usize).sum::<usize>() > buf.len() {
                    return refuse(ErrorKind::OutOfRange, "the segments hold more bytes than the buffer");
                }
                if kind == RequestKind::Write { self.core.check_latch() } else { Ok(()) }
            }
        }
    }

    /// Sends what has been pushed to be written to a RAID-5 out together.
    fn start_gathered(&mut self) {
        let core = Arc::clone(&self.core);
        if !core.spaces.peek().has_parity() {
            return;
        }
        let space = core.spaces.get();
        let (writes, others): (VecDeque<Request>, _) = self.pushed.drain(..).partition(|request| request.kind == RequestKind::Write);
        self.pushed = others;
        for request in writes {
            match self.check(&space, &request) {
                Ok(()) => self.gathering.push(request),
                Err(error) => self.done.push(Completion { token: request.token, result: Err(error), buf: request.buf }),
            }
        }
        self.gathering.start(&core, &mut self.done);
    }

    /// Takes the writes to a RAID-5 a step further.
    fn poll_gathered(&mut self, wait: Wait) {
        if self.gathering.count() > 0 {
            self.gathering.poll(&self.core, wait, &mut self.done);
        }
    }

    /// Reads what lies on a member that is gone with positioned calls, which know what to do about it.
    #[cold]
    fn read_now(&mut self, mut request: Request) {
        let segments: Vec<Segment> = std::iter::once(request.first).chain(request.rest.drain(..)).collect();
        let mut buf = request.buf.take();
        let meter = &self.core.meter;
        let bytes = segments.iter().map(|segment| u64::from(segment.len)).sum();
        let result =
            meter.time(RequestKind::Read, bytes, || buf.as_mut().map_or(Ok(()), |buf| self.read_segments(&self.core.spaces.get(), &segments, buf)));
        self.done.push(Completion { token: request.token, result, buf });
    }

    fn read_segments(&self, space: &Space, segments: &[Segment], buf: &mut AlignedBuf) -> Result<()> {
        let mut from = 0;
        segments.iter().try_for_each(|segment| {
            let mut bytes = AlignedBuf::zeroed(segment.len as usize);
            self.core.read_in(space, &mut bytes, segment.offset)?;
            buf[from..from + bytes.len()].copy_from_slice(&bytes);
            from += bytes.len();
            Ok(())
        })
    }

    /// Takes the space for a request, once nothing that it writes is barred.
    fn space_for(&mut self, request: &Request) -> Arc<Space> {
        loop {
            let writes = std::iter::once(&request.first).chain(&request.rest).filter(|_| request.kind == RequestKind::Write);
            if let Some(space) = self.core.spaces.try_for_writes(writes.map(|segment| (segment.offset, segment.len.into()))) {
                return space;
            }
            // What is under way here may be what is waited for. A queue that fails says so when it is asked for completions.
            let _told_then = self.poll(false);
            std::thread::sleep(NAP);
        }
    }

    fn start(&mut self, request: Request) {
        let space = self.space_for(&request);
        if request.kind == RequestKind::Write && space.has_parity() && self.check(&space, &request).is_ok() {
            // It became a RAID-5 only now.
            drop(space);
            self.gathering.push(request);
            return self.gathering.start(&Arc::clone(&self.core), &mut self.done);
        }
        let prepared = self.check(&space, &request).and_then(|()| self.prepare(&space, &request));
        match prepared {
            Ok(shares) => self.launch(space, request, shares),
            Err(_) if space.has_parity() && request.kind == RequestKind::Read && self.check(&space, &request).is_ok() => {
                drop(space);
                self.read_now(request);
            }
            Err(error) => self.done.push(Completion { token: request.token, result: Err(error), buf: request.buf }),
        }
    }

    /// Enters the regions of a request and plans it.
    fn prepare(&mut self, space: &Space, request: &Request) -> Result<Vec<Share>> {
        let segments: Vec<Segment> = std::iter::once(request.first).chain(request.rest.iter().copied()).filter(|segment| segment.len > 0).collect();
        let core = Arc::clone(&self.core);
        match request.kind {
            RequestKind::Flush => {
                let lives = core.shared.lives();
                let needy = space.members.iter().filter_map(|member| lives[*member].clone());
                let needy = needy.filter(|live| live.takes_writes() && live.needs_flush().is_some());
                return Ok(needy.map(|live| Share { live, pieces: Vec::new() }).collect());
            }
            RequestKind::Read => segments.iter().try_for_each(|segment| core.settle_regions(space, segment.offset, segment.len.into()))?,
            RequestKind::Write => {
                for (entered, segment) in segments.iter().enumerate() {
                    if let Err(error) = core.enter(space, segment.offset, segment.len.into()) {
                        leave(&core, space, &segments[..entered]);
                        return Err(error);
                    }
                }
            }
        }
        let (mut shares, mut from) = (Vec::new(), 0);
        let lives = core.shared.lives();
        for segment in &segments {
            let len = segment.len as usize;
            let planned = match request.kind {
                RequestKind::Read => plan::read(space, &lives, core.settled, segment.offset, from, len, &mut shares),
                _ => plan::write(space, &lives, segment.offset, from, len, &mut shares),
            };
            if let Err(address) = planned {
                if request.kind == RequestKind::Write {
                    leave(&core, space, &segments);
                }
                return Err(core.no_copy(operation(request.kind), address));
            }
            from += len;
        }
        Ok(shares)
    }

    /// Hands the parts of a request to the members.
    fn launch(&mut self, space: Arc<Space>, mut request: Request, shares: Vec<Share>) {
        let slot = self.flights.iter().position(Option::is_none).expect("no more are flying than there are slots");
        let segments: Vec<Segment> = std::iter::once(request.first).chain(request.rest.drain(..)).collect();
        let kind = request.kind;
        // One member, all of the buffer in one go: no copy.
        let whole = shares.len() == 1 && kind != RequestKind::Flush && is_in_order(&shares[0]);
        let (token, start, open) = (request.token, Instant::now(), shares.len());
        let mut flight = Flight { token, start, kind, buf: request.buf, segments, parts: Vec::new(), open, space };
        let mut outgoing = Vec::with_capacity(shares.len());
        for share in shares {
            let buf = match (&flight.buf, kind) {
                (_, RequestKind::Flush) | (None, _) => None,
                (Some(_), _) if whole => flight.buf.take(),
                (Some(_), RequestKind::Read) => Some(AlignedBuf::zeroed(share.len())),
                (Some(buf), RequestKind::Write) => Some(share.gather(buf)),
            };
            outgoing.push((buf, share.segments()));
            let (covers, start) = (share.live.needs_flush().unwrap_or(0), share.live.begin());
            flight.parts.push(Part { live: Arc::clone(&share.live), start, covers, pieces: share, whole, error: None, ended: false });
        }
        self.flights[slot] = Some(flight);
        self.flying += 1;
        self.core.meter.begin(1);
        for (ordinal, (buf, segments)) in outgoing.into_iter().enumerate() {
            self.send(slot, ordinal, kind, buf, &segments);
        }
        self.finish_if_over(slot);
    }

    fn send(&mut self, slot: usize, ordinal: usize, kind: RequestKind, buf: Option<AlignedBuf>, segments: &[Segment]) {
        let token = (slot as u64) << PART_BITS | ordinal as u64;
        let first = segments.first().copied().unwrap_or(Segment { offset: 0, len: 0 });
        let request = Request { token, kind, buf, first, rest: segments.get(1..).unwrap_or_default().to_vec() };
        let live = Arc::clone(&self.flights[slot].as_ref().expect("the slot was filled").parts[ordinal].live);
        let sent = match self.queue_at(&live) {
            Ok(at) => self.queues[at].1.push(request).map_err(|request| {
                let error = self.core.error(ErrorKind::Io, Operation::Queue, None, format!("the queue of {} is full", live.name()));
                (error, request.buf)
            }),
            Err(error) => Err((error, request.buf)),
        };
        if let Err((error, buf)) = sent {
            self.part(Completion { token, result: Err(error), buf });
        }
    }

    /// Takes the completion of a part.
    fn part(&mut self, completion: Completion) {
        let (slot, ordinal) = ((completion.token >> PART_BITS) as usize, completion.token as usize & ((1 << PART_BITS) - 1));
        let Some(flight) = self.flights.get_mut(slot).and_then(Option::as_mut) else { return };
        // A completion that comes twice ends a part once.
        let Some(part) = flight.parts.get_mut(ordinal).filter(|part| !part.ended) else { return };
        let ok = completion.result.is_ok();
        let len = part.pieces.len() as u64;
        match flight.kind {
            RequestKind::Read => {
                let end = part.pieces.pieces.last().map_or(0, |piece| piece.offset + piece.len as u64);
                part.live.end_read(part.start, end, len, ok);
            }
            RequestKind::Write => part.live.end_write(part.start, len, ok),
            RequestKind::Flush => part.live.end_flush(part.start, part.covers, ok),
        }
        match (&mut flight.buf, completion.buf) {
            (buf, Some(whole)) if part.whole => *buf = Some(whole),
            (Some(buf), Some(read)) if ok && flight.kind == RequestKind::Read => part.pieces.scatter(&read, buf),
            _ => {}
        }
        part.error = completion.result.err();
        part.ended = true;
        flight.open -= 1;
    }

    fn finish_if_over(&mut self, slot: usize) {
        if self.flights[slot].as_ref().is_none_or(|flight| flight.open > 0) {
            return;
        }
        let Some(mut flight) = self.flights[slot].take() else { return };
        self.flying -= 1;
        self.core.meter.end(1);
        let result = self.finish(&mut flight);
        let (meter, bytes) = (&self.core.meter, flight.segments.iter().map(|segment| u64::from(segment.len)).sum());
        meter.note(flight.kind, (flight.start, Instant::now()), bytes, result.is_ok());
        self.done.push(Completion { token: flight.token, result, buf: flight.buf });
    }

    /// Settles what failed and lets go of the regions.
    fn finish(&self, flight: &mut Flight) -> Result<()> {
        let failures: Vec<_> = flight.parts.iter_mut().filter_map(|part| Some((Arc::clone(&part.live), part.error.take()?))).collect();
        match flight.kind {
            RequestKind::Flush => self.core.settle_flush(failures),
            RequestKind::Write => {
                let settled = self.core.settle(failures);
                // I-QUE-1: a flight finishes once, and its regions were entered once.
                assert_eq!(flight.open, 0, "a write leaves its regions when all parts have ended");
                leave(&self.core, &flight.space, &flight.segments);
                settled
            }
            RequestKind::Read if failures.is_empty() => Ok(()),
            RequestKind::Read => self.read_again(flight, failures),
        }
    }

    /// Reads what failed with positioned calls, which know what to do about a bad copy.
    #[cold]
    fn read_again(&self, flight: &mut Flight, mut failures: Vec<(Arc<Live>, block::Error)>) -> Result<()> {
        let first = failures.swap_remove(0).1;
        if flight.space.redundancy.is_none() && !flight.space.has_parity() {
            return Err(first);
        }
        let Some(buf) = &mut flight.buf else { return Err(first) };
        self.read_segments(&flight.space, &flight.segments, buf)
    }

    /// Collects what members completed; waits for at least one where `wait` says so and one is on its way.
    fn poll(&mut self, wait: bool) -> Result<()> {
        let before = self.done.len();
        let mut completions = std::mem::take(&mut self.scratch);
        let oldest = self.flights.iter().flatten().flat_map(|flight| &flight.parts).find(|part| !part.ended).map(|part| Arc::clone(&part.live));
        let mut failure = None;
        for (live, queue) in &mut self.queues {
            // Only one may be waited for; what the others have is taken along.
            let min = usize::from(wait && oldest.as_ref().is_some_and(|oldest| Arc::ptr_eq(oldest, live)) && before == self.done.len());
            if queue.in_flight() > 0
                && let Err(error) = queue.complete(min, &mut completions)
            {
                failure = Some(error);
            }
        }
        for completion in completions.drain(..) {
            let slot = (completion.token >> PART_BITS) as usize;
            self.part(completion);
            if slot < self.flights.len() {
                self.finish_if_over(slot);
            }
        }
        self.scratch = completions;
        let alone = wait && oldest.is_none() && before == self.done.len();
        self.poll_gathered(if alone { Wait::ForAll } else { Wait::No });
        failure.map_or(Ok(()), Err)
    }

    /// Closes the queues of members that left, once nothing is on its way there.
    fn forget(&mut self) {
        self.queues.retain(|(live, queue)| !live.is_failed() || queue.in_flight() > 0);
    }
}

/// Says whether a member's pieces are the buffer from its first byte on.
fn is_in_order(share: &Share) -> bool {
    let mut next = 0;
    share.pieces.iter().all(|piece| {
        let fits = piece.from == next;
        next += piece.len;
        fits
    })
}

fn leave(core: &Core, space: &Space, segments: &[Segment]) {
    segments.iter().for_each(|segment| core.leave(space, segment.offset, segment.len.into()));
}

fn operation(kind: RequestKind) -> Operation {
    match kind {
        RequestKind::Read => Operation::Read,
        RequestKind::Write => Operation::Write,
        RequestKind::Flush => Operation::Flush,
    }
}

impl DeviceQueue for VolumeQueue {
    fn depth_max(&self) -> usize {
        self.depth_max
    }

    fn in_flight(&self) -> usize {
        self.pushed.len() + self.flying + self.gathering.count() + self.done.len()
    }

    fn push(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.depth_max {
            return Err(request);
        }
        self.pushed.push_back(request);
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        self.start_gathered();
        while let Some(request) = self.pushed.pop_front() {
            self.start(request);
        }
        self.queues.iter_mut().try_for_each(|(_, queue)| queue.submit())
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Completion>) -> Result<usize> {
        self.submit()?;
        let min = min.min(self.in_flight());
        self.poll(false)?;
        while self.done.len() < min {
            self.poll(true)?;
        }
        self.forget();
        let count = self.done.len();
        out.append(&mut self.done);
        Ok(count)
    }

    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.first_queue().and_then(|at| self.queues[at].1.take_buffer())
    }

    fn give_buffer(&mut self, buf: AlignedBuf) {
        if let Some((_, queue)) = self.queues.first_mut() {
            queue.give_buffer(buf);
        }
    }
}

impl Drop for VolumeQueue {
    /// Waits for what is on its way, so that every write leaves its regions.
    fn drop(&mut self) {
        while self.gathering.count() > 0 {
            self.poll_gathered(Wait::ForAll);
        }
        while self.flying > 0 {
            if self.poll(true).is_err() {
                // A queue that fails gives nothing back; its own drop waits, and the regions stay dirty, which is safe.
                return;
            }
        }
    }
}
