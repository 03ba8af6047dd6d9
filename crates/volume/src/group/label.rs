//! The label: what makes a device a member of a group.
//!
//! ```text
//!   0          label A          two copies at fixed places, so that a device that grows or loses its head is still known
//!   1 MiB      label B
//!   2 MiB      dirty region logs, 256 KiB for each volume
//!   2.5 MiB    parity logs, 512 KiB for each volume
//!   3.5 MiB    scratch area of a relayout, 512 KiB
//!   data_start data
//! ```
//! An update writes A, flushes, writes B, flushes: at every moment one copy is whole. The copy with
//! the larger event counts.
//!
//! * I-LAB-1: a label is encoded into its slot or not at all.

use bedplate_block::{AlignedBuf, BlockDevice};

use super::config::{FOREGROUND_PERCENT_MIN, Head};
use crate::wire::{Fault, Reader, crc32c};
use crate::{Config, Error, ErrorKind, FOREGROUND_PERCENT_DEFAULT, Id, MemberState, Result};

/// Where the copies begin.
pub(crate) const COPIES: [u64; 2] = [0, 1 << 20];
/// The most bytes that a copy has.
pub(crate) const SLOT_BYTES: usize = 64 << 10;
const _: () = assert!(
    crate::layout::SCRATCH_START + crate::layout::SCRATCH_BYTES <= DATA_START_MIN,
    "the scratch area lies before the data of every member"
);

/// Where data begins at the earliest, and by default.
pub(crate) const DATA_START_MIN: u64 = 4 << 20;

pub(crate) const MAGIC: &[u8; 8] = b"BEDPGRUP";
/// The newest version. A label is of the oldest version that is able to say what it says, so that
/// older software reads every other.
const VERSION: u32 = TABLE_VERSION;
/// That of the table which a member of a group with many volumes has in place of a label.
pub(crate) const TABLE_VERSION: u32 = 8;
/// Magic, version, checksum and length stand before what only this version knows.
pub(crate) const HEAD_BYTES: usize = 72;
/// Events are counted: none that is further away ever was, and there is always a next one.
pub(crate) const EVENT_MAX: u64 = 1 << 48;
/// Stands in the label of a member that is coming and that no other member may name yet.
pub(crate) const EVENT_OF_ARRIVAL: u64 = 0;
const _: () = assert!(
    COPIES[0] + SLOT_BYTES as u64 <= COPIES[1] && COPIES[1] + SLOT_BYTES as u64 <= DATA_START_MIN,
    "the two copies of a label share no byte, with each other or with data"
);
const _: () = assert!(
    EVENT_OF_ARRIVAL < EVENT_MAX && HEAD_BYTES < SLOT_BYTES,
    "an arrival is before every event, and a head fits its slot"
);

/// A label: what the group is, and which of its members this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The identity of the member that carries the label.
    pub member: Id,
    /// The group as of the last change that reached this member.
    pub config: Config,
}

/// Why bytes are no label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is none.
    Absent,
    /// It is of a newer version.
    Newer(u32),
    /// It is the table of a group with many volumes.
    Divided,
    /// It does not parse.
    Corrupt(Fault),
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Corrupt(fault)
    }
}

impl Label {
    /// Returns the bytes of one copy.
    ///
    /// # Errors
    /// `Invalid` when the group has more members than a label is able to name.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(4096);
        out.extend(MAGIC);
        out.extend(self.config.version().to_le_bytes());
        out.extend([0; 8]);
        out.extend(u32::from(self.config.clean).to_le_bytes());
        out.extend(self.config.id.0);
        out.extend(self.member.0);
        out.extend(self.config.event.to_le_bytes());
        // Labels of before have zero here, and older software ignores it.
        let foreground_percent = if self.config.foreground_percent == FOREGROUND_PERCENT_DEFAULT {
            0
        } else {
            self.config.foreground_percent
        };
        out.extend(foreground_percent.to_le_bytes());
        out.extend(self.config.events_since_common().to_le_bytes());
        out.extend([0; 2]);
        assert_eq!(out.len(), HEAD_BYTES, "the head has its length");
        self.config.encode(&mut out);
        if out.len() > SLOT_BYTES {
            return Err(Error::invalid(format!(
                "the label of group {} would have {} bytes, more than {SLOT_BYTES}",
                self.config.name,
                out.len()
            )));
        }
        Ok(sealed(out))
    }

    /// Reads one copy out of its slot.
    pub(crate) fn decode(slot: &[u8]) -> std::result::Result<Self, Refusal> {
        let mut reader = Reader::new(slot);
        if reader.take(8, "the magic number").ok() != Some(&MAGIC[..]) {
            return Err(Refusal::Absent);
        }
        let version = reader.u32("the version")?;
        if version > VERSION {
            return Err(Refusal::Newer(version));
        }
        if version == TABLE_VERSION {
            return Err(Refusal::Divided);
        }
        let mut reader = Reader::new(slot_of(slot)?);
        reader.take(20, "the head")?;
        let flags = reader.u32("the flags")?;
        let (group, member) = (reader.id("the group")?, reader.id("the member")?);
        let event = reader.u64("the event")?;
        if event > EVENT_MAX {
            return Err(Fault::new(56, format!("there was no event {event}")).into());
        }
        let foreground_percent = match reader.u16("the factor for the foreground")? {
            0 => FOREGROUND_PERCENT_DEFAULT,
            stated if stated >= FOREGROUND_PERCENT_MIN => stated,
            stated => {
                return Err(Fault::new(
                    64,
                    format!("{stated} hundredths are no factor for the foreground"),
                )
                .into());
            }
        };
        let common_event =
            match u64::from(reader.u32("the events since the last that reached all members")?) {
                0 => 0,
                since if since <= event => event - since,
                since => return Err(Fault::new(66, format!("there were no {since} events")).into()),
            };
        reader.take(2, "the rest of the head")?;
        let head =
            Head { id: group, event, common_event, clean: flags & 1 != 0, foreground_percent };
        let config = Config::decode(&mut reader, version, head)?;
        if config.index_of(member).is_none() {
            return Err(Fault::new(40, "the group has no such member").into());
        }
        Ok(Self { member, config })
    }

    /// Decodes what may be a label, its length and checksum made right first; what decodes encodes
    /// to the same. For fuzzers.
    #[cfg(feature = "forge")]
    #[doc(hidden)]
    pub fn decode_any(bytes: &[u8]) {
        let mut slot = bytes[..bytes.len().min(SLOT_BYTES)].to_vec();
        slot.resize(slot.len().max(HEAD_BYTES), 0);
        let len = slot.len() as u32;
        slot[16..20].copy_from_slice(&len.to_le_bytes());
        reseal(&mut slot);
        if let Ok(label) = Self::decode(&slot) {
            let again = label.encode().map(|bytes| Self::decode(&bytes));
            assert!(again.is_ok_and(|again| again == Ok(label)), "what was decoded can be encoded");
        }
    }

    /// Says whether its device has a place in a group as it is now: not after another took that
    /// place, nor before the others name it.
    #[must_use]
    pub fn has_place_in(&self, config: &Config) -> bool {
        self.config.id == config.id && self.outdated_in(config, "").is_none()
    }

    /// Says why the device that carries it, called `name`, has no place in its group as that is
    /// now; nothing where it has one.
    #[must_use]
    pub fn outdated_in(&self, config: &Config, name: &str) -> Option<String> {
        let group = &config.name;
        let held_data = || {
            self.config
                .index_of(self.member)
                .is_some_and(|index| self.config.volume_on(index).is_some())
        };
        match config.index_of(self.member) {
            Some(index) if config.is_split_off(index) && !self.is_parting(config) => Some(format!(
                "{name} is an older copy of a member that was split off the group {group}"
            )),
            Some(index)
                if config.members[index].state != MemberState::Failed
                    || config.volume_on(index).is_some() =>
            {
                None
            }
            Some(_) => Some(format!(
                "{name} is outdated: it failed, and another member took its place in the group \
                 {group} or its volume left it"
            )),
            None if self.never_arrived_in(config) => {
                Some(format!("{name} was on its way into the group {group}, and did not arrive"))
            }
            None if held_data() => Some(format!(
                "{name} is outdated: it was replaced in the group {group}, and what it holds is old"
            )),
            None => Some(format!("{name} is outdated: it was removed from the group {group}")),
        }
    }

    /// Says whether its device was on its way into a group when a crash came, before any other
    /// member named it.
    pub(crate) fn never_arrived_in(&self, config: &Config) -> bool {
        self.config.id == config.id
            && self.config.event == EVENT_OF_ARRIVAL
            && config.index_of(self.member).is_none()
    }

    /// Reads a device's label.
    ///
    /// # Errors
    /// `NotAMember`, `NewerFormat`, `Corrupt` with offset and field, `Device`.
    pub fn read(device: &dyn BlockDevice) -> Result<Self> {
        let mut copies = Vec::new();
        for offset in COPIES {
            copies.push(read_copy(device, offset));
        }
        let best = copies.iter().flatten().max_by_key(|label| label.config.event).cloned();
        if let Some(label) = best {
            return Ok(label);
        }
        // Neither copy is whole: the one that says more says what is wrong.
        let rank = |error: &Error| match error.kind {
            ErrorKind::NewerFormat | ErrorKind::Divided => 0,
            ErrorKind::Corrupt => 1,
            ErrorKind::Device => 2,
            _ => 3,
        };
        let refusal = copies.into_iter().filter_map(std::result::Result::err).min_by_key(rank);
        Err(refusal.unwrap_or_else(|| {
            Error::new(ErrorKind::NotAMember, format!("{} carries no label", device.name()))
        }))
    }

    /// Returns the bytes of one copy in whole blocks of a device.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub(crate) fn encode_for(&self, device: &dyn BlockDevice) -> Result<AlignedBuf> {
        let bytes = self.encode()?;
        let mut buf = AlignedBuf::zeroed(bytes.len().next_multiple_of(block_bytes(device)));
        buf[..bytes.len()].copy_from_slice(&bytes);
        Ok(buf)
    }

    /// Writes both copies, each durable before the next.
    ///
    /// # Errors
    /// `Device`, or `Invalid` as for [`encode`](Self::encode).
    pub(crate) fn write(&self, device: &dyn BlockDevice) -> Result<()> {
        let bytes = self.encode_for(device)?;
        COPIES.into_iter().try_for_each(|offset| Ok(write_copy(&bytes, device, offset)?))
    }

    /// Takes the label off a device, so that it is not taken for a member any more.
    ///
    /// # Errors
    /// `Device`.
    pub fn erase(device: &dyn BlockDevice) -> Result<()> {
        let buf = AlignedBuf::zeroed(block_bytes(device));
        for offset in COPIES.into_iter().rev() {
            device.write_at(&buf, offset)?;
        }
        Ok(device.flush()?)
    }
}

/// Returns the bytes of a copy with their length and checksum.
pub(crate) fn sealed(mut out: Vec<u8>) -> Vec<u8> {
    assert!(out.len() <= SLOT_BYTES, "I-LAB-1: a label fits its slot");
    let len = out.len() as u32;
    out[12..16].fill(0);
    out[16..20].copy_from_slice(&len.to_le_bytes());
    let crc = crc32c(&out);
    out[12..16].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Returns what the length and the checksum of a slot cover, where both fit.
pub(crate) fn slot_of(slot: &[u8]) -> std::result::Result<&[u8], Fault> {
    let mut reader = Reader::new(slot);
    reader.take(8, "the magic number")?;
    let version = reader.u32("the version")?;
    let crc = reader.u32("the checksum")?;
    let len = reader.u32("the length")? as usize;
    if version == 0 || len < HEAD_BYTES || len > slot.len() {
        let what = format!("version {version} with a length of {len} is not possible");
        return Err(Fault::new(8, what));
    }
    let mut covered = slot[..len].to_vec();
    covered[12..16].fill(0);
    if crc32c(&covered) != crc {
        return Err(Fault::new(12, "the checksum does not fit"));
    }
    Ok(&slot[..len])
}

/// Returns the unit in which labels are written to a device.
pub(crate) fn block_bytes(device: &dyn BlockDevice) -> usize {
    (device.geometry().logical_block_size as usize).max(4096)
}

/// Writes one copy durably.
pub(crate) fn write_copy(
    bytes: &AlignedBuf,
    device: &dyn BlockDevice,
    offset: u64,
) -> bedplate_block::Result<()> {
    device.write_at(bytes, offset)?;
    device.flush()
}

/// Says whether a slot holds no label of any version.
pub(crate) fn is_absent(slot: &[u8]) -> bool {
    Label::decode(slot).is_err_and(|refusal| refusal == Refusal::Absent)
}

/// Says whether a slot holds a label that does not parse, of the group and the member of the one
/// that was written there.
pub(crate) fn is_damaged(slot: &[u8], written: &[u8]) -> bool {
    const IDENTITIES: std::ops::Range<usize> = 24..56;
    slot[IDENTITIES] == written[IDENTITIES]
        && matches!(Label::decode(slot), Err(Refusal::Corrupt(_)))
}

/// Returns how many bytes of a slot its label takes; nothing where it holds none that parses.
pub(crate) fn len_in(slot: &[u8]) -> Option<usize> {
    Label::decode(slot)
        .ok()
        .map(|_| u32::from_le_bytes([slot[16], slot[17], slot[18], slot[19]]) as usize)
}

/// Makes the checksum of a copy right, as far as its length is possible.
#[cfg(feature = "forge")]
pub(crate) fn reseal(slot: &mut [u8]) {
    let len = u32::from_le_bytes(slot[16..20].try_into().expect("four bytes")) as usize;
    if (HEAD_BYTES..=slot.len()).contains(&len) {
        slot[12..16].fill(0);
        let crc = crc32c(&slot[..len]);
        slot[12..16].copy_from_slice(&crc.to_le_bytes());
    }
}

fn read_copy(device: &dyn BlockDevice, offset: u64) -> Result<Label> {
    let name = device.name();
    if device.size_bytes() < offset + SLOT_BYTES as u64 {
        return Err(Error::new(
            ErrorKind::NotAMember,
            format!("{name} carries no label: it is too small for one"),
        ));
    }
    let mut slot = AlignedBuf::zeroed(SLOT_BYTES);
    device.read_at(&mut slot, offset)?;
    Label::decode(&slot).map_err(|refusal| match refusal {
        Refusal::Absent => Error::new(
            ErrorKind::NotAMember,
            format!("{name} carries no label of a Bedplate group"),
        ),
        Refusal::Newer(version) => Error::new(
            ErrorKind::NewerFormat,
            format!(
                "{name}: the label is of version {version}, and this software knows {VERSION}: use \
                 the newer one"
            ),
        ),
        Refusal::Divided => Error::new(
            ErrorKind::Divided,
            format!(
                "{name} is a member of a group with many volumes: name one of them, as \
                 group:NAME/VOLUME ('bedplate volume list' shows them)"
            ),
        ),
        Refusal::Corrupt(fault) => {
            let at = offset + fault.offset as u64;
            Error::new(
                ErrorKind::Corrupt,
                format!("{name}: the label does not parse at byte {at}: {}", fault.what),
            )
        }
    })
}

#[cfg(test)]
#[path = "label_tests.rs"]
pub(crate) mod tests;
