//! Contexts of asynchronous requests of which requests are taken: those whose events are collected
//! through the library.
//!
//! A context is the address of its ring, which may be another one's later. So each has a number that
//! no other ever has.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const CONTEXTS: usize = 64;

struct Place {
    /// 0: free; [`TAKEN`].
    address: AtomicU64,
    number: AtomicU64,
}

/// The place is being filled. No ring has this address.
const TAKEN: u64 = 1;

static KNOWN: [Place; CONTEXTS] =
    [const { Place { address: AtomicU64::new(0), number: AtomicU64::new(0) } }; CONTEXTS];

static LAST: AtomicU64 = AtomicU64::new(0);

/// Takes one in, where there is room.
pub fn add(address: u64) -> bool {
    debug_assert!(address > TAKEN, "a context is the address of a ring: {address:#x}");
    let is_free =
        |place: &&Place| place.address.compare_exchange(0, TAKEN, Acquire, Relaxed).is_ok();
    let Some(place) = KNOWN.iter().find(is_free) else { return false };
    place.number.store(LAST.fetch_add(1, Relaxed) + 1, Relaxed);
    place.address.store(address, Release);
    true
}

/// Returns the number of one that is known.
#[inline]
pub fn number(address: u64) -> Option<u64> {
    let place = KNOWN.iter().find(|place| place.address.load(Acquire) == address)?;
    (address > TAKEN).then(|| place.number.load(Relaxed))
}

/// Takes one out, and returns its number.
pub fn remove(address: u64) -> Option<u64> {
    let number = number(address)?;
    let is_its = |place: &&Place| place.number.load(Relaxed) == number;
    KNOWN.iter().find(is_its)?.address.store(0, Release);
    Some(number)
}

/// Forgets all: a child of a fork has none of its parent's.
pub fn forget_parents() {
    KNOWN.iter().for_each(|place| place.address.store(0, Relaxed));
}
