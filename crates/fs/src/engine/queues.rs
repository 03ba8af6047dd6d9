//! The queues with I/O in flight, for threads that wait for locks that it holds.

use std::sync::Weak;

use parking_lot::Mutex;

/// A queue, as seen by a thread that waits for a lock that its I/O holds.
pub(crate) trait HelpedQueue: Send + Sync {
    /// Completes what is in flight, unless a thread works on the queue at this moment.
    fn help(&self);
}

/// The queues of a file system, for threads that wait for what they hold.
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

    /// Returns whether a queue was ever opened.
    pub(crate) fn were_opened(&self) -> bool {
        // What is gone leaves the list when the next one comes.
        !self.queues.lock().is_empty()
    }

    /// Completes what is in flight on queues that no thread works on at this moment.
    pub(crate) fn help(&self) {
        let queues: Vec<_> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        queues.iter().for_each(|queue| queue.help());
    }
}
