//! Relocated members: members that lie in free space of other members, their *hosts*, because the
//! device that they had failed and no spare stood in.
//!
//! ```text
//!   host      │ labels, logs │ its own data                │ free │ relocated member: labels, logs, data of the member that failed │
//!   free room = from the last extent and the last relocated member to the end
//! ```
//! A relocated member is a member like any other: it has its index, its state, its own labels and
//! logs, and is filled and read as if it had a device. Only its device is a window on others
//! ([`Window`]), and it goes where they go.
//!
//! * I-GST-1: no device holds two parts of the same row, of which one stands in for the other: its
//!   loss would be the loss of both.

use std::sync::Arc;

use bedplate_block::{BlockDevice, Window, WindowPiece};

use super::assemble::{Assembly, Found};
use super::state::Handles;
use crate::wire::{Fault, Reader};
use crate::{Config, Id, Label, Layout, Member, MemberState};

/// Where pieces begin and how long they are, but for the last: units and untorn writes stay
/// aligned.
const ALIGN: u64 = 1 << 20;
/// How many pieces a relocated member has at most.
const PIECES_MAX: usize = 8;
const _: () = assert!(
    ALIGN.is_power_of_two() && PIECES_MAX > 0,
    "data that moves to other members begins on a round address"
);

/// Where a member without a device of its own lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelocatedMember {
    /// The member whose place it took.
    pub was: Id,
    /// The pieces of hosts that it is made of, one behind the other.
    pub pieces: Vec<Piece>,
}

/// A piece of a member that holds a part of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The member with the room.
    pub host: Id,
    /// First byte on it.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Member {
    /// Says whether it lies on another.
    pub(crate) fn lies_on(&self, host: Id) -> bool {
        self.relocated
            .as_ref()
            .is_some_and(|relocated| relocated.pieces.iter().any(|piece| piece.host == host))
    }
}

impl Config {
    /// Returns members and those that lie on them and are in use.
    pub(crate) fn with_relocated(&self, members: &[usize]) -> Vec<usize> {
        let lies = |at: &usize| {
            members.iter().any(|host| self.members[*at].lies_on(self.members[*host].id))
        };
        let relocated_members = (0..self.members.len())
            .filter(|at| self.members[*at].state != MemberState::Failed && !members.contains(at))
            .filter(lies);
        members.iter().copied().chain(relocated_members).collect()
    }

    /// Returns the relocated members that are in use on a member.
    pub(crate) fn relocated_on(&self, host: usize) -> Vec<usize> {
        self.with_relocated(&[host]).split_off(1)
    }

    /// Says why nothing stands in for a member that failed; nothing where something does, or the
    /// volume has no other copy.
    #[must_use]
    pub fn stranded(&self, index: usize) -> Option<String> {
        let member =
            self.members.get(index).filter(|member| member.state == MemberState::Failed)?;
        let volume = self.volume_on(index).filter(|volume| volume.is_redundant())?;
        if self.is_split_off(index) {
            return None;
        }
        if self.has_relayout() {
            return Some(format!(
                "{}: nothing stands in for it while a relayout is under way",
                member.path
            ));
        }
        let active = |at: usize| self.members[at].state == MemberState::Active;
        let refusal = pieces_for(self, &volume.layout, index, &active).err()?;
        Some(format!("{}: no spare stands in for it, and {refusal}", member.path))
    }

    /// Returns what is wrong with the relocated members.
    pub(crate) fn relocated_fault(&self) -> Option<String> {
        let used = |relocated: &&Member| relocated.state != MemberState::Failed;
        let relocated_members = self
            .members
            .iter()
            .filter(used)
            .filter_map(|member| Some((member, member.relocated.as_ref()?)));
        for (member, relocated) in relocated_members {
            let len =
                relocated.pieces.iter().fold(0_u64, |sum, piece| sum.saturating_add(piece.len));
            if len != member.size_bytes || relocated.pieces.len() > PIECES_MAX {
                return Some(format!(
                    "{} pieces of {len} bytes do not make {} of {}",
                    relocated.pieces.len(),
                    member.path,
                    member.size_bytes
                ));
            }
            if let Some(piece) =
                relocated.pieces.iter().find(|piece| !self.has_room_at(member, piece))
            {
                return Some(format!(
                    "{} bytes at {} of {} are no room for a guest",
                    piece.len, piece.start, piece.host
                ));
            }
        }
        None
    }

    /// Says whether a piece lies in a member with a device of its own, where nothing else does.
    fn has_room_at(&self, relocated: &Member, piece: &Piece) -> bool {
        let Some((index, host)) =
            self.members.iter().enumerate().find(|(_, host)| host.id == piece.host)
        else {
            return false;
        };
        let Some(end) = piece.start.checked_add(piece.len) else { return false };
        let inside = host.relocated.is_none()
            && piece.start >= self.data_start
            && end <= host.size_bytes
            && piece.len > 0;
        let meets = |start: u64, len: u64| start < end && piece.start < start.saturating_add(len);
        let extents =
            self.volumes.iter().flat_map(|volume| volume.layouts().flat_map(Layout::extents));
        let data = extents
            .filter(|extent| usize::from(extent.member) == index)
            .any(|extent| meets(extent.start, extent.len));
        let others = self
            .members
            .iter()
            .filter(|other| other.state != MemberState::Failed)
            .filter_map(|other| Some((other, other.relocated.as_ref()?)));
        let theirs = others
            .flat_map(|(other, others)| others.pieces.iter().map(move |piece| (other.id, piece)));
        let mut relocated_members = theirs.filter(|(id, other)| {
            other.host == piece.host && !(*id == relocated.id && *other == piece)
        });
        let twice = relocated
            .relocated
            .iter()
            .flat_map(|relocated| &relocated.pieces)
            .filter(|other| *other == piece)
            .count()
            > 1;
        inside
            && !data
            && !twice
            && !relocated_members.any(|(_, other)| meets(other.start, other.len))
    }

    /// Returns the room of a member in which nothing lies: first byte and length.
    fn room(&self, index: usize) -> (u64, u64) {
        let member = &self.members[index];
        let extents =
            self.volumes.iter().flat_map(|volume| volume.layouts().flat_map(Layout::extents));
        let data = extents
            .filter(|extent| usize::from(extent.member) == index)
            .map(|extent| extent.start + extent.len);
        let relocated_members = self
            .members
            .iter()
            .filter_map(|member| member.relocated.as_ref())
            .flat_map(|relocated| &relocated.pieces);
        let relocated_members = relocated_members
            .filter(|piece| piece.host == member.id)
            .map(|piece| piece.start + piece.len);
        let start =
            data.chain(relocated_members).max().unwrap_or(self.data_start).next_multiple_of(ALIGN);
        (start, member.size_bytes.saturating_sub(start) / 4096 * 4096)
    }
}

/// Returns the most parts of one row that lie on the members that are meant: where one stands in
/// for another, one is what is bearable.
fn parts_on(layout: &Layout, meant: &dyn Fn(u16) -> bool) -> usize {
    let below = layout.children().iter().map(|child| parts_on(child, meant));
    match layout {
        Layout::Extent(extent) => usize::from(meant(extent.member)),
        Layout::Concat(_) | Layout::Stripe(_) => below.max().unwrap_or(0),
        Layout::Raid5(_) => below.sum(),
        Layout::Mirror(mirror) => match mirror.alike_stripes() {
            // Equal stripes put the same bytes into the same column.
            Some(stripes) => {
                let column = |at: usize| {
                    stripes.iter().map(|stripe| parts_on(&stripe.columns()[at], meant)).sum()
                };
                (0..stripes[0].columns().len()).map(column).max().unwrap_or(0)
            }
            None => below.sum(),
        },
    }
}

/// Finds room for the place of a member that failed, on as few others as possible.
///
/// # Errors
/// Why there is none.
pub(crate) fn pieces_for(
    config: &Config,
    layout: &Layout,
    index: usize,
    usable: &dyn Fn(usize) -> bool,
) -> Result<Vec<Piece>, String> {
    let needed = config.needed_bytes(index).next_multiple_of(4096);
    let old = &config.members[index];
    let mut apart = Vec::new();
    let (mut room_bytes, mut shared_bytes) = (0, 0);
    for at in (0..config.members.len())
        .filter(|at| *at != index && usable(*at) && config.members[*at].relocated.is_none())
    {
        let host = &config.members[at];
        let (start, len) = config.room(at);
        // One that it lay on already and failed there is not tried again.
        if len < ALIGN || old.lies_on(host.id) {
            continue;
        }
        let meant = |member: u16| {
            usize::from(member) == index
                || usize::from(member) == at
                || config.members[usize::from(member)].lies_on(host.id)
        };
        // I-GST-1
        if parts_on(layout, &meant) > 1 {
            shared_bytes += len;
            continue;
        }
        room_bytes += len;
        apart.push((at, start, len));
    }
    // Members without data first, then those with the most room.
    apart.sort_by_key(|(at, _, len)| (config.volume_on(*at).is_some(), std::cmp::Reverse(*len)));
    if let Some(whole) = apart.iter().position(|(_, _, len)| *len >= needed) {
        apart.swap(0, whole);
    }
    let (mut left, mut pieces) = (needed, Vec::new());
    for (at, start, room) in apart.into_iter().take(PIECES_MAX) {
        if left == 0 {
            break;
        }
        let len = if room >= left { left } else { room / ALIGN * ALIGN };
        // Labels and logs stay together.
        if pieces.is_empty() && len < config.data_start.min(needed) {
            continue;
        }
        debug_assert!(
            len > 0 && len <= room && len <= left,
            "a piece of {len} bytes lies in the room of {room} and is needed"
        );
        pieces.push(Piece { host: config.members[at].id, start, len });
        left -= len;
    }
    if left == 0 {
        return Ok(pieces);
    }
    Err(no_room(needed, room_bytes, shared_bytes))
}

/// Says why a place finds no room.
fn no_room(needed: u64, room_bytes: u64, shared_bytes: u64) -> String {
    let lie = if shared_bytes > 0 {
        format!(
            "; {shared_bytes} bytes more are free on members that hold another part of the same \
             rows and would take both with them"
        )
    } else {
        String::new()
    };
    format!(
        "{needed} bytes are needed and {room_bytes} are free on other members{lie}: add a spare or \
         a member"
    )
}

/// Opens the window that a relocated member is; nothing while one of its hosts is away.
pub(crate) fn window(
    relocated: &Member,
    device: &dyn Fn(Id) -> Option<Arc<dyn BlockDevice>>,
) -> Option<Arc<dyn BlockDevice>> {
    let part = |piece: &Piece| {
        Some(WindowPiece { device: device(piece.host)?, start: piece.start, len: piece.len })
    };
    let parts =
        relocated.relocated.as_ref()?.pieces.iter().map(part).collect::<Option<Vec<_>>>()?;
    let fits = parts.iter().all(|part| {
        part.start.checked_add(part.len).is_some_and(|end| end <= part.device.size_bytes())
    });
    fits.then(|| Window::open(relocated.path.clone(), parts) as Arc<dyn BlockDevice>)
}

/// Returns the windows of an open group's relocated members, each with its device for another that
/// failed.
pub(crate) fn window_on(
    config: &Config,
    handles: &Handles,
    relocated: &Member,
) -> Option<Arc<dyn BlockDevice>> {
    window(relocated, &|id| Some(Arc::clone(&handles[config.index_of(id)?].as_ref()?.device)))
}

/// Finds the relocated members of a group of which the other members were found, as if they were
/// devices.
pub(crate) fn find(
    assembly: &Assembly,
    devices: &[Arc<dyn BlockDevice>],
) -> Vec<(Arc<dyn BlockDevice>, Found)> {
    let config = &assembly.config;
    let device = |id: Id| Some(Arc::clone(&devices[assembly.places[config.index_of(id)?]?]));
    let relocated_members = config
        .members
        .iter()
        .enumerate()
        .filter(|(at, member)| member.relocated.is_some() && config.volume_on(*at).is_some());
    let open = relocated_members.filter_map(|(_, member)| {
        let window = window(member, &device)?;
        // What lies there may be an earlier relocated member's.
        let label = Label::read(&*window)
            .ok()
            .filter(|label| label.member == member.id && label.config.id == config.id)?;
        let found =
            Found { name: window.name().to_owned(), size_bytes: window.size_bytes(), label };
        Some((window, found))
    });
    open.collect()
}

pub(crate) fn encode(relocated: Option<&RelocatedMember>, out: &mut Vec<u8>) {
    let pieces = relocated.map_or(&[][..], |relocated| &relocated.pieces);
    out.push(pieces.len() as u8);
    if let Some(relocated) = relocated {
        out.extend(relocated.was.0);
    }
    for piece in pieces {
        out.extend(piece.host.0);
        out.extend(piece.start.to_le_bytes());
        out.extend(piece.len.to_le_bytes());
    }
}

pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Option<RelocatedMember>, Fault> {
    let at = reader.at();
    let count = reader.u8("the number of pieces")?;
    if usize::from(count) > PIECES_MAX {
        return Err(Fault::new(at, format!("a guest of {count} pieces is not possible")));
    }
    if count == 0 {
        return Ok(None);
    }
    let was = reader.id("whose place a guest took")?;
    let piece = |reader: &mut Reader<'_>| {
        Ok(Piece {
            host: reader.id("the host of a piece")?,
            start: reader.u64("the start of a piece")?,
            len: reader.u64("the length of a piece")?,
        })
    };
    Ok(Some(RelocatedMember {
        was,
        pieces: (0..count).map(|_| piece(reader)).collect::<Result<_, Fault>>()?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Extent, Mirror, Raid5, Stripe};

    fn extent(member: u16) -> Layout {
        Layout::Extent(Extent { member, start: 4 << 20, len: 1 << 20 })
    }

    #[test]
    fn i_gst_1_what_stands_in_for_each_other_is_counted_together() {
        let stripe = |a, b| Layout::Stripe(Stripe::new(4096, vec![extent(a), extent(b)]));
        let pair = |a, b| Layout::Mirror(Mirror::new(vec![extent(a), extent(b)]));
        let on = |layout: &Layout, members: &[u16]| {
            parts_on(layout, &|member| members.contains(&member))
        };
        let plexes = Layout::Mirror(Mirror::new(vec![stripe(0, 1), stripe(2, 3)]));
        assert_eq!((on(&plexes, &[0, 1]), on(&plexes, &[0, 3]), on(&plexes, &[0, 2])), (1, 1, 2));
        let mirrors = Layout::Stripe(Stripe::new(4096, vec![pair(0, 1), pair(2, 3)]));
        assert_eq!((on(&mirrors, &[0, 2]), on(&mirrors, &[0, 1]), on(&mirrors, &[4])), (1, 2, 0));
        assert_eq!(on(&Layout::Raid5(Raid5::new(4096, (0..3).map(extent).collect())), &[0, 2]), 2);
    }
}
