//! Rows of extents in the tree, of which many stand in packs: readers are given single ones.
//!
//! A pack that cannot be read is given as it stands: no extent has its key, so each reader takes it
//! for the damage that it is, and nothing hides it.

use std::ops::Bound;

use redb::ReadableTable;

use super::guard::guarded;
use super::merge::Walk;
use super::tree::tree_error;
use crate::pack::{self, Pack, Placed};
use crate::planted::{PlantedBug, planted};
use crate::row::{Table, extent_key};
use crate::{ExtentRow, FileBlock, InodeNo, Result};

const CONTEXT: &str = "the metadata tree cannot be read";

/// A row of the tree.
pub(super) type TreeRow = (Vec<u8>, Vec<u8>);
/// Bounds of keys.
pub(super) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Length of an extent's key in bytes.
const KEY_BYTES: usize = 16;

/// Returns a key above that of the extent and the pack that begin at the same block as `key`, the
/// key of an extent, and below all of the next block.
pub(super) fn above(key: &[u8]) -> Vec<u8> {
    [key, &[u8::MAX]].concat()
}

/// Returns the last row of the inode whose key `key` begins with, up to the extent or pack of
/// `key`.
pub(super) fn last_upto(
    rows: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<Option<TreeRow>> {
    let Some(ino) = key.get(..8) else { return Ok(None) };
    guarded(|| {
        let upto = if key.len() == KEY_BYTES { above(key) } else { key.to_vec() };
        let mut range = rows
            .range::<&[u8]>((Bound::Included(ino), Bound::Included(upto.as_slice())))
            .map_err(|e| tree_error(CONTEXT, e))?;
        let row = range.next_back().transpose().map_err(|e| tree_error(CONTEXT, e))?;
        Ok(row.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())))
    })
}

/// Returns the row of an extent.
pub(super) fn get(
    rows: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<Option<Vec<u8>>> {
    let Some((found, value)) = last_upto(rows, key)? else { return Ok(None) };
    if found == key {
        return Ok(Some(value));
    }
    if key.len() != KEY_BYTES || pack::split_pack_key(&found).is_none() {
        return Ok(None);
    }
    let block = FileBlock(u64::from_be_bytes(key[8..].try_into().expect("it has 16 bytes")));
    let row = Pack::open(&found, &value)?.find(block)?;
    Ok(row.map(|row| row.encode().to_vec()))
}

/// Takes the rows of a range out of the tree, packs apart.
pub(super) struct Rows<'a> {
    range: Option<redb::Range<'static, &'static [u8], &'static [u8]>>,
    bounds: Bounds<'a>,
    /// Extents of the pack that was read last, of this inode.
    unpacked: (InodeNo, std::vec::IntoIter<Placed>),
    packs: bool,
    walk: Walk,
}

impl<'a> Rows<'a> {
    /// Begins; of the table of extents with the pack that has what the range begins with.
    pub(super) fn new(
        rows: Option<&redb::ReadOnlyTable<&'static [u8], &'static [u8]>>,
        table: Table,
        bounds: Bounds<'a>,
        walk: Walk,
    ) -> Result<Self> {
        let packs = table == Table::Extent;
        let mut wider = (bounds.0.map(<[u8]>::to_vec), bounds.1.map(<[u8]>::to_vec));
        if let (true, Some(rows)) = (packs, rows) {
            wider.0 = from_pack(rows, bounds.0)?;
            // The key of a pack is above that of its first extent.
            if let Bound::Included(key) = bounds.1 {
                wider.1 = Bound::Included(above(key));
            }
        }
        let wider = (wider.0.as_ref().map(Vec::as_slice), wider.1.as_ref().map(Vec::as_slice));
        let range = guarded(|| {
            rows.map(|rows| rows.range::<&[u8]>(wider).map_err(|e| tree_error(CONTEXT, e)))
                .transpose()
        })?;
        Ok(Self { range, bounds, unpacked: (InodeNo(0), Vec::new().into_iter()), packs, walk })
    }

    /// Returns the next row.
    pub(super) fn next(&mut self) -> Result<Option<TreeRow>> {
        loop {
            while let Some((at, row)) = self.walk.next(&mut self.unpacked.1) {
                let key = extent_key(self.unpacked.0, at);
                if self.holds(&key) {
                    return Ok(Some((key.to_vec(), row.encode().to_vec())));
                }
            }
            let row =
                guarded(|| match self.range.as_mut().and_then(|range| self.walk.next(range)) {
                    None => Ok(None),
                    Some(Ok((key, value))) => {
                        Ok(Some((key.value().to_vec(), value.value().to_vec())))
                    }
                    Some(Err(e)) => Err(tree_error(CONTEXT, e)),
                })?;
            let Some((key, value)) = row else { return Ok(None) };
            let pack = if self.packs { pack::split_pack_key(&key) } else { None };
            match pack.map(|(ino, _)| (ino, pack::decode(&key, &value))) {
                Some((ino, Ok(extents))) => self.unpacked = (ino, extents.into_iter()),
                _ if self.packs && !self.holds(&key) => {}
                _ => return Ok(Some((key, value))),
            }
        }
    }

    fn holds(&self, key: &[u8]) -> bool {
        let (from, to) = self.bounds;
        let after = match from {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        };
        after
            && match to {
                Bound::Included(to) => key <= to,
                Bound::Excluded(to) => key < to,
                Bound::Unbounded => true,
            }
    }
}

/// Returns where a range begins that is to have the pack whose extents the bound lies among.
fn from_pack(
    rows: &redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
    bound: Bound<&[u8]>,
) -> Result<Bound<Vec<u8>>> {
    let (Bound::Included(key) | Bound::Excluded(key)) = bound else { return Ok(Bound::Unbounded) };
    let before = match planted(PlantedBug::PackBeforeNotRead) {
        true => None,
        false => last_upto(rows, key)?,
    };
    Ok(match before {
        Some((pack, _)) if pack::split_pack_key(&pack).is_some() => Bound::Included(pack),
        _ => bound.map(<[u8]>::to_vec),
    })
}

/// Visits the extents that a row of the tree stands for.
///
/// # Errors
/// `Corrupt` for what is neither an extent nor a pack.
pub(super) fn extents_of(
    key: &[u8],
    value: &[u8],
    mut visit: impl FnMut(ExtentRow) -> Result<()>,
) -> Result<()> {
    match pack::split_pack_key(key) {
        Some(_) => pack::decode(key, value)?.into_iter().try_for_each(|(_, row)| visit(row)),
        None => visit(ExtentRow::decode(value)?),
    }
}
