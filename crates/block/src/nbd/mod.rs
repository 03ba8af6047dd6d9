//! A device over the network: an export of an NBD server, named by a URI
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>).
//!
//! ```text
//!   caller ─┐                       ┌─ connection ── socket ──► server
//!   caller ─┼─► core: checks, ─► link                             │
//!   server  ┘   counts, divides     └─ connection ◄── a thread for each hears replies
//!   thread of a queue
//! ```
//! A call sends its request from its own thread and sleeps until the thread of the connection has
//! heard the reply. Replies are simple ones: an error comes before any data.
//!
//! - I-NDV-1: a device of which one connection broke, or to which one reply did not come in time,
//!   does nothing any more. What it was answered before and has not flushed may be lost with the
//!   server, and a flush on a new connection would say nothing of it. Opening it again makes another
//!   device.
//! - I-NDV-2: there is more than one connection only where the server says that a flush on one covers
//!   what was answered on all.

mod claim;
mod device;
#[cfg(test)]
mod fake;
mod handshake;
mod link;
mod socket;
#[cfg(test)]
mod tests;
mod uri;
pub mod wire;

pub(crate) use device::open;
pub use uri::{device_path, is_nbd_uri};

use std::io;

use crate::ErrorKind;
use crate::descriptor::without_errno;

/// Why something was not done: a kind to match on, and a sentence without the device's name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refusal {
    kind: ErrorKind,
    detail: String,
}

impl Refusal {
    fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }

    /// What a server does that the protocol does not allow, or a connection that failed.
    fn io(detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Io, detail)
    }
}

/// Returns the words of a failed call on a socket.
fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => without_errno(&error.to_string()).to_owned(),
    }
}
