//! Positioned access to an open file or block device: what the device and all its queues share.

mod errno;

pub use errno::without_errno;
pub(crate) use errno::{from_errno, from_io};

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::check::{Limits, error};
use crate::counters::LiveCounters;
use crate::inline::{Positioned, Served};
use crate::{Error, ErrorKind, Geometry, Operation, Request, Result};

/// Asks for a write that a power cut does not tear; since Linux 6.11.
pub(crate) const RWF_ATOMIC: i32 = 0x40;

/// What kind of thing is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A block device.
    Block,
    /// A regular file that holds an image.
    Image,
}

/// An open device. Its claim on the device lasts as long as this value.
#[derive(Debug)]
pub(crate) struct Core {
    pub name: String,
    pub file: File,
    pub kind: Kind,
    pub geometry: Geometry,
    pub size_bytes: AtomicU64,
    pub counters: LiveCounters,
    /// The locks on what the device lies on, which end with them.
    pub _locks: Vec<File>,
}

/// Returns the size in bytes, not rounded.
pub(crate) fn size_bytes(file: &File) -> io::Result<u64> {
    // The end of a block device is its size, which `metadata` does not know. Nothing here uses the
    // file's position.
    (&mut &*file).seek(SeekFrom::End(0))
}

impl Core {
    /// Relaxed: a new size is learned only from the call that returns it.
    #[inline]
    pub fn limits(&self) -> Limits<'_> {
        Limits { geometry: &self.geometry, size_bytes: self.size_bytes.load(Relaxed) }
    }

    #[inline]
    fn checked(&self, operation: Operation, offset: u64, len: usize, addr: usize) -> Result<()> {
        self.limits().transfer(&self.name, operation, offset, len, addr)
    }

    /// Goes on after a transfer that moved less than asked, or was interrupted.
    #[cold]
    fn go_on(
        &self,
        operation: Operation,
        offset: u64,
        len: usize,
        first: rustix::io::Result<usize>,
        mut step: impl FnMut(usize) -> rustix::io::Result<usize>,
    ) -> Result<()> {
        let mut moved = 0;
        let mut result = first;
        loop {
            match result {
                Ok(0) => return Err(self.ended_early(operation, offset + moved as u64)),
                Ok(count) => moved += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    let at = Some(offset + moved as u64);
                    return Err(self.explain(operation, at, errno.raw_os_error()));
                }
            }
            if moved >= len {
                return Ok(());
            }
            result = step(moved);
        }
    }

    /// Refuses to call anything durable on a device that was cut short since it was opened. A write
    /// behind the end of a cut image succeeds, and what lies between reads as zeros: nothing else
    /// would notice.
    pub fn require_whole(&self) -> Result<()> {
        self.cut_short(Operation::Flush, None).map_or(Ok(()), Err)
    }

    /// Makes the error of a failed transfer. The kernel has several for one behind the end of a
    /// device that was cut short, "no space" among them.
    #[cold]
    pub fn explain(&self, operation: Operation, offset: Option<u64>, errno: i32) -> Error {
        self.cut_short(operation, offset)
            .unwrap_or_else(|| from_errno(&self.name, operation, offset, errno))
    }

    /// Returns the error of a device that is shorter than it was.
    fn cut_short(&self, operation: Operation, offset: Option<u64>) -> Option<Error> {
        let size = self.size_bytes.load(Relaxed);
        match size_bytes(&self.file) {
            Ok(left) if left >= size => None,
            // It is cut off on purpose at this moment.
            Ok(_) if self.size_bytes.load(Relaxed) != size => self.cut_short(operation, offset),
            Ok(left) => {
                let detail = format!(
                    "the device was cut short while it was in use, to {left} of its {size} bytes: \
                     restore the missing end"
                );
                Some(error(&self.name, ErrorKind::Io, operation, offset, detail))
            }
            Err(error) => Some(from_io(&self.name, operation, offset, &error)),
        }
    }

    /// Makes the error of a transfer that moved nothing within the device's size.
    pub fn ended_early(&self, operation: Operation, offset: u64) -> Error {
        let ended = || {
            error(
                &self.name,
                ErrorKind::Io,
                operation,
                Some(offset),
                "the device moved no more bytes, although it has not ended".to_owned(),
            )
        };
        self.cut_short(operation, Some(offset)).unwrap_or_else(ended)
    }

    #[inline]
    fn read_uncounted(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.checked(Operation::Read, offset, buf.len(), buf.as_ptr() as usize)?;
        // Straight to the kernel: the C library makes each a cancellation point, two locked
        // instructions.
        match rustix::io::pread(&self.file, &mut *buf, offset) {
            Ok(count) if count == buf.len() => Ok(()),
            first => self.go_on(Operation::Read, offset, buf.len(), first, |from| {
                rustix::io::pread(&self.file, &mut buf[from..], offset + from as u64)
            }),
        }
    }

    /// Says whether a write must be asked for as untorn: longer than a block, which never tears,
    /// and within what the device promises.
    #[inline]
    pub fn is_untorn(&self, offset: u64, len: u64) -> bool {
        let beyond_a_block = len > u64::from(self.geometry.logical_block_size)
            && len <= u64::from(self.geometry.untorn_unit);
        beyond_a_block && len.is_power_of_two() && offset.is_multiple_of(len)
    }

    /// Writes so that a power cut leaves all of it or nothing; the kernel would be free to split a
    /// plain write.
    #[cold]
    fn write_untorn(&self, buf: &[u8], offset: u64) -> Result<()> {
        let flags = rustix::io::ReadWriteFlags::from_bits_retain(RWF_ATOMIC as u32);
        let written = rustix::io::retry_on_intr(|| {
            rustix::io::pwritev2(&self.file, &[io::IoSlice::new(buf)], offset, flags)
        });
        match written {
            Ok(count) if count == buf.len() => Ok(()),
            Ok(_) => Err(self.ended_early(Operation::Write, offset)),
            Err(errno) => Err(self.explain(Operation::Write, Some(offset), errno.raw_os_error())),
        }
    }

    #[inline]
    fn write_uncounted(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.checked(Operation::Write, offset, buf.len(), buf.as_ptr() as usize)?;
        if self.is_untorn(offset, buf.len() as u64) {
            return self.write_untorn(buf, offset);
        }
        match rustix::io::pwrite(&self.file, buf, offset) {
            Ok(count) if count == buf.len() => Ok(()),
            first => self.go_on(Operation::Write, offset, buf.len(), first, |from| {
                rustix::io::pwrite(&self.file, &buf[from..], offset + from as u64)
            }),
        }
    }
}

impl Positioned for Core {
    #[inline]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        let result = self.read_uncounted(buf, offset);
        self.counters.note(Operation::Read, len, result.is_ok());
        result
    }

    #[inline]
    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let result = self.write_uncounted(buf, offset);
        self.counters.note(Operation::Write, buf.len() as u64, result.is_ok());
        result
    }

    fn flush(&self) -> Result<()> {
        // `sync_data` is fdatasync, repeated while interrupted. After an error it is not repeated:
        // the kernel has dropped what it held.
        let result = self
            .file
            .sync_data()
            .map_err(|error| from_io(&self.name, Operation::Flush, None, &error))
            .and_then(|()| self.require_whole());
        self.counters.count(Operation::Flush, 0, result)
    }

    #[inline]
    fn check(&self, request: &Request) -> Result<()> {
        let result = self.limits().request(&self.name, request);
        if result.is_err() {
            self.counters.note(Operation::Queue, 0, false);
        }
        result
    }
}

impl Served for Core {
    fn name(&self) -> &str {
        &self.name
    }

    fn counters(&self) -> &LiveCounters {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;

    fn core(file: File, untorn_unit: u32) -> Core {
        let geometry = Geometry { untorn_unit, ..crate::MemoryDevice::GEOMETRY };
        let (size_bytes, counters) = (AtomicU64::new(1 << 20), LiveCounters::default());
        Core {
            name: "core".into(),
            file,
            kind: Kind::Image,
            geometry,
            size_bytes,
            counters,
            _locks: Vec::new(),
        }
    }

    #[test]
    fn only_writes_the_promise_is_for_are_asked_for_as_untorn() {
        let core = core(tempfile::tempfile().unwrap(), 16384);
        for (offset, len) in [(0, 1024), (4096, 4096), (16384, 16384), (49152, 16384)] {
            assert!(core.is_untorn(offset, len), "{len} at {offset}");
        }
        for (offset, len) in [(0, 512), (4096, 8192), (0, 12288), (0, 32768), (8192, 16384), (0, 0)]
        {
            assert!(!core.is_untorn(offset, len), "{len} at {offset}");
        }
    }

    #[test]
    fn an_untorn_write_the_system_refuses_fails_and_is_not_torn_instead() {
        // A file that was not opened for direct I/O takes no untorn writes.
        let core = core(tempfile::tempfile().unwrap(), 16384);
        assert!(core.write(&AlignedBuf::zeroed(8192), 0).is_err());
        assert_eq!(core.file.metadata().unwrap().len(), 0);
        core.write(&AlignedBuf::zeroed(12288), 0).unwrap();
    }
}
