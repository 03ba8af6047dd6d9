//! The threads that read requests from `/dev/fuse`, as many as are wanted at the moment.
//!
//! ```text
//!   set_count(more) ── further threads ──► run(): read, serve, read, …
//!   set_count(fewer) ── the load's bound ──► a thread that is done with a request and is one too many ends
//! ```
//!
//! A thread that waits for a request is not woken to end: it serves the next one, and ends then.

use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};

use parking_lot::Mutex;

use crate::channel::Channel;
use crate::load::{Load, Seat};
use crate::message::{Message, Received};
use crate::reply::{Reply, Serve};
use crate::serving::{Ended, joined, now_serving};
use crate::waiting::Waiting;

/// What the names of the threads begin with.
const NAME: &str = "fuse-dev-";

/// The threads of a connection.
#[derive(Debug)]
pub struct Threads {
    pool: Arc<Pool>,
}

struct Pool {
    first: Arc<Channel>,
    payload_bytes: usize,
    serve: Serve,
    load: Arc<Load>,
    waiting: Waiting,
    /// Taken before the list of places in the load.
    started: Mutex<Started>,
}

#[derive(Debug)]
struct Started {
    threads: Vec<JoinHandle<Ended>>,
    /// How many were ever started.
    count: usize,
    /// Of threads that are not in the list any more: the first error.
    ended: Ended,
    /// The connection has ended, and no thread is to start.
    is_over: bool,
}

/// Sets how many threads serve a connection, as long as it lasts.
#[derive(Debug, Clone, Default)]
pub struct ThreadCount {
    pool: Weak<Pool>,
}

impl Threads {
    pub(crate) fn start(
        first: &Arc<Channel>,
        count: usize,
        payload_bytes: usize,
        serve: &Serve,
    ) -> io::Result<Self> {
        let started = Started { threads: Vec::new(), count: 0, ended: Ok(()), is_over: false };
        let pool = Arc::new(Pool {
            first: Arc::clone(first),
            payload_bytes,
            serve: Arc::clone(serve),
            load: Arc::default(),
            waiting: Waiting::default(),
            started: Mutex::new(started),
        });
        pool.set_count(count)?;
        Ok(Self { pool })
    }

    /// Returns how busy they are.
    #[must_use]
    pub fn load(&self) -> &Arc<Load> {
        &self.pool.load
    }

    /// Returns what sets how many there are.
    #[must_use]
    pub fn count(&self) -> ThreadCount {
        ThreadCount { pool: Arc::downgrade(&self.pool) }
    }

    /// Waits until the connection has ended.
    ///
    /// # Errors
    /// Of the first thread that ended otherwise.
    pub fn join(self) -> Ended {
        loop {
            let mut started = self.pool.started.lock();
            let Some(thread) = started.threads.pop() else {
                started.is_over = true;
                return std::mem::replace(&mut started.ended, Ok(()));
            };
            drop(started);
            let ended = joined(thread);
            self.pool.started.lock().note(ended);
        }
    }
}

impl ThreadCount {
    /// Has so many threads serve, at least one. Further ones are there when it returns; those too
    /// many end after the request that they are in, or after their next one.
    ///
    /// # Errors
    /// When the system has no further thread, and when the connection has ended: what serves then
    /// is what served before.
    pub fn set(&self, count: usize) -> io::Result<()> {
        self.pool.upgrade().ok_or_else(is_over)?.set_count(count)
    }
}

fn is_over() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the connection with the kernel has ended")
}

impl Pool {
    fn set_count(self: &Arc<Self>, count: usize) -> io::Result<()> {
        let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let mut started = self.started.lock();
        if started.is_over {
            return Err(is_over());
        }
        started.take_ended();
        let before = self.load.threads_max();
        self.load.set_threads_max(count);
        while self.load.threads() < count {
            if let Err(error) = self.start_one(&mut started) {
                self.load.set_threads_max(before);
                return Err(error);
            }
        }
        Ok(())
    }

    fn start_one(self: &Arc<Self>, started: &mut Started) -> io::Result<()> {
        let number = started.count;
        let channel = if number == 0 { Arc::clone(&self.first) } else { another(&self.first) };
        let (pool, seat) = (Arc::clone(self), Seat::new(&self.load));
        let thread = move || pool.run(&channel, seat);
        started.threads.push(Builder::new().name(format!("{NAME}{number}")).spawn(thread)?);
        started.count += 1;
        Ok(())
    }

    /// Serves until the connection ends, or there are too many threads.
    fn run(&self, channel: &Arc<Channel>, mut seat: Seat) -> Ended {
        now_serving();
        seat.take();
        loop {
            let mut message = Message::new(channel, self.payload_bytes);
            let turn = self.waiting.turn();
            let received = message.receive();
            if !matches!(received, Ok(Received::Request)) || message.is_last() {
                self.waiting.end();
            }
            drop(turn);
            if received? == Received::End {
                return Ok(());
            }
            if message.is_last() {
                message.answer(0, 0);
                return Ok(());
            }
            if !seat.serve(|| (self.serve)(Reply::to_message(message))) {
                return Ok(());
            }
        }
    }
}

impl Started {
    fn note(&mut self, ended: Ended) {
        if self.ended.is_ok() {
            self.ended = ended;
        }
    }

    /// Takes threads that have ended out of the list.
    fn take_ended(&mut self) {
        let ended: Vec<_> = self.threads.extract_if(.., |thread| thread.is_finished()).collect();
        ended.into_iter().for_each(|thread| self.note(joined(thread)));
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("load", &self.load).finish_non_exhaustive()
    }
}

/// Returns a channel of its own for a thread, or where that is not to be had (it needs the right to
/// open `/dev/fuse`) the one that there is.
fn another(first: &Arc<Channel>) -> Arc<Channel> {
    first.another().map_or_else(
        |error| {
            tracing::debug!("threads share a descriptor of /dev/fuse: {error}");
            Arc::clone(first)
        },
        Arc::new,
    )
}
