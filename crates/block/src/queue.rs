//! One thread's submission and completion pair: the list interface of a device.

use std::os::fd::BorrowedFd;

use crate::{AlignedBuf, Result};

/// Sets up a queue.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// How many requests may be in flight at once; 1 to 4096.
    pub depth_max: usize,
    /// How many registered buffers to set up (0: none), taken with [`DeviceQueue::take_buffer`].
    pub buffers: usize,
    /// Size in bytes of each registered buffer.
    pub buffer_bytes: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { depth_max: 128, buffers: 0, buffer_bytes: 0 }
    }
}

/// A run of device bytes that takes or gives the next `len` bytes of a request's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Device offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Device to buffer.
    Read,
    /// Buffer to device.
    Write,
    /// Durability of every write that completed before the submission; has no buffer and no
    /// segment.
    Flush,
}

/// One operation of a list. It owns its buffer until its completion hands the buffer back.
#[derive(Debug)]
pub struct Request {
    /// Comes back in the completion; chosen by the caller, need not be unique.
    pub token: u64,
    /// What to do.
    pub kind: RequestKind,
    /// The memory; `None` only for `Flush`.
    pub buf: Option<AlignedBuf>,
    /// The first segment; its bytes start at the buffer's byte 0. `len` 0 for `Flush`.
    pub first: Segment,
    /// Further segments, each continuing in the buffer where the one before ended. Empty (no
    /// allocation) in the common case.
    pub rest: Vec<Segment>,
}

/// The end of one request.
#[derive(Debug)]
pub struct Completion {
    /// The request's token.
    pub token: u64,
    /// Success, or what failed.
    pub result: Result<()>,
    /// The request's buffer.
    pub buf: Option<AlignedBuf>,
    /// How long it waited for a thread to carry it out, in nanoseconds: 0 where one was free, and
    /// of engines that have none.
    pub waited_ns: u64,
}

impl Completion {
    /// Makes the end of a request that waited for no thread.
    #[inline]
    #[must_use]
    pub fn new(token: u64, result: Result<()>, buf: Option<AlignedBuf>) -> Self {
        Self { token, result, buf, waited_ns: 0 }
    }
}

/// One thread's queue to one device. Requests in flight complete in any order.
///
/// Dropping a queue waits for what is in flight.
pub trait DeviceQueue: Send {
    /// Returns how many requests may be in flight.
    fn depth_max(&self) -> usize;
    /// Returns how many requests were pushed and not yet handed back.
    fn in_flight(&self) -> usize;
    /// Adds a request to the list; nothing is submitted before [`submit`](Self::submit) or
    /// [`complete`](Self::complete).
    ///
    /// # Errors
    /// Gives the request back when the queue is full.
    fn push(&mut self, request: Request) -> std::result::Result<(), Request>;
    /// Submits everything that was pushed, with one system call where the engine allows it.
    ///
    /// # Errors
    /// `Io` when the system refuses the submission; the requests stay queued.
    fn submit(&mut self) -> Result<()>;
    /// Submits what was pushed, waits until at least `min` requests are complete (0: does not wait)
    /// and appends the completions to `out`. Returns how many were appended.
    ///
    /// # Errors
    /// `Io` when waiting fails.
    fn complete(&mut self, min: usize, out: &mut Vec<Completion>) -> Result<usize>;
    /// Returns what becomes readable when requests complete, for a thread that waits for other
    /// things beside them; `None` where only [`complete`](Self::complete) can wait.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Takes a registered buffer; `None` when none are left. A registered buffer used with this
    /// queue saves the kernel the pinning of pages.
    fn take_buffer(&mut self) -> Option<AlignedBuf>;
    /// Gives a registered buffer back for the next [`take_buffer`](Self::take_buffer).
    fn give_buffer(&mut self, buf: AlignedBuf);
}
