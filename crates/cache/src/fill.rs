//! Fills: bringing pages from the backing into memory, on the reader's thread or read ahead on
//! another.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::core::FileCore;
use super::flight::{FlightId, Landing};
use super::layout::{GroupSpan, group_spans};
use super::pages::PageCache;
use super::shard::{AHEAD, Key, MARKER, Residence, ShardState};
use bedplate_store::Result;

/// A fill under way. Dropping it wakes the threads that wait for it, whatever became of it.
#[derive(Debug)]
pub(super) struct Fill {
    cache: Arc<PageCache>,
    core: Arc<FileCore>,
    id: FlightId,
    pages: Range<u64>,
    epoch: u64,
    landing: Arc<Landing>,
    /// Groups before this page have been told.
    told: u64,
}

/// How pages enter the cache.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// The pages that are in use right now; the others are read ahead.
    pub(super) used: Range<u64>,
    /// The end of the use within the last page used.
    pub(super) used_end: usize,
    /// The page whose use triggers the next read-ahead.
    pub(super) marker: Option<u64>,
}

impl Fill {
    /// Announces a fill before its read begins. I-CACHE-2: what is written after this is known to
    /// the fill.
    pub(super) fn begin(cache: &Arc<PageCache>, core: &Arc<FileCore>, pages: Range<u64>) -> Self {
        debug_assert!(!pages.is_empty(), "a fill is of some page: {pages:?}");
        let id = cache.flight_id();
        let landing = Arc::<Landing>::default();
        let epoch = core.epoch();
        for span in group_spans(pages.clone()) {
            let mut state = cache.shard(core.id, span.group).state.write();
            state.flights.begin_fill(id, core.id, span.group, span.bits(), &landing);
        }
        Self {
            cache: Arc::clone(cache),
            core: Arc::clone(core),
            id,
            told: pages.start,
            pages,
            epoch,
            landing,
        }
    }

    pub(super) fn pages(&self) -> Range<u64> {
        self.pages.clone()
    }

    /// Reads the pages into `target` (as long as they are), bytes beyond the end of the file as
    /// zeros.
    pub(super) fn read(&self, target: &mut [u8]) -> Result<()> {
        let backing = self.core.backing()?;
        let start = self.cache.layout.start_of(self.pages.start);
        // Read before the data: a write that moves the size touches pages of this fill and spoils
        // it, or lies behind them.
        let size = backing.size();
        let inside = usize::try_from(size.saturating_sub(start))
            .map_or(target.len(), |n| n.min(target.len()));
        let wanted = inside.next_multiple_of(self.cache.io_align()).min(target.len());
        let read =
            if wanted == 0 { 0 } else { backing.read_direct(&mut target[..wanted], start)? };
        target[read.min(inside)..].fill(0);
        debug_assert!(
            target[inside..].iter().all(|byte| *byte == 0),
            "I-CACHE-8: nothing but zeros beyond the end of the file"
        );
        Ok(())
    }

    /// Puts what was read into the cache, where it is still true.
    pub(super) fn keep(mut self, data: &[u8], entry: &Entry) {
        let page_size = self.cache.layout.page_size();
        debug_assert_eq!(
            data.len(),
            (self.pages.end - self.pages.start) as usize * page_size,
            "a fill keeps all of what it read: pages {:?}",
            self.pages
        );
        for span in group_spans(self.pages.clone()) {
            let mut state = self.cache.shard(self.core.id, span.group).state.write();
            self.told = span.end;
            if state.flights.end_fill(self.id, span.group) && self.core.is_at(self.epoch) {
                let at = (span.first - self.pages.start) as usize * page_size;
                self.keep_group(&mut state, span, &data[at..], entry);
            }
        }
    }

    fn keep_group(&self, state: &mut ShardState, span: GroupSpan, data: &[u8], entry: &Entry) {
        let page_size = self.cache.layout.page_size();
        let key = Key { file: self.core.id, group: span.group };
        for (page, bytes) in (span.first..span.end).zip(data.chunks_exact(page_size)) {
            let known = state.lookup(key, page);
            let used = entry.used.contains(&page);
            let first_use_end = if !used {
                0
            } else if page + 1 == entry.used.end {
                entry.used_end
            } else {
                page_size
            };
            let Some(at) = known.or_else(|| {
                state.place(&self.core, page, first_use_end, || {
                    self.core.enter_at(span.group, self.epoch)
                })
            }) else {
                return;
            };
            self.merge(state, at, bytes);
            let mut marks = if entry.marker == Some(page) { MARKER } else { 0 };
            if known.is_none() && !used {
                marks |= AHEAD;
                self.cache.counters.ahead_unused.fetch_add(1, Relaxed);
            }
            *state.frame_mut(at).marks.get_mut() |= marks;
            state.publish(at, &self.core);
        }
    }

    /// Fills the units that are not valid. I-CACHE-1: a valid unit is never overwritten by a fill.
    fn merge(&self, state: &mut ShardState, at: u32, bytes: &[u8]) {
        let all = self.cache.layout.all_units();
        let missing = all & !state.frame(at).valid;
        debug_assert_eq!(bytes.len(), self.cache.layout.page_size(), "a page is merged whole");
        let frame = state.bytes_mut(at);
        self.cache.layout.unit_runs(missing, |r| frame[r.clone()].copy_from_slice(&bytes[r]));
        state.frame_mut(at).valid = all;
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        for span in group_spans(self.told..self.pages.end) {
            let mut state = self.cache.shard(self.core.id, span.group).state.write();
            let _not_kept = state.flights.end_fill(self.id, span.group);
        }
        self.landing.land();
    }
}

impl PageCache {
    /// Reads a range ahead in the background, in requests that overlap at the device. Pages that
    /// are in memory or on their way are not asked for again.
    pub(super) fn read_ahead(
        self: &Arc<Self>,
        core: &Arc<FileCore>,
        pages: &Range<u64>,
        marker: Option<u64>,
    ) {
        let budget =
            self.ahead_pages_max().saturating_sub(self.counters.ahead_unused.load(Relaxed));
        let end = pages.end.min(pages.start + budget);
        let (mut start, request_pages) = (pages.start, self.request_pages());
        while start < end {
            let request_end = end.min(start + request_pages);
            if let Some(wanted) = self.wanted(core, &(start..request_end)) {
                self.submit_ahead(core, wanted, marker);
            }
            start = request_end;
        }
    }

    /// Cuts resident pages, and pages that a fill is bringing, off both ends of a range.
    fn wanted(&self, core: &FileCore, pages: &Range<u64>) -> Option<Range<u64>> {
        let mut found: Option<Range<u64>> = None;
        for span in group_spans(pages.clone()) {
            let state = self.shard(core.id, span.group).state.read();
            let key = Key { file: core.id, group: span.group };
            for page in span.first..span.end {
                let bit = GroupSpan { first: page, end: page + 1, ..span }.bits();
                if state.residence(key, page) == Residence::Absent
                    && state.flights.coming(core.id, span.group, bit).is_none()
                {
                    found = Some(found.map_or(page, |f| f.start)..page + 1);
                }
            }
        }
        found
    }

    fn submit_ahead(
        self: &Arc<Self>,
        core: &Arc<FileCore>,
        wanted: Range<u64>,
        marker: Option<u64>,
    ) {
        let fill = Fill::begin(self, core, wanted.clone());
        let count = wanted.end - wanted.start;
        let entry = Entry { used: wanted.start..wanted.start, used_end: 0, marker };
        self.readers.submit(move || {
            let cache = Arc::clone(&fill.cache);
            cache.counters.read_ahead_issued.fetch_add(count, Relaxed);
            let mut staging = cache.staging.take(count as usize * cache.layout.page_size());
            // A failed read-ahead is reported to no caller: the read that needs the page meets the
            // error itself.
            if fill.read(&mut staging).is_ok() {
                fill.keep(&staging, &entry);
            }
            cache.staging.give(staging);
        });
    }

    /// Reads a fill's pages into the memory of the reader that waits for all of them, and keeps a
    /// copy. Returns the bytes read.
    pub(super) fn fill_in_place(
        &self,
        fill: Fill,
        buf: &mut [u8],
        marker: Option<u64>,
    ) -> Result<usize> {
        let pages = fill.pages();
        let page_size = self.layout.page_size();
        let target = &mut buf[..(pages.end - pages.start) as usize * page_size];
        fill.read(target)?;
        fill.keep(target, &Entry { used: pages, used_end: page_size, marker });
        Ok(target.len())
    }

    /// Reads a fill's pages for a reader that waits for some of them, and lets `take` have the
    /// bytes.
    pub(super) fn fill_now(
        &self,
        fill: Fill,
        entry: &Entry,
        take: impl FnOnce(&[u8]),
    ) -> Result<()> {
        let pages = fill.pages();
        let count = pages.end - pages.start;
        self.counters
            .read_ahead_issued
            .fetch_add(count.saturating_sub(entry.used.end - entry.used.start), Relaxed);
        let mut staging = self.staging.take(count as usize * self.layout.page_size());
        let outcome = fill.read(&mut staging);
        if outcome.is_ok() {
            take(&staging);
            fill.keep(&staging, entry);
        }
        self.staging.give(staging);
        outcome
    }
}
