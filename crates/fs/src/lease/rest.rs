//! Files that rest on the mount: taken back, and not handed out again for a while.
//!
//! ```text
//!   handed out ─► taken back so often ─────────────────► rests ─► a look of the sync daemon, or a process asks
//!        │                                                             for odd writes or a tail ─► handed out
//!        ├──────► grows fast, in small writes, unsynced, ─► rests ─► a look after little of that ─► handed out
//!        │        or is written over so, in order
//!        └──────► grows by parts of sectors ────────────► rests ─► as the first
//! ```
//!
//! What stays on the mount until its last close (*suspended*) rests too, once clients have ended, and
//! so does what is not published.
//!
//! The second is a load. With its lease each of its pages goes to the device by itself, and the
//! process waits for it; on the mount growth and what is written in order wait in memory, and what
//! is read in order is read ahead.
//!
//! - I-LEA-10: while a file rests nothing does I/O outside of its lock, so what the mount keeps of a
//!   file without a lease it keeps of this one; it is handed out when nothing of it waits.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::file::{LeasedFile, State};

/// So often a file is taken back between two looks of the sync daemon before it rests.
const RECALLS_MAX: u32 = 64;
/// And so often it grows by parts of sectors, which no client does.
const ODD_GROWTHS_MAX: u32 = 2;
/// And so many releases of the exclusive lock pass until it is tried again.
const RELEASES: u32 = 4096;

/// By how much a file grows in a load before it rests, and how fast, in bytes and bytes a second.
const LOAD_BYTES: u64 = 256 << 10;
const LOAD_BYTES_PER_S: u64 = 1 << 20;
/// From how many bytes on a write of a load is large enough by itself.
const LARGE_WRITE_BYTES: u64 = 64 << 10;
/// How many writes that waited and reads that were read ahead there are between two looks at least
/// while a file is being loaded, and how many syncs at most.
const STREAMED_MIN: u64 = 64;
const SYNCS_MAX: u32 = 4;
/// How long after the last look a load goes on where the file was closed meanwhile.
const KEPT: Duration = Duration::from_secs(15);

/// Whether a file rests, and what it takes to.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// How often it was taken back since the sync daemon looked.
    recalls: u32,
    /// And how often it grew by parts of sectors.
    odd_growths: u32,
    /// So many times the exclusive lock is released before the file is handed out again.
    releases: u32,
    /// When it was last known how long the file is, with no sync since.
    growth: Option<(Instant, u64)>,
    /// It rests because it is being loaded.
    load: Option<Load>,
    /// It rested, and what waited may have kept it from being handed out.
    owed: bool,
}

#[derive(Debug)]
struct Load {
    /// What streamed up to the last look.
    streamed: u64,
    /// Since the last look.
    syncs: u32,
    looked: Instant,
}

impl Load {
    fn new(streamed: u64) -> Self {
        Self { streamed, syncs: 0, looked: Instant::now() }
    }
}

impl Rest {
    /// Returns whether the file rests as the exclusive lock is released, which brings the end nearer.
    pub(super) fn passes(&mut self) -> bool {
        let rests = self.releases > 0;
        if rests && self.load.is_none() {
            self.releases -= 1;
            self.owed = true;
        }
        rests
    }

    pub(super) fn is_over(&self) -> bool {
        self.releases == 0
    }

    /// The file was taken back; returns whether it rests from now on.
    pub(super) fn taken_back(&mut self) -> bool {
        self.recalls += 1;
        if self.recalls < RECALLS_MAX {
            return false;
        }
        (self.recalls, self.releases) = (0, RELEASES);
        true
    }

    /// The file is about to grow by a part of a sector; returns whether it rests from now on.
    fn grows_odd(&mut self) -> bool {
        self.odd_growths += 1;
        let rests = self.odd_growths >= ODD_GROWTHS_MAX && self.is_over();
        if rests {
            self.releases = RELEASES;
        }
        rests
    }

    fn end(&mut self) -> bool {
        (self.recalls, self.odd_growths, self.load) = (0, 0, None);
        std::mem::take(&mut self.releases) > 0 || std::mem::take(&mut self.owed)
    }

    /// Returns what is left of it when the file is opened again: a server that loads a table closes it
    /// before it reads it.
    pub(super) fn after_a_close(self, now: Instant) -> Self {
        let goes_on =
            |load: &Load| now.saturating_duration_since(load.looked) < KEPT && self.releases > 0;
        if self.load.as_ref().is_some_and(goes_on) { self } else { Self::default() }
    }

    /// Returns whether a file that is to grow by a write of `len` bytes at `now` is being loaded.
    fn is_load(&mut self, end: u64, len: u64, now: Instant) -> bool {
        if len >= LARGE_WRITE_BYTES {
            self.growth = None;
            return false;
        }
        let Some((since, begin)) = self.growth.filter(|(_, begin)| *begin <= end) else {
            self.growth = Some((now, end));
            return false;
        };
        let (grown, took) = (end - begin, now.saturating_duration_since(since));
        if grown < LOAD_BYTES && took < Duration::from_secs(1) {
            return false;
        }
        self.growth = Some((now, end));
        grown >= LOAD_BYTES && took.as_secs_f64() * LOAD_BYTES_PER_S as f64 <= grown as f64
    }
}

impl LeasedFile {
    /// Returns whether the file rests; under the inode lock that begins not, and where it ends the
    /// file is handed out under the exclusive one only.
    #[inline]
    pub(crate) fn rests(&self) -> bool {
        self.rests.load(Ordering::Acquire)
    }

    /// Returns whether the file rests because it is being loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.rests() && self.state.lock().rest.load.is_some()
    }

    /// A process is about to make the file grow by a write of `len` bytes at its end; returns whether
    /// the file is being loaded, and rests from now on. `streamed`: writes that waited and reads that
    /// were read ahead. The exclusive lock is held.
    pub(crate) fn begins_load(&self, end: u64, len: u64, streamed: u64) -> bool {
        let mut state = self.state.lock();
        if !state.rest.is_load(end, len, Instant::now()) {
            return false;
        }
        assert!(state.revoked, "I-LEA-10: nothing does I/O outside of the lock");
        state.rest.releases = RELEASES;
        state.rest.load = Some(Load::new(streamed));
        self.note_rest(&state);
        true
    }

    /// A process writes over much of the file, in order, unsynced: it rests from now on as one that is
    /// loaded. The exclusive lock is held.
    pub(crate) fn begins_stream(&self, streamed: u64) {
        let mut state = self.state.lock();
        if state.rest.load.is_none() {
            assert!(state.revoked, "I-LEA-10: nothing does I/O outside of the lock");
            state.rest.releases = RELEASES;
            state.rest.load = Some(Load::new(streamed));
            self.note_rest(&state);
        }
    }

    /// The file is about to grow by a part of a sector, which is the mount's to do: after some of
    /// that it rests. The exclusive lock is held.
    pub(crate) fn grows_odd(&self) {
        let mut state = self.state.lock();
        if state.entry.is_some() && !state.reads_pages() && state.rest.grows_odd() {
            assert!(state.revoked, "I-LEA-10: nothing does I/O outside of the lock");
            self.note_rest(&state);
        }
    }

    /// The file was synced: it grows for more than a load.
    pub(crate) fn synced(&self) {
        let mut state = self.state.lock();
        state.rest.growth = None;
        if let Some(load) = &mut state.rest.load {
            load.syncs += 1;
        }
    }

    /// Lets the file be handed out again; returns whether it rested.
    pub(crate) fn end_rest(&self) -> bool {
        let mut state = self.state.lock();
        let rested = state.rest.end();
        self.note_rest(&state);
        rested
    }

    /// Says outside of the lock whether the file rests.
    pub(super) fn note_rest(&self, state: &State) {
        let stays = if state.suspended { state.quiet } else { !state.rest.is_over() };
        // Reads of pages in the cache are no I/O.
        let is_on_device = state.entry.is_some() && !state.reads_pages();
        let rests = !is_on_device || (state.revoked && stays);
        self.rests.store(rests, Ordering::Release);
    }

    /// As [`end_rest`](Self::end_rest), between two turns of the sync daemon; a file that is still
    /// being loaded rests on.
    pub(crate) fn look_whether_rested(&self, streamed: u64) -> bool {
        if let Some(load) = &mut self.state.lock().rest.load {
            let goes_on = streamed.saturating_sub(load.streamed) >= STREAMED_MIN;
            if goes_on && load.syncs <= SYNCS_MAX {
                *load = Load::new(streamed);
                return false;
            }
        }
        self.end_rest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 8192;

    /// Asks for growth by pages, each so much later than the one before; returns after how many
    /// bytes it is a load.
    fn load(rest: &mut Rest, each: Duration, pages: u64) -> Option<u64> {
        let mut now = Instant::now();
        (0..pages).find_map(|page| {
            now += each;
            rest.is_load(page * PAGE, PAGE, now).then_some(page * PAGE)
        })
    }

    #[test]
    fn fast_growth_by_small_writes_is_a_load() {
        let fast = Duration::from_micros(100);
        assert_eq!(load(&mut Rest::default(), fast, 1000), Some(LOAD_BYTES));
        let slow = Duration::from_millis(9);
        assert_eq!(load(&mut Rest::default(), slow, 1000), None, "less than a MiB a second");
        let (mut rest, now) = (Rest::default(), Instant::now());
        let large = (0..100).any(|at| rest.is_load(at << 20, LARGE_WRITE_BYTES, now));
        assert!(!large, "large writes need no help");
        assert!(!rest.is_load(9 << 20, PAGE, now) && !rest.is_load(1 << 20, PAGE, now), "cut off");
    }
}
