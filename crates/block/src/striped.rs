//! Counters that many threads count in, at the price of a load and a store.
//!
//! ```text
//!   thread ──► its slot ──► the counters' stripe for it: load, add, store       (slots 0 ‥ 15: one thread's own)
//!                      └──► a stripe that several threads use: locked add       (slots 16 ‥ 23, for the threads beyond)
//!   counters that are seldom counted in have no stripes: locked adds to their base
//!   total = base + all stripes;   reset: base = − all stripes
//! ```
//!
//! All is relaxed: the counters order nothing, they only add up.
//!
//! - I-TLY-1: a stripe of an own slot is written by the one thread that holds the slot; a slot
//!   changes hands under a mutex, so its next holder sees what the one before stored, and no count
//!   is lost.
//! - I-TLY-2: a reset subtracts and never stores into a stripe, so it loses no count that is made
//!   at that moment.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};

use parking_lot::Mutex;

/// Slots that belong to one thread each, as long as it lives.
const SLOTS_OWN: usize = 2 * STRIPES;
/// Stripes that counters get at a time.
const STRIPES: usize = 8;
/// Blocks of stripes: those of the own slots, and one for all other threads.
const BLOCKS: usize = SLOTS_OWN / STRIPES + 1;
/// How often something is counted before there are stripes: ten thousand files that are looked into
/// once take no memory for it.
const CALLS_COLD: u32 = 256;

/// Which own slots are taken, a bit each. A leaf.
static TAKEN: Mutex<u32> = Mutex::new(0);
/// Spreads the threads that have no slot of their own.
static NEXT_SHARED: AtomicU32 = AtomicU32::new(0);

/// A thread that has not counted yet; beyond all blocks.
const NO_SLOT: usize = usize::MAX;

thread_local! {
    static SLOT: Cell<usize> = const { Cell::new(NO_SLOT) };
    static LEASE: Cell<Option<Lease>> = const { Cell::new(None) };
}

/// An own slot, given back when its thread ends.
struct Lease(usize);

impl Drop for Lease {
    fn drop(&mut self) {
        // What is counted after this, by other destructors of the thread, is counted with locked
        // adds.
        SLOT.set(shared_slot());
        let mut taken = TAKEN.lock();
        assert!(
            *taken & 1 << self.0 != 0,
            "I-TLY-1: a slot that one thread holds is given back once"
        );
        *taken &= !(1 << self.0);
    }
}

fn shared_slot() -> usize {
    SLOTS_OWN + NEXT_SHARED.fetch_add(1, Relaxed) as usize % STRIPES
}

/// Finds a slot for this thread, the lowest that is free, so that few threads need few stripes.
#[cold]
fn take_slot() -> usize {
    let own = {
        let mut taken = TAKEN.lock();
        let free = taken.trailing_ones() as usize;
        (free < SLOTS_OWN).then(|| {
            *taken |= 1 << free;
            Lease(free)
        })
    };
    let slot = own.as_ref().map_or_else(shared_slot, |lease| lease.0);
    SLOT.set(slot);
    // In a thread that is ending already the lease comes back by itself, and with it the slot
    // changes.
    let _ = LEASE.try_with(|kept| kept.set(own));
    SLOT.get()
}

/// Whole cache lines, and in pairs, because processors fetch them so.
#[derive(Debug)]
#[repr(align(128))]
struct Stripe<const N: usize>([AtomicU64; N]);

fn empty_stripes<const N: usize>() -> Box<[Stripe<N>; STRIPES]> {
    Box::new(std::array::from_fn(|_| Stripe([const { AtomicU64::new(0) }; N])))
}

/// `N` counters. Where the stripes are comes first, on a line that is seldom written.
#[derive(Debug)]
#[repr(C)]
pub struct StripedCounters<const N: usize> {
    blocks: [OnceLock<Box<[Stripe<N>; STRIPES]>>; BLOCKS],
    /// How often something was counted in the base.
    calls: AtomicU32,
    base: [AtomicU64; N],
}

impl<const N: usize> Default for StripedCounters<N> {
    fn default() -> Self {
        Self {
            blocks: [const { OnceLock::new() }; BLOCKS],
            calls: AtomicU32::new(0),
            base: [const { AtomicU64::new(0) }; N],
        }
    }
}

impl<const N: usize> StripedCounters<N> {
    /// Adds to some of the counters, each named by its index.
    ///
    /// # Panics
    /// Where an index is not below `N`.
    #[inline]
    pub fn add<const M: usize>(&self, counts: [(usize, u64); M]) {
        let slot = SLOT.get();
        let Some(stripes) = self.blocks.get(slot / STRIPES).and_then(OnceLock::get) else {
            return self.add_cold(slot, counts);
        };
        let stripe = &stripes[slot % STRIPES].0;
        for (index, n) in counts {
            let value = &stripe[index];
            if slot < SLOTS_OWN {
                value.store(value.load(Relaxed).wrapping_add(n), Relaxed);
            } else {
                value.fetch_add(n, Relaxed);
            }
        }
    }

    #[cold]
    fn add_cold<const M: usize>(&self, slot: usize, counts: [(usize, u64); M]) {
        for (index, n) in counts {
            self.base[index].fetch_add(n, Relaxed);
        }
        let slot = if slot == NO_SLOT { take_slot() } else { slot };
        if self.calls.load(Relaxed) >= CALLS_COLD {
            self.blocks[slot / STRIPES].get_or_init(empty_stripes);
        } else {
            self.calls.fetch_add(1, Relaxed);
        }
    }

    /// The sum of what the stripes hold.
    fn striped(&self, index: usize) -> u64 {
        let stripes = self.blocks.iter().filter_map(OnceLock::get).flat_map(|block| block.iter());
        stripes.fold(0, |sum, stripe| sum.wrapping_add(stripe.0[index].load(Relaxed)))
    }

    /// Returns what one counter has come to; exact once all that counted have been waited for.
    ///
    /// # Panics
    /// As [`add`](Self::add).
    #[must_use]
    pub fn total(&self, index: usize) -> u64 {
        // The base first: a reader that sees what a reset subtracted sees the stripes at least as
        // the reset saw them.
        self.base[index].load(Acquire).wrapping_add(self.striped(index))
    }

    /// Returns what all counters have come to; each is exact, the whole is not atomic.
    #[must_use]
    pub fn totals(&self) -> [u64; N] {
        std::array::from_fn(|index| self.total(index))
    }

    /// Sets all counters back to 0 (I-TLY-2).
    pub fn reset(&self) {
        for (index, base) in self.base.iter().enumerate() {
            let mut seen = base.load(Acquire);
            while let Err(now) =
                base.compare_exchange(seen, self.striped(index).wrapping_neg(), AcqRel, Acquire)
            {
                seen = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// I-TLY-1: more threads than slots, in waves, so that slots change hands.
    #[test]
    fn i_tly_1_no_count_is_lost() {
        let both = [StripedCounters::<2>::default(), StripedCounters::default()];
        for _ in 0..20 {
            std::thread::scope(|scope| {
                for thread in 0..SLOTS_OWN + 2 * STRIPES {
                    let counters = &both[thread % 2];
                    scope.spawn(move || {
                        for n in 0..2000 {
                            counters.add([(0, 1), (1, n)]);
                            counters.add([(1, 3)]);
                        }
                    });
                }
            });
        }
        let calls = 20 * (SLOTS_OWN as u64 / 2 + STRIPES as u64) * 2000;
        for counters in &both {
            let bytes = calls / 2000 * (1999 * 2000 / 2) + 3 * calls;
            assert_eq!(counters.totals(), [calls, bytes]);
        }
    }

    /// I-TLY-2: a reset that stored zeros into the stripes would lose counts, or bring back what it
    /// took away.
    #[test]
    fn i_tly_2_a_reset_takes_no_count_away() {
        const THREADS: u64 = 3;
        let (counters, stop) = (StripedCounters::<1>::default(), AtomicBool::new(false));
        for block in &counters.blocks {
            block.get_or_init(empty_stripes);
        }
        let (mut calls, mut seen_max) = (0, 0);
        let begun = Barrier::new(THREADS as usize + 1);
        std::thread::scope(|scope| {
            let count = || {
                counters.add([(0, 1)]);
                begun.wait();
                let mut calls = 1_u64;
                while !stop.load(Relaxed) {
                    counters.add([(0, 1)]);
                    calls += 1;
                }
                calls
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(count)).collect();
            begun.wait();
            for _ in 0..20_000 {
                counters.reset();
                seen_max = seen_max.max(counters.total(0));
            }
            stop.store(true, Relaxed);
            calls = threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>();
        });
        assert!(seen_max <= calls, "{seen_max} of {calls}: a count went below zero");
        // A thread's first call finds its slot.
        assert_eq!(counters.striped(0), calls - THREADS, "I-TLY-2");
        assert!(counters.total(0) <= calls);
        counters.reset();
        assert_eq!(counters.totals(), [0]);
        counters.add([(0, 5)]);
        assert_eq!(counters.totals(), [5]);
    }

    #[test]
    fn only_what_is_counted_often_has_stripes() {
        let counters = StripedCounters::<1>::default();
        let blocks = || counters.blocks.iter().filter(|block| block.get().is_some()).count();
        (0..CALLS_COLD).for_each(|_| counters.add([(0, 1)]));
        assert_eq!(blocks(), 0);
        (0..2).for_each(|_| counters.add([(0, 1)]));
        assert_eq!((blocks(), counters.total(0)), (1, u64::from(CALLS_COLD) + 2));
    }
}
