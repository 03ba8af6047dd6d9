//! Threads for what an event thread must not wait for, in three lines.
//!
//! - I-LIN-1: a job waits only for jobs of lines before its own, and for event threads; an event
//!   thread waits for no job. So however many jobs of one line wait, and with however few event
//!   threads, what they wait for is carried out.
//!
//! | line | its jobs | what they wait for |
//! | --- | --- | --- |
//! | syncs | flushes, when nearly all event threads are in one already | devices |
//! | caches | messages to the kernel about its pages, attributes and names | a moment (`asks.rs`); callers that hold a page or a directory locked: event threads, or a sync of the directory |
//! | control | requests of commands: checkpoints, rollbacks, tunables | callers that hold a file locked: event threads, syncs, or pages that a direct write has dropped |

use bedplate_block::Workers;

/// The most threads of each line; further jobs wait their turn.
const SYNCS_MAX: usize = 64;
const CACHES_MAX: usize = 64;
const CONTROL_MAX: usize = 16;

/// The three lines.
#[derive(Debug)]
pub(super) struct Lines {
    pub(super) syncs: Workers,
    pub(super) caches: Workers,
    pub(super) control: Workers,
}

impl Lines {
    /// Starts one thread of each, so that no job is refused later for want of a thread.
    pub(super) fn start() -> std::io::Result<Self> {
        let line = |name, threads_max| {
            let workers = Workers::new(name, threads_max, usize::MAX);
            workers.start().map(|()| workers)
        };
        Ok(Self {
            syncs: line("bedplate-syncs", SYNCS_MAX)?,
            caches: line("bedplate-caches", CACHES_MAX)?,
            control: line("bedplate-contr", CONTROL_MAX)?,
        })
    }

    /// Finishes what was handed over, the last line first, and ends the threads.
    pub(super) fn stop(&self) {
        for line in [&self.control, &self.caches, &self.syncs] {
            line.stop();
        }
    }
}
