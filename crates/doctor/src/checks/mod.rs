//! The checks, a file for each subject: pure functions from what was seen to what there is to say.

mod device;
mod double_cache;
mod flush;
mod memory;
mod mount;
mod mysql;
mod postgres;
mod sqlite;
mod torn;

use crate::facts::Facts;
use crate::report::{Outcome, Rule};

/// A check.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Its row of the table.
    pub rule: Rule,
    /// Judges what was seen; nothing where the check does not apply.
    pub judge: fn(&Facts) -> Vec<Outcome>,
}

/// Returns every check, in the order in which they are told.
#[must_use]
pub fn all() -> Vec<Check> {
    [
        device::CHECKS,
        flush::CHECKS,
        mount::CHECKS,
        memory::CHECKS,
        double_cache::CHECKS,
        postgres::CHECKS,
        mysql::CHECKS,
        sqlite::CHECKS,
    ]
    .concat()
}
