//! What an inode is, as far as a user can see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_fs::{InodeNo, IoMode};

/// What it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    File(Arc<Vec<u8>>),
    Symlink(String),
    Directory(BTreeMap<String, InodeNo>),
}

/// An inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) io_mode: Option<IoMode>,
    /// The unit of untorn writes in bytes.
    pub(crate) untorn: Option<u32>,
    /// Whether what is written gets checksums.
    pub(crate) integrity: bool,
    pub(crate) attributes: BTreeMap<String, usize>,
}

impl Node {
    pub(crate) fn new(kind: Kind, mode: u32) -> Self {
        let attributes = BTreeMap::new();
        Self { kind, mode, uid: 0, io_mode: None, untorn: None, integrity: false, attributes }
    }
}

/// Everything about a name, in one line.
pub(crate) fn line(path: &str, ino: InodeNo, node: &Node, nlink: u32) -> String {
    let kind = match &node.kind {
        Kind::File(_) => "file".to_owned(),
        Kind::Directory(_) => "directory".to_owned(),
        Kind::Symlink(target) => format!("link to {} bytes", target.len()),
    };
    let Node { mode, uid, io_mode, untorn, integrity, attributes, .. } = node;
    format!(
        "{path} inode {} {kind} mode {mode:o} owner {uid} links {nlink} served {io_mode:?} untorn \
         {untorn:?} integrity {integrity} attributes {attributes:?}",
        ino.0
    )
}

/// What new files inherit of the root, which no name leads to, in one line; `None`: nothing.
pub(crate) fn root_line(untorn: Option<u32>, integrity: bool) -> Option<String> {
    let sums = if integrity { ", with checksums" } else { "" };
    (untorn.is_some() || integrity).then(|| format!("/ untorn {untorn:?}{sums}"))
}
