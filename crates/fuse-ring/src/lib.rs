//! FUSE over io_uring: requests of the kernel and their answers without a `read` and a `write` of
//! `/dev/fuse` each. One system call gives an answer and waits for the next request, and a
//! payload lies where the device below takes it.
//!
//! ```text
//!   kernel, for each processor a queue ──► slots that wait there, each of one thread's ring
//!                                              │ request
//!                                              ▼
//!   a thread of that processor: Lane::run ─► the server's function ─► Reply::send
//!              ▲                                   └── handed to another thread ── Reply::send
//!              └────────── answered slots, back to the kernel ◄──────┘
//! ```
//!
//! A thread has one slot with the kernel, so that a request never waits behind another one that is
//! being served while other threads have nothing to do. When a reply is handed to another thread,
//! the thread makes a further slot and goes on: however many answers are outstanding, what they
//! wait for is served.
//!
//! The protocol is that of Linux 6.14 and later (`Documentation/filesystems/fuse-io-uring.rst`,
//! `include/uapi/linux/fuse.h`, `fs/fuse/dev_uring.c`). The first message (INIT), FORGET and
//! INTERRUPT, and messages to the kernel, go through `/dev/fuse` as without it.

mod lane;
mod layout;
mod processors;
mod reply;
mod ring;
mod slot;

pub use lane::{Ended, Lane, Lanes};
pub use layout::{HeaderIn, PAYLOAD_BYTES_MIN};
pub use processors::processors;
pub use reply::Reply;
pub use ring::{Refusal, offered};
pub use slot::Request;
