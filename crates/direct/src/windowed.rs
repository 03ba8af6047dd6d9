//! What windows are read from and written to: a file of the system, or one of a server.

use std::path::Path;

use crate::error::Result;
use crate::file::{DirectFile, Route};

/// A file that is read and written in windows. Threads share it.
pub(crate) trait Windowed: Send + Sync + std::fmt::Debug {
    /// Returns how it is named.
    fn path(&self) -> &Path;
    /// Offsets and lengths of requests are multiples of this, a power of two.
    fn grid(&self) -> u64;
    /// Returns how it was read or written so far.
    fn route(&self) -> Route;
    /// Returns whether its end moves.
    fn is_regular(&self) -> Result<bool>;
    /// Returns how many bytes can be read.
    fn size(&self) -> Result<u64>;
    /// Reads until the buffer is full or the file ends; returns how much was read.
    fn read(&self, buf: &mut [u8], at: u64) -> Result<usize>;
    /// Writes all of it.
    fn write(&self, bytes: &[u8], at: u64) -> Result<()>;
    /// Makes what was written durable.
    fn sync(&self) -> Result<()>;
    /// Moves its end.
    fn set_size(&self, size: u64) -> Result<()>;
}

impl Windowed for DirectFile {
    fn path(&self) -> &Path {
        self.path()
    }

    fn grid(&self) -> u64 {
        self.grid()
    }

    fn route(&self) -> Route {
        self.route()
    }

    fn is_regular(&self) -> Result<bool> {
        self.is_regular()
    }

    fn size(&self) -> Result<u64> {
        self.size()
    }

    fn read(&self, buf: &mut [u8], at: u64) -> Result<usize> {
        self.read(buf, at)
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.write(bytes, at)
    }

    fn sync(&self) -> Result<()> {
        self.sync()
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.set_size(size)
    }
}
