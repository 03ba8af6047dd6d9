//! Writes that are delayed: what makes an uncached file grow in small steps, and what is written over
//! it in order, is kept in memory and goes to the device in large pieces (`inode/delayed.rs`).
//!
//! ```text
//!   write ─► no sync asked for, and goes on where the file ends? ─► blocks reserved, bytes kept, answered
//!                │ no                                                 │ a piece is full
//!                │                                                    ▼
//!                │                                          one allocation, one write of the device,
//!                │                                          one record; by a thread, the writer goes on
//!                ├► no sync asked for, goes on where the write before through this open ended, and
//!                │  lies in one extent that may be written in place? ─► bytes kept, answered
//!                │ no                                                 │ a piece is full
//!                ▼                                                    ▼
//!             as any write, after the pieces it touches     one write of the device
//! ```
//!
//! What else needs the bytes on the device writes them first, as it does with held writes: syncs,
//! freezes, changes of size, allocation or service, leases, and a turn of the sync daemon.
//! An error of such a write leaves the piece where it is, and is told by the next sync, or by the
//! next write that makes the file grow.
//!
//! While a thread writes a piece the writer fills the next one, so that the device does not wait for
//! bytes on their way out of a program. A writer that is quicker than the device writes pieces too.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::windows::Ahead;
use super::write::{Payload, WriteStrategy};
use super::{Alone, DataPath, Held};
use crate::engine::{Engine, Listed};
use crate::inode::{DelayLimits, DelayedPieces, DelayedSnapshot, DelayedWay as Way};
use crate::mode::Service;
use crate::statistics::Counters;
use crate::{ErrorKind, Reason, Result};
use bedplate_store::{PlantedBug, planted};

/// A writer writes a full piece by itself where more than so many of its file wait.
const PIECES_DUE_MAX: usize = 3;

/// What a write may wait in memory for: its caller waits for nothing but its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayWait {
    /// It may not.
    No,
    /// More that makes the file grow.
    Growth,
    /// More of the stream that it goes on, too.
    Stream,
}

impl DataPath<'_> {
    /// Returns whether a write may be delayed.
    #[inline]
    pub(super) fn may_delay(self, asked: MayWait, service: Service, data: &Payload<'_>) -> bool {
        asked != MayWait::No
            && (asked == MayWait::Stream
                || data.end() > self.inode.size.load(Ordering::Acquire)
                || self.state().delayed.any())
            && data.bytes.len() <= self.delayed_write_bytes_max()
            && !service.is_mixed()
            && !service.path().writes_behind()
            // Clients look up the size and the extents by themselves.
            && self.is_on_mount()
            && !self.grows_beside_appends(data)
    }

    /// Returns whether a write moves the end of a file that a process appends to (I-LEA-12).
    fn grows_beside_appends(self, data: &Payload<'_>) -> bool {
        self.has_tail()
            && data.end() > self.inode.size.load(Ordering::Acquire)
            && !planted(PlantedBug::GrowthBesideAppends)
    }

    /// Returns how long a write is that may be delayed, in bytes.
    pub(super) fn delayed_write_bytes_max(self) -> usize {
        self.delay_limits().write_bytes_max()
    }

    fn delay_limits(self) -> DelayLimits {
        DelayLimits {
            piece_bytes: self.fs.limits().delayed_piece_bytes,
            bytes_max: self.fs.tuning().delayed_bytes_max(),
        }
    }

    /// Takes a write that [`may_delay`](Self::may_delay) allows, under the inode lock; `false`, and
    /// nothing is taken, where it is to be carried out at once.
    pub(super) fn delay(self, data: &Payload<'_>, asked: MayWait) -> Result<bool> {
        let limits = self.delay_limits();
        if limits.bytes_max == 0 {
            return Ok(false);
        }
        let in_place = asked == MayWait::Stream && self.stays_in_place(data)?;
        let mut pieces = self.state().delayed.pieces();
        let size = self.inode.size.load(Ordering::Acquire);
        let way = if pieces.takes(&data.range(), size) {
            match self.reserve_under_lock(&data.range()) {
                // What the volume is full of, the write itself finds out.
                Err(error) if error.kind == ErrorKind::NoSpace => return Ok(false),
                reserved => reserved?,
            }
            Way::Grow
        } else if in_place && pieces.takes_over(&data.range(), self.fs.grid().sector) {
            Way::Over
        } else {
            return Ok(false);
        };
        let is_first = pieces.is_empty();
        if !pieces.put(way, data.bytes, data.offset, self.fs.delayed_bytes(), limits) {
            return Ok(false);
        }
        if is_first {
            // With the pieces locked: what takes the file off the list found none.
            self.fs.list(Listed::Delayed, self.inode);
        }
        let grown = self.inode.size.fetch_max(data.end(), Ordering::AcqRel) < data.end();
        drop(pieces);
        self.wrote_in_place();
        if data.is_aligned(self.fs.grid()) {
            self.state().steady.io_counters.count_indirect();
        } else {
            self.count_misaligned(data.bytes, data.offset, data.bytes.len());
        }
        Counters::add(&self.inode.counters.delayed, 1);
        if grown {
            self.inode.counters.reason(Reason::Extend);
        }
        Ok(true)
    }

    /// Returns whether a write changes nothing but whole sectors of the file's own written blocks:
    /// to wait it needs no blocks, and it shares no sector with a write that is held.
    #[inline(never)]
    fn stays_in_place(self, data: &Payload<'_>) -> Result<bool> {
        let grid = self.fs.grid();
        let len = data.bytes.len() as u64;
        Ok(grid.on_sector(data.offset)
            && grid.on_sector(len)
            && self.find_owned(data.offset, len)?.is_some()
            && data.end() <= self.state().logged_size()
            && !self.state().held_write.overlaps(&data.range(), grid.sector))
    }

    /// Has the pieces that are full written: by a thread, where there are any.
    pub(super) fn pass_full_pieces(self, held: &Held<'_>) {
        let Some(threads) = self.fs.piece_threads() else { return self.write_full_pieces(held) };
        let mut pieces = self.state().delayed.pieces();
        let due = pieces.due();
        let takes_hand = pieces.take_hand(self.fs.limits().delayed_piece_threads);
        drop(pieces);
        if takes_hand && !threads.submit(self.hand()) {
            self.state().delayed.pieces().give_hand_back();
            return self.write_full_pieces(held);
        }
        if due > PIECES_DUE_MAX {
            self.write_full_piece(held);
        }
    }

    /// Returns what a thread does that writes full pieces until there are no more.
    fn hand(self) -> impl FnOnce() + Send + 'static {
        let (fs, inode) = (self.fs.weak(), Arc::downgrade(self.inode));
        move || {
            let (Some(fs), Some(inode)) = (fs.upgrade(), inode.upgrade()) else { return };
            let io = DataPath::new(&fs, &inode);
            loop {
                // Let go of between two, so that one that needs the file alone gets it.
                let held = io.state().lock.shared(&*fs);
                let written = io.write_full_piece(&held);
                let mut pieces = io.state().delayed.pieces();
                // Behind one that was put back others may wait.
                if !written && pieces.due() == 0 {
                    return pieces.give_hand_back();
                }
            }
        }
    }

    /// Writes the pieces that are full, as far as that goes under the shared inode lock. What could
    /// not be written stays, for the next sync or write to tell.
    pub(super) fn write_full_pieces(self, held: &Held<'_>) {
        while self.write_full_piece(held) {}
    }

    /// Writes one piece that is full; `false` when there is none, or it could not be written.
    fn write_full_piece(self, held: &Held<'_>) -> bool {
        let Some(lent) = self.state().delayed.pieces().lend() else { return false };
        let data = Payload::waited(lent.bytes(), lent.start);
        let written = match self.plan_write(&data) {
            Ok(WriteStrategy::Fill(blocks)) if data.is_aligned(self.fs.grid()) => {
                self.fill(held, data, blocks).unwrap_or(false)
            }
            Ok(WriteStrategy::InPlace(parts)) if data.is_aligned(self.fs.grid()) => {
                self.overwrite_pieces(&parts, data).is_ok()
            }
            Ok(_) | Err(_) => false,
        };
        let mut pieces = self.state().delayed.pieces();
        if written {
            pieces.end(&lent);
            self.unlist_delayed(&pieces);
        } else {
            pieces.put_back(&lent);
        }
        written
    }

    /// Returns whether a piece is full that no thread writes.
    pub(super) fn has_full_pieces(self) -> bool {
        let pieces = || self.state().delayed.pieces();
        self.state().delayed.any() && (pieces().due() > 0 || pieces().is_owed())
    }

    /// Returns whether a piece waits that a write before left to others.
    pub(super) fn owes_pieces(self) -> bool {
        self.state().delayed.any() && self.state().delayed.pieces().is_owed()
    }

    /// Writes all pieces. After an error the rest stays, and is tried again.
    pub(super) fn write_delayed(self, held: &Alone<'_>) -> Result<()> {
        if !self.state().delayed.any() {
            return Ok(());
        }
        let mut pieces = self.state().delayed.pieces();
        pieces.close();
        pieces.take_owed();
        drop(pieces);
        loop {
            let Some(lent) = self.state().delayed.pieces().lend() else { return Ok(()) };
            let written = self.write_exclusive(held, Payload::waited(lent.bytes(), lent.start));
            let mut pieces = self.state().delayed.pieces();
            match written {
                Ok(()) => pieces.end(&lent),
                Err(_) => pieces.put_back(&lent),
            }
            self.unlist_delayed(&pieces);
            written?;
        }
    }

    /// As [`write_delayed`](Self::write_delayed), with no lock of the file held: most of it beside
    /// other I/O. Collects what a process has filled of a tail.
    pub(crate) fn write_if_delayed(self) -> Result<()> {
        if !planted(PlantedBug::TailNotSynced) {
            self.collect_tail_if_filled()?;
        }
        let state = self.state();
        if !state.delayed.any() {
            return Ok(());
        }
        let held = state.lock.shared(self.fs);
        state.delayed.pieces().close();
        self.write_full_pieces(&held);
        drop(held);
        if state.delayed.any() {
            self.write_delayed(&state.lock.exclusive(self.fs))
        } else {
            Ok(())
        }
    }

    /// Lets go of delayed writes whose bytes leave the file.
    pub(super) fn drop_delayed(self, _held: &Alone<'_>) {
        if self.state().delayed.any() {
            let mut pieces = self.state().delayed.pieces();
            pieces.clear();
            self.unlist_delayed(&pieces);
        }
    }

    /// Off the list before the pieces are let go of: a write that comes next lists the file again.
    fn unlist_delayed(self, pieces: &DelayedPieces<'_>) {
        if pieces.is_empty() {
            self.fs.unlist(Listed::Delayed, self.inode.ino, &Arc::downgrade(self.inode));
        }
    }

    /// Reads through the map, and puts what is held or delayed over it.
    #[cold]
    #[inline(never)]
    pub(super) fn read_beside_waiting(
        self,
        held: &Held<'_>,
        buf: &mut [u8],
        offset: u64,
        size: u64,
        ahead: Ahead<'_>,
    ) -> Result<usize> {
        let delayed = self.delayed_bytes(buf.len(), offset);
        let len = self.read_mapped(held, buf, offset, size, ahead)?;
        self.state().held_write.overlay(&mut buf[..len], offset);
        if let Some(delayed) = delayed {
            delayed.overlay(&mut buf[..len], offset);
        }
        Ok(len)
    }

    /// Copies what is delayed of a range that is about to be read, after the size and before the map
    /// (I-DLY-3).
    #[inline]
    pub(super) fn delayed_bytes(self, len: usize, offset: u64) -> Option<DelayedSnapshot> {
        self.state().delayed.snapshot(&(offset..offset.saturating_add(len as u64)))
    }

    /// Returns where the file ends for a reader past the library cache: in its row, or in memory.
    pub(super) fn uncached_size(self) -> u64 {
        // In this order: what leaves memory in between is in the row by then.
        let delayed = self.state().delayed.end();
        self.state().logged_size().max(delayed.unwrap_or(0))
    }

    /// Returns whether a write from here on must wait for delayed ones: their sectors, or the end
    /// of the file, which they have moved.
    #[inline]
    pub(super) fn meets_delayed(self, range: &Range<u64>) -> bool {
        self.state().delayed.overlaps(range, self.fs.grid().sector)
            && !planted(PlantedBug::DelayedWritePassed)
    }
}

impl Engine {
    /// Writes what is delayed of all files; tries all of them, and returns the first error.
    pub(crate) fn write_all_delayed(&self) -> Result<()> {
        let files = self.listed(Listed::Delayed);
        let written: Vec<Result<()>> =
            files.iter().map(|inode| DataPath::new(self, inode).write_if_delayed()).collect();
        written.into_iter().collect()
    }
}
