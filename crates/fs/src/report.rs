//! What format, mount and check report.

use serde::Serialize;

use crate::{CacheCounters, CheckpointCounts, CounterSnapshot, IoMode, Latencies, MoverReport};

/// What `format` made.
#[derive(Debug, Clone, Serialize)]
pub struct FormatReport {
    /// Identity of the volume.
    pub uuid: String,
    /// Allocation unit in bytes.
    pub block_size: u32,
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// Size of the intent log in bytes.
    pub log_bytes: u64,
    /// Whether the log lives on a device of its own.
    pub log_separate: bool,
    /// Whether nothing is left to recover: it is new, or its last mount ended with an unmount.
    pub clean: bool,
}

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
    /// Extents read to rebuild the free space.
    pub extents: u64,
    /// Duration of the whole mount in microseconds.
    pub duration_us: u64,
}

/// State of the intent log.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LogInfo {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes between tail and head.
    pub used_bytes: u64,
    /// Whether it lives on a device of its own.
    pub separate: bool,
    /// Name of that device.
    pub device: Option<String>,
    /// Log writes since mount.
    pub writes: u64,
    /// Records written since mount.
    pub records: u64,
    /// Flushes of the data device asked of the device since mount.
    pub flushes: u64,
    /// Syncs served; more than `flushes` when callers shared.
    pub syncs: u64,
    /// Durable commits of the metadata tree since mount.
    pub metadata_commits: u64,
}

/// What a mounted file system tells of itself.
#[derive(Debug, Clone, Serialize)]
pub struct FsInfo {
    /// Identity of the volume.
    pub uuid: String,
    /// Format version.
    pub version: u32,
    /// Allocation unit in bytes.
    pub block_size: u32,
    /// Alignment in bytes that direct I/O wants of offset and length.
    pub io_align: u32,
    /// Alignment in bytes that direct I/O wants of the buffer.
    pub buffer_align: u32,
    /// Size of the file system in bytes.
    pub size_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Number of free runs.
    pub free_runs: u64,
    /// Longest free run in bytes.
    pub free_run_bytes_max: u64,
    /// Bytes of the metadata region.
    pub metadata_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Extents as of the last metadata commit.
    pub extents: u64,
    /// Mode of the mount.
    pub mode: IoMode,
    /// Name of the device.
    pub device: String,
    /// Engine of the device, with the reason for a fallback.
    pub engine: String,
    /// Why the file system turned read-only, if it did.
    pub failed: Option<String>,
    /// The log.
    pub log: LogInfo,
    /// The checkpoints.
    pub checkpoints: CheckpointCounts,
    /// Background defragmentation.
    pub mover: MoverReport,
    /// The library cache.
    pub cache: CacheCounters,
    /// What the mount had to do.
    pub recovery: RecoveryReport,
    /// How often a read or write had to wait for an inode lock or a byte range, since mount.
    pub lock_waits: u64,
    /// Sums over all files since mount.
    pub counters: CounterSnapshot,
    /// How long reads, writes and syncs of all files took.
    pub latencies: Latencies,
}

/// Classes of inconsistency that `check` tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A superblock copy is unreadable or disagrees with the other.
    Superblock,
    /// The metadata tree is damaged.
    Metadata,
    /// The log has a damaged part that recovery must stop at although later records exist.
    Log,
    /// A row does not decode.
    Row,
    /// An extent lies outside the volume or beyond the largest file.
    ExtentRange,
    /// An extent claims a block that another one, or the volume itself, claims too; or a file has two extents over one of its blocks.
    ExtentOverlap,
    /// A name points to an inode that does not exist.
    DanglingName,
    /// An inode has no name and is no orphan.
    Unreachable,
    /// A link count differs from the number of names.
    LinkCount,
    /// The allocated size of an inode differs from its extents.
    AllocatedSize,
    /// An extent, attribute or name belongs to an inode that does not exist.
    Leftover,
    /// A directory is reachable from itself or has more than one name.
    DirectoryLoop,
    /// A name that no directory may hold: empty, `.`, `..`, too long, with a `/` or a NUL in it.
    BadName,
    /// A name says another kind of file than its inode.
    NameKind,
    /// A directory names another one as its parent than the one that its name stands in.
    Parent,
    /// Permission bits that do not exist.
    Mode,
    /// A size that the inode cannot have.
    Size,
    /// A setting of the volume is missing or impossible.
    Setting,
    /// A checkpoint, what it keeps or what it shows cannot be read or contradicts itself.
    Checkpoint,
    /// An extent says that it was born after the moment that has it.
    Birth,
}

/// One inconsistency.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// Its class.
    pub kind: FindingKind,
    /// One sentence that says what is wrong, and where.
    pub message: String,
    /// What `repair` does about it or, where that would need a guess, what a person can do.
    pub remedy: String,
    /// Whether there is one right answer, so that `repair` can mend it.
    pub repairable: bool,
    /// Whether `repair` mended it.
    pub mended: bool,
}

/// What `check` found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CheckReport {
    /// The inconsistencies, in the order found.
    pub findings: Vec<Finding>,
    /// Inodes looked at.
    pub inodes: u64,
    /// Names looked at.
    pub names: u64,
    /// Extents looked at.
    pub extents: u64,
    /// Log records that recovery would replay (or did).
    pub log_records: u64,
    /// Whether the volume had been unmounted.
    pub clean_unmount: bool,
}

impl CheckReport {
    /// Returns whether everything that is wrong has one right answer.
    #[must_use]
    pub fn is_repairable(&self) -> bool {
        self.findings.iter().all(|finding| finding.repairable)
    }

    /// Returns whether nothing is wrong, or everything was mended.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.findings.iter().all(|finding| finding.mended)
    }
}
