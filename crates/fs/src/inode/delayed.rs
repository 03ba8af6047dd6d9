//! Writes that have returned and have not reached the device yet: those that made the file grow, and
//! those that wrote over it in order. They go there in large pieces, those of growth each with one
//! allocation and one record.
//!
//! ```text
//!   write that goes on where the file ends, ─► open ─► closed ─► writing ─► gone: the map has it
//!   or where the write before it ended         ▲ │     full, or   │ ▲
//!                                              └─┘     asked for  ▼ │
//!                                              joined            owed: could not be written
//! ```
//!
//! The size that readers see counts growth; the size in the row follows with its record, so what a
//! crash loses of it is what any write may lose that was not synced (S-7).
//!
//! - I-DLY-1: pieces do not overlap, of those that make the file grow only the last one is open, and
//!   bytes of one that is closed do not change.
//! - I-DLY-2: pieces come, grow and are written under the inode lock, shared or exclusive, so one
//!   that holds it exclusively finds none being written.
//! - I-DLY-3: a piece goes after the record that has its bytes in the map: what reads copies them
//!   before it looks at the map.
//! - I-DLY-4: hands that write full pieces are taken and given back with the pieces locked: where one
//!   waits there is a hand, or the writer that filled it writes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bedplate_block::sync::{Mutex, MutexGuard, rank};
use bedplate_store::{PlantedBug, planted, within};

use super::share::{Memory, Share, SharedBytes};
use super::steady::Bit;

/// What memory a piece begins with in bytes; it doubles as the piece grows, until it is large and has
/// what a whole one needs.
const FIRST_BYTES: usize = 16 << 10;
const LARGE_BYTES: usize = 64 << 10;

const _: () = assert!(
    FIRST_BYTES.is_power_of_two() && FIRST_BYTES < LARGE_BYTES,
    "the memory of a piece doubles"
);

/// How many pieces of one file writers that write over it fill at once.
const OVER_OPEN_MAX: usize = 4;

/// What the writes of a piece do to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// They move its end.
    Grow,
    /// They write over its own written blocks.
    Over,
}

/// How much is delayed at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DelayLimits {
    /// The longest piece in bytes; pieces end on multiples of it where they can.
    pub(crate) piece_bytes: u64,
    /// What all files of a mount keep in memory.
    pub(crate) bytes_max: u64,
}

impl DelayLimits {
    /// Returns the longest write that may wait, in bytes.
    pub(crate) fn write_bytes_max(self) -> usize {
        self.piece_bytes as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Grows.
    Open,
    /// Waits to be written.
    Closed,
    /// On its way to the device.
    Writing,
    /// Could not be written: waits for one that can tell, or holds the file alone.
    Owed,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    /// Up to where it may grow.
    limit: u64,
    len: usize,
    buf: Arc<Memory>,
    share: Share,
    phase: Phase,
}

impl Piece {
    fn range(&self) -> Range<u64> {
        self.start..self.start + self.len as u64
    }

    /// Returns whether a write goes on in it.
    fn is_open_at(&self, offset: u64) -> bool {
        self.phase == Phase::Open && self.start <= offset && offset <= self.range().end
    }

    /// Returns whether its whole sectors overlap a byte range.
    fn overlaps(&self, range: &Range<u64>, sector: u64) -> bool {
        let Range { start, end } = self.range();
        start / sector * sector < range.end && range.start < end.next_multiple_of(sector)
    }

    /// Makes room for `len` bytes; `false` where all files together keep too much.
    fn reach(&mut self, len: usize, all: &SharedBytes, limits: DelayLimits) -> bool {
        if len <= self.buf.len() {
            return true;
        }
        let bytes = capacity(len, limits);
        let Some(share) = all.take(bytes as u64, limits.bytes_max) else { return false };
        let mut buf = all.memory(bytes);
        buf[..self.len].copy_from_slice(&self.buf[..self.len]);
        self.buf = Arc::new(buf);
        self.share = share;
        true
    }

    fn put(&mut self, bytes: &[u8], offset: u64) {
        assert_eq!(self.phase, Phase::Open, "I-DLY-1: what is closed does not change");
        let at = (offset - self.start) as usize;
        let buf = Arc::get_mut(&mut self.buf).expect("I-DLY-1: only what is closed is lent");
        buf[at..at + bytes.len()].copy_from_slice(bytes);
        self.len = self.len.max(at + bytes.len());
        if self.range().end == self.limit {
            self.phase = Phase::Closed;
        }
    }
}

fn capacity(len: usize, limits: DelayLimits) -> usize {
    let bytes = len.next_power_of_two().max(FIRST_BYTES);
    if bytes > LARGE_BYTES { bytes.max(limits.piece_bytes as usize) } else { bytes }
}

/// A piece on its way to the device.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) start: u64,
    buf: Arc<Memory>,
    len: usize,
}

impl Lent {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }
}

/// Copies of bytes, with their offsets.
#[derive(Debug)]
pub(crate) struct Snapshot(Vec<(u64, Vec<u8>)>);

impl Snapshot {
    /// Puts the copies over what was read of the device from byte `offset` of the file on.
    pub(crate) fn overlay(&self, buf: &mut [u8], offset: u64) {
        for (start, bytes) in &self.0 {
            let part = within(
                &(*start..*start + bytes.len() as u64),
                &(offset..offset + buf.len() as u64),
            );
            if part.start < part.end {
                let (to, from) = ((part.start - offset) as usize, (part.start - start) as usize);
                let len = (part.end - part.start) as usize;
                buf[to..to + len].copy_from_slice(&bytes[from..from + len]);
            }
        }
    }
}

/// The pieces of one file.
#[derive(Debug, Default)]
struct Waiting {
    /// By file offset.
    grow: VecDeque<Piece>,
    /// In the order in which they were begun.
    over: VecDeque<Piece>,
    /// Threads that write full ones, or are about to.
    hands: usize,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.grow.is_empty() && self.over.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &Piece> {
        self.over.iter().chain(&self.grow)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Piece> {
        self.over.iter_mut().chain(&mut self.grow)
    }

    fn of(&mut self, way: Way) -> &mut VecDeque<Piece> {
        match way {
            Way::Grow => &mut self.grow,
            Way::Over => &mut self.over,
        }
    }
}

/// The delayed writes of one file.
#[derive(Debug)]
pub(crate) struct Delayed {
    /// Whether there are any, also while they are being written.
    any: Bit,
    /// Rank 2.5: blocks are reserved under it.
    pieces: Mutex<Waiting, { rank::DELAYED }>,
}

impl Delayed {
    pub(super) fn new(any: Bit) -> Self {
        Self { any, pieces: Mutex::default() }
    }

    /// Returns whether there are any; while the inode lock is held exclusively that stays so.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.is_set()
    }

    /// Returns whether the whole sectors around any of them overlap a byte range of the file.
    #[inline]
    pub(crate) fn overlaps(&self, range: &Range<u64>, sector: u64) -> bool {
        self.any() && self.find(range, sector)
    }

    #[cold]
    fn find(&self, range: &Range<u64>, sector: u64) -> bool {
        self.pieces.lock().all().any(|piece| piece.overlaps(range, sector))
    }

    /// Returns where those that make the file grow end.
    pub(crate) fn end(&self) -> Option<u64> {
        if !self.any() {
            return None;
        }
        self.pieces.lock().grow.back().map(|piece| piece.range().end)
    }

    /// Copies what lies in a range, to be put over what is then read through the map (I-DLY-3).
    #[inline]
    pub(crate) fn snapshot(&self, range: &Range<u64>) -> Option<Snapshot> {
        if self.any() && !planted(PlantedBug::DelayedWriteNotRead) {
            self.copy(range)
        } else {
            None
        }
    }

    #[cold]
    fn copy(&self, range: &Range<u64>) -> Option<Snapshot> {
        let pieces = self.pieces.lock();
        let copies = pieces.all().filter_map(|piece| {
            let part = within(&piece.range(), range);
            let from = part.start.saturating_sub(piece.start) as usize;
            (part.start < part.end).then(|| {
                let len = (part.end - part.start) as usize;
                (part.start, piece.buf[from..from + len].to_vec())
            })
        });
        Some(Snapshot(copies.collect())).filter(|snapshot| !snapshot.0.is_empty())
    }

    /// Locks the pieces to add to them.
    pub(crate) fn pieces(&self) -> Pieces<'_> {
        Pieces { any: &self.any, pieces: self.pieces.lock() }
    }
}

/// The pieces of a file, locked. The inode lock is held, shared or exclusive (I-DLY-2).
pub(crate) struct Pieces<'a> {
    any: &'a Bit,
    pieces: MutexGuard<'a, Waiting>,
}

impl Pieces<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns whether a write of a file of `size` bytes can be taken as growth: it begins within
    /// the open piece or at its end, or, where no piece is open, at the end of the file.
    pub(crate) fn takes(&self, range: &Range<u64>, size: u64) -> bool {
        match self.pieces.grow.back() {
            Some(last) if last.phase == Phase::Open => last.is_open_at(range.start),
            Some(last) => range.start == size && last.range().end <= size,
            None => range.start == size,
        }
    }

    /// Returns whether a write that goes on where one before ended, over what is written, can be
    /// taken: no piece but the one that it goes on in has bytes of its sectors.
    pub(crate) fn takes_over(&self, range: &Range<u64>, sector: u64) -> bool {
        let goes_on = self.pieces.over.iter().position(|piece| piece.is_open_at(range.start));
        let over = self.pieces.over.iter().enumerate();
        let others = over.filter(|(at, _)| Some(*at) != goes_on).map(|(_, piece)| piece);
        !others.chain(&self.pieces.grow).any(|piece| piece.overlaps(range, sector))
    }

    /// Takes a write that [`takes`](Self::takes) or [`takes_over`](Self::takes_over) allows;
    /// `false`, and nothing is taken, where all files together would keep too much.
    pub(crate) fn put(
        &mut self,
        way: Way,
        bytes: &[u8],
        offset: u64,
        all: &SharedBytes,
        limits: DelayLimits,
    ) -> bool {
        debug_assert!(
            !bytes.is_empty() && bytes.len() <= limits.write_bytes_max(),
            "I-DLY-1: a write reaches into one more piece at most: {} bytes",
            bytes.len()
        );
        let end = offset + bytes.len() as u64;
        let pieces = self.pieces.of(way);
        let open = pieces.iter().position(|piece| piece.is_open_at(offset));
        let begin = open.map_or(offset, |open| pieces[open].start);
        let limit = (begin + 1).next_multiple_of(limits.piece_bytes);
        let (here, beyond) = bytes.split_at((end.min(limit) - offset) as usize);
        let next = if beyond.is_empty() {
            None
        } else {
            match piece(limit, beyond.len(), all, limits) {
                None => return false,
                next => next,
            }
        };
        let open = match open {
            Some(open) => open,
            None => {
                let Some(first) = piece(offset, here.len(), all, limits) else { return false };
                pieces.push_back(first);
                pieces.len() - 1
            }
        };
        let open = &mut pieces[open];
        let len = (offset - open.start) as usize + here.len();
        if !open.reach(len, all, limits) {
            return false;
        }
        open.put(here, offset);
        if let Some(mut next) = next {
            next.put(beyond, limit);
            pieces.push_back(next);
        }
        self.leave_few_open();
        self.any.set(true);
        true
    }

    /// Closes what was begun first of too many pieces that writers write over the file.
    fn leave_few_open(&mut self) {
        let is_open = |piece: &&mut Piece| piece.phase == Phase::Open;
        let many = self.pieces.over.iter_mut().filter(is_open).count();
        let first = self.pieces.over.iter_mut().filter(is_open);
        first
            .take(many.saturating_sub(OVER_OPEN_MAX))
            .for_each(|piece| piece.phase = Phase::Closed);
        assert!(
            self.pieces.grow.iter().rev().skip(1).all(|piece| piece.phase != Phase::Open),
            "I-DLY-1: only the last piece is open"
        );
    }

    /// Lets no piece grow any more.
    pub(crate) fn close(&mut self) {
        let open = self.pieces.all_mut().filter(|piece| piece.phase == Phase::Open);
        open.for_each(|piece| piece.phase = Phase::Closed);
    }

    /// Returns how many wait to be written.
    pub(crate) fn due(&self) -> usize {
        self.pieces.all().filter(|piece| piece.phase == Phase::Closed).count()
    }

    /// Takes one more of at most `most` hands to write what waits, where something does.
    pub(crate) fn take_hand(&mut self, most: usize) -> bool {
        let takes = self.pieces.hands < most && self.due() > 0;
        self.pieces.hands += usize::from(takes);
        takes
    }

    /// Gives back what [`take_hand`](Self::take_hand) took: with the pieces locked, so that what
    /// becomes full next finds it gone.
    pub(crate) fn give_hand_back(&mut self) {
        assert!(self.pieces.hands > 0, "I-DLY-4: a hand was taken");
        self.pieces.hands -= 1;
    }

    /// Returns whether one could not be written.
    pub(crate) fn is_owed(&self) -> bool {
        self.pieces.all().any(|piece| piece.phase == Phase::Owed)
    }

    /// Has what could not be written wait as any other: the caller tells what is wrong with it.
    pub(crate) fn take_owed(&mut self) {
        let owed = self.pieces.all_mut().filter(|piece| piece.phase == Phase::Owed);
        owed.for_each(|piece| piece.phase = Phase::Closed);
    }

    /// Lends the first piece that waits to be written; [`end`](Self::end) or
    /// [`put_back`](Self::put_back) follows.
    pub(crate) fn lend(&mut self) -> Option<Lent> {
        let piece = self.pieces.all_mut().find(|piece| piece.phase == Phase::Closed)?;
        piece.phase = Phase::Writing;
        Some(Lent { start: piece.start, buf: Arc::clone(&piece.buf), len: piece.len })
    }

    /// What was lent is in the map now.
    pub(crate) fn end(&mut self, lent: &Lent) {
        let count = |pieces: &Waiting| pieces.all().count();
        let before = count(&self.pieces);
        self.pieces.over.retain(|piece| piece.start != lent.start);
        self.pieces.grow.retain(|piece| piece.start != lent.start);
        assert_eq!(count(&self.pieces) + 1, before, "I-DLY-1: a piece has its own beginning");
        self.any.set(!self.pieces.is_empty());
    }

    /// What was lent could not be written, or not so: it is owed.
    pub(crate) fn put_back(&mut self, lent: &Lent) {
        let piece = self.pieces.all_mut().find(|piece| piece.start == lent.start);
        let piece = piece.expect("I-DLY-3: a piece that is lent stays");
        assert_eq!(piece.phase, Phase::Writing, "I-DLY-1: it was lent");
        piece.phase = Phase::Owed;
    }

    /// Drops all of them: their bytes leave the file.
    pub(crate) fn clear(&mut self) {
        assert!(
            self.pieces.all().all(|piece| piece.phase != Phase::Writing),
            "I-DLY-2: none is being written under the exclusive inode lock"
        );
        self.pieces.grow.clear();
        self.pieces.over.clear();
        self.any.set(false);
    }
}

/// Makes an empty piece with room for `len` bytes.
fn piece(start: u64, len: usize, all: &SharedBytes, limits: DelayLimits) -> Option<Piece> {
    let bytes = capacity(len, limits);
    let share = all.take(bytes as u64, limits.bytes_max)?;
    let buf = Arc::new(all.memory(bytes));
    let limit = (start + 1).next_multiple_of(limits.piece_bytes);
    Some(Piece { start, limit, len: 0, buf, share, phase: Phase::Open })
}

#[cfg(test)]
mod tests {
    use super::super::steady::Cause;
    use super::*;

    const MAX: u64 = 8 << 20;
    const PIECE_BYTES: u64 = 1 << 20;

    fn put(delayed: &Delayed, all: &SharedBytes, at: u64, len: usize, fill: u8) -> bool {
        delayed.pieces().put(
            Way::Grow,
            &vec![fill; len],
            at,
            all,
            DelayLimits { piece_bytes: PIECE_BYTES, bytes_max: MAX },
        )
    }

    #[test]
    fn i_dly_1_writes_that_go_on_become_pieces_that_end_on_their_grid() {
        let (delayed, all) = (Delayed::new(Bit::alone(Cause::Delayed)), SharedBytes::default());
        assert!(delayed.pieces().takes(&(700..800), 700) && !delayed.pieces().takes(&(0..9), 700));
        let mut at = 700;
        while at < PIECE_BYTES + 1000 {
            assert!(delayed.pieces().takes(&(at..at + 1000), at));
            assert!(put(&delayed, &all, at, 1000, (at % 251) as u8));
            at += 1000;
        }
        let mut pieces = delayed.pieces();
        let first = pieces.lend().expect("the first one is full");
        assert_eq!((first.start, first.start + first.bytes().len() as u64), (700, PIECE_BYTES));
        assert!(pieces.lend().is_none(), "the second one grows");
        assert!(!pieces.takes(&(1000..1100), at), "what is lent does not change");
        assert!(pieces.takes(&(PIECE_BYTES..PIECE_BYTES + 1), at));
        pieces.close();
        assert!(
            !pieces.takes(&(PIECE_BYTES..PIECE_BYTES + 1), at) && pieces.takes(&(at..at + 1), at)
        );
        let second = pieces.lend().expect("it was closed");
        pieces.end(&second);
        pieces.put_back(&first);
        assert!(pieces.is_owed() && pieces.lend().is_none(), "it waits for one that can tell");
        pieces.take_owed();
        let first = pieces.lend().expect("it waits again");
        pieces.end(&first);
        drop((pieces, first, second));
        assert_eq!((delayed.any(), all.total()), (false, 0));
    }

    #[test]
    fn i_dly_3_what_lies_in_a_range_is_copied() {
        let (delayed, all) = (Delayed::new(Bit::alone(Cause::Delayed)), SharedBytes::default());
        assert!(delayed.snapshot(&(0..100)).is_none());
        assert!(put(&delayed, &all, 1000, 500, 7) && put(&delayed, &all, 1400, 200, 8));
        assert!(
            delayed.snapshot(&(0..1000)).is_none() && delayed.snapshot(&(1600..9000)).is_none()
        );
        let mut buf = [1; 1000];
        delayed.snapshot(&(900..1900)).expect("it lies there").overlay(&mut buf, 900);
        let seen = [99, 100, 499, 500, 699, 700].map(|at| buf[at]);
        assert_eq!(seen, [1, 7, 7, 8, 8, 1]);
        assert!(delayed.overlaps(&(512..513), 512) && !delayed.overlaps(&(0..512), 512));
        assert_eq!(delayed.end(), Some(1600));
    }

    #[test]
    fn i_dly_1_writers_that_write_over_a_file_have_pieces_of_their_own() {
        let (delayed, all) = (Delayed::new(Bit::alone(Cause::Delayed)), SharedBytes::default());
        let limits = DelayLimits { piece_bytes: PIECE_BYTES, bytes_max: MAX };
        let put = |at: u64, fill| {
            let mut pieces = delayed.pieces();
            pieces.takes_over(&(at..at + 8192), 512)
                && pieces.put(Way::Over, &[fill; 8192], at, &all, limits)
        };
        assert!(put(0, 1) && put(65_536, 2) && put(8192, 3) && put(73_728, 4));
        assert!(!put(61_440, 9), "it reaches into the piece of another writer");
        assert!(put(4096, 5), "within the piece that it goes on in");
        assert!(delayed.pieces().lend().is_none(), "all of them grow");
        let seen = |at: u64| {
            let mut byte = [0];
            delayed.snapshot(&(at..at + 1)).expect("it waits").overlay(&mut byte, at);
            byte[0]
        };
        assert_eq!([0, 4095, 4096, 12_288, 65_536, 73_728].map(seen), [1, 1, 5, 3, 2, 4]);
        assert_eq!(delayed.end(), None, "the file does not end there");
        assert!(put(1 << 21, 6) && put(2 << 21, 7) && put(3 << 21, 8), "one more than are open");
        let mut pieces = delayed.pieces();
        let first = pieces.lend().expect("the first one is closed");
        assert_eq!((first.start, first.bytes().len(), pieces.lend().is_none()), (0, 16_384, true));
        pieces.end(&first);
        pieces.clear();
        drop((pieces, first));
        assert_eq!((delayed.any(), all.total()), (false, 0));
    }

    #[test]
    fn what_is_kept_is_bounded_and_nothing_is_taken_in_part() {
        let (delayed, all) = (Delayed::new(Bit::alone(Cause::Delayed)), SharedBytes::default());
        let other = all.take(MAX - (32 << 10), MAX).expect("it is free");
        assert!(put(&delayed, &all, 0, 16 << 10, 1));
        assert!(!put(&delayed, &all, 16 << 10, 1, 1), "there is no room for twice as much");
        assert_eq!(delayed.end(), Some(16 << 10));
        drop(other);
        assert!(put(&delayed, &all, 16 << 10, 1, 1));
        delayed.pieces().clear();
        assert_eq!((delayed.any(), all.total()), (false, 0));
    }
}
