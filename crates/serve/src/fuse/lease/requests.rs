//! What the kernel says of a client's asynchronous requests.
//!
//! ```text
//!   eventfd   every request carries it; raised by one when the request has ended
//!   life      a page that the client maps, and no child of it; its description is locked, and the
//!             lock ends with the last mapping: with the memory of the process, which the kernel
//!             takes apart only when all of its requests have ended (`exit_aio` before `exit_mmap`)
//! ```
//!
//! The end of the process says less: its memory may be kept a moment longer by a process that
//! reads `/proc/PID`, and its requests with it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bedplate_fs::LeaseRequests;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags, flock, ftruncate, memfd_create, open};

const LIFE_BYTES: u64 = 4096;

/// What goes to the client.
pub(super) struct ForClient {
    pub(super) counter: OwnedFd,
    pub(super) life: OwnedFd,
}

/// The daemon's ends.
#[derive(Debug)]
pub(super) struct Requests {
    counter: OwnedFd,
    /// What was read of the counter, which a read sets back.
    ended: AtomicU64,
    /// Another description of the page that the client maps.
    life: OwnedFd,
    over: AtomicBool,
}

impl Requests {
    pub(super) fn new() -> io::Result<(Self, ForClient)> {
        let counter = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let life = memfd_create("bedplate-life", MemfdFlags::CLOEXEC)?;
        ftruncate(&life, LIFE_BYTES)?;
        let path = format!("/proc/self/fd/{}", life.as_raw_fd());
        let own = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        flock(&life, FlockOperation::NonBlockingLockExclusive)?;
        let client = ForClient { counter: counter.try_clone()?, life };
        let (ended, over) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok((Self { counter, ended, life: own, over }, client))
    }
}

impl LeaseRequests for Requests {
    fn ended(&self) -> u64 {
        let mut count = [0; 8];
        // What another thread has read and not added yet is missing here: fewer is right too.
        let more = match rustix::io::read(&self.counter, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        };
        self.ended.fetch_add(more, Ordering::SeqCst).wrapping_add(more)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || {
            let over = flock(&self.life, FlockOperation::NonBlockingLockExclusive).is_ok();
            if over {
                self.over.store(true, Ordering::Release);
            }
            over
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i_lea_8_ends_are_counted_until_the_memory_is_gone() {
        let (requests, client) = Requests::new().unwrap();
        assert_eq!(requests.ended(), 0);
        for _ in 0..3 {
            rustix::io::write(&client.counter, &1_u64.to_ne_bytes()).unwrap();
        }
        assert_eq!((requests.ended(), requests.ended()), (3, 3));
        assert!(!requests.is_over());
        let copy = client.life.try_clone().unwrap();
        drop(client);
        assert!(!requests.is_over(), "a copy is the same description");
        drop(copy);
        assert!(requests.is_over() && requests.is_over());
    }
}
