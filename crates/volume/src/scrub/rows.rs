//! Looking whether rows agree. A unit that cannot be read is made from the others. Of units that
//! can all be read parity does not say which is wrong; the pages of databases that lie in them may:
//! what the rest of the row makes of a unit is right where the unit's page fails its own checksum
//! as it stands and passes as it is made. Where the pages of every data unit pass as they stand,
//! the parity is wrong. Else nothing is touched.

use std::ops::Range;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, Result};

use super::{Difference, How, ScrubReport, differing};
use crate::io::raid5::{Parity, Rows};
use crate::io::{LayoutEpoch, VolumeIo};

/// What stands in a unit, as a [`PageArbiter`](crate::PageArbiter) numbers it, and what the rest of
/// the row makes of it.
const STANDS: usize = 0;
const MADE: usize = 1;

impl VolumeIo {
    /// Compares the rows that begin in a range of a region that the caller has locked.
    pub fn scrub_rows(
        &self,
        epoch: &LayoutEpoch,
        parity: &Parity,
        range: &Range<u64>,
        how: How<'_>,
        report: &mut ScrubReport,
    ) -> Result<()> {
        let row_bytes = parity.raid5.row_bytes();
        for row in
            range.start.div_ceil(row_bytes)..range.end.div_ceil(row_bytes).min(parity.raid5.rows())
        {
            self.scrub_row(epoch, parity, row, how, report)?;
        }
        Ok(())
    }

    fn scrub_row(
        &self,
        epoch: &LayoutEpoch,
        parity: &Parity,
        row: u64,
        how: How<'_>,
        report: &mut ScrubReport,
    ) -> Result<()> {
        let raid5 = &parity.raid5;
        let _row = self.lock_rows(parity, row, row);
        let (handles, overwritten) =
            (self.group_state.handles(), self.group_state.overwritten_count());
        if parity.out(&handles) != Ok(None) {
            return Ok(());
        }
        let (rows, unread) = self.read_rows(parity, &handles, (row, row));
        report.compared_bytes += raid5.row_bytes();
        let unit = 0..raid5.unit_bytes() as usize;
        // Without a member there is nothing to compare.
        if unread.is_empty() && rows.agree(parity, row)
            || self.is_overwritten_since(epoch, overwritten)?
        {
            return Ok(());
        }
        if !unread.is_empty() {
            let wrong = Some(unread[0].0).filter(|_| unread.len() == 1);
            let repaired =
                self.make_again(parity, &rows, row, wrong.filter(|_| how.repair), &unit)?;
            let unreadable =
                unread.iter().map(|(column, _)| raid5.copy(*column, row).member.into()).collect();
            report.differences.push(Difference {
                unreadable,
                repaired,
                ..self.difference(parity, row, &unit, wrong)
            });
            return Ok(());
        }
        let column = raid5.parity_column(row);
        let sum = rows.sum(parity, column, row).expect("all were read");
        let stands = rows.unit(parity, column, row).expect("all were read");
        for part in differing(unit.end, self.geometry.logical_block_size as usize, |part| {
            sum[part.clone()] != stands[part.clone()]
        }) {
            let wrong = self.wrong_column(epoch, parity, &rows, row, &part, how);
            let repaired =
                self.make_again(parity, &rows, row, wrong.filter(|_| how.repair), &part)?;
            report
                .differences
                .push(Difference { repaired, ..self.difference(parity, row, &part, wrong) });
        }
        Ok(())
    }

    /// Asks the pages in a part of every data unit which column of the row is wrong there.
    fn wrong_column(
        &self,
        epoch: &LayoutEpoch,
        parity: &Parity,
        rows: &Rows,
        row: u64,
        part: &Range<usize>,
        how: How<'_>,
    ) -> Option<usize> {
        let handles = self.group_state.handles();
        let said = (0..parity.raid5.data_units()).map(|unit| {
            let range = addresses(parity, row, unit, part);
            let made = rows.sum(parity, parity.raid5.data_column(row, unit), row)?;
            let mut read = |copy: usize, address: u64, buf: &mut [u8]| {
                let stands = self.read_chosen(epoch, &handles, address, buf, &|run| {
                    run.copies().first().copied()
                });
                if stands && copy == MADE {
                    lay_over(buf, address, &made[part.clone()], range.start);
                }
                stands
            };
            how.judge.judge(self.role, range.clone(), 2, &mut read)
        });
        let said: Vec<Option<usize>> = said.collect();
        let made: Vec<usize> = (0..said.len()).filter(|unit| said[*unit] == Some(MADE)).collect();
        match made[..] {
            [unit] => Some(parity.raid5.data_column(row, unit)),
            [] if said.iter().all(|said| *said == Some(STANDS)) => {
                Some(parity.raid5.parity_column(row))
            }
            _ => None,
        }
    }

    /// Writes a part of a column again, where one is named, as the rest of the row makes it.
    /// Returns whether what was wrong is gone.
    fn make_again(
        &self,
        parity: &Parity,
        rows: &Rows,
        row: u64,
        column: Option<usize>,
        part: &Range<usize>,
    ) -> Result<bool> {
        let handles = self.group_state.handles();
        let Some((column, bytes)) =
            column.and_then(|column| Some((column, rows.sum(parity, column, row)?)))
        else {
            return Ok(false);
        };
        let Some(handle) = parity.handle(&handles, column) else { return Ok(false) };
        let written = handle.write(
            &AlignedBuf::from_slice(&bytes[part.clone()]),
            parity.raid5.copy(column, row).offset + part.start as u64,
        );
        match written.and_then(|()| handle.flush()) {
            Ok(()) => handle.note_corrected(),
            Err(error) => self.fail_members(vec![(Arc::clone(handle), error)])?,
        }
        Ok(true)
    }

    /// Says where a row does not agree, and what is known of it.
    fn difference(
        &self,
        parity: &Parity,
        row: u64,
        part: &Range<usize>,
        wrong: Option<usize>,
    ) -> Difference {
        let raid5 = &parity.raid5;
        let copy = |column| raid5.copy(column, row);
        let units = (0..raid5.data_units())
            .filter(|unit| wrong.is_none_or(|column| raid5.data_column(row, *unit) == column));
        let places: Vec<Range<u64>> =
            units.map(|unit| addresses(parity, row, unit, part)).collect();
        let range = match &places[..] {
            [only] => only.clone(),
            _ => row * raid5.row_bytes()..(row + 1) * raid5.row_bytes(),
        };
        Difference {
            role: self.role,
            range,
            places,
            copies: (0..raid5.columns().len())
                .map(copy)
                .map(|copy| (copy.member.into(), copy.offset + part.start as u64))
                .collect(),
            unreadable: Vec::new(),
            right: None,
            wrong: wrong.map(|column| copy(column).member.into()),
            repaired: false,
        }
    }
}

/// Returns the volume addresses of a part of a data unit.
fn addresses(parity: &Parity, row: u64, unit: usize, part: &Range<usize>) -> Range<u64> {
    debug_assert!(
        part.end as u64 <= parity.raid5.unit_bytes() && unit < parity.raid5.data_units(),
        "{part:?} lies in unit {unit} of a row"
    );
    let start = row * parity.raid5.row_bytes() + unit as u64 * parity.raid5.unit_bytes();
    start + part.start as u64..start + part.end as u64
}

/// Puts bytes that belong to an address over those of a buffer that begins at another.
fn lay_over(buf: &mut [u8], at: u64, bytes: &[u8], start: u64) {
    let (from, to) = (at.max(start), (at + buf.len() as u64).min(start + bytes.len() as u64));
    if from < to {
        buf[(from - at) as usize..(to - at) as usize]
            .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
    }
}
