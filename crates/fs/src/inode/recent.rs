//! A few long extents of a file that have data, to be found without the extent map and its lock.
//!
//! Valid under the inode lock, shared or exclusive: a change of where written blocks are clears
//! this under the map's write lock, and what is noted is noted under its read lock; blocks that a
//! reader found before stay what they are (I-IO-1). Each slot is a seqlock; a reader that meets a
//! change takes the map.

use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(test)]
use crate::BlockNo;
use crate::{Epoch, FileBlock};
use bedplate_store::{Extent, ExtentState};

/// Slots of a file, a power of two.
const SLOTS: usize = 8;

/// File blocks that share a slot lie in a region of 2 to this power.
const REGION_SHIFT: u32 = 10;

/// Shorter extents are not worth a slot: there are too many of them.
const BLOCKS_MIN: u64 = 64;

const _: () = assert!(SLOTS.is_power_of_two(), "a slot is found by bits of a block's number");

/// The slots of one file.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    slots: [Slot; SLOTS],
}

/// `blocks` is 0 in an empty slot.
#[derive(Debug, Default)]
struct Slot {
    /// Odd while it is written.
    version: AtomicU64,
    first: AtomicU64,
    start: AtomicU64,
    blocks: AtomicU64,
    /// And above it whether its blocks have checksums.
    birth: AtomicU64,
}

/// What is above the birth in a slot whose blocks have checksums.
const SUMMED: u64 = 1 << 32;

/// Where a file block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The volume block.
    pub(crate) start: u64,
    /// How many blocks follow it on the volume, itself included.
    pub(crate) blocks: u64,
    pub(crate) birth: Epoch,
    /// Whether the blocks have checksums.
    pub(crate) summed: bool,
}

impl Slot {
    /// Returns the extent: where it begins in the file and on the volume, its blocks, and its birth
    /// with what is above it.
    fn read(&self) -> Option<(u64, u64, u64, u64)> {
        let version = self.version.load(Ordering::Acquire);
        let found = (
            self.first.load(Ordering::Relaxed),
            self.start.load(Ordering::Relaxed),
            self.blocks.load(Ordering::Relaxed),
            self.birth.load(Ordering::Relaxed),
        );
        fence(Ordering::Acquire);
        (version & 1 == 0 && self.version.load(Ordering::Relaxed) == version).then_some(found)
    }

    /// Writes unless another thread does.
    fn write(&self, first: u64, start: u64, blocks: u64, birth: u64) {
        let version = self.version.load(Ordering::Relaxed);
        if version & 1 != 0
            || self
                .version
                .compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        fence(Ordering::Release);
        self.first.store(first, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.blocks.store(blocks, Ordering::Relaxed);
        self.birth.store(birth, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }
}

impl Recent {
    fn slot(&self, block: u64) -> &Slot {
        &self.slots[(block >> REGION_SHIFT) as usize & (SLOTS - 1)]
    }

    /// Returns where a file block lies.
    #[inline]
    pub(crate) fn find(&self, block: u64) -> Option<Place> {
        let (first, start, blocks, birth) = self.slot(block).read()?;
        let skip = block.wrapping_sub(first);
        (skip < blocks).then(|| Place {
            start: start + skip,
            blocks: blocks - skip,
            birth: Epoch(birth as u32),
            summed: birth & SUMMED != 0,
        })
    }

    /// Remembers the extent with data that holds `block`; the longest of a slot stays.
    pub(crate) fn note(&self, block: u64, (first, extent): (FileBlock, Extent)) {
        let blocks = u64::from(extent.blocks);
        let slot = self.slot(block);
        if blocks >= BLOCKS_MIN && slot.read().is_some_and(|(_, _, kept, _)| kept < blocks) {
            let above = if extent.state == ExtentState::Summed { SUMMED } else { 0 };
            slot.write(first.0, extent.start.0, blocks, u64::from(extent.birth.0) | above);
        }
    }

    /// Forgets everything. The map's write lock is held.
    pub(crate) fn clear(&self) {
        self.slots
            .iter()
            .filter(|slot| slot.blocks.load(Ordering::Relaxed) > 0)
            .for_each(|slot| slot.write(0, 0, 0, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, blocks: u32, state: ExtentState) -> Extent {
        Extent { start: BlockNo(start), blocks, state, birth: Epoch(u32::MAX) }
    }

    fn found(start: u64, blocks: u64, summed: bool) -> Option<Place> {
        Some(Place { start, blocks, birth: Epoch(u32::MAX), summed })
    }

    #[test]
    fn a_long_extent_is_found_and_forgotten() {
        let recent = Recent::default();
        assert_eq!(recent.find(0), None);
        recent.note(150, (FileBlock(100), extent(5000, 100, ExtentState::Written)));
        assert_eq!(recent.find(100), found(5000, 100, false));
        assert_eq!(recent.find(199), found(5099, 1, false));
        assert_eq!((recent.find(99), recent.find(200)), (None, None));
        recent.note(300, (FileBlock(300), extent(9000, 99, ExtentState::Summed)));
        assert_eq!(recent.find(100), found(5000, 100, false), "the longer one stays");
        recent.clear();
        assert_eq!(recent.find(100), None);
        recent.note(300, (FileBlock(300), extent(9000, 99, ExtentState::Summed)));
        assert_eq!(recent.find(301), found(9001, 98, true));
    }

    #[test]
    fn a_reader_never_sees_half_a_change() {
        let recent = Recent::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..20_000u64 {
                    recent.slots[0].write(i, i * 3, i + 1000, 1);
                }
            });
            for _ in 0..20_000 {
                if let Some((first, start, blocks, _)) =
                    recent.slots[0].read().filter(|(_, _, blocks, _)| *blocks > 0)
                {
                    assert_eq!((start, blocks), (first * 3, first + 1000));
                }
            }
        });
    }
}
