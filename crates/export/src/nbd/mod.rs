//! A server of the Network Block Device protocol
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>): fixed newstyle, structured
//! replies, block status.
//!
//! ```text
//!   listener ── connection, a thread of its own: handshake ─► requests
//!                    │
//!   socket ─► inbox ─┴─► parse ─► disk's queue ──────────────► outbox ─► socket
//!                          └────► lane: a thread for what blocks ──┘
//! ```
//! One thread does all of a connection's I/O on the socket and on the queue, and waits for both at
//! once; so a request passes from one thread to another only where it must wait: flushes, trims,
//! zeros, block status, and reads and writes that are not aligned.

mod connection;
mod exports;
#[cfg(feature = "forge")]
pub mod forge;
mod handshake;
mod inbox;
mod listener;
mod options;
mod outbox;
mod peer;
mod reply;
mod request;
mod serving;
mod tls;
mod transport;

use bedplate_block::nbd_wire as wire;

pub use exports::{Export, Exports};
pub use listener::{Address, Server, Settings};
pub use tls::Tls;
