//! What every read and write of a file counts, at the price of a load and a store.
//!
//! ```text
//!   thread ──► its slot ──► the file's stripe for it: load, add, store          (slots 0 ‥ 15: one thread's own)
//!                      └──► a stripe that several threads use: locked add       (slots 16 ‥ 23, for the threads beyond)
//!   a file that is seldom read or written has no stripes: locked adds to its base
//!   total = base + all stripes;   reset: base = − all stripes
//! ```
//!
//! - I-TLY-1: a stripe of an own slot is written by the one thread that holds the slot; a slot changes hands under a mutex, so its next holder sees what the
//!   one before stored, and no count is lost.
//! - I-TLY-2: a reset subtracts and never stores into a stripe, so it loses no count that is made at that moment.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};

use parking_lot::Mutex;

use super::{CounterSnapshot, counting};

/// Slots that belong to one thread each, as long as it lives.
const SLOTS_OWN: usize = 2 * STRIPES;
/// Stripes that a file gets at a time.
const STRIPES: usize = 8;
/// Blocks of stripes: those of the own slots, and one for all other threads.
const BLOCKS: usize = SLOTS_OWN / STRIPES + 1;
/// How often a file is counted for before it gets stripes: ten thousand files that are looked into once take no memory for it.
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

/// What is counted, and where in a stripe.
#[derive(Debug, Clone, Copy)]
enum Count {
    /// Those past the cache; the others are counted once, as hits or misses of the cache.
    Reads,
    ReadBytes,
    Writes,
    WrittenBytes,
    /// Of reads past the cache and writes, those that went through a bounce buffer or the cache. So
    /// a direct one counts nothing more.
    Indirect,
    CacheHits,
    CacheMisses,
}

const COUNTS: [Count; 7] = [
    Count::Reads,
    Count::ReadBytes,
    Count::Writes,
    Count::WrittenBytes,
    Count::Indirect,
    Count::CacheHits,
    Count::CacheMisses,
];

/// A cache line, and the one beside it that processors fetch along with it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe([AtomicU64; COUNTS.len()]);

/// The counts of one file. Where the stripes are comes first, on a line that is seldom written.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct FileCounters {
    blocks: [OnceLock<Box<[Stripe; STRIPES]>>; BLOCKS],
    /// How often something was counted in the base.
    calls: AtomicU32,
    base: [AtomicU64; COUNTS.len()],
}

impl FileCounters {
    #[inline]
    fn add<const N: usize>(&self, counts: [(Count, u64); N]) {
        if !counting() {
            return;
        }
        let slot = SLOT.get();
        let Some(stripes) = self.blocks.get(slot / STRIPES).and_then(OnceLock::get) else {
            return self.add_cold(slot, counts);
        };
        let stripe = &stripes[slot % STRIPES].0;
        for (count, n) in counts {
            let value = &stripe[count as usize];
            if slot < SLOTS_OWN {
                value.store(value.load(Relaxed).wrapping_add(n), Relaxed);
            } else {
                value.fetch_add(n, Relaxed);
            }
        }
    }

    #[cold]
    fn add_cold<const N: usize>(&self, slot: usize, counts: [(Count, u64); N]) {
        for (count, n) in counts {
            self.base[count as usize].fetch_add(n, Relaxed);
        }
        let slot = if slot == NO_SLOT { take_slot() } else { slot };
        if self.calls.load(Relaxed) >= CALLS_COLD {
            self.blocks[slot / STRIPES].get_or_init(Box::default);
        } else {
            self.calls.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn count_read(&self, bytes: usize) {
        self.add([(Count::Reads, 1), (Count::ReadBytes, bytes as u64)]);
    }

    /// Counts a read through the cache.
    pub(crate) fn count_cached_read(&self, hit: bool, bytes: usize) {
        self.add([
            (if hit { Count::CacheHits } else { Count::CacheMisses }, 1),
            (Count::ReadBytes, bytes as u64),
        ]);
    }

    pub(crate) fn count_write(&self, bytes: usize) {
        self.add([(Count::Writes, 1), (Count::WrittenBytes, bytes as u64)]);
    }

    pub(crate) fn count_indirect(&self) {
        self.add([(Count::Indirect, 1)]);
    }

    /// The sum of what the stripes hold.
    fn striped(&self, count: Count) -> u64 {
        let stripes = self.blocks.iter().filter_map(OnceLock::get).flat_map(|block| block.iter());
        stripes.fold(0, |sum, stripe| sum.wrapping_add(stripe.0[count as usize].load(Relaxed)))
    }

    fn total(&self, count: Count) -> u64 {
        // The base first: a reader that sees what a reset subtracted sees the stripes at least as
        // the reset saw them.
        self.base[count as usize].load(Acquire).wrapping_add(self.striped(count))
    }

    /// Begins anew at 0 (I-TLY-2).
    pub(crate) fn reset(&self) {
        for count in COUNTS {
            let base = &self.base[count as usize];
            let mut seen = base.load(Acquire);
            while let Err(now) =
                base.compare_exchange(seen, self.striped(count).wrapping_neg(), AcqRel, Acquire)
            {
                seen = now;
            }
        }
    }

    /// Completes a snapshot of the other counters.
    pub(crate) fn complete(&self, rest: &CounterSnapshot) -> CounterSnapshot {
        let [reads, read_bytes, writes, written_bytes, indirect, cache_hits, cache_misses] =
            COUNTS.map(|count| self.total(count));
        let direct = (reads + writes).saturating_sub(indirect);
        let reads = reads + cache_hits + cache_misses;
        CounterSnapshot {
            reads,
            read_bytes,
            writes,
            written_bytes,
            direct,
            cache_hits,
            cache_misses,
            ..*rest
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn snapshot(tally: &FileCounters) -> CounterSnapshot {
        tally.complete(&CounterSnapshot::default())
    }

    fn stripes(tally: &FileCounters) -> usize {
        tally.blocks.iter().filter(|block| block.get().is_some()).count() * STRIPES
    }

    /// I-TLY-1: more threads than slots, in waves, so that slots change hands.
    #[test]
    fn i_tly_1_no_count_is_lost() {
        let tallies = [FileCounters::default(), FileCounters::default()];
        for _ in 0..20 {
            std::thread::scope(|scope| {
                for thread in 0..SLOTS_OWN + 2 * STRIPES {
                    let tally = &tallies[thread % 2];
                    scope.spawn(move || {
                        for n in 0..2000 {
                            tally.count_read(n);
                            tally.count_write(1);
                            tally.count_cached_read(n % 2 == 0, 3);
                        }
                    });
                }
            });
        }
        let calls = 20 * (SLOTS_OWN as u64 / 2 + STRIPES as u64) * 2000;
        for tally in &tallies {
            let found = snapshot(tally);
            assert_eq!((found.reads, found.writes, found.written_bytes), (2 * calls, calls, calls));
            assert_eq!((found.cache_hits, found.cache_misses), (calls / 2, calls / 2));
            assert_eq!(found.read_bytes, calls / 2000 * (1999 * 2000 / 2) + 3 * calls);
        }
    }

    /// I-TLY-2: a reset that stored zeros into the stripes would lose counts, or bring back what it
    /// took away.
    #[test]
    fn i_tly_2_a_reset_takes_no_count_away() {
        const THREADS: u64 = 3;
        let (tally, stop) = (FileCounters::default(), AtomicBool::new(false));
        for block in &tally.blocks {
            block.get_or_init(Box::default);
        }
        let (mut calls, mut seen_max) = (0, 0);
        std::thread::scope(|scope| {
            let count = || {
                let mut calls = 0_u64;
                while !stop.load(Relaxed) {
                    tally.count_write(1);
                    calls += 1;
                }
                calls
            };
            let counters: Vec<_> = (0..THREADS).map(|_| scope.spawn(count)).collect();
            for _ in 0..2000 {
                tally.reset();
                seen_max = seen_max.max(snapshot(&tally).writes);
            }
            stop.store(true, Relaxed);
            calls = counters.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>();
        });
        assert!(seen_max <= calls, "{seen_max} of {calls}: a count went below zero");
        // A thread's first call finds its slot.
        assert_eq!(tally.striped(Count::Writes), calls - THREADS, "I-TLY-2");
        assert!(snapshot(&tally).writes <= calls);
        tally.reset();
        assert_eq!(snapshot(&tally), CounterSnapshot::default());
        tally.count_write(5);
        assert_eq!((snapshot(&tally).writes, snapshot(&tally).written_bytes), (1, 5));
    }

    #[test]
    fn only_a_busy_file_has_stripes() {
        let tally = FileCounters::default();
        (0..CALLS_COLD).for_each(|_| tally.count_read(1));
        assert_eq!(stripes(&tally), 0);
        (0..2).for_each(|_| tally.count_read(1));
        assert_eq!(stripes(&tally), STRIPES);
        assert_eq!(snapshot(&tally).reads, u64::from(CALLS_COLD) + 2);
        assert!(size_of::<FileCounters>() <= 112, "{} bytes a file", size_of::<FileCounters>());
    }
}
