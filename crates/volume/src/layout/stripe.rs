//! Striped: units dealt out to the columns in turn.
//!
//! ```text
//!   address  | 0 | 1 | 2 | 3 | 4 | 5 |      (in units)
//!   column     0   1   2   0   1   2
//!   unit       0   0   0   1   1   1
//! ```

use super::{Layout, Run};

/// Columns that take units in turn. All count as large as the smallest, in whole units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stripe {
    unit_bytes: u64,
    columns: Vec<Layout>,
    size_bytes: u64,
}

impl Stripe {
    /// Lays a stripe over columns.
    ///
    /// # Panics
    /// When the unit is 0.
    #[must_use]
    pub fn new(unit_bytes: u64, columns: Vec<Layout>) -> Self {
        assert!(unit_bytes > 0, "a stripe unit holds at least a byte");
        let smallest = columns.iter().map(Layout::size_bytes).min().unwrap_or(0);
        let size_bytes = (smallest - smallest % unit_bytes).saturating_mul(columns.len() as u64);
        Self { unit_bytes, columns, size_bytes }
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

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    #[inline]
    pub(super) fn locate(&self, at: u64) -> Run {
        assert!(
            at < self.size_bytes,
            "address {at} lies beyond a stripe of {} bytes",
            self.size_bytes
        );
        let (unit, within) = (at / self.unit_bytes, at % self.unit_bytes);
        let width = self.columns.len() as u64;
        let column = &self.columns[(unit % width) as usize];
        debug_assert!(within < self.unit_bytes, "an address lies in a unit: {at}");
        column.locate(unit / width * self.unit_bytes + within).at_most(self.unit_bytes - within)
    }
}
