//! One inode's pages: reading and writing through them.

use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, Weak};

use bedplate_block::AlignedBuf;

use super::Backing;
use super::core::FileCore;
use super::fill::{Entry, Fill};
use super::layout::{GROUP_PAGES, GroupSpan, group_spans};
use super::pages::PageCache;
use super::shard::{Key, Residence, Shard, ShardState};
use super::sync::AtomicU64;
use super::writeback::ALL;
use bedplate_store::Result;

/// One inode's part of the cache. Dropping it forgets all its pages.
#[derive(Debug)]
pub struct CachedFile {
    pub(super) cache: Arc<PageCache>,
    pub(super) core: Arc<FileCore>,
}

/// Why a write into pages stopped.
#[derive(Debug)]
enum Obstacle {
    None,
    /// Blocks must be reserved before a page becomes dirty.
    Reserve,
    /// A partly written unit must be read first.
    Mend(u64),
    /// Every frame of the shard is pinned.
    NoRoom,
}

/// What a write asks of write-behind.
#[derive(Debug, Default)]
struct Behind {
    /// It is at random, and how many pages that are may be dirty is bounded.
    at_random: bool,
    run: Option<Range<u64>>,
    drain: bool,
}

impl PageCache {
    /// Makes the cache's part of one inode. `size` is the inode's logical size: the inode reads it,
    /// `write_at` and `begin_truncate` move it. `backing` is weak because the inode that owns the
    /// `CachedFile` usually *is* the backing; the inode is flushed before it is dropped.
    pub fn file(
        self: &Arc<Self>,
        ino: u64,
        backing: Weak<dyn Backing>,
        size: Arc<AtomicU64>,
    ) -> CachedFile {
        CachedFile {
            cache: Arc::clone(self),
            core: Arc::new(FileCore::new(self.next_file(), ino, backing, size)),
        }
    }
}

impl CachedFile {
    /// Reads as [`read_at`](Self::read_at), without any lock of the caller's, what is wholly in
    /// memory and in one group of pages; `None` when it is not so, or when a write into the pages
    /// or a truncation was under way: then the caller takes its ordering lock and calls `read_at`.
    ///
    /// I-CACHE-9: such a read, too, sees all of a `cached` write or nothing. The group's part of a
    /// write is written under the shard's lock, or in steps; if in steps, the count of writes has
    /// moved.
    #[inline]
    pub fn read_hit(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        let writes = self.core.writes.load(Acquire);
        let size = self.core.size();
        let len = if size <= offset {
            0
        } else {
            buf.len().min(usize::try_from(size - offset).unwrap_or(usize::MAX))
        };
        if !writes.is_multiple_of(2) || len as u64 > self.cache.layout.group_end(offset) - offset {
            return None;
        }
        let all = self.hit(&mut buf[..len], offset) == len;
        let seen = all && self.core.writes.load(Acquire) == writes && self.core.size() == size;
        if seen {
            self.release_read(offset, len);
        }
        seen.then_some(len)
    }

    /// Reads up to `buf.len()` bytes at `offset`, from memory where possible, else from the backing
    /// (and keeps what it read). Short only at the logical size. Serves `cached` (the caller holds
    /// the ordering lock shared) and `concurrent+cache` (no ordering lock needed). Returns the
    /// bytes read and whether all came from memory.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(usize, bool)> {
        let size = self.core.size();
        let len = if size <= offset {
            0
        } else {
            buf.len().min(usize::try_from(size - offset).unwrap_or(usize::MAX))
        };
        let buf = &mut buf[..len];
        let done = self.hit(buf, offset);
        if done < len {
            self.read_rest(buf, offset, done)?;
        }
        self.release_read(offset, len);
        Ok((len, done == len))
    }

    #[inline]
    fn shard_at(&self, offset: u64) -> &Shard {
        self.cache.shard(self.core.id, self.cache.layout.group_of(offset))
    }

    #[inline]
    fn key_at(&self, offset: u64) -> Key {
        Key { file: self.core.id, group: self.cache.layout.group_of(offset) }
    }

    /// Copies what is in memory, up to the first byte that is not.
    #[inline]
    fn hit(&self, buf: &mut [u8], offset: u64) -> usize {
        let layout = self.cache.layout;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let part = buf.len().min(done + (layout.group_end(at) - at) as usize);
            let state = self.shard_at(at).state.read();
            let hit = state.copy_out(self.key_at(at), at, &mut buf[done..part]);
            let marker = if hit.marked {
                state.use_marks(
                    self.key_at(at),
                    layout.page_of(at)..layout.page_end(at + hit.bytes as u64),
                )
            } else {
                None
            };
            drop(state);
            if let Some(page) = marker {
                self.marker(page);
            }
            if hit.private && self.core.is_shared() {
                self.publish(layout.page_of(at)..layout.page_end(at + hit.bytes as u64));
            }
            debug_assert!(
                hit.bytes <= part - done,
                "a hit is no longer than what was asked for: {} of {}",
                hit.bytes,
                part - done
            );
            done += hit.bytes;
            if done < part {
                break;
            }
        }
        done
    }

    #[cold]
    fn marker(&self, page: u64) {
        let file_end = self.cache.layout.page_end(self.core.size());
        let ahead = self.core.streams.lock().marker(page, file_end, self.cache.windows());
        if let Some(ahead) = ahead {
            self.cache.read_ahead(&self.core, &ahead, Some(ahead.start));
        }
    }

    #[cold]
    fn read_rest(&self, buf: &mut [u8], offset: u64, mut done: usize) -> Result<()> {
        self.cache.counters.misses.fetch_add(1, Relaxed);
        let mut waited_for = u64::MAX;
        let mut planned = false;
        while done < buf.len() {
            let at = offset + done as u64;
            let page = self.cache.layout.page_of(at);
            let (residence, coming) = self.look(page);
            match (residence, coming) {
                (Residence::Whole, _) => {}
                (_, Some(landing)) if waited_for != page => {
                    waited_for = page;
                    landing.wait();
                }
                (Residence::Partial, _) => self.mend(page)?,
                (Residence::Absent, _) => {
                    done += self.fetch(&mut buf[done..], at, !planned)?;
                    planned = true;
                }
            }
            done += self.hit(&mut buf[done..], offset + done as u64);
        }
        Ok(())
    }

    fn look(&self, page: u64) -> (Residence, Option<Arc<super::flight::Landing>>) {
        let span = GroupSpan { group: page / GROUP_PAGES, first: page, end: page + 1 };
        let state = self.cache.shard(self.core.id, span.group).state.read();
        let residence = state.residence(Key { file: self.core.id, group: span.group }, page);
        (residence, state.flights.coming(self.core.id, span.group, span.bits()))
    }

    /// Reads pages that are not in memory, from the one that holds `offset` on, and gives the
    /// caller its part of them. Returns the bytes given.
    fn fetch(&self, buf: &mut [u8], offset: u64, plan: bool) -> Result<usize> {
        let layout = self.cache.layout;
        let first = layout.page_of(offset);
        let asked = first..layout.page_end(offset + buf.len() as u64);
        let file_end = layout.page_end(self.core.size()).max(asked.end);
        let (mut end, mut marker, mut ahead) = (asked.end, None, None);
        if plan {
            let plan = self.core.streams.lock().miss(&asked, file_end, self.cache.windows());
            (end, marker, ahead) = (plan.end, plan.marker, plan.ahead);
        }
        let pages = self.absent_run(first..end.min(first + self.cache.request_pages()));
        debug_assert!(
            pages.start == first && pages.end > first,
            "what is fetched begins with the page that is missing: {pages:?}"
        );
        let fill = Fill::begin(&self.cache, &self.core, pages.clone());
        if pages.end < end {
            self.cache.read_ahead(&self.core, &(pages.end..end), None);
        }
        if let Some(ahead) = ahead {
            self.cache.read_ahead(&self.core, &ahead, Some(ahead.start));
        }
        let whole =
            layout.in_page(offset) == 0 && pages.end <= layout.page_of(offset + buf.len() as u64);
        if whole && buf.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN) {
            return self.cache.fill_in_place(fill, buf, marker);
        }
        let given = buf.len().min((layout.start_of(pages.end) - offset) as usize);
        let used = first..layout.page_end(offset + given as u64);
        let used_end = layout.in_page(offset + given as u64 - 1) + 1;
        let skip = layout.in_page(offset);
        self.cache.fill_now(fill, &Entry { used, used_end, marker }, |bytes| {
            buf[..given].copy_from_slice(&bytes[skip..skip + given]);
        })?;
        Ok(given)
    }

    /// The longest beginning of a range of pages (one page at least) of which no further page is in
    /// memory or on its way.
    fn absent_run(&self, pages: Range<u64>) -> Range<u64> {
        for span in group_spans(pages.start + 1..pages.end) {
            let state = self.cache.shard(self.core.id, span.group).state.read();
            let key = Key { file: self.core.id, group: span.group };
            for page in span.first..span.end {
                let bit = GroupSpan { first: page, end: page + 1, ..span }.bits();
                if state.lookup(key, page).is_some()
                    || state.flights.coming(self.core.id, span.group, bit).is_some()
                {
                    return pages.start..page;
                }
            }
        }
        pages
    }

    /// Reads the units of a page that are not valid.
    fn mend(&self, page: u64) -> Result<()> {
        let fill = Fill::begin(&self.cache, &self.core, page..page + 1);
        self.cache.fill_now(
            fill,
            &Entry { used: page..page + 1, used_end: 0, marker: None },
            |_| (),
        )
    }

    /// Writes into pages (`cached`; the caller holds the ordering lock exclusive) and moves the
    /// logical size up. Returns the bytes taken: fewer than `buf.len()` when an error (no space, a
    /// failed read of a partly written block) stopped it in the middle; the caller reports a short
    /// write, or tries the rest again and meets the error. May write back pages on the caller's
    /// thread when too many are dirty.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        let before = self.core.writes.fetch_add(1, AcqRel);
        assert!(
            before.is_multiple_of(2),
            "I-CACHE-9: one write at a time, as the ordering lock has it"
        );
        let outcome = self.write_pages(buf, offset);
        self.core.writes.fetch_add(1, AcqRel);
        outcome
    }

    fn write_pages(&self, buf: &[u8], offset: u64) -> Result<usize> {
        debug_assert!(
            !buf.is_empty() && offset.checked_add(buf.len() as u64).is_some(),
            "a write of {} bytes at {offset} ends somewhere",
            buf.len()
        );
        let mut done = 0;
        let end = offset + buf.len() as u64;
        let mut reserved = offset;
        let mut behind = Behind { at_random: self.is_at_random(offset..end), ..Behind::default() };
        // All of it has its blocks before anything of it is written: what is refused changes
        // nothing, and can be tried again. A first page that needs none asks for none.
        let mut all_reserved = false;
        if self.cache.layout.page_of(offset) != self.cache.layout.page_of(end - 1)
            && self.is_dirty_from(offset)
        {
            (reserved, all_reserved) = (self.reserve(offset..end, true)?, true);
        }
        while done < buf.len() {
            let at = offset + done as u64;
            let part = buf.len().min(done + (self.cache.layout.group_end(at) - at) as usize);
            let (taken, obstacle) = self.write_group(&buf[done..part], at, reserved, &mut behind);
            done += taken;
            if behind.drain || behind.run.is_some() {
                let run = behind.run.take();
                behind.drain = false;
                self.cache.schedule(&self.core, run);
            }
            let cleared = match obstacle {
                Obstacle::None => Ok(()),
                Obstacle::Reserve => self
                    .reserve(offset + done as u64..end, !all_reserved)
                    .map(|upto| (reserved, all_reserved) = (upto, true)),
                Obstacle::Mend(page) => self.mend(page),
                Obstacle::NoRoom => {
                    let pinned = self.shard_at(offset + done as u64).state.read().some_pinned(done);
                    self.cache.make_room(pinned)
                }
            };
            if let Err(error) = cleared {
                return if done > 0 { Ok(done) } else { Err(error) };
            }
        }
        Ok(done)
    }

    /// Returns whether a write is at random, where that counts.
    fn is_at_random(&self, bytes: Range<u64>) -> bool {
        self.cache.random_max() > 0 && self.core.state.lock().random.note(&bytes)
    }

    /// Returns whether every unit is dirty of the page that holds a byte, from that byte on.
    fn is_dirty_from(&self, offset: u64) -> bool {
        let layout = self.cache.layout;
        let state = self.shard_at(offset).state.read();
        let touched = layout.units_touched(&(layout.in_page(offset)..layout.page_size()));
        state
            .lookup(self.key_at(offset), layout.page_of(offset))
            .is_some_and(|at| touched & !state.frame(at).dirty == 0)
    }

    /// Sets blocks aside for bytes, for `all` of them or a request's worth at most, and waits until
    /// so much may become dirty; returns up to where.
    fn reserve(&self, bytes: Range<u64>, all: bool) -> Result<u64> {
        self.cache.throttle(&self.core)?;
        let align = self.cache.io_align() as u64;
        let start = bytes.start / align * align;
        let upto = bytes.end.min(start + self.cache.layout.start_of(self.cache.request_pages()));
        let end = if all { bytes.end } else { upto };
        self.core.backing()?.reserve(start, end.next_multiple_of(align) - start)?;
        Ok(upto)
    }

    /// Writes into the pages of one group; stops where something must be done first without the
    /// shard's lock.
    fn write_group(
        &self,
        buf: &[u8],
        offset: u64,
        reserved: u64,
        behind: &mut Behind,
    ) -> (usize, Obstacle) {
        let layout = self.cache.layout;
        let mut state = self.shard_at(offset).state.write();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let start = layout.in_page(at);
            let bytes = start..layout.page_size().min(start + buf.len() - done);
            if let Err(obstacle) = self.write_page(
                &mut state,
                at,
                bytes.clone(),
                &buf[done..done + bytes.len()],
                reserved,
                behind,
            ) {
                return (done, obstacle);
            }
            done += bytes.len();
        }
        (done, Obstacle::None)
    }

    #[inline]
    fn write_page(
        &self,
        state: &mut ShardState,
        offset: u64,
        bytes: Range<usize>,
        buf: &[u8],
        reserved: u64,
        behind: &mut Behind,
    ) -> std::result::Result<(), Obstacle> {
        let layout = self.cache.layout;
        let (key, page) = (self.key_at(offset), layout.page_of(offset));
        let touched = layout.units_touched(&bytes);
        let known = state.lookup(key, page);
        let (valid, dirty) =
            known.map_or((0, 0), |at| (state.frame(at).valid, state.frame(at).dirty));
        let end = offset + buf.len() as u64;
        if touched & !dirty != 0 && end > reserved {
            return Err(Obstacle::Reserve);
        }
        let size = self.core.size();
        let edges = touched & !layout.units_covered(&bytes) & !valid;
        if edges & !self.units_beyond(page, size) != 0 {
            return Err(Obstacle::Mend(page));
        }
        let at = known
            .or_else(|| state.place(&self.core, page, bytes.end, || self.core.enter(key.group)))
            .ok_or(Obstacle::NoRoom)?;
        let frame = state.bytes_mut(at);
        layout.unit_runs(edges, |r| frame[r].fill(0));
        frame[bytes.clone()].copy_from_slice(buf);
        if size < end {
            // Before the page is dirty: a write-behind that carries these bytes must know the size
            // that holds them.
            self.core.size.fetch_max(end, AcqRel);
        }
        state.touch(at, bytes.start, bytes.end);
        let bit = GroupSpan { group: key.group, first: page, end: page + 1 }.bits();
        state.flights.spoil(key.file, key.group, bit);
        let frame = state.frame_mut(at);
        frame.valid |= touched;
        if touched & !dirty != 0 {
            let was_pinned = frame.is_pinned();
            frame.dirty |= touched;
            self.became_dirty(state, at, page, dirty == 0, was_pinned, behind);
        }
        Ok(())
    }

    /// The units of a page that begin at or after the end of the file: nothing to read there.
    fn units_beyond(&self, page: u64, size: u64) -> u8 {
        let layout = self.cache.layout;
        let inside = size.saturating_sub(layout.start_of(page));
        if inside >= layout.page_size() as u64 { 0 } else { layout.units_from(inside as usize) }
    }

    fn became_dirty(
        &self,
        state: &mut ShardState,
        at: u32,
        page: u64,
        first_unit: bool,
        was_pinned: bool,
        behind: &mut Behind,
    ) {
        if !was_pinned {
            state.pin(at);
            behind.drain |= self.cache.count_pinned(&self.core);
        }
        if !first_unit {
            return;
        }
        let (run, at_random) = self.cache.add_dirty(&self.core, page, behind.at_random);
        behind.drain |= behind.at_random && at_random > self.cache.random_max();
        // The writer has left completed clusters behind it.
        if self.cache.is_completed(&run, page) {
            behind.run = Some(run.start..page);
        }
    }

    /// Writes all dirty pages, in file order, in large runs, and waits for those under way. Returns
    /// an error of an earlier write-behind too, once. Durable only after the caller's device flush.
    pub fn flush(&self) -> Result<()> {
        self.cache.flush(&self.core, &ALL)
    }

    /// Writes all dirty pages as [`flush`](Self::flush) does, for a caller that is no sync: an error
    /// of an earlier write-behind stays to be told by the next flush.
    ///
    /// # Errors
    /// That of a page that could not be written now; the next flush tells it too.
    pub fn write_dirty(&self) -> Result<()> {
        self.cache.share_writing(&self.core, &ALL);
        self.cache.write_out(&self.core, &ALL)
    }

    /// As [`write_dirty`](Self::write_dirty), for the pages that `len` bytes from byte `offset` on
    /// touch.
    ///
    /// # Errors
    /// As [`write_dirty`](Self::write_dirty).
    pub fn write_dirty_range(&self, offset: u64, len: u64) -> Result<()> {
        if self.core.pinned_pages.load(Relaxed) == 0 {
            return Ok(());
        }
        self.cache.write_out(&self.core, &self.pages(offset, len))
    }

    /// As [`flush`](Self::flush), for the pages that a range touches.
    pub fn flush_range(&self, offset: u64, len: u64) -> Result<()> {
        self.cache.flush(&self.core, &self.pages(offset, len))
    }

    /// Says whether pages stay in memory once they are written. Those of a file whose callers cache
    /// by themselves need not.
    pub fn set_passing(&self, passing: bool) {
        self.core.state.lock().passing = passing;
    }

    /// Returns the bytes that are dirty or being written.
    pub fn dirty_bytes(&self) -> u64 {
        self.core.pinned_pages.load(Relaxed) * self.cache.layout.page_size() as u64
    }

    /// The pages that a range touches.
    pub(super) fn pages(&self, offset: u64, len: u64) -> Range<u64> {
        self.cache.layout.page_of(offset)..self.cache.layout.page_end(offset.saturating_add(len))
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        let lost = self.dirty_bytes();
        if lost > 0 {
            tracing::error!(
                inode = self.core.ino,
                bytes = lost,
                "a file was dropped with dirty pages; they are lost"
            );
        }
        self.close();
    }
}
