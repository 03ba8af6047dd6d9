//! Deleting checkpoints: what an older one still needs is handed on, the rest is dropped, and
//! blocks that nothing covers any more become free.

use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::CheckpointInfo;
use super::report::CheckpointSpace;
use crate::engine::Engine;
use crate::{Epoch, Error, ErrorKind, Result};
use bedplate_store::{
    Checkpoint, CheckpointRow, Others, PlantedBug, Record, RecordKind, RowChange, State, Table,
    before_key, checkpoint_key, planted, split_key,
};

/// The row changes that delete checkpoints, given oldest first (I-CKP-1 holds for the others before
/// and after).
pub(super) fn deletion(rows: &State, checkpoints: &[Arc<Checkpoint>]) -> Result<Vec<RowChange>> {
    debug_assert!(
        checkpoints.is_sorted_by_key(|checkpoint| checkpoint.epoch),
        "I-CKP-1: checkpoints are deleted in the order of their epochs"
    );
    let goes =
        |other: &Checkpoint| checkpoints.iter().any(|checkpoint| checkpoint.epoch == other.epoch);
    let heirs: Vec<_> =
        rows.checkpoint_set.checkpoints.iter().filter(|other| !goes(other)).collect();
    let mut changes = Vec::new();
    // What an older one of them handed on is nearer to the heir than what a newer one has.
    let mut handed = HashSet::new();
    for epoch in checkpoints.iter().map(|checkpoint| checkpoint.epoch) {
        let older = &heirs[..heirs.partition_point(|heir| heir.epoch < epoch)];
        changes.push(RowChange::delete(Table::Checkpoint, checkpoint_key(epoch)));
        visit(rows, Table::Scope, epoch, |key, _| {
            changes.push(RowChange::delete(Table::Scope, key.to_vec()));
            Ok(())
        })?;
        visit(rows, Table::Before, epoch, |key, image| {
            let (_, table, row) = bedplate_store::split_before_key(key)?;
            let ino = split_key(row)?.0;
            let mut holders = older
                .iter()
                .filter(|other| other.holds(ino) && !planted(PlantedBug::ImagesNotHandedOn));
            let heir = if planted(PlantedBug::ImagesToOldestHeir) {
                holders.next()
            } else {
                holders.next_back()
            };
            if let Some(heir) = heir {
                let key = before_key(heir.epoch, table, row);
                if (rows.get(Table::Before, &key)?.is_none()
                    || planted(PlantedBug::HeirOverwritten))
                    && (checkpoints.len() == 1 || handed.insert(key.clone()))
                {
                    changes.push(RowChange::put(Table::Before, key, image.to_vec()));
                }
            }
            changes.push(RowChange::delete(Table::Before, key.to_vec()));
            Ok(())
        })?;
    }
    Ok(changes)
}

/// Counts what deleting checkpoints, given oldest first, frees.
pub(super) fn would_free(
    rows: &State,
    checkpoints: &[Arc<Checkpoint>],
    block_size: u32,
) -> Result<CheckpointSpace> {
    let changes = deletion(rows, checkpoints)?;
    let images = changes
        .iter()
        .filter(|change| change.table == Table::Before && change.value.is_none())
        .count();
    let plan = rows.checkpoint_set.plan(&changes, None, |table, key| rows.get(table, key))?;
    let blocks = rows.checkpoint_set.block_refs.would_free(&plan.deltas)?;
    Ok(CheckpointSpace { rows: images as u64, alone_bytes: blocks * u64::from(block_size) })
}

/// Visits the rows of a table whose keys begin with an epoch.
fn visit(
    rows: &State,
    table: Table,
    epoch: Epoch,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let from = checkpoint_key(epoch);
    let to = epoch.0.checked_add(1).map(|next| checkpoint_key(Epoch(next)));
    let to = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    rows.scan(table, Bound::Included(&from), to, |key, value| {
        visit(key, value).map(ControlFlow::Continue)
    })
}

impl Engine {
    /// Returns the checkpoints, oldest first.
    pub(crate) fn checkpoints(&self) -> Vec<CheckpointInfo> {
        self.all_checkpoints().iter().map(|checkpoint| CheckpointInfo::of(checkpoint)).collect()
    }

    /// As [`checkpoints`](Self::checkpoints), as they are in memory.
    pub(super) fn all_checkpoints(&self) -> Vec<Arc<Checkpoint>> {
        self.reading(|rows| Ok(rows.checkpoint_set.checkpoints.clone()))
            .expect("nothing is read from the device")
    }

    pub(crate) fn checkpoint(&self, name: &[u8]) -> Result<Arc<Checkpoint>> {
        self.reading(|rows| {
            let missing = || {
                let told = bedplate_store::told_name(name);
                let all = &rows.checkpoint_set.checkpoints;
                let known: Vec<String> =
                    all.iter().map(|one| bedplate_store::told_name(&one.row.name)).collect();
                let meant = crate::meant(&told, known.iter().map(String::as_str));
                Error::new(ErrorKind::NotFound, format!("there is no checkpoint '{told}'{meant}"))
            };
            rows.checkpoint_set.named(name).cloned().ok_or_else(missing)
        })
    }

    /// Counts what deleting checkpoints together would free.
    pub(crate) fn checkpoint_space(&self, names: &[&[u8]]) -> Result<CheckpointSpace> {
        let mut checkpoints =
            names.iter().map(|name| self.checkpoint(name)).collect::<Result<Vec<_>>>()?;
        checkpoints.sort_unstable_by_key(|checkpoint| checkpoint.epoch);
        checkpoints.dedup_by_key(|checkpoint| checkpoint.epoch);
        self.reading(|rows| would_free(rows, &checkpoints, self.block_size()))
    }

    /// Counts what all checkpoints hold together.
    pub(crate) fn all_checkpoints_space(&self) -> Result<CheckpointSpace> {
        self.reading(|rows| would_free(rows, &rows.checkpoint_set.checkpoints, self.block_size()))
    }

    /// Deletes a checkpoint; durable when it returns. Files open in its view stand in the way.
    pub(crate) fn delete_checkpoint(&self, name: &[u8]) -> Result<()> {
        self.begin_deletion()?;
        self.remove_checkpoint(name, |_| true)
    }

    /// Deletes a checkpoint that may go now that it cannot change; durable when it returns. Until
    /// then what it had is still not written in place (I-CKP-7).
    pub(super) fn remove_checkpoint(
        &self,
        name: &[u8],
        may_go: impl Fn(&Checkpoint) -> bool,
    ) -> Result<()> {
        let (epoch, lsn) = self.frozen(|_| {
            let checkpoint = self.checkpoint(name)?;
            if !may_go(&checkpoint) {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "checkpoint '{}' is another one by now",
                        bedplate_store::told_name(name)
                    ),
                ));
            }
            let of_it = self.loaded_inodes(|inode| self.is_of(inode.ino, checkpoint.epoch));
            if self.is_looked_into(checkpoint.epoch) && !planted(PlantedBug::DeletedWhileOpen) {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "checkpoint '{}' is mounted, or files of it are open: unmount it and close \
                         them first",
                        bedplate_store::told_name(name)
                    ),
                ));
            }
            let lsn = self.commit_deletion(&checkpoint)?;
            self.views().forget(checkpoint.epoch);
            self.forget_inodes(&of_it);
            Ok((checkpoint.epoch, lsn))
        })?;
        if !planted(PlantedBug::DeletionNotSynced) {
            self.sync_to(lsn)?;
        }
        self.exclusively(|locked| {
            locked.checkpoint_set().going.retain(|gone| gone.epoch != epoch);
            self.epochs_changed();
            Ok(())
        })
    }

    fn commit_deletion(&self, checkpoint: &Arc<Checkpoint>) -> Result<crate::Lsn> {
        let committed = self.exclusively(|locked| {
            let rows = deletion(locked.state(), std::slice::from_ref(checkpoint))?;
            let record =
                Record { kind: RecordKind::Checkpoint, rows, exposes: None, barrier: false };
            self.need_log_room(&record)?;
            let committed = locked.commit(record, Others::Covered)?;
            locked.checkpoint_set().checkpoints.retain(|other| other.epoch != checkpoint.epoch);
            locked.checkpoint_set().going.push(Arc::clone(checkpoint));
            self.epochs_changed();
            Ok(committed)
        })?;
        let lsn =
            if planted(PlantedBug::DeletionFreesAtOnce) { crate::Lsn(0) } else { committed.lsn };
        for run in committed
            .freed
            .unwrap_or_default()
            .into_iter()
            .filter(|_| !planted(PlantedBug::DeletionFreesNothing))
        {
            self.release_after(lsn, run);
        }
        Ok(committed.lsn)
    }

    /// Says whether retention and a full volume may remove a checkpoint.
    pub(crate) fn keep_checkpoint(&self, name: &[u8], kept: bool) -> Result<CheckpointInfo> {
        self.begin_change()?;
        let _names = self.lock_names();
        let old = self.checkpoint(name)?;
        let row = CheckpointRow { kept, ..old.row.clone() };
        let change = RowChange::put(Table::Checkpoint, checkpoint_key(old.epoch), row.encode());
        let new = Arc::new(Checkpoint { epoch: old.epoch, row, members: old.members.clone() });
        let lsn = self.exclusively(|locked| {
            let record = Record {
                kind: RecordKind::Checkpoint,
                rows: vec![change],
                exposes: None,
                barrier: false,
            };
            let lsn = locked.commit(record, Others::Covered)?.lsn;
            locked
                .checkpoint_set()
                .checkpoints
                .iter_mut()
                .filter(|other| other.epoch == new.epoch)
                .for_each(|other| *other = Arc::clone(&new));
            Ok(lsn)
        })?;
        self.sync_to(lsn)?;
        Ok(CheckpointInfo::of(&new))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bedplate_block::{AlignedBuf, MemoryDevice};

    use crate::{
        AllocateMode, CheckpointOptions, File, FileSystem, FormatOptions, IoMode, MountOptions,
        OpenOptions,
    };

    /// A volume that is synced only when it is asked to, and a file on it.
    fn bed() -> (FileSystem, File) {
        let device: std::sync::Arc<dyn bedplate_block::BlockDevice> = MemoryDevice::new(64 << 20);
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let options = MountOptions {
            mode: IoMode::Concurrent,
            sync_interval: Duration::from_secs(3600),
            ..MountOptions::default()
        };
        let volume = FileSystem::mount(device, None, options).unwrap();
        let file = volume.open("/file", &OpenOptions::create()).unwrap();
        (volume, file)
    }

    /// I-CKP-7: a crash before the deletion is sealed brings the checkpoint back.
    #[test]
    fn i_ckp_7_what_a_deleted_checkpoint_had_is_written_in_place_once_the_deletion_is_sealed() {
        let (volume, file) = bed();
        let page = AlignedBuf::zeroed(4096);
        let place = || file.extents().unwrap()[0].volume_offset;
        file.write_at(&page, 0).unwrap();
        for name in ["first", "second"] {
            volume.create_checkpoint(name, &CheckpointOptions::default()).unwrap();
        }
        let fs = volume.state();
        let (first, second) = (fs.checkpoint(b"first").unwrap(), fs.checkpoint(b"second").unwrap());
        fs.frozen(|_| fs.commit_deletion(&second)).unwrap();
        fs.frozen(|_| fs.commit_deletion(&first)).unwrap();
        let before = place();
        file.write_at(&page, 0).unwrap();
        assert_ne!(place(), before, "the deletions are not sealed: the checkpoints may come back");
        volume.create_checkpoint("third", &CheckpointOptions::default()).unwrap();
        volume.delete_checkpoint("third").unwrap();
        let before = place();
        file.write_at(&page, 0).unwrap();
        assert_eq!(place(), before, "nobody else needs the block");
    }

    /// I-CKP-7: blocks that were zeroed are the file's own as soon as the checkpoint that shows
    /// data in them is gone for good.
    #[test]
    fn i_ckp_7_zeroed_blocks_are_written_in_place_once_the_deletion_is_sealed() {
        let (volume, file) = bed();
        let page = AlignedBuf::zeroed(4096);
        file.write_at(&page, 0).unwrap();
        volume.create_checkpoint("first", &CheckpointOptions::default()).unwrap();
        file.allocate(AllocateMode::ZeroRange { keep_size: true }, 0, 4096).unwrap();
        let fs = volume.state();
        let first = fs.checkpoint(b"first").unwrap();
        let lsn = fs.frozen(|_| fs.commit_deletion(&first)).unwrap();
        assert!(fs.sealed_lsn() < lsn);
        let place = || file.extents().unwrap()[0].volume_offset;
        let before = place();
        file.write_at(&page, 0).unwrap();
        assert!(
            place() != before || fs.sealed_lsn() >= lsn,
            "a crash would bring the checkpoint back, with what was written now"
        );
    }

    /// I-SPC-2, S-52: blocks that only a deleted checkpoint had become free with the deletion, and
    /// not before it is sealed.
    #[test]
    fn i_spc_2_what_only_a_deleted_checkpoint_had_is_free_once_the_deletion_is_sealed() {
        let (volume, file) = bed();
        let page = AlignedBuf::zeroed(4096);
        file.write_at(&page, 0).unwrap();
        volume.create_checkpoint("first", &CheckpointOptions::default()).unwrap();
        file.write_at(&page, 0).unwrap();
        volume.sync().unwrap();
        let fs = volume.state();
        let becomes_free = || fs.release_sealed();
        becomes_free();
        let first = fs.checkpoint(b"first").unwrap();
        let lsn = fs.frozen(|_| fs.commit_deletion(&first)).unwrap();
        assert!(fs.sealed_lsn() < lsn, "nothing asked for a sync");
        assert!(
            !becomes_free(),
            "a crash would bring the checkpoint back, with what is written to its block meanwhile"
        );
        volume.sync().unwrap();
        assert!(fs.sealed_lsn() >= lsn && becomes_free(), "the block is free again");
    }
}
