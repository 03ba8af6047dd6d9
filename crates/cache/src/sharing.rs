//! Pages that other processes read by themselves (`bedplate-lease` has the protocol).
//!
//! A frame is *published* while it holds what a read of the file would return, of a page that lies
//! wholly within the file, of a file that is [shared](CachedFile::set_shared). Whatever changes its
//! bytes withdraws it first, and publishes it when it is whole again. One that nothing
//! published again costs its readers a request, with which it is.
//!
//! A page that was read ahead is published when it was used once: its use is what the next
//! read-ahead waits for.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use bedplate_block::{SharedArena, SharedMemory, Sharing};
use bedplate_lease::{PageShape, SharedPages};
use bedplate_store::{Error, ErrorKind, PlantedBug, Result, planted};

use super::core::FileCore;
use super::file::CachedFile;
use super::layout::{GROUP_PAGES, group_spans};
use super::pages::PageCache;
use super::shard::{Key, ShardState};
use super::slab::{SLAB_FRAMES, Shared, SharedCache};

impl ShardState {
    /// Moves the frames to memory that other processes read.
    fn share(&mut self, shared: Shared) {
        for (slab, memory) in self.slabs.iter_mut().enumerate() {
            if let Some(mut moved) = shared.slab(slab) {
                moved[..memory.len()].copy_from_slice(memory);
                *memory = moved;
            }
        }
        self.table.shared = Some(shared);
    }

    /// Has the table of published pages follow the number of frames.
    pub(super) fn resize_shared(&mut self) {
        let (frames, quota) = (&self.table.frames, self.quota);
        if let Some(shared) = &mut self.table.shared {
            let entered = (0..).zip(frames).filter(|(_, frame)| frame.entered);
            shared.pages.resize(quota, entered.map(|(at, _)| at));
        }
    }

    /// Publishes a frame, if it is whole and its file is shared.
    pub(super) fn publish(&mut self, at: u32, core: &FileCore) {
        let Some(shared) = self.table.shared.as_ref().filter(|_| core.is_shared()) else { return };
        let (all, frame) = (self.layout.all_units(), &mut self.table.frames[at as usize]);
        let end = self.layout.start_of(frame.page().saturating_add(1));
        let is_within = end <= core.size() || planted(PlantedBug::SharedPageBeyondEnd);
        let is_whole = frame.valid == all && !frame.is_pinned() && is_within;
        if frame.published || !is_whole || *frame.marks.get_mut() != 0 || !shared.holds(at) {
            return;
        }
        if !frame.entered {
            shared.pages.enter(at, frame.file(), frame.page());
            frame.entered = true;
        }
        shared.pages.publish(at);
        frame.published = true;
    }

    /// Takes a frame back before its bytes change.
    #[inline]
    pub(super) fn changes(&mut self, at: u32) {
        if !planted(PlantedBug::SharedPageNotWithdrawn) {
            self.withdraw(at);
        }
    }

    /// Takes frames of pages that are about to change back together: what a reader sees of several
    /// pages of one group is of one moment, as on the mount.
    pub(super) fn change_together(&mut self, key: Key, pages: Range<u64>) {
        for page in pages {
            if let Some(at) = self.lookup(key, page) {
                self.changes(at);
            }
        }
    }

    fn withdraw(&mut self, at: u32) {
        let frame = &mut self.table.frames[at as usize];
        if frame.published {
            frame.published = false;
            if let Some(shared) = &self.table.shared {
                shared.pages.withdraw(at);
            }
        }
    }

    /// The page in a frame leaves it.
    pub(super) fn expel(&mut self, at: u32) {
        self.withdraw(at);
        let frame = &mut self.table.frames[at as usize];
        if std::mem::take(&mut frame.entered)
            && let Some(shared) = &self.table.shared
        {
            shared.pages.leave(at);
        }
    }
}

impl PageCache {
    /// Moves all pages to memory that other processes can be given, if they do not lie there yet;
    /// `bytes_max` is how large the cache may become at most with all of its pages there.
    ///
    /// # Errors
    /// When the system has no such memory; the cache is as it was.
    pub fn share(&self, bytes_max: u64) -> Result<SharedCache> {
        if let Some(shared) = self.shared() {
            return Ok(shared);
        }
        let failed = |why: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Io, format!("the cache's memory cannot be shared: {why}"))
        };
        let (shards, page_bytes) = (self.shards.len(), self.layout.page_size());
        let frames = (bytes_max.max(self.cap_bytes()) / page_bytes as u64).div_ceil(shards as u64);
        let frames = usize::try_from(frames).map_err(|error| failed(&error))?;
        let slabs = frames.div_ceil(SLAB_FRAMES);
        let shape = PageShape { shards, frames: slabs * SLAB_FRAMES, page_bytes };
        let arena = SharedArena::new("bedplate-cache", shards * slabs, SLAB_FRAMES * page_bytes)
            .map_err(|error| failed(&error))?;
        let memory = |name, words, sharing| {
            SharedMemory::new(name, words, sharing).map_err(|error| failed(&error))
        };
        let shared = SharedCache {
            frames: arena,
            directory: memory("bedplate-pages", shape.directory_words(), Sharing::ReadOnly)?,
            uses: memory("bedplate-uses", shape.uses_words(), Sharing::ReadWrite)?,
        };
        let pages = SharedPages::create(shared.directory.clone(), shared.uses.clone(), shape)
            .map_err(|error| failed(&error))?;
        if self.shared.set(shared.clone()).is_err() {
            return self.share(bytes_max);
        }
        for (i, shard) in self.shards.iter().enumerate() {
            let mut state = shard.state.write();
            let (pages, arena) = (pages.shard(i, state.quota), shared.frames.clone());
            state.share(Shared { pages, arena, first: i * slabs });
        }
        Ok(shared)
    }

    /// Returns the memory that other processes can be given, if pages lie in such.
    pub fn shared(&self) -> Option<SharedCache> {
        self.shared.get().cloned()
    }
}

impl CachedFile {
    /// Returns the number by which other processes find the file's pages; of no other file ever.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.core.id
    }

    /// Says whether pages of the file are published from now on; those that are stay so until they
    /// change. [`pause`](Self::pause) ends it.
    pub fn set_shared(&self, shared: bool) {
        self.core.set_shared(shared);
    }

    /// The end of the file has moved back to `size`, which is not a truncation: no page was in memory
    /// behind it.
    pub fn end_moved_back(&self, size: u64) {
        let page = self.cache.layout.page_of(size);
        let key = Key { file: self.core.id, group: page / GROUP_PAGES };
        let mut state = self.cache.shard(key.file, key.group).state.write();
        state.change_together(key, page..page + 1);
    }

    /// Publishes pages that were used and are not published.
    #[cold]
    pub(super) fn publish(&self, pages: Range<u64>) {
        let within = self.core.size() / self.cache.layout.page_size() as u64;
        for span in group_spans(pages.start..pages.end.min(within)) {
            let key = Key { file: self.core.id, group: span.group };
            let mut state = self.cache.shard(key.file, key.group).state.write();
            for page in span.first..span.end {
                if let Some(at) = state.lookup(key, page) {
                    state.publish(at, &self.core);
                }
            }
        }
    }
}

impl FileCore {
    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }

    pub(super) fn set_shared(&self, shared: bool) {
        self.shared.store(shared, Relaxed);
    }
}
