//! Pages of the daemon's cache that clients read by themselves.
//!
//! Three pieces of memory: the *frames*, which hold the pages' bytes, and the *directory*, which
//! says what lies in which frame, are the daemon's to write and the clients' to read; the *uses* are
//! a word a frame that clients write, for the daemon to know what is read.
//!
//! ```text
//! directory
//! word 0   header: magic, version, words, shards, frames of a shard, page bytes
//!     16   a line a shard: the places of its table in use, less one
//!      …   heads: 4 words a frame: version, file, page
//!      …   tables: words a shard: 0 = free, else upper half of the page's hash << 32 | frame + 1
//!
//!            daemon                                         client
//!   withdraw ── version even, fence                         1. table ─► frame
//!      │        bytes, or another page                      2. version odd; file and page are these
//!   publish ─── file, page; version odd ───► heads ────────► 3. copies the bytes     (PageReader::find)
//!                                                           4. version as before     (PageReader::is_still)
//! ```
//!
//! The tables are hints: a client that looks meanwhile may miss a page, and asks the daemon. What is
//! true is in a frame's head.
//!
//! - I-LSE-10: the bytes of a frame, and which page it holds, change only while its version is even;
//!   each version stands once. So bytes between two looks at one odd version are those of the page.
//!
//! A client believes nothing that passes the memory, and the daemon nothing of the uses but how often
//! something is read: rubbish there makes the wrong pages leave.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::layout::{LAYOUT_VERSION, LINE, LayoutError, MAGIC, VERSION, WORDS, check_head};
use crate::planted::{Mistake, planted};
use crate::words::Words;

/// Pages that lie in one shard together: those of a file whose numbers differ in the last bits only.
pub const GROUP_PAGES: u64 = 16;

const PAGES_MAGIC: u64 = u64::from_le_bytes(*b"BPLPAGE1");

const SHARDS: usize = 3;
const FRAMES: usize = 4;
const PAGE_BYTES: usize = 5;

const HEAD_WORDS: usize = 4;
const FILE: usize = 1;
const PAGE: usize = 2;

/// Frames that a directory can name.
const FRAMES_MAX: u64 = 1 << 31;

/// Places that a client looks at before it gives up: half of a table is free, so that few are taken
/// in a row.
const PROBES_MAX: usize = 64;

/// How often a use counts at most until the daemon has taken note of it.
const USES_MAX: u64 = 3;
const USES_BITS: u32 = 8;

/// Spreads the bits of a number over all bits.
#[inline]
#[must_use]
pub fn mixed(value: u64) -> u64 {
    let wide = u128::from(value ^ 0x2d35_8dcc_aa6c_78a5) * 0x9e37_79b9_7f4a_7c15_u128;
    (wide >> 64) as u64 ^ wide as u64
}

/// Returns the shard, of so many, that holds a group of a file's pages.
#[inline]
#[must_use]
pub fn shard_of(file: u64, group: u64, shards: usize) -> usize {
    (mixed(file ^ group) >> 32) as usize & (shards - 1)
}

fn hash(file: u64, page: u64) -> u64 {
    mixed(file.rotate_left(32) ^ page)
}

/// How large the parts of the shared cache are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageShape {
    /// Shards: a power of two.
    pub shards: usize,
    /// Frames that a shard can have.
    pub frames: usize,
    /// Bytes of a page: a power of two.
    pub page_bytes: usize,
}

impl PageShape {
    /// Words of the directory.
    #[must_use]
    pub fn directory_words(&self) -> usize {
        self.table_at(self.shards)
    }

    /// Words of the uses.
    #[must_use]
    pub fn uses_words(&self) -> usize {
        self.shards * self.frames
    }

    /// Bytes of the frames.
    #[must_use]
    pub fn frames_bytes(&self) -> usize {
        self.shards * self.frames * self.page_bytes
    }

    fn places(&self) -> usize {
        (self.frames * 2).next_power_of_two()
    }

    fn mask_at(shard: usize) -> usize {
        LINE + shard * LINE
    }

    fn head_at(&self, shard: usize, frame: u32) -> usize {
        Self::mask_at(self.shards) + (shard * self.frames + frame as usize) * HEAD_WORDS
    }

    fn table_at(&self, shard: usize) -> usize {
        self.head_at(self.shards, 0) + shard * self.places()
    }

    fn is_sound(&self) -> bool {
        self.shards.is_power_of_two()
            && self.page_bytes.is_power_of_two()
            && (512..=1 << 20).contains(&self.page_bytes)
            && (1..=1 << 16).contains(&self.shards)
            && self.frames > 0
            && (self.frames as u64).saturating_mul(self.shards as u64) <= FRAMES_MAX
    }

    fn read(words: &impl Words) -> Result<Self, LayoutError> {
        check_head(words, PAGES_MAGIC)?;
        let size = |at| usize::try_from(words.load(at, Relaxed)).map_err(|_| LayoutError::Damaged);
        let shape =
            Self { shards: size(SHARDS)?, frames: size(FRAMES)?, page_bytes: size(PAGE_BYTES)? };
        if !shape.is_sound() || shape.directory_words() > words.count() {
            return Err(LayoutError::Damaged);
        }
        Ok(shape)
    }
}

/// The daemon's half.
#[derive(Debug, Clone)]
pub struct SharedPages<W> {
    directory: W,
    uses: W,
    shape: PageShape,
}

impl<W: Words + Clone> SharedPages<W> {
    /// Makes the directory and the uses in fresh memory of zeros. Nothing is published.
    ///
    /// # Errors
    /// `TooSmall` where the memory is, `Damaged` where the shape makes no sense.
    pub fn create(directory: W, uses: W, shape: PageShape) -> Result<Self, LayoutError> {
        if !shape.is_sound() {
            return Err(LayoutError::Damaged);
        }
        if directory.count() < shape.directory_words() || uses.count() < shape.uses_words() {
            return Err(LayoutError::TooSmall);
        }
        for (at, value) in [
            (VERSION, u64::from(LAYOUT_VERSION)),
            (WORDS, shape.directory_words() as u64),
            (SHARDS, shape.shards as u64),
            (FRAMES, shape.frames as u64),
            (PAGE_BYTES, shape.page_bytes as u64),
        ] {
            directory.store(at, value, Relaxed);
        }
        directory.store(MAGIC, PAGES_MAGIC, Release);
        Ok(Self { directory, uses, shape })
    }

    /// Returns a shard's part, with a table for so many frames. Each is made once, and used by one
    /// thread at a time.
    #[must_use]
    pub fn shard(&self, shard: usize, frames: usize) -> PageShard<W> {
        assert!(shard < self.shape.shards, "I-LSE-10: no shard {shard}");
        let mut made = PageShard { of: self.clone(), shard, mask: 0 };
        made.resize(frames, std::iter::empty());
        made
    }
}

/// What the daemon publishes of the frames of one shard.
#[derive(Debug)]
pub struct PageShard<W> {
    of: SharedPages<W>,
    shard: usize,
    /// Of the places of the table.
    mask: usize,
}

impl<W: Words + Clone> PageShard<W> {
    /// Frames that can be published, from the first on.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.of.shape.frames
    }

    /// Makes the table one for `frames` frames, of which these are linked.
    pub fn resize(&mut self, frames: usize, linked: impl Iterator<Item = u32>) {
        let places = (frames.clamp(1, self.frames()) * 2).next_power_of_two();
        let words = &self.of.directory;
        // A client that looks meanwhile misses.
        for place in 0..self.mask + 1 {
            if words.load(self.place_at(place), Relaxed) != 0 {
                words.store(self.place_at(place), 0, Relaxed);
            }
        }
        self.mask = places - 1;
        words.store(PageShape::mask_at(self.shard), self.mask as u64, Release);
        linked.for_each(|frame| self.link(frame));
    }

    /// Says which page a withdrawn frame holds, before it is published the first time.
    pub fn enter(&self, frame: u32, file: u64, page: u64) {
        let words = &self.of.directory;
        let head = self.head(frame);
        assert!(
            words.load(head, Relaxed).is_multiple_of(2),
            "I-LSE-10: frame {frame} becomes another page's while it is published"
        );
        words.store(head + FILE, file, Relaxed);
        words.store(head + PAGE, page, Relaxed);
        self.of.uses.store(self.use_at(frame), 0, Relaxed);
        self.link(frame);
    }

    /// Hands a frame out: clients read it from now on.
    pub fn publish(&self, frame: u32) {
        let (words, head) = (&self.of.directory, self.head(frame));
        let version = words.load(head, Relaxed);
        if planted(Mistake::PageChangedInTheOpen) {
            words.store(head, (version | 1) + 2, Release);
            return;
        }
        assert!(version.is_multiple_of(2), "I-LSE-10: frame {frame} is published twice");
        words.store(head, version + 1, Release);
    }

    /// Takes a frame back before its bytes change: what clients read of it from now on they do not
    /// use.
    pub fn withdraw(&self, frame: u32) {
        let (words, head) = (&self.of.directory, self.head(frame));
        let version = words.load(head, Relaxed);
        assert!(!version.is_multiple_of(2), "I-LSE-10: frame {frame} is not published");
        if planted(Mistake::PageChangedInTheOpen) {
            return;
        }
        if planted(Mistake::PageWithdrawnLate) {
            return words.store(head, version + 1, Release);
        }
        words.swap(head, version + 1);
        words.fence();
    }

    /// The page of a frame, which is withdrawn, leaves it.
    pub fn leave(&self, frame: u32) {
        let words = &self.of.directory;
        let entry = u64::from(frame) + 1;
        let start = self.hash_of(frame) as usize;
        let is_here = |i: &usize| {
            words.load(self.place_at(start.wrapping_add(*i)), Relaxed) as u32 == entry as u32
        };
        let at = (0..=self.mask).find(is_here).expect("I-LSE-10: what leaves has been entered");
        self.empty(start.wrapping_add(at) & self.mask);
    }

    /// Returns how often clients say to have used a page since this was last asked, and forgets it.
    pub fn take_uses(&self, frame: u32) -> u8 {
        let (uses, at) = (&self.of.uses, self.use_at(frame));
        let word = uses.load(at, Relaxed);
        if word != 0 {
            uses.store(at, 0, Relaxed);
        }
        (word & ((1 << USES_BITS) - 1)).min(USES_MAX) as u8
    }

    fn head(&self, frame: u32) -> usize {
        assert!((frame as usize) < self.frames(), "I-LSE-10: no frame {frame}");
        self.of.shape.head_at(self.shard, frame)
    }

    fn use_at(&self, frame: u32) -> usize {
        self.shard * self.of.shape.frames + frame as usize
    }

    fn place_at(&self, place: usize) -> usize {
        self.of.shape.table_at(self.shard) + (place & self.mask)
    }

    fn hash_of(&self, frame: u32) -> u64 {
        let (words, head) = (&self.of.directory, self.head(frame));
        hash(words.load(head + FILE, Relaxed), words.load(head + PAGE, Relaxed))
    }

    fn link(&self, frame: u32) {
        let words = &self.of.directory;
        let hash = self.hash_of(frame);
        let free = (0..=self.mask)
            .map(|i| self.place_at((hash as usize).wrapping_add(i)))
            .find(|&at| words.load(at, Relaxed) == 0)
            .expect("I-LSE-10: a table has twice as many places as frames");
        words.store(free, hash >> 32 << 32 | (u64::from(frame) + 1), Release);
    }

    /// Empties a place, and moves back what lies behind it and is looked for from further ahead.
    fn empty(&self, place: usize) {
        let words = &self.of.directory;
        let mut hole = place;
        for i in 1..=self.mask {
            let at = (place + i) & self.mask;
            let word = words.load(self.place_at(at), Relaxed);
            let Some(frame) = (word as u32).checked_sub(1) else { break };
            let home = self.hash_of(frame) as usize & self.mask;
            if at.wrapping_sub(home) & self.mask >= at.wrapping_sub(hole) & self.mask {
                words.store(self.place_at(hole), word, Release);
                hole = at;
            }
        }
        words.store(self.place_at(hole), 0, Release);
    }
}

/// A page that a client has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// The frame's number among those of all shards: where its bytes lie.
    pub frame: u32,
    version: u64,
}

/// The client's half. It writes nothing but uses.
#[derive(Debug, Clone)]
pub struct PageReader<W> {
    directory: W,
    uses: W,
    shape: PageShape,
}

impl<W: Words> PageReader<W> {
    /// Looks at memory that the daemon made; `frames_bytes` is the length of the frames.
    ///
    /// # Errors
    /// `Damaged`, `Version`, or `TooSmall` where the other two pieces are.
    pub fn open(directory: W, uses: W, frames_bytes: usize) -> Result<Self, LayoutError> {
        let shape = PageShape::read(&directory)?;
        if uses.count() < shape.uses_words() || frames_bytes < shape.frames_bytes() {
            return Err(LayoutError::TooSmall);
        }
        Ok(Self { directory, uses, shape })
    }

    /// Returns what the header says.
    #[inline]
    pub fn shape(&self) -> &PageShape {
        &self.shape
    }

    /// Looks a page of a file up, by the number that the cache has for the file. Its bytes may be
    /// copied then, and are used if it [`is_still`](Self::is_still) there.
    #[inline]
    pub fn find(&self, file: u64, page: u64) -> Option<Seen> {
        let shard = shard_of(file, page / GROUP_PAGES, self.shape.shards);
        let mask = self.directory.load(PageShape::mask_at(shard), Acquire) as usize;
        if mask >= self.shape.places() {
            return None;
        }
        let (table, hash) = (self.shape.table_at(shard), hash(file, page));
        for i in 0..PROBES_MAX {
            let place = (hash as usize).wrapping_add(i) & mask;
            let word = self.directory.load(table + place, Acquire);
            let frame = (word as u32).checked_sub(1)?;
            if word >> 32 == hash >> 32
                && (frame as usize) < self.shape.frames
                && let Some(seen) = self.look(shard, frame, file, page)
            {
                return Some(seen);
            }
        }
        None
    }

    #[inline]
    fn look(&self, shard: usize, frame: u32, file: u64, page: u64) -> Option<Seen> {
        let head = self.shape.head_at(shard, frame);
        let version = self.directory.load(head, Acquire);
        let is_meant = planted(Mistake::FrameNotCompared)
            || self.directory.load(head + FILE, Acquire) == file
                && self.directory.load(head + PAGE, Acquire) == page;
        let frame = (shard * self.shape.frames) as u32 + frame;
        (!version.is_multiple_of(2) && is_meant).then_some(Seen { frame, version })
    }

    /// Tells whether what was copied since a page was found are bytes of it.
    #[inline]
    pub fn is_still(&self, seen: &Seen) -> bool {
        let (shard, frame) =
            (seen.frame as usize / self.shape.frames, seen.frame as usize % self.shape.frames);
        self.directory.acquire();
        let now = self.directory.load(self.shape.head_at(shard, frame as u32), Relaxed);
        now == seen.version || planted(Mistake::PageNotLookedAtAgain)
    }

    /// Takes note that bytes `start..end` of a page were used. A use that goes on where the last one
    /// ended is the same one.
    #[inline]
    pub fn note_use(&self, seen: &Seen, start: usize, end: usize) {
        let at = seen.frame as usize;
        let word = self.uses.load(at, Relaxed);
        let count = word & ((1 << USES_BITS) - 1);
        let goes_on = word != 0 && word >> USES_BITS == start as u64;
        let count = if goes_on { count } else { (count + 1).min(USES_MAX) };
        let now = (end as u64) << USES_BITS | count;
        if now != word && at < self.uses.count() {
            self.uses.store(at, now, Relaxed);
        }
    }
}
