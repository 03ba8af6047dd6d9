//! A back end of vhost-user for disks: a guest's queues in its own memory
//! (<https://qemu-project.gitlab.io/qemu/interop/vhost-user.html>), and on them the requests of
//! virtio-blk.
//!
//! ```text
//!   server ── session, one front end at a time: memory, queues, features
//!                │
//!   worker, a thread for each queue: ring ─► request ─► serving ─► disk's queue ──► ring
//!                                                          └─────► lane, for what blocks ─┘
//! ```
//! The front end is a program of the same user, as a virtual machine's monitor; its guest is none,
//! and may put anything on its queues.

mod device;
#[cfg(feature = "forge")]
pub mod forge;
mod memory;
mod request;
mod ring;
mod server;
mod serving;
mod session;
mod worker;

pub use server::{Server, Settings, serial_of};
