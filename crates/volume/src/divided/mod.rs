//! Groups with many volumes: each volume is a group of its own on parts of the members, and a table
//! on every member says which parts they are.
//!
//! ```text
//!   0          table A          where a group with one volume has its label
//!   1 MiB      table B
//!   4 MiB      parts            each begins with the label of its volume, and is all that the volume sees of the member
//! ```
//! So every volume has its own labels, events, logs and users: a process that has one open shares
//! nothing with the users of the others. The table is the directory alone. An update goes to all
//! members, copy A of all of them before copy B of any; of two tables the one with the larger event
//! counts. What a table names is whole before the table is written, and what it names no more is taken
//! apart after, so a power cut leaves the old table or the new one (I-TAB-1).
//!
//! * I-TAB-1: no byte of a member belongs to two volumes, and none of the table's own to one.
//! * I-TAB-2: a table is changed only where every member gets it, but for those that are being
//!   replaced: the newest is on whatever members are found later.

mod change;
mod encoding;
mod members;
mod room;

use std::ops::Range;

pub use change::{
    NewDivided, NewVolume, OpenPieces, TableLock, add_volume, create_divided, grow_volume,
    remove_volume,
};
pub use members::{add_member, begin_replace, end_replace, remove_member};

use crate::group::DATA_START_MIN;
use crate::{Error, ErrorKind, Id, Result, runtime};

/// The most volumes that a table has.
pub(crate) const TABLE_VOLUMES_MAX: usize = 32;
/// The most members.
pub(crate) const TABLE_MEMBERS_MAX: usize = 64;
/// The most pieces that a part has.
pub(crate) const PIECES_MAX: usize = 16;
/// The unit in bytes in which space of members is given to volumes.
pub(crate) const PIECE_UNIT_BYTES: u64 = 1 << 20;
/// The bytes of every member that hold its table: a claim on them for writing is the right to change it.
pub const TABLE_BYTES: Range<u64> = 0..DATA_START_MIN;

/// The table of a group with many volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeTable {
    /// The identity of the group.
    pub id: Id,
    /// The name of the group.
    pub name: String,
    /// How often the table changed; 1 when it is made.
    pub event: u64,
    /// The members.
    pub members: Vec<TableMember>,
    /// The volumes.
    pub volumes: Vec<TableVolume>,
}

/// A member of a group with many volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableMember {
    /// The identity of the member.
    pub id: Id,
    /// Where it was when the table was last changed; a hint for finding it and a name for messages.
    pub path: String,
    /// How many bytes of it are used, a multiple of 1 MiB.
    pub size_bytes: u64,
    /// The member whose place it is about to take.
    pub replaces: Option<Id>,
}

/// A volume of a group with many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableVolume {
    /// The identity of the group that the volume is, in the labels of its parts.
    pub id: Id,
    /// The name of the volume.
    pub name: String,
    /// What it has of each member, one part of a member at most.
    pub parts: Vec<VolumePart>,
}

/// What a volume has of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePart {
    /// The member.
    pub member: Id,
    /// The ranges in bytes, in the order in which the volume sees them; multiples of 1 MiB.
    pub pieces: Vec<Range<u64>>,
}

impl VolumePart {
    /// Returns how many bytes the part has.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.end - piece.start).sum()
    }
}

impl TableVolume {
    /// Returns what the volume has of a member.
    #[must_use]
    pub fn part_on(&self, member: Id) -> Option<&VolumePart> {
        self.parts.iter().find(|part| part.member == member)
    }
}

impl VolumeTable {
    /// Returns the volume with a name.
    #[must_use]
    pub fn volume(&self, name: &str) -> Option<&TableVolume> {
        self.volumes.iter().find(|volume| volume.name == name)
    }

    /// Returns the member with an identity.
    #[must_use]
    pub fn member(&self, id: Id) -> Option<&TableMember> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Says whether another member is about to take the place of one.
    #[must_use]
    pub fn leaves(&self, member: Id) -> bool {
        self.members.iter().any(|other| other.replaces == Some(member))
    }

    /// Returns the name by which a volume is found and opened: `GROUP/VOLUME`.
    #[must_use]
    pub fn whole_name(&self, volume: &str) -> String {
        format!("{}/{volume}", self.name)
    }

    /// Returns the table that counts of those of one group.
    ///
    /// # Errors
    /// `Missing` where there is none, `Diverged` where two of one event differ.
    pub fn newest<'a>(found: impl IntoIterator<Item = &'a Self> + Clone) -> Result<Self> {
        let newest = found.clone().into_iter().max_by_key(|table| table.event);
        let newest = newest.ok_or_else(|| Error::new(ErrorKind::Missing, "no table was found"))?;
        let differs = |other: &&Self| other.event == newest.event && *other != newest;
        if found.into_iter().any(|other| differs(&other)) {
            let message = format!(
                "group {}: two members have different tables of event {}: each went on without the \
                 other; disconnect the members of one of them",
                newest.name, newest.event
            );
            return Err(Error::new(ErrorKind::Diverged, message));
        }
        Ok(newest.clone())
    }

    /// Says what is wrong with the table, if anything is.
    pub(crate) fn fault(&self) -> Option<String> {
        let (members, volumes) = (&self.members, &self.volumes);
        if members.is_empty()
            || members.len() > TABLE_MEMBERS_MAX
            || volumes.len() > TABLE_VOLUMES_MAX
        {
            return Some(format!(
                "a group has 1 to {TABLE_MEMBERS_MAX} members and at most {TABLE_VOLUMES_MAX} \
                 volumes, not {} and {}",
                members.len(),
                volumes.len()
            ));
        }
        let names = std::iter::once(&self.name).chain(volumes.iter().map(|volume| &volume.name));
        if let Some(error) = names.into_iter().find_map(|name| runtime::check_name(name).err()) {
            return Some(error.message);
        }
        if let Some(twice) = twice(volumes.iter().map(|volume| volume.name.as_str())) {
            return Some(format!("there are two volumes {twice}"));
        }
        let ids = members.iter().map(|member| member.id);
        if let Some(id) = twice(ids.chain(volumes.iter().map(|volume| volume.id))) {
            return Some(format!("the identity {id} is given twice"));
        }
        let unit = PIECE_UNIT_BYTES;
        let is_small = |member: &&TableMember| {
            member.size_bytes < TABLE_BYTES.end || !member.size_bytes.is_multiple_of(unit)
        };
        if let Some(member) = members.iter().find(is_small) {
            return Some(format!("no member has {} bytes", member.size_bytes));
        }
        volumes.iter().find_map(|volume| self.fault_of(volume)).or_else(|| self.overlap())
    }

    fn fault_of(&self, volume: &TableVolume) -> Option<String> {
        let name = &volume.name;
        if volume.parts.is_empty() || twice(volume.parts.iter().map(|part| part.member)).is_some() {
            return Some(format!("the volume {name} has no part, or two of one member"));
        }
        volume.parts.iter().find_map(|part| {
            let Some(member) = self.member(part.member) else {
                return Some(format!("the volume {name} lies on a member that there is not"));
            };
            let is_wrong = |piece: &Range<u64>| {
                piece.start >= piece.end
                    || piece.start < TABLE_BYTES.end
                    || piece.end > member.size_bytes
                    || !piece.start.is_multiple_of(PIECE_UNIT_BYTES)
                    || !piece.end.is_multiple_of(PIECE_UNIT_BYTES)
            };
            let count = part.pieces.len();
            if count == 0 || count > PIECES_MAX || part.pieces.iter().any(is_wrong) {
                return Some(format!("the volume {name} lies outside of {}", member.path));
            }
            None
        })
    }

    /// Finds two pieces that share a byte.
    fn overlap(&self) -> Option<String> {
        self.members.iter().find_map(|member| {
            let mut pieces = self.used(member.id);
            pieces.sort_by_key(|piece| piece.start);
            let shared = pieces.windows(2).find(|two| two[1].start < two[0].end)?;
            let at = shared[1].start;
            Some(format!("I-TAB-1: byte {at} of {} belongs to two volumes", member.path))
        })
    }

    fn used(&self, member: Id) -> Vec<Range<u64>> {
        let parts = self.volumes.iter().filter_map(|volume| volume.part_on(member));
        parts.flat_map(|part| part.pieces.iter().cloned()).collect()
    }
}

fn twice<T: PartialEq + Clone>(all: impl Iterator<Item = T>) -> Option<T> {
    let all: Vec<T> = all.collect();
    (1..all.len()).find(|at| all[..*at].contains(&all[*at])).map(|at| all[at].clone())
}

#[cfg(test)]
mod tests;
