//! Sets of tunables.

use super::Tunable;

/// A set of tunables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TunableSet(u32);

impl TunableSet {
    /// Adds one.
    pub fn insert(&mut self, tunable: Tunable) {
        self.0 |= 1 << tunable as u32;
    }

    /// Returns whether it is in the set.
    #[must_use]
    pub fn contains(self, tunable: Tunable) -> bool {
        self.0 & (1 << tunable as u32) != 0
    }
}
