//! Rollback: the rows of a checkpoint become the live rows again. No data is copied, and one record
//! does it all.
//!
//! ```text
//!   frozen ─► not open? ─► checkpoint of the present, to undo with ─► rows that differ ─► one record ─► loaded inodes read again
//! ```
//!
//! The blocks that come back are needed by the checkpoint too, so the next write to them goes
//! elsewhere, as to any block of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

use super::CheckpointOptions;
use super::report::{CheckpointScope, RollbackOptions, RollbackReport};
use super::subtree::Subtree;
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Error, ErrorKind, InodeNo, Result, Timestamp};
use bedplate_store::{
    Checkpoint, InodeRow, Others, PlantedBug, Record, RecordKind, RowChange, State, Table,
    has_before_images, inode_key, planted, split_before_key, split_key,
};

/// How deep directories are told of.
const DEPTH_MAX: usize = 4096;

/// The rows that are to change, by table and key.
pub(super) type Changes = BTreeMap<(Table, Vec<u8>), Option<Vec<u8>>>;

impl Engine {
    /// Puts everything, or what a path names, back to what a checkpoint shows; durable when it
    /// returns.
    pub(crate) fn rollback(
        &self,
        name: &[u8],
        options: &RollbackOptions,
    ) -> Result<RollbackReport> {
        // A clone under way would go on below what is gone.
        let _no_clone = self.lock_clones();
        self.begin_change()?;
        // It goes for no change, and so not for this one either.
        let (checkpoint, held) = self.looking_into(name)?;
        let put_back = |files: &[Arc<Inode>]| {
            let subtree = match &options.path {
                Some(path) if !is_root(path) => Some(Subtree::find(self, &checkpoint, path)?),
                _ => None,
            };
            let open = self.refuse_open(files, subtree.as_ref(), options.force)?;
            let mut elsewhere = None;
            let changes = self.reading(|rows| match &subtree {
                None => of_everything(rows, &checkpoint, &open),
                Some(subtree) => subtree.changes(rows, &checkpoint, &open, &mut elsewhere),
            });
            let changes = match (elsewhere, &options.path) {
                (Some(ino), Some(path)) => return Err(self.elsewhere(ino, path)?),
                _ => changes?,
            };
            let existed = subtree.as_ref().is_none_or(Subtree::exists);
            let undo = format!("before-rollback-{}", self.epoch().0);
            let automatic = CheckpointOptions {
                scope: CheckpointScope::Everything,
                automatic: true,
                kept: false,
            };
            if !planted(PlantedBug::RollbackWithoutUndo) {
                self.commit_checkpoint(undo.as_bytes(), &automatic, None, Timestamp::now(), &[])?;
            }
            self.commit_rollback(undo, existed, changes)
        };
        let (report, lsn) = self.with_room(|| self.frozen_and_forgetting(put_back))?;
        drop(held);
        if !planted(PlantedBug::RollbackNotSynced) {
            self.sync_to(lsn)?;
        }
        self.remove_nameless(&report.inodes);
        Ok(report)
    }

    /// Removes inodes that came back without a name, because the checkpoint shows them so, and that
    /// nothing pins: files that were open and removed then, and clones that were not finished. What
    /// fails here is left to the next mount.
    fn remove_nameless(&self, inodes: &BTreeSet<InodeNo>) {
        for ino in inodes {
            let orphan = self.row(Table::Orphan, &inode_key(*ino));
            let removed = orphan
                .and_then(|row| row.map_or(Ok(()), |_| self.remove_unfinished(&self.inode(*ino)?)));
            if let Err(e) = removed {
                tracing::warn!(
                    "inode {}, which has no name, is left to the next mount: {e}",
                    ino.0
                );
            }
        }
    }

    /// Returns which files are open that the rollback changes; refuses them unless forced.
    fn refuse_open(
        &self,
        files: &[Arc<Inode>],
        subtree: Option<&Subtree>,
        force: bool,
    ) -> Result<BTreeSet<InodeNo>> {
        let meets = |inode: &&Arc<Inode>| {
            !self.is_past(inode.ino) && subtree.is_none_or(|subtree| subtree.holds(inode.ino))
        };
        let open: BTreeSet<InodeNo> = files.iter().filter(meets).map(|inode| inode.ino).collect();
        if open.is_empty() || force || planted(PlantedBug::RollbackUnderOpenFiles) {
            return Ok(open);
        }
        let shown: Vec<String> =
            open.iter().take(3).map(|ino| self.path_of(*ino, None)).collect::<Result<_>>()?;
        let more =
            if open.len() > 3 { format!(" and {} more", open.len() - 3) } else { String::new() };
        let message = format!(
            "open files stand in the way of the rollback: {}{more}; close them, or force it",
            shown.join(", ")
        );
        Err(Error::new(ErrorKind::Busy, message))
    }

    /// Says that a part of `path` has a name elsewhere by now, and which.
    fn elsewhere(&self, ino: InodeNo, path: &Path) -> Result<Error> {
        let (path, now) = (path.display(), self.path_of(ino, Some(path))?);
        let message = format!(
            "what was in {path} has got the name {now} since: copy it from .checkpoints, move \
             {now} back, or roll back everything"
        );
        Ok(Error::new(ErrorKind::Invalid, message))
    }

    /// Returns a path of a live inode, for people; where it has several, one that does not lie
    /// below `below`.
    fn path_of(&self, ino: InodeNo, below: Option<&Path>) -> Result<String> {
        let mut names: BTreeMap<InodeNo, Vec<(InodeNo, Vec<u8>)>> = BTreeMap::new();
        self.scan_table(Table::Dentry, |key, value| {
            let (dir, name) = split_key(key)?;
            names
                .entry(bedplate_store::DentryRow::decode(value)?.ino)
                .or_default()
                .push((dir, name.to_vec()));
            Ok(ControlFlow::Continue(()))
        })?;
        let path_by = |first: &(InodeNo, Vec<u8>)| {
            let (mut parts, mut at) = (Vec::new(), Some(first));
            // A directory has one name. Damage makes this no endless way.
            while let Some((dir, name)) = at.filter(|_| parts.len() < DEPTH_MAX) {
                parts.push(crate::readable_name(name));
                at = names.get(dir).and_then(|names| names.first());
            }
            parts.iter().rev().map(|part| format!("/{part}")).collect::<String>()
        };
        let paths: Vec<String> = names.get(&ino).into_iter().flatten().map(path_by).collect();
        let wanted =
            paths.iter().find(|path| below.is_none_or(|below| !Path::new(path).starts_with(below)));
        Ok(wanted
            .or(paths.first())
            .map_or_else(|| format!("inode {}", ino.0), bedplate_store::told_name))
    }

    fn commit_rollback(
        &self,
        undo: String,
        existed: bool,
        changes: Changes,
    ) -> Result<(RollbackReport, crate::Lsn)> {
        let mut report = RollbackReport {
            undo,
            existed,
            rows: changes.len() as u64,
            inodes: BTreeSet::new(),
            names: Vec::new(),
        };
        for (table, key) in changes.keys() {
            let (ino, rest) = split_key(key)?;
            report.inodes.insert(ino);
            if *table == Table::Dentry {
                report.names.push((ino, rest.to_vec()));
            }
        }
        let inodes_change = self.inodes_change(&changes)?;
        let mut rows: Vec<_> = changes
            .into_iter()
            .map(|((table, key), value)| RowChange {
                table,
                key: key.into(),
                value: value.map(Into::into),
            })
            .collect();
        let commit = |rows| {
            self.exclusively(|locked| {
                let record =
                    Record { kind: RecordKind::Rollback, rows, exposes: None, barrier: false };
                let committed = locked.commit(record, Others::Covered)?;
                self.epochs_changed();
                Ok(committed)
            })
        };
        if planted(PlantedBug::RollbackInParts) {
            let first = commit(rows.drain(..rows.len() / 2).collect())?;
            self.sync_to(first.lsn)?;
        }
        let committed = commit(rows)?;
        let lsn =
            if planted(PlantedBug::RollbackFreesAtOnce) { crate::Lsn(0) } else { committed.lsn };
        let freed = committed.freed.into_iter().flatten();
        freed.for_each(|run| self.release_after(lsn, run));
        self.count_inodes(inodes_change);
        if !planted(PlantedBug::RollbackNotReadAgain) {
            self.read_again(&report.inodes, committed.lsn)?;
        }
        self.scan_table(Table::Dentry, |key, value| {
            if report.inodes.contains(&bedplate_store::DentryRow::decode(value)?.ino) {
                let (dir, name) = split_key(key)?;
                report.names.push((dir, name.to_vec()));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok((report, committed.lsn))
    }

    /// Returns by how many inodes there are more afterwards.
    fn inodes_change(&self, changes: &Changes) -> Result<i64> {
        let mut more = 0i64;
        for ((_, key), row) in changes.iter().filter(|((table, _), _)| *table == Table::Inode) {
            let was = self.row(Table::Inode, key)?.is_some();
            more += i64::from(row.is_some()) - i64::from(was);
        }
        Ok(more)
    }

    /// Makes loaded inodes what their rows say.
    fn read_again(&self, inodes: &BTreeSet<InodeNo>, lsn: crate::Lsn) -> Result<()> {
        for inode in inodes.iter().filter_map(|ino| self.loaded_inode(*ino)) {
            self.drop_ahead(inode.ino);
            match self.row(Table::Inode, &inode_key(inode.ino))? {
                Some(row) => crate::data::read_again(self, &inode, InodeRow::decode(&row)?),
                None => {
                    self.kill_inode(&inode);
                    continue;
                }
            }
            inode.note_lsn(lsn, true);
        }
        Ok(())
    }
}

fn is_root(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, std::path::Component::RootDir | std::path::Component::CurDir))
}

/// The rows by which the present differs from a checkpoint of everything: those with an image
/// since, and those of inodes that came later.
fn of_everything(
    rows: &State,
    checkpoint: &Checkpoint,
    open: &BTreeSet<InodeNo>,
) -> Result<Changes> {
    if checkpoint.members.is_some() {
        return Err(Error::new(
            ErrorKind::Invalid,
            "the checkpoint is of named files: roll back one of its paths",
        ));
    }
    let mut keys: BTreeSet<(Table, Vec<u8>)> = BTreeSet::new();
    let from = bedplate_store::checkpoint_key(crate::Epoch(
        checkpoint.epoch.0 + u32::from(planted(PlantedBug::RollbackSkipsOwnImages)),
    ));
    rows.scan(Table::Before, Bound::Included(&from), Bound::Unbounded, |key, _| {
        let (_, table, row) = split_before_key(key)?;
        if checkpoint.holds(split_key(row)?.0) {
            keys.insert((table, row.to_vec()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let mut changes = Changes::new();
    for (table, key) in keys {
        let (then, now) = (rows.get_at(checkpoint.epoch, table, &key)?, rows.get(table, &key)?);
        if then != now {
            changes.insert((table, key), then);
        }
    }
    let first = inode_key(checkpoint.row.ino_end);
    for table in Table::ALL
        .into_iter()
        .filter(|table| has_before_images(*table) && !planted(PlantedBug::LaterFilesStay))
    {
        rows.scan(table, Bound::Included(&first), Bound::Unbounded, |key, _| {
            changes.insert((table, key.to_vec()), None);
            Ok(ControlFlow::Continue(()))
        })?;
    }
    for ino in open.range(checkpoint.row.ino_end..) {
        keep_nameless(rows, *ino, &mut changes)?;
    }
    Ok(changes)
}

/// An open file that the checkpoint does not have lives on without a name until it is closed.
pub(super) fn keep_nameless(rows: &State, ino: InodeNo, changes: &mut Changes) -> Result<()> {
    changes.retain(|(table, key), _| *table == Table::Dentry || !key.starts_with(&inode_key(ino)));
    if let Some(row) = rows.get(Table::Inode, &inode_key(ino))? {
        let row = InodeRow { nlink: 0, ..InodeRow::decode(&row)? };
        changes.insert((Table::Inode, inode_key(ino)), Some(row.encode()));
        changes.insert((Table::Orphan, inode_key(ino)), Some(Vec::new()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bedplate_block::MemoryDevice;

    use super::*;
    use crate::{AllocateMode, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions};

    /// I-SPC-2, S-56: blocks that were preallocated after the checkpoint become free with the
    /// rollback, and not before it is sealed: a crash would give them back to their file.
    #[test]
    fn i_spc_2_what_a_rollback_frees_is_free_once_it_is_sealed() {
        let device: Arc<dyn bedplate_block::BlockDevice> = MemoryDevice::new(64 << 20);
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            mode: IoMode::Concurrent,
            sync_interval: Duration::from_secs(3600),
            ..MountOptions::default()
        };
        let volume = FileSystem::mount(device, None, options).unwrap();
        let file = volume.open("/file", &OpenOptions::create()).unwrap();
        volume.create_checkpoint("first", &CheckpointOptions::default()).unwrap();
        file.allocate(AllocateMode::Preallocate { keep_size: false }, 0, 1 << 20).unwrap();
        drop(file);
        volume.sync().unwrap();
        let fs = volume.state();
        let becomes_free = || fs.release_sealed();
        becomes_free();
        let first = fs.checkpoint(b"first").unwrap();
        let (_, lsn) = fs
            .frozen_and_forgetting(|_| {
                let changes = fs.reading(|rows| of_everything(rows, &first, &BTreeSet::new()))?;
                fs.commit_rollback("none".into(), true, changes)
            })
            .unwrap();
        assert!(fs.sealed_lsn() < lsn, "nothing asked for a sync");
        assert!(!becomes_free(), "a crash would bring the file back, with another's data in it");
        volume.sync().unwrap();
        assert!(fs.sealed_lsn() >= lsn && becomes_free(), "the blocks are free again");
    }
}
