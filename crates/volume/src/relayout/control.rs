//! Beginning, pausing, turning round and ending a relayout; members that bring room.

use std::sync::Arc;
use std::time::Duration;

use super::shift::Stepped;
use super::target::{self, Target};
use crate::estimate::RateEstimate;
use crate::io::raid5::with_parity;
use crate::io::{LayoutEpoch, RelayoutStepState, VolumeIo};
use crate::redundancy::{BEHIND, Redundancy, UNSYNCED};
use crate::runtime::{GroupRuntime, geometry};
use crate::{
    Config, Error, ErrorKind, Label, MemberState, Relayout, Result, Role, ScrubSchedule,
    VolumeConfig,
};

/// How long operations wait for those under way when a volume takes another shape, and how often
/// that is tried.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(20);
const TRIES: usize = 250;

/// How a relayout goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayoutState {
    /// It moves, or will when the group is open.
    Running,
    /// It waits until it is resumed.
    Paused,
    /// The last step failed with this; it is tried again.
    Failing(String),
}

/// How far a relayout is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayoutProgress {
    /// The volume.
    pub role: Role,
    /// How it goes.
    pub state: RelayoutState,
    /// Bytes that live in the next layout.
    pub moved_bytes: u64,
    /// Bytes that will.
    pub total_bytes: u64,
    /// How long the rest takes at the rate of late, in seconds; `None` where that is not known.
    pub seconds_left: Option<u64>,
}

/// Says what a volume is to become, as it is now, and how many bytes of it are kept.
pub(crate) type RelayoutRequest<'a> = &'a dyn Fn(&Config, &VolumeConfig) -> Result<(Target, u64)>;

fn no_volume(config: &Config, role: Role) -> Error {
    Error::invalid(format!("group {} has no volume for its {}", config.name, role.name()))
}

impl GroupRuntime {
    /// Begins what is made of the configuration as it is then, and keeps so many bytes.
    pub fn begin(&self, role: Role, request: RelayoutRequest<'_>) -> Result<()> {
        let _members_stay = self.maintenance.lock();
        let config = self.group_state.config();
        let ordinal = config.volumes.iter().position(|volume| volume.role == role);
        let ordinal = ordinal.ok_or_else(|| no_volume(&config, role))?;
        self.refuse_begin(&config, ordinal)?;
        let io = &self.ios[ordinal];
        let (target, used_bytes) = request(&config, &config.volumes[ordinal])?;
        let next = self.planned(&config, io, &target, used_bytes)?;
        let volume = &next.volumes[ordinal];
        self.reshape(io, |epoch| {
            let mut shaped = LayoutEpoch::new(volume, io.geometry.logical_block_size.into());
            shaped.redundancy = epoch.redundancy.clone();
            shaped = with_parity(shaped, config.id, ordinal);
            shaped.parity = epoch.parity.clone();
            if volume.is_redundant() && shaped.redundancy.is_none() {
                shaped.redundancy = Some(Arc::new(Redundancy::new(
                    config.id,
                    ordinal,
                    shaped.size_bytes,
                    volume.region_bytes,
                )));
            }
            io.write_whole_log(&shaped)?;
            shaped.next_parity.iter().try_for_each(|parity| io.begin_parity(parity))?;
            self.group_state.change(|config| {
                config.volumes[ordinal] = volume.clone();
                config
                    .members
                    .iter_mut()
                    .zip(&next.members)
                    .for_each(|(member, next)| member.size_bytes = next.size_bytes);
                Ok(())
            })?;
            Ok(shaped)
        })?;
        let then = geometry(volume, &self.group_state.handles(), self.group_state.read_only);
        io.untorn_unit.fetch_min(then.untorn_unit, std::sync::atomic::Ordering::Relaxed);
        if io
            .epochs
            .peek()
            .relayout
            .as_ref()
            .is_some_and(|relayout| relayout.is_over(&volume.layout))
        {
            return self.end(io);
        }
        tracing::info!(
            volume = io.name,
            to = volume.relayout.as_ref().map(|relayout| relayout.next.name()),
            "the relayout begins"
        );
        Ok(())
    }

    fn refuse_begin(&self, config: &Config, ordinal: usize) -> Result<()> {
        let group = &config.name;
        if self.group_state.read_only {
            return Err(Error::invalid(format!("group {group} is open for reading only")));
        }
        if config.has_relayout() {
            return Err(Error::invalid(format!(
                "group {group}: a relayout is under way: wait for it, or turn it round"
            )));
        }
        if let Some(relocated) = config.members.iter().find(|member| member.relocated.is_some()) {
            let path = &relocated.path;
            return Err(Error::invalid(format!(
                "group {group}: {path} lies in free space of others: move it back with 'bedplate \
                 volume unrelocate' first"
            )));
        }
        let away = config.volumes[ordinal]
            .members()
            .into_iter()
            .find(|index| config.members[*index].state != MemberState::Active);
        if let Some(split) = config.split.as_ref().filter(|split| !split.joins) {
            let other = &split.name;
            return Err(Error::invalid(format!(
                "group {group}: the half {other} was split off: join it, or replace the members that \
                 went with it, before a relayout"
            )));
        }
        away.map_or(Ok(()), |index| {
            let (path, state) = (&config.members[index].path, config.members[index].state.name());
            Err(Error::invalid(format!(
                "group {group}: {path} is {state}: replace it or let it be brought up to date \
                 before a relayout"
            )))
        })
    }

    /// Returns the configuration in which the relayout that is asked for begins.
    fn planned(
        &self,
        config: &Config,
        io: &Arc<VolumeIo>,
        target: &Target,
        used_bytes: u64,
    ) -> Result<Config> {
        let (mut next, handles) = (config.clone(), self.group_state.handles());
        for (member, handle) in next.members.iter_mut().zip(handles.iter()) {
            let size = handle
                .as_ref()
                .filter(|handle| handle.is_active())
                .map(|handle| handle.device.refresh_size())
                .transpose()?
                .unwrap_or(0);
            member.size_bytes = member.size_bytes.max(size - size % 4096);
        }
        let volume = &next.volumes[io.ordinal];
        let block = io.geometry.logical_block_size.into();
        let relayout = target::plan(&next, volume, target, block)?;
        let size = relayout.next.size_bytes();
        if size < used_bytes {
            return Err(Error::invalid(format!(
                "the volume would have {size} bytes, and {used_bytes} are in use by the file \
                 system, which does not shrink"
            )));
        }
        if relayout.next == volume.layout {
            let (group, size) = (&config.name, volume.size_bytes());
            let message = format!(
                "group {group}: nothing would change: the volume is laid out so, with {size} \
                 bytes, and its members have no more room"
            );
            return Err(Error::invalid(message));
        }
        let planned = VolumeConfig { relayout: Some(relayout), ..volume.clone() };
        let (now, then) = (io.geometry, geometry(&planned, &handles, self.group_state.read_only));
        let kept = then.logical_block_size <= now.logical_block_size
            && then.buffer_align <= now.buffer_align
            // Later openings are told what holds then.
            && (then.untorn_unit >= now.untorn_unit || Arc::strong_count(io) == 1)
            && (now.volatile_cache || !then.volatile_cache)
            && !then.read_only;
        if !kept {
            return Err(Error::invalid(format!(
                "the new layout would not keep what the volume promised its users when it was \
                 opened: blocks of {} bytes, {} bytes untorn, {}: take members and a unit that do",
                now.logical_block_size,
                now.untorn_unit,
                if now.volatile_cache { "a write cache that is flushed" } else { "no write cache" },
            )));
        }
        next.volumes[io.ordinal] = planned;
        if let Some(fault) = next.fault() {
            return Err(Error::invalid(fault));
        }
        // Too many members for a label are found before anything begins.
        Label { member: next.members[0].id, config: next.clone() }.encode()?;
        Ok(next)
    }

    /// Lets a volume take another shape while no operation is under way in it.
    fn reshape(
        &self,
        io: &VolumeIo,
        mut make: impl FnMut(&LayoutEpoch) -> Result<LayoutEpoch>,
    ) -> Result<()> {
        for _ in 0..TRIES {
            if io.epochs.replace(DRAIN_TIMEOUT, &mut make)? {
                return Ok(());
            }
            // Queues may have writes under way that their owners do not look after now.
            io.epochs.peek().parities().for_each(|parity| io.help(parity));
            std::thread::sleep(DRAIN_TIMEOUT);
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("volume {}: operations under way do not end: try again", io.name),
        ))
    }

    /// Changes a relayout without moving anything.
    pub fn turn_relayout(
        &self,
        change: &dyn Fn(&mut VolumeConfig, &mut RateEstimate),
    ) -> Result<()> {
        let _members_stay = self.maintenance.lock();
        let config = self.group_state.config();
        let Some(ordinal) = config.volumes.iter().position(|volume| volume.relayout.is_some())
        else {
            return Err(Error::invalid(format!("group {}: no relayout is under way", config.name)));
        };
        let mut volume = config.volumes[ordinal].clone();
        change(&mut volume, &mut self.moving.lock());
        self.group_state.change(|config| {
            config.volumes[ordinal] = volume.clone();
            Ok(())
        })?;
        self.ios[ordinal].epochs.change(|epoch| {
            let swapped = |relayout: Option<&Relayout>| {
                relayout.is_some_and(|relayout| relayout.logs_swapped)
            };
            if swapped(epoch.relayout.as_ref()) != swapped(volume.relayout.as_ref()) {
                std::mem::swap(&mut epoch.parity, &mut epoch.next_parity);
            }
            (epoch.layout, epoch.relayout) = (volume.layout, volume.relayout);
        });
        self.group_state.waker.wake();
        Ok(())
    }

    /// Takes one step, in pieces of at most `chunk_bytes`, or ends what is over.
    pub fn step(&self, io: &VolumeIo, chunk_bytes: u64) -> Result<Stepped> {
        let compares = self.compares(io);
        if compares && !self.compare_step(io, chunk_bytes)? {
            return Ok(Stepped::Busy);
        }
        let _members_stay = self.maintenance.lock();
        self.moving.lock().begin();
        let before = io.epochs.peek().relayout.as_ref().map(|relayout| relayout.position);
        let stepped = io.relayout_step(chunk_bytes, compares)?;
        match stepped {
            Stepped::Over => self.end(io)?,
            // A step into the scratch area is half of one.
            Stepped::Moved(bytes)
                if io.epochs.peek().relayout.as_ref().map(|relayout| relayout.position)
                    != before =>
            {
                self.moving.lock().note(bytes);
            }
            Stepped::Idle => self.moving.lock().end(),
            Stepped::Moved(_) | Stepped::Busy => {}
        }
        Ok(stepped)
    }

    /// Forgets the layout that nothing lives in any more.
    fn end(&self, io: &VolumeIo) -> Result<()> {
        let ordinal = io.ordinal;
        self.reshape(io, |epoch| {
            let config = self.group_state.config();
            let mut volume = config.volumes[ordinal].clone();
            if let Some(relayout) = volume.relayout.take() {
                volume.layout = relayout.next;
            }
            let mut shaped = LayoutEpoch::new(&volume, io.geometry.logical_block_size.into());
            if let Some(old) = epoch.redundancy.as_ref().filter(|_| volume.is_redundant()) {
                let new =
                    Redundancy::new(config.id, ordinal, shaped.size_bytes, volume.region_bytes);
                new.take_over(old);
                // A member that is not up to date was never given what the volume did not have when
                // the member came.
                let stale = shaped
                    .members
                    .iter()
                    .any(|member| config.members[*member].state == MemberState::Stale);
                new.doubt_from(epoch.size_bytes, if stale { UNSYNCED | BEHIND } else { UNSYNCED });
                shaped.redundancy = Some(Arc::new(new));
            }
            io.write_whole_log(&shaped)?;
            // Its log goes to where that of the only layout lies. Nothing is under way, and after
            // this no log names anything.
            shaped = with_parity(shaped, config.id, ordinal);
            epoch.parities().try_for_each(|parity| io.checkpoint_parity(parity))?;
            shaped.parity.iter().try_for_each(|parity| io.begin_parity(parity))?;
            self.group_state.change(|config| {
                config.volumes[ordinal] = volume.clone();
                config.scrub.iter_mut().for_each(ScrubSchedule::restart);
                config.drop_findings();
                Ok(())
            })?;
            Ok(shaped)
        })?;
        self.moving.lock().end();
        *io.relayout_step_state.lock() = RelayoutStepState::default();
        tracing::info!(volume = io.name, "the relayout is over");
        Ok(())
    }
}

impl VolumeIo {
    /// Writes all of the dirty region log of a space to its members.
    fn write_whole_log(&self, epoch: &LayoutEpoch) -> Result<()> {
        let Some(redundancy) = &epoch.redundancy else { return Ok(()) };
        let log = redundancy.log.lock();
        Ok(self.write_log(epoch, &log, &log.pages(), true)?)
    }
}
