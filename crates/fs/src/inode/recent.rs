//! A few long written extents of a file, to be found without the extent map and its lock.
//!
//! Valid under the inode lock, shared or exclusive: a change of where written blocks are clears
//! this under the map's write lock, and what is noted is noted under its read lock; blocks that a
//! reader found before stay what they are (I-IO-1). Each slot is a seqlock; a reader that meets a
//! change takes the map.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(test)]
use crate::BlockNo;
use crate::{Epoch, FileBlock};
use bedplate_store::Extent;
#[cfg(test)]
use bedplate_store::ExtentState;

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
    birth: AtomicU32,
}

impl Slot {
    fn read(&self) -> Option<(u64, u64, u64, Epoch)> {
        let version = self.version.load(Ordering::Acquire);
        let birth = Epoch(self.birth.load(Ordering::Relaxed));
        let found = (
            self.first.load(Ordering::Relaxed),
            self.start.load(Ordering::Relaxed),
            self.blocks.load(Ordering::Relaxed),
            birth,
        );
        fence(Ordering::Acquire);
        (version & 1 == 0 && self.version.load(Ordering::Relaxed) == version).then_some(found)
    }

    /// Writes unless another thread does.
    fn write(&self, first: u64, start: u64, blocks: u64, birth: Epoch) {
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
        self.birth.store(birth.0, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }
}

impl Recent {
    fn slot(&self, block: u64) -> &Slot {
        &self.slots[(block >> REGION_SHIFT) as usize & (SLOTS - 1)]
    }

    /// Returns the volume block of a file block, how many blocks follow it on the volume, itself
    /// included, and their birth.
    #[inline]
    pub(crate) fn find(&self, block: u64) -> Option<(u64, u64, Epoch)> {
        let (first, start, blocks, birth) = self.slot(block).read()?;
        let skip = block.wrapping_sub(first);
        (skip < blocks).then(|| (start + skip, blocks - skip, birth))
    }

    /// Remembers the written extent that holds `block`; the longest of a slot stays.
    pub(crate) fn note(&self, block: u64, (first, extent): (FileBlock, Extent)) {
        let blocks = u64::from(extent.blocks);
        let slot = self.slot(block);
        if blocks >= BLOCKS_MIN && slot.read().is_some_and(|(_, _, kept, _)| kept < blocks) {
            slot.write(first.0, extent.start.0, blocks, extent.birth);
        }
    }

    /// Forgets everything. The map's write lock is held.
    pub(crate) fn clear(&self) {
        self.slots
            .iter()
            .filter(|slot| slot.blocks.load(Ordering::Relaxed) > 0)
            .for_each(|slot| slot.write(0, 0, 0, Epoch(0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, blocks: u32) -> Extent {
        Extent { start: BlockNo(start), blocks, state: ExtentState::Written, birth: Epoch(1) }
    }

    #[test]
    fn a_long_extent_is_found_and_forgotten() {
        let recent = Recent::default();
        assert_eq!(recent.find(0), None);
        recent.note(150, (FileBlock(100), extent(5000, 100)));
        assert_eq!(recent.find(100), Some((5000, 100, Epoch(1))));
        assert_eq!(recent.find(199), Some((5099, 1, Epoch(1))));
        assert_eq!((recent.find(99), recent.find(200)), (None, None));
        recent.note(300, (FileBlock(300), extent(9000, 99)));
        assert_eq!(recent.find(100), Some((5000, 100, Epoch(1))), "the longer one stays");
        recent.clear();
        assert_eq!(recent.find(100), None);
    }

    #[test]
    fn a_reader_never_sees_half_a_change() {
        let recent = Recent::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..20_000u64 {
                    recent.slots[0].write(i, i * 3, i + 1000, Epoch(1));
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
