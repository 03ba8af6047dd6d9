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

use super::KeepOpen;
use super::epoch::{NAP, Space};
use super::fanout::Wait;
use super::plan::{self, Piece, Share};
use super::raid5::Gathering;
use super::volume_io::Core;
use crate::group::{Live, Lives};
use crate::layout::Locate;

/// What one member does for a request.
struct Part {
    lane: usize,
    covers: u64,
    /// Where its bytes stand in the caller's buffer; empty where the member has that itself.
    pieces: Vec<Piece>,
    /// Where it ends on the member, and how many bytes it moves.
    end: u64,
    len: u64,
    error: Option<block::Error>,
    ended: bool,
}

/// A member and this queue's own to it.
struct Lane {
    live: Arc<Live>,
    queue: Option<Box<dyn DeviceQueue>>,
}

/// What requests go by that began under it. A queue's own, so that its requests count their holds where no other processor looks; the one hold that others
/// see lasts until the last of them has ended.
struct Ground {
    space: Arc<Space>,
    lives: Arc<Lives>,
    versions: (u64, u64),
}

/// A request on its way.
struct Flight {
    token: u64,
    start: Instant,
    kind: RequestKind,
    /// The caller's buffer, unless a member has it.
    buf: Option<AlignedBuf>,
    first: Segment,
    rest: Vec<Segment>,
    parts: Vec<Part>,
    open: usize,
    /// What it goes by to its end.
    ground: Arc<Ground>,
}

impl Flight {
    fn segments(&self) -> impl Iterator<Item = &Segment> + Clone {
        std::iter::once(&self.first).chain(&self.rest)
    }
}

pub(crate) struct VolumeQueue {
    core: Arc<Core>,
    depth_max: usize,
    options: QueueOptions,
    lanes: Vec<Lane>,
    pushed: VecDeque<Request>,
    /// By slot; a part's token is its slot and its ordinal.
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    flying: usize,
    /// What the next request goes by, unless that has changed; nothing while nothing is flying.
    ground: Option<Arc<Ground>>,
    /// When requests were last submitted or collected: those of one call began or ended together.
    now: Instant,
    /// Lists of parts that are used again.
    lists: Vec<Vec<Part>>,
    /// What is written to a RAID-5.
    gathering: Gathering,
    done: Vec<Completion>,
    scratch: Vec<Completion>,
    /// Keeps the group open.
    _open: KeepOpen,
}

const PART_BITS: u32 = 16;

impl VolumeQueue {
    pub fn new(core: Arc<Core>, open: KeepOpen, options: &QueueOptions) -> Self {
        let depth_max = options.depth_max.clamp(1, 4096);
        Self {
            core,
            depth_max,
            options: QueueOptions { depth_max, ..options.clone() },
            lanes: Vec::new(),
            pushed: VecDeque::new(),
            flights: (0..depth_max).map(|_| None).collect(),
            free: (0..depth_max).rev().collect(),
            flying: 0,
            ground: None,
            now: Instant::now(),
            lists: Vec::new(),
            gathering: Gathering::default(),
            done: Vec::new(),
            scratch: Vec::new(),
            _open: open,
        }
    }

    fn lane_of(&mut self, live: &Arc<Live>) -> usize {
        self.lanes.iter().position(|lane| Arc::ptr_eq(&lane.live, live)).unwrap_or_else(|| {
            self.lanes.push(Lane { live: Arc::clone(live), queue: None });
            self.lanes.len() - 1
        })
    }

    fn queue_of(&mut self, lane: usize) -> Result<&mut Box<dyn DeviceQueue>> {
        if self.lanes[lane].queue.is_none() {
            // Registered buffers belong to one member's queue: any will do, and one set is enough.
            let buffers = if self.queues().next().is_none() { self.options.buffers } else { 0 };
            let queue = self.lanes[lane].live.device.queue(&QueueOptions { buffers, ..self.options.clone() })?;
            self.lanes[lane].queue = Some(queue);
        }
        Ok(self.lanes[lane].queue.as_mut().expect("it was just opened"))
    }

    fn queues(&mut self) -> impl Iterator<Item = &mut Box<dyn DeviceQueue>> {
        self.lanes.iter_mut().filter_map(|lane| lane.queue.as_mut())
    }

    /// Opens the queue that registered buffers come from.
    fn first_queue(&mut self) -> Option<&mut Box<dyn DeviceQueue>> {
        let lane = self.lanes.iter().position(|lane| lane.queue.is_some());
        let lane = match lane {
            Some(lane) => lane,
            None => {
                let (space, lives) = (self.core.spaces.peek(), self.core.shared.lives());
                let live = space.members.iter().find_map(|member| lives[*member].as_ref())?;
                self.lane_of(live)
            }
        };
        self.queue_of(lane).ok()
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

    /// Takes what a request goes by, once nothing that it writes is barred.
    fn ground_for(&mut self, request: &Request) -> Arc<Ground> {
        loop {
            let versions = (self.core.spaces.version(), self.core.shared.lives_version());
            if self.ground.as_ref().is_none_or(|ground| ground.versions != versions) {
                // In this order: what comes between is seen next time.
                let (space, lives) = (self.core.spaces.peek(), self.core.shared.lives());
                self.ground = Some(Arc::new(Ground { space, lives, versions }));
            }
            let ground = self.ground.as_ref().expect("it was just taken");
            let mut writes = std::iter::once(&request.first).chain(&request.rest).filter(|_| request.kind == RequestKind::Write);
            if !ground.space.shut && !writes.any(|segment| ground.space.bars(segment.offset, segment.len.into())) {
                return Arc::clone(ground);
            }
            // Who waits for its end must not wait for one who only looks.
            self.ground = None;
            // What is under way here may be what is waited for. A queue that fails says so when it is asked for completions.
            let _told_then = self.poll(false);
            std::thread::sleep(NAP);
        }
    }

    fn start(&mut self, request: Request) {
        let ground = self.ground_for(&request);
        if let Err(error) = self.check(&ground.space, &request) {
            return self.done.push(Completion { token: request.token, result: Err(error), buf: request.buf });
        }
        if request.kind == RequestKind::Write && ground.space.has_parity() {
            // It became a RAID-5 only now.
            drop(ground);
            self.ground = None;
            self.gathering.push(request);
            return self.gathering.start(&Arc::clone(&self.core), &mut self.done);
        }
        let Some(request) = self.start_simple(&ground, request) else { return };
        match self.prepare(&ground, &request) {
            Ok(shares) => self.launch(ground, request, shares),
            Err(_) if ground.space.has_parity() && request.kind == RequestKind::Read => {
                drop(ground);
                self.read_now(request);
            }
            Err(error) => self.done.push(Completion { token: request.token, result: Err(error), buf: request.buf }),
        }
    }

    /// Hands a request on as it is that concerns one copy on one member and needs nothing else: nearly all that databases ask for. Gives any other
    /// back.
    #[inline]
    fn start_simple(&mut self, ground: &Arc<Ground>, mut request: Request) -> Option<Request> {
        let Segment { offset, len } = request.first;
        if !request.rest.is_empty() || len == 0 || request.kind == RequestKind::Flush {
            return Some(request);
        }
        let run = ground.space.locate(offset);
        let doubtful = ground.space.redundancy.as_ref().is_some_and(|redundancy| {
            let (first, last) = redundancy.regions.span(offset, len.into());
            request.kind == RequestKind::Write || (first..=last).any(|region| redundancy.regions.is_unsynced(region))
        });
        if doubtful || run.len < len.into() || (request.kind == RequestKind::Write && run.copies().len() > 1) {
            return Some(request);
        }
        let chosen = match request.kind {
            RequestKind::Read => plan::choose(&ground.lives, &run, self.core.settled),
            _ => plan::live_of(&ground.lives, run.copies()[0].member).filter(|live| live.is_active()).map(|live| (live, run.copies()[0].offset)),
        };
        let Some((live, place)) = chosen else { return Some(request) };
        let lane = self.lane_of(live);
        self.lanes[lane].live.enter();
        let mut parts = self.lists.pop().unwrap_or_default();
        parts.push(Part { lane, covers: 0, pieces: Vec::new(), end: place + u64::from(len), len: len.into(), error: None, ended: false });
        let (token, kind, first, buf) = (request.token, request.kind, request.first, request.buf.take());
        let flight = Flight { token, start: self.now, kind, buf: None, first, rest: Vec::new(), parts, open: 1, ground: Arc::clone(ground) };
        let slot = self.take_off(flight);
        self.send(slot, 0, Request { token: 0, kind, buf, first: Segment { offset: place, len }, rest: Vec::new() });
        self.finish_if_over(slot);
        None
    }

    fn take_off(&mut self, flight: Flight) -> usize {
        let slot = self.free.pop().expect("no more are flying than there are slots");
        self.flights[slot] = Some(flight);
        self.flying += 1;
        self.core.meter.begin(1);
        slot
    }

    /// Enters the regions of a request and plans it.
    fn prepare(&mut self, ground: &Ground, request: &Request) -> Result<Vec<Share>> {
        let (space, lives) = (&*ground.space, &*ground.lives);
        let segments: Vec<Segment> = std::iter::once(request.first).chain(request.rest.iter().copied()).filter(|segment| segment.len > 0).collect();
        let core = Arc::clone(&self.core);
        match request.kind {
            RequestKind::Flush => {
                let needy = space.members.iter().filter_map(|member| lives[*member].clone());
                let needy = needy.filter(|live| live.takes_writes() && live.needs_flush().is_some());
                return Ok(needy.map(|live| Share { live, pieces: Vec::new() }).collect());
            }
            RequestKind::Read => segments.iter().try_for_each(|segment| core.settle_regions(space, segment.offset, segment.len.into()))?,
            RequestKind::Write => {
                for (entered, segment) in segments.iter().enumerate() {
                    if let Err(error) = core.enter(space, segment.offset, segment.len.into()) {
                        leave(&core, space, segments[..entered].iter());
                        return Err(error);
                    }
                }
            }
        }
        // Members may have come while it waited to enter, and their regions may be copied by now: a write that they missed would be missing for good.
        let entered_by = (request.kind == RequestKind::Write && core.shared.lives_version() != ground.versions.1).then(|| core.shared.lives());
        let lives = entered_by.as_deref().unwrap_or(lives);
        let (mut shares, mut from) = (Vec::new(), 0);
        for segment in &segments {
            let len = segment.len as usize;
            let planned = match request.kind {
                RequestKind::Read => plan::read(space, lives, core.settled, segment.offset, from, len, &mut shares),
                _ => plan::write(space, lives, segment.offset, from, len, &mut shares),
            };
            if let Err(address) = planned {
                if request.kind == RequestKind::Write {
                    leave(&core, space, segments.iter());
                }
                return Err(core.no_copy(operation(request.kind), address));
            }
            from += len;
        }
        Ok(shares)
    }

    /// Hands the parts of a request to the members.
    fn launch(&mut self, ground: Arc<Ground>, mut request: Request, shares: Vec<Share>) {
        let (kind, last) = (request.kind, shares.len().saturating_sub(1));
        // Members of which each moves all of the buffer in one go: one has the buffer itself, and of what is written the others get copies.
        let len = shares.iter().map(Share::len).max().unwrap_or(0);
        let whole = kind != RequestKind::Flush
            && shares.iter().all(|share| share.is_in_order() && share.len() == len)
            && (last == 0 || kind == RequestKind::Write);
        let (mut parts, mut outgoing) = (self.lists.pop().unwrap_or_default(), Vec::with_capacity(shares.len()));
        for (ordinal, share) in shares.into_iter().enumerate() {
            let own = whole && ordinal == last;
            let buf = match (&request.buf, kind) {
                (_, RequestKind::Flush) | (None, _) => None,
                (Some(_), _) if own => request.buf.take(),
                (Some(_), RequestKind::Read) => Some(self.core.buffers.take(share.len())),
                (Some(buf), RequestKind::Write) => Some(share.gather(buf, &self.core.buffers)),
            };
            outgoing.push((buf, share.segments()));
            let covers = if kind == RequestKind::Flush { share.live.needs_flush().unwrap_or(0) } else { 0 };
            share.live.enter();
            let end = share.pieces.last().map_or(0, |piece| piece.offset + piece.len as u64);
            let (len, lane) = (share.len() as u64, self.lane_of(&share.live));
            parts.push(Part { lane, covers, pieces: if own { Vec::new() } else { share.pieces }, end, len, error: None, ended: false });
        }
        let (token, start, open) = (request.token, self.now, parts.len());
        let (buf, first, rest) = (request.buf.take(), request.first, std::mem::take(&mut request.rest));
        let slot = self.take_off(Flight { token, start, kind, buf, first, rest, parts, open, ground });
        for (ordinal, (buf, segments)) in outgoing.into_iter().enumerate() {
            let first = segments.first().copied().unwrap_or(Segment { offset: 0, len: 0 });
            self.send(slot, ordinal, Request { token: 0, kind, buf, first, rest: segments.get(1..).unwrap_or_default().to_vec() });
        }
        self.finish_if_over(slot);
    }

    fn send(&mut self, slot: usize, ordinal: usize, request: Request) {
        let token = (slot as u64) << PART_BITS | ordinal as u64;
        let lane = self.flights[slot].as_ref().expect("the slot was filled").parts[ordinal].lane;
        let refused = match self.queue_of(lane) {
            Ok(queue) => queue.push(Request { token, ..request }).err().map(|request| (None, request.buf)),
            Err(error) => Some((Some(error), request.buf)),
        };
        if let Some((error, buf)) = refused {
            let full = || self.core.error(ErrorKind::Io, Operation::Queue, None, format!("the queue of {} is full", self.lanes[lane].live.name()));
            let result = Err(error.unwrap_or_else(full));
            self.part(Completion { token, result, buf });
        }
    }

    /// Takes the completion of a part.
    fn part(&mut self, completion: Completion) {
        let (slot, ordinal) = ((completion.token >> PART_BITS) as usize, completion.token as usize & ((1 << PART_BITS) - 1));
        let Some(flight) = self.flights.get_mut(slot).and_then(Option::as_mut) else { return };
        // A completion that comes twice ends a part once.
        let Some(part) = flight.parts.get_mut(ordinal).filter(|part| !part.ended) else { return };
        let (ok, live) = (completion.result.is_ok(), &self.lanes[part.lane].live);
        let took = self.now.saturating_duration_since(flight.start);
        match flight.kind {
            RequestKind::Read => live.end_read(took, part.end, part.len, ok),
            RequestKind::Write => live.end_write(took, part.len, ok),
            RequestKind::Flush => live.end_flush(took, part.covers, ok),
        }
        match (&mut flight.buf, completion.buf) {
            (_, None) => {}
            (buf, Some(whole)) if part.pieces.is_empty() => *buf = Some(whole),
            (buf, Some(own)) => {
                if let Some(buf) = buf
                    && ok
                    && flight.kind == RequestKind::Read
                {
                    plan::scatter(&part.pieces, &own, buf);
                }
                self.core.buffers.give(own);
            }
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
        self.free.push(slot);
        let result = self.finish(&mut flight);
        let bytes = flight.segments().map(|segment| u64::from(segment.len)).sum();
        self.core.meter.note(flight.kind, (flight.start, self.now), bytes, result.is_ok());
        flight.parts.clear();
        self.lists.push(flight.parts);
        self.done.push(Completion { token: flight.token, result, buf: flight.buf });
    }

    /// Settles what failed and lets go of the regions.
    fn finish(&self, flight: &mut Flight) -> Result<()> {
        let failed = |part: &mut Part| Some((Arc::clone(&self.lanes[part.lane].live), part.error.take()?));
        let failures: Vec<_> = flight.parts.iter_mut().filter_map(failed).collect();
        match flight.kind {
            RequestKind::Flush => self.core.settle_flush(failures),
            RequestKind::Write => {
                let settled = self.core.settle(failures);
                // I-QUE-1: a flight finishes once, and its regions were entered once.
                assert_eq!(flight.open, 0, "a write leaves its regions when all parts have ended");
                leave(&self.core, &flight.ground.space, flight.segments());
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
        if flight.ground.space.redundancy.is_none() && !flight.ground.space.has_parity() {
            return Err(first);
        }
        let segments: Vec<Segment> = flight.segments().copied().collect();
        let Some(buf) = &mut flight.buf else { return Err(first) };
        self.read_segments(&flight.ground.space, &segments, buf)
    }

    /// Collects what members completed; waits for at least one where `wait` says so and one is on its way.
    fn poll(&mut self, wait: bool) -> Result<()> {
        let before = self.done.len();
        let mut completions = std::mem::take(&mut self.scratch);
        let fullest = self.queues().map(|queue| queue.in_flight()).max().filter(|count| *count > 0);
        let mut failure = None;
        for queue in self.queues() {
            // Only one may be waited for, the one with the most to come; what the others have is taken along.
            let min = usize::from(wait && completions.is_empty() && Some(queue.in_flight()) == fullest);
            if queue.in_flight() > 0
                && let Err(error) = queue.complete(min, &mut completions)
            {
                failure = Some(error);
            }
        }
        if !completions.is_empty() {
            self.now = Instant::now();
        }
        for completion in completions.drain(..) {
            let slot = (completion.token >> PART_BITS) as usize;
            self.part(completion);
            if slot < self.flights.len() {
                self.finish_if_over(slot);
            }
        }
        self.scratch = completions;
        let alone = wait && fullest.is_none() && before == self.done.len();
        self.poll_gathered(if alone { Wait::ForAll } else { Wait::No });
        if self.flying == 0 {
            self.ground = None;
        }
        failure.map_or(Ok(()), Err)
    }

    /// Closes the queues of members that left, once nothing is on its way there.
    fn forget(&mut self) {
        if self.flying == 0 {
            self.lanes.retain(|lane| !lane.live.is_failed());
        }
    }
}

fn leave<'a>(core: &Core, space: &Space, mut segments: impl Iterator<Item = &'a Segment>) {
    segments.by_ref().for_each(|segment| core.leave(space, segment.offset, segment.len.into()));
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
        if !self.pushed.is_empty() {
            self.now = Instant::now();
        }
        self.start_gathered();
        while let Some(request) = self.pushed.pop_front() {
            self.start(request);
        }
        if self.flying == 0 {
            self.ground = None;
        }
        self.queues().try_for_each(|queue| queue.submit())
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
        self.first_queue().and_then(|queue| queue.take_buffer())
    }

    fn give_buffer(&mut self, buf: AlignedBuf) {
        if let Some(queue) = self.queues().next() {
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
