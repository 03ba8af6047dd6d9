//! The mount: a translator from the kernel's FUSE protocol onto [`bedplate_fs::FileSystem`].
//!
//! ```text
//!   programs ── kernel (VFS, page cache) ── /dev/fuse or io_uring ── event threads (crates/fuse)
//!                                                                       │
//!                                                  translate/: requests in the kernel's structs
//!                                                   │  names.rs  data.rs  attrs.rs  dirs.rs  xattrs.rs: what each request means
//!   commands ── the socket of the mount: listener.rs ─┤
//!                                                   │  lines.rs: what may wait for the kernel or for a flush
//!                                                   ▼
//!                                             bedplate_fs::FileSystem, bedplate_fs::File
//! ```
//!
//! `crates/fuse` brings requests and takes answers; `session.rs` puts both together. The kernel knows every file
//! by its inode number, once: whatever mode an open asks for, there is one page cache, one size and
//! one set of locks per file, so that the kernel itself keeps cached and direct opens of a file
//! coherent. What the kernel does not do is listed in `data.rs`.

mod activity;
mod aliases;
mod asks;
pub(crate) mod attach;
mod attrs;
mod behind;
pub(crate) mod data;
pub(crate) mod dirs;
pub(crate) mod errno;
#[cfg(feature = "forge")]
mod forge;
mod hints;
mod lease;
mod lines;
mod listed;
mod listener;
pub(crate) mod mount;
pub(crate) mod mountpoint;
mod names;
mod open_files;
mod options;
mod pairs;
mod part_options;
mod parts;
mod privileges;
mod remount;
mod retuned;
mod serving_threads;
mod session;
pub(crate) mod settings;
mod shared;
mod sizes;
mod table;
pub(crate) mod translate;
mod transport;
mod trees;
mod views;
mod xattrs;

pub use attach::unmount;
#[cfg(feature = "forge")]
#[doc(hidden)]
pub use forge::serve_connection;
pub use lease::LeaseUsers;
pub use mount::Mount;
pub use mountpoint::{holders_of, is_dead};
pub use options::{
    MOUNT_OPTIONS, MountOption, is_mount_option, mount_options, mount_tunables,
    unknown_mount_option,
};
pub use parts::{MountedPart, check_part, part_of};
pub use remount::{is_remount_flag, remount};
pub use serving_threads::ServingThreads;
pub use settings::{Acls, MountSettings, Transport, WriteBack};
