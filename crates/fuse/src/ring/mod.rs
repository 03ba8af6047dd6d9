//! Requests over io_uring, without a `read` and a `write` of `/dev/fuse` each. One system call gives
//! an answer and waits for the next request.
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

mod lane;
mod processors;
mod uring;

pub use lane::Lanes;
pub use processors::processors;
pub use uring::{Refusal, offered};
