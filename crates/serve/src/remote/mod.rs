//! Files of an NFS server under a directory of this machine, for the programs of `bedplate run`: a
//! translator from the kernel's FUSE protocol onto [`bedplate_nfs::Client`].
//!
//! ```text
//!   programs ── kernel (names; no page cache) ── /dev/fuse ── event threads (crates/fuse)
//!                                                                │
//!        interrupts.rs: calls under way, and callers that are killed ─┤ requests.rs: what each means
//!                                                                │
//!              nodes.rs: numbers of the kernel, handles of the server ─┤ names.rs, files.rs, attrs.rs, listing.rs
//!                                                                ▼
//!                                         bedplate_nfs::Client, as the user that asks (callers.rs)
//! ```
//!
//! One process holds what the server may still lose of every file, so that the sync of any program
//! makes durable what any other wrote, as on a local file system. The kernel keeps names and
//! attributes for a second, until a program locks something, and no data. Locks are the server's, or
//! else the kernel holds them itself. What was to be answered to a
//! caller that is gone is taken back, and a file that is open and loses its last name keeps a hidden
//! one until the last close.

mod attrs;
mod callers;
mod errors;
mod files;
mod handles;
mod interrupts;
mod listing;
mod locks;
mod mount;
mod names;
mod nodes;
mod private;
mod requests;

pub use mount::{RemoteMount, RemoteSettings};
pub use private::hide_mounts;
