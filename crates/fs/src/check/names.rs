//! Names: each leads to an inode of the kind it says, and directories form one tree.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::{Inodes, Notes};
use crate::meta::MetaStore;
use crate::names::check_name;
use crate::row::{DentryRow, RowChange, Table, split_key};
use crate::{FileKind, FindingKind, InodeNo, Result};

/// Visits every name, and counts it where it leads.
pub(super) fn check(meta: &MetaStore, inodes: &mut Inodes, notes: &mut Notes) -> Result<()> {
    meta.scan_all(Table::Dentry, |key, value| {
        notes.report.names += 1;
        match split_key(key).and_then(|(dir, name)| {
            check_name(name)?;
            Ok((dir, name, DentryRow::decode(value)?))
        }) {
            Ok((dir, name, row)) => check_one(key, dir, name, row, inodes, notes),
            Err(e) => notes.broken(FindingKind::Row, format!("a directory entry does not decode: {e}")),
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn check_one(key: &[u8], dir: InodeNo, name: &[u8], row: DentryRow, inodes: &mut Inodes, notes: &mut Notes) {
    let text = name.escape_ascii();
    let remove = || vec![RowChange::delete(Table::Dentry, key.to_vec())];
    if inodes.get(&dir).is_none_or(|known| known.row.kind != FileKind::Directory) {
        notes.mendable(FindingKind::Leftover, format!("'{text}' stands in inode {}, which is no directory", dir.0), remove());
        return;
    }
    let Some(known) = inodes.get_mut(&row.ino) else {
        notes.mendable(
            FindingKind::DanglingName,
            format!("'{text}' in directory {} leads to inode {}, which does not exist", dir.0, row.ino.0),
            remove(),
        );
        return;
    };
    if known.row.kind != row.kind {
        notes.broken(FindingKind::Row, format!("'{text}' in directory {} says {:?}, inode {} is {:?}", dir.0, row.kind, row.ino.0, known.row.kind));
    }
    known.names += 1;
    known.named_in = dir;
    if known.row.kind == FileKind::Directory {
        if known.names > 1 {
            notes.broken(FindingKind::DirectoryLoop, format!("directory {} has a second name, '{text}' in directory {}", row.ino.0, dir.0));
        } else if known.row.parent != dir {
            let message = format!("directory {} says its parent is {}, its name stands in {}", row.ino.0, known.row.parent.0, dir.0);
            notes.broken(FindingKind::DirectoryLoop, message);
        }
        inodes.get_mut(&dir).expect("tested above").subdirectories += 1;
    }
}

/// Follows every directory up to the root.
pub(super) fn check_tree(inodes: &Inodes, notes: &mut Notes) {
    if inodes.get(&InodeNo::ROOT).is_none_or(|root| root.row.kind != FileKind::Directory) {
        notes.broken(FindingKind::Metadata, "the root directory is missing");
        return;
    }
    let mut sound = HashSet::from([InodeNo::ROOT]);
    for (ino, known) in inodes {
        if known.row.kind != FileKind::Directory || known.names == 0 {
            continue;
        }
        if leads_to_itself(inodes, *ino, &mut sound) {
            notes.broken(FindingKind::DirectoryLoop, format!("directory {} is reachable from itself only", ino.0));
        }
    }
}

/// Follows a directory up until it meets one that was looked at before; returns whether that one stands on its own path.
fn leads_to_itself(inodes: &Inodes, ino: InodeNo, seen: &mut HashSet<InodeNo>) -> bool {
    let mut path = HashSet::new();
    let mut at = ino;
    while seen.insert(at) {
        path.insert(at);
        match inodes.get(&at) {
            Some(known) if known.names > 0 => at = known.named_in,
            _ => return false,
        }
    }
    path.contains(&at)
}
