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

use std::collections::BTreeMap;
use std::ops::Range;

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

/// The extents of one file by first file block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtentMap {
    extents: BTreeMap<u64, Extent>,
    blocks: u64,
}

impl ExtentMap {
    /// Makes a map of rows in key order.
    ///
    /// # Errors
    /// Returns the file block of a row that is empty, overlaps the one before or passes the end of
    /// the file's or volume's address space.
    pub fn from_rows(
        rows: impl IntoIterator<Item = (FileBlock, Extent)>,
    ) -> Result<Self, FileBlock> {
        let mut map = Self::default();
        let mut end = 0;
        let sound = |at: FileBlock, extent: &Extent, end: u64| {
            let blocks = u64::from(extent.blocks);
            (at.0 >= end && blocks > 0 && extent.start.0.checked_add(blocks).is_some())
                .then(|| at.0.checked_add(blocks))
                .flatten()
        };
        let rows = rows.into_iter().map(|(at, extent)| {
            end = sound(at, &extent, end).ok_or(at)?;
            map.blocks += u64::from(extent.blocks);
            Ok((at.0, extent))
        });
        let extents = rows.collect::<Result<BTreeMap<_, _>, _>>()?;
        Ok(Self { extents, ..map })
    }

    /// Returns whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Returns the number of extents.
    #[inline]
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Returns the number of mapped blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the number of blocks that have checksums.
    pub fn summed_blocks(&self) -> u64 {
        let summed = self.extents.values().filter(|extent| extent.state == ExtentState::Summed);
        summed.map(|extent| u64::from(extent.blocks)).sum()
    }

    /// Returns the file block after the last mapped one.
    pub fn end(&self) -> u64 {
        self.extents.last_key_value().map_or(0, |(at, extent)| at + u64::from(extent.blocks))
    }

    /// Returns the extents that begin at `block` or behind it, in file order.
    pub fn from(&self, block: u64) -> impl Iterator<Item = (FileBlock, Extent)> + '_ {
        self.extents.range(block..).map(|(at, extent)| (FileBlock(*at), *extent))
    }

    /// Returns the extent that maps `block`, and where it begins. This is the lookup of the data
    /// path.
    #[inline]
    pub fn holding(&self, block: u64) -> Option<(FileBlock, Extent)> {
        let (at, extent) = self.extents.range(..=block).next_back()?;
        debug_assert!(extent.blocks > 0, "I-EXT-1: no extent is empty, as that at {at}");
        (block - at < u64::from(extent.blocks)).then_some((FileBlock(*at), *extent))
    }

    /// Returns the pieces of `range` in order; together they cover it.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> + '_ {
        debug_assert!(range.start <= range.end, "a range ends behind its start: {range:?}");
        let mut at = range.start;
        let before = self.extents.range(..range.start).next_back();
        let mut extents = before.into_iter().chain(self.extents.range(range.clone())).peekable();
        std::iter::from_fn(move || {
            while extents
                .next_if(|(first, extent)| *first + u64::from(extent.blocks) <= at)
                .is_some()
            {}
            if at >= range.end {
                return None;
            }
            let piece = match extents.peek() {
                Some((first, extent)) if **first <= at => {
                    let skip = at - **first;
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
                Some((first, _)) => Piece { file_block: at, blocks: **first - at, mapped: None },
                None => Piece { file_block: at, blocks: range.end - at, mapped: None },
            };
            let piece = Piece { blocks: piece.blocks.min(range.end - at), ..piece };
            debug_assert!(piece.blocks > 0, "a piece holds a block: {piece:?}");
            at += piece.blocks;
            Some(piece)
        })
    }

    /// Returns where the last `count` extents that begin in `range` begin, or its start: the start
    /// of a bounded removal from the end.
    pub fn tail_start(&self, range: &Range<u64>, count: usize) -> u64 {
        self.extents
            .range(range.clone())
            .rev()
            .nth(count.saturating_sub(1))
            .map_or(range.start, |(at, _)| *at)
    }

    /// Returns the last extent that begins before `block`.
    pub fn before(&self, block: u64) -> Option<(FileBlock, Extent)> {
        self.extents.range(..block).next_back().map(|(at, extent)| (FileBlock(*at), *extent))
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
            let (old, new) = match *change {
                ExtentChange::Put(at, extent) => {
                    (self.extents.insert(at.0, extent), u64::from(extent.blocks))
                }
                ExtentChange::Delete(at) => (self.extents.remove(&at.0), 0),
            };
            self.blocks = self.blocks + new - old.map_or(0, |extent| u64::from(extent.blocks));
            old
        };
        let replaced = changes.iter().map(replace).collect();
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
        let next = block.checked_add(1).and_then(|after| self.extents.range(after..).next());
        (!self.extents.contains_key(&block) || ends_by(block))
            && next.is_none_or(|(next, _)| ends_by(*next))
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
        let first =
            self.extents.range(..range.start).next_back().map_or(range.start, |(at, _)| *at);
        let last = range.end.saturating_add(1);
        let old: Vec<(u64, Extent)> =
            self.extents.range(first..last).map(|(at, extent)| (*at, *extent)).collect();
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
