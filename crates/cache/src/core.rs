//! What the cache keeps for one file beside its pages: which groups are in memory, which pages are
//! dirty, what is being written, what failed.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::Backing;
use super::behind::{Readers, Release, Writer};
use super::random::RandomPages;
use super::readahead::Streams;
use super::runs::Runs;
use super::sync::{AtomicU64, Condvar, Mutex, MutexGuard, rank};
use bedplate_store::{Error, ErrorKind, Result};

pub(super) struct FileCore {
    /// Unique while the cache lives; never reused, so that a late fill cannot meet another file.
    pub(super) id: u64,
    /// For messages.
    pub(super) ino: u64,
    backing: Weak<dyn Backing>,
    /// The inode's logical size.
    pub(super) size: Arc<AtomicU64>,
    /// Changes at the beginning and at the end of every change of the map; odd while one is under
    /// way.
    epoch: AtomicU64,
    /// Odd while a write into pages is under way, and different after it.
    pub(super) writes: AtomicU64,
    /// Dirty or flying pages.
    pub(super) pinned_pages: AtomicU64,
    /// Rank 9.1.
    pub(super) state: Mutex<FileState, { rank::CACHED_FILE }>,
    /// Something in `FileState::flying` has landed.
    pub(super) settled: Condvar,
    /// A leaf.
    pub(super) streams: Mutex<Streams, { rank::CACHE_LEAF }>,
    /// [`Release::code`].
    release: AtomicU8,
    /// Its pages are published.
    pub(super) shared: AtomicBool,
    /// A leaf.
    pub(super) readers: Mutex<Readers, { rank::CACHE_LEAF }>,
}

#[derive(Debug, Default)]
pub(super) struct FileState {
    /// Groups with pages in memory.
    pub(super) groups: BTreeSet<u64>,
    /// Pages with dirty units that no write-behind carries.
    pub(super) dirty: Runs,
    /// Those of them that were written at random, where these are bounded.
    pub(super) random: RandomPages,
    /// Pages that are being written.
    pub(super) flying: Vec<Flying>,
    pub(super) next_flying: u64,
    map_changes: u32,
    /// The file is served past the cache: counts as a change of the map under way.
    pub(super) paused: bool,
    /// The file was dropped: what is still being written is forgotten when it lands.
    pub(super) closed: bool,
    /// Pages are forgotten once they are written: their writer keeps them.
    pub(super) passing: bool,
    /// Which runs that were written belong to a sequential writer.
    pub(super) writer: Writer,
    /// Counts failed write-behinds, so that a thread that waits for one notices.
    pub(super) failures: u64,
    /// The last of them.
    pub(super) last_failure: Option<Error>,
    /// The first failed write-behind since a flush wrote everything.
    pub(super) error: Option<Latched>,
    /// Completed runs for the scheduled write-behind.
    pub(super) behind: Vec<Range<u64>>,
    /// Where the last write-behind of whatever is dirty ended.
    pub(super) drain_at: u64,
    /// A write-behind of this file waits in the pool.
    pub(super) scheduled: bool,
    /// The cache's list of files to flush has this file.
    pub(super) listed: bool,
}

/// A failed write-behind.
#[derive(Debug)]
pub(super) struct Latched {
    pub(super) error: Error,
    /// A flush has returned it.
    pub(super) told: bool,
}

#[derive(Debug)]
pub(super) struct Flying {
    pub(super) id: u64,
    pub(super) pages: Range<u64>,
}

impl FileCore {
    pub(super) fn new(id: u64, ino: u64, backing: Weak<dyn Backing>, size: Arc<AtomicU64>) -> Self {
        Self {
            id,
            ino,
            backing,
            size,
            epoch: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            pinned_pages: AtomicU64::new(0),
            state: Mutex::default(),
            settled: Condvar::new(),
            streams: Mutex::default(),
            release: AtomicU8::new(0),
            shared: AtomicBool::new(false),
            readers: Mutex::default(),
        }
    }

    /// Turns the ordinal of a file into its id: different for different ordinals, and spread over
    /// all bits.
    pub(super) fn number(ordinal: u64) -> u64 {
        ordinal.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns which pages leave behind a sequential reader or writer.
    #[inline]
    pub(super) fn release(&self) -> Release {
        Release::of_code(self.release.load(Ordering::Relaxed))
    }

    pub(super) fn set_release(&self, release: Release) {
        self.release.store(release.code(), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn backing(&self) -> Result<Arc<dyn Backing>> {
        self.backing.upgrade().ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("inode {} was closed while its pages were in use", self.ino),
            )
        })
    }

    /// A group of the file appears in the shard; the shard's lock is held.
    pub(super) fn enter(&self, group: u64) -> bool {
        self.state.lock().groups.insert(group)
    }

    /// As [`enter`](Self::enter), unless the map has changed since `epoch` was read.
    pub(super) fn enter_at(&self, group: u64, epoch: u64) -> bool {
        let mut state = self.state.lock();
        if !self.is_at(epoch) {
            return false;
        }
        state.groups.insert(group)
    }

    /// The last page of a group has left the shard; the shard's lock is held.
    pub(super) fn leave(&self, group: u64) {
        self.state.lock().groups.remove(&group);
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Whether no change of the map began or was under way since `epoch` was read.
    pub(super) fn is_at(&self, epoch: u64) -> bool {
        epoch.is_multiple_of(2) && self.epoch() == epoch
    }

    /// From here to [`end_map_change`](Self::end_map_change) no fill is kept (I-CACHE-5).
    pub(super) fn begin_map_change(&self, state: &mut FileState) {
        state.map_changes += 1;
        if state.map_changes == 1 {
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(super) fn end_map_change(&self) {
        let mut state = self.state.lock();
        assert!(state.map_changes > 0, "I-CACHE-5: what ends has begun");
        state.map_changes -= 1;
        if state.map_changes == 0 {
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Waits until no page of the range is being written.
    pub(super) fn wait_for_flying<'a>(
        &'a self,
        mut state: MutexGuard<'a, FileState>,
        pages: &Range<u64>,
    ) -> MutexGuard<'a, FileState> {
        while state.flying.iter().any(|f| f.pages.start < pages.end && pages.start < f.pages.end) {
            self.settled.wait(&mut state);
        }
        state
    }

    /// Waits for the writes of the range that began before this call.
    pub(super) fn settle_begun(&self, pages: &Range<u64>) {
        let mut state = self.state.lock();
        let next = state.next_flying;
        while state
            .flying
            .iter()
            .any(|f| f.id < next && f.pages.start < pages.end && pages.start < f.pages.end)
        {
            self.settled.wait(&mut state);
        }
    }

    /// Adds a page to the dirty ones; returns the run it is part of, how many dirty pages were
    /// written at random, and whether the file must be put on the cache's list.
    pub(super) fn add_dirty(&self, page: u64, at_random: bool) -> (Range<u64>, u64, bool) {
        let mut state = self.state.lock();
        let run = state.dirty.insert(page, Instant::now);
        if at_random {
            state.random.insert(page);
        }
        (run, state.random.count(), !std::mem::replace(&mut state.listed, true))
    }
}

impl FileState {
    /// Forgets that pages are dirty: they are cut off, or gone with the file.
    pub(super) fn forget_dirty(&mut self, pages: &Range<u64>) {
        self.dirty.remove(pages);
        self.random.remove(pages);
    }
}

impl std::fmt::Debug for FileCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileCore")
            .field("id", &self.id)
            .field("ino", &self.ino)
            .finish_non_exhaustive()
    }
}
