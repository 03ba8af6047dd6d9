//! What is measured: a place that holds files, behind one small interface, so that each workload is
//! written once.
//!
//! ```text
//!   workload ──► Target ──► TargetFile    read, write, sync from the caller's thread
//!                     └───► TargetQueue   a list of them, one thread's
//! ```
//!
//! Every implementation does the same per call: one virtual call, then the library's or the
//! kernel's own entry point. No implementation copies, counts or locks, so a difference between two
//! targets is theirs and not the harness's.

mod composite;
mod delayed;
mod device;
mod info;
mod nfs;
mod open;
mod page_cache;
mod path;
mod queue;
mod raw;
mod snapshots;
mod spec;
mod volume;

use std::path::PathBuf;
use std::time::Duration;

use bedplate::{AlignedBuf, Waits};

pub(crate) use composite::Composite;
pub(crate) use device::{claim_device, open_file};
pub(crate) use info::mount_of;
pub use info::{PlaceInfo, Role, TargetInfo};
pub(crate) use nfs::{NfsFile, NfsQueue, NfsTarget};
pub use open::{Confirm, Targets};
pub(crate) use page_cache::PageCacheLimit;
pub(crate) use path::{Directory, PathTarget, PlainFile};
pub(crate) use queue::{Region, RegionQueue, VolumeQueue};
pub(crate) use raw::{RawTarget, RegionFile};
pub use spec::{Caching, Kind, Place, TargetSpec};
pub(crate) use volume::{VolumeFile, VolumeTarget};

use crate::measure::{DeviceOps, DeviceTime};
use crate::{Error, Result};

/// How a file looks when a workload gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileState {
    /// Every byte written with data that no device, cache or file system shortens, and durable.
    Written,
    /// The space is allocated, nothing is written. A raw device has no such state: there it is as
    /// `Written`.
    Unwritten,
    /// No byte and no block yet; writes extend it.
    Empty,
    /// As `Written`, in pieces of [`PIECE_BYTES`] that lie apart, as far as the allocator goes along.
    /// A raw device has no such state: there it is as `Written`.
    Scattered,
}

/// Size in bytes of the pieces of a scattered file.
pub(crate) const PIECE_BYTES: u64 = 64 << 10;

/// A file that a workload wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSpec {
    pub name: String,
    /// Size in bytes; of an `Empty` file the most that it will ever grow to.
    pub size_bytes: u64,
    pub state: FileState,
}

impl FileSpec {
    pub(crate) fn written(name: impl Into<String>, size_bytes: u64) -> Self {
        Self { name: name.into(), size_bytes, state: FileState::Written }
    }
}

/// A place that holds files.
pub(crate) trait Target: Send + Sync {
    /// Describes the target for people and for results.
    fn info(&self) -> &TargetInfo;
    /// Returns how many bytes of files it takes.
    fn capacity_bytes(&self) -> Result<u64>;
    /// Makes a file, replacing one of that name, and fills it as its state says.
    fn create(&self, spec: &FileSpec) -> Result<()>;
    /// Returns whether a file that was written can be written on behind its end.
    fn files_grow(&self) -> bool {
        true
    }
    /// Opens a file that was created; any number of threads share it.
    fn open(&self, name: &str) -> Result<Box<dyn TargetFile>>;
    /// Opens a file for a caller that takes its advisory lock; each call is an open of its own.
    fn open_lockable(&self, _name: &str) -> Result<Box<dyn TargetFile>> {
        let label = &self.info().label;
        Err(Error::target(format!(
            "{label}: only files on a mounted file system have advisory locks: leave out --locking \
             or this target"
        )))
    }
    /// Makes an image of the present content of a file, or of everything, at once and without
    /// copying data: a checkpoint, a reflink, a snapshot.
    fn make_image(&self, _image: &str, _file: Option<&str>) -> Result<()> {
        Err(Error::target(format!("{}: no image of a file can be made here", self.info().label)))
    }
    /// Returns whether it can make images of everything.
    fn has_images_of_everything(&self) -> bool {
        false
    }
    /// Returns how many images there are, as a listing finds out.
    fn list_images(&self) -> Result<usize> {
        Ok(0)
    }
    /// Makes a writable file that shares the blocks of another.
    fn make_clone(&self, _clone: &str, _file: &str) -> Result<()> {
        Err(Error::target(format!("{}: no clone of a file can be made here", self.info().label)))
    }
    /// Removes an image, if it is there.
    fn remove_image(&self, _image: &str) -> Result<()> {
        Ok(())
    }
    /// Removes a file and frees its space; nothing of it may be open.
    fn remove(&self, name: &str) -> Result<()>;
    /// Makes a directory of the target's own, if it is not there, for a program that keeps its
    /// files itself; `None` where there is no file system.
    fn directory(&self, _name: &str) -> Result<Option<PathBuf>> {
        Ok(None)
    }
    /// Returns in how many extents a file lies; `None` where that is not known.
    fn extents(&self, _name: &str) -> Result<Option<usize>> {
        Ok(None)
    }
    /// Opens one thread's queue over the named files; operations name a file by its index.
    fn queue(&self, files: &[String], options: &QueueSetup) -> Result<Box<dyn TargetQueue>>;
    /// Makes durable what a measurement left behind, so that it does not burden the next target's.
    fn quiesce(&self) -> Result<()>;
    /// Forgets everything that caches hold; nothing may be open.
    fn make_cold(&self) -> Result<()>;
    /// Sets the size of the target's second-level cache; nothing may be open, and nothing in the
    /// caches ([`make_cold`](Self::make_cold)). Does nothing where there is none. The kernel's page
    /// cache is so small as long as the value lives.
    fn set_cache_bytes(&self, bytes: u64) -> Result<Option<PageCacheLimit>>;
    /// Makes every operation of the device take so long; only memory is able to.
    fn set_latency(&self, _latency: Duration) -> Result<()> {
        let label = &self.info().label;
        Err(Error::target(format!(
            "{label}: a latency can be added to memory only; a real device has its own"
        )))
    }
    /// Starts or ends a count of every single request, which disturbs what is timed; returns
    /// whether it runs.
    fn count_requests(&self, on: bool) -> bool;
    /// Returns what reads and writes waited for so far; `None` where that is not known.
    fn waits(&self) -> Option<Waits> {
        None
    }
    /// Returns how busy its devices were so far; those of which that is known.
    fn device_times(&self) -> Vec<DeviceTime> {
        Vec::new()
    }
    /// Returns the numbers of the other processes that serve it.
    fn processes(&self) -> &[u32] {
        &[]
    }
    /// Returns what reached its devices so far; `None` where it is not counted.
    fn device_ops(&self) -> Option<DeviceOps>;
}

/// An open file. `&self` everywhere: any number of threads at once.
pub(crate) trait TargetFile: Send + Sync {
    /// Fills `buf` from `offset`; the whole of it exists.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;
    /// Writes all of `buf` at `offset`.
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()>;
    /// Makes data durable (`fdatasync`).
    fn sync_data(&self) -> Result<()>;
    /// Makes data and attributes durable (`fsync`); only the kernel's files tell them apart.
    fn sync_all(&self) -> Result<()> {
        self.sync_data()
    }
    /// Has a cache begin to write a part of the file (`sync_file_range`); only the kernel's has
    /// such a call.
    fn begin_writing(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }
    /// Returns the unit in bytes to which offset and length must be aligned; 1 where anything goes.
    fn align_bytes(&self) -> u64;
    /// Takes the advisory lock of a file from [`Target::open_lockable`], shared or exclusive.
    fn lock(&self, _exclusive: bool) -> Result<()> {
        Err(Error::target("this file was not opened for locking"))
    }
    /// Gives the advisory lock back.
    fn unlock(&self) -> Result<()> {
        Err(Error::target("this file was not opened for locking"))
    }
    /// Takes the advisory lock of a range of bytes of a file from [`Target::open_lockable`], shared
    /// or exclusive.
    fn lock_range(&self, _offset: u64, _len: u64, _exclusive: bool) -> Result<()> {
        Err(Error::target("this file was not opened for locking"))
    }
    /// Gives the advisory lock of a range of bytes back.
    fn unlock_range(&self, _offset: u64, _len: u64) -> Result<()> {
        Err(Error::target("this file was not opened for locking"))
    }
}

/// Sets up a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueSetup {
    /// Most operations in flight.
    pub depth: usize,
    /// Size in bytes of each of the `depth` buffers.
    pub buffer_bytes: usize,
}

/// What a queued operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    Read,
    Write,
}

/// One operation of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub kind: OpKind,
    /// Index into the files the queue was opened with.
    pub file: usize,
    pub offset: u64,
    pub token: u64,
}

/// The end of one operation that succeeded; one that failed ends the run.
pub(crate) struct Done {
    pub token: u64,
    pub buf: AlignedBuf,
}

/// One thread's submission and completion pair.
pub(crate) trait TargetQueue: Send {
    /// Takes one of the queue's buffers; registered with the kernel where the engine is able to.
    fn take_buffer(&mut self) -> AlignedBuf;
    /// Adds an operation that moves the whole buffer.
    fn push(&mut self, op: Op, buf: AlignedBuf) -> Result<()>;
    /// Submits what was pushed, waits until at least `min` operations are complete and appends them
    /// to `out`.
    fn complete(&mut self, min: usize, out: &mut Vec<Done>) -> Result<()>;
}

/// Bytes that neither a compressing device nor a thin one shortens: a fixed pseudo-random sequence,
/// different at every offset.
pub(crate) fn fill_pattern(buf: &mut [u8], seed: u64) {
    use rand::{Rng, SeedableRng};
    rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x6265_6470_6c61_7465).fill_bytes(buf);
}

/// Writes the whole of `file` in large pieces and makes it durable.
pub(crate) fn fill(file: &dyn TargetFile, size_bytes: u64) -> Result<()> {
    fill_pieces(size_bytes, 4 << 20, &mut |piece, offset| file.write_at(piece, offset))?;
    file.sync_data()
}

/// Writes the whole of `file`, a piece at a time, each followed by one of `between`: allocators
/// that put a piece behind the one before find the other file's there. Every piece is durable
/// before the next, so that none is allocated later, together with others.
pub(crate) fn scatter(
    file: &dyn TargetFile,
    between: &dyn TargetFile,
    size_bytes: u64,
) -> Result<()> {
    fill_pieces(size_bytes, PIECE_BYTES, &mut |piece, offset| {
        [file, between].into_iter().try_for_each(|one| {
            one.write_at(piece, offset)?;
            one.sync_data()
        })
    })
}

/// Hands out the content of a file, piece by piece, with where each belongs.
fn fill_pieces(
    size_bytes: u64,
    piece_bytes: u64,
    write: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let mut buf = AlignedBuf::zeroed(piece_bytes.min(size_bytes) as usize);
    fill_pattern(&mut buf, size_bytes);
    let mut offset = 0;
    while offset < size_bytes {
        let len = piece_bytes.min(size_bytes - offset) as usize;
        // A new stamp in every page keeps the pieces from being equal.
        for (page, bytes) in buf[..len].chunks_mut(512).enumerate() {
            let stamp = (offset + page as u64 * 512).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let n = bytes.len().min(8);
            bytes[..n].copy_from_slice(&stamp.to_le_bytes()[..n]);
        }
        write(&buf[..len], offset)?;
        offset += len as u64;
    }
    Ok(())
}
