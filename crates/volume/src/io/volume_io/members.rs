//! What a volume says of its members: which addresses lie on which.

use bedplate_block::{MemberMap, MemberName, MemberRange};

use super::{LayoutEpoch, VolumeIo};
use crate::layout::OnMembers;

impl VolumeIo {
    /// Returns which addresses lie on which members. While addresses move between two layouts, each
    /// may lie on any.
    pub fn member_map(&self) -> MemberMap {
        let epoch = self.epochs.peek();
        let names = epoch.members.iter().map(|index| self.member_name(*index)).collect();
        let place = |member: u16| {
            let at = epoch.members.binary_search(&usize::from(member));
            at.expect("a volume knows the members that its layout names")
        };
        let ranges = ranges_of(&epoch)
            .into_iter()
            .map(|range| MemberRange {
                bytes: range.bytes,
                members: range.members.into_iter().map(place).collect(),
            })
            .collect();
        MemberMap { members: names, ranges, is_moving: epoch.relayout.is_some() }
    }

    /// Returns a number that changes with the layout and with the members.
    pub fn member_map_version(&self) -> u64 {
        self.epochs.version() + self.group_state.handles_version()
    }

    /// The name of a member: one that is away is known by the configuration alone.
    fn member_name(&self, index: usize) -> MemberName {
        match &self.group_state.handles()[index] {
            Some(handle) => MemberName { id: handle.id.0, path: handle.name().to_owned() },
            None => {
                let config = self.group_state.config();
                let member = &config.members[index];
                MemberName { id: member.id.0, path: member.path.clone() }
            }
        }
    }
}

fn ranges_of(epoch: &LayoutEpoch) -> Vec<OnMembers> {
    if epoch.relayout.is_some() {
        let all = |index: &usize| u16::try_from(*index).expect("a group has few members");
        let members = epoch.members.iter().map(all).collect();
        return vec![OnMembers { bytes: 0..epoch.size_bytes, members }];
    }
    let mut ranges = epoch.layout.by_member();
    ranges.retain(|range| range.bytes.start < epoch.size_bytes);
    if let Some(last) = ranges.last_mut() {
        last.bytes.end = last.bytes.end.min(epoch.size_bytes);
    }
    ranges
}
