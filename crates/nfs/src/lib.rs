//! NFS version 3 in user space: files of a server of any make, by calls of this process, past the
//! kernel's client and its page cache.
//!
//! ```text
//!   Queue ── lists of reads and writes ─┐
//!   File ── modes, uncommitted writes ──┼─► Client ── procedures ─► link ── calls in flight
//!   Client ── names, attributes ────────┘                             │ many connections
//!                                                                     ▼
//!                            wire: XDR, messages, calls and replies     (the server's too)
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `wire` | the protocols as bytes, of both sides |
//! | `url` | `nfs://HOST/PATH?…` and its options |
//! | `link` | connections, calls in flight and their bound, retransmission |
//! | `client` | the mount, names, attributes, listings |
//! | `inode` | what all opens of a file share: locks, modes, uncommitted writes |
//! | `transfer` | bytes of a file between this process and the server |
//! | `cached` | pages of files in memory, by the library's cache |
//! | `file` | an open file |
//! | `session` | what ties locks on the server to the client's connections |
//! | `locking` | locks of an open file, with what they mean for its pages and writes |
//! | `ranges`, `records` | locked ranges of one owner; locks among the opens of one client |
//! | `queue` | one thread's list of operations |
#![forbid(unsafe_code)]

mod cached;
mod client;
mod error;
mod file;
mod handle;
mod inode;
mod link;
mod locking;
mod queue;
mod ranges;
mod records;
mod session;
mod transfer;
mod url;
pub mod wire;

pub use client::{Client, Entry, Found, Part, Room};
pub use error::{Error, ErrorKind, Result};
pub use file::{File, OpenOptions};
pub use handle::Handle;
pub use inode::Mode;
pub use link::Answer;
pub use queue::{Completion, Queue};
pub use ranges::{LOCK_END, Locked, Ranges, WHOLE_FILE};
pub use session::LockOwner;
pub use url::{LocksAt, Patience, ReleaseBehind, Stability, Url, is_nfs_url};
pub use wire::attr::{Attr, Changes, Kind, SetTime};
pub use wire::locks::Holder;
pub use wire::status::Status;
