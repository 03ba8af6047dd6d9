//! One queue of the guest: chains that are available are taken from it, and answers put on it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use virtio_queue::{Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::request::{self, Request, Terms};

/// Why a queue is no longer served.
#[derive(Debug, thiserror::Error)]
pub enum Halt {
    /// The guest broke the queue.
    #[error("{0}")]
    Guest(&'static str),
    /// Its rings say what cannot be, or lie in no memory.
    #[error("its rings cannot be used: {0}")]
    Ring(#[from] Error),
    /// The disk's queue.
    #[error(transparent)]
    Disk(crate::Error),
    /// The system's word on what is waited for.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// A queue, and the memory that it lies in.
#[derive(Debug)]
pub struct Ring {
    queue: Queue,
    memory: Arc<GuestMemoryMmap>,
    /// Told of answers; without it the guest looks for them itself.
    call: Option<Arc<OwnedFd>>,
    answered: bool,
}

impl Ring {
    /// Takes a queue up where its used ring ends.
    pub fn new(mut queue: Queue, memory: Arc<GuestMemoryMmap>, call: Option<Arc<OwnedFd>>) -> Self {
        if let Ok(used) = queue.used_idx(&*memory, Ordering::Acquire) {
            queue.set_next_used(used.0);
        }
        queue.set_ready(true);
        Self { queue, memory, call, answered: false }
    }

    /// Says that the queue can be used at all.
    pub fn check(&self) -> Result<(), Halt> {
        match self.queue.is_valid(&*self.memory) {
            true => Ok(()),
            false => Err(Halt::Guest("its rings do not lie in the guest's memory")),
        }
    }

    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Takes the next request.
    pub fn next(&mut self, terms: &Terms) -> Result<Option<Request>, Halt> {
        let chain = self.queue.iter(&*self.memory)?.next();
        chain
            .map(|chain| request::parse(&self.memory, chain, terms).map_err(Halt::Guest))
            .transpose()
    }

    /// Asks the guest not to tell of each request while they are looked for.
    pub fn begin_looking(&mut self) -> Result<(), Halt> {
        Ok(self.queue.disable_notification(&*self.memory)?)
    }

    /// Asks the guest to tell of the next request; returns whether one has come meanwhile.
    pub fn end_looking(&mut self) -> Result<bool, Halt> {
        Ok(self.queue.enable_notification(&*self.memory)?)
    }

    /// Puts an answer on the queue; `written` bytes of its buffers from the first on are filled.
    pub fn answer(
        &mut self,
        head: u16,
        at: GuestAddress,
        status: u8,
        written: u32,
    ) -> Result<(), Halt> {
        if self.memory.write_obj(status, at).is_err() {
            return Err(Halt::Guest("the byte for a request's status is no longer there"));
        }
        self.queue.add_used(&*self.memory, head, written)?;
        self.answered = true;
        Ok(())
    }

    /// Tells the guest of answers, where there are any and it wants to be told.
    pub fn tell(&mut self) -> Result<(), Halt> {
        if std::mem::take(&mut self.answered)
            && self.queue.needs_notification(&*self.memory)?
            && let Some(call) = &self.call
        {
            // One that cannot be told has been told before, or is gone.
            let _told = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
        Ok(())
    }

    /// Gives the queue back.
    pub fn into_queue(self) -> Queue {
        self.queue
    }
}
