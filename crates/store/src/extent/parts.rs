//! What of a file's map is in memory: parts, each of which has all extents of a range of file
//! blocks.
//!
//! ```text
//!   file blocks   0        ·····           700                   1400    ·····     end of all files
//!                 | part   | absent        | part                | part  | absent
//!                                          used: passed over once by the hand
//!                                          open ──► packed ──► absent: what the hand makes of one that is not used; one
//!                                          that was read is packed, and stays so while it changes
//! ```
//!
//! - I-EXT-3: a part has exactly the extents of its range, and no extent passes a bound of one. So
//!   what a part does not map is a hole, and what is absent is what the rows say of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::leaf::{Leaf, Placed};
use super::{Extent, ExtentChange};

/// Parts that continue each other and have no more extents together become one; one that has twice
/// as many is cut.
pub const EXTENTS_OF_PART: usize = 256;
/// What a part takes in the tree of them, in bytes, by estimate.
const NODE_BYTES: usize = 32;

/// All extents that begin in a range of file blocks.
#[derive(Debug)]
struct Part {
    end: u64,
    /// Something looked at it since the hand passed.
    used: AtomicBool,
    leaf: Leaf,
}

impl Part {
    fn new(end: u64, leaf: Leaf) -> Self {
        Self { end, used: AtomicBool::new(true), leaf }
    }

    #[inline]
    fn touch(&self) {
        // A load first: it is nearly always noted.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    fn bytes(&self) -> usize {
        NODE_BYTES + size_of::<(u64, Self)>() + self.leaf.bytes()
    }

    fn last_end(&self) -> u64 {
        let last = self.leaf.len().checked_sub(1).and_then(|last| self.leaf.get(last));
        last.map_or(0, |(at, extent)| at + u64::from(extent.blocks))
    }
}

/// How much memory the maps of all files take together.
#[derive(Debug, Default)]
pub struct MapMemory(AtomicU64);

impl MapMemory {
    /// Returns it in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a pass over a map did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Parts that are in memory no more.
    pub evicted: u64,
    /// Parts that take less memory, or may be evicted by the next pass.
    pub changed: u64,
}

/// The parts of one map, by their first file block.
#[derive(Debug)]
pub(super) struct Parts {
    parts: BTreeMap<u64, Part>,
    /// How many extents a part should have.
    extents_of_part: usize,
    /// Where the next pass begins.
    hand: u64,
    bytes: u64,
    memory: Option<Arc<MapMemory>>,
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.account(0);
    }
}

impl Parts {
    /// Makes one of which nothing is in memory.
    pub(super) fn absent() -> Self {
        let parts = BTreeMap::new();
        Self { parts, extents_of_part: EXTENTS_OF_PART, hand: 0, bytes: 0, memory: None }
    }

    /// Makes one that has all of a file without extents.
    pub(super) fn whole() -> Self {
        let mut parts = Self::absent();
        parts.insert(0, Part::new(u64::MAX, Leaf::Open(Vec::new())));
        parts
    }

    pub(super) fn set_bounds(&mut self, memory: Arc<MapMemory>, extents_of_part: usize) {
        self.extents_of_part = extents_of_part;
        let bytes = self.bytes;
        self.account(0);
        self.memory = Some(memory);
        self.account(bytes);
    }

    fn account(&mut self, bytes: u64) {
        if let Some(memory) = &self.memory {
            memory.0.fetch_add(bytes, Ordering::Relaxed);
            memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    fn insert(&mut self, first: u64, part: Part) {
        debug_assert!(first < part.end, "I-EXT-3: a part has a range: {first}..{}", part.end);
        self.account(self.bytes + part.bytes() as u64);
        self.parts.insert(first, part);
    }

    fn take(&mut self, first: u64) -> Option<Part> {
        let part = self.parts.remove(&first)?;
        self.account(self.bytes - part.bytes() as u64);
        Some(part)
    }

    /// Changes a part in place.
    fn change<T>(&mut self, block: u64, change: impl FnOnce(&mut Part) -> T) -> T {
        let (_, part) = self
            .parts
            .range_mut(..=block)
            .next_back()
            .filter(|(_, part)| block < part.end)
            .expect("I-EXT-3: what changes is in memory");
        let before = part.bytes() as u64;
        let done = change(part);
        let after = part.bytes() as u64;
        if before != after {
            self.account(self.bytes - before + after);
        }
        done
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.parts.len()
    }

    /// Returns the block after the last mapped one that is in memory.
    pub(super) fn last_end(&self) -> u64 {
        self.parts.values().rev().map(Part::last_end).find(|end| *end > 0).unwrap_or(0)
    }

    #[inline]
    fn part(&self, block: u64) -> Option<(u64, &Part)> {
        let (first, part) = self.parts.range(..=block).next_back()?;
        (block < part.end).then_some((*first, part))
    }

    /// Returns the first block of a range that is absent.
    pub(super) fn first_absent(&self, range: &Range<u64>) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            match self.part(at) {
                Some((_, part)) => at = part.end,
                None => return Some(at),
            }
        }
        None
    }

    /// Returns the blocks around an absent one up to the parts beside it.
    pub(super) fn gap(&self, block: u64) -> Range<u64> {
        debug_assert!(self.part(block).is_none(), "a gap is absent: {block}");
        let start = self.parts.range(..block).next_back().map_or(0, |(_, part)| part.end);
        start..self.parts.range(block..).next().map_or(u64::MAX, |(first, _)| *first)
    }

    /// Takes in all extents of an absent range.
    pub(super) fn learn(&mut self, range: Range<u64>, extents: Vec<Placed>) {
        debug_assert!(
            extents.iter().all(|(at, extent)| {
                range.contains(at) && at + u64::from(extent.blocks) <= range.end
            }),
            "I-EXT-3: no extent passes a bound of its part: {extents:?} in {range:?}"
        );
        let (mut first, mut end, mut extents) = (range.start, range.end, extents);
        let most = self.extents_of_part;
        let joins = |part: &Part, len: usize| part.leaf.len() + len <= most;
        let before = self.parts.range(..first).next_back().map(|(at, part)| (*at, part));
        if let Some((at, part)) = before
            && part.end == first
            && joins(part, extents.len())
        {
            let mut part = self.take(at).expect("it was just found");
            (first, extents) = (at, [std::mem::take(part.leaf.open()), extents].concat());
        }
        if self.parts.get(&end).is_some_and(|part| joins(part, extents.len())) {
            let mut part = self.take(end).expect("it was just found");
            end = part.end;
            extents.append(part.leaf.open());
        }
        self.insert(first, Part::new(end, Leaf::packed(&extents)));
    }

    /// Returns the extent that maps a block, if one does; `None` where that is absent.
    #[inline]
    pub(super) fn look(&self, block: u64) -> Option<Option<Placed>> {
        let (_, part) = self.part(block)?;
        part.touch();
        let index = part.leaf.count_before(block + 1).checked_sub(1);
        let found = index.and_then(|index| part.leaf.get(index));
        Some(found.filter(|(at, extent)| block - at < u64::from(extent.blocks)))
    }

    /// Returns the extents that begin in a range, in order, of the parts that are in memory.
    pub(super) fn extents(&self, range: Range<u64>) -> impl Iterator<Item = Placed> + '_ {
        let first = self.part(range.start).map_or(range.start, |(first, _)| first);
        self.parts
            .range(first..)
            .flat_map({
                let start = range.start;
                move |(_, part)| {
                    part.touch();
                    (part.leaf.count_before(start)..).map_while(|index| part.leaf.get(index))
                }
            })
            .take_while(move |(at, _)| *at < range.end)
    }

    /// Returns the last extent that begins before a block, looking no further back than to what is
    /// absent.
    pub(super) fn before(&self, block: u64) -> Option<Placed> {
        let mut at = block;
        loop {
            let (first, part) = self.part(at.checked_sub(1)?)?;
            if let Some(index) = part.leaf.count_before(block).checked_sub(1) {
                return part.leaf.get(index);
            }
            at = first;
        }
    }

    /// Returns where the last `count` extents that begin in a range begin, or its start. The range
    /// is in memory.
    pub(super) fn tail_start(&self, range: &Range<u64>, count: usize) -> u64 {
        let mut left = count.max(1);
        for (first, part) in self.parts.range(..range.end).rev() {
            let low = part.leaf.count_before(range.start);
            let high = part.leaf.count_before(range.end);
            if high - low >= left {
                return part.leaf.get(high - left).map_or(range.start, |(at, _)| at);
            }
            left -= high - low;
            if *first <= range.start {
                break;
            }
        }
        range.start
    }

    /// Carries a change out; returns the extent that began there.
    pub(super) fn apply(&mut self, change: &ExtentChange) -> Option<Extent> {
        self.change(change.at().0, |part| match *change {
            ExtentChange::Put(at, extent) => part.leaf.put(at.0, extent),
            ExtentChange::Delete(at) => part.leaf.remove(at.0),
        })
    }

    /// Moves bounds that extents pass since changes that begin at `block` were carried out, and
    /// cuts what has become too large.
    pub(super) fn settle(&mut self, block: u64) {
        let Some((first, part)) = self.part(block) else { return };
        let (mut end, reach, len) = (part.end, part.last_end(), part.leaf.len());
        let most = 2 * self.extents_of_part;
        if reach <= end && len <= most {
            return;
        }
        let mut part = self.take(first).expect("it was just found");
        let is_packed = part.leaf.is_packed();
        let leaf = |extents: &[Placed]| match is_packed {
            true => Leaf::packed(extents),
            false => Leaf::Open(extents.to_vec()),
        };
        while end < reach {
            let mut next = self.take(end).expect("I-EXT-3: what an extent reaches is in memory");
            end = next.end;
            part.leaf.open().append(next.leaf.open());
        }
        let extents = std::mem::take(part.leaf.open());
        let mut start = first;
        let mut rest = extents.as_slice();
        while rest.len() > most {
            let (these, others) = rest.split_at(most / 2);
            self.insert(start, Part::new(others[0].0, leaf(these)));
            (start, rest) = (others[0].0, others);
        }
        self.insert(start, Part::new(end, leaf(rest)));
    }

    /// Lets the hand pass over the next `count` parts, as long as `more` asks for it. `evicting` is
    /// shown what is evicted.
    pub(super) fn sweep(
        &mut self,
        count: usize,
        mut more: impl FnMut() -> bool,
        mut evicting: impl FnMut(Range<u64>, &[Placed]),
    ) -> Swept {
        let mut swept = Swept::default();
        for _ in 0..count.min(self.parts.len()) {
            if !more() {
                break;
            }
            let next = self.parts.range(self.hand..).next().or_else(|| self.parts.iter().next());
            let Some((first, part)) = next.map(|(first, part)| (*first, part)) else { break };
            self.hand = part.end;
            if part.used.swap(false, Ordering::Relaxed) || self.change(first, |it| it.leaf.pack()) {
                swept.changed += 1;
                continue;
            }
            let mut part = self.take(first).expect("it was just found");
            if cfg!(debug_assertions) {
                let end = part.end;
                evicting(first..end, part.leaf.open());
            }
            swept.evicted += 1;
        }
        swept
    }
}
