//! The list interface: one thread's queue over many files.

use std::sync::Arc;

use block::{AlignedBuf, QueueOptions};

use crate::{File, FileSystem, Result};

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

/// One thread's submission and completion pair (`lio_listio` as it should have been). A batch may span files of one file system.
///
/// What cannot go straight to the device (unaligned, unwritten, cached …) is carried out before `submit` returns and completes like the rest.
pub struct Queue {}

impl Queue {
    /// Opens a queue.
    ///
    /// # Errors
    /// `Io` when the system refuses the resources.
    pub fn new(fs: &FileSystem, options: &QueueOptions) -> Result<Self> {
        todo!()
    }
    /// Returns how many operations may be in flight.
    #[must_use]
    pub fn depth_max(&self) -> usize {
        todo!()
    }
    /// Returns how many operations are in flight or completed and not yet taken.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        todo!()
    }
    /// Takes a registered buffer; `None` when none are left.
    pub fn take_buffer(&mut self) -> Option<AlignedBuf> {
        todo!()
    }
    /// Gives a registered buffer back.
    pub fn give_buffer(&mut self, buf: AlignedBuf) {
        todo!()
    }
    /// Queues a read of `buf.len()` bytes at `offset`.
    ///
    /// # Errors
    /// Gives the buffer back when the queue is full.
    pub fn read(&mut self, file: &Arc<File>, buf: AlignedBuf, offset: u64, token: u64) -> std::result::Result<(), AlignedBuf> {
        todo!()
    }
    /// Queues a write of the whole buffer at `offset`.
    ///
    /// # Errors
    /// Gives the buffer back when the queue is full.
    pub fn write(&mut self, file: &Arc<File>, buf: AlignedBuf, offset: u64, token: u64) -> std::result::Result<(), AlignedBuf> {
        todo!()
    }
    /// Queues `sync_data` of a file, covering the writes that have completed.
    ///
    /// # Errors
    /// `Err` when the queue is full.
    pub fn sync_data(&mut self, file: &Arc<File>, token: u64) -> std::result::Result<(), ()> {
        todo!()
    }
    /// Submits what was queued with one system call where the engine allows it.
    ///
    /// # Errors
    /// `Io` when the system refuses.
    pub fn submit(&mut self) -> Result<()> {
        todo!()
    }
    /// Submits, waits for at least `min` completions and appends them to `out`; returns how many.
    ///
    /// # Errors
    /// `Io` when waiting fails.
    pub fn complete(&mut self, min: usize, out: &mut Vec<QueueCompletion>) -> Result<usize> {
        todo!()
    }
}
