//! Clients that come, and the thread that each of them gets.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};
use std::thread::{Builder, JoinHandle};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The stack of a connection's thread: most of a thousand of them are idle.
const STACK_BYTES: usize = 256 << 10;
/// How long nothing is accepted after the system refused.
const REFUSED_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Accepts with `accept` whenever `listener` is readable, until `woken` is.
pub fn accept_until(
    listener: impl AsFd,
    woken: &UnixStream,
    mut accept: impl FnMut() -> io::Result<()>,
) {
    loop {
        let mut events = [PollFd::new(&listener, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
        let waited = poll(&mut events, None);
        if waited.is_ok() && !events[1].revents().is_empty() {
            return;
        }
        match accept() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!("cannot take a connection: {error}");
                let mut ends = [PollFd::new(woken, PollFlags::IN)];
                let _waited = poll(&mut ends, Some(&REFUSED_PAUSE));
            }
        }
    }
}

/// Waits until threads have ended.
pub fn join(threads: Vec<JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a thread of the server had panicked");
        }
    }
}

/// The clients that are served.
#[derive(Debug)]
pub struct Guests {
    count: AtomicUsize,
    count_max: usize,
    /// Those that have ended are taken out with the next one.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Guests {
    pub fn new(count_max: usize) -> Arc<Self> {
        Arc::new(Self { count: AtomicUsize::new(0), count_max, threads: Mutex::default() })
    }

    /// Gives a client a thread that serves it, unless there are too many; what `serve` holds of it
    /// is dropped then.
    pub fn admit(self: &Arc<Self>, name: &str, serve: impl FnOnce() + Send + 'static) {
        if self.count.fetch_add(1, AcqRel) >= self.count_max {
            self.count.fetch_sub(1, AcqRel);
            tracing::warn!("{} connections are served already: one more is closed", self.count_max);
            return;
        }
        let place = Place(Arc::clone(self));
        let started = Builder::new().name(name.into()).stack_size(STACK_BYTES).spawn(move || {
            serve();
            drop(place);
        });
        match started {
            Ok(thread) => {
                let mut threads = self.threads.lock();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(error) => tracing::warn!("cannot serve a connection: {error}"),
        }
    }

    /// Waits until all have gone.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        join(threads);
    }
}

/// The place of a connection among those that there may be.
struct Place(Arc<Guests>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, AcqRel);
    }
}
