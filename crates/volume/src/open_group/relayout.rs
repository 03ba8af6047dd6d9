//! Relayouts of an open group, and members that bring room.

use std::time::Duration;

use super::Group;
use crate::relayout::Stepped;
use crate::{
    Arrival, MemberState, RelayoutProgress, RelayoutState, Result, Role, Target, VolumeConfig,
};

impl Group {
    /// Adds a member that brings room: relayouts and growth may use it.
    ///
    /// # Errors
    /// `Foreign` when the device is a member already, `Invalid` when the group is full or the
    /// device too small, `Device`.
    pub fn add_member<'a>(&self, device: impl Into<Arrival<'a>>) -> Result<()> {
        self.open.runtime.add(device.into(), MemberState::Active)
    }

    /// Lets a volume become what is asked for, while it is in use; the background thread moves it,
    /// or [`run_relayout`](Self::run_relayout). What needs no move is done at once. Of the volume,
    /// the first `used_bytes` are kept in any case; that they are all that is used must hold until
    /// this returns: then a smaller volume has its size.
    ///
    /// # Errors
    /// `Invalid` with the reason when that cannot be, `Busy` when operations under way do not end,
    /// `Broken`, `Device`.
    pub fn relayout(&self, role: Role, target: &Target, used_bytes: u64) -> Result<()> {
        self.open.runtime.begin(role, &|_, _| Ok((*target, used_bytes)))?;
        self.open.runtime.group_state.waker.wake();
        Ok(())
    }

    /// Makes a volume larger: of a size, or as large as its members let it be. A concatenated one
    /// takes members without data behind what it has.
    ///
    /// # Errors
    /// As [`relayout`](Self::relayout).
    pub fn grow(&self, role: Role, size_bytes: Option<u64>) -> Result<()> {
        self.open.runtime.begin(role, &|config, volume| {
            Ok((Target::to_grow(config, volume, size_bytes)?, volume.size_bytes()))
        })?;
        self.open.runtime.group_state.waker.wake();
        Ok(())
    }

    /// Lets a relayout wait, or go on.
    ///
    /// # Errors
    /// `Invalid` when there is none, `Broken`, `Device`.
    pub fn pause_relayout(&self, pause: bool) -> Result<()> {
        self.open.runtime.turn_relayout(&|volume, _| {
            volume.relayout.iter_mut().for_each(|relayout| relayout.paused = pause);
        })
    }

    /// Turns a relayout round: what has moved goes back, and where the rest would have gone is
    /// forgotten in the end.
    ///
    /// # Errors
    /// As [`pause_relayout`](Self::pause_relayout).
    pub fn reverse_relayout(&self) -> Result<()> {
        self.open.runtime.turn_relayout(&|volume, estimate| {
            let VolumeConfig { layout, relayout, .. } = volume;
            if let Some(relayout) = relayout {
                relayout.turn(layout);
                relayout.paused = false;
            }
            estimate.end();
        })
    }

    /// Returns how far the relayout of the group is; `None` where there is none.
    #[must_use]
    pub fn relayout_progress(&self) -> Option<RelayoutProgress> {
        let runtime = &self.open.runtime;
        let config = runtime.group_state.config();
        let (ordinal, volume) =
            config.volumes.iter().enumerate().find(|(_, volume)| volume.relayout.is_some())?;
        let relayout = volume.relayout.as_ref()?;
        let last_error = runtime.ios[ordinal].relayout_step_state.lock().last_error.clone();
        let state = match last_error {
            _ if relayout.paused => RelayoutState::Paused,
            Some(last_error) => RelayoutState::Failing(last_error),
            None => RelayoutState::Running,
        };
        let (moved_bytes, total_bytes) =
            (relayout.moved_bytes(&volume.layout), volume.size_bytes());
        let seconds_left = runtime.moving.lock().seconds_left(total_bytes - moved_bytes);
        Some(RelayoutProgress { role: volume.role, state, moved_bytes, total_bytes, seconds_left })
    }

    /// Takes steps of the relayout from the calling thread until it is over or paused, or `go_on`
    /// says no; that is asked after each.
    ///
    /// # Errors
    /// What a step fails with; it can be taken again.
    pub fn run_relayout(&self, go_on: &mut dyn FnMut(&RelayoutProgress) -> bool) -> Result<()> {
        let runtime = &self.open.runtime;
        while let Some(ordinal) =
            runtime.group_state.config().volumes.iter().position(|volume| volume.relayout.is_some())
        {
            let stepped = runtime.step(&runtime.ios[ordinal], u64::MAX)?;
            let more = self.relayout_progress().is_some_and(|progress| go_on(&progress));
            match stepped {
                Stepped::Idle => return Ok(()),
                _ if !more => return Ok(()),
                Stepped::Busy => std::thread::sleep(Duration::from_millis(1)),
                Stepped::Moved(_) | Stepped::Over => {}
            }
        }
        Ok(())
    }
}
