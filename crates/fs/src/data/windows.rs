//! Reading ahead past the caches: a reader that goes on gets the next bytes in one read of the device
//! (`inode/read_windows.rs`).
//!
//! ```text
//!   read ─► in a window? yes ─► copied
//!             │ no
//!             ├► goes on where the read before through this open ended? ─► the next 128 KiB to 1 MiB of its extent, as a window
//!             ├► fills pages of the kernel that nothing will read, because a program named it? ─► a window, until it is read
//!             └► as any read
//! ```
//!
//! What has checksums has no windows: it is compared with them as it is read. Nor has a file with a
//! lease, whose clients write to the device by themselves, unless it rests on the mount.

use std::ops::Range;

use super::DataPath;
use super::follow::Follow;
use crate::Result;
use crate::engine::{Engine, Listed};
use crate::inode::{Found, WhyWindow as Why};
use crate::statistics::Counters;
use bedplate_store::ExtentState;

/// What a read may find in windows, and leave there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ahead<'a> {
    /// Nothing.
    No,
    /// It may be one that was asked for.
    Asked,
    /// It lies near where a reader goes on.
    Near,
    /// It goes on.
    Stream(&'a Follow),
    /// A program will need it.
    Hint,
}

impl Ahead<'_> {
    /// Returns whether a read has nothing to do with windows.
    #[inline]
    pub(super) fn is_off(self) -> bool {
        matches!(self, Self::No)
    }
}

impl DataPath<'_> {
    /// Fills a buffer that the device takes, from an offset that the device takes, from a window;
    /// `false` where it is to be read otherwise.
    #[inline(never)]
    pub(super) fn read_ahead(
        self,
        buf: &mut [u8],
        offset: u64,
        size: u64,
        ahead: Ahead<'_>,
    ) -> Result<bool> {
        let windows = &self.state().read_windows;
        let looks = match ahead {
            Ahead::No => false,
            Ahead::Asked => windows.any_asked(),
            Ahead::Near => windows.any(),
            Ahead::Stream(_) | Ahead::Hint => true,
        };
        if looks { self.read_window(buf, offset, size, ahead) } else { Ok(false) }
    }

    #[inline(never)]
    fn read_window(self, buf: &mut [u8], offset: u64, size: u64, ahead: Ahead<'_>) -> Result<bool> {
        let len = buf.len() as u64;
        if !self.is_on_mount() || len > self.fs.limits().read_window_bytes / 2 {
            return Ok(false);
        }
        let Some(at) = self.find_written(offset, len)? else { return Ok(false) };
        match self.state().read_windows.find(&(at..at + len)) {
            Found::Bytes(bytes, skip) => {
                buf.copy_from_slice(&bytes[skip..skip + buf.len()]);
                Counters::add(&self.inode.counters.window_hits, 1);
                self.state().steady.io_counters.count_indirect();
                Ok(true)
            }
            Found::Coming => Ok(false),
            Found::Nothing => match ahead {
                Ahead::Stream(follow) => {
                    let wanted = follow.widen(self.fs.limits().read_window_bytes);
                    let end = (offset + len).next_multiple_of(wanted);
                    let end = end.min(self.fs.grid().sector_floor(size));
                    self.fill_window(buf, offset..end, at, Why::Stream)
                }
                Ahead::Hint => self.fill_window(buf, offset..offset + len, at, Why::Asked),
                Ahead::No | Ahead::Asked | Ahead::Near => Ok(false),
            },
        }
    }

    /// Reads a range of the file, as far as it lies together from `at` on, into a window, and its
    /// beginning into `buf`. What cannot be read ahead fails no read: `false`.
    fn fill_window(self, buf: &mut [u8], range: Range<u64>, at: u64, why: Why) -> Result<bool> {
        debug_assert!(
            self.state().lock.is_held(),
            "I-WIN-2: what is looked up stays the file's while the inode lock is held"
        );
        let bytes = (range.end - range.start).min(self.run_from(range.start)?);
        let max = self.fs.tuning().read_window_bytes_max();
        let len = buf.len() as u64;
        if max == 0 || bytes < len || (bytes == len && why == Why::Stream) {
            return Ok(false);
        }
        let windows = &self.state().read_windows;
        let begun = windows.begin(&(at..at + bytes), why, self.fs.window_bytes(), max);
        let Some(mut filling) = begun else { return Ok(false) };
        self.fs.list(Listed::Windowed, self.inode);
        // I-WIN-2: from here on blocks that leave the file make the window go.
        if self.find_written(range.start, bytes)? != Some(at) {
            return Ok(false);
        }
        let mut memory = filling.memory(bytes as usize);
        if self.fs.read_device(&mut memory, at).is_err() {
            return Ok(false);
        }
        buf.copy_from_slice(&memory[..buf.len()]);
        filling.fill(memory);
        Ok(true)
    }

    /// Returns how many bytes from a byte of the file on lie together in one written extent.
    fn run_from(self, offset: u64) -> Result<u64> {
        let grid = self.fs.grid();
        let block = grid.block_of(offset);
        let map = self.map(block..block + 1)?;
        let found = map.holding(block).filter(|(_, extent)| extent.state == ExtentState::Written);
        Ok(found.map_or(0, |(first, extent)| {
            grid.start_of(first.0 + u64::from(extent.blocks)) - offset
        }))
    }
}

impl Engine {
    /// Lets go of windows that no reader used between two turns of the sync daemon.
    pub(crate) fn let_windows_go(&self) {
        for inode in self.listed(Listed::Windowed) {
            if inode.data.read_windows.rest() {
                self.unlist(Listed::Windowed, inode.ino, &std::sync::Arc::downgrade(&inode));
            }
        }
    }
}
