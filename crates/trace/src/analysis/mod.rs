//! What a trace says, file by file.

mod layout;
mod moves;
mod reuse;
mod summary;
mod syncs;
mod waits;

pub use layout::{LayoutHint, Mix, is_log, layout_hints, mix};
pub use moves::Moves;
pub use reuse::{CachePoint, ReuseCurve, reuse_curve};
pub use summary::{Failures, FileSummary, Summary, summarized};
pub use syncs::{SyncWait, Syncs};
pub use waits::{Waits, waits};

#[cfg(test)]
mod tests;
