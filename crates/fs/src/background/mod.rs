//! Threads of a writable mount.
//!
//! | file | holds |
//! | --- | --- |
//! | `sync_daemon` | what is dirty becomes durable within the sync interval |
//! | `freed_memory` | what the allocator keeps of freed memory goes back to the system |
//! | `checkpoint_scheduler` | carries the schedules of checkpoints out, and warns of what fills the volume |
//! | `defragmenter` | puts scattered files together, slowly and while programs are not busy |

pub(crate) mod checkpoint_scheduler;
pub(crate) mod defragmenter;
mod freed_memory;
pub(crate) mod sync_daemon;

use std::thread::JoinHandle;

use bedplate_block::Waker;

/// The running daemon; dropping it ends it and waits.
#[derive(Debug)]
pub(crate) struct Daemon {
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts a thread that waits on a waker.
    pub(crate) fn spawn(
        name: &str,
        waker: Waker,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Self> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work)?;
        Ok(Self { waker, thread: Some(thread) })
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.waker.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a daemon of the file system ended with a panic");
        }
    }
}
