//! What threads in the background are woken by, and what they ask of the front end.

use bedplate_block::Waker;

use super::{Engine, FlushFrontend};

impl Engine {
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
