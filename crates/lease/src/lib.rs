//! The lease: a program's own thread reads and writes the device, and the daemon can take that
//! back.
//!
//! Two pieces of shared memory and a socket. *Control* is written by the daemon alone and says
//! which extents of which files may be touched; *slots*, one piece for each client, say which file
//! a thread is at this moment doing I/O on. This crate has the layout of both, the two halves of
//! the protocol over them, and the messages. It makes no system call, so the models in its tests
//! run the very code that programs run.
//!
//! ```text
//!            daemon                                 client
//!   Publisher ── entry, map ──► control ──────────► Reader::begin_io
//!   Control   ── seq, LSNs ───►    │                   │ 1. busy = file      (full fence)
//!       │ revoke: seq odd, fence   │                   │ 2. seq, map, flags, seq again
//!       └ wait until no slot ◄─── slots ◄──────────────┘ 3. I/O    4. busy = 0
//! ```
//!
//! Either the daemon's look at the slots comes after step 1, then it sees the slot and waits; or it
//! comes before, then the sequence was odd before step 2 and the client gives up.
//!
//! # Invariants
//!
//! - I-LSE-1: I/O under a lease goes only to blocks that the map of the file held when the daemon
//!   last ended a revocation of it: whatever a revocation waited for has ended, and what begins
//!   after it sees the new map.
//! - I-LSE-2: an entry is rewritten and retracted only while its sequence is odd.
//! - I-LSE-3: an entry that is used again has another generation, so that no client takes one
//!   file's map for another's.
//! - I-LSE-5: one client at a time may write parts of sectors of a file, and while it may, no other
//!   client writes to the file at all; which one it is changes only while the sequence is odd.
//! - I-LSE-6: what a client keeps of a file's bytes is used under the sequence at which it was read,
//!   and not after.
//! - I-LSE-8: an asynchronous request is counted before it begins, in the slots and for its file,
//!   and the kernel counts that it ended; a revocation waits until both agree.
//! - I-LSE-9: behind the size of a file one client at a time writes, within its tail; what it says to
//!   have filled is on the device. Which client that is, and where its tail lies, changes only while
//!   the sequence is odd.
//!
//! Pages of the daemon's cache, which no slot stands for, have a rule of their own: I-LSE-10 in `pages`;
//! so have writes into a tail that end before what lies before them, I-LSE-11 in `order`, and what is
//! appended to a file that rests on the mount, or written over it, I-LSE-12 in `appends` and I-LSE-13 in
//! `overwrites`.
#![forbid(unsafe_code)]

mod appends;
mod direction;
mod layout;
mod map_space;
mod order;
mod overwrites;
mod pages;
mod places;
mod planted;
mod publisher;
mod reader;
mod reason;
mod requests;
mod slots;
#[cfg(test)]
mod tests;
mod window;
pub mod wire;
mod words;

pub use appends::AppendRoom;
pub use direction::Direction;
pub use layout::{Geometry, LAYOUT_VERSION, LayoutError, State};
pub use order::{Noted, ORDER_WORDS, Order};
pub use overwrites::{OVERWRITE_UNIT, Overwrite, OverwriteRoom};
pub use pages::{
    GROUP_PAGES, PageReader, PageShape, PageShard, Seen, SharedPages, mixed, shard_of,
};
pub use places::{APPEND_BYTES, APPENDS_PER_CLIENT, OVERWRITE_BYTES, slots_words};
pub use publisher::{
    Control, Coverage, EntryRef, Extent, FileLease, PublishError, Publisher, Tail,
};
pub use reader::{CachedFile, Io, Lease, Permit, Reader, TailName};
pub use reason::{Fallback, Reason};
pub use slots::{ClientSlots, Counters, Holder, SLOTS_PER_CLIENT, Slots};
pub use window::{Plan, WINDOW_BYTES, Window, WindowKey};
pub use words::Words;
