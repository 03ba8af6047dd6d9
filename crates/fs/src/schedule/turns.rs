//! The schedules of a mounted file system, and whose turn it was.

use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::time::Duration;

use super::{ClockReading, SCHEDULE_PREFIX, Schedule, failure_key_of};
use crate::Result;
use bedplate_store::{MetaStore, Table};

/// The schedules, and whose turn it was.
#[derive(Debug, Default)]
pub(crate) struct ScheduleState {
    /// By name, as the settings have them.
    pub(crate) schedules: Vec<Schedule>,
    /// When schedules last had their turn in this process, on the steady clock.
    pub(crate) ran: HashMap<String, Duration>,
}

impl ScheduleState {
    /// Reads the schedules; one that does not decode is left out, and told of.
    pub(crate) fn load(&mut self, meta: &MetaStore) -> Result<()> {
        self.schedules.clear();
        meta.scan(Table::Setting, Bound::Included(SCHEDULE_PREFIX), Bound::Unbounded, |key, value| {
            if !key.starts_with(SCHEDULE_PREFIX) {
                return Ok(ControlFlow::Break(()));
            }
            match Schedule::decode(key, value) {
                Ok(schedule) => self.schedules.push(schedule),
                Err(error) => tracing::warn!(
                    "the setting '{}' does not decode and is left alone: {error}; a check removes \
                     it", bedplate_store::told_name(key)),
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for schedule in &mut self.schedules {
            let why = meta.get(Table::Setting, &failure_key_of(&schedule.name))?;
            schedule.failure = why.map(|why| String::from_utf8_lossy(&why).into_owned());
        }
        Ok(())
    }

    pub(crate) fn is_due(&self, schedule: &Schedule, now: ClockReading) -> bool {
        schedule.is_due(now, self.ran.get(&schedule.name).copied())
    }

    /// Takes over what became durable, or nearly: a schedule, or that there is none of the name.
    pub(crate) fn put(&mut self, name: &str, schedule: Option<Schedule>) {
        self.schedules.retain(|other| other.name != name);
        self.schedules.extend(schedule);
        self.schedules.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    }
}
