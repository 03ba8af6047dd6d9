//! What is on the device besides file data: superblocks, the intent log, the metadata tree and its
//! rows, extents, before-images and block references; and the free space that follows from them.
//!
//! ```text
//!   meta ──────► log, space, allocator, superblock  commit, read, metadata commit, the region of the tree
//!   allocator ─► space                          free space in memory
//!   space ─────► images                         free space and reference counts in the tree
//!   log                                         records, group commit, replay
//!   images ────► row ─► extent                  what checkpoints keep; rows byte by byte; the extent map of a file
//!   pack ──────► row                            many extents as one row of the tree
//!   sums ──────► row                            checksums of file data, by block
//!   superblock                                  where everything lies
//!   error, types, grid, name, decode, bytes, checksum, planted
//! ```
//!
//! Only the file system uses this crate: nothing here knows of open files, modes, locks of files or
//! the cache.
#![forbid(unsafe_code)]

mod allocator;
mod bytes;
mod checksum;
mod copies;
mod decode;
mod error;
mod extent;
mod grid;
mod images;
mod log;
mod meta;
mod name;
mod pack;
mod planted;
mod row;
mod space;
mod sums;
mod superblock;
mod types;

pub use allocator::{
    AllocRequest, Allocator, Claim, Claims, Elsewhere, FenceTotals, Owner, PlacedRuns, Shared,
    SpaceClass, SpaceTotals, WithheldRun,
};
pub use bytes::Bytes;
pub use checksum::{Crc32c, crc32c};
pub use decode::Reader;
pub use error::{Error, ErrorKind, Result};
pub use extent::{
    EXTENTS_OF_PART, Extent, ExtentChange, ExtentMap, ExtentState, MapMemory, Mapped, Piece, Run,
    Swept,
};
pub use grid::{Grid, within};
#[cfg(any(test, feature = "forge"))]
pub use images::encode_image;
pub use images::{
    Checkpoint, CheckpointRow, CheckpointSet, DeletedUpTo, Others, PriorRow, PriorRows, before_key,
    checkpoint_key, decode_image, freed_by, has_before_images, image_extent, put_image, scope_key,
    split_before_key, split_checkpoint_key, split_scope_key,
};
#[cfg(any(test, feature = "forge"))]
pub use log::encode_record;
#[cfg(any(test, feature = "forge"))]
pub use log::seal_batches;
pub use log::{
    Exposure, HomeOverlay, HomeWrites, LogDeviceHead, LogInfo, LogParts, LogPlace, LogPosition,
    LogWatch, LoggedData, Record, RecordKind, ReplayReport, replay,
};
#[cfg(any(test, feature = "forge"))]
pub use meta::{
    Bulk, TableBytes, space_bytes, spoil_pack, table_bytes, unpack_rows, write_bulk, write_rows,
};
pub use meta::{
    Committed, GrowRegion, Growth, Locked, MetaStore, MetadataCounts, MovedRegion, Outlook,
    OwnPlace, POSITION, Purpose, Region, State, StoredSpace, format_tree, guarded,
    load_checkpoints, open_tree, right_of, stored_position, table_name,
};
pub use name::{NAME_BYTES_MAX, check_name, readable_name, told_name};
#[cfg(any(test, feature = "forge"))]
pub use pack::decode_pack;
pub use pack::unpack;
#[cfg(feature = "interleave")]
pub use planted::inherit;
#[cfg(any(test, feature = "planted-bugs"))]
pub use planted::plant;
pub use planted::{PlantedBug, planted};
pub use row::{
    DentryRow, ExtentRow, InodeRow, RowChange, Table, extent_key, file_block, inode_key, pair_key,
    split_extent_key, split_key,
};
#[cfg(any(test, feature = "forge"))]
pub use space::decode_space_row;
pub use sums::{GROUP_BLOCKS, SUMS_OF_RECORD, SumGroup, put_sums, split_group_key};
pub use superblock::{
    ByteRun, CHUNKS_INLINE, CONTENT_BYTES, COPY_B, COPY_BYTES, Found, LOG_BYTES_MIN, Lists,
    Superblock, VOLUME_BYTES_MIN, seal,
};
pub use types::{BlockNo, Epoch, FileBlock, FileKind, InodeNo, IoMode, Lsn, Timestamp};
