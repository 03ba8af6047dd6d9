//! A server of NFS version 3 (RFC 1813) with MOUNT (its appendix I) and NLM version 4 on the same port,
//! over TCP: a directory of the system, for other machines.
//!
//! ```text
//!   server ── a thread for each connection: record ─► workers ─► service ─► rpc, replies
//!                  │                                                │
//!   socket ◄── outbox ◄── the reply ◄───────────────────────────────┤
//!                                       mount, request ─► names, data, dirs ─► tree
//! ```
//! Requests of one connection are carried out side by side, each as the user that the client names,
//! and answered in the order in which they end. A file is reached by the kernel's handle of it, so
//! nothing is remembered between requests that a restart would lose.

mod attr;
mod connection;
mod data;
mod dirs;
#[cfg(feature = "forge")]
pub mod forge;
mod handle;
mod identity;
mod link;
mod listing;
mod lock_calls;
mod locks;
mod mount;
mod names;
mod network;
mod open_files;
mod outbox;
mod replies;
mod request;
mod server;
mod service;
mod status;
mod tree;
mod verifier;

use bedplate_nfs::wire::{record, rpc, xdr};
pub use identity::{Squash, Users};
pub use locks::LockTimes;
pub use network::Network;
pub use server::{Server, Settings};
pub use tree::{Rights, Tree};
