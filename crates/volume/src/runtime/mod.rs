//! What an open group keeps, and how it is opened and closed.

mod arbiters;
mod arrival;
mod compare;
mod create;
mod membership;
mod scrub;
mod split;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bedplate_block::sync::{Mutex, rank};
use bedplate_block::{BlockDevice, Geometry};

pub use arbiters::ArbiterProvider;
pub(crate) use arbiters::ArbiterSlot;
pub use arrival::Arrival;
pub(crate) use arrival::refuse_foreign;
pub use create::{MEMBER_BYTES_MIN, NewGroup, create};
pub(crate) use create::{check_name, create_named};
pub(crate) use membership::let_go;
use split::label_half;
pub(crate) use split::written_regions;

use crate::estimate::RateEstimate;
use crate::group::{Assembly, Found, GroupState, Handles, MemberHandle, assemble};
use crate::io::raid5::{refuse_unreadable_log, with_parity};
use crate::io::{Buffers, ChosenBlocks, EpochTable, Lanes, LayoutEpoch, VolumeIo};
use crate::layout::rows_from_start;
use crate::meter::VolumeMeter;
use crate::redundancy::{BEHIND, DIRTY, Drl, Redundancy, Regions, UNSYNCED};
use crate::throttle::Throttle;
use crate::{
    Config, Error, ErrorKind, Label, Layout, MemberState, Result, Role, Split, VolumeConfig,
};

/// How to open a group.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// Writes nothing to any member.
    pub read_only: bool,
    /// Opens the group although members are missing, as long as the others hold everything. Those
    /// that are missing count as failed from then on.
    pub degraded: bool,
    /// Runs a thread that resynchronises, rebuilds and tidies up. Without it, that happens when
    /// regions are used and when it is asked for.
    pub background: bool,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self { read_only: false, degraded: false, background: true }
    }
}

#[derive(Debug)]
pub(crate) struct GroupRuntime {
    pub group_state: Arc<GroupState>,
    pub ios: Vec<Arc<VolumeIo>>,
    /// Rank G0: held while members take each other's places and while it is found that one is up to
    /// date.
    pub maintenance: Mutex<(), { rank::MAINTENANCE }>,
    /// A leaf lock.
    pub estimate: Mutex<RateEstimate, { rank::VOLUME_LEAF }>,
    /// As that, of a relayout. A leaf lock.
    pub moving: Mutex<RateEstimate, { rank::VOLUME_LEAF }>,
    pub throttle: Throttle,
    pub arbiters: ArbiterSlot,
    /// How many members had been found overwritten when those that are being brought up to date
    /// were last told to copy again.
    pub copied_under: AtomicU64,
}

impl GroupRuntime {
    /// Takes regions out of the dirty region logs that were not written to since the last call. Not
    /// while a member takes another's place: what it needs is in the logs before it comes.
    pub fn clean_up(&self) -> Result<u64> {
        let _members_stay = self.maintenance.lock();
        self.ios.iter().try_fold(0, |sum, io| Ok(sum + io.clean_up()?))
    }

    /// Leaves nothing in doubt, where that is possible.
    pub fn close(&self) -> Result<()> {
        if self.group_state.read_only {
            return Ok(());
        }
        let _members_stay = self.maintenance.lock();
        self.check_members()?;
        for io in &self.ios {
            io.flush()?;
            // The first look finds regions touched, the second takes them.
            io.clean_up()?;
            io.clean_up()?;
        }
        if self.ios.iter().any(|io| io.count_with(UNSYNCED) > 0) {
            return Ok(());
        }
        self.group_state.change(|config| {
            config.clean = true;
            Ok(())
        })?;
        // And once more, so that the labels say that all members had this: what any of them was
        // before is an older copy from now on.
        self.group_state.change(|_| Ok(()))?;
        self.check_members()
    }
}

impl GroupRuntime {
    pub fn check_members(&self) -> crate::Result<()> {
        let checked: Vec<bedplate_block::Result<()>> =
            self.ios.iter().map(|io| io.check_members(&io.epochs.peek())).collect();
        let without_data =
            |index: usize| !self.ios.iter().any(|io| io.epochs.peek().members.contains(&index));
        for (handle, error) in self.group_state.find_overwritten(&without_data) {
            self.group_state.fail(&handle, &error)?;
        }
        Ok(checked.into_iter().collect::<bedplate_block::Result<()>>()?)
    }

    /// Has everything copied again to members that are being brought up to date, if a member was
    /// found overwritten that it may have been copied from. Returns whether it has. The caller
    /// keeps members from coming meanwhile.
    pub fn copy_again(&self) -> bool {
        let found = self.group_state.overwritten_count();
        if self.copied_under.swap(found, Ordering::AcqRel) == found {
            return false;
        }
        let config = self.group_state.config();
        for epoch in self.ios.iter().map(|io| io.epochs.peek()) {
            let Some(redundancy) = &epoch.redundancy else { continue };
            if epoch
                .members
                .iter()
                .any(|member| config.members[*member].state == MemberState::Stale)
            {
                // What a member misses is in the log until it is up to date.
                let regions = &redundancy.regions;
                (0..regions.count())
                    .filter(|region| regions.has(*region, DIRTY))
                    .for_each(|region| regions.set(region, BEHIND));
            }
        }
        true
    }
}

/// Puts together what the labels say, and returns it with the devices and those that lie on them.
pub(crate) fn assembled(
    devices: &[Arc<dyn BlockDevice>],
    options: &ImportOptions,
) -> Result<(Assembly, Vec<Arc<dyn BlockDevice>>)> {
    let mut found = Vec::new();
    for device in devices {
        let label = Label::read(&**device)?;
        found.push(Found {
            name: device.name().to_owned(),
            size_bytes: device.size_bytes(),
            label,
        });
    }
    take_in_halves(&mut found);
    let (mut assembly, mut devices) = (assemble(&found)?, devices.to_vec());
    let relocated_members = crate::group::find(&assembly, &devices);
    if !relocated_members.is_empty() {
        for (window, relocated) in relocated_members {
            devices.push(window);
            found.push(relocated);
        }
        assembly = assemble(&found)?;
    }
    refuse_missing(&assembly, options)?;
    Ok((assembly, devices))
}

/// Lets the labels of a half be those of the kept one, where that takes its members in.
fn take_in_halves(found: &mut [Found]) {
    let kept = found
        .iter()
        .map(|device| &device.label.config)
        .filter(|config| config.split.as_ref().is_some_and(|split| split.joins))
        .max_by_key(|config| config.event)
        .cloned();
    let Some(kept) = kept else { return };
    for device in found {
        if let Some(label) = device.label.joined_to(&kept) {
            device.label = label;
        }
    }
}

fn refuse_missing(assembly: &Assembly, options: &ImportOptions) -> Result<()> {
    if assembly.missing.is_empty() && assembly.config.survives_without(&[]) {
        return Ok(());
    }
    let config = &assembly.config;
    let names = |wanted: &dyn Fn(usize) -> bool| {
        let wanted = (0..config.members.len())
            .filter(|index| wanted(*index))
            .map(|index| &config.members[index]);
        wanted
            .map(|member| format!("{} ({})", member.path, member.id))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let missing = names(&|index| assembly.missing.contains(&index));
    if !config.survives_without(&assembly.missing) {
        let gone = names(&|index| {
            assembly.missing.contains(&index)
                || config.members[index].state != MemberState::Active
                    && config.volume_on(index).is_some()
        });
        let older: String = assembly.outdated.iter().map(|(_, what)| format!("; {what}")).collect();
        let message = format!(
            "group {} is not whole without {gone}{older}: nothing was written; connect one of them \
             and import again",
            config.name
        );
        return Err(Error::new(ErrorKind::Broken, message));
    }
    if options.degraded {
        return Ok(());
    }
    let (group, older) = (
        &config.name,
        assembly.outdated.iter().map(|(_, what)| what.as_str()).collect::<Vec<_>>().join(", and "),
    );
    if !older.is_empty() {
        let message = format!(
            "group {group}: {missing}: {older}; the others hold everything: connect the right \
             device, or import degraded to go on without it; an import after that fills the older \
             copy again"
        );
        return Err(Error::new(ErrorKind::Outdated, message));
    }
    let (were, them) = if assembly.missing.len() == 1 { ("was", "it") } else { ("were", "them") };
    let message = format!(
        "group {group}: {missing} {were} not found, and the others hold everything: connect \
         {them}, or import degraded to go on without {them}"
    );
    Err(Error::new(ErrorKind::Missing, message))
}

/// Opens what was assembled.
pub(crate) fn open(
    assembly: &Assembly,
    devices: &[Arc<dyn BlockDevice>],
    options: &ImportOptions,
) -> Result<GroupRuntime> {
    let was_clean = assembly.config.clean;
    let mut config = assembly.config.clone();
    let device = |index: usize| assembly.places[index].map(|at| &devices[at]);
    let mut handles: Handles = Vec::new();
    for (index, member) in config.members.iter().enumerate() {
        let away = member.state == MemberState::Failed && !assembly.returned.contains(&index);
        let handle = device(index)
            .filter(|_| !away)
            .map(|device| MemberHandle::new(member.id, Arc::clone(device), member.state));
        handle.iter().for_each(|handle| handle.learn_label());
        handles.push(handle);
    }
    if !options.read_only && !was_clean {
        refuse_unreadable_log(&config, &handles)?;
    }
    if !options.read_only {
        // A group that goes on without members leaps ahead of what they could have seen of an
        // update that was under way when they left.
        config.event += if assembly.missing.is_empty() { 0 } else { 15 };
    }
    let group_state = Arc::new(GroupState::new(config, handles, options.read_only));
    if !options.read_only {
        group_state.change(|config| {
            config.clean = false;
            assembly.missing.iter().for_each(|index| config.set_state(*index, MemberState::Failed));
            assembly.returned.iter().for_each(|index| config.set_state(*index, MemberState::Stale));
            for (index, member) in config.members.iter_mut().enumerate() {
                if let Some(device) = device(index).filter(|_| member.relocated.is_none()) {
                    device.name().clone_into(&mut member.path);
                }
            }
            Ok(())
        })?;
    }
    let config = group_state.config();
    if let Some(split) = config.split.as_ref().filter(|_| !options.read_only) {
        end_parting(assembly, devices, split);
    }
    let ios =
        config.volumes.iter().enumerate().map(|(ordinal, volume)| {
            open_volume(&group_state, &config, ordinal, volume, was_clean)
        });
    let ios = ios.collect::<Result<Vec<_>>>()?;
    let throttle = Throttle::new(config.foreground_percent);
    Ok(GroupRuntime {
        group_state,
        ios,
        maintenance: Mutex::new(()),
        estimate: Mutex::default(),
        moving: Mutex::default(),
        throttle,
        arbiters: ArbiterSlot::default(),
        copied_under: AtomicU64::new(0),
    })
}

/// Gives the devices of a half the labels that they were about to get when the power went. One that
/// fails keeps its own, and has no place in the group.
fn end_parting(assembly: &Assembly, devices: &[Arc<dyn BlockDevice>], split: &Split) {
    for (_, at) in &assembly.parting {
        if let Err(error) = label_half(&*devices[*at], split) {
            let (half, device) = (&split.name, devices[*at].name());
            tracing::warn!(group = assembly.config.name, half, device, %error,
                "a device of the half that was split off has not its label yet: import the group again");
        }
    }
}

/// Returns the layout of a volume as its label has it, if the members can have it.
fn first_epoch(config: &Config, volume: &VolumeConfig, block: u64) -> Result<LayoutEpoch> {
    if volume.layouts().filter_map(Layout::unit_bytes).any(|unit| !unit.is_multiple_of(block)) {
        let message = format!(
            "group {}: a member has blocks of {block} bytes now, of which the stripe unit is no \
             multiple",
            config.name
        );
        return Err(Error::invalid(message));
    }
    let epoch = LayoutEpoch::new(volume, block);
    if !epoch.is_walkable() {
        let message = format!(
            "group {}: the relayout in the label would overwrite what it still needs: the label is \
             damaged",
            config.name
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    Ok(epoch)
}

fn open_volume(
    group_state: &Arc<GroupState>,
    config: &Config,
    ordinal: usize,
    volume: &VolumeConfig,
    was_clean: bool,
) -> Result<Arc<VolumeIo>> {
    let handles = group_state.handles();
    let geometry = geometry(volume, &handles, group_state.read_only);
    let epoch = first_epoch(config, volume, geometry.logical_block_size.into())?;
    let name = if volume.role == Role::Data {
        config.name.clone()
    } else {
        format!("{}/{}", config.name, volume.role.name())
    };
    let io = VolumeIo {
        group_state: Arc::clone(group_state),
        role: volume.role,
        ordinal,
        name,
        geometry,
        untorn_unit: geometry.untorn_unit.into(),
        epochs: EpochTable::new(with_parity(epoch, config.id, ordinal)),
        may_choose: was_clean || !group_state.read_only,
        held: 0.into(),
        chosen: ChosenBlocks::default(),
        uncertain_rows: OnceLock::new(),
        lanes: Lanes::default(),
        meter: VolumeMeter::default(),
        buffers: Buffers::default(),
        relayout_step_state: Mutex::default(),
        keeps_all: false.into(),
        latched: false.into(),
        latch: Mutex::new(None),
    };
    if group_state.read_only && !was_clean {
        io.show_parity_log(&io.epochs, config, volume)?;
    }
    if volume.is_redundant() && !group_state.read_only {
        let redundancy = Arc::new(redundancy(config, volume, &io, &handles, was_clean)?);
        io.epochs.change(|epoch| epoch.redundancy = Some(Arc::clone(&redundancy)));
        for parity in io.epochs.peek().parities() {
            io.recover_parity(parity)?;
        }
        let log = redundancy.log.lock();
        io.write_log(&io.epochs.get(), &log, &log.pages(), true)?;
    }
    Ok(Arc::new(io))
}

/// Joins the members' dirty region logs and says what follows from them.
fn redundancy(
    config: &Config,
    volume: &VolumeConfig,
    io: &VolumeIo,
    handles: &Handles,
    was_clean: bool,
) -> Result<Redundancy> {
    let epoch = io.epochs.get();
    let regions = Regions::new(epoch.size_bytes, volume.region_bytes);
    let mut log =
        Drl::new(config.id, io.ordinal, volume.size_bytes().div_ceil(volume.region_bytes));
    for handle in epoch.members.iter().filter_map(|member| handles[*member].as_ref()) {
        if let Err(error) = log.absorb(&*handle.device) {
            // Its bits are durable on the others too.
            io.group_state.fail(handle, &error)?;
        }
    }
    let behind =
        epoch.members.iter().any(|member| config.members[*member].state == MemberState::Stale);
    let flags = if was_clean { 0 } else { UNSYNCED } | if behind { BEHIND } else { 0 };
    for region in log.dirty().filter(|region| *region < regions.count()) {
        regions.set_dirty(region);
        regions.set(region, flags);
    }
    Ok(Redundancy { regions, log: Mutex::new(log) })
}

/// Combines what the members state: the strictest of everything, in all layouts that the volume is
/// in.
pub(crate) fn geometry(volume: &VolumeConfig, handles: &Handles, read_only: bool) -> Geometry {
    let all: Vec<Geometry> = volume
        .members()
        .into_iter()
        .filter_map(|member| handles[member].as_ref())
        .map(|handle| handle.device.geometry())
        .collect();
    let most = |field: &dyn Fn(&Geometry) -> u32| all.iter().map(field).max().unwrap_or(512);
    let logical_block_size = most(&|geometry| geometry.logical_block_size);
    // A write that an untorn unit holds stays on one member, at an offset that is a multiple of its
    // length there too.
    let untorn = u64::from(all.iter().map(|geometry| geometry.untorn_unit).min().unwrap_or(512));
    let untorn = volume
        .layouts()
        .map(|layout| if layout.has_parity() { 0 } else { kept_whole(layout).min(untorn) })
        .min()
        .unwrap_or(0);
    Geometry {
        logical_block_size,
        physical_block_size: most(&|geometry| geometry.physical_block_size),
        buffer_align: most(&|geometry| geometry.buffer_align),
        // A row that is written whole is not logged, so nothing is promised of it when a member is
        // lost in the same moment.
        untorn_unit: (untorn as u32).max(logical_block_size),
        // As of now: the epoch in effect says (`VolumeDevice`).
        row_bytes: rows_from_start(&volume.layout),
        volatile_cache: all.iter().any(|geometry| geometry.volatile_cache),
        read_only: read_only || all.iter().any(|geometry| geometry.read_only),
    }
}

/// Returns the largest length of which every aligned range lies on one member, aligned there too.
fn kept_whole(layout: &Layout) -> u64 {
    let by_unit = layout.unit_bytes().map_or(1 << 31, |unit| 1 << unit.trailing_zeros().min(31));
    let power = |bytes: u64| 1_u64 << bytes.trailing_zeros().min(31);
    let by_starts = layout.extents().iter().map(|extent| power(extent.start)).min().unwrap_or(512);
    let lengths = if layout.is_joined() { layout.extents() } else { Vec::new() };
    lengths
        .iter()
        .map(|extent| power(extent.len))
        .min()
        .unwrap_or(u64::MAX)
        .min(by_unit)
        .min(by_starts)
}
