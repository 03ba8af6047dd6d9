//! Backups of checkpoints, in a directory or a bucket.
//!
//! ```text
//!   checkpoint of a mount ─► entries ─┬─ data, 1 MiB at a time ─► chunk, named by its hash (there already? skipped)
//!                                     └─ blocks unchanged since the last backup's checkpoint ─► that backup's chunks, not read
//!                                manifest, last: a backup is there whole or not at all
//! ```
//!
//! `docs/backup.md` has every file and field.

mod create;
mod manifest;
mod repository;
mod restore;
mod store;

pub use create::{Changed, Created, Source, create};
pub use manifest::Header;
#[cfg(feature = "forge")]
pub use manifest::Manifest;
pub use repository::{Pruned, Repository, Verified};
pub use restore::{Restored, restore};
pub use store::Access;

/// Bytes of a chunk; the last of a file is shorter.
pub const CHUNK_BYTES: u64 = 1 << 20;
