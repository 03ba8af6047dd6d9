//! What comes of a step: what it promises, and what it changed, made, read and told.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bedplate_fs::InodeNo;

use crate::view::Seen;
use crate::workload::Change;

/// What a step promised once it returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Promise {
    /// Nothing.
    #[default]
    None,
    /// The bytes of one write with `O_DSYNC`, and a size that reaches over them: inode, offset,
    /// end.
    Written(InodeNo, u64, u64),
    /// The data of a file, and everything that happened to names before its last change of size or
    /// name.
    Data(InodeNo),
    /// Data, attributes and names of a file or directory.
    Inode(InodeNo),
    /// All that happened to names, and what checkpoints show.
    Names,
    /// As `Names`, and the data of inodes from this number on, which are new: a clone.
    Cloned(InodeNo),
    /// Everything.
    All,
}

/// What came of a step.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) promise: Promise,
    /// Inodes whose names or attributes it changed.
    pub(crate) touched: Vec<InodeNo>,
    /// The file in which it moved bytes, and how.
    pub(crate) moved: Option<(InodeNo, Change, u64, u64)>,
    /// What it wrote to a file, or which of its bytes it changed in another way.
    pub(crate) wrote: Option<Wrote>,
    /// The checkpoint it made: its line, and what it shows.
    pub(crate) checkpoint: Option<(String, Arc<Seen>)>,
    /// The inode it made.
    pub(crate) made: Option<InodeNo>,
    /// The inode it opened.
    pub(crate) opened: Option<InodeNo>,
    /// The names in the directory it made.
    pub(crate) entries: BTreeMap<String, InodeNo>,
    /// What it read.
    pub(crate) read: Option<Vec<u8>>,
    /// Where an append went.
    pub(crate) at: Option<u64>,
    /// What a comparison told.
    pub(crate) diff: Option<Diff>,
}

/// What differs between a checkpoint and the present.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Diff {
    /// Paths that are told of, those from where something moved too.
    pub(crate) paths: BTreeSet<String>,
    /// Inodes that are told of.
    pub(crate) inodes: BTreeSet<InodeNo>,
    /// Ranges of the files of the present that changed; holes where the last is set.
    pub(crate) ranges: BTreeMap<InodeNo, Vec<(Range<u64>, bool)>>,
}

/// Bytes that one step wrote to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrote {
    /// The file.
    pub ino: InodeNo,
    /// Its bytes.
    pub range: Range<u64>,
    /// In units of so many bytes each is wholly there or wholly absent after a crash (S-58); 0: no
    /// such promise.
    pub unit: u64,
}

impl Wrote {
    /// Any bytes of a file may have changed, and in any way.
    pub(crate) fn anything(ino: InodeNo) -> Self {
        Self { ino, range: 0..u64::MAX, unit: 0 }
    }
}

impl Outcome {
    pub(crate) fn touching(touched: Vec<InodeNo>) -> Self {
        Self { touched, ..Self::default() }
    }

    pub(crate) fn promising(promise: Promise) -> Self {
        Self { promise, ..Self::default() }
    }
}
