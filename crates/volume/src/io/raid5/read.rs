//! Reading without a member: the exclusive or of all others.

use bedplate_block::{AlignedBuf, Operation, Result};

use super::{Parity, xor};
use crate::group::Handles;
use crate::io::volume_io::VolumeIo;

impl VolumeIo {
    /// Makes a column's bytes from the others. The caller has locked the row, or knows that nothing
    /// is written.
    pub(super) fn reconstruct(
        &self,
        parity: &Parity,
        handles: &Handles,
        column: usize,
        row: u64,
        within: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let mut bytes = AlignedBuf::zeroed(buf.len());
        buf.fill(0);
        for other in (0..parity.raid5.columns().len()).filter(|other| *other != column) {
            let handle = parity.handle(handles, other).filter(|handle| handle.is_active());
            let handle = handle
                .ok_or_else(|| self.no_copy(Operation::Read, row * parity.raid5.row_bytes()))?;
            handle.read(&mut bytes, parity.raid5.copy(other, row).offset + within)?;
            xor(buf, &bytes);
        }
        Ok(())
    }

    /// Makes a range within one unit of the other members, whatever its own member holds.
    pub fn read_by_parity(
        &self,
        parity: &Parity,
        handles: &Handles,
        buf: &mut [u8],
        address: u64,
    ) -> Result<()> {
        let place = parity.raid5.place(address);
        let column = parity.raid5.data_column(place.row, place.unit);
        self.refuse_uncertain(parity, place.row)?;
        let _row = self.lock_rows(parity, place.row, place.row);
        self.reconstruct(parity, handles, column, place.row, place.within, buf)
    }

    /// Reads a range within one unit whose member is gone, or failed to read it with `first`; then
    /// it is made good, or leaves.
    #[cold]
    pub fn read_without(
        &self,
        parity: &Parity,
        buf: &mut [u8],
        address: u64,
        first: Option<bedplate_block::Error>,
    ) -> Result<()> {
        let place = parity.raid5.place(address);
        let column = parity.raid5.data_column(place.row, place.unit);
        self.refuse_uncertain(parity, place.row)?;
        let _row = self.lock_rows(parity, place.row, place.row);
        let (handles, overwritten) =
            (self.group_state.handles(), self.group_state.overwritten_count());
        if let Err(error) = self.reconstruct(parity, &handles, column, place.row, place.within, buf)
        {
            return Err(first.unwrap_or(error));
        }
        let bad = parity.handle(&handles, column).filter(|handle| handle.is_active());
        let (Some(error), Some(bad), false) = (first, bad, self.group_state.read_only) else {
            return Ok(());
        };
        // What is written back, and returned, is made of members that are what they were.
        if self.is_overwritten_since(&self.epochs.peek(), overwritten)? {
            return Err(error);
        }
        tracing::warn!(volume = self.name, member = bad.name(), %error,
            "made from parity what could not be read");
        match bad.write(
            &AlignedBuf::from_slice(buf),
            parity.raid5.copy(column, place.row).offset + place.within,
        ) {
            Ok(()) => bad.note_corrected(),
            Err(error) => self.fail_members(vec![(bad.clone(), error)])?,
        }
        Ok(())
    }
}
