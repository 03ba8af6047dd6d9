//! Free space and reference counts of blocks as they lie on the device, so that a mount need not
//! read every extent to know them.
//!
//! ```text
//!   key: kind u8 | number u64, big-endian       value
//!   1 | 0          head                         how large regions are
//!   2 | group      the summaries of 1024 regions: free blocks, longest run, number of runs, whether blocks are shared
//!   3 | region     the reference counts of its blocks (`counts.rs`)
//!   4 | inode      that it is a clone or was cloned
//!   5 | 0          how many extents there are
//! ```
//!
//! The metadata commit that changes rows of extents, images and inodes folds the differences in,
//! in the same transaction of the tree: what is stored is a function of the rows that the tree
//! holds, whenever it is read. What a log replay puts above the tree is folded in memory.
//!
//! - I-SPC-6: in every durable commit of the tree the counts are those of its rows.
//! - I-SPC-7: a region that the allocator has not loaded is as the tree has it: what changes it,
//!   in memory or in the tree, loads it before.

mod changes;
mod counts;
mod covers;
#[cfg(test)]
mod tests;

pub(crate) use changes::SpaceChanges;
pub(crate) use counts::{Change, Counts};
pub(crate) use covers::Covers;

use std::collections::BTreeMap;

use crate::decode::Reader;
use crate::{Error, Result};

/// The largest region, in powers of two of blocks: its summary fits 16 bits a number.
const SHIFT_MAX: u32 = 15;
/// The smallest.
const SHIFT_MIN: u32 = 8;
/// A volume is divided into so many regions, in powers of two, if that makes them no larger or
/// smaller than they may be.
const REGIONS_SHIFT: u32 = 6;
/// Regions whose summaries share a row.
pub(crate) const GROUP_REGIONS: u64 = 1024;

const HEAD: u8 = 1;
const GROUP: u8 = 2;
const COUNTS: u8 = 3;
const CLONED: u8 = 4;
const EXTENTS: u8 = 5;

/// The key of a row.
pub(crate) type Key = [u8; 9];

fn key(kind: u8, number: u64) -> Key {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The key of the head.
pub(crate) fn head_key() -> Key {
    key(HEAD, 0)
}

/// The key of a group of summaries.
pub(crate) fn group_key(group: u64) -> Key {
    key(GROUP, group)
}

/// The key of a region's counts.
pub(crate) fn counts_key(region: u64) -> Key {
    key(COUNTS, region)
}

/// The key that says of an inode that it is a clone, or was cloned.
pub(crate) fn cloned_key(ino: u64) -> Key {
    key(CLONED, ino)
}

/// The key of the number of extents.
pub(crate) fn extents_key() -> Key {
    key(EXTENTS, 0)
}

/// Encodes the number of extents.
pub(crate) fn encode_extents(count: u64) -> Vec<u8> {
    sealed(&extents_key(), &count.to_le_bytes())
}

/// Decodes the number of extents; `Corrupt` for what is none.
pub(crate) fn decode_extents(row: &[u8]) -> Result<u64> {
    let mut r = Reader::new(unseal(&extents_key(), row)?, "the number of extents");
    let count = r.u64()?;
    r.end()?;
    Ok(count)
}

/// Returns the number in a key.
pub(crate) fn number_of(key: &Key) -> u64 {
    key[1..].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Puts a checksum before what a row holds.
pub(crate) fn sealed(key: &[u8], body: &[u8]) -> Vec<u8> {
    [&counts::sum(key, body).to_le_bytes(), body].concat()
}

/// Decodes a row of the table, its checksum made right first. What decodes encodes to what decodes
/// to the same.
#[cfg(any(test, feature = "forge"))]
pub fn decode_space_row(key: &[u8], body: &[u8]) {
    let row = sealed(key, body);
    let Ok(found) = Key::try_from(key) else { return };
    let head = Head { shift: SHIFT_MIN, given_up: false };
    match found[0] {
        HEAD => {
            if let Ok(head) = Head::decode(&sealed(&head_key(), body)) {
                assert_eq!(Head::decode(&head.encode()).ok(), Some(head));
            }
        }
        GROUP => {
            if let Ok(group) = Group::decode(key, &row, head) {
                assert_eq!(group.encode(key), row);
            }
        }
        EXTENTS => {
            if let Ok(count) = decode_extents(&sealed(&extents_key(), body)) {
                assert_eq!(encode_extents(count), sealed(&extents_key(), body));
            }
        }
        COUNTS => {
            if let Ok(counts) = Counts::decode(key, &row, head.region_blocks()) {
                let again = counts.encode(key);
                let again = again.map(|row| Counts::decode(key, &row, head.region_blocks()));
                assert!(again.is_none_or(|again| again.is_ok_and(|again| again == counts)));
            }
        }
        _ => {}
    }
}

/// Gives a row whose first four bytes are left out the checksum that it asks for.
fn seal(key: &[u8], row: &mut [u8]) {
    let crc = counts::sum(key, &row[4..]);
    row[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Returns what is behind the checksum of a row.
pub(crate) fn unseal<'a>(key: &[u8], row: &'a [u8]) -> Result<&'a [u8]> {
    match row.split_first_chunk::<4>() {
        Some((crc, body)) if u32::from_le_bytes(*crc) == counts::sum(key, body) => Ok(body),
        _ => Err(Error::corrupt(format!(
            "row {} {} of the free space is damaged: its checksum does not match",
            key.first().copied().unwrap_or_default(),
            key.get(1..).and_then(|n| n.try_into().ok()).map_or(0, u64::from_be_bytes)
        ))),
    }
}

/// How the volume is divided, and whether what is stored counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Blocks of a region, in powers of two.
    pub(crate) shift: u32,
    /// Rows contradicted each other in a commit, and from then on nothing was folded in.
    pub(crate) given_up: bool,
}

impl Head {
    /// Returns that of a volume of so many blocks.
    pub(crate) fn of(blocks: u64) -> Self {
        let shift = blocks.max(1).ilog2().saturating_sub(REGIONS_SHIFT);
        Self { shift: shift.clamp(SHIFT_MIN, SHIFT_MAX), given_up: false }
    }

    /// Returns the number of blocks of a region.
    pub(crate) fn region_blocks(self) -> u32 {
        1 << self.shift
    }

    /// Encodes the row.
    pub(crate) fn encode(self) -> Vec<u8> {
        let shift = u8::try_from(self.shift).expect("at most SHIFT_MAX");
        let mut out = vec![0, 0, 0, 0, shift, self.given_up.into(), 0, 0];
        seal(&head_key(), &mut out);
        out
    }

    /// Decodes the row; `Corrupt` for what is none.
    pub(crate) fn decode(row: &[u8]) -> Result<Self> {
        let mut r = Reader::new(unseal(&head_key(), row)?, "the head of the free space");
        let (shift, given_up, zero) = (r.u8()?.into(), r.u8()?, r.u16()?);
        r.end()?;
        if !(SHIFT_MIN..=SHIFT_MAX).contains(&shift) || given_up > 1 || zero != 0 {
            return Err(Error::corrupt(format!(
                "the head of the free space says regions of 2^{shift} blocks and {given_up}"
            )));
        }
        Ok(Self { shift, given_up: given_up == 1 })
    }
}

/// What a mount knows of a region before it reads its counts. A region without one is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Summary {
    /// Free blocks.
    pub(crate) free: u32,
    /// The longest free run.
    pub(crate) longest: u32,
    /// Number of free runs.
    pub(crate) runs: u32,
    /// Whether several rows cover a block.
    pub(crate) shared: bool,
}

impl Summary {
    /// Returns that of a region of so many blocks in which everything is free.
    pub(crate) fn free(blocks: u32) -> Self {
        Self { free: blocks, longest: blocks, runs: 1, shared: false }
    }
}

const SUMMARY_BYTES: usize = 6;
/// In the number of runs.
const SHARED: u16 = 1 << 15;

/// The summaries of [`GROUP_REGIONS`] regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group(pub(crate) Vec<Summary>);

impl Group {
    /// Returns those of regions in which everything is free.
    pub(crate) fn free(head: Head) -> Self {
        Self(vec![Summary::free(head.region_blocks()); GROUP_REGIONS as usize])
    }

    /// Encodes the row.
    pub(crate) fn encode(&self, key: &[u8]) -> Vec<u8> {
        let mut out = vec![0; 4];
        out.reserve(SUMMARY_BYTES * self.0.len());
        for summary in &self.0 {
            let short = |n: u32| u16::try_from(n).expect("a region has 2^15 blocks at most");
            let shared = if summary.shared { SHARED } else { 0 };
            for word in [short(summary.free), short(summary.longest), short(summary.runs) | shared]
            {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        seal(key, &mut out);
        out
    }

    /// Decodes the row of a key; `Corrupt` for what is none.
    pub(crate) fn decode(key: &[u8], row: &[u8], head: Head) -> Result<Self> {
        let mut r = Reader::new(unseal(key, row)?, "summaries of the free space");
        let mut group = Vec::with_capacity(GROUP_REGIONS as usize);
        while !r.is_empty() {
            let (free, longest, runs) = (r.u16()?.into(), r.u16()?.into(), r.u16()?);
            let shared = runs & SHARED != 0;
            let summary = Summary { free, longest, runs: (runs & !SHARED).into(), shared };
            if summary.longest > free || free > head.region_blocks() || summary.runs > free {
                return Err(Error::corrupt(format!("a region cannot have a summary {summary:?}")));
            }
            group.push(summary);
        }
        if group.len() as u64 == GROUP_REGIONS {
            Ok(Self(group))
        } else {
            Err(Error::corrupt(format!("a row has the summaries of {} regions", group.len())))
        }
    }
}

/// The counts of some regions.
#[derive(Debug)]
pub(crate) struct SpaceMap {
    pub(crate) head: Head,
    pub(crate) regions: BTreeMap<u64, Counts>,
}

impl SpaceMap {
    /// Begins with no region.
    pub(crate) fn new(head: Head) -> Self {
        Self { head, regions: BTreeMap::new() }
    }

    /// Carries out changes; `load` says what a region was before.
    ///
    /// # Errors
    /// `Corrupt` when the rows contradict each other; those of `load`.
    pub(crate) fn apply(
        &mut self,
        covers: &Covers,
        mut load: impl FnMut(u64) -> Result<Counts>,
    ) -> Result<()> {
        covers.by_region(self.head, |region, changes| {
            let counts = match self.regions.get_mut(&region) {
                Some(counts) => counts,
                None => self.regions.entry(region).or_insert(load(region)?),
            };
            counts.change(changes, region << self.head.shift)
        })
    }
}
