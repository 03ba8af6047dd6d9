//! Deleting checkpoints: one that keeps few rows goes by one record. Of others one record marks one
//! as being deleted, and its rows and blocks go in steps after that (`deletion.rs`).
//!
//! The call that deletes carries the steps out. Those that it did not come to, because of a crash or
//! because there was no room, are the sync daemon's, and of changes that find the volume full.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::CheckpointInfo;
use super::deletion::{Step, next_step, only_step, would_free};
use super::report::CheckpointSpace;
use crate::engine::Engine;
use crate::{Error, ErrorKind, Lsn, Result};
use bedplate_store::{
    Checkpoint, CheckpointRow, Committed, Locked, Others, PlantedBug, Record, RecordKind,
    RowChange, Table, checkpoint_key, planted,
};

/// So many steps of a deletion are written to the log at once: a program that syncs between them
/// waits for no more than these.
const STEPS_A_SYNC: u32 = 8;
/// The longest rest between two steps; a step that takes less is followed by as much.
const REST_MAX: Duration = Duration::from_millis(2);

/// A deletion whose first record is in the log.
struct Begun {
    lsn: Lsn,
    /// It goes on in steps; else that record was all of it.
    has_more: bool,
}

impl Engine {
    /// Returns the checkpoints, oldest first, but passing ones.
    pub(crate) fn checkpoints(&self) -> Vec<CheckpointInfo> {
        let all = self.all_checkpoints().into_iter();
        all.filter(|one| !one.row.is_passing()).map(|one| CheckpointInfo::of(&one)).collect()
    }

    /// As [`checkpoints`](Self::checkpoints), as they are in memory, with passing ones.
    pub(super) fn all_checkpoints(&self) -> Vec<Arc<Checkpoint>> {
        self.reading(|rows| Ok(rows.checkpoint_set.listed().cloned().collect()))
            .expect("nothing is read from the device")
    }

    pub(crate) fn checkpoint(&self, name: &[u8]) -> Result<Arc<Checkpoint>> {
        self.reading(|rows| {
            let missing = || {
                let told = bedplate_store::told_name(name);
                let all = rows.checkpoint_set.listed();
                let known: Vec<String> =
                    all.map(|one| bedplate_store::told_name(&one.row.name)).collect();
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
        self.reading(|rows| {
            let all: Vec<_> = rows.checkpoint_set.listed().cloned().collect();
            would_free(rows, &all, self.block_size())
        })
    }

    /// Deletes a checkpoint; durable, and its space free, when it returns. Files open in its view
    /// stand in the way.
    pub(crate) fn delete_checkpoint(&self, name: &[u8]) -> Result<()> {
        self.begin_deletion()?;
        self.remove_checkpoint(name, |_| true)
    }

    /// Deletes a checkpoint that may go now that it cannot change; durable when it returns.
    pub(super) fn remove_checkpoint(
        &self,
        name: &[u8],
        may_go: impl Fn(&Checkpoint) -> bool,
    ) -> Result<()> {
        if self.take_away(name, may_go)? { self.free_deleted(name) } else { Ok(()) }
    }

    /// Deletes a checkpoint; durable when it returns. Its space becomes free behind the caller's
    /// back, where it takes more than one record.
    pub(crate) fn delete_behind(&self, name: &[u8]) -> Result<()> {
        self.begin_deletion()?;
        if self.take_away(name, |_| true)? {
            self.sync_waker().wake();
        }
        Ok(())
    }

    /// Takes a checkpoint out of sight, durably; returns whether it still has rows and blocks.
    fn take_away(&self, name: &[u8], may_go: impl Fn(&Checkpoint) -> bool) -> Result<bool> {
        let (epoch, begun) = self.frozen(|_| {
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
            let begun = self.begin_to_delete(&checkpoint)?;
            self.views().forget(checkpoint.epoch);
            self.forget_inodes(&of_it);
            Ok((checkpoint.epoch, begun))
        })?;
        if !planted(PlantedBug::DeletionNotSynced) {
            self.sync_to(begun.lsn)?;
        }
        self.exclusively(|locked| {
            locked.checkpoint_set().going.retain(|gone| gone.epoch != epoch);
            self.epochs_changed();
            Ok(())
        })?;
        Ok(begun.has_more)
    }

    /// Frees what a checkpoint had that is deleted.
    fn free_deleted(&self, name: &[u8]) -> Result<()> {
        match self.end_deletions().and_then(|()| self.sync_to(self.last_lsn())) {
            // It is deleted, and durably so: where the log has no room, the rest waits for some.
            Err(e) if e.kind == ErrorKind::NoSpace => {
                tracing::warn!(
                    "what a deleted checkpoint had is not all free, which is made good when there \
                     is room: {e}"
                );
                Ok(())
            }
            Err(e) => {
                let name = bedplate_store::told_name(name);
                let message = format!(
                    "checkpoint '{name}' is deleted, but not all of its space is free, which is \
                     tried again, at the latest by the next mount: {}",
                    e.message
                );
                Err(Error { message, ..e })
            }
            Ok(()) => Ok(()),
        }
    }

    /// Goes on with deletions that no call waits for, while `goes_on` says so, which is told how many
    /// steps there were. Returns how many; what they freed is free then.
    pub(crate) fn go_on_with_deletions(&self, goes_on: impl Fn(u32) -> bool) -> Result<u32> {
        let is_left = !planted(PlantedBug::DeletionNotResumed);
        let goes_on = |steps| is_left && goes_on(steps) && !self.deleters().are_any();
        match self.delete_while(goes_on) {
            // It waits for room.
            Err(e) if e.kind == ErrorKind::NoSpace => Ok(0),
            steps => steps,
        }
    }

    /// Goes on with deletions until so many blocks are free; returns whether any step was taken. What
    /// goes wrong with one is told by the sync daemon, which tries it again.
    pub(super) fn free_by_deletions(&self, blocks: u64) -> bool {
        let _waits = self.deleters().enter();
        let steps = self.delete_while(|_| !self.would_fit(blocks));
        steps.is_ok_and(|steps| steps > 0) && !planted(PlantedBug::DeletionNotAwaited)
    }

    /// Returns whether any checkpoint is being deleted.
    pub(crate) fn is_deleting(&self) -> bool {
        self.deletion_count() > 0
    }

    /// Counts the checkpoints that are being deleted.
    pub(super) fn deletion_count(&self) -> u64 {
        self.reading(|rows| Ok(rows.checkpoint_set.deleting().count() as u64))
            .expect("nothing is read from the device")
    }

    /// Deletes a checkpoint that has few rows, or marks one as being deleted: from then on nothing
    /// shows it. Until the record is durable what it had is still not written in place (I-CKP-7).
    fn begin_to_delete(&self, checkpoint: &Arc<Checkpoint>) -> Result<Begun> {
        let (committed, has_more) = self.exclusively(|locked| {
            let limit = self.limits().images_per_record;
            let only = only_step(locked.state(), checkpoint.epoch, limit)?;
            let has_more = only.is_none();
            let committed = match only {
                Some(step) => self.commit_step(locked, step)?,
                None => self.commit_mark(locked, checkpoint)?,
            };
            locked.checkpoint_set().going.push(Arc::clone(checkpoint));
            self.epochs_changed();
            Ok((committed, has_more))
        })?;
        let lsn = committed.lsn;
        self.free_after(committed);
        Ok(Begun { lsn, has_more })
    }

    fn commit_mark(
        &self,
        locked: &mut Locked<'_>,
        checkpoint: &Arc<Checkpoint>,
    ) -> Result<Committed> {
        let epoch = checkpoint.epoch;
        let row = CheckpointRow { deleting: true, ..checkpoint.row.clone() };
        let change = RowChange::put(Table::Checkpoint, checkpoint_key(epoch), row.encode());
        let record = of_checkpoints(vec![change]);
        self.need_log_room(&record)?;
        let committed = locked.commit(record, Others::Covered)?;
        let members = checkpoint.members.clone();
        locked.checkpoint_set().replace(Arc::new(Checkpoint { epoch, row, members }));
        Ok(committed)
    }

    fn commit_step(&self, locked: &mut Locked<'_>, step: Step) -> Result<Committed> {
        let Step { epoch, changes, up_to } = step;
        let record = of_checkpoints(changes);
        self.need_log_room(&record)?;
        let committed = locked.commit(record, Others::Covered)?;
        let set = locked.checkpoint_set();
        if up_to.is_none() {
            set.checkpoints.retain(|other| other.epoch != epoch);
        }
        set.deleted_up_to = up_to;
        Ok(committed)
    }

    /// Has the blocks that a record left without an owner become free once it is sealed.
    fn free_after(&self, committed: Committed) {
        let at_once = planted(PlantedBug::DeletionFreesAtOnce);
        let lsn = if at_once { Lsn(0) } else { committed.lsn };
        let freed = committed.freed.unwrap_or_default().into_iter();
        for run in freed.filter(|_| !planted(PlantedBug::DeletionFreesNothing)) {
            self.release_after(lsn, run);
        }
    }

    /// Carries the deletions under way to their end, in steps between which everything else goes
    /// on.
    pub(crate) fn end_deletions(&self) -> Result<()> {
        let _waits = self.deleters().enter();
        self.delete_while(|_| true).map(drop)
    }

    /// Carries steps out while `goes_on` says so, which is told how many there were; returns how
    /// many.
    fn delete_while(&self, goes_on: impl Fn(u32) -> bool) -> Result<u32> {
        let mut steps = 0;
        while goes_on(steps) && self.is_deleting() {
            self.begin_deletion()?;
            let begun = Instant::now();
            self.delete_some()?;
            self.limits().between_records("deletion");
            steps += 1;
            if steps.is_multiple_of(STEPS_A_SYNC) {
                self.sync_to(self.last_lsn())?;
            }
            self.commit_rows_of_deletion()?;
            // What waited for the lock of the rows has it now.
            std::thread::sleep(begun.elapsed().min(REST_MAX));
        }
        if steps > 0 {
            self.seal_to(self.last_lsn())?;
            self.release_sealed();
        }
        Ok(steps)
    }

    /// Has what steps changed go into the metadata tree before the log is full of it.
    fn commit_rows_of_deletion(&self) -> Result<()> {
        if !self.metadata_commit_wanted() {
            return Ok(());
        }
        match self.metadata_commit() {
            // The log has room for what is left, or the next step is refused.
            Err(e) if e.kind == ErrorKind::NoSpace => Ok(()),
            other => other,
        }
    }

    /// Carries out one step.
    fn delete_some(&self) -> Result<()> {
        // A freeze reads and writes images, too.
        let _changing = self.change();
        let committed = self.exclusively(|locked| {
            let step = next_step(locked.state(), self.limits().images_per_record)?;
            step.map(|step| self.commit_step(locked, step)).transpose()
        })?;
        committed.into_iter().for_each(|committed| self.free_after(committed));
        Ok(())
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
            let lsn = locked.commit(of_checkpoints(vec![change]), Others::Covered)?.lsn;
            locked.checkpoint_set().replace(Arc::clone(&new));
            Ok(lsn)
        })?;
        self.sync_to(lsn)?;
        Ok(CheckpointInfo::of(&new))
    }
}

fn of_checkpoints(rows: Vec<RowChange>) -> Record {
    Record { kind: RecordKind::Checkpoint, rows, exposes: None, barrier: false }
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
        fs.frozen(|_| fs.begin_to_delete(&second)).unwrap();
        fs.frozen(|_| fs.begin_to_delete(&first)).unwrap();
        let before = place();
        file.write_at(&page, 0).unwrap();
        assert_ne!(place(), before, "the deletions are not sealed: the checkpoints may come back");
        volume.create_checkpoint("third", &CheckpointOptions::default()).unwrap();
        volume.delete_checkpoint("third").unwrap();
        let before = place();
        file.write_at(&page, 0).unwrap();
        assert_eq!(place(), before, "no other file needs the block");
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
        let lsn = fs.frozen(|_| fs.begin_to_delete(&first)).unwrap().lsn;
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
        fs.frozen(|_| fs.begin_to_delete(&first)).unwrap();
        fs.delete_some().unwrap();
        let lsn = fs.last_lsn();
        assert!(fs.sealed_lsn() < lsn, "nothing asked for a sync");
        assert!(
            !becomes_free(),
            "a crash would bring the checkpoint back, with what is written to its block meanwhile"
        );
        volume.sync().unwrap();
        assert!(fs.sealed_lsn() >= lsn && becomes_free(), "the block is free again");
    }
}
