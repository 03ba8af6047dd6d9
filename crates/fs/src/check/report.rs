//! What a check found.

use serde::Serialize;

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
    /// An extent claims a block that another one, or the volume itself, claims too; or a file has
    /// two extents over one of its blocks.
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
    /// The free space that the metadata keep is not what no extent covers.
    Space,
    /// A block is not what its checksum says.
    Data,
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
    /// Blocks that were compared with their checksums, where that was asked for.
    pub summed_blocks: u64,
    /// Of them, those that are not what was written.
    pub wrong_blocks: u64,
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
