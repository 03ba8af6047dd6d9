//! Making a checkpoint: one record, whatever the size of the file system.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::{CheckpointInfo, CheckpointOptions, CheckpointScope};
use crate::engine::{EPOCH, Engine};
use crate::inode::Inode;
use crate::{Epoch, Error, ErrorKind, FileKind, InodeNo, Result, Timestamp};
use bedplate_store::{
    Checkpoint, CheckpointRow, Others, PlantedBug, Record, RecordKind, RowChange, Table,
    check_name, checkpoint_key, inode_key, pair_key, planted, put_image, scope_key,
};

/// What a checkpoint of named files consists of.
#[derive(Debug, Default)]
pub(super) struct Members {
    inodes: HashSet<InodeNo>,
    /// The directories that lead to them, each with the one name that leads on: (directory, name).
    ways: Vec<(InodeNo, Vec<u8>)>,
    paths: Vec<Vec<u8>>,
}

impl Engine {
    /// Makes a checkpoint; durable when it returns.
    pub(crate) fn create_checkpoint(
        &self,
        name: &[u8],
        options: &CheckpointOptions,
    ) -> Result<CheckpointInfo> {
        self.create_noting(name, options, Timestamp::now(), &[])
    }

    /// Makes a checkpoint as of a time on the wall clock, and changes other rows in the same
    /// record; durable when it returns.
    pub(super) fn create_noting(
        &self,
        name: &[u8],
        options: &CheckpointOptions,
        created: Timestamp,
        notes: &[RowChange],
    ) -> Result<CheckpointInfo> {
        check_name(name)?;
        self.begin_change()?;
        let make = |files: &[Arc<Inode>]| {
            assert!(
                files.iter().all(|file| file.data.lock.is_held()),
                "I-CKP-4: no thread writes an open file"
            );
            let members = match &options.scope {
                CheckpointScope::Everything => None,
                CheckpointScope::Paths(paths) => {
                    Some(self.members(paths.iter().map(AsRef::as_ref))?)
                }
            };
            self.commit_checkpoint(name, options, members, created, notes)
        };
        let (checkpoint, lsn) = self.with_room(|| self.frozen(make))?;
        if !planted(PlantedBug::CheckpointNotSynced) {
            self.sync_to(lsn)?;
        }
        self.scheduler_waker().wake();
        Ok(CheckpointInfo::of(&checkpoint))
    }

    /// Commits one while no other is made. Refuses a name that is taken, and then a full volume,
    /// before anything is changed.
    pub(super) fn commit_checkpoint(
        &self,
        name: &[u8],
        options: &CheckpointOptions,
        members: Option<Members>,
        created: Timestamp,
        notes: &[RowChange],
    ) -> Result<(Arc<Checkpoint>, crate::Lsn)> {
        if self.reading(|rows| Ok(rows.checkpoint_set.named(name).is_some()))? {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("a checkpoint '{}' exists", bedplate_store::told_name(name)),
            ));
        }
        self.need_space()?;
        let epoch = self.epoch();
        let next = epoch.0.checked_add(1).ok_or_else(|| {
            Error::new(ErrorKind::Range, "4,294,967,295 checkpoints were made: no more can be")
        })?;
        let row = CheckpointRow {
            name: name.to_vec(),
            created,
            ino_end: self.ino_end(),
            automatic: options.automatic,
            kept: options.kept,
            deleting: false,
            paths: members.as_ref().map(|members| members.paths.clone()).unwrap_or_default(),
        };
        let rows = self.rows_of_new(epoch, next, &row, members.as_ref(), notes)?;
        let checkpoint =
            Arc::new(Checkpoint { epoch, row, members: members.map(|members| members.inodes) });
        let lsn = self.exclusively(|locked| {
            // The barrier: what was written in place before reaches the device before the record
            // does.
            let record = Record {
                kind: RecordKind::Checkpoint,
                rows,
                exposes: None,
                barrier: !planted(PlantedBug::CheckpointWithoutBarrier),
            };
            let committed = locked.commit(record, Others::Free)?;
            let newest =
                locked.checkpoint_set().checkpoints.last().map_or(Epoch(0), |last| last.epoch);
            assert!(newest < epoch, "I-CKP-1: newer checkpoints have larger epochs");
            locked.checkpoint_set().checkpoints.push(Arc::clone(&checkpoint));
            if !planted(PlantedBug::EpochStays) {
                self.begin_epoch(Epoch(next));
            }
            self.epochs_changed();
            Ok(committed.lsn)
        })?;
        Ok((checkpoint, lsn))
    }

    /// Returns the rows that a checkpoint is made of, with those that go with it.
    fn rows_of_new(
        &self,
        epoch: Epoch,
        next: u32,
        row: &CheckpointRow,
        members: Option<&Members>,
        notes: &[RowChange],
    ) -> Result<Vec<RowChange>> {
        debug_assert!(next > epoch.0, "I-CKP-1: epochs go forward: {next} after {}", epoch.0);
        let mut rows = vec![
            RowChange::put(Table::Checkpoint, checkpoint_key(epoch), row.encode()),
            RowChange::put(Table::Setting, EPOCH.to_vec(), next.to_le_bytes().to_vec()),
        ];
        if planted(PlantedBug::EpochNotCommitted) {
            rows.truncate(1);
        }
        rows.extend_from_slice(notes);
        if let Some(members) = members {
            rows.extend(
                members
                    .inodes
                    .iter()
                    .map(|ino| RowChange::put(Table::Scope, scope_key(epoch, *ino), Vec::new())),
            );
            if !planted(PlantedBug::WaysForgotten) {
                rows.extend(self.images_of_ways(epoch, members)?);
            }
        }
        Ok(rows)
    }

    /// The images of directories that are in the checkpoint only to lead to what is.
    fn images_of_ways(&self, epoch: Epoch, members: &Members) -> Result<Vec<RowChange>> {
        let mut images = Vec::new();
        for (dir, name) in members.ways.iter().filter(|(dir, _)| !members.inodes.contains(dir)) {
            for (table, key) in
                [(Table::Inode, inode_key(*dir)), (Table::Dentry, pair_key(*dir, name))]
            {
                images.push(put_image(epoch, table, &key, self.row(table, &key)?.as_deref()));
            }
        }
        Ok(images)
    }

    /// Finds what paths name and lies below, and what leads there. No name changes meanwhile.
    fn members<'a>(&self, paths: impl Iterator<Item = &'a Path>) -> Result<Members> {
        let mut members = Members::default();
        for path in paths {
            let found = self.resolve(path)?;
            self.need_live(found.ino)?;
            let leaf = self.walk(path, true)?;
            if found.ino != InodeNo::ROOT {
                self.add_way(leaf.dir, leaf.name, &mut members)?;
            }
            self.add_below(found.ino, found.kind, &mut members)?;
            members.paths.push(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec());
        }
        if members.inodes.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a checkpoint of named files needs at least one path",
            ));
        }
        Ok(members)
    }

    fn add_way(&self, dir: InodeNo, name: Vec<u8>, members: &mut Members) -> Result<()> {
        let (mut dir, mut name) = (dir, name);
        loop {
            members.ways.push((dir, name));
            if dir == InodeNo::ROOT {
                return Ok(());
            }
            let parent = self.parent(dir)?;
            let entries = self.read_dir(parent, None, usize::MAX)?;
            name = entries
                .into_iter()
                .find(|entry| entry.ino == dir)
                .map(|entry| entry.name)
                .unwrap_or_default();
            dir = parent;
        }
    }

    fn add_below(&self, ino: InodeNo, kind: FileKind, members: &mut Members) -> Result<()> {
        let mut todo = vec![(ino, kind)];
        while let Some((ino, kind)) = todo.pop() {
            if members.inodes.insert(ino) && kind == FileKind::Directory {
                todo.extend(
                    self.read_dir(ino, None, usize::MAX)?
                        .into_iter()
                        .map(|entry| (entry.ino, entry.kind)),
                );
            }
        }
        Ok(())
    }
}
