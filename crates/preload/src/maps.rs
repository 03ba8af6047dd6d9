//! Where the program has files of mounts mapped, which no I/O under a lease may read or write.
//!
//! What is unmapped stays noted: its place costs speed when it is used again, and no more.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicUsize, Ordering};

const RANGES: usize = 64;

/// First and end of a range; the end is written last.
static NOTED: [[AtomicUsize; 2]; RANGES] = [const { [const { AtomicUsize::new(0) }; 2] }; RANGES];

/// How many ranges there were to note.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Notes a mapping.
pub fn note(at: usize, len: usize) {
    let is_same = |range: &[AtomicUsize; 2]| {
        range[0].load(Relaxed) <= at && range[1].load(Acquire) >= at.saturating_add(len)
    };
    if NOTED.iter().any(is_same) {
        return;
    }
    // Counted first: a range that is not written yet holds everything.
    if let Some(range) = NOTED.get(COUNT.fetch_add(1, Ordering::SeqCst)) {
        range[0].store(at, Relaxed);
        range[1].store(at.saturating_add(len), Release);
    }
}

/// Tells whether memory may lie in a mapping; of more mappings than there is room for all may.
#[inline]
pub fn may_hold(at: usize, len: usize) -> bool {
    let count = COUNT.load(Ordering::SeqCst);
    count != 0 && (count > RANGES || holds(at, at.saturating_add(len), count))
}

#[cold]
fn holds(at: usize, end: usize, count: usize) -> bool {
    NOTED[..count].iter().any(|range| {
        let last = range[1].load(Acquire);
        last == 0 || (range[0].load(Relaxed) < end && at < last)
    })
}
