//! The extent map of one file, in memory, and the pure plans that change it.
//!
//! ```text
//!   file blocks   0      8      12            40
//!                 |written|(hole)|unwritten....|            one row of the extent table each, keyed by the first file block
//!   volume blocks 100    108     5000
//! ```
//!
//! A plan is computed from the map without touching it and is a list of row changes. The same list
//! goes into the log record and, with [`ExtentMap::apply`], into the map; so memory and medium
//! cannot drift apart. Blocks that were allocated and are still being filled are in no map and no
//! plan: they belong to the writer that fills them until it publishes them.
//!
//! - I-EXT-1: extents of one file never overlap and are never empty.
//! - I-EXT-2: neighbours that continue each other in the file and on the volume with equal state
//!   and birth are one extent, unless it would pass [`Extent::BLOCKS_MAX`].

mod leaf;
mod parts;

use std::ops::Range;
use std::sync::Arc;

use parts::Parts;
pub use parts::{EXTENTS_OF_PART, MapMemory, Swept};

use crate::{BlockNo, Epoch, FileBlock};

/// Whether the blocks of an extent hold data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExtentState {
    /// Data has reached them.
    Written,
    /// Allocated; they read as zeros.
    Unwritten,
    /// Data has reached them, and each has a checksum: they are never overwritten in place.
    Summed,
}

impl ExtentState {
    /// All of them, at the place that is their code on the device.
    pub(crate) const CODES: [Self; 3] = [Self::Written, Self::Unwritten, Self::Summed];

    /// Returns the flags of an extent's row.
    pub(crate) fn flags(self) -> u8 {
        match self {
            Self::Written => 0,
            Self::Unwritten => 1,
            Self::Summed => 2,
        }
    }

    /// Returns the state of an extent with these flags; `None` for flags that no extent has.
    pub(crate) fn from_flags(flags: u8) -> Option<Self> {
        Self::CODES.get(usize::from(flags)).copied()
    }

    /// Returns whether data has reached the blocks.
    #[inline]
    pub fn has_data(self) -> bool {
        match self {
            Self::Written | Self::Summed => true,
            Self::Unwritten => false,
        }
    }

    /// Returns the state without checksums, which space is counted by.
    pub fn unsummed(self) -> Self {
        if self.has_data() { Self::Written } else { Self::Unwritten }
    }
}

/// A run of contiguous volume blocks that holds a run of contiguous file blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First volume block.
    pub start: BlockNo,
    /// Length in blocks, at least 1.
    pub blocks: u32,
    /// Whether data has reached it.
    pub state: ExtentState,
    /// The epoch it was born in.
    pub birth: Epoch,
}

impl Extent {
    /// The longest extent in blocks.
    pub const BLOCKS_MAX: u32 = u32::MAX;

    /// Returns both extents as one where `next` continues this one (I-EXT-2).
    fn joined(self, next: Self) -> Option<Self> {
        debug_assert!(
            self.blocks > 0 && next.blocks > 0,
            "I-EXT-1: no extent is empty: {self:?}, {next:?}"
        );
        let continues = self.start.0 + u64::from(self.blocks) == next.start.0
            && self.state == next.state
            && self.birth == next.birth;
        let blocks = self.blocks.checked_add(next.blocks)?;
        continues.then_some(Self { blocks, ..self })
    }
}

fn narrow(blocks: u64) -> u32 {
    u32::try_from(blocks).expect("a part of an extent is no longer than the extent")
}

/// A change of one row of the extent table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentChange {
    /// The extent that begins at this file block is now this one.
    Put(FileBlock, Extent),
    /// No extent begins at this file block any more.
    Delete(FileBlock),
}

impl ExtentChange {
    /// Returns the file block whose row changes.
    pub fn at(&self) -> FileBlock {
        match self {
            Self::Put(at, _) | Self::Delete(at) => *at,
        }
    }
}

/// A run of contiguous volume blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// First volume block.
    pub start: BlockNo,
    /// Length in blocks.
    pub blocks: u64,
}

impl Run {
    /// Returns the block after the last.
    #[inline]
    pub fn end(self) -> u64 {
        self.start.0 + self.blocks
    }
}

/// One piece of a range of file blocks: mapped by one extent, or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First file block.
    pub file_block: u64,
    /// Length in blocks.
    pub blocks: u64,
    /// The part of the extent that maps it, or `None` in a hole.
    pub mapped: Option<Mapped>,
}

impl Piece {
    /// Returns the first volume block if data has reached the piece.
    #[inline]
    pub fn written(&self) -> Option<BlockNo> {
        self.mapped.filter(|mapped| mapped.state.has_data()).map(|mapped| mapped.start)
    }

    /// Returns whether it has data that may be overwritten where it lies, as far as its state says.
    #[inline]
    pub fn takes_overwrites(&self) -> bool {
        self.mapped.is_some_and(|mapped| mapped.state == ExtentState::Written)
    }

    /// Returns whether its blocks have checksums.
    #[inline]
    pub fn is_summed(&self) -> bool {
        self.mapped.is_some_and(|mapped| mapped.state == ExtentState::Summed)
    }
}

/// Where a piece lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped {
    /// The volume block of the piece's first block.
    pub start: BlockNo,
    /// Whether data has reached it.
    pub state: ExtentState,
    /// The epoch it was born in.
    pub birth: Epoch,
}

/// The extents of one file by first file block: as much of them as is in memory.
#[derive(Debug)]
pub struct ExtentMap {
    parts: Parts,
    blocks: u64,
}

impl Default for ExtentMap {
    /// The map of a file without extents.
    fn default() -> Self {
        Self { parts: Parts::whole(), blocks: 0 }
    }
}

impl PartialEq for ExtentMap {
    fn eq(&self, other: &Self) -> bool {
        self.blocks == other.blocks && self.from(0).eq(other.from(0))
    }
}

/// Returns extents in key order as such; the file block of one that is empty, overlaps the one
/// before or passes the end of the file's or volume's address space is the error.
fn sound(
    rows: impl IntoIterator<Item = (FileBlock, Extent)>,
) -> Result<Vec<(u64, Extent)>, FileBlock> {
    let mut end = 0;
    let follow = |(at, extent): (FileBlock, Extent)| {
        let blocks = u64::from(extent.blocks);
        let is_sound = at.0 >= end && blocks > 0 && extent.start.0.checked_add(blocks).is_some();
        end = is_sound.then(|| at.0.checked_add(blocks)).flatten().ok_or(at)?;
        Ok((at.0, extent))
    };
    rows.into_iter().map(follow).collect()
}

impl ExtentMap {
    /// Makes a map of which nothing is in memory, of a file with so many mapped blocks.
    pub fn absent(blocks: u64) -> Self {
        Self { parts: Parts::absent(), blocks }
    }

    /// Makes a map of all rows in key order.
    ///
    /// # Errors
    /// Returns the file block of a row that is empty, overlaps the one before or passes the end of
    /// the file's or volume's address space.
    pub fn from_rows(
        rows: impl IntoIterator<Item = (FileBlock, Extent)>,
    ) -> Result<Self, FileBlock> {
        let mut map = Self::absent(0);
        map.learn(0..u64::MAX, rows)?;
        map.blocks = map.parts.extents(0..u64::MAX).map(|(_, it)| u64::from(it.blocks)).sum();
        map.parts.settle(0);
        Ok(map)
    }

    /// Has its memory counted among that of others, and says how many extents a part should have.
    pub fn set_bounds(&mut self, memory: Arc<MapMemory>, extents_of_part: usize) {
        self.parts.set_bounds(memory, extents_of_part);
    }

    /// Returns the first block of a range that is not in memory.
    pub fn first_absent(&self, range: &Range<u64>) -> Option<u64> {
        self.parts.first_absent(range)
    }

    /// Returns whether a range is in memory.
    #[inline]
    pub fn has(&self, range: &Range<u64>) -> bool {
        self.parts.first_absent(range).is_none()
    }

    /// Returns the number of parts in memory.
    pub fn part_count(&self) -> usize {
        self.parts.count()
    }

    /// Returns whether nothing is in memory.
    pub fn is_absent(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the blocks around an absent one up to what is in memory.
    pub fn gap(&self, block: u64) -> Range<u64> {
        self.parts.gap(block)
    }

    /// Takes in all rows of an absent range, in key order; none begins before it.
    ///
    /// # Errors
    /// Returns the file block of a row that overlaps another or passes the end of the range.
    pub fn learn(
        &mut self,
        range: Range<u64>,
        rows: impl IntoIterator<Item = (FileBlock, Extent)>,
    ) -> Result<(), FileBlock> {
        let extents = sound(rows)?;
        let reach = extents.last().filter(|(at, it)| at + u64::from(it.blocks) > range.end);
        if let Some((at, _)) = reach {
            return Err(FileBlock(*at));
        }
        self.parts.learn(range, extents);
        Ok(())
    }

    /// Gives memory back, as long as `more` asks for it: looks at the next `count` parts, and of
    /// what was not used since it looked last. `evicting` is shown, in a debug build, what is in
    /// memory no more.
    pub fn sweep(
        &mut self,
        count: usize,
        more: impl FnMut() -> bool,
        evicting: impl FnMut(Range<u64>, &[(u64, Extent)]),
    ) -> Swept {
        self.parts.sweep(count, more, evicting)
    }

    /// Returns the number of extents in memory.
    pub fn len(&self) -> usize {
        self.parts.extents(0..u64::MAX).count()
    }

    /// Returns whether no extent is in memory.
    pub fn is_empty(&self) -> bool {
        self.parts.extents(0..u64::MAX).next().is_none()
    }

    /// Returns the number of mapped blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the file block after the last mapped one that is in memory.
    pub fn end(&self) -> u64 {
        self.parts.last_end()
    }

    /// Returns the extents in memory that begin at `block` or behind it, in file order.
    pub fn from(&self, block: u64) -> impl Iterator<Item = (FileBlock, Extent)> + '_ {
        self.parts.extents(block..u64::MAX).map(|(at, extent)| (FileBlock(at), extent))
    }

    /// Returns the extent that maps `block`, and where it begins; `None` where that is absent. This
    /// is the lookup of the data path.
    #[inline]
    pub fn look(&self, block: u64) -> Option<Option<(FileBlock, Extent)>> {
        Some(self.parts.look(block)?.map(|(at, extent)| (FileBlock(at), extent)))
    }

    /// Returns the extent that maps `block`, which is in memory, and where it begins.
    #[inline]
    pub fn holding(&self, block: u64) -> Option<(FileBlock, Extent)> {
        self.look(block).expect("I-EXT-3: what is looked up is in memory")
    }

    /// Returns the pieces of `range` in order; together they cover it. It is in memory.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + '_ {
        debug_assert!(range.start <= range.end, "a range ends behind its start: {range:?}");
        assert!(self.has(&range), "I-EXT-3: what is looked up is in memory: {range:?}");
        let mut at = range.start;
        let before = if range.is_empty() { None } else { self.parts.look(at).flatten() };
        let behind = at.saturating_add(1)..range.end;
        let mut extents = before.into_iter().chain(self.parts.extents(behind)).peekable();
        std::iter::from_fn(move || {
            while extents.next_if(|(first, it)| first + u64::from(it.blocks) <= at).is_some() {}
            if at >= range.end {
                return None;
            }
            let piece = match extents.peek() {
                Some((first, extent)) if *first <= at => {
                    let skip = at - first;
                    let mapped = Mapped {
                        start: BlockNo(extent.start.0 + skip),
                        state: extent.state,
                        birth: extent.birth,
                    };
                    Piece {
                        file_block: at,
                        blocks: u64::from(extent.blocks) - skip,
                        mapped: Some(mapped),
                    }
                }
                Some((first, _)) => Piece { file_block: at, blocks: first - at, mapped: None },
                None => Piece { file_block: at, blocks: range.end - at, mapped: None },
            };
            let piece = Piece { blocks: piece.blocks.min(range.end - at), ..piece };
            debug_assert!(piece.blocks > 0, "a piece holds a block: {piece:?}");
            at += piece.blocks;
            Some(piece)
        })
    }

    /// Returns where the last `count` extents that begin in `range` begin, or its start: the start
    /// of a bounded removal from the end. The range is in memory.
    pub fn tail_start(&self, range: &Range<u64>, count: usize) -> u64 {
        debug_assert!(self.has(range), "I-EXT-3: what is looked up is in memory: {range:?}");
        self.parts.tail_start(range, count)
    }

    /// Returns the last extent that begins before `block`, as far back as all is in memory.
    pub fn before(&self, block: u64) -> Option<(FileBlock, Extent)> {
        self.parts.before(block).map(|(at, extent)| (FileBlock(at), extent))
    }

    /// Returns the blocks that are in memory where a range is changed: with its neighbours.
    pub fn around(range: &Range<u64>) -> Range<u64> {
        range.start.saturating_sub(1)..range.end.saturating_add(1)
    }

    /// Plans `extents`, in order and within `range`, to be all that `range` maps.
    pub fn plan_set(
        &self,
        range: Range<u64>,
        extents: &[(FileBlock, Extent)],
    ) -> Vec<ExtentChange> {
        self.plan_rows(range, extents.iter().map(|(at, extent)| (at.0, *extent)))
    }

    /// Plans `range` to become a hole.
    pub fn plan_remove(&self, range: Range<u64>) -> Vec<ExtentChange> {
        self.plan_set(range, &[])
    }

    /// Plans `range` to be cut out; what follows moves down.
    pub fn plan_collapse(&self, range: Range<u64>) -> Vec<ExtentChange> {
        debug_assert!(range.start <= range.end, "a range is cut out: {range:?}");
        let by = range.end - range.start;
        let moved = self.parts(range.end..u64::MAX).map(|(at, extent)| (at - by, extent));
        self.plan_rows(range.start..u64::MAX, moved)
    }

    /// Plans a hole of `blocks` at `at`; what follows moves up. The caller has checked that the end
    /// stays below the largest file block.
    pub fn plan_insert(&self, at: u64, blocks: u64) -> Vec<ExtentChange> {
        debug_assert!(
            self.end().checked_add(blocks).is_some(),
            "what lies behind {at} moves by {blocks} blocks and still has numbers"
        );
        let moved = self.parts(at..u64::MAX).map(|(at, extent)| (at + blocks, extent));
        self.plan_rows(at..u64::MAX, moved)
    }

    /// Carries out a plan's changes; returns what was there before, one for each.
    pub fn apply(&mut self, changes: &[ExtentChange]) -> Vec<Option<Extent>> {
        let replace = |change: &ExtentChange| {
            debug_assert!(
                !matches!(change, ExtentChange::Put(_, extent) if extent.blocks == 0),
                "I-EXT-1: no extent is empty: {change:?}"
            );
            let old = self.parts.apply(change);
            let new = match change {
                ExtentChange::Put(_, extent) => u64::from(extent.blocks),
                ExtentChange::Delete(_) => 0,
            };
            // What the inode's row says may be wrong: a check mends it.
            let gone = old.map_or(0, |extent| u64::from(extent.blocks));
            self.blocks = self.blocks.saturating_add(new).saturating_sub(gone);
            old
        };
        let replaced = changes.iter().map(replace).collect();
        for change in changes {
            self.parts.settle(change.at().0);
        }
        debug_assert!(
            changes.iter().all(|change| self.is_apart(change.at().0)),
            "I-EXT-1: extents of one file never overlap: {changes:?}"
        );
        replaced
    }

    /// Says whether what begins at a block and what begins next overlap nothing before them.
    fn is_apart(&self, block: u64) -> bool {
        let ends_by = |next: u64| {
            self.before(next).is_none_or(|(at, extent)| at.0 + u64::from(extent.blocks) <= next)
        };
        let mut behind = self.parts.extents(block.saturating_add(1)..u64::MAX);
        let here = self.parts.look(block).flatten();
        (here.is_none_or(|(at, _)| at != block) || ends_by(block))
            && behind.next().is_none_or(|(next, _)| ends_by(next))
    }

    /// The mapped parts of `range`, cut to it.
    fn parts(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.pieces(range).filter_map(|piece| {
            let Mapped { start, state, birth } = piece.mapped?;
            Some((piece.file_block, Extent { start, blocks: narrow(piece.blocks), state, birth }))
        })
    }

    /// The row changes after which `range` maps exactly `new`, merged with the neighbours.
    fn plan_rows(
        &self,
        range: Range<u64>,
        new: impl Iterator<Item = (u64, Extent)>,
    ) -> Vec<ExtentChange> {
        debug_assert!(range.start <= range.end, "a range is planned: {range:?}");
        // One block more on each side brings in the neighbours that may merge, or that are cut.
        let around = Self::around(&range);
        assert!(self.has(&around), "I-EXT-3: what changes is in memory: {around:?}");
        let neighbour = self.parts.look(around.start).flatten();
        let first = neighbour.map_or(range.start, |(at, _)| at);
        let old: Vec<(u64, Extent)> = self.parts.extents(first..around.end).collect();
        let reach = old
            .last()
            .map_or(range.end, |(at, extent)| at + u64::from(extent.blocks))
            .max(range.end);
        let left = self.parts(first..range.start);
        let right = self.parts(range.end..reach);
        debug_assert!(
            first <= range.start && reach >= range.end,
            "a plan begins and ends with the neighbours of {range:?}: {first}..{reach}"
        );
        difference(&old, &merged(left.chain(new).chain(right)))
    }
}

/// Joins what continues (I-EXT-2).
fn merged(extents: impl Iterator<Item = (u64, Extent)>) -> Vec<(u64, Extent)> {
    let mut out: Vec<(u64, Extent)> = Vec::new();
    for (at, extent) in extents {
        match out.last_mut() {
            Some((first, last)) => {
                let end = *first + u64::from(last.blocks);
                assert!(end <= at, "I-EXT-1: extents are planned in order and apart");
                match last.joined(extent).filter(|_| end == at) {
                    Some(both) => *last = both,
                    None => out.push((at, extent)),
                }
            }
            None => out.push((at, extent)),
        }
    }
    let continued = |pair: &[(u64, Extent)]| {
        pair[0].0 + u64::from(pair[0].1.blocks) == pair[1].0
            && pair[0].1.joined(pair[1].1).is_some()
    };
    debug_assert!(
        !out.windows(2).any(continued),
        "I-EXT-2: neighbours that continue each other are one extent: {out:?}"
    );
    out
}

/// The row changes that turn `old` into `new`; both in key order.
fn difference(old: &[(u64, Extent)], new: &[(u64, Extent)]) -> Vec<ExtentChange> {
    debug_assert!(
        new.is_sorted_by_key(|(at, _)| *at),
        "I-EXT-1: extents are planned in order: {new:?}"
    );
    let mut changes = Vec::new();
    let mut before = old.iter().peekable();
    for (at, extent) in new {
        while let Some((gone, _)) = before.next_if(|(key, _)| key < at) {
            changes.push(ExtentChange::Delete(FileBlock(*gone)));
        }
        if before.next_if(|(key, _)| key == at).is_none_or(|(_, same)| same != extent) {
            changes.push(ExtentChange::Put(FileBlock(*at), *extent));
        }
    }
    changes.extend(before.map(|(gone, _)| ExtentChange::Delete(FileBlock(*gone))));
    changes
}

#[cfg(test)]
mod tests;
