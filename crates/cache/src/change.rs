//! Changes that reach the backing past the cache: direct writes, truncations, punches. Each is
//! announced before and taken back after.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::FileCore;
use super::file::CachedFile;
use super::flight::FlightId;
use super::forget::{Spare, forget_span};
use super::layout::{GROUP_PAGES, GroupSpan, group_spans};
use super::pages::PageCache;
use super::shard::{Key, ShardState};
use super::writeback::ALL;
use bedplate_store::Result;

/// A direct write under way; see [`CachedFile::begin_direct_write`]. Owned: it may live in a
/// queue's in-flight table.
#[derive(Debug)]
#[must_use]
pub struct DirectWrite {
    cache: Arc<PageCache>,
    core: Arc<FileCore>,
    id: FlightId,
    offset: u64,
    pages: Range<u64>,
    refreshed: bool,
}

/// A change of the map under way; dropping it lets the file's pages into the cache again.
#[derive(Debug)]
#[must_use]
pub struct MapChange {
    core: Arc<FileCore>,
}

impl CachedFile {
    /// Announces a direct write of a range (`concurrent+cache`). Hold the answer across the device
    /// write, then call [`DirectWrite::refresh`] with what was written, after success only.
    /// Dropping it instead (the write failed) makes the cache forget the range. Writes back dirty
    /// pages of the range first.
    ///
    /// Until then readers find the old copy, if there is one; if there is none they read the
    /// backing, and what they read is not kept.
    pub fn begin_direct_write(&self, offset: u64, len: u64) -> Result<DirectWrite> {
        let pages = self.pages(offset, len);
        if self.core.pinned_pages.load(Ordering::Relaxed) > 0 {
            self.cache.write_out(&self.core, &pages)?;
        }
        let id = self.cache.flight_id();
        for span in group_spans(pages.clone()) {
            let mut state = self.cache.shard(self.core.id, span.group).state.write();
            state.flights.begin_change(id, self.core.id, span.group, span.bits());
        }
        Ok(DirectWrite {
            cache: Arc::clone(&self.cache),
            core: Arc::clone(&self.core),
            id,
            offset,
            pages,
            refreshed: false,
        })
    }

    /// Announces a truncation to `size` (the caller holds the ordering lock exclusive): sets the
    /// logical size, forgets what is beyond it, dirty or not, waits for writes of it under way.
    /// Hold the answer until the backing's map and size are changed; until then nothing of this
    /// file enters the cache. Growing goes through here too.
    pub fn begin_truncate(&self, size: u64) -> MapChange {
        let layout = self.cache.layout;
        let cut = layout.page_of(size);
        let mut state = self.core.state.lock();
        let change = MapChange::begin(&self.core, &mut state);
        self.core.size.store(size, Ordering::Release);
        let mut state = self.core.wait_for_flying(state, &(cut..u64::MAX));
        state.forget_dirty(&(cut..u64::MAX));
        drop(state);
        self.forget(&(layout.page_end(size)..u64::MAX), Spare::None);
        if layout.in_page(size) != 0 {
            self.cut_page(cut, layout.in_page(size));
        }
        change
    }

    /// Clears a page, which is in no dirty run and not flying, from byte `inside` on.
    fn cut_page(&self, page: u64, inside: usize) {
        let key = Key { file: self.core.id, group: page / GROUP_PAGES };
        let mut state = self.cache.shard(key.file, key.group).state.write();
        let Some(at) = state.lookup(key, page) else { return };
        state.bytes_mut(at)[inside..].fill(0);
        let beyond = self.cache.layout.units_from(inside);
        let frame = state.frame_mut(at);
        let was_dirty = frame.is_pinned();
        frame.valid |= beyond;
        frame.dirty &= !beyond;
        if frame.is_pinned() {
            self.cache.add_dirty(&self.core, page, false);
        } else if was_dirty {
            state.unpin(at);
            self.cache.count_unpinned(&self.core);
        }
    }

    /// Announces a change of what a range holds other than by a write (punch, zero range, collapse,
    /// insert: there the range runs to the end). Writes back the dirty pages that the range touches
    /// and forgets all of them. Hold the answer until the backing is changed.
    pub fn begin_map_change(&self, offset: u64, len: u64) -> Result<MapChange> {
        let pages = self.pages(offset, len);
        self.cache.write_out(&self.core, &pages)?;
        let mut state = self.core.state.lock();
        let change = MapChange::begin(&self.core, &mut state);
        drop(self.core.wait_for_flying(state, &pages));
        self.forget(&pages, Spare::Pinned);
        Ok(change)
    }

    /// Forgets the clean pages and keeps none until [`resume`](Self::resume): the file is going to
    /// be served past the cache, which would not hear of writes. A reader that comes late, or a
    /// read-ahead under way, finds nothing and leaves nothing. The caller has flushed.
    pub fn pause(&self) {
        self.core.set_shared(false);
        let mut state = self.core.state.lock();
        if !std::mem::replace(&mut state.paused, true) {
            self.core.begin_map_change(&mut state);
        }
        drop(state);
        self.forget(&ALL, Spare::Pinned);
    }

    /// Ends a [`pause`](Self::pause), if there is one.
    pub fn resume(&self) {
        let paused = std::mem::replace(&mut self.core.state.lock().paused, false);
        if paused {
            self.core.end_map_change();
        }
    }

    /// Forgets every page for good; pages that are being written are forgotten when they land.
    /// Waits for nothing: the last hold of an inode may end on the thread that carries its pages.
    pub(super) fn close(&self) {
        let mut state = self.core.state.lock();
        state.closed = true;
        // Never ended: what is still being read does not enter.
        self.core.begin_map_change(&mut state);
        state.forget_dirty(&ALL);
        let taken: Vec<Range<u64>> = state.flying.iter().map(|run| run.pages.clone()).collect();
        drop(state);
        self.forget(&ALL, Spare::Flying(&taken));
    }

    /// Forgets every page, dirty ones too (the last link of an unlinked file is gone).
    pub fn drop_all(&self) {
        let mut state = self.core.state.lock();
        let change = MapChange::begin(&self.core, &mut state);
        let mut state = self.core.wait_for_flying(state, &ALL);
        state.forget_dirty(&ALL);
        drop(state);
        self.forget(&ALL, Spare::None);
        drop(change);
    }

    /// Forgets pages of a range.
    fn forget(&self, pages: &Range<u64>, spare: Spare<'_>) {
        if pages.start >= pages.end {
            return;
        }
        let groups: Vec<u64> = self
            .core
            .state
            .lock()
            .groups
            .range(pages.start / GROUP_PAGES..=(pages.end - 1) / GROUP_PAGES)
            .copied()
            .collect();
        for group in groups {
            let mut state = self.cache.shard(self.core.id, group).state.write();
            let first = (group * GROUP_PAGES).max(pages.start);
            let end = ((group + 1) * GROUP_PAGES).min(pages.end);
            forget_span(
                &self.cache,
                &self.core,
                &mut state,
                GroupSpan { group, first, end },
                spare,
            );
        }
    }
}

impl DirectWrite {
    /// The device has `data` (all of the announced range): cached copies take it over, or are
    /// forgotten when another write of the range was under way.
    pub fn refresh(mut self, data: &[u8]) {
        self.refreshed = true;
        for span in group_spans(self.pages.clone()) {
            let mut state = self.cache.shard(self.core.id, span.group).state.write();
            if state.flights.end_change(self.id, span.group) {
                self.refresh_span(&mut state, span, data);
            } else {
                forget_span(&self.cache, &self.core, &mut state, span, Spare::Pinned);
            }
        }
    }

    fn refresh_span(&self, state: &mut ShardState, span: GroupSpan, data: &[u8]) {
        let layout = self.cache.layout;
        let key = Key { file: self.core.id, group: span.group };
        let data_end = self.offset + data.len() as u64;
        state.change_together(key, span.first..span.end);
        for page in span.first..span.end {
            let Some(at) = state.lookup(key, page) else { continue };
            let page_start = layout.start_of(page);
            let start = page_start.max(self.offset);
            let end = (page_start + layout.page_size() as u64).min(data_end);
            if start < end {
                let from = &data[(start - self.offset) as usize..(end - self.offset) as usize];
                state.bytes_mut(at)[(start - page_start) as usize..(end - page_start) as usize]
                    .copy_from_slice(from);
            }
        }
        for page in span.first..span.end {
            if let Some(at) = state.lookup(key, page) {
                state.publish(at, &self.core);
            }
        }
    }
}

impl Drop for DirectWrite {
    fn drop(&mut self) {
        if self.refreshed {
            return;
        }
        for span in group_spans(self.pages.clone()) {
            let mut state = self.cache.shard(self.core.id, span.group).state.write();
            let _alone = state.flights.end_change(self.id, span.group);
            forget_span(&self.cache, &self.core, &mut state, span, Spare::Pinned);
        }
    }
}

impl MapChange {
    fn begin(core: &Arc<FileCore>, state: &mut super::core::FileState) -> Self {
        core.begin_map_change(state);
        Self { core: Arc::clone(core) }
    }
}

impl Drop for MapChange {
    fn drop(&mut self) {
        self.core.end_map_change();
    }
}
