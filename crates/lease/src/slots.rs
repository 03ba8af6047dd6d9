//! The slots of one client: which file each of its threads is at this moment doing I/O on.
//!
//! ```text
//! word 0   header: magic, version, words, slots, entries, slots in use, calls without a slot, client
//!     16   slots of 32 words: busy, frame, thread, reads, writes, syncs, hits, fallbacks by reason
//!      …   a word an entry: 1 where the file was written since the daemon last looked
//! ```
//!
//! `busy` is 0, or `(entry + 1) << 1 | writes`. The client alone writes here, the daemon only reads,
//! takes the touched words, says where a tail begins, and asks for a pause of requests. It believes
//! nothing but "busy" and how far a tail is filled: a client that writes rubbish here
//! stops revocations, which is noticed, or hides I/O that it could make on the device anyway.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::direction::Direction;
use crate::layout::{ENTRIES_MAX, LAYOUT_VERSION, LINE, LayoutError, SLOTS_MAGIC, check_head};
use crate::layout::{MAGIC, VERSION, WORDS};
use crate::places::{SLOT_WORDS, filled_at, slot_at, slots_words, touched_at};
use crate::planted::{Mistake, planted};
use crate::reason::Fallback;
use crate::words::Words;

/// Slots of a client: threads that can do I/O under a lease at the same time.
pub const SLOTS_PER_CLIENT: usize = 1024;

const COUNT: usize = 3;
const ENTRIES: usize = 4;
const USED: usize = 5;
const UNSERVED: usize = 6;
const CLIENT: usize = 7;

const BUSY: usize = 0;
const FRAME: usize = 1;
const THREAD: usize = 2;
const DONE: usize = 3;
const HITS: usize = 6;
const FALLBACKS: usize = 7;

const _: () = assert!(FALLBACKS + Fallback::COUNT <= SLOT_WORDS && CLIENT < LINE);
const _: () = assert!(DONE + Direction::Sync as usize + 1 == HITS && HITS < FALLBACKS);

fn busy_word(entry: u32, direction: Direction) -> u64 {
    (u64::from(entry) + 1) << 1 | u64::from(direction == Direction::Write)
}

/// What went directly and what did not, of one client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads under a lease.
    pub reads: u64,
    /// Writes under a lease.
    pub writes: u64,
    /// Syncs under a lease.
    pub syncs: u64,
    /// Reads out of the daemon's cache.
    pub hits: u64,
    /// Calls that went to the mount, in the order of [`Fallback::ALL`].
    pub fallbacks: [u64; Fallback::COUNT],
}

impl Counters {
    /// Adds those of another client.
    pub fn add(&mut self, other: &Self) {
        self.reads = self.reads.wrapping_add(other.reads);
        self.writes = self.writes.wrapping_add(other.writes);
        self.syncs = self.syncs.wrapping_add(other.syncs);
        self.hits = self.hits.wrapping_add(other.hits);
        for (sum, more) in self.fallbacks.iter_mut().zip(other.fallbacks) {
            *sum = sum.wrapping_add(more);
        }
    }
}

/// The client's view of its slots.
#[derive(Debug, Clone)]
pub struct Slots<W> {
    pub(crate) words: W,
    pub(crate) count: usize,
    pub(crate) entries: usize,
}

impl<W: Words> Slots<W> {
    /// Looks at memory that the daemon made.
    pub fn open(words: W) -> Result<Self, LayoutError> {
        let (count, entries) = sizes(&words)?;
        Ok(Self { words, count, entries })
    }

    /// Returns the number by which the daemon knows this client.
    #[inline]
    pub fn client(&self) -> u64 {
        self.words.load(CLIENT, Relaxed)
    }

    /// Takes the first slot that no thread has, or whose thread is gone: few slots in use are few
    /// to look at for the daemon.
    pub fn claim(&self, thread: u32, is_gone: impl Fn(u32) -> bool) -> Option<usize> {
        for slot in 0..self.count {
            let owner = self.words.load(slot_at(slot) + THREAD, Relaxed);
            if (owner == 0 || is_gone(owner as u32))
                && self.words.replace(slot_at(slot) + THREAD, owner, u64::from(thread))
            {
                self.words.store(slot_at(slot) + BUSY, 0, Release);
                self.announce(slot);
                return Some(slot);
            }
        }
        None
    }

    /// Raises the number of slots that the daemon looks at, before this one is first set.
    fn announce(&self, slot: usize) {
        loop {
            let used = self.words.load(USED, SeqCst);
            if used > slot as u64 || self.words.replace(USED, used, slot as u64 + 1) {
                return;
            }
        }
    }

    /// Sets a slot. The full fence is what a revocation relies on.
    #[inline]
    pub(crate) fn enter(&self, slot: usize, entry: u32, direction: Direction) {
        debug_assert!(slot < self.count, "slot {slot} of {}: claimed before it is set", self.count);
        let word = busy_word(entry, direction);
        if planted(Mistake::NoFence) {
            return self.words.store(slot_at(slot) + BUSY, word, Release);
        }
        self.words.swap(slot_at(slot) + BUSY, word);
    }

    /// Clears a slot after the I/O ended.
    #[inline]
    pub fn leave(&self, slot: usize) {
        self.words.store(slot_at(slot) + BUSY, 0, Release);
    }

    /// Tells whether the slot is set: by a call further up the stack of its thread, or by one that
    /// was left with `siglongjmp`.
    #[inline]
    pub fn is_set(&self, slot: usize) -> bool {
        self.words.load(slot_at(slot) + BUSY, Relaxed) != 0
    }

    /// Returns the stack frame that set the slot last.
    pub fn frame(&self, slot: usize) -> u64 {
        self.words.load(slot_at(slot) + FRAME, Relaxed)
    }

    /// Notes the stack frame of the call that sets the slot next.
    #[inline]
    pub fn note_frame(&self, slot: usize, frame: u64) {
        self.words.store(slot_at(slot) + FRAME, frame, Relaxed);
    }

    /// Marks the file as written, for its times; before the slot is cleared.
    #[inline]
    pub fn touch(&self, entry: u32) {
        let at = touched_at(self.count, entry);
        if (entry as usize) < self.entries && self.words.load(at, Relaxed) == 0 {
            self.words.store(at, 1, Release);
        }
    }

    /// Returns up to where this client has filled its tail of a file; without one it says nothing.
    #[inline]
    pub fn filled(&self, entry: u32) -> u64 {
        self.words.load(filled_at(self.count, self.entries, entry), Acquire)
    }

    /// Tells that a permitted write is on the device: the file ends there now, where the permit says
    /// that it fills a tail. Before the slot is cleared.
    #[inline]
    pub fn wrote(&self, entry: u32, fills_to: u64) {
        if fills_to != 0 && (entry as usize) < self.entries {
            self.fill(filled_at(self.count, self.entries, entry), fills_to);
        }
        self.touch(entry);
    }

    /// Raises a word: another thread may have come further.
    fn fill(&self, at: usize, to: u64) {
        loop {
            let was = self.words.load(at, Relaxed);
            if was >= to || self.words.replace(at, was, to) {
                return;
            }
        }
    }

    /// Counts I/O that went directly.
    #[inline]
    pub fn count_done(&self, slot: usize, direction: Direction) {
        self.bump(slot_at(slot) + DONE + direction as usize);
    }

    /// Counts a read out of the daemon's cache.
    #[inline]
    pub fn count_hit(&self, slot: usize) {
        self.bump(slot_at(slot) + HITS);
    }

    /// Counts a call that went to the mount.
    pub fn count_fallback(&self, slot: usize, fallback: Fallback) {
        self.bump(slot_at(slot) + FALLBACKS + fallback as usize);
    }

    /// Counts a call of a thread that has no slot.
    pub fn count_unserved(&self) {
        self.words.add(UNSERVED, 1);
    }

    /// The thread is the only writer of its counters.
    #[inline]
    fn bump(&self, at: usize) {
        self.words.store(at, self.words.load(at, Relaxed).wrapping_add(1), Relaxed);
    }

    /// Returns the sums over all threads.
    pub fn counters(&self) -> Counters {
        counters(&self.words, self.count)
    }
}

/// A slot that is set, as the daemon sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The slot's number.
    pub slot: usize,
    /// The thread that set it, by what the client says.
    pub thread: u32,
    /// The entry of the file.
    pub entry: u32,
    /// Whether it may be writing.
    pub writes: bool,
}

/// The daemon's view of the slots of one client.
#[derive(Debug, Clone)]
pub struct ClientSlots<W> {
    pub(crate) words: W,
    pub(crate) count: usize,
    pub(crate) entries: usize,
}

impl<W: Words> ClientSlots<W> {
    /// Makes slots in fresh memory of zeros, before the client gets it. `client` is a number that
    /// no other client of the mount ever has, not 0.
    pub fn create(
        words: W,
        slots: usize,
        entries: usize,
        client: u64,
    ) -> Result<Self, LayoutError> {
        debug_assert!(client != 0, "I-LSE-5: 0 is the number of no client");
        if words.count() < slots_words(slots, entries) {
            return Err(LayoutError::TooSmall);
        }
        for (at, value) in [
            (VERSION, u64::from(LAYOUT_VERSION)),
            (WORDS, words.count() as u64),
            (COUNT, slots as u64),
            (ENTRIES, entries as u64),
            (CLIENT, client),
        ] {
            words.store(at, value, Relaxed);
        }
        words.store(MAGIC, SLOTS_MAGIC, Release);
        Ok(Self { words, count: slots, entries })
    }

    /// How many slots were ever set. The client says so; more than there are it cannot say.
    pub fn used(&self) -> usize {
        (self.words.load(USED, SeqCst) as usize).min(self.count)
    }

    /// Looks at one slot.
    pub fn look(&self, slot: usize) -> Option<Holder> {
        let busy = self.words.load(slot_at(slot) + BUSY, SeqCst);
        if busy == 0 || slot >= self.count {
            return None;
        }
        let thread = self.words.load(slot_at(slot) + THREAD, Relaxed) as u32;
        let entry = u32::try_from((busy >> 1).wrapping_sub(1)).unwrap_or(u32::MAX);
        Some(Holder { slot, thread, entry, writes: busy & 1 != 0 })
    }

    /// Returns a slot that is set, of those for which `is_meant` holds.
    pub fn holder(&self, is_meant: impl Fn(&Holder) -> bool) -> Option<Holder> {
        (0..self.used()).find_map(|slot| self.look(slot).filter(&is_meant))
    }

    /// Returns a slot that is set for this entry.
    pub fn holder_of(&self, entry: u32) -> Option<Holder> {
        self.holder(|holder| holder.entry == entry)
    }

    /// Returns a slot that is set for any file to write.
    pub fn writer(&self) -> Option<Holder> {
        self.holder(|holder| holder.writes)
    }

    /// Tells whether this client wrote to the file since this was last asked, and forgets it. To
    /// be asked after a drain, or its answer may come one write too early.
    pub fn take_touched(&self, entry: u32) -> bool {
        let at = touched_at(self.count, entry);
        (entry as usize) < self.entries
            && self.words.load(at, Acquire) != 0
            && self.words.swap(at, 0) != 0
    }

    /// Returns up to where this client says that it has filled its tail of a file, in bytes of the
    /// file. What returned to a caller before is counted; after a drain it stays.
    pub fn filled(&self, entry: u32) -> u64 {
        self.words.load(filled_at(self.count, self.entries, entry), Acquire)
    }

    /// Says where a tail begins that the client is about to be given. The file is revoked and
    /// drained.
    pub fn set_filled(&self, entry: u32, to: u64) {
        assert!((entry as usize) < self.entries, "I-LSE-3: no entry {entry}");
        self.words.store(filled_at(self.count, self.entries, entry), to, SeqCst);
    }

    /// Returns the client's counters, as it has them.
    pub fn counters(&self) -> Counters {
        counters(&self.words, self.count)
    }
}

fn sizes(words: &impl Words) -> Result<(usize, usize), LayoutError> {
    check_head(words, SLOTS_MAGIC)?;
    let (count, entries) = (words.load(COUNT, Relaxed), words.load(ENTRIES, Relaxed));
    if !(1..=1 << 16).contains(&count) || entries > ENTRIES_MAX as u64 {
        return Err(LayoutError::Damaged);
    }
    let (count, entries) = (count as usize, entries as usize);
    if slots_words(count, entries) > words.count() {
        return Err(LayoutError::Damaged);
    }
    Ok((count, entries))
}

fn counters(words: &impl Words, count: usize) -> Counters {
    let mut sum = Counters::default();
    let used = (words.load(USED, Relaxed) as usize).min(count);
    for slot in 0..used {
        let at = |word| words.load(slot_at(slot) + word, Relaxed);
        sum.add(&Counters {
            reads: at(DONE),
            writes: at(DONE + 1),
            syncs: at(DONE + 2),
            hits: at(HITS),
            fallbacks: std::array::from_fn(|i| at(FALLBACKS + i)),
        });
    }
    let other = &mut sum.fallbacks[Fallback::Other as usize];
    *other = other.wrapping_add(words.load(UNSERVED, Relaxed));
    sum
}
