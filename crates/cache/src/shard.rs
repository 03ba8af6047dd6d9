//! A shard: the frames, the look-up and the replacement for a part of all groups, under one lock.
//!
//! Page data lives in the shard's slabs, so the shard's lock guards it and a hit is one shared
//! lock, one look-up and the copy. Frames never move between shards; the cap is the sum of the
//! shards' quotas and cannot be passed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use bedplate_lease::mixed;

use super::core::FileCore;
use super::counters::Counters;
use super::flight::Flights;
use super::layout::{GROUP_PAGES, Layout, slot_of};
use super::replace::{NONE, Node, Nodes, Replacer};
use super::slab::{SLAB_FRAMES, Shared, Slab};
use super::sync::{RwLock, rank};

/// The page was read ahead and not used yet.
pub(super) const AHEAD: u8 = 1;
/// Using the page triggers the next read-ahead.
pub(super) const MARKER: u8 = 2;
const _: () = assert!(AHEAD & MARKER == 0, "each flag of a frame has a bit of its own");

/// Names a group of pages in the whole cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) file: u64,
    pub(super) group: u64,
}

impl Key {
    /// A well-mixed hash; shards are chosen by its upper half, so the look-up inside a shard must
    /// not use that alone. Files are numbered in the upper bits too ([`FileCore::number`]), so
    /// their groups do not meet in the exclusive or.
    #[inline]
    pub(super) fn mixed(self) -> u64 {
        mixed(self.file ^ self.group)
    }
}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mixed());
    }
}

/// Takes over what [`Key`] has mixed. The numbers come from the cache itself, so they cannot be
/// chosen to collide.
#[derive(Debug, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(b.into()));
    }
    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) core: Arc<FileCore>,
    /// The frame of each page.
    pub(super) frames: [u32; GROUP_PAGES as usize],
}

#[derive(Debug, Default)]
pub(super) struct Frame {
    file: u64,
    page: u64,
    node: Node,
    /// [`AHEAD`], [`MARKER`].
    pub(super) marks: AtomicU8,
    /// Units that hold what the file holds.
    pub(super) valid: u8,
    /// Units that the backing does not have yet.
    pub(super) dirty: u8,
    /// Units that a write-behind is carrying to the backing.
    pub(super) flying: u8,
    /// Other processes read it.
    pub(super) published: bool,
    /// Other processes find it where it is published.
    pub(super) entered: bool,
}

impl Frame {
    pub(super) fn file(&self) -> u64 {
        self.file
    }

    pub(super) fn page(&self) -> u64 {
        self.page
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.dirty | self.flying != 0
    }
}

#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    /// Rank 9.
    pub(super) state: RwLock<ShardState, { rank::CACHE_SHARD }>,
}

#[derive(Debug)]
pub(super) struct ShardState {
    pub(super) layout: Layout,
    pub(super) groups: HashMap<Key, Group, BuildHasherDefault<KeyHasher>>,
    pub(super) table: Table,
    pub(super) slabs: Vec<Slab>,
    free: Vec<u32>,
    pub(super) quota: usize,
    replacer: Replacer,
    pub(super) flights: Flights,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) frames: Vec<Frame>,
    /// Where other processes read frames.
    pub(super) shared: Option<Shared>,
}

impl Nodes for Table {
    #[inline]
    fn node(&self, frame: u32) -> &Node {
        &self.frames[frame as usize].node
    }
    fn node_mut(&mut self, frame: u32) -> &mut Node {
        &mut self.frames[frame as usize].node
    }
    fn name_hash(&self, frame: u32) -> u64 {
        let Frame { file, page, .. } = self.frames[frame as usize];
        Key { file, group: page }.mixed()
    }
    fn note_uses(&mut self, frame: u32) {
        let uses = match &self.shared {
            Some(shared) if self.frames[frame as usize].entered => shared.pages.take_uses(frame),
            _ => return,
        };
        self.frames[frame as usize].node.used(uses);
    }
}

/// What a look-up in one group gave.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hit {
    /// Bytes copied.
    pub(super) bytes: usize,
    /// Some page used is marked [`AHEAD`] or [`MARKER`].
    pub(super) marked: bool,
    /// Some page used is not published to other processes.
    pub(super) private: bool,
}

/// How a page stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Residence {
    Absent,
    /// In memory, but not all of its units.
    Partial,
    Whole,
}

impl Shard {
    pub(super) fn new(layout: Layout, quota: usize, counters: Arc<Counters>) -> Self {
        let state = ShardState {
            layout,
            groups: HashMap::default(),
            table: Table::default(),
            slabs: Vec::new(),
            free: Vec::new(),
            quota,
            replacer: Replacer::new(quota),
            flights: Flights::default(),
            counters,
        };
        Self { state: RwLock::new(state) }
    }
}

impl ShardState {
    /// Copies bytes from `offset` on, as far as they are in this group's pages.
    #[inline]
    pub(super) fn copy_out(&self, key: Key, offset: u64, buf: &mut [u8]) -> Hit {
        let mut hit = Hit::default();
        let Some(group) = self.groups.get(&key) else { return hit };
        let page_size = self.layout.page_size();
        let mut slot = slot_of(self.layout.page_of(offset));
        let mut start = self.layout.in_page(offset);
        while hit.bytes < buf.len() && slot < group.frames.len() {
            let at = group.frames[slot];
            if at == NONE {
                break;
            }
            let frame = &self.table.frames[at as usize];
            let end = page_size.min(start + buf.len() - hit.bytes);
            if frame.valid != self.layout.all_units()
                && self.layout.units_touched(&(start..end)) & !frame.valid != 0
            {
                break;
            }
            debug_assert!(
                start < end && end <= page_size,
                "a page gives some of its bytes: {start}..{end}"
            );
            buf[hit.bytes..hit.bytes + end - start].copy_from_slice(&self.bytes(at)[start..end]);
            frame.node.touch(start, end);
            hit.marked |= frame.marks.load(Relaxed) != 0;
            hit.private |= !frame.published;
            hit.bytes += end - start;
            start = 0;
            slot += 1;
        }
        hit
    }

    /// Clears the marks of the pages in a range of slots that were used; returns the marked page
    /// that triggers the next read-ahead.
    pub(super) fn use_marks(&self, key: Key, pages: Range<u64>) -> Option<u64> {
        let group = self.groups.get(&key)?;
        let mut marker = None;
        for page in pages {
            let at = group.frames[slot_of(page)];
            if at == NONE {
                continue;
            }
            let marks = self.table.frames[at as usize].marks.swap(0, Relaxed);
            if marks & AHEAD != 0 {
                self.counters.ahead_unused.fetch_sub(1, Relaxed);
                self.counters.read_ahead_used.fetch_add(1, Relaxed);
            }
            if marks & MARKER != 0 {
                marker = Some(page);
            }
        }
        marker
    }

    #[inline]
    pub(super) fn lookup(&self, key: Key, page: u64) -> Option<u32> {
        self.groups.get(&key).map(|g| g.frames[slot_of(page)]).filter(|&f| f != NONE)
    }

    pub(super) fn residence(&self, key: Key, page: u64) -> Residence {
        match self.lookup(key, page) {
            None => Residence::Absent,
            Some(at) if self.frame(at).valid == self.layout.all_units() => Residence::Whole,
            Some(_) => Residence::Partial,
        }
    }

    #[inline]
    pub(super) fn frame(&self, at: u32) -> &Frame {
        &self.table.frames[at as usize]
    }

    #[inline]
    pub(super) fn frame_mut(&mut self, at: u32) -> &mut Frame {
        &mut self.table.frames[at as usize]
    }

    #[inline]
    pub(super) fn bytes(&self, at: u32) -> &[u8] {
        let (slab, start) = self.address(at);
        &self.slabs[slab][start..start + self.layout.page_size()]
    }

    /// The bytes of a frame, to be changed: other processes read them no more until it is published
    /// again.
    #[inline]
    pub(super) fn bytes_mut(&mut self, at: u32) -> &mut [u8] {
        self.changes(at);
        let (slab, start) = self.address(at);
        &mut self.slabs[slab][start..start + self.layout.page_size()]
    }

    #[inline]
    fn address(&self, at: u32) -> (usize, usize) {
        (at as usize / SLAB_FRAMES, at as usize % SLAB_FRAMES * self.layout.page_size())
    }

    /// Notes an access of a page.
    #[inline]
    pub(super) fn touch(&self, at: u32, start: usize, end: usize) {
        debug_assert!(
            start <= end && end <= self.layout.page_size(),
            "what is touched lies in a page: {start}..{end}"
        );
        self.frame(at).node.touch(start, end);
    }

    /// Gives an absent page a frame, evicting another page if need be. Its bytes are old and none
    /// of its units valid. `None` when every frame is pinned, or when `enter` (asked once, before a
    /// group of the file appears in the shard) refuses.
    pub(super) fn place(
        &mut self,
        core: &Arc<FileCore>,
        page: u64,
        first_use_end: usize,
        enter: impl FnOnce() -> bool,
    ) -> Option<u32> {
        let at = self.take_frame()?;
        let key = Key { file: core.id, group: page / GROUP_PAGES };
        if !self.groups.contains_key(&key) {
            if !enter() {
                self.free.push(at);
                return None;
            }
            self.groups.insert(
                key,
                Group { core: Arc::clone(core), frames: [NONE; GROUP_PAGES as usize] },
            );
        }
        let slot = &mut self.groups.get_mut(&key).expect("just looked up or inserted").frames
            [slot_of(page)];
        assert_eq!(*slot, NONE, "I-CACHE-1: a page has one frame at most");
        *slot = at;
        let frame = &mut self.table.frames[at as usize];
        (frame.file, frame.page, frame.valid, frame.dirty, frame.flying) = (core.id, page, 0, 0, 0);
        *frame.marks.get_mut() = 0;
        self.replacer.admit(&mut self.table, at, first_use_end);
        self.counters.resident_pages.fetch_add(1, Relaxed);
        Some(at)
    }

    fn take_frame(&mut self) -> Option<u32> {
        if let Some(at) = self.free.pop() {
            return Some(at);
        }
        let made = self.table.frames.len();
        assert!(
            made <= self.quota,
            "I-CACHE-6: a shard has no more frames than its part of the cap"
        );
        if made < self.quota {
            let (slab, start) = self.address(made as u32);
            if self.slabs.get(slab).is_none_or(|memory| memory.len() <= start) {
                self.fit_slab(slab, self.quota);
            }
            self.table.frames.push(Frame::default());
            return Some(made as u32);
        }
        let victim = self.replacer.evict(&mut self.table)?;
        assert!(!self.frame(victim).is_pinned(), "I-CACHE-4: a dirty page is never evicted");
        self.counters.evictions.fetch_add(1, Relaxed);
        self.clear(victim);
        Some(victim)
    }

    /// Gives a slab memory for its part of `frames` frames, those that were there with their bytes.
    fn fit_slab(&mut self, slab: usize, frames: usize) {
        let bytes = SLAB_FRAMES.min(frames - slab * SLAB_FRAMES) * self.layout.page_size();
        if let Some(Slab::Shared(piece)) = self.slabs.get_mut(slab) {
            return piece.give_back(bytes);
        }
        let mut memory = self.table.shared.as_ref().map_or_else(
            || Slab::own(bytes),
            |shared| shared.slab(slab).unwrap_or_else(|| Slab::own(bytes)),
        );
        match self.slabs.get_mut(slab) {
            Some(old) => {
                let kept = old.len().min(memory.len());
                memory[..kept].copy_from_slice(&old[..kept]);
                *old = memory;
            }
            None => self.slabs.push(memory),
        }
    }

    /// Allows more frames; fewer are left to [`shrink`](Self::shrink).
    pub(super) fn grow(&mut self, quota: usize) {
        self.quota = self.quota.max(quota);
        self.replacer.resize(self.quota);
        self.resize_shared();
    }

    /// Allows no more than `quota` frames, evicts the pages that are too many and gives their
    /// memory back. Returns `false`, the quota as it was, when so many are pinned that it cannot
    /// be.
    pub(super) fn shrink(&mut self, quota: usize) -> bool {
        if quota >= self.quota {
            return true;
        }
        // First, so that the same pages leave as from a cache that was always so small.
        self.replacer.resize(quota);
        while self.table.frames.len() - self.free.len() > quota {
            let Some(victim) = self.replacer.evict(&mut self.table) else { return false };
            self.counters.evictions.fetch_add(1, Relaxed);
            self.clear(victim);
            self.free.push(victim);
        }
        self.free.retain(|&at| (at as usize) < quota);
        for from in quota..self.table.frames.len() {
            self.move_frame(from as u32);
        }
        self.table.frames.truncate(quota);
        let kept = quota.div_ceil(SLAB_FRAMES).min(self.slabs.len());
        self.slabs.drain(kept..).for_each(Slab::give_back);
        if self.slabs.len() * SLAB_FRAMES > quota {
            self.fit_slab(self.slabs.len() - 1, quota);
        }
        self.quota = quota;
        self.resize_shared();
        true
    }

    /// Moves the page in a frame, if there is one, to a free frame.
    fn move_frame(&mut self, from: u32) {
        let Frame { file, page, .. } = self.table.frames[from as usize];
        let key = Key { file, group: page / GROUP_PAGES };
        if self.lookup(key, page) != Some(from) {
            return;
        }
        self.expel(from);
        let to = self.free.pop().expect("I-CACHE-6: the pages left have room in the frames left");
        let bytes = self.bytes(from).to_vec();
        self.bytes_mut(to).copy_from_slice(&bytes);
        self.table.frames[to as usize] = std::mem::take(&mut self.table.frames[from as usize]);
        self.replacer.moved(&mut self.table, to);
        let group = self.groups.get_mut(&key).expect("just looked up");
        group.frames[slot_of(page)] = to;
        let core = Arc::clone(&group.core);
        self.publish(to, &core);
    }

    /// Forgets a page, whatever its state; the caller keeps the books on dirty pages.
    pub(super) fn forget(&mut self, at: u32) {
        self.replacer.pin(&mut self.table, at);
        self.clear(at);
        self.free.push(at);
    }

    fn clear(&mut self, at: u32) {
        self.expel(at);
        let frame = &mut self.table.frames[at as usize];
        let key = Key { file: frame.file, group: frame.page / GROUP_PAGES };
        let marks = std::mem::take(frame.marks.get_mut());
        let slot = slot_of(frame.page);
        (frame.valid, frame.dirty, frame.flying) = (0, 0, 0);
        if marks & AHEAD != 0 {
            self.counters.ahead_unused.fetch_sub(1, Relaxed);
            self.counters.read_ahead_wasted.fetch_add(1, Relaxed);
        }
        self.counters.resident_pages.fetch_sub(1, Relaxed);
        let group =
            self.groups.get_mut(&key).expect("I-CACHE-1: a page in a frame is in its group");
        group.frames[slot] = NONE;
        if group.frames.iter().all(|&f| f == NONE) {
            let group = self.groups.remove(&key).expect("just seen");
            group.core.leave(key.group);
        }
    }

    /// Forgets a page unless it is dirty, was read ahead and not used yet, or is used again and
    /// again; returns whether it did.
    pub(super) fn release(&mut self, key: Key, page: u64) -> bool {
        let Some(at) = self.lookup(key, page) else { return false };
        self.table.note_uses(at);
        let frame = self.frame(at);
        let unused = frame.marks.load(Relaxed) & AHEAD != 0;
        if frame.is_pinned() || unused || frame.node.is_hot() {
            return false;
        }
        self.forget(at);
        true
    }

    /// Keeps a page from being evicted.
    pub(super) fn pin(&mut self, at: u32) {
        self.replacer.pin(&mut self.table, at);
    }

    /// Lets a page be evicted again.
    pub(super) fn unpin(&mut self, at: u32) {
        self.replacer.unpin(&mut self.table, at);
    }

    /// Returns some pinned page, from `from` on around the table, and its file: the one to write
    /// back when room is needed.
    pub(super) fn some_pinned(&self, from: usize) -> Option<(Arc<FileCore>, u64)> {
        let frames = &self.table.frames;
        let frame = (0..frames.len())
            .map(|i| &frames[(from + i) % frames.len()])
            .find(|f| f.is_pinned())?;
        let group = &self.groups[&Key { file: frame.file, group: frame.page / GROUP_PAGES }];
        Some((Arc::clone(&group.core), frame.page))
    }
}
