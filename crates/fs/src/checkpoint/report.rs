//! What programs ask of checkpoints, and what they are told.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Epoch, InodeNo, Timestamp};
use bedplate_store::Checkpoint;

/// What a checkpoint is of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CheckpointScope {
    /// The whole file system.
    #[default]
    Everything,
    /// These files, and these directories with all that is below them: one moment for all.
    Paths(Vec<PathBuf>),
}

/// How a checkpoint is made.
#[derive(Debug, Clone, Default)]
pub struct CheckpointOptions {
    /// What it is of.
    pub scope: CheckpointScope,
    /// A program made it, not a person.
    pub automatic: bool,
    /// Nothing but a person removes it.
    pub kept: bool,
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckpointInfo {
    /// Its name: 1 to 255 bytes, neither `/` nor NUL.
    #[serde(serialize_with = "as_text")]
    pub name: Vec<u8>,
    /// The epoch it ended; later checkpoints have larger ones, whatever the clock said.
    pub epoch: Epoch,
    /// When it was made, nanoseconds since 1970.
    pub created: Timestamp,
    /// A program made it, not a person.
    pub automatic: bool,
    /// Nothing but a person removes it.
    pub kept: bool,
    /// What it is of; empty: everything.
    pub paths: Vec<String>,
}

/// What a checkpoint costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CheckpointSpace {
    /// Rows of the metadata that changed since and whose past it keeps.
    pub rows: u64,
    /// Bytes of blocks that it alone holds: deleting it makes them free.
    pub alone_bytes: u64,
}

/// What a clone is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloneSource {
    /// A file, or a directory with all that is below it, as a checkpoint shows it.
    Checkpoint {
        /// The checkpoint.
        name: Vec<u8>,
        /// The path in it.
        path: PathBuf,
    },
    /// The same as it is now: all of it as of one moment.
    Present(PathBuf),
}

/// What a clone is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CloneReport {
    /// Files, directories and others that were made.
    pub inodes: u64,
    /// Extents that it shares.
    pub extents: u64,
    /// Their bytes.
    pub shared_bytes: u64,
    /// The inode that its name leads to.
    #[serde(skip)]
    pub ino: InodeNo,
    /// Its directory and name there, for front ends that keep something of them.
    #[serde(skip)]
    pub name: (InodeNo, Vec<u8>),
}

/// What a range of a file became.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangedKind {
    /// It has data that was written.
    Data,
    /// It reads as zeros: punched, zeroed, or cut off and grown over.
    Hole,
}

/// A range of a file that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedRange {
    /// First byte: the begin of a block.
    pub offset: u64,
    /// Bytes: whole blocks, but at the end of the file.
    pub len: u64,
    /// What it became.
    pub kind: ChangedKind,
}

/// What is rolled back, and how.
#[derive(Debug, Clone, Default)]
pub struct RollbackOptions {
    /// The file or directory; `None`: everything.
    pub path: Option<PathBuf>,
    /// Also what is open: the opens go on with the content that comes back; a file that the
    /// checkpoint does not have lives on without a name.
    pub force: bool,
}

/// What a rollback did.
#[derive(Debug, Clone, Serialize)]
pub struct RollbackReport {
    /// The checkpoint of the moment before: roll back to it to undo.
    pub undo: String,
    /// Rows of the metadata that changed.
    pub rows: u64,
    /// Whether what was rolled back was there before, so that undoing it needs nothing but its
    /// path.
    pub existed: bool,
    /// The inodes that changed, for front ends that keep something of them.
    #[serde(skip)]
    pub inodes: BTreeSet<InodeNo>,
    /// The names that changed, or lead to what changed: directory and name.
    #[serde(skip)]
    pub names: Vec<(InodeNo, Vec<u8>)>,
}

fn as_text<S: serde::Serializer>(name: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&crate::readable_name(name))
}

impl CheckpointInfo {
    /// Returns what programs are told of a checkpoint.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        Self {
            name: checkpoint.row.name.clone(),
            epoch: checkpoint.epoch,
            created: checkpoint.row.created,
            automatic: checkpoint.row.automatic,
            kept: checkpoint.row.kept,
            paths: checkpoint.row.paths.iter().map(|path| crate::readable_name(path)).collect(),
        }
    }
}
