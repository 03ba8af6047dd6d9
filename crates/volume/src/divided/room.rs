//! Which bytes of the members a volume gets. Pure.

use std::ops::Range;

use super::{
    NewVolume, PIECE_UNIT_BYTES, PIECES_MAX, TABLE_BYTES, TableMember, VolumePart, VolumeTable,
};
use crate::group::DATA_START_MIN;
use crate::{Arrangement, Error, Extent, Id, MEMBER_BYTES_MIN, Result};

impl VolumeTable {
    /// Returns the ranges of a member that belong to no volume, ascending.
    #[must_use]
    pub fn free(&self, member: Id) -> Vec<Range<u64>> {
        let Some(size) = self.member(member).map(|member| member.size_bytes) else {
            return Vec::new();
        };
        let mut used = self.used(member);
        used.sort_by_key(|piece| piece.start);
        let (mut free, mut at) = (Vec::new(), TABLE_BYTES.end);
        for piece in used.iter().chain(std::iter::once(&(size..size))) {
            if piece.start > at {
                free.push(at..piece.start);
            }
            at = at.max(piece.end);
        }
        free
    }

    /// Returns how many bytes of a member belong to no volume.
    #[must_use]
    pub fn free_bytes(&self, member: Id) -> u64 {
        self.free(member).iter().map(|range| range.end - range.start).sum()
    }

    /// Says which parts a new volume gets; `block` is the largest block of the members, in bytes.
    ///
    /// # Errors
    /// `Invalid` when the members do not fit the layout or have not the room.
    pub(super) fn lay_out(&self, new: &NewVolume, block: u64) -> Result<Vec<VolumePart>> {
        let chosen = self.chosen(new)?;
        let free: Vec<u64> = chosen.iter().map(|member| self.free_bytes(member.id)).collect();
        let each = match new.size_bytes {
            Some(size) => vec![part_bytes(&new.arrangement, chosen.len(), size)?; chosen.len()],
            None if new.arrangement.shape.needs_equal_members() => {
                vec![free.iter().copied().min().unwrap_or(0); chosen.len()]
            }
            None => free,
        };
        let extents: Vec<Extent> = each
            .iter()
            .zip(0..)
            .map(|(bytes, member)| {
                let len = bytes.saturating_sub(DATA_START_MIN);
                Extent { member, start: DATA_START_MIN, len }
            })
            .collect();
        let mut parts = Vec::new();
        for (member, bytes) in chosen.iter().zip(&each) {
            let pieces = self.take(new, member, *bytes)?;
            parts.push(VolumePart { member: member.id, pieces });
        }
        let volume = &new.name;
        let laid = new.arrangement.lay(&extents, block);
        laid.map_err(|error| Error::invalid(format!("volume {volume}: {}", error.message)))?;
        Ok(parts)
    }

    /// Returns the members that a new volume lies on: those that were named; else all, and of a
    /// mirror those with the most room.
    fn chosen(&self, new: &NewVolume) -> Result<Vec<&TableMember>> {
        if !new.members.is_empty() {
            let unknown = |id: &Id| {
                let (group, id) = (&self.name, id);
                Error::invalid(format!("group {group} has no member {id}"))
            };
            let known = |id: &Id| {
                let member = self.member(*id).ok_or_else(|| unknown(id))?;
                if self.leaves(*id) {
                    let (path, group) = (&member.path, &self.name);
                    return Err(Error::invalid(format!(
                        "another member takes the place of {path} in group {group}: name that one"
                    )));
                }
                Ok(member)
            };
            return new.members.iter().map(known).collect();
        }
        let mut all: Vec<&TableMember> =
            self.members.iter().filter(|member| !self.leaves(member.id)).collect();
        if new.arrangement.shape.has_a_member_per_copy() {
            // The sort is stable: of equal ones the first.
            all.sort_by_key(|member| std::cmp::Reverse(self.free_bytes(member.id)));
            all.truncate(new.arrangement.plexes);
            let place =
                |member: &&TableMember| self.members.iter().position(|other| other.id == member.id);
            all.sort_by_key(place);
        }
        Ok(all)
    }

    fn take(&self, new: &NewVolume, member: &TableMember, bytes: u64) -> Result<Vec<Range<u64>>> {
        let (volume, path, free) = (&new.name, &member.path, self.free(member.id));
        let total: u64 = free.iter().map(|range| range.end - range.start).sum();
        let (needed, has) = (bytes >> 20, total >> 20);
        if bytes < MEMBER_BYTES_MIN {
            let least = MEMBER_BYTES_MIN >> 20;
            return Err(Error::invalid(format!(
                "volume {volume}: {has} MiB are free on {path}, and a part has at least {least} MiB"
            )));
        }
        if bytes > total {
            return Err(Error::invalid(format!(
                "volume {volume} needs {needed} MiB of {path}, and {has} MiB are free there: ask for \
                 less, or leave the size out for all that is free"
            )));
        }
        allocate(&free, bytes, PIECES_MAX).ok_or_else(|| scattered(volume, path, needed))
    }

    /// Makes the part of a volume on a member larger by `more` bytes, a multiple of 1 MiB.
    pub(super) fn extend(&mut self, volume: &str, member: Id, more: u64) -> Result<()> {
        let free = self.free(member);
        let path = self.member(member).map(|member| member.path.clone()).unwrap_or_default();
        let total: u64 = free.iter().map(|range| range.end - range.start).sum();
        let (needed, has) = (more >> 20, total >> 20);
        let part = self
            .volumes
            .iter_mut()
            .find(|other| other.name == volume)
            .and_then(|volume| volume.parts.iter_mut().find(|part| part.member == member))
            .ok_or_else(|| Error::invalid(format!("volume {volume} has no part of {path}")))?;
        if more > total {
            return Err(Error::invalid(format!(
                "volume {volume} needs {needed} MiB more of {path}, and {has} MiB are free there"
            )));
        }
        let end = part.pieces.last().map_or(0, |piece| piece.end);
        let behind = free.iter().find(|range| range.start == end);
        let direct = behind.map_or(0, |range| (range.end - range.start).min(more));
        let rest: Vec<Range<u64>> = free
            .iter()
            .map(|range| if range.start == end { end + direct..range.end } else { range.clone() })
            .filter(|range| range.start < range.end)
            .collect();
        let others = allocate(&rest, more - direct, PIECES_MAX - part.pieces.len());
        let others = others.ok_or_else(|| scattered(volume, &path, needed))?;
        if let Some(last) = part.pieces.last_mut() {
            last.end += direct;
        }
        part.pieces.extend(others);
        Ok(())
    }
}

fn scattered(volume: &str, path: &str, needed: u64) -> Error {
    Error::invalid(format!(
        "volume {volume} needs {needed} MiB of {path}, and what is free there lies in too many pieces: \
         ask for less"
    ))
}

/// Takes bytes out of free ranges: all of the smallest that has them, or else of the largest.
fn allocate(free: &[Range<u64>], bytes: u64, pieces_max: usize) -> Option<Vec<Range<u64>>> {
    if bytes == 0 {
        return Some(Vec::new());
    }
    let len = |range: &&Range<u64>| range.end - range.start;
    if let Some(fits) = free.iter().filter(|range| len(range) >= bytes).min_by_key(len) {
        let piece = fits.start..fits.start + bytes;
        return (pieces_max > 0).then(|| vec![piece]);
    }
    let mut largest: Vec<&Range<u64>> = free.iter().collect();
    largest.sort_by_key(|range| std::cmp::Reverse(len(range)));
    let (mut taken, mut left) = (Vec::new(), bytes);
    for range in largest {
        if left == 0 {
            break;
        }
        let some = len(&range).min(left);
        taken.push(range.start..range.start + some);
        left -= some;
    }
    (left == 0 && taken.len() <= pieces_max).then_some(taken)
}

/// Returns how many bytes every part of a volume has, with the label at its head.
fn part_bytes(arrangement: &Arrangement, members: usize, size: u64) -> Result<u64> {
    let over = arrangement.shape.shares(members, arrangement.plexes);
    let unit = if arrangement.shape.is_striped() { arrangement.unit_bytes.max(1) } else { 1 };
    let each = size.div_ceil(over as u64).checked_next_multiple_of(unit);
    let whole = each
        .and_then(|each| each.checked_add(DATA_START_MIN))
        .and_then(|bytes| bytes.checked_next_multiple_of(PIECE_UNIT_BYTES));
    let whole = whole.filter(|bytes| i64::try_from(*bytes).is_ok());
    let none = || Error::invalid(format!("no volume has {size} bytes"));
    whole.map(|bytes| bytes.max(MEMBER_BYTES_MIN)).ok_or_else(none)
}
