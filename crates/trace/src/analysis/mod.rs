//! What a trace says, file by file.

mod moves;
mod summary;
mod syncs;

pub use moves::Moves;
pub use summary::{Failures, FileSummary, Summary, summarized};
pub use syncs::{SyncWait, Syncs};

#[cfg(test)]
mod tests;
