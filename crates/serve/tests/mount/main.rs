//! The mount, used through the kernel as programs use it. Skipped, with the reason, where FUSE is
//! not to be had.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod absent;
mod acls;
mod attrs;
mod behind;
mod control;
mod copies;
mod data;
mod dirs;
mod handles;
mod harness;
mod leases;
mod life;
mod locks;
mod mixed;
mod modes;
mod names;
mod parts;
mod programs;
mod promises;
mod requests;
mod ring;
mod rollback;
mod saturation;
mod xattrs;
