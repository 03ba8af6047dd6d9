//! Small overwrites of what was synced an instant ago: they go to new blocks.
//!
//! A rollback journal is made, written, synced, and then its head is written over and synced again:
//! from then on it counts. A log's header, and the counter of a file that is written as a whole,
//! are changed like that too. The record that made the bytes readable is not sealed yet then, so an
//! overwrite in place would first write the log and flush (I-IO-3): one flush more than the two
//! syncs need. New blocks have no record that vouches for them; one record maps them in place of the
//! old ones, and the sync that follows anyway makes both durable (decision 0003).
//!
//! ```text
//!   waited in memory, small, over bytes that an unsealed record expects on the device,
//!   of a small file that was not written anew before ─► what stays of the blocks is read ─► new blocks
//!   anything else, or no room ─► in place, sealed first
//! ```
//!
//! Where the record carries the bytes, the next one carries what is written over them instead
//! (`data/logged.rs`).
//!
//! Only what waited in memory goes there: of a write past the caches it is promised that its
//! bytes are on the device when it returns, and a new block is the file's only with its record.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::write::Payload;
use super::{Alone, DataPath};
use crate::inode::Voucher;
use crate::{ErrorKind, Result};
use bedplate_store::{ExtentMap, Piece};

/// How long a file is of which blocks are written anew, in bytes: its blocks stay few.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// How long a write is that goes to new blocks, in bytes.
const WRITE_BYTES_MAX: usize = 16 << 10;

impl DataPath<'_> {
    /// Writes to new blocks what would have to wait for a seal in place; `false`, and the file is
    /// as it was, where it is to be written in place.
    pub(super) fn wrote_anew(self, held: &Alone<'_>, data: &Payload<'_>) -> Result<bool> {
        if !self.may_write_anew(data) || !self.needs_seal(data)? {
            return Ok(false);
        }
        self.state().was_renewed.store(true, Ordering::Relaxed);
        match self.write_whole_blocks(held, Payload { renews: true, was_held: true, ..*data }) {
            // What is written by then is written once more.
            Err(error) if error.kind == ErrorKind::NoSpace => Ok(false),
            written => written.map(|()| true),
        }
    }

    /// Returns the pieces of whole blocks that go to new places: all with data are holes to the
    /// writer. Also whether there was any.
    pub(super) fn pieces_to_renew(self, map: &ExtentMap, blocks: Range<u64>) -> (Vec<Piece>, bool) {
        let (mut pieces, mut any) = self.pieces_to_change(map, blocks);
        for piece in pieces.iter_mut().filter(|piece| piece.written().is_some()) {
            (piece.mapped, any) = (None, true);
        }
        (pieces, any)
    }

    /// Returns whether a write may go to new blocks, by what costs nothing to ask.
    pub(super) fn may_write_anew(self, data: &Payload<'_>) -> bool {
        let state = self.state();
        data.waits_for_sync()
            && state.unsealed.last() > self.fs.sealed_lsn().0
            && data.bytes.len() <= WRITE_BYTES_MAX
            && data.end().min(data.size_max) <= state.logged_size()
            && state.logged_size() <= FILE_BYTES_MAX
            && state.lease().is_none()
            && !state.was_renewed.load(Ordering::Relaxed)
    }

    /// Returns whether a write would change bytes in place that a record which is not sealed vouches
    /// for, and cannot be carried itself.
    fn needs_seal(self, data: &Payload<'_>) -> Result<bool> {
        let spared = if self.may_log_over(data) { Voucher::Carried } else { Voucher::Nothing };
        Ok(self.voucher_of(data)? > spared)
    }

    /// Keeps a copy of the block at the head of a file that begins to grow in odd pieces: the head
    /// is what is written over next, and nothing is read then.
    pub(super) fn keep_head(self, held: &Alone<'_>, data: &Payload<'_>) -> Result<()> {
        let grid = self.fs.grid();
        let block = grid.block as usize;
        if data.offset > 0
            || !data.was_held
            || data.bytes.len() < block
            || grid.on_sector(data.end())
            || self.state().was_renewed.load(Ordering::Relaxed)
        {
            return Ok(());
        }
        let map = self.map(0..1)?;
        let at = map.pieces(0..1).find(Piece::takes_overwrites).and_then(|piece| piece.written());
        drop(map);
        if let Some(start) = at {
            let head = &data.bytes[..block];
            self.state().held_sectors.keep(
                held,
                head,
                grid.start_of(start.0),
                self.fs.held_bytes(),
            );
        }
        Ok(())
    }
}
