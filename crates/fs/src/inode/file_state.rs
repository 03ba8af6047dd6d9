//! What an inode keeps about its data: locks, extent map, opens, and its part of the library cache.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bedplate_block::sync::{
    MappedRwLockReadGuard, Mutex, Place, RwLock, RwLockReadGuard, RwLockWriteGuard, rank,
};

use super::block_set::BlockSet;
use super::combining::Combining;
use super::cow_epoch::{CowEpoch, ExtentSize, KnownRelease, Unit};
use super::delayed::Delayed;
use super::held_sectors::HeldSectors;
use super::held_write::HeldWrite;
use super::imaged::Imaged;
use super::placed::Placed;
use super::read_windows::ReadWindows;
use super::recent::Recent;
use super::steady::{Bit, Cause, Steady};
use super::unsealed::Unsealed;
use crate::InodeNo;
use crate::lease::LeasedFile;
use crate::lock::{InodeLock, Outside, RangeLock};
use crate::mode::OpenTable;
use crate::statistics::WaitMeter;
use bedplate_cache::{Backing, CachedFile};
use bedplate_store::ExtentMap;

/// Everything about an inode's data: locks, extent map, opens. Ranks are in `docs/locks.md`.
#[derive(Debug)]
pub(crate) struct FileState {
    /// Rank 1.5: the opens; held over a change of the service.
    pub(crate) opens: Mutex<OpenTable, { rank::OPENS }>,
    pub(crate) steady: Arc<Steady>,
    /// What reads and writes waited for.
    pub(crate) waits: Arc<WaitMeter>,
    /// Rank 1.7: orders the library cache's reads and writes.
    pub(crate) order: InodeLock,
    /// Rank 2.
    pub(crate) lock: InodeLock,
    /// Rank 2a: bytes, for `direct`.
    pub(crate) ranges: RangeLock,
    /// Rank 2b: file blocks that a writer under the shared inode lock fills (I-IO-2).
    pub(crate) fill_claims: RangeLock,
    /// Rank 3. `None` until it is needed; then it has the parts that are in use.
    map: RwLock<Option<ExtentMap>, { rank::EXTENT_MAP }>,
    /// The size in the inode's row, valid once the map is loaded. Behind `inode.size` while cached
    /// writes wait.
    logged_size: AtomicU64,
    /// Extents born up to this epoch may be needed elsewhere.
    pub(crate) cow_epoch: CowEpoch,
    /// What is written untorn; valid with the copy-on-write epoch.
    pub(crate) untorn: Unit,
    /// Whether what is written gets checksums; valid with the copy-on-write epoch.
    pub(crate) gives_sums: AtomicBool,
    /// What is wanted in one run; valid with the copy-on-write epoch.
    pub(crate) extent_size: ExtentSize,
    /// On which members the file is to lie; valid with the copy-on-write epoch.
    pub(crate) placed: Placed,
    pub(crate) release_behind: KnownRelease,
    pub(crate) recent: Recent,
    /// Rank 3.2: changed under the map's write lock; rows are read under it.
    pub(crate) imaged: Mutex<Imaged, { rank::IMAGED_ROWS }>,
    pub(crate) unsealed: Unsealed,
    /// Leaf: copies of sectors that odd writes change in part.
    pub(crate) held_sectors: HeldSectors,
    /// Leaf: an odd write that has not reached the device yet.
    pub(crate) held_write: HeldWrite,
    /// Leaf: small writes that wait for the inode lock.
    pub(crate) combining: Combining,
    /// Rank 2.5: writes that made the file grow and have not reached the device yet.
    pub(crate) delayed: Delayed,
    /// Leaf: what is read ahead past the caches.
    pub(crate) read_windows: ReadWindows,
    /// Rank 3.5: holes whose data is in the cache and whose blocks are reserved.
    pub(crate) reserved: Mutex<BlockSet, { rank::RESERVATIONS }>,
    pub(crate) cached: OnceLock<CachePart>,
    /// A truncation is under way that has taken dirty pages out of the cache.
    pub(crate) truncating: AtomicBool,
    /// What processes with leases may do; made when it is first asked for.
    lease: OnceLock<Arc<LeasedFile>>,
    leased: Bit,
    /// An open that lasts was synced: its callers wait for the device by themselves, so nothing is
    /// absorbed for them.
    pub(crate) synced: AtomicBool,
    /// Bytes written over since the last sync that records carry though nothing vouches for what was
    /// there (`data/logged.rs`).
    pub(crate) carried_along: AtomicU64,
    /// Blocks of the file went elsewhere instead of waiting for a seal (`data/renew.rs`).
    pub(crate) was_renewed: AtomicBool,
}

impl FileState {
    /// Makes the state of an inode of which nothing is known yet; its locks are ordered by its
    /// number.
    pub(crate) fn new(ino: InodeNo) -> Self {
        let steady = Arc::default();
        let bit = |cause| Bit::new(&steady, cause);
        let waits = Arc::<WaitMeter>::default();
        Self {
            opens: Mutex::default(),
            order: InodeLock::at(Place::numbered(rank::ORDER, ino.0)).counted_in(&waits),
            lock: InodeLock::at(Place::numbered(rank::INODE, ino.0)).counted_in(&waits),
            ranges: RangeLock::at(Place::of(rank::RANGE)).counted_in(&waits),
            fill_claims: RangeLock::at(Place::of(rank::FILL_CLAIMS)).counted_in(&waits),
            waits,
            map: RwLock::default(),
            logged_size: AtomicU64::new(0),
            cow_epoch: CowEpoch::default(),
            untorn: Unit::default(),
            gives_sums: AtomicBool::new(false),
            extent_size: ExtentSize::default(),
            placed: Placed::default(),
            release_behind: KnownRelease::default(),
            recent: Recent::default(),
            imaged: Mutex::default(),
            unsealed: Unsealed::new(bit(Cause::Unsealed)),
            held_sectors: HeldSectors::new(bit(Cause::HeldSectors)),
            held_write: HeldWrite::new(bit(Cause::HeldWrite)),
            combining: Combining::default(),
            delayed: Delayed::new(bit(Cause::Delayed)),
            read_windows: ReadWindows::new(bit(Cause::Windows)),
            reserved: Mutex::default(),
            cached: OnceLock::new(),
            truncating: AtomicBool::new(false),
            lease: OnceLock::new(),
            leased: bit(Cause::Leased),
            synced: AtomicBool::new(false),
            carried_along: AtomicU64::new(0),
            was_renewed: AtomicBool::new(false),
            steady,
        }
    }

    /// Returns the lease of the file, if one was ever asked for.
    #[inline]
    pub(crate) fn lease(&self) -> Option<&Arc<LeasedFile>> {
        self.lease.get()
    }

    /// As [`lease`](Self::lease); makes one where there is none, known to the inode lock before
    /// anything is handed out.
    pub(crate) fn lease_or(&self, make: impl FnOnce() -> Arc<LeasedFile>) -> &Arc<LeasedFile> {
        self.lease.get_or_init(|| {
            let lease = make();
            self.lock.set_outside(Arc::clone(&lease) as Arc<dyn Outside>);
            self.leased.set(true);
            lease
        })
    }

    /// Gives the inode its extent map: it is new, and the map needs no reading.
    pub(crate) fn set_map(&self, map: ExtentMap) {
        *self.map.write() = Some(map);
    }

    /// Returns whether the file is open; without waiting for an open or close that is under way.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.try_lock().is_none_or(|opens| opens.len() > 0)
    }

    /// Returns whether a freeze waits for changes of the file because it is open, or because pages
    /// of it are dirty or being written (I-CHG-1).
    pub(crate) fn is_covered(&self) -> bool {
        self.is_open()
            || self.waits_in_memory()
            || self.lease().is_some_and(|lease| lease.has_tail())
            || self.cached.get().is_some_and(|part| part.file.dirty_bytes() > 0)
    }

    /// Returns whether a write has returned that is in memory only, past the library cache.
    #[inline]
    pub(crate) fn waits_in_memory(&self) -> bool {
        self.held_write.any() || self.delayed.any()
    }

    /// Returns whether nothing is lost when the inode is dropped from memory: no opens, no dirty
    /// pages, no held or delayed write.
    pub(crate) fn is_idle(&self) -> bool {
        let dirty = self.cached.get().is_some_and(|part| part.file.dirty_bytes() > 0);
        self.opens.try_lock().is_some_and(|opens| opens.len() == 0)
            && !dirty
            && !self.waits_in_memory()
            && !self.lease().is_some_and(|lease| lease.has_tail())
            && self.reserved.lock().is_empty()
    }

    #[cfg(test)]
    pub(crate) fn map_is_loaded(&self) -> bool {
        self.map.read().as_ref().is_some_and(|map| !map.is_absent())
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
        RwLockReadGuard::try_map(self.map.read(), |map| {
            parking_lot::RwLockReadGuard::try_map(map, Option::as_ref).ok()
        })
    }

    /// Locks the place of the extent map, to change it or to load it.
    pub(crate) fn map_place(&self) -> RwLockWriteGuard<'_, Option<ExtentMap>> {
        self.map.write()
    }

    /// As [`map_place`](Self::map_place), where nothing else looks at it; does not wait.
    pub(crate) fn map_place_if_free(&self) -> Option<RwLockWriteGuard<'_, Option<ExtentMap>>> {
        self.map.try_write()
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
