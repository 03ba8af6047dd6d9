//! What an inode keeps about its data, and the extent map's way into memory.

use std::ops::Bound;
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use parking_lot::{MappedRwLockReadGuard, MappedRwLockWriteGuard, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::cached::CachePart;
use super::exposure::Unsealed;
use super::extent_size::ExtentSize;
use super::imaged::Imaged;
use super::promise::BlockSet;
use super::recent::Recent;
use super::redirect::Floor;
use super::untorn::Unit;
use super::{Grid, Io};
use crate::extent::{Extent, ExtentChange, ExtentMap, ExtentState};
use crate::lock::{InodeLock, RangeLock};
use crate::mode::OpenTable;
use crate::row::{ExtentRow, RowChange, Table, extent_key, file_block};
use crate::tally::Tally;
use crate::{Error, FileBlock, Result};

/// A closed file's map stays in memory up to this many extents.
const EXTENTS_KEPT: usize = 4096;

/// What every read and write looks at and hardly any changes: a cache line that all processors keep, away from the locks that they take from each other.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Steady {
    /// How the file is served, [`Service::encode`](crate::mode::Service::encode); 0 before the first open. Changes under `order` and `lock`, both exclusive.
    pub(crate) service: AtomicU8,
    pub(crate) tally: Tally,
}

/// Everything about an inode's data: locks, extent map, opens. Ranks are in `docs/locks.md`.
#[derive(Debug, Default)]
pub(crate) struct FileState {
    /// Rank 1.5: the opens; held over a change of the service.
    pub(crate) opens: Mutex<OpenTable>,
    pub(crate) steady: Steady,
    /// Rank 1.7: orders the library cache's reads and writes.
    pub(crate) order: InodeLock,
    /// Rank 2.
    pub(crate) lock: InodeLock,
    /// Rank 2a: bytes, for `direct`.
    pub(crate) ranges: RangeLock,
    /// Rank 2b: file blocks that a writer under the shared inode lock fills (I-IO-2).
    pub(crate) fills: RangeLock,
    /// Rank 3. `None` until somebody needs it.
    map: RwLock<Option<ExtentMap>>,
    /// The size in the inode's row, valid once the map is loaded. Behind `inode.size` while cached writes wait.
    logged_size: AtomicU64,
    /// Extents born up to this epoch may be needed elsewhere.
    pub(super) floor: Floor,
    /// What is written untorn; valid with the floor.
    pub(super) untorn: Unit,
    /// What is wanted in one run; valid with the floor.
    pub(super) extent_size: ExtentSize,
    pub(super) recent: Recent,
    /// Leaf; changed under the map's write lock.
    pub(super) imaged: Mutex<Imaged>,
    pub(crate) unsealed: Unsealed,
    /// Rank 3.5: holes whose data is in the cache and whose blocks are promised.
    pub(super) promised: Mutex<BlockSet>,
    pub(super) cached: OnceLock<CachePart>,
}

impl FileState {
    /// States that the inode is new: its extent map is empty and needs no reading.
    pub(crate) fn set_empty(&self) {
        *self.map.write() = Some(ExtentMap::default());
    }

    /// Returns whether the file is open; without waiting for an open or close that is under way.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.try_lock().is_none_or(|opens| opens.len() > 0)
    }

    /// Returns whether a freeze waits for changes of the file because it is open, or because pages of it are dirty or being written (I-CHG-1).
    pub(super) fn is_covered(&self) -> bool {
        self.is_open() || self.cached.get().is_some_and(|part| part.file.dirty_bytes() > 0)
    }

    /// Returns whether nothing is lost when the inode is dropped from memory: no opens, no dirty pages.
    pub(crate) fn is_idle(&self) -> bool {
        let dirty = self.cached.get().is_some_and(|part| part.file.dirty_bytes() > 0);
        self.opens.try_lock().is_some_and(|opens| opens.len() == 0) && !dirty && self.promised.lock().is_empty()
    }

    #[cfg(test)]
    pub(crate) fn map_is_loaded(&self) -> bool {
        self.map.read().is_some()
    }

    /// Forgets the map; the rows hold what counts.
    pub(super) fn forget_map(&self) {
        *self.map.write() = None;
    }

    /// Returns the size in the inode's row. The map has been loaded.
    pub(crate) fn logged_size(&self) -> u64 {
        self.logged_size.load(Ordering::Acquire)
    }

    /// Follows a change of the row's size, under the map's write lock.
    pub(super) fn set_logged_size(&self, size: u64) {
        self.logged_size.store(size, Ordering::Release);
    }
}

impl<'a> Io<'a> {
    /// Locks the extent map to read it.
    pub(crate) fn map(self) -> Result<MappedRwLockReadGuard<'a, ExtentMap>> {
        loop {
            if let Ok(map) = RwLockReadGuard::try_map(self.state().map.read(), Option::as_ref) {
                return Ok(map);
            }
            drop(self.map_mut()?);
        }
    }

    /// Locks the extent map to change it.
    pub(super) fn map_mut(self) -> Result<MappedRwLockWriteGuard<'a, ExtentMap>> {
        let mut map = self.state().map.write();
        if map.is_none() {
            *map = Some(self.load_map()?);
            self.begin_imaged();
            self.state().set_logged_size(self.inode.attr_lock().row.size);
        }
        Ok(RwLockWriteGuard::map(map, |map| map.as_mut().expect("it was just loaded")))
    }

    fn load_map(self) -> Result<ExtentMap> {
        let ino = self.inode.ino;
        let mut rows = Vec::new();
        self.fs.rows_of(Table::Extent, ino, Bound::Unbounded, |at, value| {
            rows.push((file_block(ino, at)?, decode(ExtentRow::decode(value)?)));
            Ok(ControlFlow::Continue(()))
        })?;
        let map = ExtentMap::from_rows(rows).map_err(|at| {
            Error::corrupt(format!("the extent of inode {} at file block {} overlaps another or passes the end; run a check", ino.0, at.0))
        })?;
        let blocks_max = self.fs.grid.block_of(Grid::FILE_BYTES_MAX);
        let size = self.inode.attr_lock().row.size;
        if map.end() > blocks_max || size > Grid::FILE_BYTES_MAX {
            let message =
                format!("inode {} has {size} bytes and extents up to file block {}, more than any file can have; run a check", ino.0, map.end());
            return Err(Error::corrupt(message));
        }
        Ok(map)
    }

    /// Forgets a large map that nobody has open; the rows hold the same.
    pub(super) fn unload_map(self) {
        let mut map = self.state().map.write();
        if map.as_ref().is_some_and(|map| map.len() > EXTENTS_KEPT) {
            *map = None;
        }
    }

    /// Returns extent changes as row changes.
    pub(super) fn rows(self, changes: &[ExtentChange]) -> Vec<RowChange> {
        let key = |at: FileBlock| extent_key(self.inode.ino, at);
        let row = |change: &ExtentChange| match *change {
            ExtentChange::Put(at, extent) => RowChange::put(Table::Extent, key(at), encode(extent).encode()),
            ExtentChange::Delete(at) => RowChange::delete(Table::Extent, key(at)),
        };
        // Room for the inode's row.
        let mut rows = Vec::with_capacity(changes.len() + 1);
        rows.extend(changes.iter().map(row));
        rows
    }
}

fn decode(row: ExtentRow) -> Extent {
    Extent { start: row.start, blocks: row.len, state: row.state(), birth: row.birth }
}

pub(super) fn encode(extent: Extent) -> ExtentRow {
    ExtentRow { start: extent.start, len: extent.blocks, unwritten: extent.state == ExtentState::Unwritten, birth: extent.birth }
}
