//! Whether a number may be in a set, answered without a lock.
//!
//! The set changes under the allocator's mutex. What asks meanwhile hears what was true a moment
//! ago; a wrong answer costs a turn of the mutex, or a place beside a neighbour.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Counts the numbers of a set, several to a counter.
#[derive(Debug)]
pub(super) struct Filter {
    bits: u32,
    counts: Box<[AtomicU8]>,
}

/// Spreads numbers over a table of so many bits.
pub(super) fn slot(number: u64, bits: u32) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - bits)) as usize
}

impl Default for Filter {
    fn default() -> Self {
        Self::of(0, 1)
    }
}

impl Filter {
    /// Makes the filter of an empty set of at most so many numbers; of more than two to the power
    /// of `bits_max` several share a counter.
    pub(super) fn of(numbers: u64, bits_max: u32) -> Self {
        let bits = numbers.max(2).next_power_of_two().ilog2().min(bits_max);
        Self { bits, counts: (0..1 << bits).map(|_| AtomicU8::new(0)).collect() }
    }

    fn count(&self, number: u64) -> &AtomicU8 {
        &self.counts[slot(number, self.bits)]
    }

    /// Adds a number that is not in the set. The caller holds the allocator's mutex, as does that
    /// of [`remove`](Self::remove).
    pub(super) fn add(&self, number: u64) {
        let count = self.count(number);
        count.store(count.load(Relaxed).saturating_add(1), Relaxed);
    }

    /// Removes a number of the set. A counter that ran over stays.
    pub(super) fn remove(&self, number: u64) {
        let count = self.count(number);
        match count.load(Relaxed) {
            u8::MAX => {}
            more => count.store(more.checked_sub(1).expect("it was added"), Relaxed),
        }
    }

    /// Whether a number may be in the set.
    pub(super) fn may_have(&self, number: u64) -> bool {
        self.count(number).load(Relaxed) > 0
    }
}
