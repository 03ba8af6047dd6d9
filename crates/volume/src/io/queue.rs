//! A volume's queue: one thread's submission and completion pair over those of the members.
//!
//! ```text
//!   push ─► submit: start() ─► one request a member ─► complete: part() ─► all parts ended: finish() ─► completion
//! ```
//! A request that concerns one copy on one member is handed on as it is, buffer and all. Any other
//! is dealt out in buffers of our own, and completes when all its parts have. What fails is settled
//! from here as positioned calls settle it: a read is read again from another copy, a write waits
//! until the member has left durably. Writes to a RAID-5 are gathered (`parity/gather.rs`).
//!
//! * I-VQU-1: a write is counted out of its regions exactly once, when its last part has ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bedplate_block::{
    AlignedBuf, Completion, DeviceQueue, ErrorKind, Operation, QueueOptions, Request, RequestKind,
    Result, Segment,
};

use super::KeepOpen;
use super::epoch::{LayoutEpoch, POLL_INTERVAL};
use super::fanout::Wait;
use super::plan::{self, Share};
use super::raid5::WriteBatcher;
use super::request::{Lane, MemberPart, RequestContext, RequestInFlight};
use super::volume_io::VolumeIo;
use crate::group::MemberHandle;
use crate::layout::Locate;

pub(crate) struct VolumeQueue {
    io: Arc<VolumeIo>,
    depth_max: usize,
    options: QueueOptions,
    lanes: Vec<Lane>,
    pushed: VecDeque<Request>,
    /// By slot; a part's token is its slot and its ordinal.
    slots: Vec<Option<RequestInFlight>>,
    free: Vec<usize>,
    slots_used: usize,
    /// What the next request goes by, unless that has changed; nothing while nothing is flying.
    context: Option<Arc<RequestContext>>,
    /// When requests were last submitted or collected: those of one call began or ended together.
    now: Instant,
    /// Lists of parts that are used again.
    lists: Vec<Vec<MemberPart>>,
    /// What is written to a RAID-5.
    batcher: WriteBatcher,
    done: Vec<Completion>,
    scratch: Vec<Completion>,
    /// Keeps the group open.
    _open: KeepOpen,
}

const PART_BITS: u32 = 16;

impl VolumeQueue {
    pub fn new(io: Arc<VolumeIo>, open: KeepOpen, options: &QueueOptions) -> Self {
        let depth_max = options.depth_max.clamp(1, 4096);
        Self {
            io,
            depth_max,
            options: QueueOptions { depth_max, ..options.clone() },
            lanes: Vec::new(),
            pushed: VecDeque::new(),
            slots: (0..depth_max).map(|_| None).collect(),
            free: (0..depth_max).rev().collect(),
            slots_used: 0,
            context: None,
            now: Instant::now(),
            lists: Vec::new(),
            batcher: WriteBatcher::default(),
            done: Vec::new(),
            scratch: Vec::new(),
            _open: open,
        }
    }

    fn lane_of(&mut self, handle: &Arc<MemberHandle>) -> usize {
        self.lanes.iter().position(|lane| Arc::ptr_eq(&lane.handle, handle)).unwrap_or_else(|| {
            self.lanes.push(Lane { handle: Arc::clone(handle), queue: None });
            self.lanes.len() - 1
        })
    }

    fn queue_of(&mut self, lane: usize) -> Result<&mut Box<dyn DeviceQueue>> {
        if self.lanes[lane].queue.is_none() {
            // Registered buffers belong to one member's queue: any will do, and one set is enough.
            let buffers = if self.queues().next().is_none() { self.options.buffers } else { 0 };
            let queue = self.lanes[lane]
                .handle
                .device
                .queue(&QueueOptions { buffers, ..self.options.clone() })?;
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
                let (epoch, handles) = (self.io.epochs.peek(), self.io.group_state.handles());
                let handle = epoch.members.iter().find_map(|member| handles[*member].as_ref())?;
                self.lane_of(handle)
            }
        };
        self.queue_of(lane).ok()
    }

    fn check(&self, epoch: &LayoutEpoch, request: &Request) -> Result<()> {
        let refuse = |kind, detail: &str| {
            Err(self.io.error(
                kind,
                operation(request.kind),
                Some(request.first.offset),
                detail.to_owned(),
            ))
        };
        let segments = || std::iter::once(&request.first).chain(&request.rest);
        match (&request.buf, request.kind) {
            (None, RequestKind::Flush) if request.first.len == 0 && request.rest.is_empty() => {
                self.io.check_latch()
            }
            (_, RequestKind::Flush) => {
                refuse(ErrorKind::Unsupported, "a flush takes neither buffer nor segments")
            }
            (None, _) => refuse(ErrorKind::Unsupported, "the request has no buffer"),
            (Some(buf), kind) => {
                segments().try_for_each(|segment| {
                    self.io.check(epoch, operation(kind), segment.offset, segment.len.into())
                })?;
                if segments().map(|segment| segment.len as usize).sum::<usize>() > buf.len() {
                    return refuse(
                        ErrorKind::OutOfRange,
                        "the segments hold more bytes than the buffer",
                    );
                }
                if kind == RequestKind::Write { self.io.check_latch() } else { Ok(()) }
            }
        }
    }

    /// Sends what has been pushed to be written to a RAID-5 out together.
    fn start_batches(&mut self) {
        let io = Arc::clone(&self.io);
        if !io.epochs.peek().has_parity() {
            return;
        }
        let epoch = io.epochs.get();
        let (writes, others): (VecDeque<Request>, _) =
            self.pushed.drain(..).partition(|request| request.kind == RequestKind::Write);
        self.pushed = others;
        for request in writes {
            match self.check(&epoch, &request) {
                Ok(()) => self.batcher.push(request),
                Err(error) => self.done.push(Completion {
                    token: request.token,
                    result: Err(error),
                    buf: request.buf,
                }),
            }
        }
        self.batcher.start(&io, &mut self.done);
    }

    /// Takes the writes to a RAID-5 a step further.
    fn poll_batches(&mut self, wait: Wait) {
        if self.batcher.count() > 0 {
            self.batcher.poll(&self.io, wait, &mut self.done);
        }
    }

    /// Reads what lies on a member that is gone with positioned calls, which know what to do about
    /// it.
    #[cold]
    fn read_now(&mut self, mut request: Request) {
        let segments: Vec<Segment> =
            std::iter::once(request.first).chain(request.rest.drain(..)).collect();
        let mut buf = request.buf.take();
        let meter = &self.io.meter;
        let bytes = segments.iter().map(|segment| u64::from(segment.len)).sum();
        let result = meter.time(RequestKind::Read, bytes, || {
            buf.as_mut()
                .map_or(Ok(()), |buf| self.read_segments(&self.io.epochs.get(), &segments, buf))
        });
        self.done.push(Completion { token: request.token, result, buf });
    }

    fn read_segments(
        &self,
        epoch: &LayoutEpoch,
        segments: &[Segment],
        buf: &mut AlignedBuf,
    ) -> Result<()> {
        let mut from = 0;
        segments.iter().try_for_each(|segment| {
            let mut bytes = AlignedBuf::zeroed(segment.len as usize);
            self.io.read_in(epoch, &mut bytes, segment.offset)?;
            buf[from..from + bytes.len()].copy_from_slice(&bytes);
            from += bytes.len();
            Ok(())
        })
    }

    /// Takes what a request goes by, once nothing that it writes is barred.
    fn context_for(&mut self, request: &Request) -> Arc<RequestContext> {
        loop {
            let versions = (self.io.epochs.version(), self.io.group_state.handles_version());
            if self.context.as_ref().is_none_or(|context| context.versions != versions) {
                // In this order: what comes between is seen next time.
                let (epoch, handles) = (self.io.epochs.peek(), self.io.group_state.handles());
                self.context = Some(Arc::new(RequestContext { epoch, handles, versions }));
            }
            let context = self.context.as_ref().expect("it was just taken");
            let mut writes = std::iter::once(&request.first)
                .chain(&request.rest)
                .filter(|_| request.kind == RequestKind::Write);
            if !context.epoch.shut
                && !writes.any(|segment| context.epoch.bars(segment.offset, segment.len.into()))
            {
                return Arc::clone(context);
            }
            // A wait for the end of an epoch must not wait for an idle queue.
            self.context = None;
            // What is under way here may be what is waited for. A queue that fails says so when it
            // is asked for completions.
            let _told_then = self.poll(false);
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn start(&mut self, request: Request) {
        let context = self.context_for(&request);
        if let Err(error) = self.check(&context.epoch, &request) {
            return self.done.push(Completion {
                token: request.token,
                result: Err(error),
                buf: request.buf,
            });
        }
        if request.kind == RequestKind::Write && context.epoch.has_parity() {
            // It became a RAID-5 only now.
            drop(context);
            self.context = None;
            self.batcher.push(request);
            return self.batcher.start(&Arc::clone(&self.io), &mut self.done);
        }
        let Some(request) = self.start_simple(&context, request) else { return };
        match self.prepare(&context, &request) {
            Ok(shares) => self.launch(context, request, shares),
            Err(_) if context.epoch.has_parity() && request.kind == RequestKind::Read => {
                drop(context);
                self.read_now(request);
            }
            Err(error) => self.done.push(Completion {
                token: request.token,
                result: Err(error),
                buf: request.buf,
            }),
        }
    }

    /// Hands a request on as it is that concerns one copy on one member and needs nothing else:
    /// nearly all that databases ask for. Gives any other back.
    #[inline]
    fn start_simple(
        &mut self,
        context: &Arc<RequestContext>,
        mut request: Request,
    ) -> Option<Request> {
        let Segment { offset, len } = request.first;
        if !request.rest.is_empty() || len == 0 || request.kind == RequestKind::Flush {
            return Some(request);
        }
        let run = context.epoch.locate(offset);
        let doubtful = context.epoch.redundancy.as_ref().is_some_and(|redundancy| {
            let (first, last) = redundancy.regions.span(offset, len.into());
            request.kind == RequestKind::Write
                || (first..=last).any(|region| redundancy.regions.is_unsynced(region))
        });
        if doubtful
            || run.len < len.into()
            || (request.kind == RequestKind::Write && run.copies().len() > 1)
        {
            return Some(request);
        }
        let chosen = match request.kind {
            RequestKind::Read => plan::choose(&context.handles, &run, self.io.copies_agree),
            _ => plan::handle_of(&context.handles, run.copies()[0].member)
                .filter(|handle| handle.is_active())
                .map(|handle| (handle, run.copies()[0].offset)),
        };
        let Some((handle, place)) = chosen else { return Some(request) };
        let lane = self.lane_of(handle);
        self.lanes[lane].handle.enter();
        let mut parts = self.lists.pop().unwrap_or_default();
        parts.push(MemberPart {
            lane,
            covers: 0,
            pieces: Vec::new(),
            end: place + u64::from(len),
            len: len.into(),
            error: None,
            ended: false,
        });
        let (token, kind, first, buf) =
            (request.token, request.kind, request.first, request.buf.take());
        let entry = RequestInFlight {
            token,
            start: self.now,
            kind,
            buf: None,
            first,
            rest: Vec::new(),
            parts,
            open: 1,
            context: Arc::clone(context),
        };
        let slot = self.occupy(entry);
        self.send(
            slot,
            0,
            Request {
                token: 0,
                kind,
                buf,
                first: Segment { offset: place, len },
                rest: Vec::new(),
            },
        );
        self.finish_if_over(slot);
        None
    }

    fn occupy(&mut self, entry: RequestInFlight) -> usize {
        let slot = self.free.pop().expect("no more are flying than there are slots");
        self.slots[slot] = Some(entry);
        self.slots_used += 1;
        self.io.meter.begin(1);
        slot
    }

    /// Enters the regions of a request and plans it.
    fn prepare(&mut self, context: &RequestContext, request: &Request) -> Result<Vec<Share>> {
        let (epoch, handles) = (&*context.epoch, &*context.handles);
        let segments: Vec<Segment> = std::iter::once(request.first)
            .chain(request.rest.iter().copied())
            .filter(|segment| segment.len > 0)
            .collect();
        let io = Arc::clone(&self.io);
        match request.kind {
            RequestKind::Flush => {
                let needy = epoch.members.iter().filter_map(|member| handles[*member].clone());
                let needy =
                    needy.filter(|handle| handle.takes_writes() && handle.needs_flush().is_some());
                return Ok(needy.map(|handle| Share { handle, pieces: Vec::new() }).collect());
            }
            RequestKind::Read => segments.iter().try_for_each(|segment| {
                io.resync_range(epoch, segment.offset, segment.len.into())
            })?,
            RequestKind::Write => {
                for (entered, segment) in segments.iter().enumerate() {
                    if let Err(error) = io.enter(epoch, segment.offset, segment.len.into()) {
                        leave(&io, epoch, segments[..entered].iter());
                        return Err(error);
                    }
                }
            }
        }
        // Members may have come while it waited to enter, and their regions may be copied by now: a
        // write that they missed would be missing for good.
        let entered_by = (request.kind == RequestKind::Write
            && io.group_state.handles_version() != context.versions.1)
            .then(|| io.group_state.handles());
        let handles = entered_by.as_deref().unwrap_or(handles);
        let (mut shares, mut from) = (Vec::new(), 0);
        for segment in &segments {
            let len = segment.len as usize;
            let planned = match request.kind {
                RequestKind::Read => plan::read(
                    epoch,
                    handles,
                    io.copies_agree,
                    segment.offset,
                    from,
                    len,
                    &mut shares,
                ),
                _ => plan::write(epoch, handles, segment.offset, from, len, &mut shares),
            };
            if let Err(address) = planned {
                if request.kind == RequestKind::Write {
                    leave(&io, epoch, segments.iter());
                }
                return Err(io.no_copy(operation(request.kind), address));
            }
            from += len;
        }
        Ok(shares)
    }

    /// Hands the parts of a request to the members.
    fn launch(&mut self, context: Arc<RequestContext>, mut request: Request, shares: Vec<Share>) {
        let (kind, last) = (request.kind, shares.len().saturating_sub(1));
        // Members of which each moves all of the buffer in one go: one has the buffer itself, and
        // of what is written the others get copies.
        let len = shares.iter().map(Share::len).max().unwrap_or(0);
        let whole = kind != RequestKind::Flush
            && shares.iter().all(|share| share.is_in_order() && share.len() == len)
            && (last == 0 || kind == RequestKind::Write);
        let (mut parts, mut outgoing) =
            (self.lists.pop().unwrap_or_default(), Vec::with_capacity(shares.len()));
        for (ordinal, share) in shares.into_iter().enumerate() {
            let own = whole && ordinal == last;
            let buf = match (&request.buf, kind) {
                (_, RequestKind::Flush) | (None, _) => None,
                (Some(_), _) if own => request.buf.take(),
                (Some(_), RequestKind::Read) => Some(self.io.buffers.take(share.len())),
                (Some(buf), RequestKind::Write) => Some(share.gather(buf, &self.io.buffers)),
            };
            outgoing.push((buf, share.segments()));
            let covers = if kind == RequestKind::Flush {
                share.handle.needs_flush().unwrap_or(0)
            } else {
                0
            };
            share.handle.enter();
            let end = share.pieces.last().map_or(0, |piece| piece.offset + piece.len as u64);
            let (len, lane) = (share.len() as u64, self.lane_of(&share.handle));
            parts.push(MemberPart {
                lane,
                covers,
                pieces: if own { Vec::new() } else { share.pieces },
                end,
                len,
                error: None,
                ended: false,
            });
        }
        let (token, start, open) = (request.token, self.now, parts.len());
        let (buf, first, rest) =
            (request.buf.take(), request.first, std::mem::take(&mut request.rest));
        let slot = self.occupy(RequestInFlight {
            token,
            start,
            kind,
            buf,
            first,
            rest,
            parts,
            open,
            context,
        });
        for (ordinal, (buf, segments)) in outgoing.into_iter().enumerate() {
            let first = segments.first().copied().unwrap_or(Segment { offset: 0, len: 0 });
            self.send(
                slot,
                ordinal,
                Request {
                    token: 0,
                    kind,
                    buf,
                    first,
                    rest: segments.get(1..).unwrap_or_default().to_vec(),
                },
            );
        }
        self.finish_if_over(slot);
    }

    fn send(&mut self, slot: usize, ordinal: usize, request: Request) {
        let token = (slot as u64) << PART_BITS | ordinal as u64;
        let lane = self.slots[slot].as_ref().expect("the slot was filled").parts[ordinal].lane;
        let refused = match self.queue_of(lane) {
            Ok(queue) => {
                queue.push(Request { token, ..request }).err().map(|request| (None, request.buf))
            }
            Err(error) => Some((Some(error), request.buf)),
        };
        if let Some((error, buf)) = refused {
            let full = || {
                self.io.error(
                    ErrorKind::Io,
                    Operation::Queue,
                    None,
                    format!("the queue of {} is full", self.lanes[lane].handle.name()),
                )
            };
            let result = Err(error.unwrap_or_else(full));
            self.part(Completion { token, result, buf });
        }
    }

    /// Takes the completion of a part.
    fn part(&mut self, completion: Completion) {
        let (slot, ordinal) = (
            (completion.token >> PART_BITS) as usize,
            completion.token as usize & ((1 << PART_BITS) - 1),
        );
        let Some(entry) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        // A completion that comes twice ends a part once.
        let Some(part) = entry.parts.get_mut(ordinal).filter(|part| !part.ended) else { return };
        let (ok, handle) = (completion.result.is_ok(), &self.lanes[part.lane].handle);
        let took = self.now.saturating_duration_since(entry.start);
        match entry.kind {
            RequestKind::Read => handle.end_read(took, part.end, part.len, ok),
            RequestKind::Write => handle.end_write(took, part.len, ok),
            RequestKind::Flush => handle.end_flush(took, part.covers, ok),
        }
        match (&mut entry.buf, completion.buf) {
            (_, None) => {}
            (buf, Some(whole)) if part.pieces.is_empty() => *buf = Some(whole),
            (buf, Some(own)) => {
                if let Some(buf) = buf
                    && ok
                    && entry.kind == RequestKind::Read
                {
                    plan::scatter(&part.pieces, &own, buf);
                }
                self.io.buffers.give(own);
            }
        }
        part.error = completion.result.err();
        part.ended = true;
        entry.open -= 1;
    }

    fn finish_if_over(&mut self, slot: usize) {
        if self.slots[slot].as_ref().is_none_or(|entry| entry.open > 0) {
            return;
        }
        let Some(mut entry) = self.slots[slot].take() else { return };
        self.slots_used -= 1;
        self.io.meter.end(1);
        self.free.push(slot);
        let result = self.finish(&mut entry);
        let bytes = entry.segments().map(|segment| u64::from(segment.len)).sum();
        self.io.meter.note(entry.kind, (entry.start, self.now), bytes, result.is_ok());
        entry.parts.clear();
        self.lists.push(entry.parts);
        self.done.push(Completion { token: entry.token, result, buf: entry.buf });
    }

    /// Settles what failed and lets go of the regions.
    fn finish(&self, entry: &mut RequestInFlight) -> Result<()> {
        let failed = |part: &mut MemberPart| {
            Some((Arc::clone(&self.lanes[part.lane].handle), part.error.take()?))
        };
        let failures: Vec<_> = entry.parts.iter_mut().filter_map(failed).collect();
        match entry.kind {
            RequestKind::Flush => self.io.fail_members_or_latch(failures),
            RequestKind::Write => {
                let result = self.io.fail_members(failures);
                // I-VQU-1: a request finishes once, and its regions were entered once.
                assert_eq!(entry.open, 0, "a write leaves its regions when all parts have ended");
                leave(&self.io, &entry.context.epoch, entry.segments());
                result
            }
            RequestKind::Read if failures.is_empty() => Ok(()),
            RequestKind::Read => self.read_again(entry, failures),
        }
    }

    /// Reads what failed with positioned calls, which know what to do about a bad copy.
    #[cold]
    fn read_again(
        &self,
        entry: &mut RequestInFlight,
        mut failures: Vec<(Arc<MemberHandle>, bedplate_block::Error)>,
    ) -> Result<()> {
        let first = failures.swap_remove(0).1;
        if entry.context.epoch.redundancy.is_none() && !entry.context.epoch.has_parity() {
            return Err(first);
        }
        let segments: Vec<Segment> = entry.segments().copied().collect();
        let Some(buf) = &mut entry.buf else { return Err(first) };
        self.read_segments(&entry.context.epoch, &segments, buf)
    }

    /// Collects what members completed; waits for at least one where `wait` says so and one is on
    /// its way.
    fn poll(&mut self, wait: bool) -> Result<()> {
        let before = self.done.len();
        let mut completions = std::mem::take(&mut self.scratch);
        let fullest = self.queues().map(|queue| queue.in_flight()).max().filter(|count| *count > 0);
        let mut failure = None;
        for queue in self.queues() {
            // Only one may be waited for, the one with the most to come; what the others have is
            // taken along.
            let min =
                usize::from(wait && completions.is_empty() && Some(queue.in_flight()) == fullest);
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
            if slot < self.slots.len() {
                self.finish_if_over(slot);
            }
        }
        self.scratch = completions;
        let alone = wait && fullest.is_none() && before == self.done.len();
        self.poll_batches(if alone { Wait::ForAll } else { Wait::No });
        if self.slots_used == 0 {
            self.context = None;
        }
        failure.map_or(Ok(()), Err)
    }

    /// Closes the queues of members that left, once nothing is on its way there.
    fn forget(&mut self) {
        if self.slots_used == 0 {
            self.lanes.retain(|lane| !lane.handle.is_failed());
        }
    }
}

fn leave<'a>(io: &VolumeIo, epoch: &LayoutEpoch, mut segments: impl Iterator<Item = &'a Segment>) {
    segments.by_ref().for_each(|segment| io.leave(epoch, segment.offset, segment.len.into()));
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
        self.pushed.len() + self.slots_used + self.batcher.count() + self.done.len()
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
        self.start_batches();
        while let Some(request) = self.pushed.pop_front() {
            self.start(request);
        }
        if self.slots_used == 0 {
            self.context = None;
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
        while self.batcher.count() > 0 {
            self.poll_batches(Wait::ForAll);
        }
        while self.slots_used > 0 {
            if self.poll(true).is_err() {
                // A queue that fails gives nothing back; its own drop waits, and the regions stay
                // dirty, which is safe.
                return;
            }
        }
    }
}
