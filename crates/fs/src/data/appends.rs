//! What a process appends to a file that rests on the mount, in memory that both share
//! (`lease/appends.rs`): given, taken into the file, ended.
//!
//! What is taken is delayed as a write through the mount is (`delayed.rs`), in order behind what was
//! delayed before; only where that cannot be it is written at once. Overwrites are taken first: they
//! lie in blocks that the file had before anything was appended to this buffer.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bedplate_lease::{APPEND_BYTES, OVERWRITE_BYTES, Reason};
use bedplate_store::{ExtentState, Grid, Piece, PlantedBug, planted};

use super::delayed::MayWait;
use super::write::Payload;
use super::{Alone, DataPath, Held};
use crate::Result as FsResult;
use crate::lease::LeasedFile;
use crate::lock::Sharing;

/// What has to be free beside a buffer: so many times its length.
const ROOM_TIMES: u64 = 16;

/// How far overwrites may go on until a process asks again, in bytes.
const OVER_BYTES_MAX: u64 = 16 << 20;

/// How much of a buffer was taken.
enum Taken {
    All,
    /// Some, with which a piece that waits became full.
    Full,
    /// Some, and the rest cannot be under the shared lock.
    NotAll,
}

impl DataPath<'_> {
    /// Gives a client a buffer for what it appends to the file, which rests on the mount, or writes over
    /// it, for a write of `len` bytes at `offset`: where the file ends, or before. What another one holds
    /// goes to the file first. Returns whether the size begins to move by itself.
    ///
    /// A process that asks for an overwrite has made many, in order, without a sync: the file rests from
    /// now on.
    pub(crate) fn give_appends(self, client: u64, offset: u64, len: u64) -> Result<bool, Reason> {
        let (client, file) = self.asked_to_grow(client)?;
        let writes_over = offset < self.inode.seen_size();
        // Before the lock, which takes back what is handed out.
        let may_be = if writes_over { self.may_stream_over(offset, len) } else { file.rests() };
        if !may_be {
            return Err(Reason::Tail);
        }
        let held = self.state().lock.exclusive(self.fs);
        let end = self.inode.seen_size();
        let is_fit = if writes_over { offset.saturating_add(len) <= end } else { offset == end };
        if !is_fit {
            return Err(Reason::Tail);
        }
        let goes_on = if writes_over { Some(offset) } else { file.overwrites_at() };
        self.end_tail(&held).map_err(|_| Reason::HeldBytes)?;
        // The process may have appended until it was closed.
        let end = self.inode.seen_size();
        if !writes_over && offset != end {
            return Err(Reason::Tail);
        }
        self.may_grow_by(&held, file, &client)?;
        let over = self.range_to_write_over(goes_on);
        if writes_over && over.start <= offset && offset + len <= over.end {
            self.end_odd_writes(&held);
            file.begins_stream(self.streamed());
        }
        if !file.rests() || !self.has_room_to_append(end, len) {
            return Err(Reason::Tail);
        }
        file.give_appends(&client, end, over).inspect_err(|_| self.unreserve(end))
    }

    /// Returns whether a write of `len` bytes over bytes of the file may be the first of many that wait
    /// in memory: the file is not one whose writes all go elsewhere.
    fn may_stream_over(self, offset: u64, len: u64) -> bool {
        let grid = self.fs.grid();
        !self.redirects_all()
            && !self.gives_sums()
            && grid.on_sector(offset)
            && grid.on_sector(len)
            && len <= OVERWRITE_BYTES
            && offset.saturating_add(len) <= self.state().logged_size()
    }

    /// Returns from where to where overwrites may lie that begin at a place, or behind it: in written
    /// blocks of the file's own, which they need no others for.
    fn range_to_write_over(self, begin: Option<u64>) -> Range<u64> {
        let Some(begin) = begin else { return 0..0 };
        let grid = self.fs.grid();
        let end = self.state().logged_size().min(begin.saturating_add(OVER_BYTES_MAX));
        let begin = begin / grid.sector * grid.sector;
        let blocks = grid.block_of(begin)..grid.block_of(end);
        if self.redirects_all() || self.gives_sums() || blocks.is_empty() {
            return 0..0;
        }
        let Ok(map) = self.map(blocks.clone()) else { return 0..0 };
        let epoch = self.cow_epoch();
        let is_own = |piece: &Piece| {
            let mapped = piece.mapped.as_ref();
            !piece.is_summed()
                && mapped.is_some_and(|it| it.state == ExtentState::Written && it.birth > epoch)
        };
        let own = map.pieces(blocks.clone()).take_while(is_own).map(|piece| piece.blocks);
        begin..grid.start_of(blocks.start + own.sum::<u64>()).max(begin)
    }

    /// Reserves blocks for a buffer that begins at `offset`; `false` where that is not the end of the
    /// file, or there are too few.
    fn has_room_to_append(self, offset: u64, len: u64) -> bool {
        let grid = self.fs.grid();
        let Ok(map) = self.map(0..0) else { return false };
        drop(map);
        let totals = self.fs.space_totals();
        let room = totals.free.saturating_sub(totals.reserve);
        offset == self.inode.size.load(Ordering::Acquire)
            && len <= APPEND_BYTES
            && offset < Grid::FILE_BYTES_MAX / 2
            && self.fs.tuning().delayed_bytes_max() > 0
            && room >= grid.block_after(APPEND_BYTES).saturating_mul(ROOM_TIMES)
            && self.reserve_under_lock(&(offset..offset + APPEND_BYTES)).is_ok()
    }

    /// Gives back what is reserved behind `end`, where the file ends; what is delayed needs its last
    /// block.
    fn unreserve(self, end: u64) {
        let grid = self.fs.grid();
        let is_needed = self.state().delayed.any();
        let first = if is_needed { grid.block_after(end) } else { grid.block_of(end) };
        self.forget_reserved(&(first..grid.block_after(end + APPEND_BYTES)));
    }

    /// Returns whether a write leaves what a process appends alone: it ends where the file does that has
    /// been taken, or before.
    pub(super) fn spares_appends(self, offset: Option<u64>, len: u64) -> bool {
        let end = offset.and_then(|offset| offset.checked_add(len));
        end.is_some_and(|end| end <= self.inode.size.load(Ordering::Acquire))
            && self.state().lease().is_some_and(|file| file.has_appends())
    }

    /// Takes what was appended and overwritten into the file; `false` where that needs the exclusive
    /// lock. The inode lock is held, shared; the process may go on.
    pub(super) fn take_appended(self, file: &LeasedFile, held: &Held<'_>) -> FsResult<bool> {
        loop {
            // What was left in memory before is written first, or told.
            if self.owes_pieces() {
                return Ok(false);
            }
            let taken = self.take_until_full(file)?;
            self.write_full_pieces(held);
            match taken {
                Taken::All => return Ok(true),
                Taken::Full => {}
                Taken::NotAll => return Ok(false),
            }
        }
    }

    /// Takes until a piece is full.
    fn take_until_full(self, file: &LeasedFile) -> FsResult<Taken> {
        // One at a time, as with a tail.
        let growth = u64::MAX - 1..u64::MAX;
        let _claim = self.state().fill_claims.lock(growth, Sharing::Exclusive, self.fs);
        while let Some(overwrite) = file.overwrite() {
            let data = Payload::new(&overwrite.bytes, overwrite.place)?;
            let may_wait = self.may_delay(MayWait::Stream, self.service(), &data);
            if !may_wait || !self.delay(&data, MayWait::Stream)? {
                return Ok(Taken::NotAll);
            }
            file.overwrite_taken(&overwrite);
            if self.has_full_pieces() {
                return Ok(Taken::Full);
            }
        }
        let Some((offset, bytes)) = file.appended() else { return Ok(Taken::All) };
        let mut at = offset;
        for part in bytes.chunks(self.delayed_write_bytes_max()) {
            if !self.delay(&Payload::new(part, at)?, MayWait::Growth)? {
                return Ok(Taken::NotAll);
            }
            file.append_taken(part.len() as u64);
            at += part.len() as u64;
        }
        Ok(Taken::All)
    }

    /// As [`take_appended`](Self::take_appended), with the file alone: in any case.
    pub(super) fn take_appended_alone(self, file: &LeasedFile, held: &Alone<'_>) -> FsResult<()> {
        while let Some(overwrite) = file.overwrite() {
            let data = Payload::new(&overwrite.bytes, overwrite.place)?;
            self.hold_or_write(held, data, self.service(), MayWait::Stream)?;
            file.overwrite_taken(&overwrite);
        }
        let Some((offset, bytes)) = file.appended() else { return Ok(()) };
        let mut at = offset;
        for part in bytes.chunks(self.delayed_write_bytes_max()) {
            let data = Payload::new(part, at)?;
            if self.has_full_pieces() {
                self.write_delayed(held)?;
            }
            if !self.delay(&data, MayWait::Growth)? {
                self.write_delayed(held)?;
                self.write_exclusive(held, data)?;
            }
            file.append_taken(part.len() as u64);
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Returns whether a process wrote over something that the file has not yet: what reads or writes
    /// here takes it first (I-LEA-13).
    #[inline]
    pub(super) fn is_overwritten(self) -> bool {
        self.state().lease().is_some_and(|file| file.is_overwritten())
            && !planted(PlantedBug::OverwritesNotTaken)
    }

    /// Takes what a process wrote over before a read or write begins (I-LEA-13).
    #[inline]
    pub(super) fn take_overwrites(self) -> FsResult<()> {
        if self.is_overwritten() { self.collect_tail_if_filled() } else { Ok(()) }
    }

    /// Writes the pieces that became full by what was taken.
    pub(crate) fn write_full_appends(self) {
        if self.has_full_pieces() {
            self.write_full_pieces(&self.state().lock.shared(self.fs));
        }
    }

    /// Ends the buffer of a file: takes what was appended, and lets the process append no more. After
    /// an error the rest stays there, and is tried again.
    pub(super) fn end_appends(self, file: &LeasedFile, held: &Alone<'_>) -> FsResult<()> {
        file.close_appends();
        self.take_appended_alone(file, held)?;
        self.drop_appends(file);
        Ok(())
    }

    /// Ends the buffer of a file, and drops what was appended and not taken.
    pub(super) fn drop_appends(self, file: &LeasedFile) {
        if let Some(rest) = file.end_appends() {
            self.unreserve(rest.start);
        }
    }
}
