//! Checksums that are remembered, to be found without the rows and without a lock.
//!
//! ```text
//!   find ──► slot of the group ─ has them ─► given
//!                └ has not ─► begin ─► rows in memory, and the tree ─► keep, unless the slot changed since
//!   note ──► slot of the group: what a record says of a block from now on
//! ```
//!
//! A slot has the checksums of one group of blocks ([`GROUP_BLOCKS`]) and is a seqlock. Two groups
//! whose numbers differ by a multiple of the slots share one, and the later stays.
//!
//! - I-SUM-4: what is remembered of a block is what the rows say of it. What changes the rows notes
//!   it here under the same lock; what reads them keeps what it found only where nothing was noted
//!   in the slot since it began.

use std::array::from_fn;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::planted::{PlantedBug, planted};
use crate::sums::GROUP_BLOCKS;

/// Slots that come into memory together.
const SLOTS_OF_CHUNK: u64 = 32;

/// The most bytes that checksums are remembered in.
const BYTES_MAX: u64 = 1 << 30;

/// What a group says of each of its blocks.
pub(super) type OfGroup = [Option<u32>; GROUP_BLOCKS as usize];

struct Slot {
    /// Odd while it is written.
    version: AtomicU64,
    /// The group's number, and one; 0: none.
    group: AtomicU64,
    /// Which blocks are known.
    present: [AtomicU64; 2],
    sums: [AtomicU32; GROUP_BLOCKS as usize],
}

/// The version of a slot before the rows of a group were read.
#[derive(Clone, Copy)]
pub(super) struct Begun(u64);

/// The checksums that a store remembers.
pub(super) struct SumCache {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
}

impl Slot {
    fn empty() -> Self {
        Self {
            version: AtomicU64::new(0),
            group: AtomicU64::new(0),
            present: from_fn(|_| AtomicU64::new(0)),
            sums: from_fn(|_| AtomicU32::new(0)),
        }
    }

    fn present(&self) -> u128 {
        let [low, high] = &self.present;
        u128::from(high.load(Ordering::Relaxed)) << 64 | u128::from(low.load(Ordering::Relaxed))
    }

    fn set_present(&self, present: u128) {
        self.present[0].store(present as u64, Ordering::Relaxed);
        self.present[1].store((present >> 64) as u64, Ordering::Relaxed);
    }

    /// Copies checksums from a block of a group on; `false` where one is not known, or changes.
    #[inline]
    fn read(&self, group: u64, first: usize, out: &mut [u32]) -> bool {
        let version = self.version.load(Ordering::Acquire);
        let wanted = (u128::MAX >> (GROUP_BLOCKS as usize - out.len())) << first;
        if version & 1 != 0
            || self.group.load(Ordering::Relaxed) != group + 1
            || self.present() & wanted != wanted
        {
            return false;
        }
        for (out, sum) in out.iter_mut().zip(&self.sums[first..]) {
            *out = sum.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == version
    }

    /// Changes the slot, whose version was `version`; `false`: it is another by now.
    fn write(&self, version: u64, change: impl FnOnce()) -> bool {
        if version & 1 != 0
            || self
                .version
                .compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return false;
        }
        fence(Ordering::Release);
        change();
        self.version.store(version + 2, Ordering::Release);
        true
    }
}

impl Slot {
    fn note(&self, group: u64, sums: impl Iterator<Item = (u64, u32)>) {
        let is_its = self.group.load(Ordering::Relaxed) == group + 1;
        let version = self.version.load(Ordering::Relaxed);
        let noted = self.write(version, || {
            let mut present = self.present();
            for (block, sum) in sums {
                let index = (block % GROUP_BLOCKS) as usize;
                if is_its {
                    self.sums[index].store(sum, Ordering::Relaxed);
                    present |= 1 << index;
                }
            }
            self.set_present(present);
        });
        assert!(noted, "I-SUM-4: nothing else writes to a slot while rows change");
    }
}

impl SumCache {
    /// Makes one that takes about so many bytes once it is full, and no more than is of use.
    pub(super) fn new(bytes_max: u64) -> Self {
        let chunk_bytes = SLOTS_OF_CHUNK * size_of::<Slot>() as u64;
        let chunks = (bytes_max.min(BYTES_MAX) / chunk_bytes).max(1);
        Self { chunks: (0..chunks).map(|_| OnceLock::new()).collect() }
    }

    fn place(&self, group: u64) -> (&OnceLock<Box<[Slot]>>, usize) {
        let slot = group % (self.chunks.len() as u64 * SLOTS_OF_CHUNK);
        (&self.chunks[(slot / SLOTS_OF_CHUNK) as usize], (slot % SLOTS_OF_CHUNK) as usize)
    }

    fn slot(&self, group: u64) -> Option<&Slot> {
        let (chunk, index) = self.place(group);
        chunk.get().map(|slots| &slots[index])
    }

    /// Fills `out` with the checksums of blocks from `first` on, which lie in one group; `false`
    /// where they are not all known.
    #[inline]
    pub(super) fn find(&self, first: u64, out: &mut [u32]) -> bool {
        let index = first % GROUP_BLOCKS;
        debug_assert!(
            !out.is_empty() && index + out.len() as u64 <= GROUP_BLOCKS,
            "what is looked for lies in one group: {} blocks from {first}",
            out.len()
        );
        let group = first / GROUP_BLOCKS;
        self.slot(group).is_some_and(|slot| slot.read(group, index as usize, out))
    }

    /// Begins to read the rows of a group, before the first of them is looked at.
    pub(super) fn begin(&self, group: u64) -> Begun {
        let (chunk, index) = self.place(group);
        let slots = chunk.get_or_init(|| (0..SLOTS_OF_CHUNK).map(|_| Slot::empty()).collect());
        Begun(slots[index].version.load(Ordering::Acquire))
    }

    /// Remembers what the rows of a group say. Nothing is noted meanwhile.
    pub(super) fn keep(&self, group: u64, Begun(version): Begun, known: &OfGroup) {
        let Some(slot) = self.slot(group) else { return };
        slot.write(version, || {
            let is_same = slot.group.load(Ordering::Relaxed) == group + 1;
            let mut present = if is_same { slot.present() } else { 0 };
            for (index, sum) in known.iter().enumerate() {
                if let Some(sum) = sum {
                    present |= 1 << index;
                    slot.sums[index].store(*sum, Ordering::Relaxed);
                }
            }
            slot.set_present(present);
            slot.group.store(group + 1, Ordering::Relaxed);
        });
    }

    /// Takes note of the checksums that blocks one after another have from now on, under the lock
    /// that the rows are changed under.
    pub(super) fn note(&self, sums: impl Iterator<Item = (u64, u32)>) {
        let mut sums = sums.peekable();
        while let Some((first, _)) = sums.peek() {
            let group = first / GROUP_BLOCKS;
            let of_group =
                std::iter::from_fn(|| sums.next_if(|(block, _)| block / GROUP_BLOCKS == group));
            match self.slot(group).filter(|_| !planted(PlantedBug::SumRemembered)) {
                Some(slot) => slot.note(group, of_group),
                None => of_group.for_each(drop),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_group(blocks: impl Fn(usize) -> Option<u32>) -> OfGroup {
        from_fn(blocks)
    }

    #[test]
    fn what_is_kept_is_found_until_another_group_takes_the_slot() {
        let cache = SumCache::new(1);
        let mut out = [0; 3];
        assert!(!cache.find(5, &mut out));
        cache.keep(0, cache.begin(0), &of_group(|index| (index != 9).then_some(index as u32)));
        assert!(cache.find(5, &mut out));
        assert_eq!(out, [5, 6, 7]);
        assert!(!cache.find(7, &mut out), "of block 9 nothing is known");
        assert!(cache.find(GROUP_BLOCKS - 3, &mut out));
        let mut all = [0; GROUP_BLOCKS as usize];
        cache.note([(9, 90)].into_iter());
        assert!(cache.find(0, &mut all) && all[9] == 90, "what is noted completes it");
        let other = SLOTS_OF_CHUNK;
        assert!(!cache.find(other * GROUP_BLOCKS, &mut out));
        cache.keep(other, cache.begin(other), &of_group(|_| Some(1)));
        assert!(!cache.find(5, &mut out));
        assert!(cache.find(other * GROUP_BLOCKS, &mut out));
    }

    /// I-SUM-4: a block gets another checksum while the rows of its group are read.
    #[test]
    fn what_was_read_before_a_note_is_not_kept() {
        let cache = SumCache::new(1);
        let begun = cache.begin(0);
        cache.note([(3, 33)].into_iter());
        cache.keep(0, begun, &of_group(|_| Some(1)));
        assert!(!cache.find(3, &mut [0]));
        // Also while the slot is another group's.
        cache.keep(0, cache.begin(0), &of_group(|_| Some(1)));
        let begun = cache.begin(SLOTS_OF_CHUNK);
        cache.note([(SLOTS_OF_CHUNK * GROUP_BLOCKS, 7)].into_iter());
        cache.keep(SLOTS_OF_CHUNK, begun, &of_group(|_| Some(1)));
        assert!(cache.find(3, &mut [0]) && !cache.find(SLOTS_OF_CHUNK * GROUP_BLOCKS, &mut [0]));
    }

    #[test]
    fn a_reader_never_sees_half_a_change() {
        let cache = SumCache::new(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20_000_u64 {
                    let group = round % 2 * SLOTS_OF_CHUNK;
                    cache.keep(group, cache.begin(group), &of_group(|_| Some(round as u32)));
                }
            });
            for _ in 0..20_000 {
                let mut out = [0; 40];
                if cache.find(100 - 40, &mut out) {
                    assert!(out.iter().all(|sum| *sum == out[0] && sum % 2 == 0), "{out:?}");
                }
            }
        });
    }
}
