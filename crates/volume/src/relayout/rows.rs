//! RAID-5 in a relayout: which log its rows have, and how a step arrives in them.
//!
//! A step begins and ends between rows of both layouts, so a row is never half in one and half in
//! the other: each layout has a parity log, locks and a gate of its own. What a step writes needs
//! no log, because nothing reads it before it is whole and durable; and before a range leaves a
//! RAID-5 nothing of it is in that log any more (I-RLY-3).

use std::ops::Range;

use bedplate_block::{AlignedBuf, Operation, Result};

use crate::Raid5;
use crate::io::plan::{self, Piece, handle_of};
use crate::io::raid5::xor;
use crate::io::{LayoutEpoch, VolumeIo};

impl VolumeIo {
    /// Copies a range, which begins with a row, to the rows of a RAID-5 that it goes to, so many
    /// bytes at once and at least a row. What of the last row lies beyond the range is no address
    /// of the volume.
    pub(super) fn copy_to_rows(
        &self,
        epoch: &LayoutEpoch,
        raid5: &Raid5,
        range: &Range<u64>,
        chunk_bytes: u64,
    ) -> Result<()> {
        let row_bytes = raid5.row_bytes();
        assert!(range.start.is_multiple_of(row_bytes), "a step begins with a row");
        let at_once = (chunk_bytes / row_bytes).max(1);
        for first in
            (range.start / row_bytes..range.end.div_ceil(row_bytes)).step_by(at_once as usize)
        {
            let last = (first + at_once).min(range.end.div_ceil(row_bytes));
            let mut data = AlignedBuf::zeroed(((last - first) * row_bytes) as usize);
            let len = (range.end - first * row_bytes).min(data.len() as u64) as usize;
            self.read_in(epoch, &mut data[..len], first * row_bytes)?;
            self.write_whole_rows(raid5, first..last, &data)?;
        }
        Ok(())
    }

    /// Writes rows from end to end on every member that takes writes.
    fn write_whole_rows(&self, raid5: &Raid5, rows: Range<u64>, data: &[u8]) -> Result<()> {
        let (unit, units, handles) =
            (raid5.unit_bytes() as usize, raid5.data_units(), self.group_state.handles());
        let count = (rows.end - rows.start) as usize;
        let mut all = AlignedBuf::zeroed(data.len() + count * unit);
        all[..data.len()].copy_from_slice(data);
        let (own, parities) = all.split_at_mut(data.len());
        for (row, sum) in own.chunks(units * unit).zip(parities.chunks_mut(unit)) {
            row.chunks(unit).for_each(|bytes| xor(sum, bytes));
        }
        let mut shares = Vec::new();
        for (at, row) in rows.enumerate() {
            let data = (0..units)
                .map(|number| (raid5.data_column(row, number), (at * units + number) * unit));
            let parity = (raid5.parity_column(row), (count * units + at) * unit);
            let mut held = 0;
            for (column, from) in data.chain([parity]) {
                let copy = raid5.copy(column, row);
                if let Some(handle) =
                    handle_of(&handles, copy.member).filter(|handle| handle.takes_writes())
                {
                    held += usize::from(handle.is_active());
                    plan::add(&mut shares, handle, Piece { offset: copy.offset, from, len: unit });
                }
            }
            if held < units {
                return Err(self.no_copy(Operation::Write, row * raid5.row_bytes()));
            }
        }
        self.write_shares(shares, &all)
    }
}
