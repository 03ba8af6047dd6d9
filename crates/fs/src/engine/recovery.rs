//! What a mount had to do.

use serde::Serialize;

/// What a mount had to do.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RecoveryReport {
    /// Whether the volume had not been unmounted.
    pub needed: bool,
    /// Log records replayed.
    pub records: u64,
    /// Why the log ended where it did.
    pub log_end: String,
    /// Files that had no name left and were removed.
    pub orphans: u64,
    /// Whether the first superblock was unreadable and the second was used.
    pub second_superblock: bool,
    /// Extents read to rebuild the free space; 0 where the metadata keep it.
    pub extents: u64,
    /// Duration of the whole mount in microseconds.
    pub duration_us: u64,
}
