//! What a scrub asks: extents that only checkpoints have, and the volume's own blocks.

use std::ops::{Bound, ControlFlow};

use super::Engine;
use crate::{Epoch, FileBlock, InodeNo, Result};
use bedplate_store::{
    ExtentState, OwnPlace, PlantedBug, Table, before_key, crc32c, extent_key, image_extent,
    planted, split_before_key, split_extent_key,
};

/// How many before-images are read at once, while commits wait.
const IMAGES_AT_ONCE: usize = 1024;

/// An extent with data that a checkpoint keeps and the file does not have any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptExtent {
    /// The checkpoint that keeps it, by its epoch.
    pub epoch: Epoch,
    /// The file.
    pub ino: InodeNo,
    /// Where it begins in the file, in bytes.
    pub file_offset: u64,
    /// Where it begins on the volume, in bytes.
    pub volume_offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl Engine {
    /// Returns the extents with data that checkpoints keep, in the order of their places.
    pub(crate) fn kept_extents(&self) -> Result<Vec<KeptExtent>> {
        let block = u64::from(self.block_size());
        let (mut kept, mut from) = (Vec::new(), Bound::Unbounded);
        loop {
            let mut last: Option<Vec<u8>> = None;
            let after = from.as_ref().map(Vec::as_slice);
            let mut count = 0;
            self.scan_rows(Table::Before, after, Bound::Unbounded, |key, image| {
                count += 1;
                let (epoch, table, row) = split_before_key(key)?;
                if let Some(extent) = image_extent(table, image)?.filter(|row| row.state.has_data())
                {
                    let (ino, at) = split_extent_key(row)?;
                    kept.push(KeptExtent {
                        epoch,
                        ino,
                        file_offset: at.0 * block,
                        volume_offset: extent.start.0 * block,
                        len: u64::from(extent.len) * block,
                    });
                }
                if count < IMAGES_AT_ONCE {
                    return Ok(ControlFlow::Continue(()));
                }
                last = Some(key.to_vec());
                Ok(ControlFlow::Break(()))
            })?;
            match last {
                Some(key) => from = Bound::Excluded(key),
                None => break,
            }
        }
        kept.sort_unstable_by_key(|kept| kept.volume_offset);
        Ok(kept)
    }

    /// As [`is_as_written`](Self::is_as_written), of an extent that a checkpoint keeps.
    pub(crate) fn is_as_kept(
        &self,
        kept: &KeptExtent,
        place: u64,
        bytes: &[u8],
    ) -> Result<Option<bool>> {
        let grid = self.grid();
        if bytes.len() as u64 != grid.block || !grid.on_block(place) {
            return Ok(None);
        }
        let block = grid.block_of(place);
        let extent = extent_key(kept.ino, FileBlock(grid.block_of(kept.file_offset)));
        let sum = self.reading(|rows| {
            let key = before_key(kept.epoch, Table::Extent, &extent);
            let image = rows.get(Table::Before, &key)?;
            let row = image.map(|image| image_extent(Table::Extent, &image)).transpose()?.flatten();
            let has_block =
                row.filter(|_| !planted(PlantedBug::KeptNotCompared)).is_some_and(|row| {
                    row.state == ExtentState::Summed
                        && block >= row.start.0
                        && block - row.start.0 < row.len.into()
                });
            has_block.then(|| rows.sum(block)).transpose()
        })?;
        Ok(sum.map(|sum| sum == crc32c(bytes)))
    }

    /// Returns what of the volume's own lies at an address of the data's device, or of the log's.
    pub(crate) fn own_at(&self, of_log: bool, address: u64) -> Option<OwnPlace> {
        self.meta.own_at(of_log, address)
    }

    /// Reads all pages of the metadata tree, so that [`own_at`](Self::own_at) knows each.
    pub(crate) fn learn_pages(&self) -> Result<()> {
        self.meta.learn_pages()
    }
}
