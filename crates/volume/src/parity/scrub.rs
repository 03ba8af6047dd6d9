//! Looking whether rows agree. Which member of a row that does not is wrong, parity does not say: that is told, and nothing is touched. A unit
//! that cannot be read is made from the others.

use std::ops::Range;
use std::sync::Arc;

use block::Result;

use super::Parity;
use crate::core::Core;
use crate::scrub::{Difference, ScrubReport};

impl Core {
    /// Compares the rows that begin in a range of a region that the caller has locked.
    pub fn scrub_rows(&self, parity: &Parity, range: &Range<u64>, repair: bool, report: &mut ScrubReport) -> Result<()> {
        let row_bytes = parity.raid5.row_bytes();
        for row in range.start.div_ceil(row_bytes)..range.end.div_ceil(row_bytes).min(parity.raid5.rows()) {
            self.scrub_row(parity, row, repair, report)?;
        }
        Ok(())
    }

    fn scrub_row(&self, parity: &Parity, row: u64, repair: bool, report: &mut ScrubReport) -> Result<()> {
        let raid5 = &parity.raid5;
        let _row = self.lock_rows(parity, row, row);
        let lives = self.shared.lives();
        if parity.out(&lives) != Ok(None) {
            return Ok(());
        }
        let (rows, unread) = self.read_rows(parity, &lives, (row, row));
        report.compared_bytes += raid5.row_bytes();
        let column = raid5.parity_column(row);
        let agrees = rows.sum(parity, column, row).is_some_and(|sum| rows.unit(parity, column, row) == Some(&sum[..]));
        if agrees && unread.is_empty() {
            return Ok(());
        }
        let mut repaired = false;
        if let ([(bad, _)], true) = (&unread[..], repair) {
            let live = parity.live(&lives, *bad).expect("a member that was asked is open");
            let bytes = rows.sum(parity, *bad, row).expect("all others were read");
            match live.write(&bytes, raid5.copy(*bad, row).offset).and_then(|()| live.flush()) {
                Ok(()) => live.note_corrected(),
                Err(error) => self.settle(vec![(Arc::clone(live), error)])?,
            }
            repaired = true;
        }
        let copy = |column| raid5.copy(column, row);
        report.differences.push(Difference {
            role: self.role,
            range: row * raid5.row_bytes()..(row + 1) * raid5.row_bytes(),
            copies: (0..raid5.columns().len()).map(copy).map(|copy| (copy.member.into(), copy.offset)).collect(),
            unreadable: unread.iter().map(|(column, _)| copy(*column).member.into()).collect(),
            right: None,
            repaired,
        });
        Ok(())
    }
}
