//! The inode lock: shared by I/O on a stable extent map, exclusive for what changes the map in ways
//! others must not see half-done.
//!
//! Phase-fair: a waiting writer stops new readers and gets the lock when the present ones are gone;
//! when it leaves, all readers that waited meanwhile go before the next writer. So neither starves
//! the other.
//!
//! ```text
//!   state:  WRITER bit (a writer waits or holds) | number of shared holders
//!
//!   shared      +1; with the WRITER bit set: -1 again and wait for the phase to end
//!   exclusive   one at a time: set WRITER, wait until the holders are 0
//!   release     exclusive: + the waiting readers, clear WRITER, next phase
//! ```
//!
//! Processes with a lease of the file do I/O without the lock ([`Outside`]). The exclusive holder
//! recalls them once the shared holders have left, and readmits them before it leaves itself.
//!
//! - I-LCK-1: while an [`Exclusive`] exists, no [`Shared`] exists, and the other way round.
//! - I-LCK-2: a shared hold belongs to no thread: it may be released anywhere.

use std::sync::{Arc, OnceLock};

use super::sync::{AtomicU64, Condvar, Held, Mutex, MutexGuard, Ordering, Place};
use super::{HELP_AFTER, Help};
use crate::lock::Outside;
use crate::statistics::{Awaited, WaitMeter, Waiting};

pub(super) const WRITER: u64 = 1 << 63;

/// The per-file lock whose sharing rules the I/O mode sets.
#[derive(Debug, Default)]
pub(crate) struct InodeLock {
    pub(super) state: State,
    pub(super) gate: Mutex<Gate>,
    /// Readers wait here for the phase to end.
    readers: Condvar,
    /// Writers wait here for their turn.
    writers: Condvar,
    /// The writer whose turn it is waits here for the readers to leave.
    drained: Condvar,
    /// Its rank, and the inode's number.
    place: Place,
    /// I/O that goes on without the lock.
    outside: OnceLock<Arc<dyn Outside>>,
    /// Where waits are counted beside where the callers say.
    waits: Option<Arc<WaitMeter>>,
}

/// Alone on its cache line: every holder writes it, so whatever lay beside it would be fetched anew
/// each time.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct State(pub(super) AtomicU64);

#[derive(Debug, Default)]
pub(super) struct Gate {
    /// A writer has its turn: it waits for readers to leave, or holds the lock.
    turn: bool,
    /// Counts writers that have left.
    phase: u64,
    pub(super) waiting_readers: u64,
}

/// Shared hold of the inode lock for the duration of a call.
#[must_use]
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    lock: &'a InodeLock,
    _held: Held,
}

/// Exclusive hold of the inode lock. Functions that need it take it as an argument.
#[must_use]
#[derive(Debug)]
pub(crate) struct Exclusive<'a> {
    lock: &'a InodeLock,
    _held: Held,
}

impl Drop for Shared<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release_shared();
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        if let Some(outside) = self.lock.outside.get() {
            outside.readmit();
        }
        self.lock.release_exclusive();
    }
}

impl InodeLock {
    /// Makes a lock of a rank, for the inode of a number.
    pub(crate) fn at(place: Place) -> Self {
        Self { place, ..Self::default() }
    }

    /// Has waits counted for a file.
    pub(crate) fn counted_in(self, waits: &Arc<WaitMeter>) -> Self {
        Self { waits: Some(Arc::clone(waits)), ..self }
    }

    /// Takes the lock shared.
    #[inline]
    pub(crate) fn shared(&self, help: &impl Help) -> Shared<'_> {
        let held = self.place.take();
        if !self.try_acquire_shared() {
            self.wait_shared(help);
        }
        Shared { lock: self, _held: held }
    }

    /// Takes the lock exclusive.
    pub(crate) fn exclusive(&self, help: &impl Help) -> Exclusive<'_> {
        let held = self.place.take();
        let mut gate = self.gate.lock();
        let begin = || Waiting::begin(Awaited::InodeExclusive, self.waits.as_deref(), help.meter());
        let mut waiting = if gate.turn { begin() } else { None };
        while gate.turn {
            gate = wait(&self.writers, gate, &self.gate, help);
        }
        gate.turn = true;
        if self.state.0.fetch_or(WRITER, Ordering::SeqCst) != 0 && waiting.is_none() {
            waiting = begin();
        }
        while self.state.0.load(Ordering::SeqCst) != WRITER {
            gate = wait(&self.drained, gate, &self.gate, help);
        }
        drop(gate);
        if let Some(outside) = self.outside.get() {
            outside.recall(&mut || {
                // Something goes on without the lock, and is waited for.
                if waiting.is_none() {
                    waiting = begin();
                }
                help.help();
            });
        }
        drop(waiting);
        Exclusive { lock: self, _held: held }
    }

    /// Has every exclusive holder from the next one on recall what goes on without the lock. Set
    /// once, before anything does.
    pub(crate) fn set_outside(&self, outside: Arc<dyn Outside>) {
        assert!(self.outside.set(outside).is_ok(), "I-LCK-1: an inode has one lease");
    }

    /// Takes the lock shared without a guard if no writer holds it or waits for it;
    /// [`release_shared`](Self::release_shared) ends it. For I/O in flight, whose hold ends with
    /// its completion.
    #[inline]
    pub(crate) fn try_acquire_shared(&self) -> bool {
        if self.state.0.fetch_add(1, Ordering::SeqCst) & WRITER == 0 {
            return true;
        }
        self.release_shared();
        false
    }

    /// Takes the lock shared if no writer holds it or waits for it.
    pub(crate) fn try_shared(&self) -> Option<Shared<'_>> {
        let held = self.place.take();
        self.try_acquire_shared().then(|| Shared { lock: self, _held: held })
    }

    /// Returns whether the lock is held, shared or exclusive, or waited for to write.
    pub(crate) fn is_held(&self) -> bool {
        self.state.0.load(Ordering::Relaxed) != 0
    }

    /// Takes the lock shared without a guard.
    pub(crate) fn acquire_shared(&self, help: &impl Help) {
        self.place.check();
        if !self.try_acquire_shared() {
            self.wait_shared(help);
        }
    }

    /// Ends a shared hold, from any thread.
    #[inline]
    pub(crate) fn release_shared(&self) {
        let before = self.state.0.fetch_sub(1, Ordering::SeqCst);
        assert!(before & !WRITER > 0, "I-LCK-2: a shared hold is released once");
        if before == WRITER + 1 {
            self.wake_drained();
        }
    }

    /// The writer checks the count under the gate, so it either sees 0 or is already waiting when
    /// this notifies.
    #[cold]
    fn wake_drained(&self) {
        let _gate = self.gate.lock();
        self.drained.notify_one();
    }

    #[cold]
    fn wait_shared(&self, help: &impl Help) {
        let mut gate = self.gate.lock();
        if !gate.turn {
            // The writer left in between. It cannot come back while the gate is held.
            self.state.0.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let _waiting = Waiting::begin(Awaited::InodeShared, self.waits.as_deref(), help.meter());
        let phase = gate.phase;
        gate.waiting_readers += 1;
        while gate.phase == phase {
            gate = wait(&self.readers, gate, &self.gate, help);
        }
    }

    fn release_exclusive(&self) {
        let mut gate = self.gate.lock();
        assert!(gate.turn, "I-LCK-1: only the writer whose turn it is lets readers in again");
        // The readers that waited hold the lock from here on; each only has to notice.
        self.state.0.fetch_add(std::mem::take(&mut gate.waiting_readers), Ordering::SeqCst);
        let before = self.state.0.fetch_and(!WRITER, Ordering::SeqCst);
        debug_assert!(before & WRITER != 0, "I-LCK-1: the writer that leaves had the lock");
        gate.turn = false;
        gate.phase += 1;
        self.readers.notify_all();
        self.writers.notify_one();
    }
}

/// Waits on `condvar`; helps, with the gate open, when it takes long.
fn wait<'a>(
    condvar: &Condvar,
    mut gate: MutexGuard<'a, Gate>,
    mutex: &'a Mutex<Gate>,
    help: &impl Help,
) -> MutexGuard<'a, Gate> {
    if !condvar.wait_for(&mut gate, HELP_AFTER).timed_out() {
        return gate;
    }
    drop(gate);
    help.help();
    mutex.lock()
}
