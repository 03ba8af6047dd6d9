//! Packs: extents of one inode that stand near each other in the file, as one row of the tree.
//!
//! ```text
//!   key     inode u64 | file block of the first extent u64 | 1                            big-endian
//!   value   CRC-32C of key and rest u32 | number of extents u16 | five heads | five columns
//!   head    the least value, a varint | width u8: bits of what each value has above the least
//!   column  gaps before all but the first | lengths | places | births | flags
//! ```
//!
//! A column is the values of all extents in order, each less the least one, `width` bits a value,
//! the lowest bit first, filled with zeros up to a whole byte. A column of equal values takes no
//! byte. The key is one byte longer than that of an extent: what a row is, its key says.
//!
//! Only the tree has packs. Records of the log, rows in memory and before-images are single
//! extents, and what reads the tree is given single extents.
//!
//! - I-PCK-1: what a pack decodes to are at least two extents in the order of the file, none of
//!   which is empty, overlaps another or passes the end of a file's or volume's addresses; and they
//!   encode to the same bytes.

use crate::checksum::Crc32c;
use crate::decode::Reader;
use crate::extent::ExtentState;
use crate::planted::{PlantedBug, planted};
use crate::{BlockNo, Epoch, Error, ExtentRow, FileBlock, InodeNo, Result};

/// An extent and where in the file it begins.
pub(crate) type Placed = (FileBlock, ExtentRow);

/// The most extents of a pack that is written.
pub(crate) const EXTENTS_OF_PACK: usize = 256;
/// The most extents of a pack that is read.
pub(crate) const EXTENTS_MAX: usize = 4096;
/// What a pack's key ends with.
const KIND: u8 = 1;
/// Length of a pack's key in bytes.
const KEY_BYTES: usize = 17;
const COLUMNS: usize = 5;

/// Returns the key of a pack that begins with the extent at this block.
pub(crate) fn pack_key(ino: InodeNo, first: FileBlock) -> [u8; KEY_BYTES] {
    let mut key = [KIND; KEY_BYTES];
    key[..8].copy_from_slice(&ino.0.to_be_bytes());
    key[8..16].copy_from_slice(&first.0.to_be_bytes());
    key
}

/// Takes a pack's key apart; `None` for the key of anything else.
pub(crate) fn split_pack_key(key: &[u8]) -> Option<(InodeNo, FileBlock)> {
    let key: &[u8; KEY_BYTES] = key.try_into().ok()?;
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    (key[16] == KIND).then(|| (InodeNo(number(&key[..8])), FileBlock(number(&key[8..16]))))
}

/// Returns whether an extent may stand in a pack.
pub(crate) fn may_be_packed((at, row): &Placed) -> bool {
    let len = u64::from(row.len);
    len > 0 && at.0.checked_add(len).is_some() && row.start.0.checked_add(len).is_some()
}

/// The bits that a number takes.
fn width_of(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// Encodes extents of an inode as a pack.
pub(crate) fn encode(ino: InodeNo, extents: &[Placed]) -> Vec<u8> {
    debug_assert!(
        (2..=EXTENTS_MAX).contains(&extents.len())
            && extents.iter().all(may_be_packed)
            && extents.windows(2).all(|pair| gap(&pair[0], &pair[1]).is_some()),
        "I-PCK-1: a pack has extents in order and apart: {extents:?}"
    );
    let mut gaps: Vec<u64> =
        extents.windows(2).map(|pair| gap(&pair[0], &pair[1]).unwrap_or(0)).collect();
    if planted(PlantedBug::PackHoleForgotten) {
        gaps.fill(0);
    }
    let column = |of: fn(&ExtentRow) -> u64| extents.iter().map(|(_, row)| of(row)).collect();
    let columns: [Vec<u64>; COLUMNS] = [
        gaps,
        column(|row| row.len.into()),
        column(|row| row.start.0),
        column(|row| row.birth.0.into()),
        column(|row| row.state.flags().into()),
    ];
    let heads = columns.each_ref().map(|values| Head::of(values));
    finished(ino, extents[0].0, extents.len(), &heads, |index, out| {
        heads[index].put(&columns[index], out);
    })
}

/// Puts a pack together: of its heads, and of what puts the bytes of each column.
fn finished(
    ino: InodeNo,
    first: FileBlock,
    count: usize,
    heads: &[Head; COLUMNS],
    mut put: impl FnMut(usize, &mut Vec<u8>),
) -> Vec<u8> {
    let bits: usize = heads.iter().map(|head| head.width as usize).sum();
    let mut out = Vec::with_capacity(64 + bits * count / 8);
    out.extend_from_slice(&[0; 4]);
    let short = u16::try_from(count).expect("at most EXTENTS_MAX");
    out.extend_from_slice(&short.to_le_bytes());
    heads.iter().for_each(|head| head.encode(&mut out));
    (0..COLUMNS).for_each(|index| put(index, &mut out));
    let sum = checksum(&pack_key(ino, first), &out[4..]);
    out[..4].copy_from_slice(&sum.to_le_bytes());
    out
}

/// The hole between two extents; `None` where they overlap or are in the wrong order.
pub(crate) fn gap((at, row): &Placed, (next, _): &Placed) -> Option<u64> {
    next.0.checked_sub(at.0.checked_add(row.len.into())?)
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    let mut sum = Crc32c::default();
    sum.update(key);
    sum.update(body);
    sum.finish()
}

/// What the values of a column have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    least: u64,
    width: u32,
}

impl Head {
    fn of(values: &[u64]) -> Self {
        let least = values.iter().copied().min().unwrap_or(0);
        let most = values.iter().copied().max().unwrap_or(0);
        let mut width = width_of(most - least);
        if planted(PlantedBug::PackPlaceWraps) {
            width = width.min(6);
        }
        Self { least, width }
    }

    fn encode(self, out: &mut Vec<u8>) {
        let mut left = self.least;
        while left >= 0x80 {
            out.push(left as u8 | 0x80);
            left >>= 7;
        }
        out.extend_from_slice(&[left as u8, self.width as u8]);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let mut least = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = r.u8()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part || (byte == 0 && shift > 0) {
                return Err(Error::corrupt("its numbers are not the shortest"));
            }
            least |= part << shift;
            if byte < 0x80 {
                let width = u32::from(r.u8()?);
                return match width {
                    0..=64 => Ok(Self { least, width }),
                    _ => Err(Error::corrupt(format!("a column has values of {width} bits"))),
                };
            }
        }
        Err(Error::corrupt("a number in it does not end"))
    }

    fn mask(self) -> u64 {
        u64::MAX.checked_shr(u64::BITS - self.width).unwrap_or(0)
    }

    fn put(self, values: &[u64], out: &mut Vec<u8>) {
        let (mut held, mut bits) = (0_u128, 0);
        for value in values {
            held |= u128::from((value - self.least) & self.mask()) << bits;
            bits += self.width;
            if bits >= u64::BITS {
                out.extend_from_slice(&(held as u64).to_le_bytes());
                (held, bits) = (held >> u64::BITS, bits - u64::BITS);
            }
        }
        let left = bits.div_ceil(8) as usize;
        out.extend_from_slice(&held.to_le_bytes()[..left]);
    }
}

/// A column as it stands in a pack.
#[derive(Debug, Clone, Copy)]
struct Column<'a> {
    head: Head,
    bytes: &'a [u8],
}

impl Column<'_> {
    /// Returns the value of a number; `None` where it is larger than any.
    fn at(&self, index: usize) -> Option<u64> {
        let width = self.head.width as usize;
        if width == 0 {
            return Some(self.head.least);
        }
        let (byte, bit) = (index * width / 8, index * width % 8);
        let part = self.bytes.get(byte..)?;
        let above = match part.first_chunk::<8>() {
            // The value ends within these eight bytes.
            Some(word) if width <= 56 => u64::from_le_bytes(*word) >> bit,
            _ => {
                let mut window = [0; 16];
                let len = part.len().min(window.len());
                window[..len].copy_from_slice(&part[..len]);
                (u128::from_le_bytes(window) >> bit) as u64
            }
        };
        self.head.least.checked_add(above & self.head.mask())
    }

    /// Says whether what follows `count` values is zeros.
    fn is_filled(&self, count: usize) -> bool {
        let bits = count * self.head.width as usize;
        let tail = self.bytes.last().map_or(0, |byte| usize::from(*byte));
        bits.is_multiple_of(8) || tail >> (bits % 8) == 0
    }

    /// Says whether the head is the one that its `count` values ask for, and the rest is zeros.
    fn is_shortest(&self, count: usize) -> bool {
        let head = self.head;
        if head.width == 0 {
            return true;
        }
        let above = |index| self.at(index).map(|value| value - head.least);
        let (mut least, mut all) = (u64::MAX, 0);
        for above in (0..count).map_while(above) {
            (least, all) = (least.min(above), all | above);
        }
        least == 0 && width_of(all) == head.width && self.is_filled(count)
    }
}

/// A pack whose checksum is right.
#[derive(Debug)]
pub(crate) struct Pack<'a> {
    ino: InodeNo,
    first: FileBlock,
    count: usize,
    columns: [Column<'a>; COLUMNS],
}

impl<'a> Pack<'a> {
    /// Opens the pack of a key.
    ///
    /// # Errors
    /// `Corrupt` for what is none, with the inode and the file block that it stands for.
    pub(crate) fn open(key: &[u8], value: &'a [u8]) -> Result<Self> {
        let (ino, first) = split_pack_key(key)
            .ok_or_else(|| Error::corrupt("a key of another row is not that of a pack"))?;
        Self::opened(ino, first, value).map_err(|e| damaged(ino, first, &e.message))
    }

    fn opened(ino: InodeNo, first: FileBlock, value: &'a [u8]) -> Result<Self> {
        let mut r = Reader::new(value, "it");
        let (sum, count) = (r.u32()?, usize::from(r.u16()?));
        if sum != checksum(&pack_key(ino, first), &value[4..]) {
            return Err(Error::corrupt("its checksum does not match"));
        }
        if !(2..=EXTENTS_MAX).contains(&count) {
            return Err(Error::corrupt(format!("it says that it has {count} extents")));
        }
        let mut columns = [Column { head: Head { least: 0, width: 0 }, bytes: &[] }; COLUMNS];
        for column in &mut columns {
            column.head = Head::decode(&mut r)?;
        }
        for (index, column) in columns.iter_mut().enumerate() {
            let values = count - usize::from(index == 0);
            column.bytes = r.take((values * column.head.width as usize).div_ceil(8))?;
        }
        r.end()?;
        Ok(Self { ino, first, count, columns })
    }

    /// Returns its extents in the order of the file.
    ///
    /// # Errors
    /// `Corrupt` where they are none (I-PCK-1).
    pub(crate) fn extents(&self) -> Result<Vec<Placed>> {
        let damaged = |what: &str| damaged(self.ino, self.first, what);
        if !(0..COLUMNS).all(|index| self.columns[index].is_shortest(self.values(index))) {
            return Err(damaged("a column of it is longer than its values"));
        }
        let mut extents = Vec::with_capacity(self.count);
        let mut at = Some(self.first.0);
        for index in 0..self.count {
            let extent = at.and_then(|at| self.extent(index, at));
            let Some(extent) = extent else {
                return Err(damaged(&format!("its extent {index} is none")));
            };
            at = self.next(&extent, index);
            extents.push(extent);
        }
        Ok(extents)
    }

    /// Returns the extent that begins at a file block, if one does.
    pub(crate) fn find(&self, block: FileBlock) -> Result<Option<ExtentRow>> {
        let mut at = self.first.0;
        for index in 0..self.count {
            if at >= block.0 {
                let none = || damaged(self.ino, self.first, &format!("its extent {index} is none"));
                let found = (at == block.0).then(|| self.extent(index, at).ok_or_else(none));
                return Ok(found.transpose()?.map(|(_, row)| row));
            }
            let [gaps, lengths, ..] = &self.columns;
            let end = lengths.at(index).and_then(|len| at.checked_add(len));
            let next = end.and_then(|end| end.checked_add(gaps.at(index)?));
            match next {
                Some(next) if index + 1 < self.count => at = next,
                _ => break,
            }
        }
        Ok(None)
    }

    /// How many values a column has.
    fn values(&self, column: usize) -> usize {
        self.count - usize::from(column == 0)
    }

    fn extent(&self, index: usize, at: u64) -> Option<Placed> {
        let [_, lengths, places, births, flags] = &self.columns;
        let row = ExtentRow {
            start: BlockNo(places.at(index)?),
            len: u32::try_from(lengths.at(index)?).ok()?,
            birth: Epoch(u32::try_from(births.at(index)?).ok()?),
            state: ExtentState::from_flags(u8::try_from(flags.at(index)?).ok()?)?,
        };
        Some((FileBlock(at), row)).filter(may_be_packed)
    }

    /// Where the extent behind one begins.
    fn next(&self, (at, row): &Placed, index: usize) -> Option<u64> {
        let end = at.0.checked_add(row.len.into())?;
        if index + 1 == self.count {
            Some(end)
        } else {
            end.checked_add(self.columns[0].at(index)?)
        }
    }
}

/// Makes the error of a pack that cannot be read.
pub(crate) fn damaged(ino: InodeNo, first: FileBlock, what: &str) -> Error {
    Error::corrupt(format!(
        "the pack of extents of inode {} from its file block {} cannot be read: {what}; run a check",
        ino.0, first.0
    ))
}

/// Takes the row of a pack apart; `None` where the key is not that of a pack.
///
/// # Errors
/// `Corrupt` for what is none, with the inode and the file block that it stands for.
pub fn unpack(key: &[u8], value: &[u8]) -> Option<Result<Vec<(FileBlock, ExtentRow)>>> {
    split_pack_key(key).map(|_| decode(key, value))
}

/// Decodes the pack of a key.
///
/// # Errors
/// `Corrupt` for what is none.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Result<Vec<Placed>> {
    Pack::open(key, value)?.extents()
}

/// Decodes a pack of any inode and block, its checksum made right first. What decodes encodes to
/// the same, and each of its extents is found by its block.
#[cfg(any(test, feature = "forge"))]
pub fn decode_pack(ino: InodeNo, first: FileBlock, body: &[u8]) {
    let key = pack_key(ino, first);
    let value = [&checksum(&key, body).to_le_bytes(), body].concat();
    let Ok(pack) = Pack::open(&key, &value) else { return };
    let Ok(extents) = pack.extents() else { return };
    assert_eq!(encode(ino, &extents), value, "what was decoded encodes to the same");
    assert_eq!(extents[0].0, first);
    for (at, row) in &extents {
        assert_eq!(pack.find(*at).ok(), Some(Some(*row)), "each extent is found");
    }
}

mod patch;
#[cfg(test)]
mod tests;

pub(crate) use patch::Patch;
