//! Checksums of file data, kept by the block of the volume that they are of.
//!
//! ```text
//!   record    key    first block u64, big-endian         value  CRC-32C u32 of each block from there on
//!   tree      key    number of a group u64, big-endian    value  CRC-32C u32 of key and rest | which blocks have one, 128 bits | CRC-32C u32 each
//!   group 2          blocks 256 to 383
//! ```
//!
//! An extent says whether its blocks have checksums ([`ExtentState::Summed`]). Such blocks are never
//! overwritten in place, so a checksum holds as long as its block is in use, for every file and
//! checkpoint that has the block. A block that becomes free keeps the old one, which no extent asks
//! for; what uses the block next, with a checksum, writes over it.
//!
//! - I-SUM-1: a record that maps blocks as summed has their checksums.
//! - I-SUM-3: such a record exposes the blocks as a whole, also behind the end of the file: a crash
//!   that keeps the record keeps what the checksums are of.
//!
//! [`ExtentState::Summed`]: crate::ExtentState::Summed

use std::collections::BTreeMap;
use std::ops::Range;

use crate::bytes::Bytes;
use crate::checksum::Crc32c;
use crate::decode::Reader;
use crate::planted::{PlantedBug, planted};
use crate::row::{RowChange, Table};
use crate::{BlockNo, Error, Result};

/// Blocks of one row of the tree.
pub const GROUP_BLOCKS: u64 = 128;
/// The most checksums of one record: a record is to stay far below what the log takes at once.
pub const SUMS_OF_RECORD: u64 = 8192;

/// Checksums by block, in memory.
pub(crate) type Sums = BTreeMap<u64, u32>;

/// Returns the row of a record that has checksums of blocks from `start` on.
pub fn put_sums(start: BlockNo, sums: impl ExactSizeIterator<Item = u32>) -> RowChange {
    debug_assert!(sums.len() > 0, "I-SUM-1: a row has the checksum of a block: {start:?}");
    let key = Bytes::from(start.0.to_be_bytes());
    // Most have a few.
    let (mut few, len) = ([0; 5 * 4], sums.len() * 4);
    if let Some(value) = few.get_mut(..len) {
        value.chunks_mut(4).zip(sums).for_each(|(to, sum)| to.copy_from_slice(&sum.to_le_bytes()));
        return RowChange::put(Table::Sum, key, Bytes::from(&*value));
    }
    let mut value = Vec::with_capacity(len);
    sums.for_each(|sum| value.extend_from_slice(&sum.to_le_bytes()));
    RowChange::put(Table::Sum, key, value)
}

/// Returns the checksums of a row of a record, each with its block. What is no such row has none:
/// then its blocks have no checksum, and reading them fails.
pub(crate) fn of_row(key: &[u8], value: Option<&[u8]>) -> impl Iterator<Item = (u64, u32)> {
    let first = <[u8; 8]>::try_from(key).ok().map(u64::from_be_bytes);
    let words = value
        .unwrap_or_default()
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("a chunk of four bytes")));
    first.into_iter().flat_map(|first| first..=u64::MAX).zip(words)
}

/// Takes a row of a record over into memory.
pub(crate) fn take_over(sums: &mut Sums, key: &[u8], value: Option<&[u8]>) {
    sums.extend(of_row(key, value));
}

/// Returns the key of the row of a group.
pub(crate) fn group_key(group: u64) -> [u8; 8] {
    group.to_be_bytes()
}

/// Takes the key of a group apart.
///
/// # Errors
/// `Corrupt` for what is none.
pub fn split_group_key(key: &[u8]) -> Result<u64> {
    let group = <[u8; 8]>::try_from(key).ok().map(u64::from_be_bytes);
    group.filter(|group| *group <= u64::MAX / GROUP_BLOCKS).ok_or_else(|| {
        Error::corrupt(format!("a key of {} bytes is not that of a group of checksums", key.len()))
    })
}

/// The checksums of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SumGroup {
    present: u128,
    sums: [u32; GROUP_BLOCKS as usize],
}

impl Default for SumGroup {
    fn default() -> Self {
        Self { present: 0, sums: [0; GROUP_BLOCKS as usize] }
    }
}

impl SumGroup {
    /// Decodes the row of a group.
    ///
    /// # Errors
    /// `Corrupt` for what is none.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self> {
        let group = split_group_key(key)?;
        let damaged = |what: &str| {
            let first = group * GROUP_BLOCKS;
            Error::corrupt(format!(
                "the checksums of blocks {first} to {} cannot be read: {what}; run a check",
                first + (GROUP_BLOCKS - 1)
            ))
        };
        let mut r = Reader::new(value, "the row");
        let sum = r.u32().map_err(|e| damaged(&e.message))?;
        if sum != checksum(key, &value[4..]) {
            return Err(damaged("their own checksum does not match"));
        }
        let bits = r.take(16).map_err(|e| damaged(&e.message))?;
        let present = u128::from_le_bytes(bits.try_into().expect("16 bytes were taken"));
        let mut out = Self { present, ..Self::default() };
        for index in (0..GROUP_BLOCKS as usize).filter(|index| present >> index & 1 == 1) {
            out.sums[index] = r.u32().map_err(|e| damaged(&e.message))?;
        }
        r.end().map_err(|e| damaged(&e.message))?;
        if present == 0 {
            return Err(damaged("the row has none"));
        }
        Ok(out)
    }

    /// Encodes the row of a group.
    pub fn encode(&self, key: &[u8]) -> Vec<u8> {
        debug_assert!(self.present != 0, "I-SUM-1: a group has a checksum");
        let mut out = vec![0; 4];
        out.extend_from_slice(&self.present.to_le_bytes());
        for index in (0..GROUP_BLOCKS as usize).filter(|index| self.has(*index)) {
            out.extend_from_slice(&self.sums[index].to_le_bytes());
        }
        let sum = checksum(key, &out[4..]);
        out[..4].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn has(&self, index: usize) -> bool {
        self.present >> index & 1 == 1
    }

    /// Returns the checksum of a block of the group.
    pub fn get(&self, block: u64) -> Option<u32> {
        let index = (block % GROUP_BLOCKS) as usize;
        self.has(index).then(|| self.sums[index])
    }

    /// Sets the checksum of a block of the group.
    pub(crate) fn set(&mut self, block: u64, sum: u32) {
        let index = (block % GROUP_BLOCKS) as usize;
        if planted(PlantedBug::OldSumKept) && self.has(index) {
            return;
        }
        self.present |= 1 << index;
        self.sums[index] = sum;
    }

    /// Returns how many blocks have a checksum.
    pub fn count(&self) -> u32 {
        self.present.count_ones()
    }
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    let mut sum = Crc32c::default();
    sum.update(key);
    sum.update(body);
    sum.finish()
}

/// Returns the groups of a range of blocks.
pub(crate) fn groups(blocks: &Range<u64>) -> Range<u64> {
    blocks.start / GROUP_BLOCKS..blocks.end.div_ceil(GROUP_BLOCKS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Decodes the row of any group, its checksum made right first. What decodes encodes to the same.
    fn decode_sums(group: u64, body: &[u8]) {
        let key = group_key(group);
        let value = [&checksum(&key, body).to_le_bytes(), body].concat();
        let Ok(decoded) = SumGroup::decode(&key, &value) else { return };
        assert_eq!(decoded.encode(&key), value, "what was decoded encodes to the same");
    }

    proptest! {
        #[test]
        fn groups_survive_encoding(
            group in 0..1_u64 << 50,
            sums in proptest::collection::btree_map(0..GROUP_BLOCKS, any::<u32>(), 1..128),
            turned in any::<(usize, u8)>(),
        ) {
            let mut one = SumGroup::default();
            sums.iter().for_each(|(block, sum)| one.set(group * GROUP_BLOCKS + block, *sum));
            let key = group_key(group);
            let mut value = one.encode(&key);
            prop_assert_eq!(SumGroup::decode(&key, &value).unwrap(), one.clone());
            for block in 0..GROUP_BLOCKS {
                prop_assert_eq!(one.get(block), sums.get(&block).copied());
            }
            prop_assert!(SumGroup::decode(&group_key(group + 1), &value).is_err());
            let at = turned.0 % value.len();
            value[at] ^= turned.1.max(1);
            prop_assert!(SumGroup::decode(&key, &value).is_err(), "a bit that turned is seen");
        }

        #[test]
        fn hostile_groups_are_refused_or_encode_to_the_same(
            group in any::<u64>(),
            body in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            decode_sums(group, &body);
        }
    }

    #[test]
    fn rows_of_records_are_taken_over_in_order() {
        let mut sums = Sums::new();
        let rows = [
            put_sums(BlockNo(5), [50, 60, 70].into_iter()),
            put_sums(BlockNo(6), [61].into_iter()),
        ];
        for row in rows {
            take_over(&mut sums, &row.key, row.value.as_deref());
        }
        take_over(&mut sums, &[1], Some(&[0; 4]));
        take_over(&mut sums, &[0; 8], Some(&[1, 2, 3]));
        take_over(&mut sums, &[0; 8], None);
        take_over(&mut sums, &[u8::MAX; 8], Some(&[9; 12]));
        let all: Vec<_> = sums.into_iter().collect();
        assert_eq!(all, [(5, 50), (6, 61), (7, 70), (u64::MAX, 0x0909_0909)]);
    }
}
