//! An open group: import, what runs in the background, and the close that leaves nothing in doubt.
//!
//! ```text
//!   labels ──assemble()──► who is here, who came back, who is missing
//!     import()   labels durable: in use ─► dirty region logs joined ─► crash? their regions are unsynced ─► volumes usable at once
//!     background unsynced and behind regions, spares, clean-up          (background.rs)
//!     close      flush ─► logs emptied ─► labels durable: clean
//! ```

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use block::{BlockDevice, Geometry};
use parking_lot::Mutex;

use crate::arrival::Arrival;
use crate::assemble::{Assembly, Found, assemble};
use crate::buffers::Buffers;
use crate::core::{Core, Redundancy};
use crate::drl::Drl;
use crate::estimate::Estimate;
use crate::live::Live;
use crate::membership::Which;
use crate::meter::VolumeMeter;
use crate::parallel::Lanes;
use crate::patrol::Bench;
use crate::regions::{BEHIND, Regions, UNSYNCED};
use crate::shared::{Lives, Shared};
use crate::space::{Space, Spaces};
use crate::throttle::{FOREGROUND_PERCENT_MIN, Throttle};
use crate::{Config, Error, ErrorKind, Label, Layout, MemberState, MemberStatistics, PlexStatistics, Result, Role, VolumeConfig, VolumeStatistics};

/// How to open a group.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// Writes nothing to any member.
    pub read_only: bool,
    /// Opens the group although members are missing, as long as the others hold everything. Those that are missing count as failed from then on.
    pub degraded: bool,
    /// Runs a thread that resynchronises, rebuilds and tidies up. Without it, that happens when regions are used and when it is asked for.
    pub background: bool,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self { read_only: false, degraded: false, background: true }
    }
}

/// How far the members are from holding the same everywhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SyncProgress {
    /// Bytes that are still to be compared or copied.
    pub pending_bytes: u64,
    /// Bytes of all volumes with more than one copy.
    pub total_bytes: u64,
    /// Bytes per second of late; `None` where nothing is pending, nothing was copied yet, or no thread copies.
    pub bytes_per_second: Option<u64>,
    /// How long the rest takes at that rate, in seconds.
    pub seconds_left: Option<u64>,
}

/// How far work in the background holds those up who use the volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreground {
    /// What the slowest of 100 reads, writes or flushes may take, in hundredths of what it takes while nothing is copied; [`FOREGROUND_UNLIMITED`](crate::FOREGROUND_UNLIMITED): anything.
    pub limit_percent: u16,
    /// What it took of late; `None` while nothing is copied, or nobody uses the volumes.
    pub found_percent: Option<u32>,
}

/// An open group. Cheap to clone; it is closed, and its members are free, when the last clone and the last of its volumes are gone.
#[derive(Debug, Clone)]
pub struct Group {
    pub(crate) open: Arc<Closer>,
}

/// A handle that does not keep the group open.
#[derive(Debug, Clone)]
pub struct WeakGroup {
    open: std::sync::Weak<Closer>,
}

impl WeakGroup {
    /// Returns the group while anybody else keeps it open.
    #[must_use]
    pub fn upgrade(&self) -> Option<Group> {
        self.open.upgrade().map(|open| Group { open })
    }
}

/// Ends the background thread and closes the group: when it is asked to, or when the last user goes.
#[derive(Debug)]
pub(crate) struct Closer {
    pub inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// A leaf lock but for the closing itself.
    closed: Mutex<bool>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub shared: Arc<Shared>,
    pub cores: Vec<Arc<Core>>,
    /// Rank 0: held while members take each other's places and while it is found that one is up to date.
    pub maintenance: Mutex<()>,
    /// A leaf lock.
    pub estimate: Mutex<Estimate>,
    /// As that, of a relayout. A leaf lock.
    pub moving: Mutex<Estimate>,
    pub throttle: Throttle,
    pub bench: Bench,
    /// How many members had been found overwritten when those that are being brought up to date were last told to copy again.
    pub copied_under: AtomicU64,
}

impl Group {
    /// Opens a group on devices that the caller has claimed, in any order.
    ///
    /// # Errors
    /// `NotAMember`, `NewerFormat`, `Corrupt`, `Foreign`, `Duplicated`, `Outdated`, `Diverged`, `Missing`: each names the device or the member,
    /// and nothing was written. `Broken` when what is there does not hold everything, `Device` when a member fails meanwhile.
    pub fn import(devices: &[Arc<dyn BlockDevice>], options: &ImportOptions) -> Result<Self> {
        let (assembly, devices) = assembled(devices, options)?;
        let inner = Arc::new(open(&assembly, &devices, options)?);
        if !options.read_only {
            let older = assembly.older.iter().filter_map(|index| Some((*index, &devices[assembly.places[*index]?])));
            older.into_iter().try_for_each(|(index, device)| inner.take_back(index, device))?;
        }
        let background = options.background && !options.read_only;
        let thread = if background { Some(crate::background::start(&inner)?) } else { None };
        Ok(Self { open: Arc::new(Closer { inner, thread: Mutex::new(thread), closed: Mutex::new(false) }) })
    }

    /// Says by their labels alone why a group could not be opened with these devices. They may be in use, and nothing is written.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn check(devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
        assembled(devices, &ImportOptions::default()).map(drop)
    }

    /// Returns what each member failed with since the group was opened, as far as it did; also of one that was overwritten and without which the group
    /// is not whole.
    #[must_use]
    pub fn failures(&self) -> Vec<Option<String>> {
        self.open
            .inner
            .shared
            .lives()
            .iter()
            .map(|live| live.as_ref().filter(|live| live.is_failed() || live.is_overwritten())?.failure().map(str::to_owned))
            .collect()
    }

    /// Returns the volume with a role as a block device; `None` where the group has none.
    #[must_use]
    pub fn volume(&self, role: Role) -> Option<Arc<dyn BlockDevice>> {
        let core = self.open.inner.cores.iter().find(|core| core.role == role)?;
        Some(Arc::new(crate::device::VolumeDevice { core: Arc::clone(core), open: Arc::clone(&self.open) }))
    }

    /// Returns a handle that does not keep the group open.
    #[must_use]
    pub fn downgrade(&self) -> WeakGroup {
        WeakGroup { open: Arc::downgrade(&self.open) }
    }

    /// Returns the configuration as it is now.
    #[must_use]
    pub fn config(&self) -> Config {
        self.open.inner.shared.config()
    }

    /// Returns what each member did, by its index; `None` for one that is away.
    #[must_use]
    pub fn statistics(&self) -> Vec<Option<MemberStatistics>> {
        self.open.inner.shared.lives().iter().map(|live| live.as_ref().map(|live| live.statistics())).collect()
    }

    /// Returns what the volume with a role did; `None` where the group has none.
    #[must_use]
    pub fn volume_statistics(&self, role: Role) -> Option<VolumeStatistics> {
        self.open.inner.cores.iter().find(|core| core.role == role).map(|core| core.meter.statistics())
    }

    /// Returns what the plexes of the volume with a role did, each by its members; nothing where the group has none.
    #[must_use]
    pub fn plex_statistics(&self, role: Role) -> Vec<PlexStatistics> {
        let Some(core) = self.open.inner.cores.iter().find(|core| core.role == role) else { return Vec::new() };
        let told = self.statistics();
        let plex = |members: Vec<usize>| {
            let own = members.iter().filter_map(|member| told.get(*member)?.as_ref());
            PlexStatistics { statistics: own.fold(MemberStatistics::default(), |sum, one| sum.plus(one)), members }
        };
        core.spaces.peek().layout.plexes().into_iter().map(plex).collect()
    }

    /// Sets the statistics to zero.
    pub fn reset_statistics(&self) {
        self.open.inner.cores.iter().for_each(|core| core.meter.reset());
        self.open.inner.shared.lives().iter().flatten().for_each(|live| live.reset_statistics());
    }

    /// Returns how far resynchronisation and rebuild are.
    #[must_use]
    pub fn progress(&self) -> SyncProgress {
        let mut progress = SyncProgress::default();
        for core in &self.open.inner.cores {
            let space = core.spaces.peek();
            if let Some(redundancy) = &space.redundancy {
                progress.total_bytes += space.size_bytes;
                progress.pending_bytes += core.pending() * redundancy.regions.range(0).1;
            }
        }
        let estimate = self.open.inner.estimate.lock();
        progress.bytes_per_second = estimate.bytes_per_second().filter(|_| progress.pending_bytes > 0);
        progress.seconds_left = estimate.seconds_left(progress.pending_bytes);
        progress
    }

    /// Returns how far work in the background may hold those up who use the volumes, and how far it does.
    #[must_use]
    pub fn foreground(&self) -> Foreground {
        let limit_percent = self.config().foreground_percent;
        Foreground { limit_percent, found_percent: self.open.inner.throttle.found_percent() }
    }

    /// States what resynchronisation, rebuild, relayout and scrub leave those who use the volumes: the p99 of their reads, writes and flushes stays within so
    /// many hundredths of what it is while nothing is copied, as far as the slowest pace there is allows. Durable; counts from now on.
    ///
    /// # Errors
    /// `Invalid` below 105, which nothing could keep; `Broken`, `Device`.
    pub fn set_foreground(&self, limit_percent: u16) -> Result<()> {
        if limit_percent < FOREGROUND_PERCENT_MIN {
            let (given, least) = (f64::from(limit_percent) / 100.0, f64::from(FOREGROUND_PERCENT_MIN) / 100.0);
            return Err(Error::invalid(format!("a factor of {given} for the foreground cannot be kept: take {least} or more")));
        }
        self.open.inner.shared.change(|config| {
            config.foreground_percent = limit_percent;
            Ok(())
        })?;
        self.open.inner.throttle.set(limit_percent);
        Ok(())
    }

    /// Brings everything up to date from the calling thread: regions in doubt, members that came back, spares for members that failed.
    ///
    /// # Errors
    /// `Broken` or `Device` when some of what is to be copied cannot be read: everything else was copied.
    pub fn sync(&self) -> Result<()> {
        let inner = &self.open.inner;
        inner.check_members()?;
        loop {
            inner.relocate()?;
            let synced: Vec<_> = inner.cores.iter().map(|core| core.sync_all()).collect();
            if inner.finish()? {
                return Ok(synced.into_iter().collect::<block::Result<()>>()?);
            }
        }
    }

    /// Takes regions out of the dirty region log that were not written to since the last call. The background thread calls it now and then.
    ///
    /// # Errors
    /// `Broken` or `Device`.
    pub fn clean_up(&self) -> Result<u64> {
        self.open.inner.clean_up()
    }

    /// Closes the group while clones of it or its volumes are still about, in threads that are just ending: nothing is left in doubt, and the
    /// labels say so. The caller has made sure that nobody writes any more; whoever does so later is refused. Does nothing the second time.
    ///
    /// # Errors
    /// `Broken` or `Device`: the next import compares what was dirty.
    pub fn close(&self) -> Result<()> {
        self.open.close()
    }

    /// Adds a member that waits for another to fail.
    ///
    /// # Errors
    /// `Foreign` when the device is a member already, `Invalid` when the group is full or the device does not fit, `Device`.
    pub fn add_spare<'a>(&self, device: impl Into<Arrival<'a>>) -> Result<()> {
        self.open.inner.add(device.into(), MemberState::Spare)?;
        self.open.inner.shared.bell.ring();
        Ok(())
    }

    /// Lets go of a member that holds no data: a spare, or one whose place another took. Its label is erased where it is there.
    ///
    /// # Errors
    /// `Invalid` when it holds data, `NotFound` when there is no such member.
    pub fn remove(&self, member: impl Into<Which>) -> Result<()> {
        self.open.inner.remove(member.into())
    }

    /// Moves a member that lies on others back to a device of its own: the one that it was on before, or any other. What it holds is copied from
    /// the others, and the room is free again.
    ///
    /// # Errors
    /// `Invalid` when it does not lie on others, the device does not fit, or the others do not hold everything; `NotFound`, `Foreign`, `Device`.
    pub fn unrelocate<'a>(&self, member: impl Into<Which>, device: impl Into<Arrival<'a>>) -> Result<()> {
        self.open.inner.unrelocate(member.into(), device.into())?;
        self.open.inner.shared.bell.ring();
        Ok(())
    }

    /// Puts a new device in the place of a member, which leaves; what it holds is copied from the others. Once that is durable the label of the one
    /// that left is erased, where its device is open and answers.
    ///
    /// # Errors
    /// `NotFound` when there is no such member, `Invalid` when the device does not fit or the others do not hold everything; `Foreign`, `Device`.
    pub fn replace<'a>(&self, member: impl Into<Which>, device: impl Into<Arrival<'a>>) -> Result<()> {
        self.open.inner.replace(member.into(), device.into())?;
        self.open.inner.shared.bell.ring();
        Ok(())
    }
}

impl Closer {
    fn close(&self) -> Result<()> {
        let mut closed = self.closed.lock();
        if std::mem::replace(&mut *closed, true) {
            return Ok(());
        }
        self.inner.shared.bell.state.lock().stop = true;
        self.inner.shared.bell.wake.notify_one();
        // Whoever judged for a scrub may have been the last user: then the thread closes the group itself, and ends.
        let own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if let Some(thread) = self.thread.lock().take().filter(|thread| !own(thread)) {
            // It reports its own failures; one that panicked leaves its regions to the next import.
            let _ended = thread.join();
        }
        let result = self.inner.close();
        self.inner.cores.iter().for_each(|core| core.latch_closed());
        result
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(group = self.inner.shared.name, %error, "the group was not closed in order; the next import compares what was dirty");
        }
    }
}

impl Inner {
    /// Takes regions out of the dirty region logs that were not written to since the last call. Not while a member takes another's place: what it
    /// needs is in the logs before it comes.
    pub fn clean_up(&self) -> Result<u64> {
        let _members_stay = self.maintenance.lock();
        self.cores.iter().try_fold(0, |sum, core| Ok(sum + core.clean_up()?))
    }

    /// Leaves nothing in doubt, where that is possible.
    fn close(&self) -> Result<()> {
        if self.shared.read_only {
            return Ok(());
        }
        let _members_stay = self.maintenance.lock();
        self.check_members()?;
        for core in &self.cores {
            core.flush()?;
            // The first look finds regions touched, the second takes them.
            core.clean_up()?;
            core.clean_up()?;
        }
        if self.cores.iter().any(|core| core.count_with(UNSYNCED) > 0) {
            return Ok(());
        }
        self.shared.change(|config| {
            config.clean = true;
            Ok(())
        })?;
        // And once more, so that the labels say that all members had this: what any of them was before is an older copy from now on.
        self.shared.change(|_| Ok(()))?;
        self.check_members()
    }
}

/// Puts together what the labels say, and returns it with the devices and those that lie on them.
fn assembled(devices: &[Arc<dyn BlockDevice>], options: &ImportOptions) -> Result<(Assembly, Vec<Arc<dyn BlockDevice>>)> {
    let mut found = Vec::new();
    for device in devices {
        let label = Label::read(&**device)?;
        found.push(Found { name: device.name().to_owned(), size_bytes: device.size_bytes(), label });
    }
    let (mut assembly, mut devices) = (assemble(&found)?, devices.to_vec());
    let guests = crate::guest::find(&assembly, &devices);
    if !guests.is_empty() {
        for (window, guest) in guests {
            devices.push(window);
            found.push(guest);
        }
        assembly = assemble(&found)?;
    }
    refuse_missing(&assembly, options)?;
    Ok((assembly, devices))
}

fn refuse_missing(assembly: &Assembly, options: &ImportOptions) -> Result<()> {
    if assembly.missing.is_empty() && assembly.config.survives_without(&[]) {
        return Ok(());
    }
    let config = &assembly.config;
    let names = |wanted: &dyn Fn(usize) -> bool| {
        let wanted = (0..config.members.len()).filter(|index| wanted(*index)).map(|index| &config.members[index]);
        wanted.map(|member| format!("{} ({})", member.path, member.id)).collect::<Vec<_>>().join(", ")
    };
    let missing = names(&|index| assembly.missing.contains(&index));
    if !config.survives_without(&assembly.missing) {
        let gone = names(&|index| {
            assembly.missing.contains(&index) || config.members[index].state != MemberState::Active && config.volume_on(index).is_some()
        });
        let older: String = assembly.outdated.iter().map(|(_, what)| format!("; {what}")).collect();
        let message = format!("group {} is not whole without {gone}{older}: nothing was written; connect one of them and import again", config.name);
        return Err(Error::new(ErrorKind::Broken, message));
    }
    if options.degraded {
        return Ok(());
    }
    let (group, older) = (&config.name, assembly.outdated.iter().map(|(_, what)| what.as_str()).collect::<Vec<_>>().join(", and "));
    if !older.is_empty() {
        let message = format!(
            "group {group}: {missing}: {older}; the others hold everything: connect the right device, or import degraded to go on without it; \
             an import after that fills the older copy anew"
        );
        return Err(Error::new(ErrorKind::Outdated, message));
    }
    let (were, them) = if assembly.missing.len() == 1 { ("was", "it") } else { ("were", "them") };
    let message = format!(
        "group {group}: {missing} {were} not found, and the others hold everything: connect {them}, or import degraded to go on without {them}"
    );
    Err(Error::new(ErrorKind::Missing, message))
}

/// Opens what was assembled.
fn open(assembly: &Assembly, devices: &[Arc<dyn BlockDevice>], options: &ImportOptions) -> Result<Inner> {
    let was_clean = assembly.config.clean;
    let mut config = assembly.config.clone();
    let device = |index: usize| assembly.places[index].map(|at| &devices[at]);
    let mut lives: Lives = Vec::new();
    for (index, member) in config.members.iter().enumerate() {
        let away = member.state == MemberState::Failed && !assembly.returned.contains(&index);
        let live = device(index).filter(|_| !away).map(|device| Live::new(member.id, Arc::clone(device), member.state));
        live.iter().for_each(|live| live.learn_label());
        lives.push(live);
    }
    if !options.read_only && !was_clean {
        crate::parity::refuse_unheard(&config, &lives)?;
    }
    if !options.read_only {
        // A group that goes on without members leaps ahead of what they could have seen of an update that was under way when they left.
        config.event += if assembly.missing.is_empty() { 0 } else { 15 };
    }
    let shared = Arc::new(Shared::new(config, lives, options.read_only));
    if !options.read_only {
        shared.change(|config| {
            config.clean = false;
            assembly.missing.iter().for_each(|index| config.set_state(*index, MemberState::Failed));
            assembly.returned.iter().for_each(|index| config.set_state(*index, MemberState::Stale));
            for (index, member) in config.members.iter_mut().enumerate() {
                if let Some(device) = device(index).filter(|_| member.guest.is_none()) {
                    device.name().clone_into(&mut member.path);
                }
            }
            Ok(())
        })?;
    }
    let config = shared.config();
    let cores = config.volumes.iter().enumerate().map(|(ordinal, volume)| open_volume(&shared, &config, ordinal, volume, was_clean));
    let cores = cores.collect::<Result<Vec<_>>>()?;
    let throttle = Throttle::new(config.foreground_percent);
    Ok(Inner {
        shared,
        cores,
        maintenance: Mutex::new(()),
        estimate: Mutex::default(),
        moving: Mutex::default(),
        throttle,
        bench: Bench::default(),
        copied_under: AtomicU64::new(0),
    })
}

fn open_volume(shared: &Arc<Shared>, config: &Config, ordinal: usize, volume: &VolumeConfig, was_clean: bool) -> Result<Arc<Core>> {
    let lives = shared.lives();
    let geometry = geometry(volume, &lives, shared.read_only);
    let block = u64::from(geometry.logical_block_size);
    if volume.layouts().filter_map(Layout::unit_bytes).any(|unit| !unit.is_multiple_of(block)) {
        let message = format!("group {}: a member has blocks of {block} bytes now, of which the stripe unit is no multiple", config.name);
        return Err(Error::invalid(message));
    }
    let space = Space::new(volume, block);
    if !space.is_walkable() {
        let message = format!("group {}: the relayout in the label would overwrite what it still needs: the label is damaged", config.name);
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let name = if volume.role == Role::Data { config.name.clone() } else { format!("{}/{}", config.name, volume.role.name()) };
    let core = Core {
        shared: Arc::clone(shared),
        role: volume.role,
        ordinal,
        name,
        geometry,
        untorn_unit: geometry.untorn_unit.into(),
        spaces: Spaces::new(crate::relayout::with_parity(space, config.id, ordinal)),
        settled: was_clean || !shared.read_only,
        doubt: OnceLock::new(),
        lanes: Lanes::default(),
        meter: VolumeMeter::default(),
        buffers: Buffers::default(),
        travel: Mutex::default(),
        latched: false.into(),
        latch: Mutex::new(None),
    };
    if shared.read_only && !was_clean {
        core.look_at_parity(&core.spaces, config, volume)?;
    }
    if volume.is_redundant() && !shared.read_only {
        let redundancy = Arc::new(redundancy(config, volume, &core, &lives, was_clean)?);
        core.spaces.change(|space| space.redundancy = Some(Arc::clone(&redundancy)));
        for parity in core.spaces.peek().parities() {
            core.recover_parity(parity)?;
        }
        let log = redundancy.log.lock();
        core.write_log(&core.spaces.get(), &log, &log.pages(), true)?;
    }
    Ok(Arc::new(core))
}

/// Joins the members' dirty region logs and says what follows from them.
fn redundancy(config: &Config, volume: &VolumeConfig, core: &Core, lives: &Lives, was_clean: bool) -> Result<Redundancy> {
    let space = core.spaces.get();
    let regions = Regions::new(space.size_bytes, volume.region_bytes);
    let mut log = Drl::new(config.id, core.ordinal, volume.size_bytes().div_ceil(volume.region_bytes));
    for live in space.members.iter().filter_map(|member| lives[*member].as_ref()) {
        if let Err(error) = log.absorb(&*live.device) {
            // Its bits are durable on the others too.
            core.shared.fail(live, &error)?;
        }
    }
    let behind = space.members.iter().any(|member| config.members[*member].state == MemberState::Stale);
    let flags = if was_clean { 0 } else { UNSYNCED } | if behind { BEHIND } else { 0 };
    for region in log.dirty().filter(|region| *region < regions.count()) {
        regions.set_dirty(region);
        regions.set(region, flags);
    }
    Ok(Redundancy { regions, log: Mutex::new(log) })
}

/// Combines what the members state: the strictest of everything, in all layouts that the volume is in.
pub(crate) fn geometry(volume: &VolumeConfig, lives: &Lives, read_only: bool) -> Geometry {
    let all: Vec<Geometry> = volume.members().into_iter().filter_map(|member| lives[member].as_ref()).map(|live| live.device.geometry()).collect();
    let most = |field: &dyn Fn(&Geometry) -> u32| all.iter().map(field).max().unwrap_or(512);
    let logical_block_size = most(&|geometry| geometry.logical_block_size);
    // A write that an untorn unit holds stays on one member, at an offset that is a multiple of its length there too.
    let untorn = u64::from(all.iter().map(|geometry| geometry.untorn_unit).min().unwrap_or(512));
    let untorn =
        volume.layouts().map(|layout| if matches!(layout, Layout::Raid5(_)) { 0 } else { kept_whole(layout).min(untorn) }).min().unwrap_or(0);
    Geometry {
        logical_block_size,
        physical_block_size: most(&|geometry| geometry.physical_block_size),
        buffer_align: most(&|geometry| geometry.buffer_align),
        // A row that is written whole is not logged, so nothing is promised of it when a member is lost in the same moment.
        untorn_unit: (untorn as u32).max(logical_block_size),
        volatile_cache: all.iter().any(|geometry| geometry.volatile_cache),
        read_only: read_only || all.iter().any(|geometry| geometry.read_only),
    }
}

/// Returns the largest length of which every aligned range lies on one member, aligned there too.
fn kept_whole(layout: &Layout) -> u64 {
    let by_unit = layout.unit_bytes().map_or(1 << 31, |unit| 1 << unit.trailing_zeros().min(31));
    let power = |bytes: u64| 1_u64 << bytes.trailing_zeros().min(31);
    let by_starts = layout.extents().iter().map(|extent| power(extent.start)).min().unwrap_or(512);
    let lengths = if matches!(layout, Layout::Concat(_)) { layout.extents() } else { Vec::new() };
    lengths.iter().map(|extent| power(extent.len)).min().unwrap_or(u64::MAX).min(by_unit).min(by_starts)
}
