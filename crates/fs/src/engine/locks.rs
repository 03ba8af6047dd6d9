//! Locks of the whole file system, in the order of their ranks, and what a thread does that waits
//! for one of a file.

use std::sync::Weak;

use bedplate_block::sync::MutexGuard;

use super::{Engine, HelpedQueue, Shrinking};
use crate::InodeNo;
use crate::lock::{Changing, Help, Names, Unchanging};
use crate::schedule::ScheduleState;
use crate::statistics::{WaitMeter, Waits};

impl Engine {
    /// Keeps the size as it is, or changes it alone.
    pub(crate) fn lock_size(&self) -> MutexGuard<'_, Option<Shrinking>> {
        self.growing.lock()
    }

    /// Runs or changes schedules alone.
    pub(crate) fn lock_schedules(&self) -> MutexGuard<'_, ScheduleState> {
        self.schedule_state.lock()
    }

    /// Clones alone, or keeps clones from being made.
    pub(crate) fn lock_clones(&self) -> MutexGuard<'_, ()> {
        self.cloning.lock()
    }

    /// As [`lock_clones`](Self::lock_clones), unless a clone is being made.
    pub(crate) fn try_lock_clones(&self) -> Option<MutexGuard<'_, ()>> {
        self.cloning.try_lock()
    }

    /// Discards free blocks alone.
    pub(crate) fn lock_trim(&self) -> MutexGuard<'_, ()> {
        self.trimming.lock()
    }

    /// Deletes checkpoints for space alone.
    pub(crate) fn lock_room(&self) -> MutexGuard<'_, ()> {
        self.room.lock()
    }

    /// Begins a change that a freeze waits for. Nothing of a higher rank is held.
    pub(crate) fn change(&self) -> Changing<'_> {
        self.changes.shared()
    }

    /// As [`change`](Self::change), where no freeze is under way; does not wait.
    pub(crate) fn change_if_unfrozen(&self) -> Option<Changing<'_>> {
        self.changes.if_shared()
    }

    /// Waits for the changes under way; later ones wait.
    pub(crate) fn lock_changes(&self) -> Unchanging<'_> {
        self.changes.alone()
    }

    /// Changes names alone: no other name of the file system changes meanwhile.
    pub(crate) fn lock_names(&self) -> Names<'_> {
        self.names.alone()
    }

    /// Changes the names in a directory, or the extended attributes of an inode, alone.
    pub(crate) fn lock_names_in(&self, ino: InodeNo) -> Names<'_> {
        self.names.of(ino)
    }

    /// Changes the names in two directories alone.
    pub(crate) fn lock_names_in_both(&self, first: InodeNo, second: InodeNo) -> Names<'_> {
        self.names.of_both(first, second)
    }

    /// Adds a queue, whose I/O in flight may hold locks of files.
    pub(crate) fn help_queue(&self, queue: Weak<dyn HelpedQueue>) {
        self.queues.add(queue);
    }

    /// Returns whether requests can wait for a thread of the I/O engine: those of queues can, where
    /// it has threads.
    pub(crate) fn queues_for_threads(&self) -> bool {
        self.queues.were_opened() && self.device_engine().threads.is_some()
    }

    /// Returns what reads and writes of all files waited for.
    pub(crate) fn waits(&self) -> Waits {
        self.sampler().waits().snapshot(self.queues_for_threads())
    }
}

impl Help for Engine {
    fn help(&self) {
        self.queues.help();
    }

    fn meter(&self) -> Option<&WaitMeter> {
        Some(self.sampler().waits())
    }
}

/// Helps as the file system does, and is not counted as waiting: no read or write is held up by
/// what waits.
pub(crate) struct Unhurried<'a>(pub(crate) &'a Engine);

impl Help for Unhurried<'_> {
    fn help(&self) {
        self.0.help();
    }
}
