//! The io_uring engine: one ring per queue, a registered file, registered buffers, one system call
//! to submit and wait.
//!
//! ```text
//!   push ──► submission ring ──enter──► kernel ──► completion ring ──reap──► out
//!     │           ▲                                       │
//!     └─► waiting ┘ (the ring is full)                    │
//!           ▲                                             │
//!           └────── the rest of a short transfer ─────────┘
//! ```
//! A request is one operation per segment. Its parts lie in a slot from `push` until its last
//! operation is reaped:
//!
//! - I-URING-1: a slot is freed, and its buffer handed back, only when none of its operations is
//!   waiting, in a ring or in the kernel. So a buffer outlives every access of the kernel to it.
//! - I-URING-2: no more operations are between submission and reaping than the completion ring
//!   holds, so it never overflows.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::{EnterFlags, IoUring, opcode, squeue, types};

use crate::check::operation_of;
use crate::counters::tally;
use crate::descriptor::{Core, RWF_ATOMIC, from_io};
use crate::inline::Positioned;
use crate::pool::BufferPool;
use crate::{
    AlignedBuf, Completion, DeviceCounters, DeviceQueue, Error, Operation, QueueOptions, Request,
    RequestKind, Result, Segment,
};

/// The registered file's place in the ring's table.
const FILE: types::Fixed = types::Fixed(0);

/// Says why io_uring cannot be used here, by setting up a small ring.
pub(crate) fn probe() -> std::result::Result<(), String> {
    match build_ring(2) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.raw_os_error().map_or_else(|| error.to_string(), refusal)),
    }
}

/// Says whether an error means that io_uring is forbidden, rather than that something ran out.
pub(crate) fn is_refusal(errno: i32) -> bool {
    matches!(errno, libc::EPERM | libc::EACCES | libc::ENOSYS)
}

/// Puts an error of setting up a ring into words.
pub(crate) fn refusal(errno: i32) -> String {
    match errno {
        libc::EPERM | libc::EACCES => "io_uring is forbidden here (by the sysctl \
                                       kernel.io_uring_disabled, or a seccomp filter)"
            .to_owned(),
        libc::ENOSYS => "this kernel, or a seccomp filter, offers no io_uring".to_owned(),
        _ => format!("io_uring cannot be set up: {}", io::Error::from_raw_os_error(errno)),
    }
}

/// Sets up a ring with what this kernel offers of the newer options.
///
/// Not `SINGLE_ISSUER` nor `DEFER_TASKRUN`: both tie a ring to the first thread that uses it, and a
/// queue may move between threads with requests in flight. Measured on a loop device over memory,
/// at depths 1, 32 and 128, they gained nothing.
fn build_ring(entries: u32) -> io::Result<IoUring> {
    let newest = IoUring::builder()
        .setup_clamp()
        .setup_submit_all()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(entries);
    match newest {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().setup_clamp().build(entries)
        }
        result => result,
    }
}

/// One operation of the ring: a segment, or the rest of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Op {
    slot: u32,
    /// Which segment of the request; 0 for a flush.
    segment: u32,
    /// Where the segment's bytes start in the buffer.
    start: u32,
    /// How many of them are moved already.
    moved: u32,
}

/// A request between `push` and its completion, or an empty place for one. Filled and emptied field
/// by field, because to move a request whole costs more than all else that is done for it here.
#[derive(Debug)]
struct Slot {
    token: u64,
    kind: RequestKind,
    buf: Option<AlignedBuf>,
    first: Segment,
    rest: Vec<Segment>,
    /// Place of the buffer in the registered table.
    registered: Option<u16>,
    /// Operations not yet reaped with a final result; 0: the slot is free.
    pending: u32,
    error: Option<Error>,
}

impl Slot {
    fn empty() -> Self {
        let first = Segment { offset: 0, len: 0 };
        Self {
            token: 0,
            kind: RequestKind::Flush,
            buf: None,
            first,
            rest: Vec::new(),
            registered: None,
            pending: 0,
            error: None,
        }
    }

    #[inline]
    fn segment(&self, segment: u32) -> Segment {
        if segment == 0 { self.first } else { self.rest[segment as usize - 1] }
    }

    /// Returns where a segment's bytes start in the buffer.
    fn start_of(&self, segment: u32) -> u32 {
        (0..segment).map(|earlier| self.segment(earlier).len).sum()
    }

    /// Builds the ring's entry for an operation.
    #[inline]
    fn entry(&self, core: &Core, op: Op) -> squeue::Entry {
        let user_data = u64::from(op.slot) | u64::from(op.segment) << 32;
        let Some(buf) = &self.buf else {
            return opcode::Fsync::new(FILE)
                .flags(types::FsyncFlags::DATASYNC)
                .build()
                .user_data(user_data);
        };
        let segment = self.segment(op.segment);
        let (offset, len) = (segment.offset + u64::from(op.moved), segment.len - op.moved);
        let at = buf.address(op.start as usize + op.moved as usize);
        let untorn = self.kind == RequestKind::Write && core.is_untorn(offset, u64::from(len));
        let entry = match (self.kind, self.registered) {
            (RequestKind::Read, Some(index)) => {
                opcode::ReadFixed::new(FILE, at, len, index).offset(offset).build()
            }
            (RequestKind::Read, None) => opcode::Read::new(FILE, at, len).offset(offset).build(),
            // The kernel takes untorn writes from plain memory only.
            _ if untorn => {
                opcode::Write::new(FILE, at, len).offset(offset).rw_flags(RWF_ATOMIC).build()
            }
            (_, Some(index)) => {
                opcode::WriteFixed::new(FILE, at, len, index).offset(offset).build()
            }
            (_, None) => opcode::Write::new(FILE, at, len).offset(offset).build(),
        };
        entry.user_data(user_data)
    }

    /// Empties the slot.
    #[inline]
    fn complete(&mut self, result: Result<()>) -> Completion {
        if !self.rest.is_empty() {
            self.rest = Vec::new();
        }
        Completion::new(self.token, result, self.buf.take())
    }
}

/// The requests of a queue, and what the ring had no room for yet.
#[derive(Debug)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    waiting: VecDeque<Op>,
    /// Operations whose transfer was short, as they went on; empty nearly always.
    partial: Vec<Op>,
}

impl Table {
    fn new(depth_max: usize) -> Self {
        let slots = std::iter::repeat_with(Slot::empty).take(depth_max).collect();
        Self {
            slots,
            free: (0..depth_max as u32).rev().collect(),
            waiting: VecDeque::new(),
            partial: Vec::new(),
        }
    }

    /// Puts a request in a free slot.
    #[inline]
    fn accept(&mut self, request: Request, registered: Option<u16>) -> u32 {
        let index =
            self.free.pop().expect("there is a slot for every request that may be in flight");
        let slot = &mut self.slots[index as usize];
        slot.pending = 1 + request.rest.len() as u32;
        slot.token = request.token;
        slot.kind = request.kind;
        slot.first = request.first;
        slot.registered = registered;
        slot.buf = request.buf;
        slot.rest = request.rest;
        index
    }

    /// Takes the kernel's result of one operation; returns the completion when it was its request's
    /// last.
    #[inline]
    fn finish(
        &mut self,
        core: &Core,
        batch: &mut DeviceCounters,
        user_data: u64,
        result: i32,
    ) -> Option<Completion> {
        let (index, segment) = (user_data as u32, (user_data >> 32) as u32);
        let slot = &mut self.slots[index as usize];
        assert!(slot.pending > 0, "I-URING-1: a completion has its slot");
        // A flush moves nothing and goes the other way.
        if slot.pending == 1
            && slot.rest.is_empty()
            && result > 0
            && result == slot.first.len as i32
            && self.partial.is_empty()
        {
            tally(batch, operation_of(slot.kind), u64::from(slot.first.len), true);
            slot.pending = 0;
            self.free.push(index);
            return Some(slot.complete(Ok(())));
        }
        self.finish_any(core, batch, index, segment, result)
    }

    /// What `finish` does for requests of several segments, for transfers that were short, and for
    /// failures.
    #[inline(never)]
    fn finish_any(
        &mut self,
        core: &Core,
        batch: &mut DeviceCounters,
        index: u32,
        segment: u32,
        result: i32,
    ) -> Option<Completion> {
        let slot = &mut self.slots[index as usize];
        let part = slot.segment(segment);
        let place = self.partial.iter().position(|op| op.slot == index && op.segment == segment);
        let moved = place.map_or(0, |place| self.partial.swap_remove(place).moved);
        let operation = operation_of(slot.kind);
        let result = outcome(core, operation, part, moved, result);
        if let Ok(count) = result
            && moved + count < part.len
        {
            let op =
                Op { slot: index, segment, start: slot.start_of(segment), moved: moved + count };
            self.partial.push(op);
            self.waiting.push_back(op);
            return None;
        }
        tally(batch, operation, u64::from(part.len), result.is_ok());
        slot.error = slot.error.take().or(result.err());
        slot.pending -= 1;
        if slot.pending > 0 {
            return None;
        }
        self.free.push(index);
        let result = slot.error.take().map_or(Ok(()), Err);
        Some(slot.complete(result))
    }
}

/// Turns the kernel's result into bytes moved; a transfer that was interrupted moved none and goes
/// on.
fn outcome(
    core: &Core,
    operation: Operation,
    part: Segment,
    moved: u32,
    result: i32,
) -> Result<u32> {
    let offset = part.offset + u64::from(moved);
    match result {
        0 if operation == Operation::Flush => core.require_whole().map(|()| 0),
        0 if part.len > moved => Err(core.ended_early(operation, offset)),
        count if count >= 0 => Ok(count as u32),
        // A flush is never repeated: the kernel has dropped what it held.
        error if matches!(-error, libc::EINTR | libc::EAGAIN) && operation != Operation::Flush => {
            Ok(0)
        }
        error => {
            Err(core.explain(operation, (operation != Operation::Flush).then_some(offset), -error))
        }
    }
}

pub(crate) struct UringQueue {
    core: Arc<Core>,
    ring: IoUring,
    depth_max: usize,
    table: Table,
    /// Operations in the submission ring, the kernel or the completion ring.
    outstanding: usize,
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
        Ok(Self {
            core,
            ring,
            depth_max,
            table: Table::new(depth_max),
            outstanding: 0,
            refused: Vec::new(),
            buffers,
            registered,
        })
    }

    /// Puts an operation into the submission ring if it has room, and the completion ring too
    /// (I-URING-2).
    #[inline]
    fn put(&mut self, op: Op) -> bool {
        if self.outstanding >= self.ring.params().cq_entries() as usize {
            return false;
        }
        let entry = self.table.slots[op.slot as usize].entry(&self.core, op);
        // SAFETY: the entry points into the slot's buffer, which stays where it is, and unused by
        // anything else, until the operation is reaped (I-URING-1); the file stays registered as
        // long as the ring lives.
        let put = unsafe { self.ring.submission().push(&entry) }.is_ok();
        self.outstanding += usize::from(put);
        put
    }

    /// Puts what waits for room into the submission ring.
    #[inline]
    fn fill(&mut self) {
        while let Some(op) = self.table.waiting.front().copied()
            && self.put(op)
        {
            self.table.waiting.pop_front();
        }
    }

    /// Enters the kernel to submit what is in the ring and to wait for `min` completions.
    fn enter(&mut self, min: usize) -> Result<()> {
        loop {
            match self.ring.submit_and_wait(min) {
                Ok(_) => return Ok(()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The kernel is short of memory, or wants completions taken first: both are for
                    // the caller's loop.
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
        let completion = self.ring.completion();
        assert_eq!(
            completion.overflow(),
            0,
            "I-URING-2: the completion ring has room for all that is outstanding"
        );
        for entry in completion {
            self.outstanding -= 1;
            out.extend(self.table.finish(
                &self.core,
                &mut batch,
                entry.user_data(),
                entry.result(),
            ));
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
            // SAFETY: no argument is passed, and waiting for completions touches no memory but the
            // rings.
            match unsafe {
                self.ring.submitter().enter::<libc::sigset_t>(
                    0,
                    1,
                    EnterFlags::GETEVENTS.bits(),
                    None,
                )
            } {
                Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
                _ => {}
            }
        }
    }

    /// Puts the operations of a request of several segments in line.
    #[inline(never)]
    fn put_segments(&mut self, slot: u32) {
        let segments = self.table.slots[slot as usize].pending;
        let mut start = 0;
        for segment in 0..segments {
            self.table.waiting.push_back(Op { slot, segment, start, moved: 0 });
            start += self.table.slots[slot as usize].segment(segment).len;
        }
        self.fill();
    }
}

/// Pins the pool's buffers in the kernel. A refusal (mostly the limit on locked memory) costs speed
/// and nothing else.
fn register(ring: &IoUring, buffers: &mut BufferPool, name: &str) -> bool {
    let table: Vec<libc::iovec> = buffers
        .in_slot_order()
        .map(|buf| libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() })
        .collect();
    if table.is_empty() || table[0].iov_len == 0 {
        return false;
    }
    // SAFETY: the buffers are valid now; the kernel pins their pages, and an operation names a
    // registered buffer only while a slot owns it. One that is dropped meanwhile is never named
    // again.
    let registered = unsafe { ring.submitter().register_buffers(&table) };
    if let Err(error) = &registered {
        tracing::warn!(device = name, %error,
            "the queue's buffers could not be registered (see RLIMIT_MEMLOCK); they work \
             unregistered");
    }
    registered.is_ok()
}

impl DeviceQueue for UringQueue {
    fn depth_max(&self) -> usize {
        self.depth_max
    }

    #[inline]
    fn in_flight(&self) -> usize {
        self.depth_max - self.table.free.len() + self.refused.len()
    }

    fn push(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.depth_max {
            return Err(request);
        }
        if let Err(error) = self.core.check(&request) {
            self.refused.push(Completion::new(request.token, Err(error), request.buf));
            return Ok(());
        }
        let registered = if self.registered {
            request.buf.as_ref().and_then(|buf| self.buffers.index_of(buf))
        } else {
            None
        };
        let single = request.rest.is_empty();
        let slot = self.table.accept(request, registered);
        let op = Op { slot, segment: 0, start: 0, moved: 0 };
        if !single {
            self.put_segments(slot);
        } else if !self.table.waiting.is_empty() || !self.put(op) {
            self.table.waiting.push_back(op);
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
        // The kernel's sign that completions wait for an `enter`. Followed once: a thread that
        // submitted and is gone leaves it up.
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

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring's descriptor is open as long as the ring, which the answer borrows.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) })
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
            tracing::error!(device = self.core.name, %error,
                "the queue's last operations cannot be waited for; their memory is given up");
            std::mem::forget(std::mem::take(&mut self.table.slots));
            return;
        }
        // The kernel takes a closed ring apart later, in the background. The file must go now, or
        // the claim on the device would linger.
        if let Err(error) = self.ring.submitter().unregister_files() {
            tracing::warn!(device = self.core.name, %error,
                "the device may stay claimed for a moment");
        }
    }
}
