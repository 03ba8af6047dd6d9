//! Writes that made the file grow, have returned, and have not reached the device yet: they go
//! there in large pieces, each with one allocation and one record.
//!
//! ```text
//!   write that goes on where the file ends ─► open ─► closed ─► writing ─► gone: the map has it
//!                                             ▲ │     full, or   │ ▲
//!                                             └─┘     asked for  ▼ │
//!                                             joined            closed: could not be written
//! ```
//!
//! The size that readers see counts them; the size in the row follows with their record, so what a
//! crash loses of them is what any write may lose that was not synced (S-7).
//!
//! - I-DLY-1: pieces do not overlap, only the last one is open, and bytes of one that is closed do
//!   not change.
//! - I-DLY-2: pieces come, grow and are written under the inode lock, shared or exclusive, so one
//!   that holds it exclusively finds none being written.
//! - I-DLY-3: a piece goes after the record that has its bytes in the map: what reads copies them
//!   before it looks at the map.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bedplate_block::AlignedBuf;
use bedplate_block::sync::{Mutex, MutexGuard, rank};
use bedplate_store::{PlantedBug, planted, within};

/// What memory a piece begins with in bytes; it doubles as the piece grows.
const FIRST_BYTES: usize = 16 << 10;

const _: () = assert!(FIRST_BYTES.is_power_of_two(), "the memory of a piece doubles");

/// How much is delayed at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DelayLimits {
    /// The longest piece in bytes; pieces end on multiples of it where they can.
    pub(crate) piece_bytes: u64,
    /// What all files of a mount keep in memory.
    pub(crate) bytes_max: u64,
}

impl DelayLimits {
    /// Returns from how many bytes on a write is large enough by itself.
    pub(crate) fn write_bytes_max(self) -> usize {
        (self.piece_bytes / 4) as usize
    }
}

/// How much all files of a mount keep in memory so.
#[derive(Debug, Clone, Default)]
pub(crate) struct DelayedBytes(Arc<AtomicU64>);

/// What one piece has of the bound.
#[derive(Debug)]
struct Share {
    all: DelayedBytes,
    bytes: u64,
}

impl DelayedBytes {
    /// Returns how much is kept now.
    pub(crate) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64, max: u64) -> Option<Share> {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
            Some(all + bytes).filter(|all| *all <= max)
        });
        taken.ok().map(|_| Share { all: self.clone(), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let before = self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
        debug_assert!(before >= self.bytes, "a share is of what is kept: {before} bytes");
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
}

#[derive(Debug)]
struct Piece {
    start: u64,
    /// Up to where it may grow.
    limit: u64,
    len: usize,
    buf: Arc<AlignedBuf>,
    share: Share,
    phase: Phase,
}

impl Piece {
    fn range(&self) -> Range<u64> {
        self.start..self.start + self.len as u64
    }

    /// Makes room for `len` bytes; `false` where all files together keep too much.
    fn reach(&mut self, len: usize, max: u64) -> bool {
        if len <= self.buf.len() {
            return true;
        }
        let bytes = capacity(len);
        let Some(share) = self.share.all.take(bytes as u64, max) else { return false };
        let mut buf = AlignedBuf::zeroed(bytes);
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

fn capacity(len: usize) -> usize {
    len.next_power_of_two().max(FIRST_BYTES)
}

/// A piece on its way to the device.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) start: u64,
    buf: Arc<AlignedBuf>,
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

/// The delayed writes of one file.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    /// Whether there are any, also while they are being written.
    any: AtomicBool,
    /// Rank 2.5: blocks are reserved under it. By file offset.
    pieces: Mutex<VecDeque<Piece>, { rank::DELAYED }>,
}

impl Delayed {
    /// Returns whether there are any; while the inode lock is held exclusively that stays so.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Returns whether the whole sectors around any of them overlap a byte range of the file.
    #[inline]
    pub(crate) fn overlaps(&self, range: &Range<u64>, sector: u64) -> bool {
        self.any() && self.find(range, sector)
    }

    #[cold]
    fn find(&self, range: &Range<u64>, sector: u64) -> bool {
        self.pieces.lock().iter().any(|piece| {
            let Range { start, end } = piece.range();
            start / sector * sector < range.end && range.start < end.next_multiple_of(sector)
        })
    }

    /// Returns where the last one ends.
    pub(crate) fn end(&self) -> Option<u64> {
        if !self.any() {
            return None;
        }
        self.pieces.lock().back().map(|piece| piece.range().end)
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
        let copies = pieces.iter().filter_map(|piece| {
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
    any: &'a AtomicBool,
    pieces: MutexGuard<'a, VecDeque<Piece>>,
}

impl Pieces<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns whether a write of a file of `size` bytes can be taken: it begins within the open
    /// piece or at its end, or, where no piece is open, at the end of the file.
    pub(crate) fn takes(&self, range: &Range<u64>, size: u64) -> bool {
        match self.pieces.back() {
            Some(last) if last.phase == Phase::Open => {
                last.start <= range.start && range.start <= last.range().end
            }
            Some(last) => range.start == size && last.range().end <= size,
            None => range.start == size,
        }
    }

    /// Takes a write that [`takes`](Self::takes) allows; `false`, and nothing is taken, where all
    /// files together would keep too much.
    pub(crate) fn put(
        &mut self,
        bytes: &[u8],
        offset: u64,
        all: &DelayedBytes,
        limits: DelayLimits,
    ) -> bool {
        debug_assert!(
            !bytes.is_empty() && bytes.len() <= limits.write_bytes_max(),
            "I-DLY-1: a write reaches into one more piece at most: {} bytes",
            bytes.len()
        );
        let end = offset + bytes.len() as u64;
        let open = self.pieces.back().filter(|last| last.phase == Phase::Open);
        let begin = open.map_or(offset, |last| last.start);
        let limit = (begin + 1).next_multiple_of(limits.piece_bytes);
        let is_new = open.is_none();
        let (here, beyond) = bytes.split_at((end.min(limit) - offset) as usize);
        let next = if beyond.is_empty() {
            None
        } else {
            match piece(limit, beyond.len(), all, limits) {
                None => return false,
                next => next,
            }
        };
        if is_new {
            let Some(first) = piece(offset, here.len(), all, limits) else { return false };
            self.pieces.push_back(first);
        }
        let last = self.pieces.back_mut().expect("there was one, or it was just made");
        let len = (offset - last.start) as usize + here.len();
        if !last.reach(len, limits.bytes_max) {
            return false;
        }
        last.put(here, offset);
        if let Some(mut next) = next {
            next.put(beyond, limit);
            self.pieces.push_back(next);
        }
        assert!(
            self.pieces.iter().rev().skip(1).all(|piece| piece.phase != Phase::Open),
            "I-DLY-1: only the last piece is open"
        );
        self.any.store(true, Ordering::Release);
        true
    }

    /// Lets no piece grow any more.
    pub(crate) fn close(&mut self) {
        if let Some(last) = self.pieces.back_mut().filter(|last| last.phase == Phase::Open) {
            last.phase = Phase::Closed;
        }
    }

    /// Returns whether one waits to be written.
    pub(crate) fn is_due(&self) -> bool {
        self.pieces.iter().any(|piece| piece.phase == Phase::Closed)
    }

    /// Lends the first piece that waits to be written; [`end`](Self::end) or
    /// [`put_back`](Self::put_back) follows.
    pub(crate) fn lend(&mut self) -> Option<Lent> {
        let piece = self.pieces.iter_mut().find(|piece| piece.phase == Phase::Closed)?;
        piece.phase = Phase::Writing;
        Some(Lent { start: piece.start, buf: Arc::clone(&piece.buf), len: piece.len })
    }

    /// What was lent is in the map now.
    pub(crate) fn end(&mut self, lent: &Lent) {
        let before = self.pieces.len();
        self.pieces.retain(|piece| piece.start != lent.start);
        assert_eq!(self.pieces.len() + 1, before, "I-DLY-1: a piece has its own beginning");
        self.any.store(!self.pieces.is_empty(), Ordering::Release);
    }

    /// What was lent could not be written, or not so: it waits again.
    pub(crate) fn put_back(&mut self, lent: &Lent) {
        let piece = self.pieces.iter_mut().find(|piece| piece.start == lent.start);
        let piece = piece.expect("I-DLY-3: a piece that is lent stays");
        assert_eq!(piece.phase, Phase::Writing, "I-DLY-1: it was lent");
        piece.phase = Phase::Closed;
    }

    /// Drops all of them: their bytes leave the file.
    pub(crate) fn clear(&mut self) {
        assert!(
            self.pieces.iter().all(|piece| piece.phase != Phase::Writing),
            "I-DLY-2: none is being written under the exclusive inode lock"
        );
        self.pieces.clear();
        self.any.store(false, Ordering::Release);
    }
}

/// Makes an empty piece with room for `len` bytes.
fn piece(start: u64, len: usize, all: &DelayedBytes, limits: DelayLimits) -> Option<Piece> {
    let bytes = capacity(len);
    let share = all.take(bytes as u64, limits.bytes_max)?;
    let buf = Arc::new(AlignedBuf::zeroed(bytes));
    let limit = (start + 1).next_multiple_of(limits.piece_bytes);
    Some(Piece { start, limit, len: 0, buf, share, phase: Phase::Open })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 8 << 20;
    const PIECE_BYTES: u64 = 1 << 20;

    fn put(delayed: &Delayed, all: &DelayedBytes, at: u64, len: usize, fill: u8) -> bool {
        delayed.pieces().put(
            &vec![fill; len],
            at,
            all,
            DelayLimits { piece_bytes: PIECE_BYTES, bytes_max: MAX },
        )
    }

    #[test]
    fn i_dly_1_writes_that_go_on_become_pieces_that_end_on_their_grid() {
        let (delayed, all) = (Delayed::default(), DelayedBytes::default());
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
        assert!(pieces.is_due());
        let first = pieces.lend().expect("it waits again");
        pieces.end(&first);
        drop((pieces, first, second));
        assert_eq!((delayed.any(), all.total()), (false, 0));
    }

    #[test]
    fn i_dly_3_what_lies_in_a_range_is_copied() {
        let (delayed, all) = (Delayed::default(), DelayedBytes::default());
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
    fn what_is_kept_is_bounded_and_nothing_is_taken_in_part() {
        let (delayed, all) = (Delayed::default(), DelayedBytes::default());
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
