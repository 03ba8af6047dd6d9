//! Packs that get other values of extents that they have: what a write to an untorn unit, or to
//! shared blocks, makes of a row of the tree.
//!
//! ```text
//!   gaps and lengths       say which extent begins at a block, and stay as they are
//!   places, births, flags  are taken apart where a value of them changes, and packed again
//! ```
//!
//! What comes out is what packing all extents again would be (I-PCK-1), to the byte: only the columns
//! that changed are made again, and no extent.

use super::{COLUMNS, Column, Head, Pack, finished, may_be_packed};
use crate::extent::ExtentState;
use crate::planted::{PlantedBug, planted};
use crate::{ExtentRow, FileBlock};

const GAPS: usize = 0;
const LENGTHS: usize = 1;
const PLACES: usize = 2;
const BIRTHS: usize = 3;
const FLAGS: usize = 4;

/// The numbers of one column.
#[derive(Debug)]
struct Values {
    head: Head,
    /// `None` where all are the least one.
    each: Option<Vec<u64>>,
    changed: bool,
}

impl Values {
    /// Takes a column apart; `None` where it is not what its values are packed to.
    fn of(column: &Column<'_>, count: usize) -> Option<Self> {
        let head = column.head;
        if head.width == 0 {
            return Some(Self { head, each: None, changed: false });
        }
        let each = (0..count).map(|index| column.at(index)).collect::<Option<Vec<u64>>>()?;
        let is_shortest = Head::of(&each) == head && column.is_filled(count);
        is_shortest.then_some(Self { head, each: Some(each), changed: false })
    }

    fn at(&self, index: usize) -> u64 {
        self.each.as_ref().map_or(self.head.least, |each| each[index])
    }

    fn set(&mut self, index: usize, count: usize, value: u64) {
        if self.at(index) != value {
            self.each.get_or_insert_with(|| vec![self.head.least; count])[index] = value;
            self.changed = true;
        }
    }

    /// The sum of the first so many values.
    fn sum(&self, count: usize) -> u64 {
        let all = || self.head.least * count as u64;
        self.each.as_ref().map_or_else(all, |each| each[..count].iter().sum())
    }

    /// No value is larger.
    fn most(&self) -> Option<u64> {
        self.head.least.checked_add(self.head.mask())
    }
}

/// A pack some of whose extents get other values.
#[derive(Debug)]
pub(crate) struct Patch<'a> {
    pack: Pack<'a>,
    columns: [Values; COLUMNS],
    /// Where the last extent begins.
    last_block: u64,
    /// The extent that was looked at last, and where it begins.
    looked_at: (usize, u64),
}

impl<'a> Patch<'a> {
    /// Opens the pack of a key. `None` for one that is to be taken apart instead: it cannot be read,
    /// or might have to be cut, or what it has comes near the end of all numbers.
    pub(crate) fn open(key: &[u8], value: &'a [u8], hole_max: u64) -> Option<Self> {
        let pack = Pack::open(key, value).ok()?;
        let mut parts = pack.columns.iter().enumerate();
        let columns = [(); COLUMNS].map(|()| {
            let (index, column) = parts.next()?;
            Values::of(column, pack.values(index))
        });
        let [Some(gaps), Some(lengths), Some(places), Some(births), Some(flags)] = columns else {
            return None;
        };
        let (gap, len) = (gaps.most()?, lengths.most()?);
        let is_state =
            |flags: u64| u8::try_from(flags).ok().and_then(ExtentState::from_flags).is_some();
        let sound = gap < hole_max
            && lengths.head.least > 0
            && u32::try_from(len).is_ok()
            && u32::try_from(births.most()?).is_ok()
            && flags.each.as_ref().map_or(is_state(flags.head.least), |each| {
                each.iter().all(|flags| is_state(*flags))
            })
            && places.most()?.checked_add(len).is_some()
            && pack.first.0.checked_add((gap + len) * pack.count as u64).is_some();
        if !sound {
            return None;
        }
        let before_last = pack.count - 1;
        let last_block = pack.first.0 + gaps.sum(before_last) + lengths.sum(before_last);
        let looked_at = (0, pack.first.0);
        let columns = [gaps, lengths, places, births, flags];
        Some(Self { pack, columns, last_block, looked_at })
    }

    /// Returns how many extents it has.
    pub(crate) fn count(&self) -> usize {
        self.pack.count
    }

    /// Returns where its last extent begins.
    pub(crate) fn last_block(&self) -> FileBlock {
        FileBlock(self.last_block)
    }

    /// Returns the number of the extent that begins at a block, which does not lie before the block
    /// that was asked for before.
    fn find(&mut self, block: u64) -> Option<usize> {
        let [gaps, lengths, ..] = &self.columns;
        let (mut index, mut at) = self.looked_at;
        if gaps.each.is_none() && lengths.each.is_none() {
            let step = gaps.head.least + lengths.head.least;
            let ahead = block.checked_sub(at)? / step;
            index = usize::try_from(ahead).ok()?.checked_add(index)?;
            at += ahead * step;
        } else {
            while at < block && index + 1 < self.pack.count {
                at += lengths.at(index) + gaps.at(index);
                index += 1;
            }
        }
        if index >= self.pack.count {
            return None;
        }
        self.looked_at = (index, at);
        (at == block).then_some(index)
    }

    /// Gives the extent that begins at a block another value, and returns the one that it had.
    /// `None` where none begins there, or it would have another length. Blocks are told in order.
    pub(crate) fn set(&mut self, block: FileBlock, row: ExtentRow) -> Option<ExtentRow> {
        let index = self.find(block.0)?;
        let [_, lengths, places, births, flags] = &self.columns;
        let old = ExtentRow {
            start: crate::BlockNo(places.at(index)),
            len: u32::try_from(lengths.at(index)).ok()?,
            birth: crate::Epoch(u32::try_from(births.at(index)).ok()?),
            state: ExtentState::from_flags(u8::try_from(flags.at(index)).ok()?)?,
        };
        if old.len != row.len || !may_be_packed(&(block, row)) {
            return None;
        }
        let count = self.pack.count;
        self.columns[PLACES].set(index, count, row.start.0);
        if !planted(PlantedBug::PatchKeepsBirth) {
            self.columns[BIRTHS].set(index, count, row.birth.0.into());
        }
        self.columns[FLAGS].set(index, count, row.state.flags().into());
        Some(old)
    }

    /// Returns the row's value as it is now; `None` where nothing changed.
    pub(crate) fn finish(self) -> Option<Vec<u8>> {
        let Self { pack, mut columns, .. } = self;
        if !columns.iter().any(|column| column.changed) {
            return None;
        }
        debug_assert!(
            !columns[GAPS].changed && !columns[LENGTHS].changed,
            "I-PCK-1: where extents begin stays as it is"
        );
        for column in columns.iter_mut().filter(|column| column.changed) {
            column.head = Head::of(column.each.as_deref().unwrap_or_default());
        }
        let heads = columns.each_ref().map(|column| column.head);
        Some(finished(pack.ino, pack.first, pack.count, &heads, |index, out| {
            match &columns[index] {
                Values { head, each: Some(each), changed: true } => head.put(each, out),
                _ => out.extend_from_slice(pack.columns[index].bytes),
            }
        }))
    }
}
