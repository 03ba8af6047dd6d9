//! Names: each leads to an inode of the kind it says, and directories form one tree.

use std::collections::HashSet;

use super::inodes::{Inodes, hex};
use super::{Examined, Notes};
use crate::{FileKind, FindingKind, InodeNo, Result};
use bedplate_store::{DentryRow, RowChange, Table, check_name, split_key};

/// What a person can do about directories that are not a tree.
const NOT_A_TREE: &str =
    "which name is the right one is a guess: copy out the volume with 'bedplate salvage'";

/// Visits every name, and counts it where it leads.
pub(super) fn check(examined: &mut Examined<'_>) -> Result<()> {
    examined.each_row(Table::Dentry, |examined, key, value| {
        examined.notes.report.names += 1;
        match split_key(key).and_then(|(dir, name)| Ok((dir, name, DentryRow::decode(value)?))) {
            Ok((dir, name, row)) => check_one(key, dir, name, row, examined),
            Err(e) => {
                let message = format!("the name with key {} cannot be read: {e}", hex(key));
                examined.notes.broken(
                    FindingKind::Row,
                    message,
                    "nothing tells where it led: copy out the volume with 'bedplate salvage'",
                );
            }
        }
    })
}

fn check_one(key: &[u8], dir: InodeNo, name: &[u8], row: DentryRow, examined: &mut Examined<'_>) {
    let Examined { inodes, notes, taken, .. } = examined;
    if is_removed(key, dir, name, row, inodes, notes) {
        return;
    }
    let text = name.escape_ascii();
    if dir == InodeNo::ROOT {
        taken.insert(name.to_vec());
    }
    inodes.get_mut(&dir).expect("tested above").entries += 1;
    let known = inodes.get_mut(&row.ino).expect("tested above");
    known.names = known.names.saturating_add(1);
    known.named_in = dir;
    if known.row.kind != row.kind {
        let entry = DentryRow { kind: known.row.kind, ..row };
        let message = format!(
            "'{text}' in directory {} says {:?}, inode {} is {:?}",
            dir.0, row.kind, row.ino.0, known.row.kind
        );
        notes.mend_by(
            RowChange::put(Table::Dentry, key.to_vec(), entry.encode()),
            FindingKind::NameKind,
            message,
            "a repair says what the inode says",
        );
    }
    if !known.is_directory() {
        return;
    }
    if known.names > 1 {
        let message =
            format!("directory {} has a second name, '{text}' in directory {}", row.ino.0, dir.0);
        notes.broken(FindingKind::DirectoryLoop, message, NOT_A_TREE);
    } else if known.row.parent != dir {
        known.fixed.parent = dir;
        let message = format!(
            "directory {} says its parent is {}, its name stands in {}",
            row.ino.0, known.row.parent.0, dir.0
        );
        notes.mendable(FindingKind::Parent, message, "a repair sets the one its name stands in");
    }
    inodes.get_mut(&dir).expect("tested above").subdirectories += 1;
}

/// Says whether a name cannot be where it is or lead where it leads; a repair then removes it.
fn is_removed(
    key: &[u8],
    dir: InodeNo,
    name: &[u8],
    row: DentryRow,
    inodes: &Inodes,
    notes: &mut Notes,
) -> bool {
    let text = name.escape_ascii();
    let remove = || RowChange::delete(Table::Dentry, key.to_vec());
    if inodes.get(&dir).is_none_or(|known| !known.is_directory()) {
        let message = format!("'{text}' stands in inode {}, which is no directory", dir.0);
        notes.mend_by(remove(), FindingKind::Leftover, message, "a repair removes the name");
        return true;
    }
    if !inodes.contains_key(&row.ino) {
        let message = format!(
            "'{text}' in directory {} leads to inode {}, which does not exist",
            dir.0, row.ino.0
        );
        notes.mend_by(remove(), FindingKind::DanglingName, message, "a repair removes the name");
        return true;
    }
    if row.ino == InodeNo::ROOT {
        let message =
            format!("'{text}' in directory {} leads to the root, which has no name", dir.0);
        notes.mend_by(remove(), FindingKind::DirectoryLoop, message, "a repair removes the name");
        return true;
    }
    if let Err(e) = check_name(name) {
        let message = format!("a name in directory {} cannot be one: {e}", dir.0);
        let remedy = format!(
            "a repair removes it, and names inode {} in /lost+found if it has no other name",
            row.ino.0
        );
        notes.mend_by(remove(), FindingKind::BadName, message, remedy);
        return true;
    }
    false
}

/// Follows every directory up to the root.
pub(super) fn check_tree(examined: &mut Examined<'_>) -> Result<()> {
    let Examined { inodes, notes, .. } = examined;
    if let Some(root) =
        inodes.get_mut(&InodeNo::ROOT).filter(|root| root.row.parent != InodeNo::ROOT)
    {
        root.fixed.parent = InodeNo::ROOT;
        let message = format!("the root says its parent is {}", root.row.parent.0);
        notes.mendable(FindingKind::Parent, message, "a repair sets the root itself");
    }
    let mut sound = HashSet::from([InodeNo::ROOT]);
    for (ino, known) in inodes.iter() {
        if known.row.kind == FileKind::Directory
            && known.names > 0
            && leads_to_itself(inodes, *ino, &mut sound)
        {
            notes.broken(
                FindingKind::DirectoryLoop,
                format!("directory {} is reachable from itself only", ino.0),
                NOT_A_TREE,
            );
        }
    }
    Ok(())
}

/// Follows a directory up until it meets one that was looked at before; returns whether that one
/// stands on its own path.
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
