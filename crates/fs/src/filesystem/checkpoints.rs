//! Checkpoints of a mounted file system: made, counted, scheduled, gone back to and cloned from.

use std::path::Path;

use super::FileSystem;
use crate::{
    ChangedBlocks, CheckpointCounts, CheckpointDifference, CheckpointHold, CheckpointInfo,
    CheckpointOptions, CheckpointSpace, ClockReading, CloneReport, CloneSource, InodeNo, Pressure,
    Result, RollbackOptions, RollbackReport, Schedule, ScheduleRun, SpacePolicy,
};

impl FileSystem {
    /// Makes a checkpoint: an image, as of one moment, of everything or of named files and
    /// directories. Durable when it returns. It is read in `.checkpoints/NAME` of the root.
    ///
    /// # Errors
    /// `Exists`, `Invalid` name or empty scope, `NotFound` path, `NoSpace`, `ReadOnly`.
    pub fn create_checkpoint(
        &self,
        name: impl AsRef<[u8]>,
        options: &CheckpointOptions,
    ) -> Result<CheckpointInfo> {
        self.inner.fs.create_checkpoint(name.as_ref(), options)
    }

    /// Carries out a step of the deletions that were cut short, as the sync daemon does, and returns
    /// whether there was one: for the crash judge, whose mounts do nothing by themselves.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    #[doc(hidden)]
    pub fn delete_step(&self) -> Result<bool> {
        Ok(self.inner.fs.go_on_with_deletions(|steps| steps == 0)? > 0)
    }

    /// Returns the checkpoints, oldest first.
    #[must_use]
    pub fn checkpoints(&self) -> Vec<CheckpointInfo> {
        self.inner.fs.checkpoints()
    }

    /// Counts what a checkpoint holds alone; reads all that it keeps.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn checkpoint_space(&self, name: impl AsRef<[u8]>) -> Result<CheckpointSpace> {
        self.inner.fs.checkpoint_space(&[name.as_ref()])
    }

    /// Counts what deleting several checkpoints together would free: also blocks that only they
    /// share. Reads all that they keep.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn checkpoints_space(&self, names: &[impl AsRef<[u8]>]) -> Result<CheckpointSpace> {
        let names: Vec<&[u8]> = names.iter().map(AsRef::as_ref).collect();
        self.inner.fs.checkpoint_space(&names)
    }

    /// Counts what all checkpoints hold together: what deleting them would free. Reads all that
    /// they keep.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn all_checkpoints_space(&self) -> Result<CheckpointSpace> {
        self.inner.fs.all_checkpoints_space()
    }

    /// Sets what happens to checkpoints when the volume is full; kept in the volume, durable when
    /// it returns.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn set_space_policy(&self, policy: SpacePolicy) -> Result<()> {
        self.inner.fs.set_space_policy(policy)
    }

    /// Returns what there is to warn of: checkpoints hold half of the volume or more, or less than
    /// a tenth of it is available. Reads all that they keep where little is left.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn checkpoint_pressure(&self) -> Result<Option<Pressure>> {
        self.inner.fs.pressure()
    }

    /// Returns the schedules of checkpoints, by name.
    #[must_use]
    pub fn schedules(&self) -> Vec<Schedule> {
        self.inner.fs.schedules()
    }

    /// Adds a schedule, or replaces the one of its name; `last` is ignored. Kept in the volume,
    /// durable when it returns; carried out while it is mounted for writing, and by
    /// [`run_schedules`](Self::run_schedules).
    ///
    /// # Errors
    /// `Invalid` name, period, number or paths; `NoSpace`, `ReadOnly`.
    pub fn set_schedule(&self, schedule: &Schedule) -> Result<()> {
        self.inner.fs.set_schedule(schedule)
    }

    /// Removes a schedule; the checkpoints that it made stay.
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`.
    pub fn remove_schedule(&self, name: &str) -> Result<()> {
        self.inner.fs.remove_schedule(name)
    }

    /// Makes the checkpoints that are due as of a moment, and deletes what the schedules no longer
    /// keep. A mount with [`schedules`](crate::MountOptions::schedules) does so by itself.
    ///
    /// # Errors
    /// `ReadOnly`, `Io`; that single schedules made none is told in the report.
    pub fn run_schedules(&self, now: ClockReading) -> Result<ScheduleRun> {
        self.inner.fs.run_schedules(now)
    }

    /// Says what is to be done before a checkpoint by schedule, so that writes which a kernel above
    /// still holds are in it. The first call counts.
    pub fn before_scheduled(&self, flush_frontend: impl Fn() + Send + Sync + 'static) {
        self.inner.fs.set_flush_frontend(Box::new(flush_frontend));
    }

    /// Keeps a checkpoint from being deleted until the answer is dropped.
    ///
    /// # Errors
    /// `NotFound`; `Busy` after 65,519 checkpoints were looked into.
    pub fn hold_checkpoint(&self, name: impl AsRef<[u8]>) -> Result<CheckpointHold> {
        self.inner.fs.hold_checkpoint(name.as_ref())
    }

    /// Counts the checkpoints, and tells what happens to them when the volume is full.
    #[must_use]
    pub fn checkpoint_counts(&self) -> CheckpointCounts {
        self.inner.fs.checkpoint_counts()
    }

    /// Deletes a checkpoint; durable when it returns. What others need of it they keep.
    ///
    /// # Errors
    /// `NotFound`; `Busy` when files of it are open; `ReadOnly`.
    pub fn delete_checkpoint(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.inner.fs.delete_checkpoint(name.as_ref())
    }

    /// Protects a checkpoint from retention and from a full volume, or no longer.
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`.
    pub fn keep_checkpoint(&self, name: impl AsRef<[u8]>, kept: bool) -> Result<CheckpointInfo> {
        self.inner.fs.keep_checkpoint(name.as_ref(), kept)
    }

    /// Puts everything, a directory or a file back to what a checkpoint shows: remaps, copies
    /// nothing. A checkpoint of the moment before is made first, to undo with. Durable when it
    /// returns.
    ///
    /// # Errors
    /// `NotFound`; `Busy` naming files that are open, unless forced; `Invalid` when a file has got
    /// a name elsewhere since; `NoSpace`, `ReadOnly`.
    pub fn rollback(
        &self,
        name: impl AsRef<[u8]>,
        options: &RollbackOptions,
    ) -> Result<RollbackReport> {
        self.inner.fs.rollback(name.as_ref(), options)
    }

    /// Makes a writable clone, under a new name, of a file or directory: of what a checkpoint
    /// shows, or of the present. No data is copied: the blocks are shared, and a write to some of
    /// them goes to new blocks. It is there whole or not at all, also after a crash; durable when
    /// it returns. What is preallocated and not written is a hole in the clone.
    ///
    /// # Errors
    /// `Exists` target; `NotFound` checkpoint, path or directory of the target; `Invalid` path that
    /// leads out of the checkpoint; `NoSpace`, `ReadOnly`.
    pub fn clone_files(
        &self,
        source: &CloneSource,
        target: impl AsRef<Path>,
    ) -> Result<CloneReport> {
        self.inner.fs.clone_files(source, target.as_ref())
    }

    /// Returns how a file (by its inode, seen in whichever checkpoint) differs between checkpoint
    /// `from` and checkpoint `to`, or the present: the ranges to copy, without reading the file.
    /// The cost follows from what changed. Of a file that did not exist, all its data.
    ///
    /// # Errors
    /// `NotFound` checkpoint, or file at the second moment; `Invalid` for a file that a checkpoint
    /// of named files does not hold.
    pub fn changed_blocks(
        &self,
        file: InodeNo,
        from: impl AsRef<[u8]>,
        to: Option<&[u8]>,
    ) -> Result<ChangedBlocks> {
        self.inner.fs.changed_blocks(file, from.as_ref(), to)
    }

    /// Returns what differs between checkpoint `from` and checkpoint `to`, or the present, by path.
    /// Contents are compared by where they are, not read; the cost follows from what changed, and
    /// one look at all names to tell the paths. Of checkpoints of named files all that both moments
    /// are of is looked at, and what only one is of is told as that.
    ///
    /// # Errors
    /// `NotFound` checkpoint; `Invalid` when the second is older; `Io`, `Corrupt`.
    pub fn checkpoint_diff(
        &self,
        from: impl AsRef<[u8]>,
        to: Option<&[u8]>,
    ) -> Result<Vec<CheckpointDifference>> {
        self.inner.fs.checkpoint_diff(from.as_ref(), to)
    }
}
