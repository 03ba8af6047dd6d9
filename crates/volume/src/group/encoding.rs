//! The configuration of a group as labels write it: encoding, the version that is able to say all
//! of it, and decoding, which believes nothing.

use super::config::*;
use super::findings::{self};
use super::relocated::{self};
use super::schedule::{self};
use super::split::{self};
use crate::wire::{Fault, Reader, put_text};
use crate::{Concat, Direction, Extent, Layout, Mirror, Raid5, Relayout, Stripe};

impl Config {
    /// Appends the part of the label that all members share.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(
            self.members.len() <= MEMBERS_MAX && self.volumes.len() <= VOLUMES_MAX,
            "a label has room for {} members and {} volumes",
            self.members.len(),
            self.volumes.len()
        );
        out.extend((self.members.len() as u16).to_le_bytes());
        out.extend((self.volumes.len() as u16).to_le_bytes());
        out.extend(self.data_start.to_le_bytes());
        put_text(out, &self.name);
        for member in &self.members {
            out.extend(member.id.0);
            out.extend(member.size_bytes.to_le_bytes());
            out.extend(member.since.to_le_bytes());
            out.push(
                MemberState::ALL
                    .iter()
                    .find(|(state, _)| *state == member.state)
                    .map_or(0, |(_, code)| *code),
            );
            put_text(out, &member.path);
        }
        for volume in &self.volumes {
            out.push(
                ROLES.iter().find(|(role, _)| *role == volume.role).map_or(0, |(_, code)| *code),
            );
            out.extend(volume.region_bytes.to_le_bytes());
            encode_layout(&volume.layout, out);
        }
        let version = self.version();
        for volume in self.volumes.iter().filter(|_| version > 1) {
            encode_relayout(volume.relayout.as_ref(), out);
        }
        if version > 2 {
            self.members
                .iter()
                .for_each(|member| relocated::encode(member.relocated.as_ref(), out));
            out.extend(self.reserve_bytes.to_le_bytes());
        }
        if version > 3 {
            schedule::encode(self.scrub.as_ref(), out);
        }
        if version > 4 {
            self.members.iter().for_each(|member| out.extend(member.last_event.to_le_bytes()));
            findings::encode(&self.findings, out);
        }
        if version > 6 {
            split::encode(self.split.as_ref(), out);
        }
    }

    /// Returns the version of the label that is able to say all this: the oldest, so that older
    /// software reads what it is able to.
    pub(crate) fn version(&self) -> u32 {
        let parity = |volume: &VolumeConfig| {
            volume.relayout.as_ref().is_some_and(|relayout| relayout.has_parity(&volume.layout))
        };
        if self.split.is_some() {
            7
        } else if self
            .volumes
            .iter()
            .any(|volume| volume.relayout.as_ref().is_some_and(|relayout| relayout.in_cycles))
        {
            6
        } else if self.members.iter().any(|member| member.last_event > 0)
            || !self.findings.is_empty()
        {
            5
        } else if self.scrub.is_some() {
            4
        } else if self.reserve_bytes > 0
            || self.members.iter().any(|member| member.relocated.is_some())
            || self.volumes.iter().any(parity)
        {
            3
        } else if self.has_relayout() {
            2
        } else {
            1
        }
    }

    /// Reads what [`encode`](Self::encode) wrote in a label of a version, and believes none of it.
    pub(crate) fn decode(reader: &mut Reader<'_>, version: u32, head: Head) -> Result<Self, Fault> {
        let start = reader.at();
        let (members, volumes) =
            (reader.u16("the number of members")?, reader.u16("the number of volumes")?);
        if usize::from(members) > MEMBERS_MAX || members == 0 || usize::from(volumes) > VOLUMES_MAX
        {
            return Err(Fault::new(
                start,
                format!("{members} members and {volumes} volumes are not possible"),
            ));
        }
        let data_start = reader.u64("the start of data")?;
        let name = reader.text("the name of the group")?;
        let mut members =
            (0..members).map(|_| decode_member(reader)).collect::<Result<Vec<_>, _>>()?;
        let mut volumes =
            (0..volumes).map(|_| decode_volume(reader)).collect::<Result<Vec<_>, _>>()?;
        for volume in volumes.iter_mut().filter(|_| version > 1) {
            volume.relayout = decode_relayout(reader)?;
        }
        let mut reserve_bytes = 0;
        if version > 2 {
            for member in &mut members {
                member.relocated = relocated::decode(reader)?;
            }
            reserve_bytes = reader.u64("the reserve")?;
        }
        let scrub = if version > 3 { schedule::decode(reader)? } else { None };
        for member in members.iter_mut().filter(|_| version > 4) {
            member.last_event = reader.u64("the last event that a member had")?;
        }
        let findings = if version > 4 { findings::decode(reader)? } else { Vec::new() };
        let split = if version > 6 { split::decode(reader)? } else { None };
        let Head { id, event, common_event, clean, foreground_percent } = head;
        let config = Self {
            id,
            name,
            event,
            common_event,
            clean,
            foreground_percent,
            data_start,
            reserve_bytes,
            scrub,
            findings,
            split,
            members,
            volumes,
        };
        config.fault().map_or(Ok(config), |what| Err(Fault::new(start, what)))
    }
}

fn decode_member(reader: &mut Reader<'_>) -> Result<Member, Fault> {
    let id = reader.id("the identity of a member")?;
    let size_bytes = reader.u64("the size of a member")?;
    let since = reader.u64("the event of a member")?;
    let at = reader.at();
    let code = reader.u8("the state of a member")?;
    let state = MemberState::ALL.iter().find(|(_, known)| *known == code).map(|(state, _)| *state);
    let state = state.ok_or_else(|| Fault::new(at, format!("{code} is no state of a member")))?;
    Ok(Member {
        id,
        size_bytes,
        since,
        state,
        path: reader.text("the path of a member")?,
        last_event: 0,
        relocated: None,
    })
}

fn decode_volume(reader: &mut Reader<'_>) -> Result<VolumeConfig, Fault> {
    let at = reader.at();
    let role = match reader.u8("the role of a volume")? {
        1 => Role::Data,
        2 => Role::Log,
        code => return Err(Fault::new(at, format!("{code} is no role of a volume"))),
    };
    Ok(VolumeConfig {
        role,
        region_bytes: reader.u64("the region size")?,
        layout: decode_layout(reader, 0)?,
        relayout: None,
    })
}

fn encode_relayout(relayout: Option<&Relayout>, out: &mut Vec<u8>) {
    let Some(relayout) = relayout else { return out.push(0) };
    let downward = if relayout.direction == Direction::Downward { 2 } else { 0 };
    out.push(
        1 | downward
            | if relayout.paused { 4 } else { 0 }
            | if relayout.logs_swapped { 8 } else { 0 }
            | if relayout.in_cycles { 16 } else { 0 },
    );
    for field in
        [relayout.position, relayout.staged_bytes, relayout.grain_bytes, relayout.step_bytes_max]
    {
        out.extend(field.to_le_bytes());
    }
    encode_layout(&relayout.next, out);
    encode_layout(&relayout.scratch, out);
}

fn decode_relayout(reader: &mut Reader<'_>) -> Result<Option<Relayout>, Fault> {
    let at = reader.at();
    let flags = reader.u8("the flags of a relayout")?;
    if flags > 31 || (flags > 0 && flags & 1 == 0) {
        return Err(Fault::new(at, format!("{flags} are no flags of a relayout")));
    }
    if flags == 0 {
        return Ok(None);
    }
    let direction = if flags & 2 == 0 { Direction::Upward } else { Direction::Downward };
    let (position, staged_bytes) =
        (reader.u64("the position of a relayout")?, reader.u64("the bytes in a scratch area")?);
    let (grain_bytes, step_bytes_max) =
        (reader.u64("the grain of a relayout")?, reader.u64("the step of a relayout")?);
    let (next, scratch) = (decode_layout(reader, 0)?, decode_layout(reader, 0)?);
    let (paused, logs_swapped, in_cycles) = (flags & 4 != 0, flags & 8 != 0, flags & 16 != 0);
    Ok(Some(Relayout {
        next,
        direction,
        position,
        staged_bytes,
        scratch,
        grain_bytes,
        step_bytes_max,
        paused,
        logs_swapped,
        in_cycles,
    }))
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
        return Ok(Layout::Extent(Extent {
            member,
            start: reader.u64("the start of an extent")?,
            len: reader.u64("the length of an extent")?,
        }));
    }
    let (count, unit) = (reader.u16("the width of a layout")?, reader.u64("a stripe unit")?);
    if !(1..=4).contains(&kind)
        || count == 0
        || depth >= crate::layout::DEPTH_MAX
        || matches!(kind, 2 | 4) == (unit == 0)
    {
        return Err(Fault::new(
            at,
            format!("a layout of kind {kind}, {count} parts and unit {unit} is not possible here"),
        ));
    }
    let children =
        (0..count).map(|_| decode_layout(reader, depth + 1)).collect::<Result<Vec<_>, _>>()?;
    Ok(match kind {
        1 => Layout::Concat(Concat::new(children)),
        2 => Layout::Stripe(Stripe::new(unit, children)),
        3 => Layout::Mirror(Mirror::new(children)),
        _ => Layout::Raid5(Raid5::new(unit, children)),
    })
}
