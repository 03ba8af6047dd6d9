//! Carrying schedules out: what is due is made, what is too many is deleted.
//!
//! A checkpoint and the note that its schedule had its turn are one record, so a crash makes none
//! twice. Retention deletes only what its own schedule made and is not marked as kept, the oldest
//! epochs first.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::{CheckpointInfo, CheckpointOptions, CheckpointScope};
use crate::engine::Engine;
use crate::schedule::{ClockReading, Schedule, failure_key_of, key_of};
use crate::{Error, ErrorKind, Result};
use bedplate_store::{Checkpoint, RecordKind, RowChange, Table};

/// What running the schedules did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ScheduleRun {
    /// The checkpoints made.
    pub made: Vec<CheckpointInfo>,
    /// The names of those deleted, because their schedules keep no more.
    pub deleted: Vec<String>,
    /// Why a schedule made none; it has its next turn at its next time.
    pub failures: Vec<String>,
}

impl Engine {
    /// Returns the schedules by name.
    pub(crate) fn schedules(&self) -> Vec<Schedule> {
        self.lock_schedules().schedules.clone()
    }

    /// Adds a schedule, or replaces the one of its name: when that last had its turn stays. Durable
    /// when it returns.
    pub(crate) fn set_schedule(&self, schedule: &Schedule) -> Result<()> {
        schedule.validate()?;
        for path in &schedule.paths {
            self.resolve(path)?;
        }
        self.begin_change()?;
        self.with_room(|| self.need_space())?;
        let mut turns = self.lock_schedules();
        let old = turns.schedules.iter().find(|other| other.name == schedule.name);
        let (last, failure) = old.map_or((None, None), |old| (old.last, old.failure.clone()));
        let row = Schedule { last, failure, ..schedule.clone() };
        self.change_schedule(vec![RowChange::put(Table::Setting, row.key(), row.encode())])?;
        turns.put(&schedule.name, Some(row));
        Ok(())
    }

    /// Removes a schedule; its checkpoints stay. Durable when it returns.
    pub(crate) fn remove_schedule(&self, name: &str) -> Result<()> {
        self.begin_change()?;
        let mut turns = self.lock_schedules();
        if !turns.schedules.iter().any(|schedule| schedule.name == name) {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no schedule '{}'", bedplate_store::told_name(name)),
            ));
        }
        self.change_schedule(
            [key_of(name), failure_key_of(name)]
                .map(|key| RowChange::delete(Table::Setting, key))
                .to_vec(),
        )?;
        turns.put(name, None);
        turns.ran.remove(name);
        Ok(())
    }

    fn change_schedule(&self, changes: Vec<RowChange>) -> Result<()> {
        let lsn = self.commit(RecordKind::Setting, changes);
        self.sync_to(lsn)?;
        self.scheduler_waker().wake();
        Ok(())
    }

    /// Returns whether a schedule is due.
    pub(crate) fn is_any_due(&self, now: ClockReading) -> bool {
        let turns = self.lock_schedules();
        turns.schedules.iter().any(|schedule| turns.is_due(schedule, now))
    }

    /// Returns how long until the next schedule may be due; `None` where there is none.
    pub(crate) fn until_next_due(&self, now: ClockReading) -> Option<Duration> {
        self.lock_schedules().schedules.iter().map(|schedule| schedule.until_next(now.wall)).min()
    }

    /// Makes the checkpoints that are due, and deletes what schedules no longer keep; durable when
    /// it returns.
    pub(crate) fn run_schedules(&self, now: ClockReading) -> Result<ScheduleRun> {
        self.begin_change()?;
        let mut turns = self.lock_schedules();
        let mut run = ScheduleRun::default();
        for schedule in turns.schedules.clone() {
            if turns.is_due(&schedule, now) {
                let had = Schedule { last: Some(now.wall), failure: None, ..schedule.clone() };
                turns.ran.insert(schedule.name.clone(), now.steady);
                turns.put(&schedule.name, Some(had.clone()));
                match self.make_scheduled(&had, now) {
                    Ok(made) => run.made.push(made),
                    Err(error) => {
                        let failed = Schedule { failure: Some(error.to_string()), ..had };
                        self.note_failure(&failed);
                        turns.put(&schedule.name, Some(failed));
                        run.failures.push(format!(
                            "schedule '{}' made no checkpoint: {error}",
                            bedplate_store::told_name(&schedule.name)
                        ));
                    }
                }
            }
            self.retain(&schedule, &mut run)?;
        }
        self.sync_to(self.last_lsn())?;
        Ok(run)
    }

    /// Makes the checkpoint of a schedule that has just had its turn.
    fn make_scheduled(&self, schedule: &Schedule, now: ClockReading) -> Result<CheckpointInfo> {
        let taken = self.all_checkpoints();
        let name = schedule
            .checkpoint_name(now.wall, |name| taken.iter().any(|other| other.row.name == name));
        let notes =
            [RowChange::put(Table::Setting, schedule.key(), schedule.encode()), schedule.outcome()];
        let scope = if schedule.paths.is_empty() {
            CheckpointScope::Everything
        } else {
            CheckpointScope::Paths(schedule.paths.clone())
        };
        let options = CheckpointOptions { scope, automatic: true, kept: false };
        self.create_noting(&name, &options, now.wall, &notes)
    }

    /// Keeps that a schedule failed. It had its turn all the same: what fails now would fail again
    /// in a minute, and be told again.
    fn note_failure(&self, schedule: &Schedule) {
        if self.begin_change().is_ok() {
            let note = RowChange::put(Table::Setting, schedule.key(), schedule.encode());
            let _lsn = self.commit(RecordKind::Setting, vec![note, schedule.outcome()]);
        }
    }

    /// Deletes the oldest that a schedule made beyond those that it keeps. One that is being read
    /// waits for the next time.
    fn retain(&self, schedule: &Schedule, run: &mut ScheduleRun) -> Result<()> {
        let mut made: Vec<Arc<Checkpoint>> = self.all_checkpoints();
        made.retain(|checkpoint| checkpoint.is_removable() && schedule.gave(&checkpoint.row.name));
        let too_many = made.len().saturating_sub(schedule.keep as usize);
        for checkpoint in &made[..too_many] {
            match self.remove_checkpoint(&checkpoint.row.name, |found| {
                found.epoch == checkpoint.epoch && found.is_removable()
            }) {
                Ok(()) => run.deleted.push(crate::readable_name(&checkpoint.row.name)),
                Err(error) if matches!(error.kind, ErrorKind::Busy | ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
