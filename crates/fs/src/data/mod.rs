//! The data path: from bytes of a file to sectors of the device.
//!
//! ```text
//!  File / Queue ──► path of the file's service
//!                    │ direct, concurrent          │ cached, concurrent+cache
//!                    │                             ▼
//!                    │                      order lock ──► library cache ──► Backing
//!                    ▼                                                          │
//!              inode lock, shared ◄─────────────────────────────────────────────┘
//!                    │
//!   all written and │
//!    not shared?    ─┤ yes: one lookup, the device's own call, nothing else
//!                    │ whole blocks of holes or unwritten: claim the blocks, write, publish
//!                    └ anything else: inode lock, exclusive ─► pad, read-modify-write, publish
//! ```
//!
//! *Publish* is the moment data becomes readable: row changes, size and the checksum of the exposed
//! bytes go into one log record while the extent map and the attributes are locked. Before it the
//! blocks read as a hole; a crash before it leaves them free.
//!
//! Invariants:
//! - I-IO-1: I/O through the map holds the inode lock from lookup to completion; blocks leave a
//!   file under the exclusive lock, or are freed later (I-IO-7).
//! - I-IO-2: one writer at a time fills a block: it holds the block's claim (`fill_claims`) or the
//!   exclusive inode lock.
//! - I-IO-3: bytes on disk that a checksum in the log vouches for change only after
//!   `Unsealed::permit`.
//! - I-IO-4 (tail): bytes of a written block beyond the end of the file are undefined on disk. A
//!   change of the end zeroes what lies between. No block wholly beyond the end is written, except
//!   below an interrupted truncation, which has an orphan row.
//! - I-SUM-2: blocks that have checksums are never written in place (`sums.rs`).
//! - I-IO-5: an extension under the shared lock begins and ends on blocks and leaves no written
//!   tail behind, so I-IO-4 asks nothing of it.

mod appends;
mod bounce;
mod cached;
mod combined;
mod commit_map;
mod cow;
mod defrag;
mod delayed;
mod evacuate;
mod exposure;
mod extent_size;
mod fallocate;
mod fill;
mod follow;
mod fsync;
mod held;
mod imaged;
mod lease;
mod logged;
mod lookup;
mod mapping;
mod members;
mod open;
mod placed;
mod queued;
mod read;
mod reclaim;
mod release;
mod renew;
mod reservation;
mod seek;
mod share_range;
mod sized;
mod space_demand;
mod span;
mod sums;
mod sweep;
mod tail;
mod trial;
mod truncate;
mod untorn;
mod windows;
mod write;

pub(crate) use cached::write_absorbed;
pub(crate) use cow::{forget_pages, forget_places, read_again};
pub use defrag::DefragStep;
pub(crate) use delayed::MayWait;
pub(crate) use extent_size::ATTRIBUTE as EXTENT_SIZE;
pub(crate) use fill::Filling;
pub(crate) use follow::Follow;
pub(crate) use fsync::{flush_before_sync, write_inode, write_inode_alone};
pub(crate) use held::write_held;
pub use members::PlacementMember;
pub(crate) use open::mode_changed;
pub(crate) use placed::{ATTRIBUTE as PLACEMENT, encode as encode_placement};
pub use placed::{FilePlacement, MemberBytes, PlaceStep, PlacementState};
pub(crate) use queued::{Planned, Segments};
pub(crate) use reclaim::Pinned;
pub(crate) use release::{ATTRIBUTE as RELEASE_BEHIND, release_changed};
pub(crate) use share_range::{ShareStep, share_range};
pub(crate) use space_demand::SpaceDemand;
pub(crate) use sums::ATTRIBUTE as INTEGRITY;
pub(crate) use tail::end_tail_of;
pub(crate) use truncate::{begin_set_size, free_all, resume_truncate, set_size};
pub(crate) use untorn::ATTRIBUTE as UNTORN;
pub(crate) use windows::{Ahead, Stream};

use std::sync::Arc;

use crate::engine::Engine;
use crate::inode::{FileState, Inode};
use crate::lock::{Exclusive, Shared};

/// The inode lock, held shared: the map's written extents stay.
type Held<'a> = Shared<'a>;
/// The inode lock, held exclusive.
type Alone<'a> = Exclusive<'a>;

/// The data path of one inode: what every function here works on.
#[derive(Clone, Copy)]
pub(crate) struct DataPath<'a> {
    pub(crate) fs: &'a Engine,
    pub(crate) inode: &'a Arc<Inode>,
}

impl<'a> DataPath<'a> {
    pub(crate) fn new(fs: &'a Engine, inode: &'a Arc<Inode>) -> Self {
        Self { fs, inode }
    }

    pub(crate) fn state(self) -> &'a FileState {
        &self.inode.data
    }
}

#[cfg(test)]
mod lots_tests;
#[cfg(test)]
mod part_tests;
#[cfg(test)]
mod tail_tests;
#[cfg(test)]
mod tests;
