//! The answer to a request, from whichever thread.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::slot::{Request, Slot};

/// Where answered slots come back to their lane.
#[derive(Debug)]
pub(crate) struct Returns {
    pub(crate) answered: Mutex<Vec<Slot>>,
    /// Read by the lane's ring.
    pub(crate) waker: OwnedFd,
    pub(crate) lane: ThreadId,
}

impl Returns {
    fn take(&self, slot: Slot) {
        self.answered.lock().push(slot);
        if std::thread::current().id() != self.lane
            && let Err(error) = rustix::io::write(&self.waker, &1_u64.to_ne_bytes())
        {
            // It is full after 2^64 answers.
            tracing::error!("a thread that serves the kernel was not woken: {error}");
        }
    }
}

/// The right and duty to answer one request. Dropped without an answer, it answers with `EIO`.
#[derive(Debug)]
pub struct Reply {
    /// There until the answer.
    slot: Option<Slot>,
    returns: Arc<Returns>,
}

impl Reply {
    pub(crate) fn new(slot: Slot, returns: &Arc<Returns>) -> Self {
        Self { slot: Some(slot), returns: Arc::clone(returns) }
    }

    /// Returns what was asked for.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        self.slot.as_ref().expect("it has not been answered").request()
    }

    /// Returns the memory of the payload, in which an answer is made. A request's own is there
    /// until then.
    pub fn payload(&mut self) -> &mut [u8] {
        self.slot.as_mut().expect("it has not been answered").payload()
    }

    /// Answers with the first `len` bytes of the payload.
    ///
    /// # Panics
    /// When the payload is shorter.
    pub fn send(self, len: usize) {
        self.answer(0, len);
    }

    /// Answers with an error number, positive.
    pub fn refuse(self, errno: i32) {
        self.answer(errno, 0);
    }

    fn answer(mut self, error: i32, len: usize) {
        let mut slot = self.slot.take().expect("it has not been answered");
        slot.answer(error, len);
        self.returns.take(slot);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(mut slot) = self.slot.take() {
            slot.answer(libc::EIO, 0);
            self.returns.take(slot);
        }
    }
}
