//! How a request of a queue starts: checked, planned, and sent to the members.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, Completion, ErrorKind, Operation, Request, RequestKind, Result, Segment,
};

use super::super::epoch::{LayoutEpoch, POLL_INTERVAL};
use super::super::plan::{self, Share};
use super::super::request::{MemberPart, RequestContext, RequestInFlight};
use super::super::volume_io::VolumeIo;
use super::{PART_BITS, VolumeQueue, operation};
use crate::group::MemberHandle;
use crate::layout::Locate;

impl VolumeQueue {
    pub(super) fn check(&self, epoch: &LayoutEpoch, request: &Request) -> Result<()> {
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

    pub(super) fn start(&mut self, request: Request) {
        let context = self.context_for(&request);
        if let Err(error) = self.check(&context.epoch, &request) {
            return self.done.push(Completion::new(request.token, Err(error), request.buf));
        }
        if request.kind == RequestKind::Write && context.epoch.has_parity() {
            // It became a RAID-5 only now.
            drop(context);
            self.context = None;
            self.batcher.push(request);
            return self.batcher.start(&Arc::clone(&self.io), &mut self.done);
        }
        if request.kind == RequestKind::Read && self.io.chosen.any() {
            drop(context);
            return self.read_now(request);
        }
        let Some(request) = self.start_simple(&context, request) else { return };
        match self.prepare(&context, &request) {
            Ok(shares) => self.launch(context, request, shares),
            Err(_) if context.epoch.has_parity() && request.kind == RequestKind::Read => {
                drop(context);
                self.read_now(request);
            }
            Err(error) => {
                self.done.push(Completion::new(request.token, Err(error), request.buf));
            }
        }
    }

    /// Returns the member and the place on it that is all that a request concerns; `None` where
    /// there is more to it.
    #[inline]
    fn place_of_simple<'c>(
        &self,
        context: &'c RequestContext,
        request: &Request,
    ) -> Option<(&'c Arc<MemberHandle>, u64)> {
        let Segment { offset, len } = request.first;
        if !request.rest.is_empty() || len == 0 || request.kind == RequestKind::Flush {
            return None;
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
            return None;
        }
        match request.kind {
            RequestKind::Read => plan::choose(&context.handles, &run, self.io.copies_agree()),
            _ => plan::handle_of(&context.handles, run.copies()[0].member)
                .filter(|handle| handle.is_active())
                .map(|handle| (handle, run.copies()[0].offset)),
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
        let Some((handle, place)) = self.place_of_simple(context, &request) else {
            return Some(request);
        };
        let len = request.first.len;
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
            waited_ns: 0,
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
        debug_assert!(
            self.slots_used + self.free.len() == self.depth_max,
            "I-VQU-1: every slot is free or used: {} and {} of {}",
            self.free.len(),
            self.slots_used,
            self.depth_max
        );
        debug_assert_eq!(
            entry.open,
            entry.parts.len(),
            "I-VQU-1: no part of a request has ended before it begins"
        );
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
                    io.copies_agree(),
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
            outgoing.push((self.buffer_for(&share, &mut request, own), share.segments()));
            parts.push(self.part_of(share, kind, own));
        }
        debug_assert_eq!(parts.len(), outgoing.len(), "I-VQU-1: every part of a request is sent");
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
            waited_ns: 0,
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

    /// Returns the buffer with which a member gets its share: the request's own where the share is
    /// all of it.
    fn buffer_for(&self, share: &Share, request: &mut Request, own: bool) -> Option<AlignedBuf> {
        match (&request.buf, request.kind) {
            (_, RequestKind::Flush) | (None, _) => None,
            (Some(_), _) if own => request.buf.take(),
            (Some(_), RequestKind::Read) => Some(self.io.buffers.take(share.len())),
            (Some(buf), RequestKind::Write) => Some(share.gather(buf, &self.io.buffers)),
        }
    }

    /// Makes the part of a request that a member carries out, which counts as under way from here.
    fn part_of(&mut self, share: Share, kind: RequestKind, own: bool) -> MemberPart {
        debug_assert!(
            kind == RequestKind::Flush || share.len() > 0,
            "I-VQU-1: a part that moves bytes has some"
        );
        let covers =
            if kind == RequestKind::Flush { share.handle.needs_flush().unwrap_or(0) } else { 0 };
        share.handle.enter();
        MemberPart {
            lane: self.lane_of(&share.handle),
            covers,
            end: share.pieces.last().map_or(0, |piece| piece.offset + piece.len as u64),
            len: share.len() as u64,
            pieces: if own { Vec::new() } else { share.pieces },
            error: None,
            ended: false,
        }
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
            self.part(Completion::new(token, result, buf));
        }
    }
}

pub(super) fn leave<'a>(
    io: &VolumeIo,
    epoch: &LayoutEpoch,
    mut segments: impl Iterator<Item = &'a Segment>,
) {
    segments.by_ref().for_each(|segment| io.leave(epoch, segment.offset, segment.len.into()));
}
