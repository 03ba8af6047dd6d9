//! The extents of a part in memory: as they are while they come and go, or in columns.
//!
//! ```text
//!   open     (file block, extent), (file block, extent) …                   32 bytes an extent
//!   packed   file blocks | lengths | places | births | states               7 bytes an extent of a file in units of two blocks
//!   column   each value less the least one, in as many bytes as the largest takes: 0 to 8
//! ```
//!
//! A packed leaf is searched where it lies, and takes another value of an extent that it has where
//! the column is wide enough. A change of which extents there are opens it.

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
        match (&mut *self, old) {
            (Self::Packed(packed), Some(_))
                if packed
                    .columns
                    .iter()
                    .zip(values_of((at, extent)))
                    .all(|(column, value)| column.takes(value)) =>
            {
                packed.set(index, (at, extent));
            }
            (_, Some(_)) => self.open()[index] = (at, extent),
            (_, None) => self.open().insert(index, (at, extent)),
        }
        old
    }

    /// Takes out the extent that begins at `at`.
    pub(super) fn remove(&mut self, at: u64) -> Option<Extent> {
        let index = self.count_before(at);
        self.get(index).filter(|(first, _)| *first == at)?;
        Some(self.open().remove(index).1)
    }

    /// Returns how many bytes of memory it takes beside itself.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Open(extents) => extents.capacity() * size_of::<Placed>(),
            Self::Packed(packed) => size_of::<Packed>() + packed.bytes.len(),
        }
    }
}
