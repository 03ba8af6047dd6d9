//! Data that goes into the log instead of to its place: what small writes add to a file that is
//! synced, behind its end or where it has no data yet.
//!
//! A durable append is a write of its data, a write of its record and a flush. Of a small one the
//! record carries the data: one write and the flush, and many appends go to their place in one
//! write later (`store/src/log/home.rs`, decision 0062). Of a file that is not synced between its writes
//! nothing is gained: its data goes to its place at once, or waits (`data/delayed.rs`).
//!
//! What waited in memory and is written over bytes that the log has goes the same way (I-HOM-4): the
//! last page of a log that is written page by page, the head of a rollback journal. In its place it
//! would have to wait until the bytes are at home and the record is sealed. And where records carry
//! what is written over in a file, they carry a little of it along that nothing vouches for: the first
//! page of a database, which each commit changes beside another one. By itself that would be a write
//! of the device before the record's.
//!
//! - I-HOM-4: a record carries what changes bytes only where each record that vouches for them, and
//!   is not sealed, carries them too. So replay writes them in the order of the records, and expects
//!   none of them on the device.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::DataPath;
use super::exposure::Exposing;
use super::write::Payload;
use crate::Result;
use crate::inode::Voucher;
use bedplate_store::{PlantedBug, planted};

impl DataPath<'_> {
    /// Has the record of a write of so many bytes, which adds to the file and changes nothing, carry
    /// its data, where that pays.
    pub(super) fn log_if_small(self, exposing: &mut Exposing, bytes: u64) {
        let state = self.state();
        if bytes <= self.fs.limits().logged_write_bytes
            && state.synced.load(Ordering::Relaxed)
            && self.fs.carries_data(bytes)
            && !exposing.sums()
            // Its processes read the device.
            && state.lease().is_none()
        {
            exposing.set_logged();
        }
    }

    /// Returns whether the record of a write may carry what it changes in place. Not of a write past
    /// the caches that returns when the device has its bytes.
    fn may_carry(self, data: &Payload<'_>) -> bool {
        let (state, bytes) = (self.state(), data.bytes.len() as u64);
        data.waits_for_sync()
            && bytes <= self.fs.limits().logged_write_bytes
            && state.synced.load(Ordering::Relaxed)
            && self.fs.carries_data(bytes)
            && state.lease().is_none()
    }

    /// Returns whether a write may be carried that changes bytes in place which a record vouches for,
    /// by what costs nothing to ask.
    pub(super) fn may_log_over(self, data: &Payload<'_>) -> bool {
        self.state().unsealed.last() > self.fs.sealed_lsn().0 && self.may_carry(data)
    }

    /// Returns whether a record had better carry a write that changes bytes in place, for which the
    /// inode is locked exclusively.
    pub(super) fn is_better_carried(self, data: &Payload<'_>) -> Result<bool> {
        Ok(self.may_log_over(data)
            && match self.voucher_of(data)? {
                Voucher::Nothing => self.goes_along(data),
                Voucher::Carried => true,
                Voucher::Device => false,
            })
    }

    /// Returns whether a record is to carry what nothing vouches for: the file has records that carry
    /// data, so the next sync has one too, and it is little since the last sync.
    fn goes_along(self, data: &Payload<'_>) -> bool {
        let state = self.state();
        let bytes = state.carried_along.load(Ordering::Relaxed) + data.bytes.len() as u64;
        state.unsealed.carries(self.fs.sealed_lsn()) && bytes <= self.fs.limits().logged_write_bytes
    }

    /// Returns whether a record that carries a write spares it a seal, or a write of its own beside
    /// what is carried anyway. `over`: the device bytes that change in place.
    ///
    /// What makes the file grow is carried even where its tail has to be sealed first, once: else the
    /// next one would meet a tail that no record carries, and so would all that follow.
    pub(super) fn spares_a_seal(
        self,
        data: &Payload<'_>,
        over: &[Range<u64>],
        grows: bool,
    ) -> Result<bool> {
        if over.is_empty() || !self.may_carry(data) {
            return Ok(false);
        }
        let voucher = over.iter().map(|range| self.voucher(range)).max();
        if grows && voucher == Some(Voucher::Device) {
            over.iter().try_for_each(|range| self.permit(range, false))?;
        }
        let along = !grows && voucher == Some(Voucher::Nothing) && self.goes_along(data);
        if along {
            let carried = &self.state().carried_along;
            carried.fetch_add(data.bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(grows || along || voucher == Some(Voucher::Carried))
    }

    /// Returns what vouches for bytes that a write would change in place.
    pub(super) fn voucher_of(self, data: &Payload<'_>) -> Result<Voucher> {
        let grid = self.fs.grid();
        let blocks = grid.blocks(&data.range());
        let (pieces, _) = self.pieces_to_change(&*self.map(blocks.clone())?, blocks);
        let vouchers = pieces.iter().filter(|piece| piece.takes_overwrites()).map(|piece| {
            let bytes = piece.bytes(grid, &data.range());
            let start = piece.written().map_or(0, |start| grid.start_of(start.0));
            let at = start + (bytes.start - grid.start_of(piece.file_block));
            self.voucher(&(at..at + (bytes.end - bytes.start)))
        });
        Ok(vouchers.max().unwrap_or(Voucher::Nothing))
    }

    /// Returns what vouches for bytes of the device (I-HOM-4).
    fn voucher(self, range: &Range<u64>) -> Voucher {
        match self.state().unsealed.voucher(range, self.fs.sealed_lsn()) {
            Voucher::Device if planted(PlantedBug::LoggedOverUncarried) => Voucher::Carried,
            voucher => voucher,
        }
    }

    /// Makes sure that device bytes may change: at once, or where they are `logged` when they go
    /// home.
    pub(super) fn permit(self, range: &Range<u64>, logged: bool) -> Result<()> {
        if !logged || self.voucher(range) == Voucher::Device {
            self.fs.permit_overwrite(&self.state().unsealed, range)?;
        }
        debug_assert!(
            self.voucher(range) <= Voucher::Carried,
            "I-HOM-4: no record expects {range:?} on the device as it is"
        );
        Ok(())
    }

    /// As [`overwrite`](Self::overwrite), of what the record is to carry.
    pub(super) fn log_overwrite(
        self,
        exposing: &mut Exposing,
        bytes: &[u8],
        at: u64,
    ) -> Result<()> {
        let range = at..at + bytes.len() as u64;
        let state = self.state();
        self.permit(&range, true)?;
        state.held_sectors.forget(&range);
        let _write = state.read_windows.begin_write(range);
        exposing.log_write(at, bytes);
        Ok(())
    }
}
