//! Beginning, pausing, turning round and ending a relayout; members that bring room.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Relayout;
use super::rows::with_parity;
use super::shift::Stepped;
use super::target::{self, Target};
use crate::arrival::Arrival;
use crate::core::{Core, Redundancy};
use crate::drl::Drl;
use crate::group::{Inner, geometry};
use crate::regions::{BEHIND, Regions, UNSYNCED};
use crate::space::Space;
use crate::{Config, Error, ErrorKind, Group, Id, Label, MemberState, Result, Role, ScrubSchedule, VolumeConfig};

/// How long everybody waits for those who are under way when a volume takes another shape, and how often that is tried.
const PATIENCE: Duration = Duration::from_millis(20);
const TRIES: usize = 250;

/// How a relayout goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayoutState {
    /// It moves, or will when the group is open.
    Running,
    /// It waits until somebody lets it go on.
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

impl Group {
    /// Adds a member that brings room: relayouts and growth may use it.
    ///
    /// # Errors
    /// `Foreign` when the device is a member already, `Invalid` when the group is full or the device too small, `Device`.
    pub fn add_member<'a>(&self, device: impl Into<Arrival<'a>>) -> Result<()> {
        self.open.inner.add(device.into(), MemberState::Active)
    }

    /// Lets a volume become what is asked for, while it is in use; the background thread moves it, or [`run_relayout`](Self::run_relayout).
    /// What needs no move is done at once. Of the volume, the first `used_bytes` are kept in any case; that they are all that is used must hold until this
    /// returns: then a smaller volume has its size.
    ///
    /// # Errors
    /// `Invalid` with the reason when that cannot be, `Busy` when operations under way do not end, `Broken`, `Device`.
    pub fn relayout(&self, role: Role, target: &Target, used_bytes: u64) -> Result<()> {
        self.open.inner.begin(role, &|_, _| Ok((*target, used_bytes)))?;
        self.open.inner.shared.bell.ring();
        Ok(())
    }

    /// Makes a volume larger: of a size, or as large as its members let it be. A concatenated one takes members without data behind what it has.
    ///
    /// # Errors
    /// As [`relayout`](Self::relayout).
    pub fn grow(&self, role: Role, size_bytes: Option<u64>) -> Result<()> {
        self.open.inner.begin(role, &|config, volume| Ok((Target::to_grow(config, volume, size_bytes)?, volume.size_bytes())))?;
        self.open.inner.shared.bell.ring();
        Ok(())
    }

    /// Lets a relayout wait, or go on.
    ///
    /// # Errors
    /// `Invalid` when there is none, `Broken`, `Device`.
    pub fn pause_relayout(&self, pause: bool) -> Result<()> {
        self.open.inner.turn_relayout(&|volume, _| volume.relayout.iter_mut().for_each(|relayout| relayout.paused = pause))
    }

    /// Turns a relayout round: what has moved goes back, and where the rest would have gone is forgotten in the end.
    ///
    /// # Errors
    /// As [`pause_relayout`](Self::pause_relayout).
    pub fn reverse_relayout(&self) -> Result<()> {
        self.open.inner.turn_relayout(&|volume, estimate| {
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
        let inner = &self.open.inner;
        let config = inner.shared.config();
        let (ordinal, volume) = config.volumes.iter().enumerate().find(|(_, volume)| volume.relayout.is_some())?;
        let relayout = volume.relayout.as_ref()?;
        let trouble = inner.cores[ordinal].travel.lock().trouble.clone();
        let state = match trouble {
            _ if relayout.paused => RelayoutState::Paused,
            Some(trouble) => RelayoutState::Failing(trouble),
            None => RelayoutState::Running,
        };
        let (moved_bytes, total_bytes) = (relayout.moved_bytes(&volume.layout), volume.size_bytes());
        let seconds_left = inner.moving.lock().seconds_left(total_bytes - moved_bytes);
        Some(RelayoutProgress { role: volume.role, state, moved_bytes, total_bytes, seconds_left })
    }

    /// Takes steps of the relayout from the calling thread until it is over or paused, or `go_on` says no; that is asked after each.
    ///
    /// # Errors
    /// What a step fails with; it can be taken again.
    pub fn run_relayout(&self, go_on: &mut dyn FnMut(&RelayoutProgress) -> bool) -> Result<()> {
        let inner = &self.open.inner;
        while let Some(ordinal) = inner.shared.config().volumes.iter().position(|volume| volume.relayout.is_some()) {
            let stepped = inner.step(&inner.cores[ordinal], u64::MAX)?;
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

/// Says what a volume is to become, as it is now, and how many bytes of it are kept.
type Wish<'a> = &'a dyn Fn(&Config, &VolumeConfig) -> Result<(Target, u64)>;

fn no_volume(config: &Config, role: Role) -> Error {
    Error::invalid(format!("group {} has no volume for its {}", config.name, role.name()))
}

impl Inner {
    /// Begins what is made of the configuration as it is then, and keeps so many bytes.
    fn begin(&self, role: Role, wish: Wish<'_>) -> Result<()> {
        let _members_stay = self.maintenance.lock();
        let config = self.shared.config();
        let ordinal = config.volumes.iter().position(|volume| volume.role == role);
        let ordinal = ordinal.ok_or_else(|| no_volume(&config, role))?;
        self.refuse_begin(&config, ordinal)?;
        let core = &self.cores[ordinal];
        let (target, used_bytes) = wish(&config, &config.volumes[ordinal])?;
        let next = self.planned(&config, core, &target, used_bytes)?;
        let volume = &next.volumes[ordinal];
        self.reshape(core, |space| {
            let mut shaped = Space::new(volume, core.geometry.logical_block_size.into());
            shaped.redundancy = space.redundancy.clone();
            shaped = with_parity(shaped, config.id, ordinal);
            shaped.parity = space.parity.clone();
            if volume.is_redundant() && shaped.redundancy.is_none() {
                shaped.redundancy = Some(Arc::new(Redundancy::new(config.id, ordinal, &shaped, volume.region_bytes)));
            }
            core.write_whole_log(&shaped)?;
            shaped.next_parity.iter().try_for_each(|parity| core.begin_parity(parity))?;
            self.shared.change(|config| {
                config.volumes[ordinal] = volume.clone();
                config.members.iter_mut().zip(&next.members).for_each(|(member, next)| member.size_bytes = next.size_bytes);
                Ok(())
            })?;
            Ok(shaped)
        })?;
        let then = geometry(volume, &self.shared.lives(), self.shared.read_only);
        core.untorn_unit.fetch_min(then.untorn_unit, std::sync::atomic::Ordering::Relaxed);
        if core.spaces.peek().relayout.as_ref().is_some_and(|relayout| relayout.is_over(&volume.layout)) {
            return self.end(core);
        }
        tracing::info!(volume = core.name, to = volume.relayout.as_ref().map(|relayout| relayout.next.name()), "the relayout begins");
        Ok(())
    }

    fn refuse_begin(&self, config: &Config, ordinal: usize) -> Result<()> {
        let group = &config.name;
        if self.shared.read_only {
            return Err(Error::invalid(format!("group {group} is open for reading only")));
        }
        if config.has_relayout() {
            return Err(Error::invalid(format!("group {group}: a relayout is under way: wait for it, or turn it round with --reverse")));
        }
        if let Some(guest) = config.members.iter().find(|member| member.guest.is_some()) {
            let path = &guest.path;
            return Err(Error::invalid(format!(
                "group {group}: {path} lies in free space of others: move it back with 'bedplate volume unrelocate' first"
            )));
        }
        let away = config.volumes[ordinal].members().into_iter().find(|index| config.members[*index].state != MemberState::Active);
        away.map_or(Ok(()), |index| {
            let (path, state) = (&config.members[index].path, config.members[index].state.name());
            Err(Error::invalid(format!("group {group}: {path} is {state}: replace it or let it be brought up to date before a relayout")))
        })
    }

    /// Returns the configuration in which the relayout that is asked for begins.
    fn planned(&self, config: &Config, core: &Arc<Core>, target: &Target, used_bytes: u64) -> Result<Config> {
        let (mut next, lives, block) = (config.clone(), self.shared.lives(), u64::from(core.geometry.logical_block_size));
        for (member, live) in next.members.iter_mut().zip(lives.iter()) {
            let size = live.as_ref().filter(|live| live.is_active()).map(|live| live.device.refresh_size()).transpose()?.unwrap_or(0);
            member.size_bytes = member.size_bytes.max(size - size % 4096);
        }
        let volume = &next.volumes[core.ordinal];
        let relayout = target::plan(&next, volume, target, block)?;
        if relayout.next.size_bytes() < used_bytes {
            let size = relayout.next.size_bytes();
            let message = format!("the volume would have {size} bytes, and {used_bytes} are in use by the file system, which does not shrink");
            return Err(Error::invalid(message));
        }
        if relayout.next == volume.layout {
            let (group, size) = (&config.name, volume.size_bytes());
            let message =
                format!("group {group}: nothing would change: the volume is laid out so, with {size} bytes, and its members have no more room");
            return Err(Error::invalid(message));
        }
        let planned = VolumeConfig { relayout: Some(relayout), ..volume.clone() };
        let (now, then) = (core.geometry, geometry(&planned, &lives, self.shared.read_only));
        let kept = then.logical_block_size <= now.logical_block_size
            && then.buffer_align <= now.buffer_align
            // Who opens it later is told what holds then.
            && (then.untorn_unit >= now.untorn_unit || Arc::strong_count(core) == 1)
            && (now.volatile_cache || !then.volatile_cache)
            && !then.read_only;
        if !kept {
            return Err(Error::invalid(format!(
                "the new layout would not keep what the volume promised its users when it was opened: blocks of {} bytes, {} bytes untorn, {}: \
                 take members and a unit that do",
                now.logical_block_size,
                now.untorn_unit,
                if now.volatile_cache { "a write cache that is flushed" } else { "no write cache" },
            )));
        }
        next.volumes[core.ordinal] = planned;
        if let Some(fault) = next.fault() {
            return Err(Error::invalid(fault));
        }
        // Too many members for a label are found before anything begins.
        Label { member: next.members[0].id, config: next.clone() }.encode()?;
        Ok(next)
    }

    /// Lets a volume take another shape while nobody is under way in it.
    fn reshape(&self, core: &Core, mut make: impl FnMut(&Space) -> Result<Space>) -> Result<()> {
        for _ in 0..TRIES {
            if core.spaces.replace(PATIENCE, &mut make)? {
                return Ok(());
            }
            // Queues may have writes under way that nobody looks after now.
            core.spaces.peek().parities().for_each(|parity| core.help(parity));
            std::thread::sleep(PATIENCE);
        }
        Err(Error::new(ErrorKind::Busy, format!("volume {}: operations under way do not end: try again", core.name)))
    }

    /// Changes a relayout without moving anything.
    fn turn_relayout(&self, change: &dyn Fn(&mut VolumeConfig, &mut crate::estimate::Estimate)) -> Result<()> {
        let _members_stay = self.maintenance.lock();
        let config = self.shared.config();
        let Some(ordinal) = config.volumes.iter().position(|volume| volume.relayout.is_some()) else {
            return Err(Error::invalid(format!("group {}: no relayout is under way", config.name)));
        };
        let mut volume = config.volumes[ordinal].clone();
        change(&mut volume, &mut self.moving.lock());
        self.shared.change(|config| {
            config.volumes[ordinal] = volume.clone();
            Ok(())
        })?;
        self.cores[ordinal].spaces.change(|space| {
            let swapped = |relayout: Option<&Relayout>| relayout.is_some_and(|relayout| relayout.logs_swapped);
            if swapped(space.relayout.as_ref()) != swapped(volume.relayout.as_ref()) {
                std::mem::swap(&mut space.parity, &mut space.next_parity);
            }
            (space.layout, space.relayout) = (volume.layout, volume.relayout);
        });
        self.shared.bell.ring();
        Ok(())
    }

    /// Takes one step, in pieces of at most `chunk_bytes`, or ends what is over.
    pub fn step(&self, core: &Core, chunk_bytes: u64) -> Result<Stepped> {
        let _members_stay = self.maintenance.lock();
        self.moving.lock().begin();
        let before = core.spaces.peek().relayout.as_ref().map(|relayout| relayout.position);
        let stepped = core.relayout_step(chunk_bytes)?;
        match stepped {
            Stepped::Over => self.end(core)?,
            // A step into the scratch area is half of one.
            Stepped::Moved(bytes) if core.spaces.peek().relayout.as_ref().map(|relayout| relayout.position) != before => {
                self.moving.lock().note(bytes);
            }
            Stepped::Idle => self.moving.lock().end(),
            Stepped::Moved(_) | Stepped::Busy => {}
        }
        Ok(stepped)
    }

    /// Forgets the layout that nothing lives in any more.
    fn end(&self, core: &Core) -> Result<()> {
        let ordinal = core.ordinal;
        self.reshape(core, |space| {
            let config = self.shared.config();
            let mut volume = config.volumes[ordinal].clone();
            if let Some(relayout) = volume.relayout.take() {
                volume.layout = relayout.next;
            }
            let mut shaped = Space::new(&volume, core.geometry.logical_block_size.into());
            if let Some(old) = space.redundancy.as_ref().filter(|_| volume.is_redundant()) {
                let new = Redundancy::new(config.id, ordinal, &shaped, volume.region_bytes);
                new.take_over(old);
                // Nobody copied to a member that is not up to date what the volume did not have when it came.
                let stale = shaped.members.iter().any(|member| config.members[*member].state == MemberState::Stale);
                new.doubt_from(space.size_bytes, if stale { UNSYNCED | BEHIND } else { UNSYNCED });
                shaped.redundancy = Some(Arc::new(new));
            }
            core.write_whole_log(&shaped)?;
            // Its log goes to where that of the only layout lies. Nothing is under way, and after this no log names anything.
            shaped = with_parity(shaped, config.id, ordinal);
            space.parities().try_for_each(|parity| core.checkpoint_parity(parity))?;
            shaped.parity.iter().try_for_each(|parity| core.begin_parity(parity))?;
            self.shared.change(|config| {
                config.volumes[ordinal] = volume.clone();
                config.scrub.iter_mut().for_each(ScrubSchedule::restart);
                config.drop_findings();
                Ok(())
            })?;
            Ok(shaped)
        })?;
        self.moving.lock().end();
        *core.travel.lock() = super::shift::Travel::default();
        tracing::info!(volume = core.name, "the relayout is over");
        Ok(())
    }
}

impl Core {
    /// Writes all of the dirty region log of a space to its members.
    fn write_whole_log(&self, space: &Space) -> Result<()> {
        let Some(redundancy) = &space.redundancy else { return Ok(()) };
        let log = redundancy.log.lock();
        Ok(self.write_log(space, &log, &log.pages(), true)?)
    }
}

impl Redundancy {
    fn new(group: Id, ordinal: usize, space: &Space, region_bytes: u64) -> Self {
        let regions = Regions::new(space.size_bytes, region_bytes);
        Self { log: Mutex::new(Drl::new(group, ordinal, regions.count())), regions }
    }

    /// Knows of every region what another knew.
    fn take_over(&self, old: &Self) {
        let count = self.regions.count().min(old.regions.count());
        self.regions.take_over(&old.regions);
        let dirty: Vec<u64> = old.log.lock().dirty().filter(|region| *region < count).collect();
        self.log.lock().change(dirty, true);
    }

    /// What the members held where the volume grew is not the same everywhere: it is made to agree like what a crash left.
    fn doubt_from(&self, size_bytes: u64, doubt: u32) {
        let new = (0..self.regions.count()).filter(|region| self.regions.range(*region).0 + self.regions.range(*region).1 > size_bytes);
        let new: Vec<u64> = new.collect();
        for region in &new {
            self.regions.set_dirty(*region);
            self.regions.set(*region, doubt);
        }
        self.log.lock().change(new, true);
    }
}
