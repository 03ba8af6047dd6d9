//! The kernel's FUSE protocol as a server speaks it, and the two ways that its requests come: reads
//! and writes of `/dev/fuse`, and io_uring. Mounting is not here, nor what a request means.
//!
//! ```text
//!   /dev/fuse ── Connection: INIT ── Threads: read ──┐
//!                     │                              ├─► the server's function ─► Reply::send
//!                     │        io_uring ── Lanes ────┘          └─ handed to another thread ─ Reply::send
//!                     └── Notifier: messages to the kernel
//! ```
//!
//! Whichever way a request came, [`Reply`] has it, and its answer is made in the memory that
//! [`Reply::payload`] lends. A payload begins at a multiple of
//! [`ALIGN`](bedplate_block::AlignedBuf::ALIGN), so that what is read and written goes to a device
//! as it lies.
//!
//! The protocol is that of `include/uapi/linux/fuse.h`, version 7.45. Requests over io_uring are
//! those of Linux 6.14 and later (`Documentation/filesystems/fuse-io-uring.rst`,
//! `fs/fuse/dev_uring.c`). INIT, FORGET, INTERRUPT and messages to the kernel go through `/dev/fuse`
//! in any case.

mod channel;
mod connection;
mod init;
mod layout;
mod load;
mod message;
mod notify;
mod protocol;
mod reply;
mod returns;
mod ring;
mod serving;
mod slot;
mod threads;
mod waiting;

pub use connection::Connection;
pub use init::{Flags, Terms};
pub use load::{Load, LoadReport, ProcessorTime};
pub use notify::Notifier;
pub use protocol::{HeaderIn, Request, opcode};
pub use reply::{Reply, Serve};
pub use ring::{Lanes, Refusal, offered, processors};
pub use serving::{Ended, is_serving};
pub use threads::{ThreadCount, Threads};
