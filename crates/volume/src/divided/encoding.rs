//! The table as it stands on a member: a label of version 8, in the places of a label.
//!
//! ```text
//!   0   magic, version 8, checksum, length, 0       as every label
//!   24  group, member that carries it, event, 0
//!   72  name │ count of members │ per member: id, size, id of the one that it replaces or zeros, path
//!            │ count of volumes │ per volume: id, name, count of parts │ per part: member (its place), count of pieces │ per piece: start, end
//! ```

use bedplate_block::{AlignedBuf, BlockDevice};

use super::{PIECES_MAX, TABLE_MEMBERS_MAX, TABLE_VOLUMES_MAX};
use super::{TableMember, TableVolume, VolumePart, VolumeTable};
use crate::group::{COPIES, HEAD_BYTES, MAGIC, SLOT_BYTES, TABLE_VERSION, block_bytes, sealed};
use crate::group::{EVENT_MAX, slot_of, write_copy};
use crate::wire::{Fault, Reader, put_text};
use crate::{Error, ErrorKind, Id, Result};

const NOTHING: Id = Id([0; 16]);

impl VolumeTable {
    /// Returns the bytes of one copy on a member.
    ///
    /// # Errors
    /// `Invalid` when they are more than a copy has room for.
    fn encode(&self, member: Id) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(4096);
        out.extend(MAGIC);
        out.extend(TABLE_VERSION.to_le_bytes());
        out.extend([0; 12]);
        out.extend(self.id.0);
        out.extend(member.0);
        out.extend(self.event.to_le_bytes());
        out.extend([0; 8]);
        assert_eq!(out.len(), HEAD_BYTES, "the head has its length");
        put_text(&mut out, &self.name);
        out.extend((self.members.len() as u16).to_le_bytes());
        for member in &self.members {
            out.extend(member.id.0);
            out.extend(member.size_bytes.to_le_bytes());
            out.extend(member.replaces.unwrap_or(NOTHING).0);
            put_text(&mut out, &member.path);
        }
        out.extend((self.volumes.len() as u16).to_le_bytes());
        for volume in &self.volumes {
            out.extend(volume.id.0);
            put_text(&mut out, &volume.name);
            out.extend((volume.parts.len() as u16).to_le_bytes());
            for part in &volume.parts {
                let place = self.members.iter().position(|member| member.id == part.member);
                let place = place.expect("a part lies on a member of the table");
                out.extend((place as u16).to_le_bytes());
                out.extend((part.pieces.len() as u16).to_le_bytes());
                for piece in &part.pieces {
                    out.extend(piece.start.to_le_bytes());
                    out.extend(piece.end.to_le_bytes());
                }
            }
        }
        if out.len() > SLOT_BYTES {
            let (name, len) = (&self.name, out.len());
            return Err(Error::invalid(format!(
                "the table of group {name} would have {len} bytes, more than {SLOT_BYTES}: use fewer \
                 volumes or members"
            )));
        }
        Ok(sealed(out))
    }

    /// Reads one copy out of its slot, with the member that carries it.
    fn decode(slot: &[u8]) -> std::result::Result<(Id, Self), Fault> {
        let covered = slot_of(slot)?;
        let mut reader = Reader::new(covered);
        reader.take(24, "the head")?;
        let (id, carrier) = (reader.id("the group")?, reader.id("the member")?);
        let event = reader.u64("the event")?;
        if event == 0 || event > EVENT_MAX {
            return Err(Fault::new(56, format!("there was no event {event}")));
        }
        reader.take(8, "the rest of the head")?;
        let name = reader.text("the group's name")?;
        let members = decode_members(&mut reader)?;
        let volumes = decode_volumes(&mut reader, &members)?;
        let table = Self { id, name, event, members, volumes };
        if let Some(what) = table.fault() {
            return Err(Fault::new(HEAD_BYTES, what));
        }
        if table.member(carrier).is_none() {
            return Err(Fault::new(40, "the group has no such member"));
        }
        Ok((carrier, table))
    }

    /// Decodes what may be a table, its checksum made right first; what decodes encodes to the same.
    /// For fuzzers.
    #[cfg(feature = "forge")]
    #[doc(hidden)]
    pub fn decode_any(bytes: &[u8]) {
        let mut slot = bytes[..bytes.len().min(SLOT_BYTES)].to_vec();
        slot.resize(slot.len().max(HEAD_BYTES), 0);
        slot[..8].copy_from_slice(MAGIC);
        slot[8..12].copy_from_slice(&TABLE_VERSION.to_le_bytes());
        let slot = sealed(slot);
        if let Ok((carrier, table)) = Self::decode(&slot) {
            let again = table.encode(carrier).map(|bytes| Self::decode(&bytes));
            assert!(again.is_ok_and(|again| again == Ok((carrier, table))), "it can be encoded");
        }
    }

    /// Reads a member's table: the identity of the member, and the newer of the two copies.
    ///
    /// # Errors
    /// `NotAMember` where there is none, also where there is the label of a group with one volume;
    /// `Corrupt` with offset and field, `Device`.
    pub fn read(device: &dyn BlockDevice) -> Result<(Id, Self)> {
        let name = device.name();
        let mut best: Option<(Id, Self)> = None;
        let mut refusal: Option<Error> = None;
        for offset in COPIES {
            if device.size_bytes() < offset + SLOT_BYTES as u64 {
                continue;
            }
            let mut slot = AlignedBuf::zeroed(SLOT_BYTES);
            if let Err(error) = device.read_at(&mut slot, offset) {
                refusal.get_or_insert(error.into());
                continue;
            }
            if slot[..8] != MAGIC[..] || slot[8..12] != TABLE_VERSION.to_le_bytes() {
                continue;
            }
            match Self::decode(&slot) {
                Ok(found) if best.as_ref().is_none_or(|(_, best)| best.event < found.1.event) => {
                    best = Some(found);
                }
                Ok(_) => {}
                Err(fault) => {
                    let (at, what) = (offset + fault.offset as u64, fault.what);
                    let message =
                        format!("{name}: the table of volumes does not parse at byte {at}: {what}");
                    refusal = Some(Error::new(ErrorKind::Corrupt, message));
                }
            }
        }
        let none = || {
            let message = format!("{name} carries no table of a group with many volumes");
            Error::new(ErrorKind::NotAMember, message)
        };
        best.ok_or_else(|| refusal.unwrap_or_else(none))
    }

    /// Writes one of the two copies on a member durably.
    ///
    /// # Errors
    /// `Device`, or `Invalid` when the table is too large.
    pub(super) fn write_copy(
        &self,
        copy: usize,
        member: Id,
        device: &dyn BlockDevice,
    ) -> Result<()> {
        let bytes = self.encode(member)?;
        let mut buf = AlignedBuf::zeroed(bytes.len().next_multiple_of(block_bytes(device)));
        buf[..bytes.len()].copy_from_slice(&bytes);
        Ok(write_copy(&buf, device, COPIES[copy])?)
    }
}

fn decode_members(reader: &mut Reader<'_>) -> std::result::Result<Vec<TableMember>, Fault> {
    let count = count(reader, "the count of members", TABLE_MEMBERS_MAX)?;
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        let id = reader.id("a member")?;
        let size_bytes = reader.u64("the size of a member")?;
        let replaces = Some(reader.id("a member that leaves")?).filter(|id| *id != NOTHING);
        let path = reader.text("the path of a member")?;
        members.push(TableMember { id, path, size_bytes, replaces });
    }
    Ok(members)
}

fn decode_volumes(
    reader: &mut Reader<'_>,
    members: &[TableMember],
) -> std::result::Result<Vec<TableVolume>, Fault> {
    let volumes = count(reader, "the count of volumes", TABLE_VOLUMES_MAX)?;
    let mut all = Vec::with_capacity(volumes);
    for _ in 0..volumes {
        let id = reader.id("a volume")?;
        let name = reader.text("the name of a volume")?;
        let parts = count(reader, "the count of parts", members.len())?;
        let mut volume = TableVolume { id, name, parts: Vec::with_capacity(parts) };
        for _ in 0..parts {
            let at = reader.at();
            let place = usize::from(reader.u16("the member of a part")?);
            let member = members.get(place).map(|member| member.id);
            let member =
                member.ok_or_else(|| Fault::new(at, format!("there is no member {place}")))?;
            let count = count(reader, "the count of pieces", PIECES_MAX)?;
            let mut pieces = Vec::with_capacity(count);
            for _ in 0..count {
                pieces.push(reader.u64("the start of a piece")?..reader.u64("its end")?);
            }
            volume.parts.push(VolumePart { member, pieces });
        }
        all.push(volume);
    }
    Ok(all)
}

fn count(reader: &mut Reader<'_>, field: &str, most: usize) -> std::result::Result<usize, Fault> {
    let at = reader.at();
    let count = usize::from(reader.u16(field)?);
    if count > most {
        return Err(Fault::new(at, format!("{field} is {count}, and {most} are possible")));
    }
    Ok(count)
}
