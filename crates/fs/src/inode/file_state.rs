//! What an inode keeps about its data: locks, extent map, opens, and its part of the library cache.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::block_set::BlockSet;
use super::cow_epoch::{CowEpoch, ExtentSize, Unit};
use super::imaged::Imaged;
use super::recent::Recent;
use super::unsealed::Unsealed;
use crate::lock::{InodeLock, RangeLock};
use crate::mode::OpenTable;
use crate::statistics::FileCounters;
use bedplate_cache::{Backing, CachedFile};
use bedplate_store::ExtentMap;

/// What every read and write looks at and hardly any changes: a cache line that all processors
/// keep, away from the locks that they take from each other.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Steady {
    /// How the file is served, [`Service::encode`](crate::mode::Service::encode); 0 before the first open. Changes under `order` and `lock`, both exclusive.
    pub(crate) service: AtomicU8,
    pub(crate) io_counters: FileCounters,
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
    pub(crate) fill_claims: RangeLock,
    /// Rank 3. `None` until it is needed.
    map: RwLock<Option<ExtentMap>>,
    /// The size in the inode's row, valid once the map is loaded. Behind `inode.size` while cached
    /// writes wait.
    logged_size: AtomicU64,
    /// Extents born up to this epoch may be needed elsewhere.
    pub(crate) cow_epoch: CowEpoch,
    /// What is written untorn; valid with the copy-on-write epoch.
    pub(crate) untorn: Unit,
    /// What is wanted in one run; valid with the copy-on-write epoch.
    pub(crate) extent_size: ExtentSize,
    pub(crate) recent: Recent,
    /// Leaf; changed under the map's write lock.
    pub(crate) imaged: Mutex<Imaged>,
    pub(crate) unsealed: Unsealed,
    /// Rank 3.5: holes whose data is in the cache and whose blocks are reserved.
    pub(crate) reserved: Mutex<BlockSet>,
    pub(crate) cached: OnceLock<CachePart>,
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

    /// Returns whether a freeze waits for changes of the file because it is open, or because pages
    /// of it are dirty or being written (I-CHG-1).
    pub(crate) fn is_covered(&self) -> bool {
        self.is_open() || self.cached.get().is_some_and(|part| part.file.dirty_bytes() > 0)
    }

    /// Returns whether nothing is lost when the inode is dropped from memory: no opens, no dirty pages.
    pub(crate) fn is_idle(&self) -> bool {
        let dirty = self.cached.get().is_some_and(|part| part.file.dirty_bytes() > 0);
        self.opens.try_lock().is_some_and(|opens| opens.len() == 0)
            && !dirty
            && self.reserved.lock().is_empty()
    }

    #[cfg(test)]
    pub(crate) fn map_is_loaded(&self) -> bool {
        self.map.read().is_some()
    }

    /// Forgets the map; the rows hold what counts.
    pub(crate) fn forget_map(&self) {
        *self.map.write() = None;
    }

    /// Returns the size in the inode's row. The map has been loaded.
    pub(crate) fn logged_size(&self) -> u64 {
        self.logged_size.load(Ordering::Acquire)
    }

    /// Follows a change of the row's size, under the map's write lock.
    pub(crate) fn set_logged_size(&self, size: u64) {
        self.logged_size.store(size, Ordering::Release);
    }

    /// Locks the extent map to read it; `None` where it is not in memory.
    #[inline]
    pub(crate) fn map_if_loaded(&self) -> Option<MappedRwLockReadGuard<'_, ExtentMap>> {
        RwLockReadGuard::try_map(self.map.read(), Option::as_ref).ok()
    }

    /// Locks the place of the extent map, to change it or to load it.
    pub(crate) fn map_place(&self) -> RwLockWriteGuard<'_, Option<ExtentMap>> {
        self.map.write()
    }
}

/// An inode's part of the cache, with what the cache writes back to.
pub(crate) struct CachePart {
    pub(crate) file: CachedFile,
    _backing: Arc<dyn Backing>,
}

impl CachePart {
    /// Puts a file's part of the cache together with what it writes back to, which it keeps.
    pub(crate) fn new(file: CachedFile, backing: Arc<dyn Backing>) -> Self {
        Self { file, _backing: backing }
    }
}

impl std::fmt::Debug for CachePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}
