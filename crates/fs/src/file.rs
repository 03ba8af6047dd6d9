//! An open file.

use crate::{AllocateMode, Attr, CounterSnapshot, ExtentInfo, InodeNo, IoMode, Result};

/// An open file. `&self` everywhere: any number of threads may read and write at once; what excludes what is the I/O mode's business.
///
/// Dropping the file closes it; errors of write-behind are reported by `sync_data`, not by the drop.
pub struct File {}

impl File {
    /// Reads up to `buf.len()` bytes at `offset`; short only at the end of the file. An aligned buffer is filled without a copy.
    ///
    /// # Errors
    /// `Io`; `NotPermitted` when not open for reading.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        todo!()
    }
    /// Writes all of `buf` at `offset` (at the end, when opened with `append`); returns the offset it was written at.
    ///
    /// # Errors
    /// `NoSpace`, `TooLarge`, `Io`, `ReadOnly`; `NotPermitted` when not open for writing. After an error any block-sized part may have been written.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<u64> {
        todo!()
    }
    /// Makes the data and what is needed to read it back durable (`fdatasync`).
    ///
    /// # Errors
    /// The latched error after a failed write or flush.
    pub fn sync_data(&self) -> Result<()> {
        todo!()
    }
    /// Makes data and all attributes durable (`fsync`).
    ///
    /// # Errors
    /// As [`sync_data`](Self::sync_data).
    pub fn sync_all(&self) -> Result<()> {
        todo!()
    }
    /// Returns the size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        todo!()
    }
    /// Cuts or extends (with a hole) to `size` bytes.
    ///
    /// # Errors
    /// `TooLarge`, `Io`, `ReadOnly`.
    pub fn set_size(&self, size: u64) -> Result<()> {
        todo!()
    }
    /// Changes the allocation of a range.
    ///
    /// # Errors
    /// `NoSpace`, `Invalid` (empty range; unaligned or past the end for collapse and insert), `TooLarge`, `Io`, `ReadOnly`.
    pub fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        todo!()
    }
    /// Returns the first offset at or after `offset` that holds data; `None` when there is none.
    ///
    /// # Errors
    /// `Io`.
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        todo!()
    }
    /// Returns the first offset at or after `offset` inside a hole (the end of the file counts as one); `None` when `offset` is past the end.
    ///
    /// # Errors
    /// `Io`.
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        todo!()
    }
    /// Returns the extent map.
    ///
    /// # Errors
    /// `Io`.
    pub fn extents(&self) -> Result<Vec<ExtentInfo>> {
        todo!()
    }
    /// Returns the attributes.
    ///
    /// # Errors
    /// `Io`.
    pub fn attr(&self) -> Result<Attr> {
        todo!()
    }
    /// Returns the inode.
    #[must_use]
    pub fn ino(&self) -> InodeNo {
        todo!()
    }
    /// Returns the mode this open asked for, after precedence.
    #[must_use]
    pub fn requested_mode(&self) -> IoMode {
        todo!()
    }
    /// Returns the mode the file is served in now (`cached` while conflicting opens exist).
    #[must_use]
    pub fn effective_mode(&self) -> IoMode {
        todo!()
    }
    /// Returns the file's counters since it was first opened.
    #[must_use]
    pub fn counters(&self) -> CounterSnapshot {
        todo!()
    }
}
