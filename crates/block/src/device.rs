//! The one trait every device implements, and what a device states about itself.

use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::{DeviceQueue, MemberMap, QueueOptions, Result};

/// What one call of a device moves at most, in bytes: Linux's limit of a read or write. A longer one
/// is several calls.
pub const CALL_BYTES_MAX: u64 = 0x7fff_f000;

/// States what a device is able to do. Everything here is read from the system, never assumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// The smallest addressable unit in bytes; every offset and length given to the device is a
    /// multiple of it.
    pub logical_block_size: u32,
    /// The unit in bytes that the medium writes without read-modify-write; at least
    /// `logical_block_size`.
    pub physical_block_size: u32,
    /// The alignment in bytes that a buffer's address must have.
    pub buffer_align: u32,
    /// The largest write in bytes that a power cut leaves wholly there or wholly absent; at least
    /// `logical_block_size`. The promise is for writes whose length is a power of two and whose
    /// offset is a multiple of their length.
    pub untorn_unit: u32,
    /// The length in bytes of what is best read and written whole: a row of a stripe or of RAID-5,
    /// or what a disk says (`optimal_io_size`). Rows begin at offset 0. 0 where nothing is better
    /// than anything else.
    pub row_bytes: u32,
    /// Whether acknowledged writes may sit in a volatile cache until the next flush.
    pub volatile_cache: bool,
    /// Whether the device refuses writes.
    pub read_only: bool,
}

/// Says which engine serves a device, and why not the preferred one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineReport {
    /// `"io_uring"`, `"threads"`, `"nbd"`, `"memory"`, `"simulated"`.
    pub name: &'static str,
    /// The reason for a fallback; `None` where the preferred engine is in use.
    pub fallback: Option<String>,
    /// How busy the server threads are; `None` of engines that have none.
    pub threads: Option<EngineThreads>,
}

/// How busy the server threads of a device are, at one moment (thread engine only).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineThreads {
    /// Threads that there are.
    pub count: u64,
    /// Threads that there may be; they start when they are needed.
    pub count_max: u64,
    /// Threads that carry out a request.
    pub busy: u64,
    /// Requests that wait for a thread.
    pub waiting: u64,
    /// How often a submission found every thread busy, since the device was opened.
    pub waited: u64,
}

impl std::iter::Sum for EngineThreads {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            count: sum.count + one.count,
            count_max: sum.count_max + one.count_max,
            busy: sum.busy + one.busy,
            waiting: sum.waiting + one.waiting,
            waited: sum.waited + one.waited,
        })
    }
}

/// Counts what reached the device since it was opened (monotonic; read without a lock, so a
/// snapshot is not atomic).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Completed reads.
    pub reads: u64,
    /// Bytes of completed reads.
    pub read_bytes: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes of completed writes.
    pub written_bytes: u64,
    /// Completed flushes.
    pub flushes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// How often a submission found every server thread busy (thread engine only).
    pub saturated: u64,
}

/// What a search for a right copy came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// One is right; `healed`: those that were not were written over.
    Right {
        /// Whether all copies are right now.
        healed: bool,
    },
    /// No copy is.
    NoneRight,
}

/// Descriptors for another process that does I/O on a device by itself.
#[derive(Debug)]
pub struct Lent {
    /// The open file description on which the claim of the device lies: the device stays claimed as
    /// long as any process has it. Not for I/O.
    pub claim: OwnedFd,
    /// An open file description of its own, past the kernel's page cache. The kernel reports a
    /// failed write-back once to each description, so none is shared.
    pub io: OwnedFd,
}

/// A thing with sectors.
///
/// All methods may be called from any number of threads at once. Offsets and lengths are multiples
/// of [`Geometry::logical_block_size`] and buffer addresses of [`Geometry::buffer_align`]; anything
/// else is refused with [`ErrorKind::Unaligned`](crate::ErrorKind::Unaligned). An access beyond the
/// end is refused with `OutOfRange` and moves nothing. A write is durable once a
/// [`flush`](Self::flush) that was called after the write returned has returned `Ok`.
pub trait BlockDevice: Send + Sync + Debug {
    /// Returns the name for messages: a path, or `memory`.
    fn name(&self) -> &str;
    /// Returns what the device states about itself.
    fn geometry(&self) -> Geometry;
    /// Returns the current size in bytes, a multiple of the logical block size.
    fn size_bytes(&self) -> u64;
    /// Asks the system again for the size (a device can grow) and returns it.
    ///
    /// # Errors
    /// `Io` when the system does not answer.
    fn refresh_size(&self) -> Result<u64> {
        Ok(self.size_bytes())
    }
    /// Lets the device end at `size_bytes`, a multiple of the logical block size, behind which nothing
    /// is needed any more: an image file is cut off there. Returns whether it was; other devices stay
    /// as they are.
    ///
    /// # Errors
    /// `Io`.
    fn cut_off(&self, size_bytes: u64) -> Result<bool> {
        let _kept = size_bytes;
        Ok(false)
    }
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `Unaligned`, `OutOfRange`, or `Io`; after an error the content of `buf` is unspecified.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;
    /// Fills `buf` from `offset` with a copy that `is_right` says yes to, and writes it over copies
    /// that are not; of a device with one copy, reads that again.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    fn read_right(
        &self,
        buf: &mut [u8],
        offset: u64,
        is_right: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Copies> {
        self.read_at(buf, offset)?;
        Ok(if is_right(buf) { Copies::Right { healed: false } } else { Copies::NoneRight })
    }
    /// Lets copies that a crash left unlike stay so (`true`) until the call with `false`: plain reads
    /// take the same copy each time, and [`read_right`](Self::read_right) sees them all. Calls nest.
    /// Returns whether there are such copies. Nothing else writes to the device meanwhile.
    fn hold_copies(&self, held: bool) -> bool {
        let _ = held;
        false
    }
    /// Returns the ranges of bytes of which a crash may have left copies unlike.
    fn ranges_in_doubt(&self) -> Vec<Range<u64>> {
        Vec::new()
    }
    /// Returns which addresses lie on which devices below; of a device that is made of no others,
    /// nothing.
    fn member_map(&self) -> MemberMap {
        MemberMap::default()
    }
    /// Returns a number that changes with [`member_map`](Self::member_map): for callers that keep
    /// what it said.
    fn member_map_version(&self) -> u64 {
        0
    }
    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// `Unaligned`, `OutOfRange`, `ReadOnly`, `NoSpace` (a sparse image on a full file system) or
    /// `Io`; after an error any subset of the sectors may have been written.
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()>;
    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// `Io`; after an error nothing written since the last good flush may be taken as durable,
    /// ever.
    fn flush(&self) -> Result<()>;
    /// Writes zeros over a range, offloaded where the device is able to.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()>;
    /// Tells the device that a range is no longer needed; its content is unspecified afterwards.
    /// Returns whether the device took the hint.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at), except that lack of support is `Ok(false)`.
    fn discard(&self, offset: u64, len: u64) -> Result<bool>;
    /// As [`discard`](Self::discard), and the range reads as zeros afterwards, so that copies stay
    /// equal. `false`: the range is as it was.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn discard_to_zeros(&self, offset: u64, len: u64) -> Result<bool> {
        let _ = (offset, len);
        Ok(false)
    }
    /// Opens one thread's submission and completion pair.
    ///
    /// # Errors
    /// `Io` when the system refuses the resources.
    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>>;
    /// Opens the device for I/O by another process, past everything here; `None` where the device
    /// is not one file that both see alike.
    ///
    /// # Errors
    /// `Io`, `Permission` when the system does not open it once more.
    fn lend(&self, read_only: bool) -> Result<Option<Lent>> {
        let _ = read_only;
        Ok(None)
    }
    /// Returns which engine serves the device.
    fn engine(&self) -> EngineReport;
    /// Returns the counters.
    fn counters(&self) -> DeviceCounters;
}

/// While it lives, the copies of what a device holds stay as they are: see
/// [`BlockDevice::hold_copies`].
#[derive(Debug)]
pub struct HeldCopies {
    device: Arc<dyn BlockDevice>,
    in_doubt: bool,
}

impl HeldCopies {
    /// Holds the copies of a device.
    pub fn new(device: &Arc<dyn BlockDevice>) -> Self {
        Self { device: Arc::clone(device), in_doubt: device.hold_copies(true) }
    }

    /// Returns whether a crash left copies that may be unlike.
    pub fn are_in_doubt(&self) -> bool {
        self.in_doubt
    }
}

impl Drop for HeldCopies {
    fn drop(&mut self) {
        self.device.hold_copies(false);
    }
}
