//! Asynchronous requests of one client: I/O that goes on after the call that began it.
//!
//! ```text
//!   begun     requests that were handed to the kernel
//!   paused    how many revocations want no more of them for the moment
//!   of files  a word an entry: requests on the file whose end the client has not collected yet
//! ```
//!
//! No thread waits for such a request, and its process may never ask what became of it. So the
//! kernel counts: every request carries an eventfd of the daemon's, which is raised once when the
//! request has ended, whatever became of it and of its process.
//!
//! ```text
//!   client   slot set, lease asked for ─► begun += n, of the file += n ─► io_submit ─► slot clear
//!   kernel                                                  I/O … ended ─► eventfd += 1
//!   daemon   revoke, slots drained ─► of the file = 0? done
//!                                     else: paused, until ended (read first) = begun
//! ```
//!
//! `begun` is never less than what the kernel was handed, and what the daemon reads of the eventfd
//! never more than what has ended. Both equal, with `begun` read later, is a moment at which
//! nothing was in flight.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::places::{begun_at, of_file_at, paused_at, touched_at};
use crate::planted::{Mistake, planted};
use crate::slots::{ClientSlots, Slots};
use crate::words::Words;

/// The other way of [`Words::add`].
fn take(words: &impl Words, at: usize, count: u64) {
    words.add(at, count.wrapping_neg());
}

impl<W: Words> Slots<W> {
    /// Counts requests on a file that are about to be handed to the kernel, while the slot is set.
    #[inline]
    pub fn begin_requests(&self, entry: u32, count: u64) {
        if (entry as usize) < self.entries {
            self.words.add(of_file_at(self.count, self.entries, entry), count);
        }
        self.words.add(begun_at(self.count, self.entries), count);
        self.words.fence();
    }

    /// Takes back the count of requests that the kernel did not take, while the slot is still set.
    pub fn unbegin_requests(&self, entry: u32, count: u64) {
        self.collect_request(entry, count);
        take(&self.words, begun_at(self.count, self.entries), count);
    }

    /// The program has collected the end of requests on a file.
    #[inline]
    pub fn collect_request(&self, entry: u32, count: u64) {
        if (entry as usize) < self.entries {
            take(&self.words, of_file_at(self.count, self.entries, entry), count);
        }
    }

    /// Tells whether the daemon wants no more requests for the moment: they go to the mount.
    #[inline]
    pub fn is_paused(&self) -> bool {
        self.words.load(paused_at(self.count, self.entries), Relaxed) != 0
    }
}

impl<W: Words> ClientSlots<W> {
    /// Tells whether requests of the file may be in flight: whether the client has begun any whose
    /// end it has not collected. The file is revoked, and no slot holds it.
    pub fn may_have_requests(&self, entry: u32) -> bool {
        (entry as usize) < self.entries
            && self.words.load(of_file_at(self.count, self.entries, entry), Acquire) != 0
            && !planted(Mistake::RequestsNotAwaited)
    }

    /// Tells whether any request of the client is in flight. `ended` says how many have ended so
    /// far, and is asked first (I-LSE-8).
    pub fn has_requests(&self, ended: impl FnOnce() -> u64) -> bool {
        if planted(Mistake::EndedReadLast) {
            return self.begun() != ended();
        }
        let ended = ended();
        self.begun() != ended
    }

    fn begun(&self) -> u64 {
        self.words.load(begun_at(self.count, self.entries), SeqCst)
    }

    /// Asks the client to begin no more requests, so that a time comes at which none is in flight;
    /// each call wants one of [`resume`](Self::resume). Nothing relies on it.
    pub fn pause(&self) {
        self.words.add(paused_at(self.count, self.entries), 1);
    }

    /// Ends one pause.
    pub fn resume(&self) {
        take(&self.words, paused_at(self.count, self.entries), 1);
    }

    /// Marks a file as written: requests on it ended that nothing has collected.
    pub fn touch(&self, entry: u32) {
        if (entry as usize) < self.entries {
            self.words.store(touched_at(self.count, entry), 1, SeqCst);
        }
    }
}
