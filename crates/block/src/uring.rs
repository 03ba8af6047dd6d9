//! The io_uring engine: one ring per queue, a registered file, registered buffers, one system call to submit and wait.
//!
//! ```text
//!   push ──► ready (operations) ──fill──► submission ring ──enter──► kernel ──► completion ring ──reap──► out
//!              ▲                                                                      │
//!              └──────────────── the rest of a short or interrupted transfer ─────────┘
//! ```
//! A request is one operation per segment. It lies in a slot, with its buffer, from `push` until its last operation is reaped:
//!
//! - I-URING-1: a slot is emptied only when none of its operations is in `ready`, in a ring or in the kernel. So a buffer outlives
//!   every access of the kernel to it.
//! - I-URING-2: no more operations are between submission and reaping than the completion ring holds, so it never overflows.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};

use crate::check::operation_of;
use crate::counters::tally;
use crate::file::{Core, from_errno, from_io};
use crate::inline::Positioned;
use crate::pool::BufferPool;
use crate::{AlignedBuf, Completion, DeviceCounters, DeviceQueue, Error, Operation, QueueOptions, Request, RequestKind, Result, Segment};

/// The registered file's place in the ring's table.
const FILE: types::Fixed = types::Fixed(0);

/// Says why io_uring cannot be used here, by setting up a small ring.
pub(crate) fn probe() -> std::result::Result<(), String> {
    match build_ring(2) {
        Ok(_) => Ok(()),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => "io_uring is forbidden here (by the sysctl kernel.io_uring_disabled, or a seccomp filter)".to_owned(),
            Some(libc::ENOSYS) => "this kernel, or a seccomp filter, offers no io_uring".to_owned(),
            _ => format!("io_uring cannot be set up: {error}"),
        }),
    }
}

/// Sets up a ring with what this kernel offers of the newer options.
///
/// Not `SINGLE_ISSUER` nor `DEFER_TASKRUN`: both tie a ring to the first thread that uses it, and a queue may move between threads.
fn build_ring(entries: u32) -> io::Result<IoUring> {
    let newest = IoUring::builder().setup_clamp().setup_submit_all().setup_coop_taskrun().setup_taskrun_flag().build(entries);
    match newest {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder().setup_clamp().build(entries),
        result => result,
    }
}

/// One operation of the ring: a segment, or the rest of one.
#[derive(Debug, Clone, Copy)]
struct Op {
    slot: u32,
    /// Which segment of the request; 0 for a flush.
    segment: u32,
    /// Where the segment's bytes start in the buffer.
    start: u32,
    /// How many of them are moved already.
    moved: u32,
}

/// A request between `push` and its completion.
#[derive(Debug)]
struct Slot {
    request: Request,
    /// Place of the buffer in the registered table.
    registered: Option<u16>,
    /// Operations not yet reaped with a final result.
    pending: u32,
    error: Option<Error>,
}

pub(crate) struct UringQueue {
    core: Arc<Core>,
    ring: IoUring,
    depth_max: usize,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    ready: VecDeque<Op>,
    /// Operations in the submission ring, the kernel or the completion ring.
    outstanding: usize,
    /// Operations whose result was short, by what they had moved; empty nearly always.
    partial: Vec<Op>,
    /// Requests whose shape was refused.
    refused: Vec<Completion>,
    buffers: BufferPool,
    /// Whether the kernel has the pool's buffers pinned.
    registered: bool,
}

impl UringQueue {
    pub fn new(core: Arc<Core>, options: &QueueOptions) -> Result<Self> {
        let failed = |error: io::Error| from_io(&core.name, Operation::Queue, None, &error);
        let depth_max = options.depth_max.clamp(1, 4096);
        let ring = build_ring(depth_max.next_power_of_two() as u32).map_err(failed)?;
        ring.submitter().register_files(&[core.file.as_raw_fd()]).map_err(failed)?;
        let mut buffers = BufferPool::new(options);
        let registered = register(&ring, &mut buffers, &core.name);
        let slots = std::iter::repeat_with(|| None).take(depth_max).collect();
        let free = (0..depth_max as u32).rev().collect();
        let ready = VecDeque::with_capacity(depth_max);
        Ok(Self { core, ring, depth_max, slots, free, ready, outstanding: 0, partial: Vec::new(), refused: Vec::new(), buffers, registered })
    }

    /// Puts a request in a slot and its operations in line.
    fn accept(&mut self, slot: u32, request: Request) {
        let mut start = 0;
        for (segment, part) in (0..).zip(segments(&request)) {
            self.ready.push_back(Op { slot, segment, start, moved: 0 });
            start += part.len;
        }
        let registered = request.buf.as_ref().filter(|_| self.registered).and_then(|buf| self.buffers.index_of(buf));
        let pending = 1 + request.rest.len() as u32;
        self.slots[slot as usize] = Some(Slot { request, registered, pending, error: None });
    }

    /// Moves operations into the submission ring, as many as it and the completion ring have room for.
    fn fill(&mut self) {
        let (submitter_room, cq_entries) = (self.ring.params().sq_entries() as usize, self.ring.params().cq_entries() as usize);
        if self.ready.is_empty() {
            return;
        }
        let mut submission = self.ring.submission();
        let room = (submitter_room - submission.len()).min(cq_entries - self.outstanding);
        for op in self.ready.drain(..room.min(self.ready.len())) {
            let slot = self.slots[op.slot as usize].as_ref().expect("I-URING-1: an operation in line has its slot");
            let entry = entry(slot, op);
            // SAFETY: the entry points into the slot's buffer, which stays where it is, and unused by anybody else, until the
            // operation is reaped (I-URING-1); the file stays registered as long as the ring lives.
            unsafe { submission.push(&entry) }.expect("the room was counted");
            self.outstanding += 1;
        }
    }

    /// Enters the kernel to submit what is in the ring and to wait for `min` completions.
    fn enter(&mut self, min: usize) -> Result<()> {
        loop {
            match self.ring.submit_and_wait(min) {
                Ok(_) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The kernel is short of memory, or wants completions taken first: both are for the caller's loop.
                    Some(libc::EAGAIN | libc::EBUSY) => {
                        std::thread::yield_now();
                        return Ok(());
                    }
                    _ => return Err(from_io(&self.core.name, Operation::Queue, None, &error)),
                },
            }
        }
    }

    /// Takes what is in the completion ring; returns how many requests came to their end.
    fn reap(&mut self, out: &mut Vec<Completion>) -> usize {
        let mut batch = DeviceCounters::default();
        let before = out.len();
        // The ring is borrowed while it is read, so its entries are taken in small lots.
        let mut lot: [std::mem::MaybeUninit<cqueue::Entry>; 32] = [const { std::mem::MaybeUninit::uninit() }; 32];
        loop {
            let entries = self.ring.completion().fill(&mut lot);
            if entries.is_empty() {
                break;
            }
            self.outstanding -= entries.len();
            for entry in entries.iter() {
                if let Some(completion) = finish(&self.core, &mut self.slots, &mut self.partial, &mut self.ready, &mut batch, entry) {
                    self.free.push(completion.0);
                    out.push(completion.1);
                }
            }
        }
        self.core.counters.add(&batch);
        out.len() - before
    }

    /// Waits until the kernel is done with every operation it has, without submitting more.
    fn drain(&mut self) -> io::Result<()> {
        let mut out = Vec::new();
        loop {
            self.reap(&mut out);
            let in_kernel = self.outstanding - self.ring.submission().len();
            if in_kernel == 0 {
                return Ok(());
            }
            // SAFETY: no argument is passed, and waiting for completions touches no memory but the rings.
            match unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 1, EnterFlags::GETEVENTS.bits(), None) } {
                Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
                _ => {}
            }
        }
    }
}

fn segments(request: &Request) -> impl Iterator<Item = &Segment> {
    std::iter::once(&request.first).chain(&request.rest)
}

/// Pins the pool's buffers in the kernel. A refusal (mostly the limit on locked memory) costs speed and nothing else.
fn register(ring: &IoUring, buffers: &mut BufferPool, name: &str) -> bool {
    let table: Vec<libc::iovec> = buffers.in_slot_order().map(|buf| libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() }).collect();
    if table.is_empty() || table[0].iov_len == 0 {
        return false;
    }
    // SAFETY: the buffers are valid now; the kernel pins their pages, and an operation names a registered buffer only while a slot
    // owns it. One that is dropped meanwhile is never named again.
    let registered = unsafe { ring.submitter().register_buffers(&table) };
    if let Err(error) = &registered {
        tracing::warn!(device = name, %error, "the queue's buffers could not be registered (see RLIMIT_MEMLOCK); they work unregistered");
    }
    registered.is_ok()
}

/// Builds the ring's entry for an operation.
fn entry(slot: &Slot, op: Op) -> squeue::Entry {
    let user_data = u64::from(op.slot) | u64::from(op.segment) << 32;
    let Some(buf) = &slot.request.buf else {
        return opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build().user_data(user_data);
    };
    let segment = if op.segment == 0 { slot.request.first } else { slot.request.rest[op.segment as usize - 1] };
    let (offset, len) = (segment.offset + u64::from(op.moved), segment.len - op.moved);
    let at = buf.address(op.start as usize + op.moved as usize);
    let entry = match (slot.request.kind, slot.registered) {
        (RequestKind::Read, Some(index)) => opcode::ReadFixed::new(FILE, at, len, index).offset(offset).build(),
        (RequestKind::Read, None) => opcode::Read::new(FILE, at, len).offset(offset).build(),
        (_, Some(index)) => opcode::WriteFixed::new(FILE, at, len, index).offset(offset).build(),
        (_, None) => opcode::Write::new(FILE, at, len).offset(offset).build(),
    };
    entry.user_data(user_data)
}

/// Takes one completion entry: the end of a request, the end of one of its operations, or a transfer to go on with.
fn finish(
    core: &Core,
    slots: &mut [Option<Slot>],
    partial: &mut Vec<Op>,
    ready: &mut VecDeque<Op>,
    batch: &mut DeviceCounters,
    entry: &cqueue::Entry,
) -> Option<(u32, Completion)> {
    let (index, segment) = (entry.user_data() as u32, (entry.user_data() >> 32) as u32);
    let place = &mut slots[index as usize];
    let slot = place.as_mut().expect("I-URING-1: a completion has its slot");
    let part = if segment == 0 { slot.request.first } else { slot.request.rest[segment as usize - 1] };
    let earlier = take_partial(partial, index, segment);
    let moved = earlier.map_or(0, |op| op.moved);
    let operation = operation_of(slot.request.kind);
    let result = outcome(core, operation, &part, moved, entry.result());
    if let Ok(count) = result
        && moved + count < part.len
    {
        let start = segments(&slot.request).take(segment as usize).map(|part| part.len).sum();
        let op = Op { slot: index, segment, start, moved: moved + count };
        partial.push(op);
        ready.push_back(op);
        return None;
    }
    tally(batch, operation, u64::from(part.len), result.is_ok());
    slot.error = slot.error.take().or(result.err());
    slot.pending -= 1;
    if slot.pending > 0 {
        return None;
    }
    let slot = place.take()?;
    let result = slot.error.map_or(Ok(()), Err);
    Some((index, Completion { token: slot.request.token, result, buf: slot.request.buf }))
}

fn take_partial(partial: &mut Vec<Op>, slot: u32, segment: u32) -> Option<Op> {
    if partial.is_empty() {
        return None;
    }
    let at = partial.iter().position(|op| op.slot == slot && op.segment == segment)?;
    Some(partial.swap_remove(at))
}

/// Turns the kernel's result into bytes moved; an interrupted transfer moved none and goes on.
fn outcome(core: &Core, operation: Operation, part: &Segment, moved: u32, result: i32) -> Result<u32> {
    let offset = (operation != Operation::Flush).then_some(part.offset + u64::from(moved));
    match result {
        0 if part.len > moved => Err(core.ended_early(operation, part.offset + u64::from(moved))),
        count if count >= 0 => Ok(count as u32),
        error if -error == libc::EINTR || -error == libc::EAGAIN => {
            if operation == Operation::Flush {
                Err(from_errno(&core.name, operation, offset, -error))
            } else {
                Ok(0)
            }
        }
        error => Err(from_errno(&core.name, operation, offset, -error)),
    }
}

impl DeviceQueue for UringQueue {
    fn depth_max(&self) -> usize {
        self.depth_max
    }

    fn in_flight(&self) -> usize {
        self.depth_max - self.free.len() + self.refused.len()
    }

    fn push(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.depth_max {
            return Err(request);
        }
        match self.core.check(&request) {
            Ok(()) => {
                let slot = self.free.pop().expect("there is a slot for every request that may be in flight");
                self.accept(slot, request);
            }
            Err(error) => self.refused.push(Completion { token: request.token, result: Err(error), buf: request.buf }),
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        self.fill();
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        self.enter(0)
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Completion>) -> Result<usize> {
        let min = min.min(self.in_flight());
        let mut count = self.refused.len();
        out.append(&mut self.refused);
        // The kernel's sign that completions wait for an `enter`. Followed once: a thread that submitted and is gone leaves it up.
        let mut called = self.ring.submission().taskrun();
        loop {
            count += self.reap(out);
            self.fill();
            if !called && count >= min && self.ring.submission().is_empty() {
                return Ok(count);
            }
            called = false;
            // Operations, not requests: a request of several segments may need several rounds.
            let wanted = min.saturating_sub(count).min(self.outstanding);
            self.enter(wanted)?;
        }
    }

    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.buffers.take()
    }

    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.buffers.give(buf);
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        if let Err(error) = self.drain() {
            // The kernel may still write to the buffers: better lost than freed under it.
            tracing::error!(device = self.core.name, %error, "the queue's last operations cannot be waited for; their memory is given up");
            std::mem::forget(std::mem::take(&mut self.slots));
            return;
        }
        // The kernel takes a closed ring apart later, in the background. The file must go now, or the claim on the device would linger.
        if let Err(error) = self.ring.submitter().unregister_files() {
            tracing::warn!(device = self.core.name, %error, "the device may stay claimed for a moment");
        }
    }
}
