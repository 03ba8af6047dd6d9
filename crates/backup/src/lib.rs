//! Backups of checkpoints, in a directory or a bucket.
//!
//! ```text
//!   checkpoint of a mount ─► entries ─┬─ data, 1 MiB at a time ─► chunk, named by its hash (there already? skipped)
//!                                     └─ blocks unchanged since the last backup's checkpoint ─► that backup's chunks, not read
//!                                manifest, last: a backup is there whole or not at all
//! ```
//!
//! The format of every file and field is in `docs/backup.md`.
//!
//! | module | holds |
//! | --- | --- |
//! | `create` | walks a checkpoint and stores what is new |
//! | `restore` | writes a backup into an empty directory |
//! | `repository` | chunks and manifests of one repository; verification; deletion |
//! | `manifest` | what a backup consists of, one JSON document a line |
//! | `store` | directories and buckets, with their claims |
//! | `torn` | what is not safe about a restored database |
//! | `settings` | the I/O mode and other settings of files on a mount |
#![forbid(unsafe_code)]

mod create;
mod error;
mod manifest;
mod repository;
mod restore;
mod settings;
mod store;
mod torn;

pub use create::{Changed, Created, Ranges, Source, create};
pub use error::{Error, ErrorKind, Result};
pub use manifest::{Bytes, Header, Manifest};
pub use repository::{Pruned, Repository, Verified};
pub use restore::{Restored, Target, restore};
pub use store::Access;

/// Bytes of a chunk; the last of a file is shorter.
pub const CHUNK_BYTES: u64 = 1 << 20;
