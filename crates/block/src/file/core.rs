//! Positioned access to an open file or block device: what the device and all its queues share.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::errno::from_io;
use crate::check::{Limits, error};
use crate::counters::Counters;
use crate::inline::Positioned;
use crate::{Error, ErrorKind, Geometry, Operation, Request, Result};

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
    pub counters: Counters,
}

impl Core {
    /// Relaxed: whoever learned of a new size did so by a call that returned it.
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
        first: io::Result<usize>,
        mut step: impl FnMut(usize) -> io::Result<usize>,
    ) -> Result<()> {
        let mut moved = 0;
        let mut result = first;
        loop {
            match result {
                Ok(0) => return Err(self.ended_early(operation, offset + moved as u64)),
                Ok(count) => moved += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(from_io(&self.name, operation, Some(offset + moved as u64), &error)),
            }
            if moved >= len {
                return Ok(());
            }
            result = step(moved);
        }
    }

    /// Makes the error of a transfer that moved nothing within the device's size.
    pub fn ended_early(&self, operation: Operation, offset: u64) -> Error {
        let detail = "the device ends before its size; it was cut short since it was opened".to_owned();
        error(&self.name, ErrorKind::Io, operation, Some(offset), detail)
    }

    #[inline]
    fn read_uncounted(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.checked(Operation::Read, offset, buf.len(), buf.as_ptr() as usize)?;
        match self.file.read_at(buf, offset) {
            Ok(count) if count == buf.len() => Ok(()),
            first => self.go_on(Operation::Read, offset, buf.len(), first, |from| self.file.read_at(&mut buf[from..], offset + from as u64)),
        }
    }

    #[inline]
    fn write_uncounted(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.checked(Operation::Write, offset, buf.len(), buf.as_ptr() as usize)?;
        match self.file.write_at(buf, offset) {
            Ok(count) if count == buf.len() => Ok(()),
            first => self.go_on(Operation::Write, offset, buf.len(), first, |from| self.file.write_at(&buf[from..], offset + from as u64)),
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
        // `sync_data` is fdatasync, repeated while interrupted. After an error it is not repeated: the kernel has dropped what it held.
        let result = self.file.sync_data().map_err(|error| from_io(&self.name, Operation::Flush, None, &error));
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
