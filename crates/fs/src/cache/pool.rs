//! A few threads that work for the cache in the background. They come with the first job, sleep when there is none, and end with the cache.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

pub(super) type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub(super) struct Pool {
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
    closing: bool,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} queued, {} of {} threads idle", self.queue.len(), self.idle, self.threads.len())
    }
}

impl Pool {
    pub(super) fn new(name: &'static str, threads_max: usize) -> Self {
        let shared = Shared { name, state: Mutex::default(), wake: Condvar::new() };
        Self { shared: Arc::new(shared), threads_max, queued_max: threads_max * 4 }
    }

    /// Hands a job over. With no threads configured the caller runs it; when the queue is full it is dropped. Returns whether it ran or will.
    pub(super) fn submit(&self, job: Job) -> bool {
        if self.threads_max == 0 {
            job();
            return true;
        }
        let mut state = self.shared.state.lock();
        if state.idle <= state.queue.len() && state.threads.len() < self.threads_max {
            let shared = Arc::clone(&self.shared);
            match std::thread::Builder::new().name(self.shared.name.into()).spawn(move || shared.work()) {
                Ok(thread) => state.threads.push(thread),
                Err(error) => tracing::warn!(%error, "no further thread for the cache"),
            }
        }
        if state.threads.is_empty() || state.queue.len() >= self.queued_max {
            drop(state);
            return false;
        }
        state.queue.push_back(job);
        drop(state);
        self.shared.wake.notify_one();
        true
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
            } else if state.closing {
                return;
            } else {
                state.idle += 1;
                self.wake.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closing = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.shared.wake.notify_all();
        let me = std::thread::current().id();
        // The cache may be dropped by the last job that used it.
        for thread in threads.into_iter().filter(|t| t.thread().id() != me) {
            if thread.join().is_err() {
                tracing::error!(pool = self.shared.name, "a thread of the cache had panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn jobs_run_and_the_queue_is_bounded() {
        let pool = Pool::new("test", 1);
        let (hold, held) = mpsc::channel::<()>();
        let (done, ran) = mpsc::channel();
        assert!(pool.submit(Box::new(move || held.recv().expect("released"))));
        let accepted = (0..10)
            .filter(|&i| {
                pool.submit(Box::new({
                    let done = done.clone();
                    move || done.send(i).expect("heard")
                }))
            })
            .count();
        assert!((3..=4).contains(&accepted), "one runs, four wait; took {accepted}");
        hold.send(()).expect("held");
        drop(pool);
        drop(done);
        assert_eq!(ran.iter().count(), accepted, "closing runs what was accepted");
    }
}
