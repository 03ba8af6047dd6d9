//! The header of a conversion in place: two copies in neighbouring blocks of 4 KiB.
//!
//! It lies in a file of the old file system, which need not be mounted to find it: of the places
//! that the file has, the one that is divisible by the largest power of two is taken, and a search
//! looks at the places in that order.
//!
//! Invariants:
//! - I-ADO-1: at every moment, also inside an update, one of the two copies verifies. The newer one
//!   counts.

use super::read;
use crate::little_endian::LeReader;
use crate::{AlignedBuf, BlockDevice, Result, Short};

/// Bytes of one copy; the second follows the first.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of a superblock that are kept elsewhere, and of the old file system's first block.
pub const CONTENT_BYTES: usize = 4096;
const MAGIC: &[u8; 8] = b"BEDPINPL";
const VERSION: u32 = 1;
const CRC_AT: usize = 12;
/// How many ranges of the old file system are watched at most.
const WATCHED_MAX: usize = 64;
/// How many places a search looks at.
const PROBES_MAX: u64 = 1 << 18;
/// Bytes that are compared at once.
const STEP_BYTES: u64 = 1 << 20;

/// How far a conversion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum InPlaceState {
    /// The volume is whole, the old file system as it was.
    Made = 1,
    /// The superblocks are being written.
    Committing = 2,
}

/// The kind of the old file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum OldKind {
    /// ext2, ext3 or ext4.
    Ext4 = 1,
    /// XFS.
    Xfs = 2,
}

/// Bytes of the old file system that change whenever it is mounted for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watched {
    /// First byte, a multiple of 4 KiB.
    pub start: u64,
    /// Length in bytes, a multiple of 4 KiB.
    pub len: u64,
    /// CRC-64/NVME of what was there. With CRC-32C, which ext4 and XFS put behind what it is of, a
    /// superblock and another one would look alike.
    pub crc: u64,
}

/// What is known of a conversion in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InPlaceHeader {
    /// Identity of the volume.
    pub volume: [u8; 16],
    /// Counts the writes of the header.
    pub sequence: u64,
    /// Where its first copy lies, in bytes.
    pub at: u64,
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// How far it is.
    pub state: InPlaceState,
    /// What the old file system is.
    pub old: OldKind,
    /// Where the volume's superblock is kept, in bytes.
    pub superblock_at: u64,
    /// Where the old file system's first 4 KiB are kept, in bytes.
    pub old_head_at: u64,
    /// What tells whether the old file system was written to.
    pub watched: Vec<Watched>,
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Returns what the place of a header is a multiple of, in bytes, on a device of this size: a search
/// looks at so many places and no more.
#[must_use]
pub fn grain_bytes(size_bytes: u64) -> u64 {
    (size_bytes / PROBES_MAX).max(HEADER_BYTES as u64).next_power_of_two()
}

impl InPlaceHeader {
    fn encode(&self, copy: u64) -> AlignedBuf {
        assert!(self.watched.len() <= WATCHED_MAX, "a header watches {WATCHED_MAX} ranges at most");
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.volume);
        let own = self.at + copy * HEADER_BYTES as u64;
        for word in
            [self.sequence, own, self.at, self.size_bytes, self.superblock_at, self.old_head_at]
        {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&[self.state as u8, self.old as u8]);
        let count = u16::try_from(self.watched.len()).expect("at most WATCHED_MAX");
        out.extend_from_slice(&count.to_le_bytes());
        for watched in &self.watched {
            out.extend_from_slice(&watched.start.to_le_bytes());
            out.extend_from_slice(&watched.len.to_le_bytes());
            out.extend_from_slice(&watched.crc.to_le_bytes());
        }
        out.resize(HEADER_BYTES, 0);
        let crc = crc32c(&out);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        AlignedBuf::from_slice(&out)
    }

    /// Reads a copy that lies at a byte of a device; `None` for what is none. Nothing in it is
    /// trusted before it verifies.
    fn decode(bytes: &[u8], own: u64, size_bytes: u64) -> Option<Self> {
        if bytes.len() != HEADER_BYTES || !bytes.starts_with(MAGIC) {
            return None;
        }
        let mut sealed = bytes.to_vec();
        sealed[CRC_AT..CRC_AT + 4].fill(0);
        let header = Self::decode_fields(bytes, crc32c(&sealed), own).ok()??;
        header.is_possible(own, size_bytes).then_some(header)
    }

    fn decode_fields(bytes: &[u8], crc: u32, own: u64) -> std::result::Result<Option<Self>, Short> {
        let mut r = LeReader::new(&bytes[8..]);
        if r.u32()? != VERSION || r.u32()? != crc {
            return Ok(None);
        }
        let volume = r.array::<16>()?;
        let (sequence, place, at) = (r.u64()?, r.u64()?, r.u64()?);
        let (size_bytes, superblock_at, old_head_at) = (r.u64()?, r.u64()?, r.u64()?);
        let [state, old] = r.array::<2>()?;
        let state = match state {
            1 => InPlaceState::Made,
            2 => InPlaceState::Committing,
            _ => return Ok(None),
        };
        let old = match old {
            1 => OldKind::Ext4,
            2 => OldKind::Xfs,
            _ => return Ok(None),
        };
        let count = usize::from(u16::from_le_bytes(r.array::<2>()?));
        if place != own || count > WATCHED_MAX {
            return Ok(None);
        }
        let mut watched = Vec::with_capacity(count);
        for _ in 0..count {
            watched.push(Watched { start: r.u64()?, len: r.u64()?, crc: r.u64()? });
        }
        Ok(Some(Self {
            volume,
            sequence,
            at,
            size_bytes,
            state,
            old,
            superblock_at,
            old_head_at,
            watched,
        }))
    }

    /// Says whether everything that it names lies on the device.
    fn is_possible(&self, own: u64, size_bytes: u64) -> bool {
        let lies_within = |start: u64, len: u64| {
            (start | len).is_multiple_of(HEADER_BYTES as u64)
                && start.checked_add(len).is_some_and(|end| end <= size_bytes)
        };
        let content = CONTENT_BYTES as u64;
        self.size_bytes == size_bytes
            && size_bytes > super::SECOND_COPY + content
            && (self.at == own || self.at.checked_add(HEADER_BYTES as u64) == Some(own))
            && lies_within(self.superblock_at, content)
            && lies_within(self.old_head_at, content)
            && self.watched.iter().all(|watched| lies_within(watched.start, watched.len))
    }

    /// Reads the header whose first copy lies at a byte: the newer of two that verify.
    ///
    /// # Errors
    /// Those of the device.
    pub fn read(device: &dyn BlockDevice, at: u64) -> Result<Option<Self>> {
        let size = device.size_bytes();
        if at.checked_add(2 * HEADER_BYTES as u64).is_none_or(|end| end > size) {
            return Ok(None);
        }
        let bytes = read(device, at, 2 * HEADER_BYTES)?;
        let copy = |index: usize| {
            let own = at + (index * HEADER_BYTES) as u64;
            let part = &bytes[index * HEADER_BYTES..(index + 1) * HEADER_BYTES];
            Self::decode(part, own, size).filter(|header| header.at == at)
        };
        Ok(copy(0).into_iter().chain(copy(1)).max_by_key(|header| header.sequence))
    }

    /// Looks for a header on a device: at the places that are divisible by the largest powers of two
    /// first.
    ///
    /// # Errors
    /// Those of the device.
    pub fn find(device: &dyn BlockDevice) -> Result<Option<Self>> {
        let size = device.size_bytes();
        let grain = grain_bytes(size);
        let mut step = grain;
        while step <= size / 2 {
            step *= 2;
        }
        while step >= grain {
            // Places that a larger step divides were looked at.
            let mut at = step;
            while at < size {
                if let Some(header) = Self::read(device, at)? {
                    return Ok(Some(header));
                }
                at = at.saturating_add(2 * step);
            }
            step /= 2;
        }
        Ok(None)
    }

    /// Writes both copies, each made durable before the next is touched (I-ADO-1).
    ///
    /// # Errors
    /// Those of the device.
    pub fn write(&self, device: &dyn BlockDevice) -> Result<()> {
        assert!(
            self.is_possible(self.at, device.size_bytes()),
            "I-ADO-1: a header that is written can be read again: {self:?}"
        );
        for copy in 0..2 {
            device.write_at(&self.encode(copy), self.at + copy * HEADER_BYTES as u64)?;
            device.flush()?;
        }
        Ok(())
    }

    /// Removes the header from the device.
    ///
    /// # Errors
    /// Those of the device.
    pub fn erase(&self, device: &dyn BlockDevice) -> Result<()> {
        device.write_at(&AlignedBuf::zeroed(2 * HEADER_BYTES), self.at)?;
        device.flush()
    }

    /// Returns the first byte of a watched range that is not what it was.
    ///
    /// # Errors
    /// Those of the device.
    pub fn first_change(&self, device: &dyn BlockDevice) -> Result<Option<u64>> {
        for watched in &self.watched {
            if Watched::of(device, watched.start, watched.len)? != *watched {
                return Ok(Some(watched.start));
            }
        }
        Ok(None)
    }
}

impl Watched {
    /// Takes note of what is there.
    ///
    /// # Errors
    /// Those of the device.
    pub fn of(device: &dyn BlockDevice, start: u64, len: u64) -> Result<Self> {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
        let mut at = start;
        while at < start + len {
            let step = STEP_BYTES.min(start + len - at);
            digest.update(&read(device, at, step as usize)?);
            at += step;
        }
        Ok(Self { start, len, crc: digest.finalize() })
    }
}

/// A header for tests.
#[cfg(test)]
pub(super) fn sample(device: &dyn BlockDevice, at: u64) -> InPlaceHeader {
    InPlaceHeader {
        volume: [7; 16],
        sequence: 1,
        at,
        size_bytes: device.size_bytes(),
        state: InPlaceState::Made,
        old: OldKind::Xfs,
        superblock_at: at + 8192,
        old_head_at: at + 12288,
        watched: vec![
            Watched::of(device, 0, 4096).unwrap(),
            Watched::of(device, 1 << 20, 3 << 20).unwrap(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    /// I-ADO-1: of two copies the newer counts, one that is torn does not, and a header is found
    /// wherever it may lie.
    #[test]
    fn i_ado_1_a_header_is_found_by_either_copy() {
        for at in [4096, 1 << 20, 32 << 20, (48 << 20) + 4096 * 5] {
            let device = MemoryDevice::new(64 << 20);
            assert_eq!(InPlaceHeader::find(&*device).unwrap(), None);
            let first = sample(&*device, at);
            first.write(&*device).unwrap();
            assert_eq!(InPlaceHeader::find(&*device).unwrap(), Some(first.clone()));
            let next =
                InPlaceHeader { state: InPlaceState::Committing, sequence: 2, ..first.clone() };
            device.write_at(&next.encode(0), at).unwrap();
            assert_eq!(InPlaceHeader::find(&*device).unwrap(), Some(next), "the newer counts");
            device.write_at(&AlignedBuf::from_slice(&[1; 512]), at + 512).unwrap();
            assert_eq!(InPlaceHeader::find(&*device).unwrap(), Some(first.clone()), "torn");
            first.erase(&*device).unwrap();
            assert_eq!(InPlaceHeader::find(&*device).unwrap(), None, "erased");
        }
    }

    #[test]
    fn hostile_headers_are_none() {
        let device = MemoryDevice::new(64 << 20);
        let sane = sample(&*device, 1 << 20);
        let sealed = |change: &dyn Fn(&mut InPlaceHeader)| {
            let mut header = sane.clone();
            change(&mut header);
            InPlaceHeader::decode(&header.encode(0), 1 << 20, 64 << 20)
        };
        assert!(sealed(&|_| {}).is_some());
        let changes: [&dyn Fn(&mut InPlaceHeader); 6] = [
            &|header| header.size_bytes += 4096,
            &|header| header.at += 8192,
            &|header| header.superblock_at = 64 << 20,
            &|header| header.old_head_at = 513,
            &|header| header.watched[0].start = u64::MAX - 4095,
            &|header| header.watched[1].len = 64 << 20,
        ];
        for (at, change) in changes.iter().enumerate() {
            assert_eq!(sealed(change), None, "change {at}");
        }
        // A copy of a header elsewhere, as a file with an image of the device has it.
        assert_eq!(InPlaceHeader::decode(&sane.encode(0), 2 << 20, 64 << 20), None);
        for flipped in [0, 9, 40, 100, 4095] {
            let mut bytes = sane.encode(0).to_vec();
            bytes[flipped] ^= 1;
            assert_eq!(InPlaceHeader::decode(&bytes, 1 << 20, 64 << 20), None, "byte {flipped}");
        }
    }

    /// ext4 and XFS put the CRC-32C of their superblocks behind them. The CRC-32C of both together is
    /// then the same whatever they say, and a change was not seen.
    #[test]
    fn a_change_is_seen_where_a_checksum_follows_what_changed() {
        let device = MemoryDevice::new(64 << 20);
        let put = |count: u8| {
            let mut bytes = [0; 4096];
            bytes[40] = count;
            let crc = crc32c(&bytes[..1020]);
            bytes[1020..1024].copy_from_slice(&crc.to_le_bytes());
            device.write_at(&AlignedBuf::from_slice(&bytes), 0).unwrap();
            (Watched::of(&*device, 0, 4096).unwrap().crc, crc32c(&bytes))
        };
        let (first, second) = (put(1), put(2));
        assert_eq!(first.1, second.1, "as it was");
        assert_ne!(first.0, second.0);
    }

    #[test]
    fn a_search_looks_at_a_bounded_number_of_places() {
        for shift in 25..50 {
            let size = 1_u64 << shift;
            assert!(size / grain_bytes(size) <= PROBES_MAX && grain_bytes(size).is_power_of_two());
        }
    }
}
