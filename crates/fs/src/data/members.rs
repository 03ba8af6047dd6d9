//! The members of the group below the volume, by which files are placed.

use std::ops::Range;
use std::path::Path;

use bedplate_block::{MemberMap, MemberName, Part};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::engine::Engine;
use crate::inode::Places;
use crate::{Error, ErrorKind, Result};
use bedplate_store::{BlockNo, Run};

/// A member of the group below the volume, as a placement names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementMember {
    /// Its identity.
    pub id: String,
    /// Where it is; `None`: it has left the volume.
    pub path: Option<String>,
}

/// Returns an identity as people write it.
pub(super) fn told_id(id: &[u8; 16]) -> String {
    Uuid::from_bytes(*id).to_string()
}

/// Whether a text names a member: its identity, its path or that of the device that it is a part of,
/// or the last part of either.
fn is_named(member: &MemberName, text: &str) -> bool {
    let path = Path::new(&member.path);
    let device = Part::device_of(path);
    let is_path =
        |path: &Path| path.as_os_str() == text || path.file_name().is_some_and(|last| last == text);
    told_id(&member.id) == text || is_path(path) || is_path(&device)
}

fn paths(members: &[&MemberName]) -> String {
    members.iter().map(|member| member.path.as_str()).collect::<Vec<_>>().join(", ")
}

impl Engine {
    /// Returns which addresses of the volume lie on which members.
    pub(super) fn member_map(&self) -> MemberMap {
        self.device().member_map()
    }

    /// Returns a number that changes with what [`member_map`](Self::member_map) returns.
    #[inline]
    pub(super) fn member_map_version(&self) -> u64 {
        self.device().member_map_version()
    }

    /// Returns where what is to lie on some members goes.
    pub(super) fn places_on(&self, wanted: Vec<[u8; 16]>) -> Places {
        // Asked for first: what changes after it is seen by the next look.
        let version = self.member_map_version();
        let map = self.member_map();
        let runs = if map.is_moving { Vec::new() } else { self.runs_on(&map, &wanted) };
        Places { wanted, version, runs }
    }

    /// The blocks that lie on some members and on no other.
    fn runs_on(&self, map: &MemberMap, wanted: &[[u8; 16]]) -> Vec<Run> {
        let block = u64::from(self.block_size());
        let whole = |bytes: Range<u64>| {
            let (from, to) = (bytes.start.div_ceil(block), bytes.end / block);
            (from < to).then(|| Run { start: BlockNo(from), blocks: to - from })
        };
        map.only_on(|member| wanted.contains(&member.id)).into_iter().filter_map(whole).collect()
    }

    /// Returns the identities of members that people name, on which files can be placed.
    ///
    /// # Errors
    /// `Invalid`, with what can be named instead; `Busy` while a relayout moves addresses.
    pub(crate) fn members_named(&self, names: &[String]) -> Result<Vec<[u8; 16]>> {
        let map = self.member_map();
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        let all: Vec<&MemberName> = map.members.iter().collect();
        if all.len() < 2 {
            return invalid(
                "the volume lies on one device: files are placed on members of a group of several \
                 (bedplate volume create)"
                    .to_owned(),
            );
        }
        let mut wanted = Vec::new();
        for name in names {
            let found: Vec<&&MemberName> = all.iter().filter(|one| is_named(one, name)).collect();
            match found[..] {
                [one] if !wanted.contains(&one.id) => wanted.push(one.id),
                [_] => {}
                [] => {
                    return invalid(format!(
                        "'{name}' is no member that holds a part of the volume: these are {}",
                        paths(&all)
                    ));
                }
                _ => {
                    return invalid(format!(
                        "'{name}' names several members: give the whole path of one of {}",
                        paths(&all)
                    ));
                }
            }
        }
        self.need_range_on(&map, &wanted)?;
        Ok(wanted)
    }

    /// Refuses members on which nothing can be placed.
    fn need_range_on(&self, map: &MemberMap, wanted: &[[u8; 16]]) -> Result<()> {
        if map.is_moving {
            let message = "a relayout moves the volume's addresses from member to member: place \
                           files once it has ended (bedplate volume wait)";
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let end = self.superblock().size_bytes / u64::from(self.block_size());
        let refusal = if wanted.is_empty() || wanted.len() == map.members.len() {
            "name some of the volume's members, not none and not all of them: a file that may lie \
             on all of them needs no placement"
                .to_owned()
        } else {
            let runs = self.runs_on(map, wanted);
            if runs.iter().any(|run| run.start.0 < end) {
                return Ok(());
            }
            if runs.is_empty() { no_range(map) } else { beyond_end() }
        };
        Err(Error::new(ErrorKind::Invalid, refusal))
    }
}

/// Says why no part of a volume lies on some members alone, and what to do instead.
fn no_range(map: &MemberMap) -> String {
    let mut sets: Vec<&[usize]> = map.ranges.iter().map(|range| &range.members[..]).collect();
    sets.sort_unstable();
    sets.dedup();
    let told =
        |set: &[usize]| paths(&set.iter().map(|member| &map.members[*member]).collect::<Vec<_>>());
    match sets[..] {
        [_] => {
            "every part of the volume lies on all of its members, as rows of a stripe or RAID-5 \
                or as copies: make another volume of the group for these files (bedplate volume \
                add-volume), or a concatenation of this one (bedplate volume relayout)"
                .to_owned()
        }
        _ => format!(
            "no part of the volume lies on these members alone: name all members of a part, which \
             are {}",
            sets.iter().map(|set| told(set)).collect::<Vec<_>>().join("; or ")
        ),
    }
}

fn beyond_end() -> String {
    "the file system does not reach to these members: let it grow first (bedplate grow)".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_block::MemberRange;

    fn map(ranges: &[&[usize]]) -> MemberMap {
        let members = (0..3).map(|n| MemberName { id: [n; 16], path: format!("/dev/sd{n}") });
        let range = |(at, members): (usize, &&[usize])| {
            let start = at as u64 * 100;
            MemberRange { bytes: start..start + 100, members: members.to_vec() }
        };
        let ranges = ranges.iter().enumerate().map(range).collect();
        MemberMap { members: members.collect(), ranges, is_moving: false }
    }

    #[test]
    fn a_member_is_named_by_identity_path_or_the_end_of_that() {
        let member = &map(&[]).members[1];
        let id = "01010101-0101-0101-0101-010101010101";
        assert!([id, "/dev/sd1", "sd1"].iter().all(|text| is_named(member, text)));
        assert!(["", "sd", "/dev", "dev/sd1", "sd2"].iter().all(|text| !is_named(member, text)));
        let part = MemberName { id: [7; 16], path: "/dev/sdb#4M+10M".to_owned() };
        let names = ["/dev/sdb#4M+10M", "sdb#4M+10M", "/dev/sdb", "sdb"];
        assert!(names.iter().all(|text| is_named(&part, text)));
    }

    /// S-616: what cannot be chosen is said with what can.
    #[test]
    fn s_616_a_refusal_says_what_to_do_instead() {
        let rows = no_range(&map(&[&[0, 1, 2]]));
        assert!(rows.contains("stripe or RAID-5") && rows.contains("add-volume"), "{rows}");
        let mirrors = no_range(&map(&[&[0, 1], &[2], &[0, 1]]));
        assert!(mirrors.ends_with("which are /dev/sd0, /dev/sd1; or /dev/sd2"), "{mirrors}");
    }
}
