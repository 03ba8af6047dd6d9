//! What a group is: its members and the volumes that lie on them. The same value stands in the label of every member.

use std::collections::HashSet;

use crate::wire::{Fault, Reader, put_text};
use crate::{Concat, Extent, Id, Layout, Mirror, Raid5, Stripe};

/// How many members a group may have.
pub(crate) const MEMBERS_MAX: usize = 128;
/// How many volumes a group may have: data, intent log.
pub(crate) const VOLUMES_MAX: usize = 2;
/// The smallest region of the dirty region log.
pub(crate) const REGION_BYTES_MIN: u64 = 64 << 10;

/// What a group knows of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The member's identity.
    pub id: Id,
    /// Where it was when it was last opened; a hint for finding it and a name for messages.
    pub path: String,
    /// Its size in bytes as far as the group uses it.
    pub size_bytes: u64,
    /// Its state.
    pub state: MemberState,
    /// The event at which it entered that state.
    pub since: u64,
}

/// The state of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// Holds what it should.
    Active,
    /// Failed or was away while the others went on: what it holds is old, and nothing is read from or written to it.
    Failed,
    /// Is back or new: takes writes, is brought up to date, and is not read.
    Stale,
    /// Waits for another member to fail.
    Spare,
}

/// What a volume of a group is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Holds the file system.
    Data,
    /// Holds the file system's intent log.
    Log,
}

/// A volume of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeConfig {
    /// What it is for; a group has one volume a role at most.
    pub role: Role,
    /// The unit of the dirty region log in bytes, a power of two.
    pub region_bytes: u64,
    /// Where its addresses live.
    pub layout: Layout,
}

/// What a group is. Every change of it is a new event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The group's identity.
    pub id: Id,
    /// The group's name.
    pub name: String,
    /// How often the configuration changed.
    pub event: u64,
    /// Whether the group was closed in order: nothing needs to be resynchronised but what failed members missed.
    pub clean: bool,
    /// Where data begins on every member.
    pub data_start: u64,
    /// The members; a member's place here is its index in layouts.
    pub members: Vec<Member>,
    /// The volumes.
    pub volumes: Vec<VolumeConfig>,
}

impl MemberState {
    const ALL: [(Self, u8); 4] = [(Self::Active, 1), (Self::Failed, 2), (Self::Stale, 3), (Self::Spare, 4)];

    /// Returns the word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Failed => "failed",
            Self::Stale => "stale",
            Self::Spare => "spare",
        }
    }
}

impl Role {
    /// Returns the word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Log => "log",
        }
    }
}

impl Config {
    /// Returns the index of a member.
    #[must_use]
    pub fn index_of(&self, id: Id) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }

    /// Returns the volume with a role.
    #[must_use]
    pub fn volume(&self, role: Role) -> Option<&VolumeConfig> {
        self.volumes.iter().find(|volume| volume.role == role)
    }

    /// Moves a member to a state, at the next event.
    pub(crate) fn set_state(&mut self, index: usize, state: MemberState) {
        self.members[index].state = state;
        self.members[index].since = self.event + 1;
    }

    /// Returns whether every byte of every volume has a copy on an active member other than those `lost`.
    pub(crate) fn survives_without(&self, lost: &[usize]) -> bool {
        let good = |member: u16| self.members[usize::from(member)].state == MemberState::Active && !lost.contains(&usize::from(member));
        self.volumes.iter().all(|volume| volume.layout.survives(&good))
    }

    /// Returns the volume that has an extent on a member.
    pub(crate) fn volume_on(&self, index: usize) -> Option<&VolumeConfig> {
        self.volumes.iter().find(|volume| volume.layout.extents().iter().any(|extent| usize::from(extent.member) == index))
    }

    /// Appends the part of the label that all members share.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend((self.members.len() as u16).to_le_bytes());
        out.extend((self.volumes.len() as u16).to_le_bytes());
        out.extend(self.data_start.to_le_bytes());
        put_text(out, &self.name);
        for member in &self.members {
            out.extend(member.id.0);
            out.extend(member.size_bytes.to_le_bytes());
            out.extend(member.since.to_le_bytes());
            out.push(MemberState::ALL.iter().find(|(state, _)| *state == member.state).map_or(0, |(_, code)| *code));
            put_text(out, &member.path);
        }
        for volume in &self.volumes {
            out.push(if volume.role == Role::Data { 1 } else { 2 });
            out.extend(volume.region_bytes.to_le_bytes());
            encode_layout(&volume.layout, out);
        }
    }

    /// Reads what [`encode`](Self::encode) wrote, and believes none of it.
    pub(crate) fn decode(reader: &mut Reader<'_>, id: Id, event: u64, clean: bool) -> Result<Self, Fault> {
        let start = reader.at();
        let (members, volumes) = (reader.u16("the number of members")?, reader.u16("the number of volumes")?);
        if usize::from(members) > MEMBERS_MAX || members == 0 || usize::from(volumes) > VOLUMES_MAX {
            return Err(Fault::new(start, format!("{members} members and {volumes} volumes are not possible")));
        }
        let data_start = reader.u64("the start of data")?;
        let name = reader.text("the name of the group")?;
        let members = (0..members).map(|_| decode_member(reader)).collect::<Result<Vec<_>, _>>()?;
        let volumes = (0..volumes).map(|_| decode_volume(reader)).collect::<Result<Vec<_>, _>>()?;
        let config = Self { id, name, event, clean, data_start, members, volumes };
        config.fault().map_or(Ok(config), |what| Err(Fault::new(start, what)))
    }

    /// Returns what is wrong with the whole.
    pub(crate) fn fault(&self) -> Option<String> {
        let ids: HashSet<Id> = self.members.iter().map(|member| member.id).collect();
        if ids.len() != self.members.len() {
            return Some("two members have the same identity".to_owned());
        }
        if self.volumes.len() == 2 && self.volumes[0].role == self.volumes[1].role {
            return Some("two volumes have the same role".to_owned());
        }
        if self.data_start < crate::label::DATA_START_MIN {
            return Some(format!("data begins at byte {}, within the labels", self.data_start));
        }
        self.volumes.iter().find_map(volume_fault).or_else(|| self.extent_fault())
    }

    fn extent_fault(&self) -> Option<String> {
        let mut extents: Vec<Extent> = self.volumes.iter().flat_map(|volume| volume.layout.extents()).collect();
        for extent in &extents {
            let Some(member) = self.members.get(usize::from(extent.member)) else {
                return Some(format!("an extent lies on member {}, and there are {}", extent.member, self.members.len()));
            };
            let fits = extent.start >= self.data_start && extent.start.checked_add(extent.len).is_some_and(|end| end <= member.size_bytes);
            if !fits || extent.len == 0 {
                return Some(format!("an extent of {} bytes at {} does not lie in the data of member {}", extent.len, extent.start, extent.member));
            }
        }
        extents.sort_unstable_by_key(|extent| (extent.member, extent.start));
        let overlap = extents.windows(2).find(|pair| pair[0].member == pair[1].member && pair[0].start + pair[0].len > pair[1].start);
        overlap.map(|pair| format!("two extents overlap on member {} at byte {}", pair[1].member, pair[1].start))
    }
}

fn volume_fault(volume: &VolumeConfig) -> Option<String> {
    if !volume.region_bytes.is_power_of_two() || volume.region_bytes < REGION_BYTES_MIN {
        return Some(format!("regions of {} bytes are not possible", volume.region_bytes));
    }
    if volume.layout.size_bytes().div_ceil(volume.region_bytes) > crate::drl::REGIONS_MAX {
        return Some(format!("a dirty region log holds {} regions at most", crate::drl::REGIONS_MAX));
    }
    volume.layout.fault()
}

fn decode_member(reader: &mut Reader<'_>) -> Result<Member, Fault> {
    let id = reader.id("the identity of a member")?;
    let size_bytes = reader.u64("the size of a member")?;
    let since = reader.u64("the event of a member")?;
    let at = reader.at();
    let code = reader.u8("the state of a member")?;
    let state = MemberState::ALL.iter().find(|(_, known)| *known == code).map(|(state, _)| *state);
    let state = state.ok_or_else(|| Fault::new(at, format!("{code} is no state of a member")))?;
    Ok(Member { id, size_bytes, since, state, path: reader.text("the path of a member")? })
}

fn decode_volume(reader: &mut Reader<'_>) -> Result<VolumeConfig, Fault> {
    let at = reader.at();
    let role = match reader.u8("the role of a volume")? {
        1 => Role::Data,
        2 => Role::Log,
        code => return Err(Fault::new(at, format!("{code} is no role of a volume"))),
    };
    Ok(VolumeConfig { role, region_bytes: reader.u64("the region size")?, layout: decode_layout(reader, 0)? })
}

fn encode_layout(layout: &Layout, out: &mut Vec<u8>) {
    let (kind, unit) = match layout {
        Layout::Extent(extent) => {
            out.push(0);
            out.extend(extent.member.to_le_bytes());
            out.extend(extent.start.to_le_bytes());
            return out.extend(extent.len.to_le_bytes());
        }
        Layout::Concat(_) => (1, 0),
        Layout::Stripe(stripe) => (2, stripe.unit_bytes()),
        Layout::Mirror(_) => (3, 0),
        Layout::Raid5(raid5) => (4, raid5.unit_bytes()),
    };
    out.push(kind);
    out.extend((layout.children().len() as u16).to_le_bytes());
    out.extend(unit.to_le_bytes());
    for child in layout.children() {
        encode_layout(child, out);
    }
}

fn decode_layout(reader: &mut Reader<'_>, depth: usize) -> Result<Layout, Fault> {
    let at = reader.at();
    let kind = reader.u8("the kind of a layout")?;
    if kind == 0 {
        let member = reader.u16("the member of an extent")?;
        return Ok(Layout::Extent(Extent { member, start: reader.u64("the start of an extent")?, len: reader.u64("the length of an extent")? }));
    }
    let (count, unit) = (reader.u16("the width of a layout")?, reader.u64("a stripe unit")?);
    if !(1..=4).contains(&kind) || count == 0 || depth >= crate::layout::DEPTH_MAX || matches!(kind, 2 | 4) == (unit == 0) {
        return Err(Fault::new(at, format!("a layout of kind {kind}, {count} parts and unit {unit} is not possible here")));
    }
    let children = (0..count).map(|_| decode_layout(reader, depth + 1)).collect::<Result<Vec<_>, _>>()?;
    Ok(match kind {
        1 => Layout::Concat(Concat::new(children)),
        2 => Layout::Stripe(Stripe::new(unit, children)),
        3 => Layout::Mirror(Mirror::new(children)),
        _ => Layout::Raid5(Raid5::new(unit, children)),
    })
}
