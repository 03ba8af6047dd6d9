//! A connection on which the kernel has agreed to everything, and waits to be served.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::channel::Channel;
use crate::init::{Terms, negotiate};
use crate::notify::Notifier;
use crate::reply::Serve;
use crate::ring::Lanes;
use crate::threads::Threads;

/// One mount's connection with the kernel.
#[derive(Debug)]
pub struct Connection {
    channel: Arc<Channel>,
    /// The minor version of the protocol.
    minor: u32,
    payload_bytes: usize,
}

impl Connection {
    /// Agrees with the kernel on how to talk, on a descriptor of `/dev/fuse` that was given to
    /// `mount(2)`, or on a socket whose other end speaks as the kernel does.
    ///
    /// # Errors
    /// When the kernel lacks something that the terms require, and when the connection breaks.
    pub fn open(fuse: OwnedFd, terms: &Terms) -> io::Result<Self> {
        let channel = Arc::new(Channel::new(fuse));
        let minor = negotiate(&channel, terms)?;
        Ok(Self { channel, minor, payload_bytes: terms.payload_bytes })
    }

    /// Returns the way for messages to the kernel.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.channel), self.minor)
    }

    /// Begins to serve what comes through `/dev/fuse`, with so many threads.
    ///
    /// # Errors
    /// When the system has no further thread.
    pub fn serve(&self, threads: usize, serve: &Serve) -> io::Result<Threads> {
        Threads::start(&self.channel, threads, self.payload_bytes, serve)
    }

    /// Begins to serve what comes over io_uring, with so many threads for each processor. The kernel
    /// must have agreed to that ([`Flags::OVER_IO_URING`](crate::Flags::OVER_IO_URING)).
    ///
    /// # Errors
    /// When the system refuses a thread or its ring; the connection is of no use then.
    pub fn serve_over_ring(&self, threads_each: usize, serve: &Serve) -> io::Result<Lanes> {
        let fuse = self.channel.as_fd().try_clone_to_owned()?;
        Lanes::start(fuse, threads_each, self.payload_bytes, serve)
    }
}
