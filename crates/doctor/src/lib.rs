//! The check of a running system: what lies below a database, from the disk up, and what of it
//! costs.
//!
//! ```text
//! System ─ facts ─ checks ─ Report        a machine, or a copy of its /proc and /sys
//!                     └──── fix           settings of the running kernel
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `system` | the machine: files below a root, and measurements |
//! | `machine` | the one that this runs on |
//! | `facts` | what is known of it, a file for each subject |
//! | `checks` | what is judged, a file for each subject: a table of rules with pure functions |
//! | `report` | what a check says |
//! | `examine` | runs them all |
//! | `fix` | writes settings |
//!
//! What could not be seen is told with the reason; nothing is good because it was not looked at.
#![forbid(unsafe_code)]

mod checks;
mod examine;
mod facts;
mod fix;
mod machine;
#[cfg(test)]
mod prepared;
mod report;
mod system;
#[cfg(test)]
mod tests;

pub use examine::{Found, Report, Told, examine, rules};
pub use facts::mysql::Mysql;
pub use facts::postgres::Postgres;
pub use facts::{Database, Facts, Place, Promise, Question};
pub use fix::{Fixed, apply};
pub use machine::Machine;
pub use report::{Finding, Mend, Outcome, Rule, Setting, Sure, size};
pub use system::{Copy, FlushTimes, ReadTimes, Seen, System};
