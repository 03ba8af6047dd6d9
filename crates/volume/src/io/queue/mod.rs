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

mod start;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bedplate_block::{
    AlignedBuf, Completion, DeviceQueue, Operation, QueueOptions, Request, RequestKind, Result,
    Segment,
};

use super::KeepOpen;
use super::epoch::LayoutEpoch;
use super::fanout::Wait;
use super::plan::{self};
use super::raid5::WriteBatcher;
use super::request::{Lane, MemberPart, RequestContext, RequestInFlight};
use super::volume_io::VolumeIo;
use crate::group::MemberHandle;
use start::leave;

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
const _: () =
    assert!(4096 < 1 << PART_BITS, "a request of the deepest queue has a number of its own");

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
                Err(error) => {
                    self.done.push(Completion::new(request.token, Err(error), request.buf));
                }
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
        self.done.push(Completion::new(request.token, result, buf));
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

    /// Takes the completion of a part.
    fn part(&mut self, completion: Completion) {
        let (slot, ordinal) = (
            (completion.token >> PART_BITS) as usize,
            completion.token as usize & ((1 << PART_BITS) - 1),
        );
        let Some(entry) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        // A completion that comes twice ends a part once.
        let Some(part) = entry.parts.get_mut(ordinal).filter(|part| !part.ended) else { return };
        let ok = completion.result.is_ok();
        let mut result = completion.result;
        // Parts go side by side.
        entry.waited_ns = entry.waited_ns.max(completion.waited_ns);
        let handle = &self.lanes[part.lane].handle;
        let took = self.now.saturating_duration_since(entry.start);
        match entry.kind {
            RequestKind::Read => handle.end_read(took, part.end, part.len, ok),
            RequestKind::Write => handle.end_write(took, part.len, ok),
            RequestKind::Flush => result = handle.end_flush(took, part.covers, result),
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
        part.error = result.err();
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
        let (token, buf, waited_ns) = (entry.token, entry.buf, entry.waited_ns);
        self.done.push(Completion { token, result, buf, waited_ns });
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
                // A request finishes once, and its regions were entered once.
                assert_eq!(
                    entry.open, 0,
                    "I-VQU-1: a write leaves its regions when all parts have ended"
                );
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
