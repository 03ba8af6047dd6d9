//! What runs in a mount namespace of its own. A namespace has a copy of each mount that is there when
//! it is made, so where mounts are private, as in a container, no other test's volume could be
//! unmounted meanwhile: these tests are a binary of their own.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "../command/harness.rs"]
#[allow(dead_code, reason = "these tests need less of it")]
mod harness;
mod nfs_locks;
mod nfs_run;
#[path = "../command/nfs_server.rs"]
#[allow(dead_code, reason = "these tests need less of it")]
mod nfs_server;
