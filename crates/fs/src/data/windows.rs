//! Reading ahead past the caches: a reader that goes on gets the next bytes in one read of the device
//! (`inode/read_windows.rs`).
//!
//! ```text
//!   read ─► in a window? yes ─► copied, or lent; in its second half, or much of it: what follows, as a window, by a thread
//!             │ no
//!             ├► goes on where the read before through this open ended?
//!             │     ├► small: the next 128 KiB to 2 MiB of its extent, as a window
//!             │     └► large: what follows, as a window, by a thread; and itself as any read
//!             ├► fills pages of the kernel that nothing will read, because a program named it? ─► a window, until it is read
//!             └► as any read
//! ```
//!
//! So the device reads what comes next while the bytes before it are on their way to the program.
//!
//! What has checksums has no windows: it is compared with them as it is read. Nor has a file with a
//! lease, whose clients write to the device by themselves, unless it rests on the mount.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use super::DataPath;
use super::follow::Follow;
use crate::Result;
use crate::engine::{Engine, Listed};
use crate::inode::{FillingWindow, Found, Inode, WaitingWindow, WhyWindow as Why, WindowBytes};
use crate::statistics::Counters;
use bedplate_store::ExtentState;

/// Reads with `O_DIRECT` of such a part of the longest window are read ahead.
const DIRECT_PART: u64 = 4;

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
    Stream(Stream<'a>),
    /// A program will need it.
    Hint,
}

/// A reader that goes on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream<'a> {
    pub(crate) follow: &'a Follow,
    /// Takes what is found in a window, which is not copied then.
    pub(crate) lends: Option<&'a RefCell<Option<WindowBytes>>>,
}

impl Ahead<'_> {
    /// Returns whether a read has nothing to do with windows.
    #[inline]
    pub(super) fn is_off(self) -> bool {
        matches!(self, Self::No)
    }
}

impl<'a> DataPath<'a> {
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
        if !self.is_on_mount() || len > self.fs.limits().read_window_bytes {
            return Ok(false);
        }
        let Some(at) = self.find_written(offset, len)? else { return Ok(false) };
        match self.state().read_windows.find(&(at..at + len)) {
            Found::Bytes(bytes) => {
                if bytes.passes {
                    self.read_further(offset + len + bytes.left(), len, size, ahead);
                }
                Counters::add(&self.inode.counters.window_hits, 1);
                self.state().steady.io_counters.count_indirect();
                match ahead {
                    Ahead::Stream(Stream { lends: Some(lends), .. }) => {
                        *lends.borrow_mut() = Some(bytes);
                    }
                    _ => buf.copy_from_slice(&bytes),
                }
                Ok(true)
            }
            Found::Part | Found::Nothing if self.is_large_for_window(len) => {
                self.read_further(offset + len, len, size, ahead);
                Ok(false)
            }
            Found::Part => Ok(false),
            Found::Nothing => match ahead {
                Ahead::Stream(stream) => {
                    let end = self.window_end(offset + len, len, size, stream);
                    self.fill_window(buf, offset..end, at, Why::Stream)
                }
                Ahead::Hint => self.fill_window(buf, offset..offset + len, at, Why::Asked),
                Ahead::No | Ahead::Asked | Ahead::Near => Ok(false),
            },
        }
    }

    /// Returns whether reads of a length are large by themselves: each is a window.
    fn is_large_for_window(self, len: u64) -> bool {
        len > self.fs.limits().read_window_bytes / 2
    }

    /// Returns whether reads of a length are read ahead although they ask for direct I/O: a program
    /// that reads so much at once goes through a file, and does not pick pages.
    pub(crate) fn is_long_for_direct(self, len: u64) -> bool {
        len >= self.fs.limits().read_window_bytes / DIRECT_PART
    }

    /// Returns where the next window of a stream of reads of `len` bytes ends that has what lies before
    /// `upto`: it holds two of them at least.
    fn window_end(self, upto: u64, len: u64, size: u64, stream: Stream<'_>) -> u64 {
        let most = self.fs.limits().read_window_bytes;
        let wanted = stream.follow.widen(most).max((2 * len).next_power_of_two()).min(most);
        upto.next_multiple_of(wanted).min(self.fs.grid().sector_floor(size))
    }

    /// Has a thread read what a stream of reads of `len` bytes reads next, from `begin` on, where that
    /// can be: what is wrong there is told to the read that asks for it.
    fn read_further(self, begin: u64, len: u64, size: u64, ahead: Ahead<'_>) {
        let Ahead::Stream(stream) = ahead else { return };
        let end = if self.is_large_for_window(len) {
            (begin + len).min(self.fs.grid().sector_floor(size))
        } else {
            self.window_end(begin + 1, len, size, stream)
        };
        if end <= begin {
            return;
        }
        let (range, sector) = (begin..end, self.fs.grid().sector);
        let Ok(Some(at)) = self.find_written(begin, sector) else { return };
        let Ok(Some((filling, len))) = self.begin_window(&range, at, Why::Stream, 1) else {
            return;
        };
        let waiting = filling.leave();
        let number = waiting.number;
        if !self.fs.read_window_behind(self.inode, waiting, at, len) {
            self.state().read_windows.let_go(number);
        }
    }

    /// Begins the window of a range of the file, as far as it lies together from `at` on; returns how
    /// many bytes it has. `None`: it cannot be, or has fewer than `least`.
    fn begin_window(
        self,
        range: &Range<u64>,
        at: u64,
        why: Why,
        least: u64,
    ) -> Result<Option<(FillingWindow<'a>, usize)>> {
        debug_assert!(
            self.state().lock.is_held(),
            "I-WIN-2: what is looked up stays the file's while the inode lock is held"
        );
        let bytes = (range.end - range.start).min(self.run_from(range.start)?);
        let max = self.fs.tuning().read_window_bytes_max();
        if max == 0 || bytes < least {
            return Ok(None);
        }
        let windows = &self.inode.data.read_windows;
        let begun = windows.begin(&(at..at + bytes), why, self.fs.window_bytes(), max);
        let Some(filling) = begun else { return Ok(None) };
        self.fs.list(Listed::Windowed, self.inode);
        // I-WIN-2: from here on blocks that leave the file make the window go.
        let is_there = self.find_written(range.start, bytes)? == Some(at);
        Ok(is_there.then_some((filling, bytes as usize)))
    }

    /// Reads a range of the file, as far as it lies together from `at` on, into a window, and its
    /// beginning into `buf`. What cannot be read ahead fails no read: `false`.
    fn fill_window(self, buf: &mut [u8], range: Range<u64>, at: u64, why: Why) -> Result<bool> {
        // A stream's has more than the read.
        let least = buf.len() as u64 + u64::from(why == Why::Stream);
        let Some((mut filling, bytes)) = self.begin_window(&range, at, why, least)? else {
            return Ok(false);
        };
        let mut memory = filling.memory(bytes);
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
    /// Has a thread read a window, of `len` bytes of the device at `at`; `false` where there is none.
    fn read_window_behind(
        &self,
        inode: &Arc<Inode>,
        waiting: WaitingWindow,
        at: u64,
        len: usize,
    ) -> bool {
        let (fs, inode) = (self.weak(), Arc::downgrade(inode));
        self.window_threads().submit(move || {
            let (Some(fs), Some(inode)) = (fs.upgrade(), inode.upgrade()) else { return };
            let Some(mut filling) = inode.data.read_windows.resume(waiting) else { return };
            let mut memory = filling.memory(len);
            if fs.read_device(&mut memory, at).is_ok() {
                filling.fill(memory);
            }
        })
    }

    /// Lets go of windows that no reader used between two turns of the sync daemon.
    pub(crate) fn let_windows_go(&self) {
        for inode in self.listed(Listed::Windowed) {
            if inode.data.read_windows.rest() {
                self.unlist(Listed::Windowed, inode.ino, &std::sync::Arc::downgrade(&inode));
            }
        }
    }
}
