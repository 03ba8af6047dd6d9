//! Windows: bytes of the device that a sequential reader past the caches is about to ask for, read
//! in one piece before it asks; and those that a program said it would need.
//!
//! ```text
//!   begun: its place is known to writers ─► looked up again, read ─► filled ─► found by reads
//!        │                                                             │
//!        └─────────────── a write of its place, blocks that leave the file, the last close, a new one in its place ─► gone
//! ```
//!
//! They lie by their place on the device, so what a read looks up in the map is what it gets. A
//! write makes the windows of what it touches go twice: before it is issued, so that no reader finds
//! there what others see changed already, and after it has ended, because only then a read of the
//! device that began meanwhile is known to be old.
//!
//! - I-WIN-1: a window that a reader finds holds what the device held at its place after the last
//!   write of it that had returned.
//! - I-WIN-2: a window is begun before its place is looked up the last time and read, under the inode
//!   lock, shared: blocks that leave the file make it go.
//! - I-WIN-3: windows of a file do not overlap.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use bedplate_block::AlignedBuf;
use bedplate_block::sync::{Mutex, rank};
use bedplate_store::{PlantedBug, planted};

use super::share::{Share, SharedBytes};
use super::steady::Bit;

/// How many windows a file has at most.
const WINDOWS_MAX: usize = 4;
/// How many that programs asked for.
const ASKED_MAX: usize = 64;

/// Why there is a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// A reader goes on there.
    Stream,
    /// A program said that it would need it: it goes once it was read.
    Asked,
}

#[derive(Debug)]
struct Window {
    /// On the device.
    start: u64,
    len: u64,
    why: Why,
    /// Tells it from one that was begun at the same place later.
    number: u64,
    /// `None` while it is read.
    bytes: Option<Arc<AlignedBuf>>,
    /// Since the last turn of the sync daemon.
    used: bool,
    _share: Share,
}

impl Window {
    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.start < range.end && range.start < self.start + self.len
    }

    fn holds(&self, range: &Range<u64>) -> bool {
        self.start <= range.start && range.end <= self.start + self.len
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// The one that was used last is the last.
    windows: Vec<Window>,
    begun: u64,
}

/// The windows of one file.
#[derive(Debug)]
pub(crate) struct ReadWindows {
    any: Bit,
    asked: AtomicBool,
    /// Leaf.
    inner: Mutex<Inner, { rank::READ_WINDOWS }>,
}

/// What there is of a range.
#[derive(Debug)]
pub(crate) enum Found {
    /// All of it, that many bytes into the window.
    Bytes(Arc<AlignedBuf>, usize),
    /// Some of it, or it is being read.
    Coming,
    Nothing,
}

/// A window that is being read; dropped without [`fill`](Self::fill) it goes.
#[derive(Debug)]
pub(crate) struct Filling<'a> {
    windows: &'a ReadWindows,
    number: u64,
    memory: Option<AlignedBuf>,
}

impl Filling<'_> {
    /// Returns memory of the length of the window, content unspecified.
    pub(crate) fn memory(&mut self, len: usize) -> AlignedBuf {
        self.memory
            .take()
            .filter(|memory| memory.len() == len)
            .unwrap_or_else(|| AlignedBuf::zeroed(len))
    }

    /// Lets readers find what was read, unless a write or a change of the map came in between.
    pub(crate) fn fill(self, bytes: AlignedBuf) {
        let mut inner = self.windows.inner.lock();
        if let Some(window) = inner.windows.iter_mut().find(|it| it.number == self.number) {
            debug_assert_eq!(window.len, bytes.len() as u64, "I-WIN-1: all of it was read");
            window.bytes = Some(Arc::new(bytes));
        }
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.windows.retain(|window| window.number != self.number || window.bytes.is_some());
    }
}

/// A write of the device below which windows may lie.
#[must_use]
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    windows: &'a ReadWindows,
    range: Range<u64>,
}

impl Drop for Writing<'_> {
    #[inline]
    fn drop(&mut self) {
        self.windows.wrote(&self.range);
    }
}

impl ReadWindows {
    pub(super) fn new(any: Bit) -> Self {
        Self { any, asked: AtomicBool::new(false), inner: Mutex::default() }
    }

    /// Returns whether there is one, or was a moment ago.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.is_set()
    }

    /// Returns whether there is one that a program asked for, or was a moment ago.
    #[inline]
    pub(crate) fn any_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Looks for a range of the device.
    pub(crate) fn find(&self, range: &Range<u64>) -> Found {
        let mut inner = self.inner.lock();
        let Some(at) = inner.windows.iter().position(|window| window.overlaps(range)) else {
            return Found::Nothing;
        };
        let window = &mut inner.windows[at];
        let Some(bytes) = window.bytes.clone().filter(|_| window.holds(range)) else {
            return Found::Coming;
        };
        window.used = true;
        let (why, skip) = (window.why, (range.start - window.start) as usize);
        if why == Why::Asked {
            inner.windows.remove(at);
            self.note(&inner);
        } else {
            inner.windows[at..].rotate_left(1);
        }
        Found::Bytes(bytes, skip)
    }

    /// Begins a window, in the place of one that was used longest ago where there are too many;
    /// `None` where one overlaps it, or all files together have too much.
    pub(crate) fn begin(
        &self,
        range: &Range<u64>,
        why: Why,
        all: &SharedBytes,
        max: u64,
    ) -> Option<Filling<'_>> {
        let len = range.end - range.start;
        let mut inner = self.inner.lock();
        if inner.windows.iter().any(|window| window.overlaps(range)) {
            return None;
        }
        let bound = match why {
            Why::Stream => WINDOWS_MAX,
            Why::Asked => ASKED_MAX,
        };
        let mut memory = None;
        let share = loop {
            let count = inner.windows.iter().filter(|it| it.why == why).count();
            if let Some(share) = (count < bound).then(|| all.take(len, max)).flatten() {
                break share;
            }
            let is_old = |it: &Window| it.why == why && it.bytes.is_some();
            let old = inner.windows.iter().position(is_old)?;
            memory = inner.windows.remove(old).bytes.and_then(Arc::into_inner);
        };
        inner.begun += 1;
        let number = inner.begun;
        inner.windows.push(Window {
            start: range.start,
            len,
            why,
            number,
            bytes: None,
            used: true,
            _share: share,
        });
        self.note(&inner);
        drop(inner);
        // With that of `wrote`: a write that does not see the window has ended on the device before
        // that is read.
        fence(Ordering::SeqCst);
        Some(Filling { windows: self, number, memory })
    }

    /// Makes the windows of a range go that is about to be written, and those that come meanwhile
    /// when the answer is dropped, whatever came of the write.
    #[inline]
    pub(crate) fn begin_write(&self, range: Range<u64>) -> Writing<'_> {
        self.writes(&range);
        Writing { windows: self, range }
    }

    /// Makes the windows of a range go that is about to be written.
    #[inline]
    pub(crate) fn writes(&self, range: &Range<u64>) {
        if self.any() && !planted(PlantedBug::WindowOutlivesWrite) {
            self.retain(|window| !window.overlaps(range));
        }
    }

    /// Makes the windows of a range go that was written.
    #[inline]
    pub(crate) fn wrote(&self, range: &Range<u64>) {
        fence(Ordering::SeqCst);
        if !planted(PlantedBug::WindowReadBesideWrite) {
            self.writes(range);
        }
    }

    /// Makes all windows go: blocks leave the file, others may write to it, or nothing has it open.
    #[inline]
    pub(crate) fn clear(&self) {
        fence(Ordering::SeqCst);
        if self.any() {
            self.retain(|_| false);
        }
    }

    /// Makes those go that were not used since the last turn; returns whether none is left.
    pub(crate) fn rest(&self) -> bool {
        self.retain(|window| window.used || window.bytes.is_none());
        let mut inner = self.inner.lock();
        inner.windows.iter_mut().for_each(|window| window.used = false);
        inner.windows.is_empty()
    }

    #[cold]
    fn retain(&self, keep: impl Fn(&Window) -> bool) {
        let mut inner = self.inner.lock();
        inner.windows.retain(keep);
        self.note(&inner);
    }

    /// Says outside of the lock what there is, under it.
    fn note(&self, inner: &Inner) {
        let asked = inner.windows.iter().any(|window| window.why == Why::Asked);
        self.asked.store(asked, Ordering::Relaxed);
        self.any.set(!inner.windows.is_empty());
        debug_assert!(
            inner.windows.iter().enumerate().all(|(at, window)| {
                let range = window.start..window.start + window.len;
                !inner.windows[at + 1..].iter().any(|other| other.overlaps(&range))
            }),
            "I-WIN-3: of two windows with one place, one would be old"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::steady::Cause;
    use super::*;

    const MAX: u64 = 1 << 20;

    fn filled(
        windows: &ReadWindows,
        range: Range<u64>,
        why: Why,
        all: &SharedBytes,
        fill: u8,
    ) -> bool {
        let Some(mut filling) = windows.begin(&range, why, all, MAX) else { return false };
        let mut memory = filling.memory((range.end - range.start) as usize);
        memory.fill(fill);
        filling.fill(memory);
        true
    }

    fn seen(windows: &ReadWindows, range: Range<u64>) -> Option<u8> {
        match windows.find(&range) {
            Found::Bytes(bytes, skip) => Some(bytes[skip]),
            Found::Coming | Found::Nothing => None,
        }
    }

    #[test]
    fn i_win_1_a_write_makes_windows_go_also_those_that_are_being_read() {
        let (windows, all) = (ReadWindows::new(Bit::alone(Cause::Windows)), SharedBytes::default());
        assert!(filled(&windows, 0..65_536, Why::Stream, &all, 1));
        assert_eq!(seen(&windows, 8192..16_384), Some(1));
        assert_eq!((seen(&windows, 61_440..69_632), seen(&windows, 65_536..65_540)), (None, None));
        windows.wrote(&(65_536..70_000));
        assert_eq!(seen(&windows, 0..1), Some(1), "beside it");
        windows.wrote(&(65_535..65_536));
        assert_eq!((seen(&windows, 0..1), windows.any(), all.total()), (None, false, 0));

        let mut filling = windows.begin(&(0..4096), Why::Stream, &all, MAX).expect("it is free");
        assert!(windows.any() && matches!(windows.find(&(0..512)), Found::Coming));
        assert!(windows.begin(&(0..512), Why::Stream, &all, MAX).is_none(), "I-WIN-3");
        windows.wrote(&(0..512));
        let again =
            windows.begin(&(0..4096), Why::Stream, &all, MAX).expect("the first one is gone");
        let memory = filling.memory(4096);
        filling.fill(memory);
        assert!(matches!(windows.find(&(0..512)), Found::Coming), "the second one is being read");
        drop(again);
        assert_eq!((windows.any(), all.total()), (false, 0));
    }

    #[test]
    fn i_win_2_what_leaves_the_file_leaves_no_window() {
        let (windows, all) = (ReadWindows::new(Bit::alone(Cause::Windows)), SharedBytes::default());
        assert!(filled(&windows, 0..4096, Why::Stream, &all, 1));
        let mut filling =
            windows.begin(&(8192..12_288), Why::Asked, &all, MAX).expect("it is free");
        windows.clear();
        let memory = filling.memory(4096);
        filling.fill(memory);
        assert_eq!((seen(&windows, 8192..8200), windows.any(), all.total()), (None, false, 0));
    }

    #[test]
    fn i_win_3_windows_are_few_and_bounded_and_go_when_they_rest() {
        let (windows, all) = (ReadWindows::new(Bit::alone(Cause::Windows)), SharedBytes::default());
        for at in 0..6u64 {
            assert!(filled(&windows, at * 4096..(at + 1) * 4096, Why::Stream, &all, at as u8));
            assert!(seen(&windows, 0..1).is_some(), "it is used again and again");
        }
        assert_eq!(all.total(), 4 * 4096);
        let left = (0..6).filter(|at| seen(&windows, at * 4096..at * 4096 + 1).is_some());
        assert_eq!(left.collect::<Vec<u64>>(), [0, 3, 4, 5]);
        assert!(filled(&windows, 1 << 20..(1 << 20) + 512, Why::Asked, &all, 9));
        assert!(windows.any_asked());
        assert_eq!(seen(&windows, 1 << 20..(1 << 20) + 512), Some(9));
        assert!(!windows.any_asked(), "it was asked for once");
        let others = all.take(MAX - 4 * 4096, MAX).expect("it is free");
        assert!(
            filled(&windows, 1 << 21..(1 << 21) + 4096, Why::Stream, &all, 7),
            "for an old one"
        );
        assert!(!filled(&windows, 1 << 22..(1 << 22) + 4096, Why::Asked, &all, 7));
        drop(others);
        assert!(!windows.rest());
        assert_eq!(seen(&windows, 1 << 21..(1 << 21) + 1), Some(7));
        assert!(!windows.rest() && all.total() == 4096, "that one was used");
        assert!(windows.rest() && !windows.any() && all.total() == 0);
    }
}
