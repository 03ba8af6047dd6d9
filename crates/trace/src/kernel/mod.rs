//! Calls of running processes as the kernel tells them: both ends of system calls become the same
//! trace that the library records.
//!
//! ```text
//!   event ring ── kernel_line() ──► Follower ──► Trace
//!                                      ▲
//!                                 Descriptors: what /proc says of a process's descriptors
//! ```

mod follow;
mod line;

pub use follow::{Descriptor, Descriptors, Follower, Kind, LeadsTo, Numbers, Task};
pub use line::{Edge, KernelLine, kernel_line};
