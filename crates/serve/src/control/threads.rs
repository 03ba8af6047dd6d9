//! How busy the threads are that serve a mount, as it travels.

use serde::{Deserialize, Serialize};

/// How busy the threads are that serve a mount.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadReport {
    /// How requests come: `device` or `io_uring`.
    pub transport: String,
    /// Over io_uring the processors that the threads are divided among, each of which serves what is
    /// asked on it; 1 through the device, where any thread serves any request.
    pub processors: usize,
    /// Threads that there are.
    pub threads: u32,
    /// Threads that there are to be.
    pub wanted: u32,
    /// Threads that serve a request now.
    pub busy: u32,
    /// Since the threads were started.
    pub total: ThreadActivity,
    /// Of the last 10 to 15 seconds, or as long as the threads are there.
    pub recent: ThreadActivity,
}

/// What the threads did in a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadActivity {
    /// How long the time was.
    pub seconds: f64,
    /// The most threads that were busy at once; over io_uring the sum over the processors of that.
    pub busy_max: u32,
    /// Requests served.
    pub requests: u64,
    /// How long all threads were busy, so that a request that came had to wait, in nanoseconds; over
    /// io_uring of the processor where that was longest.
    pub all_busy_ns: u64,
    /// How long threads ran on a processor, in nanoseconds; `None` where the system does not tell.
    pub cpu_run_ns: Option<u64>,
    /// How long threads could have run and waited for a processor, in nanoseconds.
    pub cpu_wait_ns: Option<u64>,
}

impl ThreadActivity {
    /// Returns the share of the time that all threads were busy, from 0 to 1.
    #[must_use]
    pub fn all_busy_share(&self) -> f64 {
        if self.seconds <= 0.0 {
            return 0.0;
        }
        (self.all_busy_ns as f64 / 1e9 / self.seconds).min(1.0)
    }

    /// Returns whether threads waited for a processor for more than half as long as they ran.
    #[must_use]
    pub fn lacks_processors(&self) -> bool {
        matches!((self.cpu_run_ns, self.cpu_wait_ns), (Some(run), Some(wait)) if wait > run / 2)
    }
}
