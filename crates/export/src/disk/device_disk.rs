//! A file or block device of the system, past the page cache where that works.
//!
//! What is not aligned to the device's sectors goes through a second descriptor, which is buffered;
//! [`Gate`] keeps such writes apart from direct ones.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, Completion, DeviceOptions, DeviceQueue, QueueOptions, Request,
    RequestKind, Segment,
};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::gate::Gate;
use super::holes::{self, Seek};
use super::{Allocation, Disk, DiskQueue, Done, Run, Zeroing};
use crate::{Error, Result};

/// The preferred request where the file system below asks for nothing larger.
const PREFERRED_BYTES: u32 = 8192;

/// A file or block device of the system as a disk.
#[derive(Debug)]
pub struct DeviceDisk {
    device: Arc<dyn BlockDevice>,
    file: Buffered,
    is_block_device: bool,
    read_only: bool,
    sector_bytes: u64,
    gate: Arc<Gate>,
}

/// The file through the page cache.
#[derive(Debug)]
struct Buffered {
    file: File,
    path: PathBuf,
}

impl DeviceDisk {
    /// Opens a file or block device for this process alone.
    ///
    /// # Errors
    /// Those of opening.
    pub fn open(path: &Path, read_only: bool) -> Result<Self> {
        let device =
            bedplate_block::open(path, &DeviceOptions { read_only, ..DeviceOptions::default() })?;
        let file = OpenOptions::new()
            .read(true)
            .write(!read_only)
            .open(path)
            .map_err(|error| Error::system("open", path, error))?;
        let kind = file.metadata().map_err(|error| Error::system("look at", path, error))?;
        Ok(Self {
            sector_bytes: device.geometry().logical_block_size.into(),
            read_only: read_only || device.geometry().read_only,
            device,
            file: Buffered { file, path: path.to_owned() },
            is_block_device: kind.file_type().is_block_device(),
            gate: Arc::default(),
        })
    }

    fn is_aligned(&self, offset: u64, len: u64) -> bool {
        (offset | len).is_multiple_of(self.sector_bytes)
    }

    /// Writes by hand what the device has no command for.
    fn write_zeros(&self, offset: u64, len: u64) -> Result<()> {
        const PIECE_BYTES: u64 = 1 << 20;
        let zeros = AlignedBuf::zeroed(len.min(PIECE_BYTES) as usize);
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(PIECE_BYTES) as usize;
            self.write_at(&zeros[..piece], offset + done)?;
            done += piece as u64;
        }
        Ok(())
    }

    /// Changes the allocation of a range of a file; `false` where its file system cannot.
    fn allocate(&self, how: FallocateFlags, offset: u64, len: u64) -> Result<bool> {
        let done = self
            .gate
            .direct(|| fallocate(&self.file.file, how | FallocateFlags::KEEP_SIZE, offset, len));
        match done {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(error) => Err(self.file.failed("change the blocks of", error)),
        }
    }
}

impl Disk for DeviceDisk {
    fn size_bytes(&self) -> Result<u64> {
        let known = self.device.refresh_size()?;
        if self.is_block_device {
            return Ok(known);
        }
        let meta = self.file.file.metadata().map_err(|e| self.file.failed("look at", e))?;
        Ok(meta.len())
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn preferred_bytes(&self) -> u32 {
        PREFERRED_BYTES.max(self.device.geometry().physical_block_size.next_power_of_two())
    }

    fn zeroes_fast(&self) -> bool {
        false
    }

    fn queue(&self, depth_max: usize) -> Result<Box<dyn DiskQueue>> {
        let options = QueueOptions { depth_max, ..QueueOptions::default() };
        let queue = self.device.queue(&options)?;
        let gate = Arc::clone(&self.gate);
        Ok(Box::new(RawQueue { queue, gate, done: Vec::new() }))
    }

    fn is_for_queue(&self, offset: u64, len: u64) -> bool {
        self.is_aligned(offset, len) && offset + len <= self.device.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.file.file.read_exact_at(buf, offset).map_err(|e| self.file.failed("read", e))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        if self.is_for_queue(offset, buf.len() as u64)
            && buf.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN)
        {
            return Ok(self.gate.direct(|| self.device.write_at(buf, offset))?);
        }
        let written = self.gate.buffered(|| {
            self.file.file.write_all_at(buf, offset).and_then(|()| self.file.file.sync_data())
        });
        written.map_err(|error| self.file.failed("write to", error))
    }

    fn sync(&self) -> Result<()> {
        if self.read_only { Ok(()) } else { Ok(self.device.flush()?) }
    }

    fn sync_range(&self, _offset: u64, _len: u64) -> Result<()> {
        self.sync()
    }

    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let from = offset.next_multiple_of(self.sector_bytes);
        let to = (offset + len) / self.sector_bytes * self.sector_bytes;
        if from < to && to <= self.device.size_bytes() {
            self.device.discard(from, to - from)?;
        }
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, zeroing: Zeroing) -> Result<()> {
        let aligned = self.is_aligned(offset, len);
        if self.is_block_device {
            let punched = zeroing == Zeroing::MayPunch
                && aligned
                && self.device.discard_to_zeros(offset, len)?;
            return match punched {
                true => Ok(()),
                false if aligned => Ok(self.device.write_zeroes(offset, len)?),
                false => self.write_zeros(offset, len),
            };
        }
        // The edges of what is not aligned would be zeroed in the page cache (I-GAT-1).
        let how = match zeroing {
            Zeroing::MayPunch => FallocateFlags::PUNCH_HOLE,
            Zeroing::KeepBlocks => FallocateFlags::ZERO_RANGE,
        };
        if aligned && self.allocate(how, offset, len)? {
            return Ok(());
        }
        self.write_zeros(offset, len)
    }

    fn runs(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Run>> {
        if self.is_block_device {
            return Ok(vec![Run { len, allocation: Allocation::Data }]);
        }
        holes::runs(&self.file, offset, len, limit)
    }
}

impl Buffered {
    #[cold]
    fn failed(&self, what: &'static str, error: impl Into<io::Error>) -> Error {
        Error::system(what, &self.path, error)
    }

    /// Asks where something begins; `None` beyond the end, and `offset` where the file system does
    /// not tell: then all is data.
    fn seek(&self, whence: SeekFrom) -> Result<Option<u64>> {
        match seek(&self.file, whence) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(self.failed("find the holes of", error)),
        }
    }
}

impl Seek for Buffered {
    fn data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(SeekFrom::Data(offset))
    }

    fn hole(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(SeekFrom::Hole(offset))
    }

    fn split_hole(&self, from: u64, to: u64, _limit: usize, runs: &mut Vec<Run>) -> Result<()> {
        runs.push(Run { len: to - from, allocation: Allocation::Hole });
        Ok(())
    }
}

struct RawQueue {
    queue: Box<dyn DeviceQueue>,
    gate: Arc<Gate>,
    done: Vec<Completion>,
}

/// The bit of a device's token that says whether the operation has a pass of the gate.
const PASS: u64 = 1 << 63;

impl RawQueue {
    fn push(
        &mut self,
        kind: RequestKind,
        buf: AlignedBuf,
        offset: u64,
        token: u64,
    ) -> Result<(), AlignedBuf> {
        debug_assert!(
            buf.len() <= u32::MAX as usize && !buf.is_empty(),
            "an operation of a queue moves something: {} bytes",
            buf.len()
        );
        let first = Segment { offset, len: buf.len() as u32 };
        let request = Request { token, kind, buf: Some(buf), first, rest: Vec::new() };
        self.queue
            .push(request)
            .map_err(|request| request.buf.expect("reads and writes have a buffer"))
    }
}

impl DiskQueue for RawQueue {
    fn readiness(&self) -> io::Result<Option<OwnedFd>> {
        self.queue.readiness().map(|ring| ring.try_clone_to_owned()).transpose()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn read(&mut self, buf: AlignedBuf, offset: u64, token: u64) -> Result<(), AlignedBuf> {
        self.push(RequestKind::Read, buf, offset, token)
    }

    fn write(&mut self, buf: AlignedBuf, offset: u64, token: u64) -> Result<(), AlignedBuf> {
        debug_assert!(token & PASS == 0, "a token leaves the device's bit free: {token:#x}");
        if !self.gate.try_direct() {
            return Err(buf);
        }
        let pushed = self.push(RequestKind::Write, buf, offset, token | PASS);
        if pushed.is_err() {
            self.gate.end_direct();
        }
        pushed
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Done>) -> Result<()> {
        self.queue.complete(min, &mut self.done)?;
        for Completion { token, result, buf, .. } in self.done.drain(..) {
            if token & PASS != 0 {
                self.gate.end_direct();
            }
            out.push(Done { token: token & !PASS, result: result.map_err(Into::into), buf });
        }
        Ok(())
    }
}

impl Drop for RawQueue {
    fn drop(&mut self) {
        let mut done = Vec::new();
        let in_flight = self.queue.in_flight();
        if let Err(error) = self.complete(in_flight, &mut done) {
            tracing::error!("the I/O in flight on a disk cannot be waited for: {error}");
        }
    }
}
