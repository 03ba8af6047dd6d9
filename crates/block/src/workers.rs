//! Threads that run jobs in the background. They come with the first job, sleep when there is none,
//! and end with their owner.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads that grows from none to a bound as jobs ask for it.
///
/// Jobs begin in the order in which they were handed over, and may wait for each other as long as
/// there are no more of them than threads. All methods may be called from any thread. Dropping it
/// is [`stop`](Self::stop); the last job may be the one that drops it.
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
    threads_max: usize,
    queued_max: usize,
}

#[derive(Debug)]
struct Shared {
    name: &'static str,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    idle: usize,
    stopping: bool,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} queued, {} of {} threads idle",
            self.queue.len(),
            self.idle,
            self.threads.len()
        )
    }
}

impl Workers {
    /// Makes a pool of at most `threads_max` threads, each called `name` (at most 15 bytes are
    /// shown), in front of which at most `queued_max` jobs wait.
    #[must_use]
    pub fn new(name: &'static str, threads_max: usize, queued_max: usize) -> Self {
        let shared = Shared { name, state: Mutex::default(), wake: Condvar::new() };
        Self { shared: Arc::new(shared), threads_max, queued_max }
    }

    /// Starts the first thread now. From then on a job is refused for want of a thread no more.
    ///
    /// # Errors
    /// That of the system, which has no thread to give.
    pub fn start(&self) -> std::io::Result<()> {
        let first = self.spawn()?;
        self.shared.state.lock().threads.push(first);
        Ok(())
    }

    /// Hands a job over, and returns whether it ran or will: not when the line in front of the
    /// threads is full, when there is not one thread and the system gives none, or after
    /// [`stop`](Self::stop). A pool of 0 threads has its caller run the job.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> bool {
        if self.threads_max == 0 {
            job();
            return true;
        }
        let mut state = self.shared.state.lock();
        if state.stopping {
            return false;
        }
        if state.idle <= state.queue.len() && state.threads.len() < self.threads_max {
            match self.spawn() {
                Ok(thread) => state.threads.push(thread),
                Err(error) => tracing::warn!(%error, pool = self.shared.name, "no further thread"),
            }
        }
        if state.threads.is_empty() || state.queue.len() >= self.queued_max {
            return false;
        }
        state.queue.push_back(Box::new(job));
        drop(state);
        self.shared.wake.notify_one();
        true
    }

    /// Finishes what was handed over and ends the threads. Later jobs are refused.
    pub fn stop(&self) {
        let mut state = self.shared.state.lock();
        state.stopping = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.wake.notify_all();
        let me = std::thread::current().id();
        for thread in threads.into_iter().filter(|t| t.thread().id() != me) {
            if thread.join().is_err() {
                tracing::error!(pool = self.shared.name, "a background thread had panicked");
            }
        }
    }

    fn spawn(&self) -> std::io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        Builder::new().name(self.shared.name.into()).spawn(move || shared.work())
    }
}

impl Shared {
    fn work(&self) {
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
                self.wake.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::sync::{Barrier, mpsc};

    use super::*;

    #[test]
    fn jobs_run_and_the_line_is_bounded() {
        let workers = Workers::new("test", 1, 4);
        let (hold, held) = mpsc::channel::<()>();
        let (done, ran) = mpsc::channel();
        assert!(workers.submit(move || held.recv().expect("released")));
        let accepted = (0..10)
            .filter(|&i| {
                let done = done.clone();
                workers.submit(move || done.send(i).expect("heard"))
            })
            .count();
        assert!((3..=4).contains(&accepted), "one runs, four wait; took {accepted}");
        hold.send(()).expect("held");
        drop(workers);
        drop(done);
        assert_eq!(ran.iter().count(), accepted, "the end runs what was accepted");
    }

    #[test]
    fn jobs_that_wait_for_each_other_all_run() {
        let workers = Workers::new("test", 20, usize::MAX);
        let barrier = Arc::new(Barrier::new(20));
        for _ in 0..20 {
            let barrier = Arc::clone(&barrier);
            assert!(workers.submit(move || {
                barrier.wait();
            }));
        }
        workers.stop();
    }

    #[test]
    fn stop_finishes_what_is_queued_and_refuses_the_rest() {
        let workers = Workers::new("test", 3, usize::MAX);
        workers.start().expect("a thread");
        let done = Arc::new(AtomicUsize::new(0));
        let count = |done: &Arc<AtomicUsize>| {
            let done = Arc::clone(done);
            move || {
                done.fetch_add(1, Relaxed);
            }
        };
        for _ in 0..1000 {
            assert!(workers.submit(count(&done)));
        }
        workers.stop();
        assert_eq!(done.load(Relaxed), 1000);
        assert!(workers.shared.state.lock().threads.is_empty());
        assert!(!workers.submit(count(&done)));
    }

    #[test]
    fn without_threads_the_caller_works() {
        let here = std::thread::current().id();
        let (told, hears) = mpsc::channel();
        assert!(
            Workers::new("test", 0, 0)
                .submit(move || told.send(std::thread::current().id()).expect("heard"))
        );
        assert_eq!(hears.recv(), Ok(here));
    }
}
