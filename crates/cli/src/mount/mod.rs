//! Mounts of this machine: the system's table of them, and what their daemons tell.

pub mod defragmenter;
pub mod leases;
pub mod live;
mod table;
pub mod threads;
pub mod waits;
pub mod watch;

pub use table::{Mount, above, at, canonical, is_stale, ours, places};
