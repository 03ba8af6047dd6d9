//! Conversion in place: an ext4 or XFS file system becomes a volume, and its files stay where they
//! lie.
//!
//! ```text
//!   make     look at the old superblock ─► mount, privately ─► list files and where they lie ─► one file takes free space
//!            ─► copy what cannot stay into it ─► unmount ─► metadata into its blocks ─► header
//!   commit   header ─► the volume's superblocks over the old one ─► header goes
//!   abandon  header goes ─► mount, privately ─► the file goes
//!
//!   make ─► old ─► (ext4, xfs)     what the old file system is
//!        ─► mounted, scan          its files
//!        ─► places, room           which blocks stay, which are copied, and where to
//!   commit ─► head                 the first 4 KiB of the device, step by step
//! ```
//!
//! Until the commit nothing is written to the device but blocks of that one file, and the old file
//! system itself is not changed by it: it can be mounted, and is as it was when the file is removed.
//!
//! Invariants:
//! - I-ADO-2: before a commit nothing is written to the device but blocks of the file that was made
//!   for it (`fence.rs`).
//! - I-ADO-3: one write of one sector makes the volume of the old file system. Before it the old one
//!   is whole, bytes apart that it never uses; after it a copy of the volume's superblock verifies
//!   (`commit.rs`).
#![forbid(unsafe_code)]

mod commit;
mod device;
mod error;
mod fence;
mod head;
mod make;
mod mounted;
mod old;
mod places;
mod room;
mod scan;
mod status;

pub use commit::{Abandoned, Committed, abandon, commit, commit_device};
pub use error::{Error, ErrorKind, Result};
pub use make::{Made, Needs, Plan, make, plan};
pub use mounted::FILE_NAME;
pub use status::{State, Status, status};

#[cfg(test)]
mod tests;
