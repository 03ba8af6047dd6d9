//! The dirty region log: which regions may differ between their copies. It stands on every member
//! of a volume.
//!
//! ```text
//!   sector of 512 bytes:  CRC-32C of the rest │ first 4 bytes of the group's identity │ 4,032 regions, one bit each
//! ```
//! A region's bit is durable on every member before the first write goes there (I-DRL-1), and is
//! taken back lazily when all copies hold the same durably. So after a crash only regions with a
//! bit need work, and while a member is away the bits gather what it misses. A sector that does not
//! verify counts as all dirty; a torn write of the log loses nothing, because before the flush bits
//! are only added.
//!
//! * I-DRL-1: no data is written to a region whose bit is not durable on every member that takes
//!   writes.
//! * I-DRL-2: a bit is taken back only when what was written to the region is durable on every
//!   member.

use bedplate_block::{AlignedBuf, BlockDevice};

use crate::Id;
use crate::planted::{Mistake, is_planted};
use crate::wire::crc32c;

/// Bytes that a volume's log takes on a member.
const AREA_BYTES: u64 = 256 << 10;
/// Where the logs begin on a member.
const AREA_START: u64 = 2 << 20;
const SECTOR: usize = 512;
const HEAD: usize = 8;
const REGIONS_PER_SECTOR: u64 = ((SECTOR - HEAD) * 8) as u64;
/// How many regions a log holds.
pub(crate) const REGIONS_MAX: u64 = AREA_BYTES / SECTOR as u64 * REGIONS_PER_SECTOR;
/// The unit in which it is written: no device has larger sectors.
const PAGE: usize = 4096;

const _: () = assert!(
    PAGE.is_multiple_of(SECTOR) && AREA_BYTES.is_multiple_of(PAGE as u64),
    "the log is written in whole pages of whole sectors"
);

/// The log's content in memory.
#[derive(Debug)]
pub(crate) struct Drl {
    offset: u64,
    tag: [u8; 4],
    regions: u64,
    bytes: Vec<u8>,
}

impl Drl {
    /// Makes an empty log for the volume with ordinal `volume`.
    pub fn new(group: Id, volume: usize, regions: u64) -> Self {
        assert!(regions <= REGIONS_MAX, "the log holds the volume's regions");
        let len = (regions.div_ceil(REGIONS_PER_SECTOR) as usize * SECTOR).next_multiple_of(PAGE);
        let tag = [group.0[0], group.0[1], group.0[2], group.0[3]];
        let mut log = Self {
            offset: AREA_START + volume as u64 * AREA_BYTES,
            tag,
            regions,
            bytes: vec![0; len],
        };
        for sector in 0..len / SECTOR {
            log.seal(sector);
        }
        log
    }

    fn seal(&mut self, sector: usize) {
        let bytes = &mut self.bytes[sector * SECTOR..(sector + 1) * SECTOR];
        bytes[4..8].copy_from_slice(&self.tag);
        let crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }

    fn place(region: u64) -> (usize, u8) {
        let bit = region % REGIONS_PER_SECTOR;
        debug_assert!(region < REGIONS_MAX, "I-DRL-1: the log has a bit for region {region}");
        (
            (region / REGIONS_PER_SECTOR) as usize * SECTOR + HEAD + (bit / 8) as usize,
            1 << (bit % 8),
        )
    }

    pub fn is_dirty(&self, region: u64) -> bool {
        debug_assert!(region < self.regions, "region {region} is one of {}", self.regions);
        let (byte, mask) = Self::place(region);
        self.bytes[byte] & mask != 0
    }

    /// Returns the dirty regions.
    pub fn dirty(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.regions).filter(|region| self.is_dirty(*region))
    }

    /// Sets or takes back bits and returns the pages that changed, each once.
    pub fn change(&mut self, regions: impl IntoIterator<Item = u64>, dirty: bool) -> Vec<usize> {
        let mut pages = Vec::new();
        for region in regions {
            debug_assert!(region < self.regions, "region {region} is one of {}", self.regions);
            let (byte, mask) = Self::place(region);
            if (self.bytes[byte] & mask != 0) != dirty {
                self.bytes[byte] ^= mask;
                self.seal(byte / SECTOR);
                pages.push(byte / PAGE);
            }
        }
        pages.dedup();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Returns all pages.
    pub fn pages(&self) -> Vec<usize> {
        (0..self.bytes.len() / PAGE).collect()
    }

    /// Writes pages to a member; durable only after a flush.
    pub fn write(&self, device: &dyn BlockDevice, pages: &[usize]) -> bedplate_block::Result<()> {
        for page in pages {
            let start = page * PAGE;
            debug_assert!(
                start + PAGE <= self.bytes.len(),
                "page {page} is one of the log's {} bytes",
                self.bytes.len()
            );
            device.write_at(
                &AlignedBuf::from_slice(&self.bytes[start..start + PAGE]),
                self.offset + start as u64,
            )?;
        }
        Ok(())
    }

    /// Adds what a member's log says.
    pub fn absorb(&mut self, device: &dyn BlockDevice) -> bedplate_block::Result<()> {
        let mut found = AlignedBuf::zeroed(self.bytes.len());
        device.read_at(&mut found, self.offset)?;
        for (own, theirs) in self.bytes.chunks_exact_mut(SECTOR).zip(found.chunks_exact(SECTOR)) {
            let good =
                theirs[4..8] == self.tag && theirs[..4] == crc32c(&theirs[4..]).to_le_bytes();
            for (own, theirs) in own[HEAD..].iter_mut().zip(&theirs[HEAD..]) {
                *own |= if good {
                    *theirs
                } else if is_planted(Mistake::DamagedLogIsClean) {
                    0
                } else {
                    0xff
                };
            }
        }
        for sector in 0..self.bytes.len() / SECTOR {
            self.seal(sector);
        }
        Ok(())
    }
}

/// Returns where the log of a volume lies on a member, and its length.
#[cfg(feature = "forge")]
pub(crate) fn area(volume: usize) -> (u64, u64) {
    (AREA_START + volume as u64 * AREA_BYTES, AREA_BYTES)
}

/// Makes the checksums of sectors right.
#[cfg(feature = "forge")]
pub(crate) fn reseal(sectors: &mut [u8]) {
    for sector in sectors.chunks_exact_mut(SECTOR).filter(|sector| sector[4..8] != [0; 4]) {
        let crc = crc32c(&sector[4..]);
        sector[..4].copy_from_slice(&crc.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use bedplate_block::MemoryDevice;

    use super::*;

    #[test]
    fn logs_are_joined_and_a_damaged_sector_counts_as_dirty() {
        let (a, b) = (MemoryDevice::new(4 << 20), MemoryDevice::new(4 << 20));
        let regions = REGIONS_PER_SECTOR * 20;
        let new = || Drl::new(Id([7; 16]), 1, regions);
        for (device, dirty) in [(&a, 3), (&b, REGIONS_PER_SECTOR * 9)] {
            let mut log = new();
            assert_eq!(
                log.change([dirty, dirty], true),
                vec![(dirty / REGIONS_PER_SECTOR) as usize * SECTOR / PAGE]
            );
            assert!(log.change([dirty], true).is_empty());
            log.write(&**device, &log.pages()).unwrap();
        }
        let mut joined = new();
        joined.absorb(&*a).unwrap();
        joined.absorb(&*b).unwrap();
        assert_eq!(joined.dirty().collect::<Vec<_>>(), vec![3, REGIONS_PER_SECTOR * 9]);

        // Bit rot in the first sector; the others are still believed.
        let mut sector = AlignedBuf::zeroed(SECTOR);
        a.read_at(&mut sector, joined.offset).unwrap();
        sector[100] ^= 4;
        a.write_at(&sector, joined.offset).unwrap();
        let mut damaged = new();
        damaged.absorb(&*a).unwrap();
        assert_eq!(damaged.dirty().count() as u64, REGIONS_PER_SECTOR);

        // Another group's log says nothing that could be believed.
        let mut foreign = Drl::new(Id([8; 16]), 1, regions);
        foreign.absorb(&*b).unwrap();
        assert_eq!(foreign.dirty().count() as u64, regions);
    }
}
