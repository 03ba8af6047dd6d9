//! RAID-5: rows of units, one of which is the parity of the others; left-symmetric rotation.
//!
//! ```text
//!   column    0   1   2   3        row r: parity in column N-1 - r mod N, data from the next column on, round and round.
//!   row 0     0   1   2   P        So N data units in a row lie on N members: reads use all of them.
//!   row 1     4   5   P   3
//!   row 2     8   P   6   7
//!   row 3     P   9  10  11
//! ```

use super::{Copy, Layout, Run};

/// Columns, of which in every row one holds the exclusive or of the others. All count as large as
/// the smallest, in whole units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raid5 {
    unit_bytes: u64,
    columns: Vec<Layout>,
    rows: u64,
}

/// Where in its row a byte lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub row: u64,
    /// Ordinal among the data units of the row.
    pub unit: usize,
    /// First byte in the unit.
    pub within: u64,
}

impl Raid5 {
    /// Lays rows over columns.
    ///
    /// # Panics
    /// When the unit is 0.
    #[must_use]
    pub fn new(unit_bytes: u64, columns: Vec<Layout>) -> Self {
        assert!(unit_bytes > 0, "a stripe unit holds at least a byte");
        let rows = columns.iter().map(Layout::size_bytes).min().unwrap_or(0) / unit_bytes;
        Self { unit_bytes, columns, rows }
    }

    /// Returns the stripe unit in bytes.
    #[must_use]
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Returns the columns.
    #[must_use]
    pub fn columns(&self) -> &[Layout] {
        &self.columns
    }

    /// Returns how many rows there are.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns how many units of a row hold data.
    #[must_use]
    pub fn data_units(&self) -> usize {
        self.columns.len().saturating_sub(1)
    }

    /// Returns how many bytes of the volume are in a row.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.unit_bytes.saturating_mul(self.data_units() as u64)
    }

    /// Returns the column that holds the parity of a row.
    #[must_use]
    pub fn parity_column(&self, row: u64) -> usize {
        debug_assert!(self.columns.len() > 1, "a row has a parity unit beside others");
        let width = self.columns.len();
        width - 1 - (row % width as u64) as usize
    }

    /// Returns the column that holds a data unit of a row.
    #[must_use]
    pub fn data_column(&self, row: u64, unit: usize) -> usize {
        debug_assert!(
            unit < self.data_units(),
            "row {row} has {} data units and no unit {unit}",
            self.data_units()
        );
        (self.parity_column(row) + 1 + unit) % self.columns.len()
    }

    pub(crate) fn place(&self, at: u64) -> Place {
        let (unit, row_bytes) = (self.unit_bytes, self.row_bytes());
        Place { row: at / row_bytes, unit: (at % row_bytes / unit) as usize, within: at % unit }
    }

    /// Returns where a column's part of a row lies.
    pub(crate) fn copy(&self, column: usize, row: u64) -> Copy {
        debug_assert!(
            row < self.rows && column < self.columns.len(),
            "row {row}, column {column} is one of {} rows and {} columns",
            self.rows,
            self.columns.len()
        );
        self.columns[column].locate(row * self.unit_bytes).copies()[0]
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.rows.saturating_mul(self.row_bytes())
    }

    #[inline]
    pub(super) fn locate(&self, at: u64) -> Run {
        assert!(
            at < self.size_bytes(),
            "address {at} lies beyond a RAID-5 of {} bytes",
            self.size_bytes()
        );
        let place = self.place(at);
        debug_assert!(
            place.row < self.rows && place.within < self.unit_bytes,
            "address {at} lies in a row: {place:?} of {} rows",
            self.rows
        );
        let column = &self.columns[self.data_column(place.row, place.unit)];
        column
            .locate(place.row * self.unit_bytes + place.within)
            .at_most(self.unit_bytes - place.within)
    }

    pub(super) fn survives(&self, good: &dyn Fn(u16) -> bool) -> bool {
        self.columns.iter().filter(|column| !column.survives(good)).count() <= 1
    }

    pub(super) fn fault(&self) -> Option<String> {
        let plain = self.columns.iter().all(|column| matches!(column, Layout::Extent(_)));
        (self.columns.len() < 3 || !plain)
            .then(|| "a RAID-5 has three or more columns, each one extent".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Extent;

    #[test]
    fn the_rotation_is_left_symmetric() {
        let columns =
            (0..4).map(|member| Layout::Extent(Extent { member, start: 0, len: 10_000 })).collect();
        let raid5 = Raid5::new(1000, columns);
        assert_eq!((raid5.rows(), raid5.size_bytes()), (10, 30_000));
        assert_eq!((0..5).map(|row| raid5.parity_column(row)).collect::<Vec<_>>(), [3, 2, 1, 0, 3]);
        let members: Vec<u16> =
            (0..12).map(|unit| raid5.locate(unit * 1000).copies()[0].member).collect();
        assert_eq!(members, [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
        let run = raid5.locate(3250);
        assert_eq!(
            (run.len, run.copies()[0].offset, raid5.place(3250)),
            (750, 1250, Place { row: 1, unit: 0, within: 250 })
        );
        let survives = |lost: &[u16]| raid5.survives(&|member| !lost.contains(&member));
        assert!(survives(&[]) && survives(&[2]) && !survives(&[0, 3]));
    }
}
