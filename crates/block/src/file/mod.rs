//! Block devices and image files: positioned calls from the caller's thread, queues by the engine
//! that the system allows.

mod backing;
mod exclusive;
mod holders;
mod loops;
mod open;
mod probe;
mod target;

pub use backing::Backing;
pub(crate) use open::open;
pub use open::{DeviceOptions, Engine, create_image};

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use rustix::fs::{FallocateFlags, OFlags, fcntl_getfl};

use crate::check::error;
use crate::descriptor::{self, Core, Kind, from_io};
use crate::inline::Positioned;
use crate::threads::Servers;
use crate::uring::{self, UringQueue};
use crate::{
    AlignedBuf, BlockDevice, DeviceCounters, DeviceQueue, EngineReport, Error, ErrorKind, Geometry,
    Lent, Operation, QueueOptions, Result,
};

/// A block device or an image file, opened by [`open`].
#[derive(Debug)]
pub(crate) struct FileDevice {
    core: Arc<Core>,
    engine: Engine,
    /// Where io_uring is forbidden, or not wanted.
    servers: Servers,
    /// Why the page cache is not bypassed although it should be.
    buffered: Option<String>,
    /// Why io_uring does not serve the queues although it should.
    forbidden: OnceLock<String>,
}

impl FileDevice {
    /// Chooses the engine.
    fn start(core: Core, options: &DeviceOptions, buffered: Option<String>) -> Result<Self> {
        let device = Self {
            core: Arc::new(core),
            engine: options.engine,
            servers: Servers::new(options.server_threads),
            buffered,
            forbidden: OnceLock::new(),
        };
        if options.engine != Engine::Threads
            && let Err(reason) = uring::probe()
        {
            device.forbid_uring(reason)?;
        }
        Ok(device)
    }

    /// Turns to the server threads, unless io_uring was demanded.
    fn forbid_uring(&self, reason: String) -> Result<()> {
        if self.engine == Engine::Uring {
            return Err(error(
                &self.core.name,
                ErrorKind::Unsupported,
                Operation::Open,
                None,
                reason,
            ));
        }
        tracing::warn!(device = self.core.name, reason, "server threads instead of io_uring");
        self.forbidden.get_or_init(|| reason);
        Ok(())
    }

    fn has_servers(&self) -> bool {
        self.engine == Engine::Threads || self.forbidden.get().is_some()
    }

    fn thread_queue(&self, options: &QueueOptions) -> Box<dyn DeviceQueue> {
        Box::new(self.servers.queue(&self.core, options))
    }

    fn change(
        &self,
        offset: u64,
        len: u64,
        carry_out: impl FnOnce() -> io::Result<()>,
    ) -> Result<()> {
        self.core.limits().range(&self.core.name, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        carry_out()
            .map_err(|error| from_io(&self.core.name, Operation::Discard, Some(offset), &error))
    }

    /// Passes on that a range is not needed; returns whether the system took that.
    fn hint(
        &self,
        offset: u64,
        len: u64,
        carry_out: impl FnOnce() -> io::Result<()>,
    ) -> Result<bool> {
        let mut taken = true;
        let result = self.change(offset, len, || {
            carry_out().or_else(|error| {
                taken = false;
                if is_unsupported(&error) { Ok(()) } else { Err(error) }
            })
        });
        self.core.counters.count(Operation::Queue, 0, result)?;
        Ok(taken)
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        &self.core.name
    }

    fn geometry(&self) -> Geometry {
        self.core.geometry
    }

    fn size_bytes(&self) -> u64 {
        self.core.size_bytes.load(Relaxed)
    }

    fn refresh_size(&self) -> Result<u64> {
        let size = descriptor::size_bytes(&self.core.file)
            .map_err(|error| from_io(&self.core.name, Operation::Resize, None, &error))?;
        let size = size - size % u64::from(self.core.geometry.logical_block_size);
        self.core.size_bytes.store(size, Relaxed);
        Ok(size)
    }

    fn cut_off(&self, size_bytes: u64) -> Result<bool> {
        if matches!(self.core.kind, Kind::Block) || self.core.geometry.read_only {
            return Ok(false);
        }
        // First: a flush meanwhile finds a file that is not too short (S-33).
        let before = self.core.size_bytes.swap(size_bytes, Relaxed);
        if size_bytes >= before {
            self.core.size_bytes.store(before, Relaxed);
            return Ok(false);
        }
        rustix::fs::ftruncate(&self.core.file, size_bytes)
            .map_err(|error| from_io(&self.core.name, Operation::Resize, None, &error.into()))?;
        Ok(true)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.core.read(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.core.write(buf, offset)
    }

    fn flush(&self) -> Result<()> {
        self.core.flush()
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let file = &self.core.file;
        let offloaded = || match self.core.kind {
            Kind::Block => block_range(file, BLKZEROOUT, offset, len),
            Kind::Image => image_range(file, FallocateFlags::ZERO_RANGE, offset, len),
        };
        let result = self.change(offset, len, || match offloaded() {
            Err(error) if is_unsupported(&error) => zero_by_hand(file, offset, len),
            result => result,
        });
        self.core.counters.count(Operation::Write, len, result)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        let file = &self.core.file;
        self.hint(offset, len, || match self.core.kind {
            Kind::Block => block_range(file, BLKDISCARD, offset, len),
            Kind::Image => punch(file, offset, len),
        })
    }

    /// The kernel punches holes into block devices that zero and unmap by themselves, and refuses
    /// it for all others (`blkdev_fallocate`).
    fn discard_to_zeros(&self, offset: u64, len: u64) -> Result<bool> {
        self.hint(offset, len, || punch(&self.core.file, offset, len))
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        if self.has_servers() {
            return Ok(self.thread_queue(options));
        }
        match UringQueue::new(Arc::clone(&self.core), options) {
            Ok(queue) => Ok(Box::new(queue)),
            // Allowed when the device was opened and forbidden since: this process, or this thread,
            // gave up rights.
            Err(Error { errno: Some(errno), .. }) if uring::is_refusal(errno) => {
                self.forbid_uring(uring::refusal(errno))?;
                Ok(self.thread_queue(options))
            }
            Err(error) => Err(error),
        }
    }

    fn lend(&self, read_only: bool) -> Result<Option<Lent>> {
        let failed = |error: io::Error| from_io(&self.core.name, Operation::Open, None, &error);
        let flags = fcntl_getfl(&self.core.file).map_err(|error| failed(error.into()))?;
        // One that is buffered has a copy in the kernel's page cache.
        if !flags.contains(OFlags::DIRECT) {
            return Ok(None);
        }
        let path = format!("/proc/self/fd/{}", self.core.file.as_raw_fd());
        let io = OpenOptions::new()
            .read(true)
            .write(!read_only)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .map_err(failed)?;
        let claim = self.core.file.try_clone().map_err(failed)?;
        Ok(Some(Lent { claim: claim.into(), io: io.into() }))
    }

    fn engine(&self) -> EngineReport {
        let reasons: Vec<&str> =
            self.buffered.iter().chain(self.forbidden.get()).map(String::as_str).collect();
        let fallback = (!reasons.is_empty()).then(|| reasons.join("; "));
        if !self.has_servers() {
            return EngineReport { name: "io_uring", fallback, threads: None };
        }
        EngineReport { name: "threads", fallback, threads: Some(self.servers.told()) }
    }

    fn counters(&self) -> DeviceCounters {
        self.core.counters.snapshot()
    }
}

/// `_IO(0x12, 119)` and `_IO(0x12, 127)`; counted from `_IO(0x12, 104)` because the base differs
/// between architectures.
const BLKDISCARD: libc::Ioctl = libc::BLKSSZGET + 15;
const BLKZEROOUT: libc::Ioctl = libc::BLKSSZGET + 23;

/// Discards or zeroes a range of a block device.
fn block_range(file: &File, request: libc::Ioctl, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: the descriptor is open for as long as `file` is borrowed; both requests read two
    // 64-bit numbers from the pointer, and the array outlives the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, range.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    image_range(file, FallocateFlags::PUNCH_HOLE, offset, len)
}

/// Zeroes a range of a file or punches it out; the size stays.
fn image_range(file: &File, how: FallocateFlags, offset: u64, len: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, how | FallocateFlags::KEEP_SIZE, offset, len)?)
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY))
}

/// Zeroes a range where nothing does it for us.
fn zero_by_hand(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let zeros = AlignedBuf::zeroed(len.min(1 << 20) as usize);
    let mut done = 0;
    while done < len {
        let part = (len - done).min(zeros.len() as u64) as usize;
        file.write_all_at(&zeros[..part], offset + done)?;
        done += part as u64;
    }
    Ok(())
}
