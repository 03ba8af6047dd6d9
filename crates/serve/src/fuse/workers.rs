//! Threads for what an event thread must not wait for.
//!
//! Two kinds of work come here: a sync when nearly all event threads are busy with syncs already, so that requests that need no flush go on;
//! and everything that waits for the kernel to take pages out of its cache, which itself may wait for reads and writes that only the event
//! threads can answer. An event thread never waits for a worker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use parking_lot::{Condvar, Mutex};

/// The most threads; further work waits its turn.
const THREADS_MAX: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    stopping: bool,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    work: Condvar,
}

/// A pool that starts with one thread and grows to [`THREADS_MAX`] as work asks for it.
pub(super) struct Workers {
    inner: Arc<Inner>,
}

impl Workers {
    /// Starts the first thread.
    pub(super) fn start() -> std::io::Result<Self> {
        let workers = Self { inner: Arc::new(Inner::default()) };
        let first = workers.spawn()?;
        workers.inner.state.lock().threads.push(first);
        Ok(workers)
    }

    /// Queues a job. After [`stop`](Self::stop) it is dropped, and the reply in it says so to the kernel.
    pub(super) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.inner.state.lock();
        if state.stopping {
            return;
        }
        state.queue.push_back(Box::new(job));
        if state.queue.len() > state.idle
            && state.threads.len() < THREADS_MAX
            && let Ok(thread) = self.spawn()
        {
            state.threads.push(thread);
        }
        drop(state);
        self.inner.work.notify_one();
    }

    /// Finishes what is queued and ends the threads.
    pub(super) fn stop(&self) {
        let threads = {
            let mut state = self.inner.state.lock();
            state.stopping = true;
            std::mem::take(&mut state.threads)
        };
        self.inner.work.notify_all();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a worker thread of the mount panicked");
            }
        }
    }

    fn spawn(&self) -> std::io::Result<JoinHandle<()>> {
        let inner = Arc::clone(&self.inner);
        Builder::new().name("bedplate-worker".into()).spawn(move || inner.work_until_stopped())
    }
}

impl Inner {
    fn work_until_stopped(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
            } else if state.stopping {
                return;
            } else {
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn jobs_that_wait_for_each_other_all_run() {
        let workers = Workers::start().unwrap();
        let barrier = Arc::new(Barrier::new(20));
        for _ in 0..20 {
            let barrier = Arc::clone(&barrier);
            workers.submit(move || {
                barrier.wait();
            });
        }
        workers.stop();
    }

    #[test]
    fn stop_finishes_what_is_queued() {
        let workers = Workers::start().unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..1000 {
            let done = Arc::clone(&done);
            workers.submit(move || {
                done.fetch_add(1, Relaxed);
            });
        }
        workers.stop();
        assert_eq!(done.load(Relaxed), 1000);
        assert!(workers.inner.state.lock().threads.is_empty());
    }
}
