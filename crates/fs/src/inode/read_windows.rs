//! Windows: bytes of the device that a sequential reader past the caches is about to ask for, read
//! in one piece before it asks; and those that a program said it would need.
//!
//! ```text
//!   begun: its place is known to writers ─► looked up again ─► (waits for a thread) ─► read ─► filled ─► found by reads
//!        │                                                                                     │
//!        └─────────────── a write of its place, blocks that leave the file, the last close, a new one in its place ─► gone
//! ```
//!
//! They lie by their place on the device, so what a read looks up in the map is what it gets. A
//! write makes the windows of what it touches go twice: before it is issued, so that no reader finds
//! there what others see changed already, and after it has ended, because only then a read of the
//! device that began meanwhile is known to be old.
//!
//! A reader that comes while its window is read waits for that read, and takes the place of a thread
//! that has not begun.
//!
//! - I-WIN-1: a window that a reader finds holds what the device held at its place after the last
//!   write of it that had returned.
//! - I-WIN-2: a window is begun before its place is looked up the last time and read, under the inode
//!   lock, shared: blocks that leave the file make it go.
//! - I-WIN-3: windows of a file do not overlap.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use bedplate_block::AlignedBuf;
use bedplate_block::sync::{Condvar, Mutex, rank};
use bedplate_store::{PlantedBug, planted};

use super::share::{Share, SharedBytes};
use super::steady::Bit;

/// How many windows a file has at most.
const WINDOWS_MAX: usize = 4;
/// A read of such a part of its window has what follows read at once.
const LARGE_PART: u64 = 4;
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

/// How far a window is.
#[derive(Debug)]
enum State {
    /// A thread is to read it.
    Waits,
    /// It is read.
    Reading,
    Filled(Arc<AlignedBuf>),
}

#[derive(Debug)]
struct Window {
    /// On the device.
    start: u64,
    len: u64,
    why: Why,
    /// Tells it from one that was begun at the same place later.
    number: u64,
    state: State,
    /// Since the last turn of the sync daemon.
    used: bool,
    /// What follows was to be read.
    passed: bool,
    _share: Share,
}

impl Window {
    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.start < range.end && range.start < self.start + self.len
    }

    fn holds(&self, range: &Range<u64>) -> bool {
        self.start <= range.start && range.end <= self.start + self.len
    }

    fn is_filled(&self) -> bool {
        matches!(self.state, State::Filled(_))
    }

    /// Returns whether what follows is to be read now: the first reader comes into the second half,
    /// or reads that much at once.
    fn passes(&mut self, range: &Range<u64>) -> bool {
        let is_far = range.end - self.start > self.len / 2;
        let first = !self.passed && (is_far || range.end - range.start >= self.len / LARGE_PART);
        self.passed |= first;
        first
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
    /// A window was filled, or is gone.
    changed: Condvar,
}

/// What there is of a range.
#[derive(Debug)]
pub(crate) enum Found {
    Bytes(WindowBytes),
    /// Some of it.
    Part,
    Nothing,
}

/// Bytes of a file that were read ahead, as they were when they were found.
#[derive(Debug, Clone)]
pub struct WindowBytes {
    memory: Arc<AlignedBuf>,
    range: Range<usize>,
    /// What follows the window is to be read.
    pub(crate) passes: bool,
}

impl WindowBytes {
    /// Returns how many bytes there are in the window behind these.
    pub(crate) fn left(&self) -> u64 {
        (self.memory.len() - self.range.end) as u64
    }
}

impl Deref for WindowBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }
}

/// A window that is being read; dropped without [`fill`](Self::fill) it goes.
#[derive(Debug)]
pub(crate) struct Filling<'a> {
    windows: &'a ReadWindows,
    number: u64,
    memory: Option<AlignedBuf>,
}

/// A window that waits for a thread; resumed there ([`ReadWindows::resume`]).
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) number: u64,
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
        if let Some(window) = inner.numbered(self.number) {
            debug_assert_eq!(window.len, bytes.len() as u64, "I-WIN-1: all of it was read");
            window.state = State::Filled(Arc::new(bytes));
        }
        drop(inner);
        self.windows.changed.notify_all();
    }

    /// Leaves the window to a thread that reads it.
    pub(crate) fn leave(mut self) -> Waiting {
        let number = std::mem::take(&mut self.number);
        if let Some(window) = self.windows.inner.lock().numbered(number) {
            window.state = State::Waits;
        }
        Waiting { number, memory: self.memory.take() }
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.windows.retain(|window| window.number != self.number || window.is_filled());
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

impl Inner {
    fn numbered(&mut self, number: u64) -> Option<&mut Window> {
        self.windows.iter_mut().find(|it| it.number == number)
    }
}

impl ReadWindows {
    pub(super) fn new(any: Bit) -> Self {
        Self {
            any,
            asked: AtomicBool::new(false),
            inner: Mutex::default(),
            changed: Condvar::new(),
        }
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

    /// Looks for a range of the device; waits where it is being read.
    pub(crate) fn find(&self, range: &Range<u64>) -> Found {
        let mut inner = self.inner.lock();
        loop {
            let Some(at) = inner.windows.iter().position(|window| window.overlaps(range)) else {
                return Found::Nothing;
            };
            let window = &mut inner.windows[at];
            match &window.state {
                State::Waits => {
                    inner.windows.remove(at);
                    self.note(&inner);
                }
                _ if !window.holds(range) => return Found::Part,
                State::Reading => self.changed.wait(&mut inner),
                State::Filled(memory) => {
                    let memory = Arc::clone(memory);
                    return Found::Bytes(self.found(&mut inner, at, range, memory));
                }
            }
        }
    }

    /// Returns a range of a window that is filled, and notes that it was used.
    fn found(
        &self,
        inner: &mut Inner,
        at: usize,
        range: &Range<u64>,
        memory: Arc<AlignedBuf>,
    ) -> WindowBytes {
        let window = &mut inner.windows[at];
        let skip = (range.start - window.start) as usize;
        let len = (range.end - range.start) as usize;
        let passes = window.why == Why::Stream && window.passes(range);
        window.used = true;
        if window.why == Why::Asked {
            inner.windows.remove(at);
            self.note(inner);
        } else {
            inner.windows[at..].rotate_left(1);
        }
        WindowBytes { memory, range: skip..skip + len, passes }
    }

    /// Begins to read a window that waited; `None` where it is gone.
    pub(crate) fn resume(&self, waiting: Waiting) -> Option<Filling<'_>> {
        let mut inner = self.inner.lock();
        let window = inner.numbered(waiting.number)?;
        debug_assert!(matches!(window.state, State::Waits), "I-WIN-1: one thread reads a window");
        window.state = State::Reading;
        drop(inner);
        Some(Filling { windows: self, number: waiting.number, memory: waiting.memory })
    }

    /// Lets a window go that waited for a thread, as there is none.
    pub(crate) fn let_go(&self, number: u64) {
        self.retain(|window| window.number != number);
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
            let is_old = |it: &Window| it.why == why && it.is_filled();
            let old = inner.windows.iter().position(is_old)?;
            memory = match inner.windows.remove(old).state {
                State::Filled(bytes) => Arc::into_inner(bytes),
                State::Waits | State::Reading => None,
            };
        };
        inner.begun += 1;
        let number = inner.begun;
        inner.windows.push(Window {
            start: range.start,
            len,
            why,
            number,
            state: State::Reading,
            used: true,
            passed: false,
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
        self.retain(|window| window.used || !window.is_filled());
        let mut inner = self.inner.lock();
        inner.windows.iter_mut().for_each(|window| window.used = false);
        inner.windows.is_empty()
    }

    #[cold]
    fn retain(&self, keep: impl Fn(&Window) -> bool) {
        let mut inner = self.inner.lock();
        inner.windows.retain(keep);
        self.note(&inner);
        drop(inner);
        self.changed.notify_all();
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
    use super::{Filling as FillingWindow, *};

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
            Found::Bytes(bytes) => Some(bytes[0]),
            Found::Part | Found::Nothing => None,
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
        assert!(windows.any() && matches!(windows.find(&(0..8192)), Found::Part));
        assert!(windows.begin(&(0..512), Why::Stream, &all, MAX).is_none(), "I-WIN-3");
        windows.wrote(&(0..512));
        let again =
            windows.begin(&(0..4096), Why::Stream, &all, MAX).expect("the first one is gone");
        let memory = filling.memory(4096);
        filling.fill(memory);
        assert!(matches!(windows.find(&(0..8192)), Found::Part), "the second one is being read");
        drop(again);
        assert_eq!((windows.any(), all.total()), (false, 0));
    }

    /// A reader that comes while its window is read gets what is read, or nothing once that is old or
    /// failed; it does not wait for a thread that has not begun.
    #[test]
    fn i_win_1_a_reader_waits_for_what_is_being_read_and_for_no_thread() {
        let (windows, all) = (ReadWindows::new(Bit::alone(Cause::Windows)), SharedBytes::default());
        let waits_until = |end: &dyn Fn(FillingWindow<'_>)| {
            let filling = windows.begin(&(0..4096), Why::Stream, &all, MAX).expect("it is free");
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| seen(&windows, 512..1024));
                end(filling);
                reader.join().expect("it does not panic")
            })
        };
        let fill = |mut filling: FillingWindow<'_>| {
            let mut memory = filling.memory(4096);
            memory.fill(5);
            filling.fill(memory);
        };
        assert_eq!(waits_until(&fill), Some(5));
        windows.clear();
        assert_eq!(waits_until(&|filling| drop(filling)), None, "it failed");
        let written = |filling: FillingWindow<'_>| {
            windows.wrote(&(0..512));
            fill(filling);
        };
        assert_eq!(waits_until(&written), None, "it is old");

        let begin =
            || windows.begin(&(0..4096), Why::Stream, &all, MAX).expect("it is free").leave();
        let waiting = begin();
        assert_eq!((seen(&windows, 0..512), all.total()), (None, 0), "the reader is quicker");
        assert!(windows.resume(waiting).is_none());
        let waiting = begin();
        fill(windows.resume(waiting).expect("it waits"));
        assert_eq!(seen(&windows, 0..512), Some(5));
        windows.clear();
        windows.let_go(begin().number);
        assert!(!windows.any() && all.total() == 0);
    }

    #[test]
    fn what_follows_is_read_once_a_reader_is_in_the_second_half_or_reads_much() {
        let (windows, all) = (ReadWindows::new(Bit::alone(Cause::Windows)), SharedBytes::default());
        assert!(filled(&windows, 4096..12_288, Why::Stream, &all, 1));
        let passes = |range| match windows.find(&range) {
            Found::Bytes(bytes) => (bytes.passes, bytes.left()),
            Found::Part | Found::Nothing => panic!("it is there"),
        };
        assert_eq!(passes(4096..4608), (false, 7680));
        assert_eq!(passes(8192..8704), (true, 3584));
        assert_eq!(passes(10_240..12_288), (false, 0), "once");
        assert!(filled(&windows, 12_288..20_480, Why::Stream, &all, 1));
        assert_eq!(passes(12_288..14_336), (true, 6144), "it is large");
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
