//! How many requests a front end serves at once, where nothing says.

use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use super::tunables::THREADS_MAX;

/// With fewer no thread is left to answer when a few device operations are slow, whatever the
/// number of processors.
const THREADS_DEFAULT_MIN: u64 = 16;

/// Returns how many requests a front end serves at once by default: twice the processors, at least
/// 16.
pub(super) fn threads_default() -> u32 {
    // Asked once: the answer takes a dozen files of control groups, and there is a question for
    // every tunable of every mount.
    static PROCESSORS: OnceLock<u64> = OnceLock::new();
    let processors =
        *PROCESSORS.get_or_init(|| available_parallelism().map_or(1, NonZero::get) as u64);
    u32::try_from((2 * processors).clamp(THREADS_DEFAULT_MIN, THREADS_MAX))
        .expect("within THREADS_MAX")
}
