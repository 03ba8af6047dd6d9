//! Lanes: the threads that serve, each with its ring and its slots.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::processors::processors;
use super::uring::{Ring, WOKEN};
use crate::load::{Load, Seat};
use crate::reply::{Reply, Serve};
use crate::returns::Returns;
use crate::serving::{Ended, join, now_serving};
use crate::slot::Slot;

/// What the names of the threads begin with.
const NAME: &str = "fuse-ring-";

/// The threads of a connection.
#[derive(Debug)]
pub struct Lanes {
    threads: Vec<JoinHandle<Ended>>,
    /// How busy the threads of each processor are: they alone serve what is asked there.
    loads: Vec<Arc<Load>>,
}

impl Lanes {
    /// Starts as many threads for each processor, and returns when the kernel has a slot of each. It
    /// must have agreed to io_uring on this connection, and have been answered its INIT; from then
    /// on until this returns it holds all requests back. `payload_bytes`: the largest payload, of
    /// what was agreed on.
    ///
    /// # Errors
    /// Of the first thread that cannot begin. The connection is of no use then, and the others end
    /// with it.
    pub(crate) fn start(
        fuse: OwnedFd,
        threads_each: usize,
        payload_bytes: usize,
        serve: &Serve,
    ) -> io::Result<Self> {
        let fuse = Arc::new(fuse);
        let (begun, has_begun) = mpsc::channel();
        let (mut threads, mut loads) = (Vec::new(), Vec::new());
        for queue in 0..processors()? {
            let load = Arc::default();
            for number in 0..threads_each.max(1) {
                let seat = Seat::new(&load);
                let (fuse, serve, begun) = (Arc::clone(&fuse), Arc::clone(serve), begun.clone());
                let thread = move || {
                    let lane = Lane::begin(fuse, queue, payload_bytes);
                    let said = lane.as_ref().map(drop).map_err(copy);
                    begun.send(said).expect("the caller waits for each thread");
                    drop(begun);
                    lane?.run(&serve, seat)
                };
                threads.push(Builder::new().name(format!("{NAME}{queue}-{number}")).spawn(thread)?);
            }
            loads.push(load);
        }
        drop(begun);
        has_begun.iter().collect::<io::Result<()>>()?;
        Ok(Self { threads, loads })
    }

    /// Returns how busy the threads of each processor are.
    #[must_use]
    pub fn loads(&self) -> &[Arc<Load>] {
        &self.loads
    }

    /// Waits until the connection has ended.
    ///
    /// # Errors
    /// Of the first lane that ended otherwise.
    pub fn join(self) -> Ended {
        join(self.threads)
    }
}

fn copy(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::other(error.to_string()),
    }
}

/// What one thread serves.
struct Lane {
    ring: Ring,
    payload_bytes: usize,
    /// Where slots are that the kernel has: by their index.
    with_kernel: Vec<Option<Slot>>,
    returns: Arc<Returns>,
    /// Kept open while the kernel may look for it.
    _fuse: Arc<OwnedFd>,
}

impl Lane {
    /// Gives the kernel a first slot of the calling thread.
    fn begin(fuse: Arc<OwnedFd>, queue: u16, payload_bytes: usize) -> io::Result<Self> {
        let mut processor = CpuSet::new();
        processor.set(queue.into());
        if let Err(error) = sched_setaffinity(None, &processor) {
            // It is offline, or not ours. Then it makes no requests, or others serve slower.
            tracing::debug!("no thread is bound to processor {queue}: {error}");
        }
        let returns = Arc::new(Returns::new(eventfd(0, EventfdFlags::CLOEXEC)?));
        returns.are_of_this_thread();
        now_serving();
        let mut ring = Ring::new(fuse.as_fd(), queue)?;
        ring.listen(&returns.waker)?;
        let mut lane = Self { ring, payload_bytes, with_kernel: Vec::new(), returns, _fuse: fuse };
        lane.add_slot()?;
        match lane.ring.refused() {
            Some(error) => Err(error),
            None => Ok(lane),
        }
    }

    fn add_slot(&mut self) -> io::Result<()> {
        let mut slot = Slot::new(self.with_kernel.len(), self.payload_bytes);
        let registered = self.ring.register(&mut slot);
        self.with_kernel.push(Some(slot));
        registered
    }

    /// Gives a slot that was answered back to the kernel.
    fn commit(&mut self, slot: Slot) -> io::Result<()> {
        let index = slot.index;
        assert!(self.with_kernel[index].is_none(), "I-RING-1: a slot is in one place");
        self.ring.commit(&slot)?;
        self.with_kernel[index] = Some(slot);
        Ok(())
    }

    /// Serves until the connection ends.
    fn run(mut self, serve: &Serve, mut seat: Seat) -> Ended {
        seat.take();
        let mut completed = Vec::new();
        loop {
            while let Some(slot) = Returns::own() {
                self.commit(slot)?;
            }
            // All replies were handed to other threads; what they wait for may be a request.
            if self.with_kernel.iter().all(Option::is_none) {
                self.add_slot()?;
            }
            self.ring.wait(&mut completed)?;
            for (what, result) in completed.drain(..) {
                if what == WOKEN {
                    self.ring.listen(&self.returns.waker)?;
                    for slot in self.returns.of_others() {
                        self.commit(slot)?;
                    }
                    continue;
                }
                let slot = self.with_kernel[what as usize].take();
                let slot = slot.expect("I-RING-1: the kernel completes slots that it has");
                match -result {
                    ..=0 => {
                        let reply = Reply::to_slot(slot, &self.returns);
                        // Lanes have no bound on their number: each goes on.
                        seat.serve(|| serve(reply));
                    }
                    libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV => return Ok(()),
                    errno => return Err(io::Error::from_raw_os_error(errno)),
                }
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // I-RING-1: the kernel may write to slots whose completion was not reaped, at any time: their
        // memory stays.
        for slot in self.with_kernel.drain(..).flatten() {
            std::mem::forget(slot);
        }
    }
}
