//! The NFS server, spoken with over sockets.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod bed;
mod client;
mod files;
mod hostile;
mod library;
mod lock_calls;
mod locks;
mod names;
mod relay;
mod users;
