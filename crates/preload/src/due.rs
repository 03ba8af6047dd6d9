//! What is asked for less and less often where it is lost soon.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// The next request waits for more writes each time that what was asked for was lost soon, up to so
/// many.
const SKIP_MAX: u32 = 255;

/// Counts one write off those that skip something; where none is left, returns whether this one is to
/// do it, and has more skip it the next time.
pub fn is_due(skip: &AtomicU32, step: &AtomicU32) -> bool {
    let left = skip.load(Relaxed);
    if left > 0 {
        skip.store(left - 1, Relaxed);
        return false;
    }
    let next = step.load(Relaxed);
    skip.store(next, Relaxed);
    step.store((next * 2 + 1).min(SKIP_MAX), Relaxed);
    true
}

/// The next write is to do it, too.
pub fn make_due(skip: &AtomicU32, step: &AtomicU32) {
    skip.store(0, Relaxed);
    step.store(0, Relaxed);
}
