//! Making a group: labels and empty dirty region logs on every member.

use std::sync::Arc;

use bedplate_block::BlockDevice;

use super::arrival::{refuse_foreign, refuse_idle_spare};
use crate::group::{DATA_START_MIN, MEMBERS_MAX, REGION_BYTES_MIN};
use crate::redundancy::{Drl, REGIONS_MAX};
use crate::{
    Arrangement, Config, Error, ErrorKind, Extent, FOREGROUND_PERCENT_DEFAULT, Id, Label, Layout,
    Member, MemberState, Result, Role, VolumeConfig,
};

/// What a new group is made of. The devices are open for writing and claimed.
#[derive(Debug, Clone)]
pub struct NewGroup {
    /// Its name: letters, digits, `-`, `_` and `.`, 1 to 64 of them.
    pub name: String,
    /// How the data members are arranged.
    pub data: Arrangement,
    /// The members of the data volume, in the order of their places.
    pub members: Vec<Arc<dyn BlockDevice>>,
    /// The members of a volume for the intent log; none: the log lies with the data. Two to four
    /// are a mirror.
    pub log_members: Vec<Arc<dyn BlockDevice>>,
    /// Members that wait for another to fail.
    pub spares: Vec<Arc<dyn BlockDevice>>,
    /// The unit in which copies are made to agree after a crash, a power of two from 64 KiB on;
    /// `None`: 1 MiB, more for large volumes.
    pub region_bytes: Option<u64>,
    /// How many bytes at the end of every member volumes leave free, as room for members that fail
    /// when no spare stands in.
    pub reserve_bytes: u64,
    /// Makes members of devices that are members of a group already.
    pub force: bool,
}

/// The fewest bytes that a member has.
pub const MEMBER_BYTES_MIN: u64 = DATA_START_MIN + (1 << 20);
/// The unit of the dirty region log where none is asked for.
const REGION_BYTES_DEFAULT: u64 = 1 << 20;
const _: () = assert!(
    REGION_BYTES_DEFAULT.is_power_of_two()
        && REGION_BYTES_DEFAULT >= crate::group::REGION_BYTES_MIN,
    "a region has a size that a label allows"
);

/// Makes a group and returns its configuration. What the devices held is gone.
///
/// # Errors
/// `Invalid` when the members do not fit together, `Foreign` when one belongs to a group already,
/// `Device`.
pub fn create(new: &NewGroup) -> Result<Config> {
    check_name(&new.name)?;
    create_named(new)
}

/// As [`create`], under any name: that of a volume of a group with many is no group's.
pub(crate) fn create_named(new: &NewGroup) -> Result<Config> {
    let devices: Vec<&Arc<dyn BlockDevice>> =
        new.members.iter().chain(&new.log_members).chain(&new.spares).collect();
    for (at, device) in devices.iter().enumerate() {
        if devices[..at].iter().any(|other| {
            Arc::ptr_eq(other, device)
                || (other.name() == device.name() && device.name().starts_with('/'))
        }) {
            return Err(Error::new(
                ErrorKind::Duplicated,
                format!("{} is named twice", device.name()),
            ));
        }
    }
    for device in &devices {
        if device.geometry().read_only {
            return Err(Error::invalid(format!(
                "{} is read-only and cannot be a member",
                device.name()
            )));
        }
        if !new.force {
            refuse_foreign(device, None)?;
        }
    }
    let config = plan(new, &devices)?;
    for (index, device) in devices.iter().enumerate() {
        label(&config, index, &***device)?;
    }
    Ok(config)
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    let good = (1..=64).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && !name.starts_with(['-', '.']);
    if good {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "{name:?} is no name for a group: take 1 to 64 letters, digits, '-', '_' and '.'"
        )))
    }
}

/// Returns the entry of a new member.
pub(crate) fn member_of(
    device: &dyn BlockDevice,
    state: MemberState,
    since: u64,
) -> Result<Member> {
    let size_bytes = device.size_bytes() - device.size_bytes() % 4096;
    if size_bytes < MEMBER_BYTES_MIN {
        let (name, size_bytes, least) =
            (device.name(), device.size_bytes(), MEMBER_BYTES_MIN >> 20);
        return Err(Error::invalid(format!(
            "{name} has {size_bytes} bytes; a member has at least {least} MiB"
        )));
    }
    Ok(Member {
        id: Id::random(),
        path: device.name().to_owned(),
        size_bytes,
        state,
        since,
        last_event: 0,
        relocated: None,
    })
}

/// Writes empty logs and the label to a member.
pub(crate) fn label(config: &Config, index: usize, device: &dyn BlockDevice) -> Result<()> {
    for (ordinal, volume) in config.volumes.iter().enumerate() {
        let regions = volume.layout.size_bytes().div_ceil(volume.region_bytes);
        let mut log = Drl::new(config.id, ordinal, regions);
        if volume.layout.has_parity() {
            // What the devices held is no parity of anything: every region is in doubt until it has
            // been made to agree.
            log.change(0..regions, true);
        }
        log.write(device, &log.pages())?;
    }
    Label { member: config.members[index].id, config: config.clone() }.write(device)
}

/// Refuses members that leave no room for data.
fn refuse_small(members: &[Member], reserve: u64) -> Result<()> {
    if let Some(small) =
        members.iter().find(|member| member.size_bytes < MEMBER_BYTES_MIN.saturating_add(reserve))
    {
        let (path, size) = (&small.path, small.size_bytes);
        return Err(Error::invalid(format!(
            "{path} has {size} bytes, and with {reserve} in reserve less than 1 MiB is left for \
             data"
        )));
    }
    Ok(())
}

fn plan(new: &NewGroup, devices: &[&Arc<dyn BlockDevice>]) -> Result<Config> {
    if devices.len() > MEMBERS_MAX {
        return Err(Error::invalid(format!(
            "a group has at most {MEMBERS_MAX} members and not {}: their names fill its labels",
            devices.len()
        )));
    }
    let spares_from = new.members.len() + new.log_members.len();
    let state = |index| if index < spares_from { MemberState::Active } else { MemberState::Spare };
    let members = devices
        .iter()
        .enumerate()
        .map(|(index, device)| member_of(&***device, state(index), 1))
        .collect::<Result<Vec<_>>>()?;
    let block = devices
        .iter()
        .map(|device| u64::from(device.geometry().logical_block_size))
        .max()
        .unwrap_or(512);
    let reserve = new.reserve_bytes.next_multiple_of(4096);
    refuse_small(&members[..spares_from], reserve)?;
    let extent = |index: usize| Extent {
        member: index as u16,
        start: DATA_START_MIN,
        len: members[index].size_bytes - DATA_START_MIN - reserve,
    };
    let extents = |range: std::ops::Range<usize>| range.map(extent).collect::<Vec<_>>();
    let mut volumes =
        vec![volume(Role::Data, new, new.data.lay(&extents(0..new.members.len()), block)?)?];
    if !new.log_members.is_empty() {
        let shape =
            if new.log_members.len() == 1 { crate::Shape::Concat } else { crate::Shape::Mirror };
        let layout = Arrangement { shape, ..new.data }
            .lay(&extents(new.members.len()..spares_from), block)?;
        volumes.push(volume(Role::Log, new, layout)?);
    }
    let clean = !volumes.iter().any(|volume| volume.layout.has_parity());
    let config = Config {
        id: Id::random(),
        name: new.name.clone(),
        event: 1,
        common_event: 0,
        clean,
        foreground_percent: FOREGROUND_PERCENT_DEFAULT,
        data_start: DATA_START_MIN,
        reserve_bytes: reserve,
        scrub: None,
        findings: Vec::new(),
        split: None,
        members,
        volumes,
    };
    config.members[spares_from..].iter().try_for_each(|spare| refuse_idle_spare(&config, spare))?;
    config.fault().map_or(Ok(config), |what| Err(Error::invalid(what)))
}

fn volume(role: Role, new: &NewGroup, layout: Layout) -> Result<VolumeConfig> {
    let least = layout.size_bytes().div_ceil(REGIONS_MAX).next_power_of_two();
    let region_bytes = new.region_bytes.unwrap_or(REGION_BYTES_DEFAULT.max(least));
    if !region_bytes.is_power_of_two() || region_bytes < REGION_BYTES_MIN.max(least) {
        let least = REGION_BYTES_MIN.max(least);
        return Err(Error::invalid(format!(
            "regions of {region_bytes} bytes are not possible here: take a power of two from \
             {least} on"
        )));
    }
    Ok(VolumeConfig { role, region_bytes, layout, relayout: None })
}
