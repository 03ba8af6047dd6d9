//! Group commit: callers that arrive together share one round of work, without a hand-off between
//! threads where that can be avoided.
//!
//! ```text
//!            ┌───────────── join: draw a ticket ─────────────┐
//!            │ no leader                           a leader │
//!            ▼                                               ▼
//!  gather (adaptive) ─▶ covered = tickets drawn       wait: yield, bounded,
//!            │                                        then park; each time round
//!      lead: the work (no lock held)                  look whether the ticket is served,
//!            ▼                                        else try to lead
//!  completed = covered ─▶ release ─▶ wake the parked ────────▶ return
//! ```
//!
//! - I-GROUP-1: one leader at a time.
//! - I-GROUP-2: a caller returns only after a round that *began* after it drew its ticket has
//!   ended.
//! - I-GROUP-3: no caller parks for ever: a leader that gives up the lead wakes the parked callers,
//!   and each of them then returns or tries to lead.
//!
//! A hand-off through the scheduler costs more than a short flush, so waiting starts with yields;
//! their time is bounded by what a round takes and by [`SPIN_NS_MAX`], and no thread spins that
//! does not wait for a round in progress.
//!
//! Measured with eight committers of 4 KiB on a busy machine of two processors: without the
//! leader's wait 0.25 flushes a commit on a disk and 0.97 where a flush takes 15 µs, with it 0.13
//! to 0.15, and there three times the commits; where a flush takes 1 µs the wait costs more than it
//! saves ([`GATHER_FROM_NS`]). Yielding for 100 µs before parking gave more commits than either
//! less or 500 µs.

use super::sync::{
    AtomicBool, AtomicU32, AtomicU64, Clock, Condvar, Mutex, MutexGuard, Place, PoisonError,
    SeqCst, rank, yield_now,
};
use crate::planted::{PlantedBug, planted};

/// Longest time in nanoseconds that a caller yields before it parks: about what parking and waking
/// cost.
const SPIN_NS_MAX: u64 = 100_000;
/// Shortest, and what a caller yields when a round takes so long that it must park anyway.
const SPIN_NS_MIN: u64 = 10_000;
/// A round this long is waited for asleep.
const LONG_ROUND_NS: u64 = 1_000_000;
/// A leader waits for company only when a round takes at least this long, in nanoseconds.
const GATHER_FROM_NS: u64 = 5_000;
/// Longest time in nanoseconds that a leader waits for company.
const GATHER_NS_MAX: u64 = 300_000;
const _: () = assert!(
    SPIN_NS_MIN <= SPIN_NS_MAX && GATHER_FROM_NS <= GATHER_NS_MAX,
    "the bounds of waits are in order"
);

/// A group is never expected to be larger.
const COMPANY_MAX: u64 = 256;

/// The callers of one log.
#[derive(Debug)]
pub(super) struct Group {
    /// Tickets drawn.
    arrivals: AtomicU64,
    /// Tickets up to this one are served.
    completed: AtomicU64,
    leading: AtomicBool,
    /// Callers that sleep or are about to.
    parked: AtomicU32,
    /// Guards nothing but the sleep; its place in the order is checked where it is waited for.
    park_lock: Mutex<()>,
    wake: Condvar,
    tempo: Tempo,
}

/// What the last rounds taught. Only the leader writes it; a stale value costs time, never truth.
#[derive(Debug)]
struct Tempo {
    /// How long a round takes, in nanoseconds, averaged.
    round_ns: AtomicU64,
    /// How many callers are expected to come together.
    company: AtomicU64,
    /// Rounds to go until waiting for company is tried again, after it was in vain.
    doubt: AtomicU32,
}

impl Group {
    pub(super) fn new() -> Self {
        Self {
            arrivals: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            leading: AtomicBool::new(false),
            parked: AtomicU32::new(0),
            park_lock: Mutex::new(()),
            wake: Condvar::new(),
            tempo: Tempo {
                round_ns: AtomicU64::new(0),
                company: AtomicU64::new(1),
                doubt: AtomicU32::new(0),
            },
        }
    }

    /// Calls so far.
    pub(super) fn arrivals(&self) -> u64 {
        self.arrivals.load(SeqCst)
    }

    /// Returns after a round of `work` that began after this call did; `work` runs on one of the
    /// callers' threads. What the round is to achieve must have been published before the call.
    pub(super) fn join(&self, work: impl FnOnce()) {
        let ticket = self.arrivals.fetch_add(1, SeqCst) + 1;
        loop {
            if self.completed.load(SeqCst) >= ticket {
                return;
            }
            if let Some(lead) = self.try_lead() {
                // Between the look above and taking the lead, the former leader may have served
                // this ticket.
                if self.completed.load(SeqCst) < ticket {
                    lead.run(ticket, work);
                }
                return;
            }
            if planted(PlantedBug::SeventhAnsweredEarly) && ticket.is_multiple_of(7) {
                return;
            }
            self.wait(ticket);
        }
    }

    /// Runs `work` as a round of its own, which serves what arrived before it as any other does.
    pub(super) fn lead_alone(&self, work: impl FnOnce()) {
        loop {
            let ticket = self.arrivals.fetch_add(1, SeqCst) + 1;
            while self.completed.load(SeqCst) < ticket {
                if let Some(lead) = self.try_lead() {
                    if self.completed.load(SeqCst) < ticket {
                        return lead.run(ticket, work);
                    }
                    break;
                }
                self.wait(ticket);
            }
        }
    }

    fn try_lead(&self) -> Option<Lead<'_>> {
        self.leading
            .compare_exchange(false, true, SeqCst, SeqCst)
            .ok()
            .map(|_| Lead { group: self })
    }

    /// Whether a caller with this ticket has nothing to do but wait.
    fn must_wait(&self, ticket: u64) -> bool {
        self.completed.load(SeqCst) < ticket && self.leading.load(SeqCst)
    }

    fn wait(&self, ticket: u64) {
        let round_ns = self.tempo.round_ns.load(SeqCst);
        let budget_ns = if round_ns > LONG_ROUND_NS {
            SPIN_NS_MIN
        } else {
            (2 * round_ns).clamp(SPIN_NS_MIN, SPIN_NS_MAX)
        };
        let clock = Clock::start();
        while self.must_wait(ticket) {
            if clock.elapsed_ns() > budget_ns {
                return self.park(ticket);
            }
            yield_now();
        }
    }

    fn park(&self, ticket: u64) {
        let mut park_lock = self.lock_parked();
        // Announced before the last look: the leader looks at `parked` after it published, so one
        // of both sees the other.
        self.parked.fetch_add(1, SeqCst);
        while self.must_wait(ticket) {
            park_lock = self.wake.wait(park_lock).unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.fetch_sub(1, SeqCst);
    }

    fn lock_parked(&self) -> MutexGuard<'_, ()> {
        Place::of(rank::PARK).check();
        self.park_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits a moment for the callers that came along in the last rounds; returns the tickets
    /// covered, and whether the wait was in vain.
    fn gather(&self, served: u64) -> (u64, bool) {
        let company = self.tempo.company.load(SeqCst);
        let doubt = self.tempo.doubt.load(SeqCst);
        let round_ns = self.tempo.round_ns.load(SeqCst);
        if company <= 1 || doubt > 0 || round_ns < GATHER_FROM_NS {
            self.tempo.doubt.store(doubt.saturating_sub(1), SeqCst);
            return (self.arrivals(), false);
        }
        let budget_ns = (round_ns / 2).min(GATHER_NS_MAX);
        let clock = Clock::start();
        loop {
            let arrivals = self.arrivals();
            if arrivals - served >= company {
                return (arrivals, false);
            }
            if clock.elapsed_ns() > budget_ns {
                return (arrivals, true);
            }
            yield_now();
        }
    }
}

impl Tempo {
    /// Learns from a round: callers that came late, while it ran, should have been waited for.
    fn learn(&self, round_ns: u64, served: u64, late: u64, in_vain: bool) {
        debug_assert!(served > 0, "I-GROUP-2: a round serves its leader");
        let before = self.round_ns.load(SeqCst);
        let average = if before == 0 { round_ns } else { before - before / 8 + round_ns / 8 };
        self.round_ns.store(average, SeqCst);
        let company =
            if late > 0 || in_vain { served + late } else { self.company.load(SeqCst).min(served) };
        self.company.store(company.min(COMPANY_MAX), SeqCst);
        if in_vain {
            self.doubt.store(DOUBT_ROUNDS, SeqCst);
        }
    }
}

/// Rounds without a wait after one in vain: bounds the loss to a few per cent.
const DOUBT_ROUNDS: u32 = 16;

/// The lead. Given up when dropped, also by a panic, so that no caller waits for a leader that is
/// gone.
struct Lead<'a> {
    group: &'a Group,
}

impl Lead<'_> {
    fn run(self, ticket: u64, work: impl FnOnce()) {
        let group = self.group;
        let served = group.completed.load(SeqCst);
        let (covered, in_vain) = group.gather(served);
        assert!(covered >= ticket && served < ticket, "I-GROUP-2: a leader serves itself");
        if planted(PlantedBug::ServedBeforeWork) {
            group.completed.store(covered, SeqCst);
        }
        let clock = Clock::start();
        work();
        let late = group.arrivals() - covered;
        group.tempo.learn(clock.elapsed_ns(), covered - served, late, in_vain);
        let covered = if planted(PlantedBug::JoinedTooLate) { covered + late } else { covered };
        group.completed.store(covered, SeqCst);
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let group = self.group;
        assert!(group.leading.swap(false, SeqCst), "I-GROUP-1: the lead was given up twice");
        // I-GROUP-3: a caller that parks from here on sees the lead free; one that parked before is
        // woken.
        if group.parked.load(SeqCst) > 0 && !planted(PlantedBug::WakeForgotten) {
            drop(group.lock_parked());
            group.wake.notify_all();
        }
    }
}
