//! Backups of checkpoints, in a directory or a bucket.
//!
//! ```text
//!   checkpoint of a mount ─► entries ─┬─ data, 1 MiB at a time, or what changed, packed ─► chunk, named by its hash, compressed (there already? skipped)
//!                                     └─ blocks unchanged since the last backup's checkpoint ─► pieces of that backup's chunks, not read
//!                                manifest, last: a backup is there whole or not at all
//! ```
//!
//! The format of every file and field is in `docs/backup.md`.
//!
//! | module | holds |
//! | --- | --- |
//! | `create` | walks a checkpoint |
//! | `content` | reads what is new of a file and packs it into chunks |
//! | `pieces` | which ranges of which chunks a file is made of |
//! | `restore` | writes a backup into an empty directory |
//! | `select` | the part of a backup that one path names |
//! | `retention` | which backups a rule keeps |
//! | `mark` | the mark of a repository, with the wrapped key of an encrypted one |
//! | `seal` | encryption of objects, and names that say nothing without the key |
//! | `repository` | chunks and manifests of one repository; verification; deletion |
//! | `manifest` | what a backup consists of, one JSON document a line |
//! | `store` | directories and buckets, with their claims |
//! | `torn` | what is not safe about a restored database |
//! | `settings` | the I/O mode and other settings of files on a mount |
#![forbid(unsafe_code)]

mod content;
mod create;
mod error;
mod manifest;
mod mark;
mod pieces;
mod repository;
mod restore;
mod retention;
mod seal;
mod select;
mod settings;
mod store;
#[cfg(test)]
mod tests;
mod torn;

pub use create::{Changed, Created, Ranges, Source, create};
pub use error::{Error, ErrorKind, Result};
pub use manifest::{Bytes, Header, Manifest};
pub use mark::{Passphrase, Unlock};
pub use pieces::{Chunk, Form};
pub use repository::{Pruned, Repository, Summary, Verified};
pub use restore::{Restored, Target, restore};
pub use retention::Retention;
pub use store::Access;

/// The most bytes of a chunk.
pub const CHUNK_BYTES: u64 = 1 << 20;
