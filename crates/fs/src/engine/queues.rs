//! The queues with I/O in flight, for those who wait for locks that it holds.

use std::sync::Weak;

use parking_lot::Mutex;

/// A queue, as who waits for a lock that its I/O holds sees it.
pub(crate) trait HelpedQueue: Send + Sync {
    /// Completes what is in flight, unless somebody works on the queue at this moment.
    fn help(&self);
}

/// The queues of a file system, for those who wait for what they hold.
#[derive(Default)]
pub(crate) struct Queues {
    queues: Mutex<Vec<Weak<dyn HelpedQueue>>>,
}

impl Queues {
    pub(crate) fn add(&self, queue: Weak<dyn HelpedQueue>) {
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(queue);
    }

    /// Completes what is in flight on queues that nobody works on at this moment.
    pub(crate) fn help(&self) {
        let queues: Vec<_> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        queues.iter().for_each(|queue| queue.help());
    }
}
