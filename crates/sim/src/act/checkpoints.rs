//! Checkpoints, rollbacks, comparisons and clones, carried out.

use std::collections::BTreeSet;
use std::sync::Arc;

use bedplate_fs::{
    ChangedKind, CheckpointInfo, CheckpointOptions, CheckpointScope, CloneSource, ErrorKind,
    FileKind, InodeNo, Result, RollbackOptions, SpacePolicy,
};

use super::Stage;
use crate::outcome::{Diff, Outcome, Promise};
use crate::view::see_checkpoint;
use crate::workload::{AUTOMATIC_PREFIX, CaptureStep, CheckpointStep, dir_path, file_path};

/// What a clone is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slots {
    Files,
    Directories,
}

impl Stage {
    /// Makes, compares, goes back to and deletes checkpoints, and clones.
    pub(super) fn use_checkpoints(&self, step: CheckpointStep) -> Result<Outcome> {
        let fs = &self.fs;
        match step {
            CheckpointStep::Policy(delete) => {
                fs.set_space_policy(if delete {
                    SpacePolicy::DeleteOldest
                } else {
                    SpacePolicy::Refuse
                })?;
                Ok(Outcome::promising(Promise::Names))
            }
            CheckpointStep::Diff(slot) => self
                .diff(&format!("c{slot}"))
                .map(|diff| Outcome { diff: Some(diff), ..Outcome::default() }),
            CheckpointStep::DeleteCheckpoint(slot) => fs
                .delete_checkpoint(format!("c{slot}"))
                .map(|()| Outcome::promising(Promise::Names)),
            CheckpointStep::Rollback(slot, back, force) => {
                let done = fs.rollback(
                    format!("c{slot}"),
                    &RollbackOptions { path: back.path().map(Into::into), force },
                )?;
                // Or there would be ever more of them. A full volume may have deleted it.
                match fs.delete_checkpoint(&done.undo) {
                    Err(error) if error.kind != ErrorKind::NotFound => Err(error),
                    _ => Ok(Outcome::promising(Promise::All)),
                }
            }
            CheckpointStep::Clone(slot, file, dir, to) => {
                self.clone_files(Slots::Files, slot, &file_path(file, dir), &file_path(to, 0))
            }
            CheckpointStep::CloneDirectory(slot, from, to) => {
                self.clone_files(Slots::Directories, slot, &dir_path(from), &format!("/d{to}"))
            }
        }
    }

    /// Makes the checkpoint of a step.
    pub(crate) fn make_checkpoint(&self, step: CaptureStep) -> Result<CheckpointInfo> {
        let (name, scope, automatic, kept) = match step {
            CaptureStep::Automatic(slot, kept) => {
                (format!("{AUTOMATIC_PREFIX}{slot}"), None, true, kept)
            }
            CaptureStep::Checkpoint(slot, dir) => (format!("c{slot}"), dir, false, false),
        };
        let scope = scope.map_or(CheckpointScope::Everything, |dir| {
            CheckpointScope::Paths(vec![dir_path(dir).into()])
        });
        self.fs.create_checkpoint(name, &CheckpointOptions { scope, automatic, kept })
    }

    /// What comes of a checkpoint that was made.
    pub(crate) fn made_checkpoint(&self, made: &CheckpointInfo) -> Result<Outcome> {
        let (line, shown) = see_checkpoint(&self.fs, made)?;
        Ok(Outcome {
            checkpoint: Some((line, Arc::new(shown))),
            ..Outcome::promising(Promise::Names)
        })
    }

    /// The names of the automatic checkpoints that workloads made.
    pub(crate) fn automatic(&self) -> BTreeSet<String> {
        let names = self
            .fs
            .checkpoints()
            .into_iter()
            .map(|checkpoint| String::from_utf8_lossy(&checkpoint.name).into_owned());
        names.filter(|name| name.starts_with(AUTOMATIC_PREFIX)).collect()
    }

    /// What is told of the changes since a checkpoint, all of one moment: it is asked for by many
    /// calls, so it is asked again until what is under way beside it has changed nothing between.
    fn diff(&self, name: &str) -> Result<Diff> {
        let mut diff = self.diff_by_calls(name)?;
        loop {
            let again = self.diff_by_calls(name)?;
            if again == diff {
                return Ok(diff);
            }
            diff = again;
        }
    }

    fn diff_by_calls(&self, name: &str) -> Result<Diff> {
        let text = |path: Vec<u8>| String::from_utf8_lossy(&path).into_owned();
        let mut diff = Diff::default();
        for told in self.fs.checkpoint_diff(name, None)? {
            diff.inodes.insert(told.ino);
            diff.paths.extend([Some(told.path), told.from].into_iter().flatten().map(text));
        }
        let mut todo = vec![InodeNo::ROOT];
        while let Some(dir) = todo.pop() {
            for entry in self.fs.read_dir(dir, None, usize::MAX)? {
                match entry.kind {
                    FileKind::Directory => todo.push(entry.ino),
                    FileKind::File => {
                        let changed = match self.fs.changed_blocks(entry.ino, name, None) {
                            // It is not of a checkpoint of named files; the model knows which are.
                            Err(error) if error.kind == ErrorKind::Invalid => continue,
                            changed => changed?,
                        };
                        let range = |range: bedplate_fs::ChangedRange| {
                            (
                                range.offset..range.offset + range.len,
                                range.kind == ChangedKind::Hole,
                            )
                        };
                        diff.ranges.insert(entry.ino, changed.map(range).collect());
                    }
                    _ => {}
                }
            }
        }
        Ok(diff)
    }

    fn clone_files(
        &self,
        slots: Slots,
        slot: Option<u8>,
        path: &str,
        target: &str,
    ) -> Result<Outcome> {
        let source = match slot {
            Some(slot) => {
                CloneSource::Checkpoint { name: format!("c{slot}").into_bytes(), path: path.into() }
            }
            None => CloneSource::Present(path.into()),
        };
        // By its number: a step in the middle of this one may have removed its name since.
        let ino = self.fs.clone_files(&source, target)?.ino;
        let names = if slots == Slots::Directories {
            self.fs.read_dir(ino, None, usize::MAX)?
        } else {
            Vec::new()
        };
        let entries = names
            .into_iter()
            .map(|entry| (String::from_utf8_lossy(&entry.name).into_owned(), entry.ino))
            .collect();
        Ok(Outcome { made: Some(ino), entries, ..Outcome::promising(Promise::Cloned(ino)) })
    }
}
