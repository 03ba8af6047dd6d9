//! Metadata: rows in memory over rows in a tree, made durable by the intent log.
//!
//! ```text
//!  commit(record) ──► log buffer ──sync()──► log            reads: active, frozen, tree
//!        │
//!        └──► active memtable ──freeze──► frozen ──metadata_commit()──► tree (redb), then the log's tail moves
//! ```
//!
//! Invariants:
//! - I-META-1: the order of records in the log is the order in which rows reach the memtable (one
//!   lock covers both).
//! - I-META-2: the tree's durable commit holds exactly the records up to the log position stored in
//!   the same commit.
//! - I-META-3: that commit starts only after the log is durable up to that position (or, when the
//!   log is full, after those records left the log's buffer for good).
//! - I-META-5: a metadata commit that finds no room for the region to grow changes nothing and
//!   latches nothing. What is accepted while such a commit is to be expected has room in the log:
//!   `room.rs` states it (I-META-6).
//! - I-META-4: a reader sees every row in one of active, frozen and tree at every moment of a
//!   metadata commit.

#[cfg(any(test, feature = "forge"))]
mod bulk;
mod checkpoints;
mod compare_space;
mod durable;
mod extents;
#[cfg(any(test, feature = "forge"))]
mod forged;
mod guard;
mod homes;
mod memtable;
mod merge;
mod misordered;
mod moving;
mod own;
mod pace;
mod packs;
mod read;
mod region;
mod room;
mod space;
mod store;
mod stored_space;
mod sum_cache;
mod sums;
mod tree;

#[cfg(any(test, feature = "forge"))]
pub use bulk::{Bulk, write_bulk};
pub use checkpoints::load_checkpoints;
#[cfg(any(test, feature = "forge"))]
pub use forged::{TableBytes, space_bytes, spoil_pack, table_bytes, unpack_rows};
pub use guard::guarded;
pub use own::{OwnPlace, right_of};
pub use read::State;
pub use region::{GrowRegion, Growth, MetadataCounts, MovedRegion, Region};
pub use room::{Outlook, Purpose};
pub use store::{Committed, Locked, MetaStore};
pub use stored_space::StoredSpace;
#[cfg(any(test, feature = "forge"))]
pub use tree::write_rows;
pub use tree::{POSITION, format_tree, open_tree, stored_position, table_name};
