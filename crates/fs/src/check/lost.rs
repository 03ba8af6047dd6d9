//! `/lost+found`: where inodes without a name are given one, so that people can decide about them.

use std::collections::BTreeSet;

use super::inodes::Inodes;
use super::notes::Notes;
use crate::{FileKind, InodeNo, Timestamp};
use bedplate_store::{DentryRow, InodeRow, RowChange, Table, inode_key, pair_key};

/// Names every inode of `lost` in a new directory `home` of the root, inode `ino`; returns its
/// number, or `None` where nothing is lost.
pub(super) fn reattach(
    lost: &[InodeNo],
    home: &str,
    ino: InodeNo,
    inodes: &mut Inodes,
    notes: &mut Notes,
) -> Option<InodeNo> {
    if lost.is_empty() {
        return None;
    }
    let mut subdirectories = 0;
    for child in lost {
        let known = inodes.get_mut(child)?;
        known.fixed.nlink = 1;
        if known.is_directory() {
            known.fixed.nlink = known.subdirectories.saturating_add(2);
            known.fixed.parent = ino;
            subdirectories += 1;
        }
        let entry = DentryRow { ino: *child, kind: known.row.kind };
        notes.repairs.push(RowChange::put(
            Table::Dentry,
            pair_key(ino, format!("inode-{}", child.0).as_bytes()),
            entry.encode(),
        ));
    }
    let root = inodes.get_mut(&InodeNo::ROOT)?;
    root.fixed.nlink = root.fixed.nlink.saturating_add(1);
    notes.repairs.push(RowChange::put(
        Table::Inode,
        inode_key(ino),
        directory(&root.row, subdirectories).encode(),
    ));
    let entry = DentryRow { ino, kind: FileKind::Directory };
    notes.repairs.push(RowChange::put(
        Table::Dentry,
        pair_key(InodeNo::ROOT, home.as_bytes()),
        entry.encode(),
    ));
    Some(ino)
}

fn directory(root: &InodeRow, subdirectories: u32) -> InodeRow {
    let now = Timestamp::now();
    InodeRow {
        kind: FileKind::Directory,
        mode: 0o700,
        nlink: 2 + subdirectories,
        size: 0,
        blocks: 0,
        rdev: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        io_mode: None,
        parent: InodeNo::ROOT,
        target: Vec::new(),
        ..root.clone()
    }
}

/// The first of `lost+found`, `lost+found-2`, `lost+found-3` … that the root does not hold.
pub(crate) fn free_name(taken: &BTreeSet<Vec<u8>>) -> String {
    let mut names = std::iter::once("lost+found".to_owned())
        .chain((2..).map(|number: u64| format!("lost+found-{number}")));
    names.find(|name| !taken.contains(name.as_bytes())).expect("there are more numbers than names")
}
