//! Which of the threads that have nothing to do wait in the kernel for the next request: few.
//!
//! ```text
//!   done with a request ──► a place in the kernel? ── yes ──► read ──► a request
//!                                     │ no                              │ none waits in the kernel now?
//!                                     ▼                                 ▼
//!                                rests here  ◄──────────────── wakes one that rests
//! ```
//!
//! The kernel wakes the thread that has waited longest. Were all of them to wait there, each request
//! of a program that makes one after the other would be served by the thread whose memory has been
//! out of the processor's caches for longest. For the same reason the one that has rested for the
//! shortest time is woken here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use parking_lot::{Condvar, Mutex};

/// The threads of a connection that have nothing to do. Any number of threads may use it at once.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// How many may wait in the kernel.
    places: u32,
    in_kernel: AtomicU32,
    /// A leaf.
    resting: Mutex<Resting>,
}

#[derive(Debug, Default)]
struct Resting {
    /// What wakes each, the last one to rest at the end.
    threads: Vec<Arc<Condvar>>,
    /// The connection has ended: none rests any more.
    is_over: bool,
}

/// A thread that may wait in the kernel, until it is dropped.
pub(crate) struct Turn<'a>(&'a Waiting);

impl Default for Waiting {
    /// A place for each processor, since further threads could not run at once, and one more. A
    /// single caller makes requests without waiting for their answers, such as RELEASE, and its next
    /// one meanwhile: neither is to leave the kernel without a thread, whereupon one is woken.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(2, |count| count.get().max(2));
        Self::new(u32::try_from(processors).map_or(u32::MAX, |count| count.saturating_add(1)))
    }
}

impl Waiting {
    fn new(places: u32) -> Self {
        Self { places, in_kernel: AtomicU32::new(0), resting: Mutex::default() }
    }

    /// Rests until the calling thread may wait in the kernel.
    pub(crate) fn turn(&self) -> Turn<'_> {
        if !self.enters() {
            let mut resting = self.resting.lock();
            // Asked again under the lock, which the last one that leaves takes to wake another.
            while !resting.is_over && !self.enters() {
                let wake = Arc::new(Condvar::new());
                resting.threads.push(Arc::clone(&wake));
                wake.wait(&mut resting);
            }
            if resting.is_over {
                self.in_kernel.fetch_add(1, SeqCst);
            }
        }
        Turn(self)
    }

    /// Has all threads look for requests, of which there are no more.
    pub(crate) fn end(&self) {
        let mut resting = self.resting.lock();
        resting.is_over = true;
        for wake in resting.threads.drain(..) {
            wake.notify_one();
        }
    }

    fn enters(&self) -> bool {
        let one_more = |waiting| (waiting < self.places).then_some(waiting + 1);
        self.in_kernel.fetch_update(SeqCst, SeqCst, one_more).is_ok()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let before = self.0.in_kernel.fetch_sub(1, SeqCst);
        assert!(before > 0, "a thread that leaves has entered");
        if before == 1
            && let Some(wake) = self.0.resting.lock().threads.pop()
        {
            wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{JoinHandle, spawn};
    use std::time::Duration;

    use super::*;

    /// Longer than any wake-up takes.
    const LONG: Duration = Duration::from_secs(20);

    /// A thread that has its turn from one word to the next.
    struct Held {
        leave: Sender<()>,
        thread: JoinHandle<()>,
    }

    /// Starts threads that wait for their turn; each tells its number when it has it.
    fn started(waiting: &Arc<Waiting>, count: usize) -> (Vec<Held>, Receiver<usize>) {
        let (has_turn, told) = channel();
        let start = |number| {
            let ((leave, heard), has_turn) = (channel(), has_turn.clone());
            let waiting = Arc::clone(waiting);
            let thread = spawn(move || {
                let turn = waiting.turn();
                has_turn.send(number).unwrap();
                heard.recv().unwrap();
                drop(turn);
            });
            Held { leave, thread }
        };
        ((0..count).map(start).collect(), told)
    }

    fn resting(waiting: &Waiting, count: usize) {
        while waiting.resting.lock().threads.len() != count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn two_wait_and_the_last_that_leaves_wakes_one() {
        let waiting = Arc::new(Waiting::new(2));
        let (held, told) = started(&waiting, 5);
        let next = || told.recv_timeout(LONG).expect("a thread has its turn");
        let (one, other) = (next(), next());
        resting(&waiting, 3);
        held[one].leave.send(()).unwrap();
        while waiting.in_kernel.load(SeqCst) != 1 {
            std::thread::yield_now();
        }
        resting(&waiting, 3);
        assert!(told.try_recv().is_err(), "one still waits, and none is woken");
        held[other].leave.send(()).unwrap();
        let woken = next();
        resting(&waiting, 2);
        waiting.end();
        let last = [next(), next()];
        for number in [woken, last[0], last[1]] {
            held[number].leave.send(()).unwrap();
        }
        held.into_iter().for_each(|held| held.thread.join().unwrap());
        assert_eq!(waiting.in_kernel.load(SeqCst), 0);
    }

    #[test]
    fn the_one_that_has_rested_for_the_shortest_time_is_woken() {
        let waiting = Arc::new(Waiting::new(1));
        let (first, told) = started(&waiting, 1);
        told.recv_timeout(LONG).expect("the first has its turn");
        let rests = |count| {
            let thread = started(&waiting, 1);
            resting(&waiting, count);
            thread
        };
        let rested: Vec<_> = (1..=3).map(rests).collect();
        first[0].leave.send(()).unwrap();
        for (held, told) in rested.iter().rev() {
            told.recv_timeout(LONG).expect("it has its turn");
            held[0].leave.send(()).unwrap();
        }
        let all = rested.into_iter().flat_map(|(held, _)| held).chain(first);
        all.for_each(|held| held.thread.join().unwrap());
    }

    /// Requests that come one by one are each taken, whichever threads rest.
    #[test]
    fn no_request_waits_while_threads_rest() {
        const REQUESTS: u32 = 20_000;
        let waiting = Arc::new(Waiting::new(2));
        let (requests, kernel) = channel();
        let kernel = Arc::new(Mutex::new(kernel));
        let (answer, answers) = channel();
        let serve = || {
            let (waiting, kernel, answer) =
                (Arc::clone(&waiting), Arc::clone(&kernel), answer.clone());
            spawn(move || {
                loop {
                    let turn = waiting.turn();
                    let request: Result<u32, _> = kernel.lock().recv();
                    if request.is_err() {
                        waiting.end();
                    }
                    drop(turn);
                    let Ok(request) = request else { return };
                    answer.send(request).unwrap();
                }
            })
        };
        let threads: Vec<_> = (0..6).map(|_| serve()).collect();
        for request in 0..REQUESTS {
            requests.send(request).unwrap();
            if request % 7 == 0 {
                continue;
            }
            answers.recv_timeout(LONG).expect("a request is taken");
        }
        drop(requests);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(answers.try_iter().count() as u32, REQUESTS.div_ceil(7));
    }
}
