//! The extents of a part in memory: as they are while they come and go, or in columns.
//!
//! ```text
//!   open     (file block, extent), (file block, extent) …                   32 bytes an extent
//!   packed   file blocks | lengths | places | births | states               7 bytes an extent of a file in units of two blocks
//!   column   each value less the least one, in as many bytes as the largest takes: 0 to 8
//! ```
//!
//! A packed leaf is searched and changed where it lies: bytes of its columns are set, put in between
//! or taken out, and it is packed again where a column is too narrow for a value. So a file whose
//! extents come and go in any order takes no more memory than one that is read.

use std::ops::Range;

use super::{Extent, ExtentState};
use crate::{BlockNo, Epoch};

/// An extent and the file block at which it begins.
pub(super) type Placed = (u64, Extent);

const COLUMNS: usize = 5;
/// Zeros behind the last column, so that a whole word can be read at each value.
const SLACK_BYTES: usize = 8;

/// Extents in the order of the file, none of which overlaps another.
#[derive(Debug, Clone)]
pub(super) enum Leaf {
    Open(Vec<Placed>),
    Packed(Box<Packed>),
}

/// One column: where it begins, the least value, and the bytes of what each has above it.
#[derive(Debug, Clone, Copy, Default)]
struct Column {
    least: u64,
    start: u32,
    width: u8,
}

/// Extents in columns.
#[derive(Debug, Clone)]
pub(super) struct Packed {
    count: usize,
    columns: [Column; COLUMNS],
    bytes: Box<[u8]>,
}

fn values_of((at, extent): Placed) -> [u64; COLUMNS] {
    [at, extent.blocks.into(), extent.start.0, extent.birth.0.into(), extent.state.flags().into()]
}

impl Column {
    fn mask(self) -> u64 {
        u64::MAX.checked_shr(u64::BITS - 8 * u32::from(self.width)).unwrap_or(0)
    }

    fn takes(self, value: u64) -> bool {
        value.checked_sub(self.least).is_some_and(|above| above <= self.mask())
    }

    #[inline]
    fn get(self, bytes: &[u8], index: usize) -> u64 {
        if self.width == 0 {
            return self.least;
        }
        let at = self.start as usize + index * usize::from(self.width);
        let word: [u8; 8] = bytes[at..at + 8].try_into().expect("it is eight bytes long");
        self.least + (u64::from_le_bytes(word) & self.mask())
    }

    fn set(self, bytes: &mut [u8], index: usize, value: u64) {
        debug_assert!(self.takes(value), "the column is wide enough for {value}: {self:?}");
        let (at, width) =
            (self.start as usize + index * usize::from(self.width), usize::from(self.width));
        bytes[at..at + width].copy_from_slice(&(value - self.least).to_le_bytes()[..width]);
    }
}

impl Packed {
    fn new(extents: &[Placed]) -> Self {
        let (mut columns, mut len) = ([Column::default(); COLUMNS], 0);
        for (index, column) in columns.iter_mut().enumerate() {
            let values = || extents.iter().map(|extent| values_of(*extent)[index]);
            let most = values().max().unwrap_or(0);
            // A place that an extent moves to may lie below all others.
            let least = if index == 2 { 0 } else { values().min().unwrap_or(0) };
            let bits = u64::BITS - (most - least).leading_zeros();
            let width = u8::try_from(bits.div_ceil(8)).expect("at most 8");
            let start = u32::try_from(len).expect("a part has few extents");
            *column = Column { least, start, width };
            len += extents.len() * usize::from(width);
        }
        let bytes = vec![0; len + SLACK_BYTES].into_boxed_slice();
        let mut packed = Self { count: extents.len(), columns, bytes };
        for (index, extent) in extents.iter().enumerate() {
            packed.set(index, *extent);
        }
        packed
    }

    fn takes(&self, extent: Placed) -> bool {
        self.columns.iter().zip(values_of(extent)).all(|(column, value)| column.takes(value))
    }

    /// Returns a copy in which some extents are replaced by one that the columns take, or by none.
    fn spliced(&self, cut: Range<usize>, by: Option<Placed>) -> Self {
        let count = self.count - cut.len() + usize::from(by.is_some());
        let width = |column: &Column| usize::from(column.width);
        let len = count * self.columns.iter().map(width).sum::<usize>() + SLACK_BYTES;
        let (mut columns, mut bytes) = (self.columns, Vec::with_capacity(len));
        for column in &mut columns {
            let width = width(column);
            let old = &self.bytes[column.start as usize..][..self.count * width];
            column.start = u32::try_from(bytes.len()).expect("a part has few extents");
            bytes.extend_from_slice(&old[..cut.start * width]);
            bytes.resize(bytes.len() + if by.is_some() { width } else { 0 }, 0);
            bytes.extend_from_slice(&old[cut.end * width..]);
        }
        bytes.resize(len, 0);
        let mut packed = Self { count, columns, bytes: bytes.into_boxed_slice() };
        by.into_iter().for_each(|extent| packed.set(cut.start, extent));
        packed
    }

    /// Puts an extent in the place of others.
    fn splice(&mut self, cut: Range<usize>, by: Placed) {
        if self.takes(by) {
            *self = self.spliced(cut, Some(by));
        } else {
            let mut extents: Vec<Placed> = (0..self.count).map(|index| self.get(index)).collect();
            extents.splice(cut, [by]);
            *self = Self::new(&extents);
        }
    }

    fn set(&mut self, index: usize, extent: Placed) {
        for (column, value) in self.columns.iter().zip(values_of(extent)) {
            column.set(&mut self.bytes, index, value);
        }
    }

    #[inline]
    fn at(&self, index: usize) -> u64 {
        self.columns[0].get(&self.bytes, index)
    }

    #[inline]
    fn get(&self, index: usize) -> Placed {
        let [at, blocks, start, birth, state] =
            self.columns.map(|column| column.get(&self.bytes, index));
        let extent = Extent {
            start: BlockNo(start),
            blocks: u32::try_from(blocks).expect("it was one"),
            birth: Epoch(u32::try_from(birth).expect("it was one")),
            state: ExtentState::from_flags(state as u8).expect("it was one"),
        };
        (at, extent)
    }
}

impl Leaf {
    pub(super) fn packed(extents: &[Placed]) -> Self {
        Self::Packed(Box::new(Packed::new(extents)))
    }

    pub(super) fn is_packed(&self) -> bool {
        matches!(self, Self::Packed(_))
    }

    /// Brings it into columns; returns whether it was not.
    pub(super) fn pack(&mut self) -> bool {
        match self {
            Self::Packed(_) => false,
            Self::Open(extents) => {
                *self = Self::packed(extents);
                true
            }
        }
    }

    /// Returns its extents, to change which there are.
    pub(super) fn open(&mut self) -> &mut Vec<Placed> {
        if let Self::Packed(packed) = self {
            *self = Self::Open((0..packed.count).map(|index| packed.get(index)).collect());
        }
        match self {
            Self::Open(extents) => extents,
            Self::Packed(_) => unreachable!("it was opened"),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Open(extents) => extents.len(),
            Self::Packed(packed) => packed.count,
        }
    }

    #[inline]
    fn at(&self, index: usize) -> u64 {
        match self {
            Self::Open(extents) => extents[index].0,
            Self::Packed(packed) => packed.at(index),
        }
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<Placed> {
        match self {
            Self::Open(extents) => extents.get(index).copied(),
            Self::Packed(packed) => (index < packed.count).then(|| packed.get(index)),
        }
    }

    /// Returns how many extents begin before `block`.
    #[inline]
    pub(super) fn count_before(&self, block: u64) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.at(middle) < block {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Puts an extent where one begins at `at`, or not yet; returns that which did.
    pub(super) fn put(&mut self, at: u64, extent: Extent) -> Option<Extent> {
        let index = self.count_before(at);
        let old = self.get(index).filter(|(first, _)| *first == at).map(|(_, old)| old);
        let placed = (at, extent);
        match (&mut *self, old) {
            (Self::Packed(packed), Some(_)) if packed.takes(placed) => packed.set(index, placed),
            (Self::Packed(packed), Some(_)) => packed.splice(index..index + 1, placed),
            (Self::Packed(packed), None) => packed.splice(index..index, placed),
            (Self::Open(extents), Some(_)) => extents[index] = placed,
            (Self::Open(extents), None) => extents.insert(index, placed),
        }
        old
    }

    /// Takes out the extent that begins at `at`.
    pub(super) fn remove(&mut self, at: u64) -> Option<Extent> {
        let index = self.count_before(at);
        let (_, old) = self.get(index).filter(|(first, _)| *first == at)?;
        match self {
            Self::Packed(packed) => **packed = packed.spliced(index..index + 1, None),
            Self::Open(extents) => drop(extents.remove(index)),
        }
        Some(old)
    }

    /// Returns how many bytes of memory it takes beside itself.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Open(extents) => extents.capacity() * size_of::<Placed>(),
            Self::Packed(packed) => size_of::<Packed>() + packed.bytes.len(),
        }
    }
}
