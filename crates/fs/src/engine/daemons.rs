//! What threads in the background are woken by, and what they ask of the front end.

use bedplate_block::{Waker, Workers};

use super::{Engine, FlushFrontend};
use crate::MountOptions;

/// How many windows wait for a thread at most; what is beyond them the readers read themselves.
const WINDOWS_WAITING_MAX: usize = 64;

/// How many full pieces wait for a thread at most; what is beyond them the writers write themselves.
const PIECES_WAITING_MAX: usize = 64;

/// Makes what reads windows: threads that come with the first stream.
pub(super) fn window_threads(options: &MountOptions) -> Workers {
    let threads = options.limits.read_window_threads;
    Workers::new("bedplate-window", threads, WINDOWS_WAITING_MAX)
}

/// Makes what writes full pieces of delayed writes: threads that come with the first one.
pub(super) fn piece_threads(options: &MountOptions) -> Workers {
    let threads = options.limits.delayed_piece_threads;
    Workers::new("bedplate-piece", threads, PIECES_WAITING_MAX)
}

impl Engine {
    /// Returns what writes full pieces of delayed writes where a writer is not to wait; `None`: the
    /// writers do.
    pub(crate) fn piece_threads(&self) -> Option<&Workers> {
        (self.limits().delayed_piece_threads > 0).then_some(&self.piece_threads)
    }

    /// Ends the threads that read and write for callers which do not wait. What they leave, others do
    /// by themselves.
    pub(crate) fn stop_helpers(&self) {
        self.window_threads.stop();
        self.piece_threads.stop();
    }

    /// Returns what reads windows where a reader is not to wait.
    pub(crate) fn window_threads(&self) -> &Workers {
        &self.window_threads
    }

    /// Returns what the sync daemon sleeps on.
    pub(crate) fn sync_waker(&self) -> &Waker {
        &self.sync_waker
    }

    /// Returns what the checkpoint scheduler sleeps on.
    pub(crate) fn scheduler_waker(&self) -> &Waker {
        &self.scheduler_waker
    }

    /// States what a front end does before a checkpoint by schedule; the first call counts.
    pub(crate) fn set_flush_frontend(&self, flush: FlushFrontend) {
        drop(self.flush_frontend.set(flush));
    }

    /// Lets writes arrive that a kernel above still holds. No lock is held.
    pub(crate) fn flush_frontend(&self) {
        if let Some(flush) = self.flush_frontend.get() {
            flush();
        }
    }
}
