//! Writes that are held: joining odd writes that go on where one before ended, and writing them
//! when something needs that.

use std::sync::Arc;

use super::delayed::MayWait;
use super::write::Payload;
use super::{Alone, DataPath};
use crate::Result;
use crate::engine::{Engine, Listed};
use crate::inode::HELD_WRITE_BYTES_MAX;
use crate::mode::Service;
use bedplate_store::{Piece, PlantedBug, planted};

impl DataPath<'_> {
    /// Carries out a write under the exclusive inode lock: delays it where it makes the file grow
    /// and may be, holds it back where it is odd and changes nothing but bytes of the file, writes
    /// it otherwise.
    pub(super) fn hold_or_write(
        self,
        held: &Alone<'_>,
        data: Payload<'_>,
        service: Service,
        may_wait: MayWait,
    ) -> Result<()> {
        self.rests_for_odd_growth(held, &data);
        if self.may_delay(may_wait, service, &data) {
            if self.has_full_pieces() {
                self.write_delayed(held)?;
            }
            if self.delay(&data, may_wait)? {
                return Ok(());
            }
            // A piece that it does not go on with is closed; then it begins one.
            self.write_delayed(held)?;
            if self.delay(&data, may_wait)? {
                return Ok(());
            }
        }
        if !self.may_hold(&data, service)? {
            self.write_waiting(held)?;
            return self.write_exclusive(held, data);
        }
        if self.meets_delayed(&data.range()) {
            self.write_delayed(held)?;
        }
        let state = self.state();
        if !state.held_write.join(held, data.bytes, data.offset) {
            self.write_waiting(held)?;
            if !state.held_write.begin(held, data.bytes, data.offset, self.fs.held_bytes()) {
                return self.write_exclusive(held, data);
            }
            self.fs.list(Listed::Held, self.inode);
        }
        self.count_misaligned(data.bytes, data.offset, data.bytes.len());
        self.wrote_in_place();
        Ok(())
    }

    /// Returns whether a write can be held back: it covers sectors in part, in blocks that are
    /// written and the file's own, below the end of the file. Where a process writes odd under a
    /// lease, which a held write would keep from it, it is not.
    fn may_hold(self, data: &Payload<'_>, service: Service) -> Result<bool> {
        let grid = self.fs.grid();
        let is_odd = !grid.on_sector(data.offset) || !grid.on_sector(data.bytes.len() as u64);
        let is_uncached = !service.uses_library_cache() && !service.is_mixed();
        if !is_odd
            || !is_uncached
            || data.bytes.len() > HELD_WRITE_BYTES_MAX
            || data.end() > self.state().logged_size()
            || self.redirects_all()
            || self.meets_odd_writes()
        {
            return Ok(false);
        }
        let blocks = grid.blocks(&data.range());
        let (pieces, _) = self.pieces_to_change(&*self.map(blocks.clone())?, blocks);
        Ok(pieces.iter().all(Piece::takes_overwrites))
    }

    /// Writes what is held or delayed, and ends a tail. After an error it stays in memory, and is
    /// tried again.
    pub(super) fn write_held_write(self, held: &Alone<'_>) -> Result<()> {
        self.end_tail(held)?;
        self.write_waiting(held)
    }

    /// As [`write_held_write`](Self::write_held_write), where what makes the file grow goes on.
    fn write_waiting(self, held: &Alone<'_>) -> Result<()> {
        self.write_delayed(held)?;
        let state = self.state();
        let Some(bytes) = state.held_write.take(held) else { return Ok(()) };
        let written = self.write_exclusive(held, Payload::waited(&bytes.bytes, bytes.offset));
        match &written {
            Ok(()) => self.end_held_write(held),
            Err(_) => state.held_write.put_back(held, bytes),
        }
        written
    }

    /// As [`write_held_write`](Self::write_held_write), with no lock of the file held.
    pub(crate) fn write_if_held(self) -> Result<()> {
        if !planted(PlantedBug::DelayedWriteNotSynced) {
            self.write_if_delayed()?;
        }
        if !self.state().held_write.any() {
            return Ok(());
        }
        self.write_held_write(&self.state().lock.exclusive(self.fs))
    }

    /// Returns whether a write of the file is held or delayed, or filled a tail.
    pub(crate) fn holds_write(self) -> bool {
        self.state().waits_in_memory()
            || self.state().lease().is_some_and(|file| file.is_tail_filled())
    }

    /// Lets go of held and delayed writes whose bytes leave the file.
    pub(super) fn drop_held_write(self, held: &Alone<'_>) {
        self.drop_delayed(held);
        self.drop_tail(held);
        if self.state().held_write.take(held).is_some() {
            self.end_held_write(held);
        }
    }

    /// Off the list first: a sync of everything that does not find the file there finds the write
    /// done.
    fn end_held_write(self, held: &Alone<'_>) {
        self.fs.unlist(Listed::Held, self.inode.ino, &Arc::downgrade(self.inode));
        self.state().held_write.end(held);
    }
}

/// Writes what is held of a file whose inode lock is held, exclusive.
pub(crate) fn write_held(
    fs: &Engine,
    inode: &Arc<crate::inode::Inode>,
    held: &Alone<'_>,
) -> Result<()> {
    DataPath::new(fs, inode).write_held_write(held)
}

impl Engine {
    /// Writes what is held or delayed of all files; tries all of them, and returns the first error.
    pub(crate) fn write_all_held(&self) -> Result<()> {
        let delayed = self.write_all_delayed();
        let files = self.listed(Listed::Held);
        let written: Vec<Result<()>> =
            files.iter().map(|inode| DataPath::new(self, inode).write_if_held()).collect();
        written.into_iter().collect::<Result<()>>().and(delayed)
    }
}
