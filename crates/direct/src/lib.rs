//! Direct file tools: copying, reading, writing and compressing large files of any Linux file
//! system with large direct requests, several under way at once, so that the page cache stays as it
//! was.
//!
//! ```text
//! copy, copy_tree ─ spans of data ─► workers: read a window, write it ─► attributes ─► sync, rename
//! read_to, compress ─ workers read windows ahead, and write what they make of them in turn
//! Sink ─ a stream collects windows ─► workers write them
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `file` | a file that is open for direct I/O; what the system refuses goes through the page cache and out of it again |
//! | `windowed` | what windows are read from and written to: such a file, or one of a server |
//! | `remote`, `over_network` | files of servers, by `nfs://` URLs; copies from and to them |
//! | `span` | which parts of a file are data, cut into windows |
//! | `copy` | one file: partial file, windows, comparison, going on after an end |
//! | `partial` | the file that a copy fills before it takes the target's name |
//! | `attributes` | owner, mode, extended attributes, times |
//! | `tree` | directories |
//! | `stream` | files to streams and back |
//! | `compress` | zstd and gzip on several threads |
//! | `rate` | a limit of bytes a second |
//! | `update` | makes a file equal to one of which it is an older copy: what differs is written; compares two |
//! | `convert` | a directory that is in use moves elsewhere: passes, comparison, change of names |
//!
//! Requests are of [`WINDOW_BYTES`], from some threads with a window each: that keeps a device as
//! busy as a deep queue of an io_uring does, and works where io_uring is forbidden.
#![forbid(unsafe_code)]

mod attributes;
mod compress;
pub mod convert;
mod copy;
mod error;
mod file;
mod over_network;
mod partial;
mod rate;
mod remote;
mod share;
mod span;
mod stream;
#[cfg(test)]
mod tests;
mod tree;
mod update;
mod windowed;

pub use compress::{Method, compress};
pub use copy::{Copied, Options, Range};
pub use error::{Error, ErrorKind, Result};
pub use file::Route;
pub use over_network::copy;
pub use rate::Rate;
pub use remote::{inside_remote, is_remote, is_remote_directory, remote_name, remote_size};
pub use share::Reflink;
pub use stream::{Sink, read_to};
pub use tree::{TreeCopied, copy_tree};

/// Bytes of one request.
pub const WINDOW_BYTES: usize = 4 << 20;

/// Requests that are under way at once, unless another number is asked for.
pub const WORKERS: usize = 4;

/// Hears of bytes that are done, from any thread.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);
