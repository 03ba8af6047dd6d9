//! What is served as a disk: one small interface over a file of a volume, and over a file or
//! device of the system.

mod device_disk;
mod file_disk;
mod gate;
mod holes;

pub use device_disk::DeviceDisk;
pub use file_disk::FileDisk;

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use bedplate_block::AlignedBuf;

use crate::Result;

/// How a range of a disk is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Holds data.
    Data,
    /// Has blocks, and reads as zeros.
    Unwritten,
    /// Has no blocks, and reads as zeros.
    Hole,
}

/// Bytes of a disk that are allocated alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// How many.
    pub len: u64,
    /// How.
    pub allocation: Allocation,
}

/// What writing zeros leaves allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeroing {
    /// A hole where one can be.
    MayPunch,
    /// The blocks.
    KeepBlocks,
}

/// Something with bytes that is served as a disk. All methods may be called from any number of
/// threads at once.
///
/// [`sync`](Self::sync) covers every write that had returned, through whichever queue or thread,
/// when it was called.
pub trait Disk: Send + Sync + Debug {
    /// Returns the present size in bytes.
    ///
    /// # Errors
    /// The system's.
    fn size_bytes(&self) -> Result<u64>;
    /// Returns whether writes are refused.
    fn is_read_only(&self) -> bool;
    /// Returns the size of requests that cost least: a power of two.
    fn preferred_bytes(&self) -> u32;
    /// Returns whether zeros are always written faster than data.
    fn zeroes_fast(&self) -> bool;
    /// Opens one thread's submission and completion pair.
    ///
    /// # Errors
    /// The system's, when it refuses the resources.
    fn queue(&self, depth_max: usize) -> Result<Box<dyn DiskQueue>>;
    /// Returns whether a queue takes a read or write of a range; [`read_at`](Self::read_at) and
    /// [`write_at`](Self::write_at) take all.
    fn is_for_queue(&self, offset: u64, len: u64) -> bool;
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// The medium's.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;
    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// The medium's.
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()>;
    /// Makes everything that was written durable.
    ///
    /// # Errors
    /// The medium's; those of earlier writes.
    fn sync(&self) -> Result<()>;
    /// Makes one range that was written durable.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    fn sync_range(&self, offset: u64, len: u64) -> Result<()>;
    /// Gives the blocks of a range back where that can be; what it reads as then is not
    /// promised.
    ///
    /// # Errors
    /// The medium's.
    fn trim(&self, offset: u64, len: u64) -> Result<()>;
    /// Makes a range read as zeros.
    ///
    /// # Errors
    /// The medium's.
    fn zero(&self, offset: u64, len: u64, zeroing: Zeroing) -> Result<()>;
    /// Returns how a range is allocated, in at most `limit` runs from its beginning on; at least
    /// one, and none of them empty.
    ///
    /// # Errors
    /// The medium's.
    fn runs(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Run>>;
}

/// The end of one queued operation.
#[derive(Debug)]
pub struct Done {
    /// The token given with it.
    pub token: u64,
    /// Success, or what failed.
    pub result: Result<()>,
    /// Its buffer; lost with some failures.
    pub buf: Option<AlignedBuf>,
}

/// One thread's submission and completion pair of a disk. Operations complete in any order.
pub trait DiskQueue: Send {
    /// Returns what becomes readable when operations complete; `None` where only
    /// [`complete`](Self::complete) can wait. It may miss some, so its reader looks from time to
    /// time too.
    ///
    /// # Errors
    /// The system's.
    fn readiness(&self) -> std::io::Result<Option<OwnedFd>>;
    /// Returns how many operations are under way or completed and not yet taken.
    fn in_flight(&self) -> usize;
    /// Queues a read that fills `buf`.
    ///
    /// # Errors
    /// Gives the buffer back when the queue is full.
    fn read(&mut self, buf: AlignedBuf, offset: u64, token: u64) -> Result<(), AlignedBuf>;
    /// Queues a write of the whole buffer.
    ///
    /// # Errors
    /// Gives the buffer back when the queue is full.
    fn write(&mut self, buf: AlignedBuf, offset: u64, token: u64) -> Result<(), AlignedBuf>;
    /// Submits, waits for at least `min` completions and appends them to `out`.
    ///
    /// # Errors
    /// The system's; nothing can be said of what is under way then.
    fn complete(&mut self, min: usize, out: &mut Vec<Done>) -> Result<()>;
}
