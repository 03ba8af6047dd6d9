//! What a process appends to a file that rests on the mount, in memory that both share
//! (`lease/appends.rs`): given, taken into the file, ended.
//!
//! What is taken is delayed as a write through the mount is (`delayed.rs`), in order behind what was
//! delayed before; only where that cannot be it is written at once.

use std::sync::atomic::Ordering;

use bedplate_lease::{APPEND_BYTES, Reason};
use bedplate_store::Grid;

use super::delayed::MayWait;
use super::write::Payload;
use super::{Alone, DataPath, Held};
use crate::Result as FsResult;
use crate::lease::LeasedFile;
use crate::lock::Sharing;

/// What has to be free beside a buffer: so many times its length.
const ROOM_TIMES: u64 = 16;

impl DataPath<'_> {
    /// Gives a client a buffer for what it appends to the file, which rests on the mount and ends at
    /// `offset`, for a write of `len` bytes there; what another one holds goes to the file first.
    /// Returns whether the size begins to move by itself.
    pub(crate) fn give_appends(self, client: u64, offset: u64, len: u64) -> Result<bool, Reason> {
        let (client, file) = self.asked_to_grow(client)?;
        // Before the lock, which takes back what is handed out.
        if !file.rests() {
            return Err(Reason::Tail);
        }
        let held = self.state().lock.exclusive(self.fs);
        if offset != self.inode.seen_size() {
            return Err(Reason::Tail);
        }
        self.end_tail(&held).map_err(|_| Reason::HeldBytes)?;
        self.may_grow_by(&held, file, &client)?;
        if !file.rests() || !self.has_room_to_append(offset, len) {
            return Err(Reason::Tail);
        }
        file.give_appends(&client, offset).inspect_err(|_| self.unreserve(offset))
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

    /// Takes what was appended into the file; `false` where that needs the exclusive lock. The inode
    /// lock is held, shared; the process may be appending.
    pub(super) fn take_appended(self, file: &LeasedFile, held: &Held<'_>) -> FsResult<bool> {
        // One at a time, as with a tail.
        let growth = u64::MAX - 1..u64::MAX;
        let _claim = self.state().fill_claims.lock(growth, Sharing::Exclusive, self.fs);
        let Some((offset, bytes)) = file.appended() else { return Ok(true) };
        if self.owes_pieces() {
            return Ok(false);
        }
        let mut at = offset;
        for part in bytes.chunks(self.delayed_write_bytes_max()) {
            if !self.delay(&Payload::new(part, at)?, MayWait::Growth)? {
                return Ok(false);
            }
            file.append_taken(part.len() as u64);
            at += part.len() as u64;
        }
        self.write_full_pieces(held);
        Ok(true)
    }

    /// As [`take_appended`](Self::take_appended), with the file alone: in any case.
    pub(super) fn take_appended_alone(self, file: &LeasedFile, held: &Alone<'_>) -> FsResult<()> {
        let Some((offset, bytes)) = file.appended() else { return Ok(()) };
        let mut at = offset;
        for part in bytes.chunks(self.delayed_write_bytes_max()) {
            let data = Payload::new(part, at)?;
            if self.owes_pieces() {
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

    /// Writes the pieces that became full by what was taken.
    pub(crate) fn write_full_appends(self) {
        if self.owes_pieces() {
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
