//! The list interface: one thread's queue over many files.

mod state;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use bedplate_block::{AlignedBuf, QueueOptions};
use parking_lot::Mutex;

use crate::engine::HelpedQueue;
use crate::{File, FileSystem, Result};
use state::{Kind, Op, QueueState};

/// The end of one queued operation.
#[derive(Debug)]
pub struct QueueCompletion {
    /// The token given at submission.
    pub token: u64,
    /// Bytes moved, or what failed.
    pub result: Result<usize>,
    /// The buffer handed in.
    pub buf: Option<AlignedBuf>,
}

/// One thread's submission and completion pair (`lio_listio` as it should have been). A batch may
/// span files of one file system.
///
/// What cannot go straight to the device (unaligned, unwritten, cached …) is carried out before
/// `submit` returns and completes like the rest.
///
/// Operations in flight hold their files' locks as the I/O mode says. Completions need not be
/// fetched for others to get on: a thread that waits for such a lock completes the device's part
/// itself, and the results wait here.
pub struct Queue {
    /// Also reached by threads that wait for a lock that an operation of this queue holds.
    engine: Arc<Mutex<QueueState>>,
    /// Queued and not yet submitted.
    waiting: Vec<Op>,
    depth_max: usize,
    /// Operations queued and not yet handed out.
    in_flight: usize,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({} of {} in flight)", self.in_flight, self.depth_max)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut engine = self.engine.lock();
        if let Err(error) = engine.drain() {
            tracing::error!("a queue was dropped and its I/O cannot be waited for: {error}");
        }
        let closing = engine.take_closing();
        drop(engine);
        drop(closing);
    }
}

impl Queue {
    /// Opens a queue.
    ///
    /// # Errors
    /// `Io` when the system refuses the resources.
    pub fn new(fs: &FileSystem, options: &QueueOptions) -> Result<Self> {
        let fs = fs.state();
        let device = fs.device_queue(options)?;
        let depth_max = device.depth_max();
        let engine = Arc::new(Mutex::new(QueueState::new(Arc::clone(fs), device)));
        let helped: Weak<Mutex<QueueState>> = Arc::downgrade(&engine);
        fs.help_queue(helped);
        Ok(Self { engine, waiting: Vec::with_capacity(depth_max), depth_max, in_flight: 0 })
    }
    /// Returns how many operations may be in flight.
    #[must_use]
    pub fn depth_max(&self) -> usize {
        self.depth_max
    }
    /// Returns how many operations are in flight or completed and not yet taken.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
    /// Returns a descriptor that becomes readable when operations complete on the device, for a
    /// thread that waits for other things beside them; `None` where only
    /// [`complete`](Self::complete) can wait. What another thread completed for this one
    /// ([`Queue`]) does not show there, so such a thread looks from time to time.
    ///
    /// # Errors
    /// The system's, when the process has too many descriptors.
    pub fn readiness(&self) -> io::Result<Option<OwnedFd>> {
        self.engine.lock().readiness()
    }
    /// Takes a registered buffer; `None` when none are left.
    pub fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.engine.lock().take_buffer()
    }
    /// Gives a registered buffer back.
    pub fn give_buffer(&mut self, buf: AlignedBuf) {
        self.engine.lock().give_buffer(buf);
    }
    /// Queues a read of `buf.len()` bytes at `offset`.
    ///
    /// # Errors
    /// Gives the buffer back when the queue is full.
    pub fn read(
        &mut self,
        file: &Arc<File>,
        buf: AlignedBuf,
        offset: u64,
        token: u64,
    ) -> std::result::Result<(), AlignedBuf> {
        self.push(Op { kind: Kind::Read, file: Arc::clone(file), buf: Some(buf), offset, token })
            .map_err(Op::into_buffer)
    }
    /// Queues a write of the whole buffer at `offset`.
    ///
    /// # Errors
    /// Gives the buffer back when the queue is full.
    pub fn write(
        &mut self,
        file: &Arc<File>,
        buf: AlignedBuf,
        offset: u64,
        token: u64,
    ) -> std::result::Result<(), AlignedBuf> {
        self.push(Op { kind: Kind::Write, file: Arc::clone(file), buf: Some(buf), offset, token })
            .map_err(Op::into_buffer)
    }
    /// Queues `sync_data` of a file, covering the writes that have completed.
    ///
    /// # Errors
    /// `Err` when the queue is full.
    #[expect(
        clippy::result_unit_err,
        reason = "there is nothing to give back and one thing that can be wrong"
    )]
    pub fn sync_data(&mut self, file: &Arc<File>, token: u64) -> std::result::Result<(), ()> {
        self.push(Op { kind: Kind::Sync, file: Arc::clone(file), buf: None, offset: 0, token })
            .map_err(drop)
    }

    fn push(&mut self, op: Op) -> std::result::Result<(), Op> {
        if self.in_flight == self.depth_max {
            return Err(op);
        }
        self.in_flight += 1;
        self.waiting.push(op);
        Ok(())
    }

    /// Submits what was queued with one system call where the engine allows it.
    ///
    /// # Errors
    /// `Io` when the system refuses.
    pub fn submit(&mut self) -> Result<()> {
        let mut engine = self.engine.lock();
        let submitted = engine.submit(&mut self.waiting);
        let closing = engine.take_closing();
        drop(engine);
        drop(closing);
        submitted
    }
    /// Submits, waits for at least `min` completions and appends them to `out`; returns how many.
    ///
    /// # Errors
    /// `Io` when waiting fails.
    pub fn complete(&mut self, min: usize, out: &mut Vec<QueueCompletion>) -> Result<usize> {
        let mut engine = self.engine.lock();
        let taken = engine
            .submit(&mut self.waiting)
            .and_then(|()| engine.complete(min.min(self.in_flight), out));
        let closing = engine.take_closing();
        drop(engine);
        drop(closing);
        let count = *taken.as_ref().unwrap_or(&0);
        debug_assert!(
            count <= self.in_flight && self.in_flight <= self.depth_max,
            "what completes was pushed: {count} of {} in flight, at most {}",
            self.in_flight,
            self.depth_max
        );
        self.in_flight -= count;
        taken
    }
}

impl HelpedQueue for Mutex<QueueState> {
    fn help(&self) {
        let Some(mut engine) = self.try_lock() else { return };
        if let Err(error) = engine.drain() {
            tracing::error!("the I/O in flight on a queue cannot be waited for: {error}");
        }
    }
}
