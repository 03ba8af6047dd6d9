//! Discovered direct I/O: aligned requests of a size pass the library cache (`direct-above`).
//!
//! ```text
//!   read or write ─► aligned, and as large? ─► no: through pages
//!                        │ yes
//!                        └► dirty pages of the range go to the device ─► the device ─► pages that a
//!                             │ they cannot: through pages               itself        write replaced
//!                             └► (the next sync tells the error)                       are forgotten
//! ```
//!
//! Nothing enters the cache, and nothing leaves it for a read. The order lock is held all the time,
//! so that no page of the range becomes dirty between the two steps, and a write is seen whole or
//! not at all (S-21): a reader that finds a page which it replaces finds the bytes of before, and one
//! that finds none waits for the lock.

use std::sync::atomic::Ordering;

use super::DataPath;
use super::windows::Ahead;
use super::write::Payload;
use crate::Result;
use crate::mode::Service;
use crate::statistics::Counters;
use bedplate_store::{PlantedBug, planted};

impl DataPath<'_> {
    /// Returns whether I/O of so many bytes is large.
    #[inline]
    pub(super) fn is_large(self, bytes: usize) -> bool {
        bytes as u64 >= self.fs.tuning().direct_above()
    }

    /// Returns whether I/O is to pass the library cache: it is large, the device takes it as it
    /// lies, and no caller's cache gathers it first.
    #[inline]
    pub(super) fn passes_cache(self, service: Service, bytes: &[u8], offset: u64) -> bool {
        self.is_large(bytes.len()) && !service.absorbs() && self.fs.grid().takes_at(bytes, offset)
    }

    /// Reads past the library cache; `None` where a dirty page of the range cannot be written, and
    /// is to be read where it is. The order lock is held.
    #[inline(never)]
    pub(super) fn read_large(self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        let cached = self.cached_if_any().filter(|_| !planted(PlantedBug::LargeReadPassesDirty));
        let written = cached.map(|cached| cached.write_dirty_range(offset, buf.len() as u64));
        if matches!(written, Some(Err(_))) {
            return Ok(None);
        }
        let held = self.state().lock.shared(self.fs);
        let size = self.inode.size.load(Ordering::Acquire);
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = buf.len().min(left);
        // The file may end further on by pages that are dirty: behind this one. On the device, what
        // lies beyond the end that it knows is undefined (I-IO-4).
        let size_below = self.uncached_size().min(size);
        let below =
            self.read_beside_waiting(&held, &mut buf[..], offset, size_below, Ahead::No)?.min(len);
        buf[below..len].fill(0);
        drop(held);
        self.count_large();
        self.count_read(len);
        Ok(Some(len))
    }

    /// Writes past the library cache; `false` where a dirty page of the range cannot be written, and
    /// is to be written over where it is. The order lock is held exclusively.
    #[inline(never)]
    pub(super) fn write_large(self, bytes: &[u8], offset: u64) -> Result<bool> {
        let data = Payload::new(bytes, offset)?;
        let announced = self
            .cached_if_any()
            .filter(|_| !planted(PlantedBug::LargeWriteUnannounced))
            .map(|cached| cached.begin_direct_write(offset, bytes.len() as u64))
            .transpose();
        let Ok(announced) = announced else { return Ok(false) };
        let written = self.write_uncached(Payload { is_cached: true, ..data });
        // Its pages are forgotten, also where a part of it may be on the device.
        drop(announced);
        written?;
        self.count_large();
        Ok(true)
    }

    fn count_large(self) {
        Counters::add(&self.inode.counters.large, 1);
    }
}
