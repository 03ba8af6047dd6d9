//! What changed rows make of free space: the rows that begin and cease to cover blocks, and the
//! files that are clones or were cloned.

use std::collections::BTreeMap;

use super::Covers;
use crate::extent::Run;
use crate::images::{Referrer, decode_image, image_extent, split_before_key};
use crate::planted::{PlantedBug, planted};
use crate::row::{ExtentRow, InodeRow, Table, split_key};
use crate::{Error, FileKind, InodeNo, Result};

/// The differences that rows make.
#[derive(Debug)]
pub(crate) struct SpaceChanges {
    /// Blocks of the volume.
    blocks: u64,
    /// Which rows cover blocks.
    pub(crate) covers: Covers,
    /// Files that are clones or were cloned (`true`), or were removed: the past may have them.
    pub(crate) cloned: BTreeMap<InodeNo, bool>,
    /// How many rows of extents there are more than before.
    pub(crate) extents: i64,
}

impl SpaceChanges {
    /// Begins with nothing, on a volume of so many blocks.
    pub(crate) fn new(blocks: u64) -> Self {
        Self { blocks, covers: Covers::default(), cloned: BTreeMap::new(), extents: 0 }
    }

    /// Returns whether changes of a table's rows count here.
    pub(crate) fn concern(table: Table) -> bool {
        matches!(table, Table::Extent | Table::Before | Table::Inode)
    }

    /// Takes note of a row that is changed.
    ///
    /// # Errors
    /// `Corrupt` for a row that does not decode, or whose blocks lie outside the volume.
    pub(crate) fn note(
        &mut self,
        table: Table,
        key: &[u8],
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<()> {
        if old == new {
            return Ok(());
        }
        match table {
            Table::Extent => {
                let row = |row: Option<&[u8]>| row.map(ExtentRow::decode).transpose();
                self.note_extent(row(old)?, row(new)?)
            }
            Table::Before => {
                let (_, of, row_key) = split_before_key(key)?;
                if of == Table::Inode {
                    let then = new.map(decode_image).transpose()?.flatten();
                    return self.note_inode(row_key, None, then);
                }
                let row = |image: Option<&[u8]>| {
                    Ok::<_, Error>(
                        image.map(|image| image_extent(of, image)).transpose()?.flatten(),
                    )
                };
                if planted(PlantedBug::ImagesFreeAfterMount) {
                    return Ok(());
                }
                self.cover(row(old)?, row(new)?, |row| Referrer::Image(row.state.unsummed()))
            }
            Table::Inode => self.note_inode(key, old, new),
            _ => Ok(()),
        }
    }

    /// Takes note of an extent that is changed.
    ///
    /// # Errors
    /// `Corrupt` where its blocks lie outside the volume.
    pub(crate) fn note_extent(
        &mut self,
        old: Option<ExtentRow>,
        new: Option<ExtentRow>,
    ) -> Result<()> {
        self.extents += i64::from(new.is_some()) - i64::from(old.is_some());
        self.cover(old, new, |row| Referrer::Live(row.state.unsummed()))
    }

    fn cover(
        &mut self,
        old: Option<ExtentRow>,
        new: Option<ExtentRow>,
        referrer: impl Fn(ExtentRow) -> Referrer,
    ) -> Result<()> {
        let within = |row: &ExtentRow| {
            row.start.0.checked_add(row.len.into()).is_some_and(|end| end <= self.blocks)
        };
        if let Some(row) = [old, new].iter().flatten().find(|row| !within(row)) {
            return Err(Error::corrupt(format!(
                "an extent claims {} blocks from block {}; the volume has {} blocks",
                row.len, row.start.0, self.blocks
            )));
        }
        let run = |row: ExtentRow| Run { start: row.start, blocks: row.len.into() };
        let freed = old.filter(|_| new.is_some() || !planted(PlantedBug::FreedRunNotFolded));
        freed.into_iter().for_each(|row| self.covers.remove(run(row), referrer(row)));
        new.into_iter().for_each(|row| self.covers.insert(run(row), referrer(row)));
        Ok(())
    }

    /// A clone names the first file that it is a clone of; what it was made of since is a clone
    /// too.
    fn note_inode(&mut self, key: &[u8], old: Option<&[u8]>, new: Option<&[u8]>) -> Result<()> {
        let ino = split_key(key)?.0;
        let first_of = |row: Option<&[u8]>| {
            let row = row.map(InodeRow::decode).transpose()?;
            let clone = row.filter(|row| row.kind == FileKind::File && row.parent != InodeNo(0));
            Ok::<_, Error>(clone.map(|row| row.parent))
        };
        match (first_of(old)?, first_of(new)?) {
            (_, Some(first)) => self.cloned.extend([(ino, true), (first, true)]),
            (Some(_), None) => drop(self.cloned.entry(ino).or_insert(false)),
            (None, None) => {}
        }
        Ok(())
    }
}
