//! What a group is: its members and the volumes that lie on them. The same value stands in the
//! label of every member.

use std::collections::HashSet;

use super::findings::ScrubFinding;
use super::relocated::RelocatedMember;
use super::schedule::ScrubSchedule;
use super::split::Split;
use crate::{Extent, Id, Layout, Relayout};

/// How many members a group may have.
pub(crate) const MEMBERS_MAX: usize = 128;
/// How many volumes a group may have: data, intent log.
pub(crate) const VOLUMES_MAX: usize = 2;
/// The roles as labels write them.
pub(crate) const ROLES: [(Role, u8); 2] = [(Role::Data, 1), (Role::Log, 2)];
const _: () = assert!(
    FOREGROUND_PERCENT_MIN > 100
        && FOREGROUND_PERCENT_MIN <= FOREGROUND_PERCENT_DEFAULT
        && FOREGROUND_PERCENT_DEFAULT < FOREGROUND_UNLIMITED,
    "the foreground may become slower, within bounds that are in order"
);

/// The smallest region of the dirty region log.
pub(crate) const REGION_BYTES_MIN: u64 = 64 << 10;

/// The factor in hundredths that counts where none was stated.
pub const FOREGROUND_PERCENT_DEFAULT: u16 = 150;
/// Stands for no limit.
pub const FOREGROUND_UNLIMITED: u16 = u16::MAX;
/// The least factor that may be stated.
pub(crate) const FOREGROUND_PERCENT_MIN: u16 = 105;

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
    /// Of one that failed, the last event that it is known to have had: the dirty region logs name
    /// what it missed after that. 0: not known.
    pub last_event: u64,
    /// The room of other members that it lies in, where it has no device of its own.
    pub relocated: Option<RelocatedMember>,
}

/// The state of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// Holds what it should.
    Active,
    /// Failed or was away while the others went on: what it holds is old, and nothing is read from
    /// or written to it.
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
    /// Where its addresses live; while they move, where they come from.
    pub layout: Layout,
    /// Where they move and how far they are.
    pub relayout: Option<Relayout>,
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
    /// The last event that reached every member that had not failed by then; 0 where that was not
    /// noted.
    pub common_event: u64,
    /// Whether the group was closed in order: nothing needs to be resynchronised but what failed
    /// members missed.
    pub clean: bool,
    /// What the latency of reads, writes and flushes may grow to while members are copied, moved or
    /// compared, in hundredths of what it is without;
    /// [`FOREGROUND_UNLIMITED`](crate::FOREGROUND_UNLIMITED): anything.
    pub foreground_percent: u16,
    /// Where data begins on every member.
    pub data_start: u64,
    /// How many bytes at the end of every member volumes leave free, as room for members that fail.
    pub reserve_bytes: u64,
    /// When copies are compared by themselves.
    pub scrub: Option<ScrubSchedule>,
    /// What the last of them found, and the one that is under way: some places of each.
    pub findings: Vec<ScrubFinding>,
    /// The half of the mirror that was split off, or that this one was split off from.
    pub split: Option<Split>,
    /// The members; a member's place here is its index in layouts.
    pub members: Vec<Member>,
    /// The volumes.
    pub volumes: Vec<VolumeConfig>,
}

impl MemberState {
    pub(super) const ALL: [(Self, u8); 4] =
        [(Self::Active, 1), (Self::Failed, 2), (Self::Stale, 3), (Self::Spare, 4)];

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

impl Member {
    /// Makes an empty place: one from which a member was removed that stands before others with
    /// data, whose index layouts name.
    pub(crate) fn vacant(since: u64) -> Self {
        Self {
            id: Id::random(),
            path: String::new(),
            size_bytes: 0,
            state: MemberState::Failed,
            since,
            last_event: 0,
            relocated: None,
        }
    }

    /// Says whether it is an empty place, which the next member that is added takes.
    #[must_use]
    pub fn is_vacant(&self) -> bool {
        self.state == MemberState::Failed && self.size_bytes == 0 && self.path.is_empty()
    }
}

impl VolumeConfig {
    /// Returns how many addresses the volume has; while they move, as many as both layouts have.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.relayout
            .as_ref()
            .map_or(self.layout.size_bytes(), |relayout| relayout.span_bytes(&self.layout))
    }

    /// Returns the layouts that it may have data on: one, or while its addresses move both and the
    /// scratch area.
    pub(crate) fn layouts(&self) -> impl Iterator<Item = &Layout> {
        std::iter::once(&self.layout)
            .chain(self.relayout.iter().flat_map(|relayout| [&relayout.next, &relayout.scratch]))
    }

    /// Returns the indices of the members that it has extents on, in order.
    pub(crate) fn members(&self) -> Vec<usize> {
        let mut members: Vec<usize> =
            self.layouts().flat_map(Layout::extents).map(|extent| extent.member.into()).collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// Says whether the loss of a member need not be the loss of data, everywhere or in the part
    /// that has more copies.
    pub(crate) fn is_redundant(&self) -> bool {
        self.layout.is_redundant()
            || self.relayout.as_ref().is_some_and(|relayout| relayout.next.is_redundant())
    }

    /// Returns whether every byte has a copy on a member that is `good`: wherever it lives now.
    fn survives(&self, good: &dyn Fn(u16) -> bool) -> bool {
        let Some(relayout) = &self.relayout else { return self.layout.survives(good) };
        let (moved, staged) = (relayout.moved_bytes(&self.layout), relayout.staged_bytes);
        let left = self.size_bytes() - moved - staged;
        // Within a cycle a piece waits there too.
        let staged = if relayout.in_cycles { staged.max(moved.min(left)) } else { staged };
        let parts = [(left, &self.layout), (moved, &relayout.next), (staged, &relayout.scratch)];
        parts.into_iter().all(|(bytes, layout)| bytes == 0 || layout.survives(good))
    }
}

/// What a label's head says of the configuration.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub id: Id,
    pub event: u64,
    pub common_event: u64,
    pub clean: bool,
    pub foreground_percent: u16,
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
        debug_assert!(
            self.common_event <= self.event,
            "I-GRP-1: what all know is no newer than what one knows: {} and {}",
            self.common_event,
            self.event
        );
        let last_event = if state == MemberState::Failed { self.common_event } else { 0 };
        let member = &mut self.members[index];
        (member.state, member.since, member.last_event) = (state, self.event + 1, last_event);
    }

    /// Says in a new event that members have failed. Where one of them is not what was written
    /// there last (`believed` is false), no event of theirs counts.
    pub(crate) fn fail(&mut self, failed: &[usize], common_event: u64, believed: bool) {
        self.event += 1;
        debug_assert!(
            common_event < self.event,
            "I-GRP-1: a failure is a new event: {} after {common_event}",
            self.event
        );
        for index in failed.iter().copied() {
            self.members[index].state = MemberState::Failed;
            (self.members[index].since, self.members[index].last_event) =
                (self.event, common_event);
            if !believed {
                self.forget_last_event(index);
            }
        }
    }

    /// Has the next configuration be newer than one that does not count, though some labels may say
    /// it, and tell that no member was let go after all.
    pub(crate) fn outdate(&mut self, other: &Self) {
        debug_assert!(
            self.event < other.event,
            "I-GRP-1: what was written last is newer: {} after {}",
            other.event,
            self.event
        );
        self.event = other.event;
        self.members
            .iter_mut()
            .filter(|member| other.index_of(member.id).is_none())
            .for_each(|member| member.since = other.event + 1);
    }

    /// Says of a member that failed that nothing which its label may say tells what it holds: if it
    /// comes back all of it is copied.
    pub(crate) fn forget_last_event(&mut self, index: usize) {
        let member = &mut self.members[index];
        assert!(
            member.state == MemberState::Failed,
            "only of a member that failed it is asked what it had"
        );
        member.last_event = member.since;
    }

    /// Returns whether every byte of every volume has a copy on an active member other than those
    /// `lost`.
    pub(crate) fn survives_without(&self, lost: &[usize]) -> bool {
        let lost = self.with_relocated(lost);
        let good = |member: u16| {
            self.members[usize::from(member)].state == MemberState::Active
                && !lost.contains(&usize::from(member))
        };
        self.volumes.iter().all(|volume| volume.survives(&good))
    }

    /// Returns the volume that has an extent on a member, or will.
    #[must_use]
    pub fn volume_on(&self, index: usize) -> Option<&VolumeConfig> {
        self.volumes.iter().find(|volume| volume.members().contains(&index))
    }

    /// Returns how many bytes of a device its volume uses where a member is.
    pub(crate) fn needed_bytes(&self, index: usize) -> u64 {
        let extents =
            self.volumes.iter().flat_map(|volume| volume.layouts().flat_map(Layout::extents));
        extents
            .filter(|extent| usize::from(extent.member) == index)
            .map(|extent| extent.start + extent.len)
            .max()
            .unwrap_or(0)
    }

    /// Returns how many events ago all members that had not failed knew of one; 0 where that is not
    /// known.
    pub(crate) fn events_since_common(&self) -> u32 {
        let since = self.event.checked_sub(self.common_event).filter(|_| self.common_event > 0);
        since.and_then(|since| u32::try_from(since).ok()).unwrap_or(0)
    }

    /// Says whether a volume is between two layouts.
    pub(crate) fn has_relayout(&self) -> bool {
        self.volumes.iter().any(|volume| volume.relayout.is_some())
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
        if self.data_start < super::label::DATA_START_MIN {
            return Some(format!("data begins at byte {}, within the labels", self.data_start));
        }
        self.volumes
            .iter()
            .find_map(volume_fault)
            .or_else(|| self.extent_fault())
            .or_else(|| self.relocated_fault())
            .or_else(|| self.split.as_ref()?.fault(self))
    }

    fn extent_fault(&self) -> Option<String> {
        let all = |layout: fn(&VolumeConfig) -> &Layout| {
            self.volumes.iter().flat_map(|volume| layout(volume).extents()).collect::<Vec<_>>()
        };
        let now = all(|volume| &volume.layout);
        let next = all(|volume| {
            volume.relayout.as_ref().map_or(&volume.layout, |relayout| &relayout.next)
        });
        // Where a volume comes from may be where it goes; another volume may be at neither.
        self.places_fault(now)
            .or_else(|| self.places_fault(next))
            .or_else(|| self.scratch_fault())
            .or_else(|| self.neighbour_fault())
    }

    fn scratch_fault(&self) -> Option<String> {
        let mut members: Vec<u16> = self
            .volumes
            .iter()
            .filter_map(|volume| volume.relayout.as_ref())
            .flat_map(|relayout| relayout.scratch.extents())
            .map(|extent| extent.member)
            .collect();
        members.sort_unstable();
        let twice = members.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let bad = twice
            .or(members.last().copied().filter(|last| usize::from(*last) >= self.members.len()));
        bad.map(|member| {
            format!("a scratch area lies twice on member {member}, or there is no such member")
        })
    }

    fn neighbour_fault(&self) -> Option<String> {
        let [one, two] = &self.volumes[..] else { return None };
        let group_state = one
            .members()
            .into_iter()
            .find(|member| self.has_relayout() && two.members().contains(member));
        group_state.map(|member| {
            format!("two volumes lie on member {member}, and one of them is between two layouts")
        })
    }

    fn places_fault(&self, mut extents: Vec<Extent>) -> Option<String> {
        for extent in &extents {
            let Some(member) = self.members.get(usize::from(extent.member)) else {
                return Some(format!(
                    "an extent lies on member {}, and there are {}",
                    extent.member,
                    self.members.len()
                ));
            };
            let fits = extent.start >= self.data_start
                && extent.start.checked_add(extent.len).is_some_and(|end| end <= member.size_bytes);
            if !fits || extent.len == 0 {
                return Some(format!(
                    "an extent of {} bytes at {} does not lie in the data of member {}",
                    extent.len, extent.start, extent.member
                ));
            }
        }
        extents.sort_unstable_by_key(|extent| (extent.member, extent.start));
        let overlap = extents.windows(2).find(|pair| {
            pair[0].member == pair[1].member && pair[0].start + pair[0].len > pair[1].start
        });
        overlap.map(|pair| {
            format!("two extents overlap on member {} at byte {}", pair[1].member, pair[1].start)
        })
    }
}

fn volume_fault(volume: &VolumeConfig) -> Option<String> {
    if !volume.region_bytes.is_power_of_two() || volume.region_bytes < REGION_BYTES_MIN {
        return Some(format!("regions of {} bytes are not possible", volume.region_bytes));
    }
    let sizes = std::iter::once(&volume.layout)
        .chain(volume.relayout.iter().map(|relayout| &relayout.next))
        .map(Layout::size_bytes);
    if sizes.max().unwrap_or(0).div_ceil(volume.region_bytes) > crate::redundancy::REGIONS_MAX {
        let (regions, region) = (crate::redundancy::REGIONS_MAX, volume.region_bytes);
        return Some(format!(
            "a dirty region log holds {regions} regions at most, here of {region} bytes"
        ));
    }
    volume
        .layout
        .fault()
        .or_else(|| volume.relayout.as_ref().and_then(|relayout| relayout.fault(&volume.layout)))
}
