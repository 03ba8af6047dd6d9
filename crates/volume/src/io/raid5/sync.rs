//! Making rows agree: parity after a crash or in a new group, and the units of a member that is
//! being brought up to date.

use std::ops::Range;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, Operation, RequestKind, Result, Segment};

use super::plan::Out;
use super::write::Failures;
use super::{Parity, xor};
use crate::group::{Handles, MemberHandle};
use crate::io::epoch::LayoutEpoch;
use crate::io::fanout::Job;
use crate::io::volume_io::VolumeIo;
use crate::planted::{Mistake, is_planted};

/// Rows next to each other, as the members hold them.
pub(crate) struct Rows {
    pub first: u64,
    pub count: u64,
    /// By column; none for one that is out or cannot be read.
    pub columns: Vec<Option<AlignedBuf>>,
}

impl Rows {
    /// Returns a column's unit in a row.
    pub fn unit(&self, parity: &Parity, column: usize, row: u64) -> Option<&[u8]> {
        debug_assert!(
            (self.first..self.first + self.count).contains(&row),
            "row {row} was read: {} from {}",
            self.count,
            self.first
        );
        let unit = parity.raid5.unit_bytes() as usize;
        let from = (row - self.first) as usize * unit;
        self.columns[column].as_ref().map(|bytes| &bytes[from..from + unit])
    }

    /// Returns the exclusive or of all columns but one in a row; nothing when one of them was not
    /// read.
    pub fn sum(&self, parity: &Parity, but: usize, row: u64) -> Option<AlignedBuf> {
        let mut sum = AlignedBuf::zeroed(parity.raid5.unit_bytes() as usize);
        self.sum_into(parity, but, row, &mut sum)?;
        Some(sum)
    }

    /// As [`sum`](Self::sum), into a unit's worth of bytes.
    fn sum_into(&self, parity: &Parity, but: usize, row: u64, sum: &mut [u8]) -> Option<()> {
        let mut columns = (0..self.columns.len()).filter(|column| *column != but);
        sum.copy_from_slice(self.unit(parity, columns.next()?, row)?);
        columns.try_for_each(|column| self.unit(parity, column, row).map(|unit| xor(sum, unit)))
    }
}

impl Rows {
    /// Says whether the parity of a row, of which all was read, is that of its data.
    pub fn agree(&self, parity: &Parity, row: u64) -> bool {
        let column = parity.raid5.parity_column(row);
        self.sum(parity, column, row)
            .is_some_and(|sum| self.unit(parity, column, row) == Some(&sum[..]))
    }
}

impl VolumeIo {
    /// Makes the rows of a range agree, about `chunk` bytes of each member at once. Returns the
    /// members that were written.
    pub fn sync_rows(
        &self,
        epoch: &LayoutEpoch,
        parity: &Parity,
        range: &Range<u64>,
        chunk: u64,
        in_doubt: bool,
        behind: bool,
    ) -> Result<Vec<Arc<MemberHandle>>> {
        debug_assert!(range.start < range.end, "rows of some bytes are synced: {range:?}");
        let (first, last) =
            (parity.raid5.place(range.start).row, parity.raid5.place(range.end - 1).row);
        let step = (chunk / parity.raid5.unit_bytes()).max(1);
        let mut written = Vec::new();
        for from in (first..=last).step_by(step as usize) {
            let to = (from + step - 1).min(last);
            let _rows = self.lock_rows(parity, from, to);
            let (handles, overwritten) =
                (self.group_state.handles(), self.group_state.overwritten_count());
            let out = parity
                .out(&handles)
                .map_err(|_| self.no_copy(Operation::Read, from * parity.raid5.row_bytes()))?;
            match out {
                // Without a member there is nothing to compare; the parity log has made the rows
                // agree.
                Some(out) if !(out.takes_writes && behind) => continue,
                None if !in_doubt => continue,
                _ => {}
            }
            let (rows, unread) = self.read_rows(parity, &handles, (from, to));
            let agree = out.is_none()
                && unread.is_empty()
                && (from..=to).all(|row| rows.agree(parity, row));
            // Parity is made of members that are what they were; of one that was overwritten there
            // is nothing to compare.
            if agree || out.is_none() && self.is_overwritten_since(epoch, overwritten)? {
                self.give_rows(rows);
                continue;
            }
            let failures = self.sync_some(parity, &handles, (rows, unread), out, &mut written)?;
            self.fail_members(failures)?;
        }
        Ok(written)
    }

    fn give_rows(&self, rows: Rows) {
        rows.columns.into_iter().flatten().for_each(|buf| self.buffers.give(buf));
    }

    fn sync_some(
        &self,
        parity: &Parity,
        handles: &Handles,
        (rows, unread): (Rows, Vec<(usize, bedplate_block::Error)>),
        out: Option<Out>,
        written: &mut Vec<Arc<MemberHandle>>,
    ) -> Result<Failures> {
        let span = (rows.first, rows.first + rows.count - 1);
        // A unit that cannot be read is made from the others, as one that is out is: all of the
        // column, so that it is written at one go.
        let target = match (out, unread.first()) {
            (Some(out), None) => Some(out.column),
            (None, Some((column, _))) if unread.len() == 1 => Some(*column),
            (None, None) => None,
            (_, first) => {
                return Err(first
                    .map_or_else(|| self.no_copy(Operation::Read, 0), |(_, error)| error.clone()));
            }
        };
        let mut failures = Vec::new();
        let mut write = |column: usize, row: u64, bytes: &[u8]| {
            let handle = parity.handle(handles, column).expect("a member that takes part is open");
            match handle.write(bytes, parity.raid5.copy(column, row).offset) {
                Ok(()) => written.push(Arc::clone(handle)),
                Err(error) => failures.push((Arc::clone(handle), error)),
            }
        };
        let unit = parity.raid5.unit_bytes() as usize;
        if let Some(column) = target {
            let len = rows.count as usize * unit;
            let mut bytes = self.buffers.take(len);
            for (row, part) in (span.0..=span.1).zip(bytes.chunks_mut(unit)) {
                let row = if is_planted(Mistake::FirstRowForAll) { span.0 } else { row };
                rows.sum_into(parity, column, row, part).expect("all others were read");
            }
            write(column, span.0, &bytes[..len]);
            self.buffers.give(bytes);
        } else {
            let mut sum = self.buffers.take(unit);
            for row in span.0..=span.1 {
                let column = parity.raid5.parity_column(row);
                rows.sum_into(parity, column, row, &mut sum[..unit]).expect("all were read");
                if rows.unit(parity, column, row) != Some(&sum[..unit]) {
                    write(column, row, &sum[..unit]);
                }
            }
            self.buffers.give(sum);
        }
        self.give_rows(rows);
        Ok(failures)
    }

    /// Reads rows from every member that is up to date, and says which could not be read.
    pub(crate) fn read_rows(
        &self,
        parity: &Parity,
        handles: &Handles,
        span: (u64, u64),
    ) -> (Rows, Vec<(usize, bedplate_block::Error)>) {
        let count = span.1 - span.0 + 1;
        let len = (count * parity.raid5.unit_bytes()) as usize;
        debug_assert!(u32::try_from(len).is_ok(), "one read takes {len} bytes of a column");
        let columns = 0..parity.raid5.columns().len();
        let asked: Vec<usize> = columns
            .clone()
            .filter(|column| {
                parity.handle(handles, *column).is_some_and(|handle| handle.is_active())
            })
            .collect();
        let job = |column: &usize| {
            let handle = Arc::clone(parity.handle(handles, *column).expect("it was just there"));
            let place =
                Segment { offset: parity.raid5.copy(*column, span.0).offset, len: len as u32 };
            Job {
                handle,
                kind: RequestKind::Read,
                buf: Some(self.buffers.take(len)),
                segments: vec![place],
            }
        };
        let done = self.lanes.run(asked.iter().map(job).collect(), || ()).0;
        let (mut rows, mut unread) =
            (Rows { first: span.0, count, columns: columns.map(|_| None).collect() }, Vec::new());
        for (column, done) in asked.into_iter().zip(done) {
            match done.result {
                Ok(()) => rows.columns[column] = done.buf,
                Err(error) => unread.push((column, error)),
            }
        }
        (rows, unread)
    }
}
