//! Which threads serve.

use std::cell::Cell;
use std::io;
use std::thread::JoinHandle;

/// How a thread that serves ended: the connection is gone, or an error.
pub type Ended = io::Result<()>;

thread_local! {
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// Notes that the calling thread takes requests from the kernel.
pub(crate) fn now_serving() {
    SERVES.set(true);
}

/// Returns whether the calling thread takes requests from the kernel, by either transport: it must
/// not wait for one.
#[must_use]
pub fn is_serving() -> bool {
    SERVES.get()
}

/// Waits for threads, and returns the first error.
pub(crate) fn join(threads: Vec<JoinHandle<Ended>>) -> Ended {
    let mut first = Ok(());
    for thread in threads {
        first = first.and(joined(thread));
    }
    first
}

/// Waits for a thread.
pub(crate) fn joined(thread: JoinHandle<Ended>) -> Ended {
    let panicked = || Err(io::Error::other("a thread that serves the kernel panicked"));
    thread.join().unwrap_or_else(|_| panicked())
}
