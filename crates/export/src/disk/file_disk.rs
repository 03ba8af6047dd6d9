//! A file of a volume that this process has mounted, through the library.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, QueueOptions};
use bedplate_fs::{AllocateMode, File, FileSystem, Queue, QueueCompletion};

use super::holes::{self, Seek};
use super::{Allocation, Disk, DiskQueue, Done, Run, Zeroing};
use crate::Result;

/// The unit in which a queue of the library takes I/O on every device without a detour.
const SECTOR_BYTES: u64 = 512;
/// The preferred request where the file asks for nothing larger: a database page.
const PREFERRED_BYTES: u32 = 8192;

/// A file of a volume as a disk.
pub struct FileDisk {
    fs: FileSystem,
    file: Arc<File>,
    read_only: bool,
    preferred_bytes: u32,
    block_bytes: u64,
}

impl fmt::Debug for FileDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileDisk({:?})", self.file)
    }
}

impl FileDisk {
    /// Serves a file that is open for reading, and for writing unless `read_only`.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn new(fs: &FileSystem, file: File, read_only: bool) -> Result<Self> {
        let block_bytes = fs.statfs().block_size;
        let untorn_bytes = fs.untorn(file.ino())?.map_or(0, |untorn| untorn.bytes);
        Ok(Self {
            fs: fs.clone(),
            file: Arc::new(file),
            read_only,
            preferred_bytes: PREFERRED_BYTES.max(block_bytes).max(untorn_bytes),
            block_bytes: block_bytes.into(),
        })
    }
}

impl Disk for FileDisk {
    fn size_bytes(&self) -> Result<u64> {
        Ok(self.file.size())
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn preferred_bytes(&self) -> u32 {
        self.preferred_bytes
    }

    /// A change of the extent map, but for the edges.
    fn zeroes_fast(&self) -> bool {
        true
    }

    fn queue(&self, depth_max: usize) -> Result<Box<dyn DiskQueue>> {
        let options = QueueOptions { depth_max, ..QueueOptions::default() };
        let queue = Queue::new(&self.fs, &options)?;
        Ok(Box::new(FileQueue { file: Arc::clone(&self.file), queue, done: Vec::new() }))
    }

    fn is_for_queue(&self, offset: u64, len: u64) -> bool {
        (offset | len).is_multiple_of(SECTOR_BYTES)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = self.file.read_at(buf, offset)?;
        // A file that was cut meanwhile: behind its end are zeros, as behind that of a device that
        // grew.
        buf[len..].fill(0);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.file.write_at(buf, offset)?;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        if self.read_only { Ok(()) } else { Ok(self.file.sync_data()?) }
    }

    fn sync_range(&self, offset: u64, len: u64) -> Result<()> {
        Ok(self.file.sync_range(offset, len)?)
    }

    /// Whole blocks only: to zero the edges would write to blocks that stay.
    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let from = offset.next_multiple_of(self.block_bytes);
        let end = offset + len;
        let to = if end >= self.file.size() { end } else { end - end % self.block_bytes };
        if from >= to {
            return Ok(());
        }
        Ok(self.file.allocate(AllocateMode::PunchHole, from, to - from)?)
    }

    fn zero(&self, offset: u64, len: u64, zeroing: Zeroing) -> Result<()> {
        let mode = match zeroing {
            Zeroing::MayPunch => AllocateMode::PunchHole,
            Zeroing::KeepBlocks => AllocateMode::ZeroRange { keep_size: true },
        };
        Ok(self.file.allocate(mode, offset, len)?)
    }

    fn runs(&self, offset: u64, len: u64, limit: usize) -> Result<Vec<Run>> {
        holes::runs(&*self.file, offset, len, limit)
    }
}

impl Seek for File {
    fn data(&self, offset: u64) -> Result<Option<u64>> {
        Ok(self.seek_data(offset)?)
    }

    fn hole(&self, offset: u64) -> Result<Option<u64>> {
        Ok(self.seek_hole(offset)?)
    }

    /// What is preallocated and not written reads as zeros, as a hole does, and has blocks.
    fn split_hole(&self, from: u64, to: u64, limit: usize, runs: &mut Vec<Run>) -> Result<()> {
        let (mut at, room) = (from, runs.len() + limit);
        let mut add = |until: u64, allocation| {
            if until > at && runs.len() < room {
                runs.push(Run { len: until - at, allocation });
                at = until;
            }
        };
        let held = self.extent_at(from)?.filter(|extent| extent.file_offset < from);
        for extent in held.into_iter().chain(self.extents_from(from, limit)?) {
            let end = (extent.file_offset + extent.len).min(to);
            if extent.file_offset >= to {
                break;
            }
            add(extent.file_offset, Allocation::Hole);
            // Data that was written since the hole was found is not told as zeros.
            let unwritten = if extent.unwritten { Allocation::Unwritten } else { Allocation::Data };
            add(end, unwritten);
        }
        add(to, Allocation::Hole);
        Ok(())
    }
}

struct FileQueue {
    file: Arc<File>,
    queue: Queue,
    done: Vec<QueueCompletion>,
}

impl DiskQueue for FileQueue {
    fn readiness(&self) -> io::Result<Option<OwnedFd>> {
        self.queue.readiness()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn read(&mut self, buf: AlignedBuf, offset: u64, token: u64) -> Result<(), AlignedBuf> {
        self.queue.read(&self.file, buf, offset, token)
    }

    fn write(&mut self, buf: AlignedBuf, offset: u64, token: u64) -> Result<(), AlignedBuf> {
        self.queue.write(&self.file, buf, offset, token)
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Done>) -> Result<()> {
        self.queue.complete(min, &mut self.done)?;
        out.extend(self.done.drain(..).map(|completion| {
            let QueueCompletion { token, result, mut buf } = completion;
            if let (Ok(len), Some(buf)) = (&result, &mut buf) {
                buf[*len..].fill(0);
            }
            Done { token, result: result.map(drop).map_err(Into::into), buf }
        }));
        Ok(())
    }
}
