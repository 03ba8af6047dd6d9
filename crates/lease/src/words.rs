//! Shared memory as numbered words.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Memory of 64-bit words that other processes read and write meanwhile.
///
/// A trait so that models run without shared memory and with a memory order of their own. A mapping
/// that dereferences to `[AtomicU64]` has it already.
pub trait Words {
    /// How many words there are.
    fn count(&self) -> usize;
    /// Reads a word; one that does not exist is 0, because places are computed from what another
    /// process wrote.
    fn load(&self, at: usize, order: Ordering) -> u64;
    /// Writes a word, which has to exist.
    fn store(&self, at: usize, value: u64, order: Ordering);
    /// Writes a word, which has to exist, and returns what it was, in sequential order.
    fn swap(&self, at: usize, value: u64) -> u64;
    /// Writes `new` where `old` stands, and tells whether it did.
    fn replace(&self, at: usize, old: u64, new: u64) -> bool;
    /// Adds to a word, which has to exist.
    fn add(&self, at: usize, by: u64);
    /// Orders all before with all after, for all threads.
    fn fence(&self);
    /// Orders all loads before with all after.
    fn acquire(&self);
}

impl<M: Deref<Target = [AtomicU64]>> Words for M {
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.get(at).map_or(0, |word| word.load(order))
    }

    #[inline]
    fn store(&self, at: usize, value: u64, order: Ordering) {
        self[at].store(value, order);
    }

    #[inline]
    fn swap(&self, at: usize, value: u64) -> u64 {
        self[at].swap(value, Ordering::SeqCst)
    }

    fn replace(&self, at: usize, old: u64, new: u64) -> bool {
        self[at].compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    #[inline]
    fn add(&self, at: usize, by: u64) {
        self[at].fetch_add(by, Ordering::Relaxed);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn acquire(&self) {
        fence(Ordering::Acquire);
    }
}
