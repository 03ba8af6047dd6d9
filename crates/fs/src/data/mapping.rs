//! The extent map's way into memory, and its changes as row changes.

use std::ops::{Bound, ControlFlow};

use bedplate_block::sync::{MappedRwLockReadGuard, MappedRwLockWriteGuard, RwLockWriteGuard};

use super::DataPath;
use crate::{Error, FileBlock, Result};
use bedplate_store::{
    Extent, ExtentChange, ExtentMap, ExtentRow, Grid, RowChange, Run, Table, extent_key, file_block,
};

/// A closed file's map stays in memory up to this many extents.
const EXTENTS_KEPT: usize = 4096;

impl<'a> DataPath<'a> {
    /// Locks the extent map to read it.
    pub(crate) fn map(self) -> Result<MappedRwLockReadGuard<'a, ExtentMap>> {
        loop {
            if let Some(map) = self.state().map_if_loaded() {
                return Ok(map);
            }
            drop(self.map_mut()?);
        }
    }

    /// Locks the extent map to change it.
    pub(super) fn map_mut(self) -> Result<MappedRwLockWriteGuard<'a, ExtentMap>> {
        let mut map = self.state().map_place();
        if map.is_none() {
            *map = Some(self.load_map()?);
            self.begin_imaged();
            self.state().set_logged_size(self.inode.attr_lock().row.size);
        }
        Ok(RwLockWriteGuard::map(map, |map| {
            parking_lot::RwLockWriteGuard::map(map, |map| map.as_mut().expect("it was just loaded"))
        }))
    }

    fn load_map(self) -> Result<ExtentMap> {
        let ino = self.inode.ino;
        let mut rows = Vec::new();
        self.fs.rows_of(Table::Extent, ino, Bound::Unbounded, |at, value| {
            let (at, extent) = (file_block(ino, at)?, decode(ExtentRow::decode(value)?));
            let run = Run { start: extent.start, blocks: extent.blocks.into() };
            if !self.fs.may_hold_data(run) {
                return Err(Error::corrupt(format!(
                    "the extent of inode {} at file block {} lies in blocks {}+{}, outside the \
                     volume or in a region of the volume itself; run a check",
                    ino.0, at.0, run.start.0, run.blocks
                )));
            }
            rows.push((at, extent));
            Ok(ControlFlow::Continue(()))
        })?;
        let map = ExtentMap::from_rows(rows).map_err(|at| {
            Error::corrupt(format!(
                "the extent of inode {} at file block {} overlaps another or passes the end; run a \
                 check",
                ino.0, at.0
            ))
        })?;
        let blocks_max = self.fs.grid().block_of(Grid::FILE_BYTES_MAX);
        let size = self.inode.attr_lock().row.size;
        if map.end() > blocks_max || size > Grid::FILE_BYTES_MAX {
            let message = format!(
                "inode {} has {size} bytes and extents up to file block {}, more than any file can \
                 have; run a check",
                ino.0,
                map.end()
            );
            return Err(Error::corrupt(message));
        }
        Ok(map)
    }

    /// Forgets the large map of a file that is not open; the rows hold the same.
    pub(super) fn unload_map(self) {
        let mut map = self.state().map_place();
        if map.as_ref().is_some_and(|map| map.len() > EXTENTS_KEPT) {
            *map = None;
        }
    }

    /// Returns extent changes as row changes.
    pub(super) fn rows(self, changes: &[ExtentChange]) -> Vec<RowChange> {
        let key = |at: FileBlock| extent_key(self.inode.ino, at);
        let row = |change: &ExtentChange| match *change {
            ExtentChange::Put(at, extent) => {
                RowChange::put(Table::Extent, key(at), encode(extent).encode())
            }
            ExtentChange::Delete(at) => RowChange::delete(Table::Extent, key(at)),
        };
        // Room for the inode's row.
        let mut rows = Vec::with_capacity(changes.len() + 1);
        rows.extend(changes.iter().map(row));
        rows
    }
}

fn decode(row: ExtentRow) -> Extent {
    Extent { start: row.start, blocks: row.len, state: row.state, birth: row.birth }
}

pub(super) fn encode(extent: Extent) -> ExtentRow {
    debug_assert!(extent.blocks > 0, "I-EXT-1: the row of an extent covers a block: {extent:?}");
    ExtentRow { start: extent.start, len: extent.blocks, state: extent.state, birth: extent.birth }
}
