//! The file system on one [`bedplate_block::BlockDevice`]: names, inodes, I/O modes, checkpoints,
//! mount and recovery.
//!
//! ```text
//!   filesystem, queue ─► file                              the interface
//!   background ─► activity, tune ─► checkpoint             threads; services
//!   mount, format, adopt, check, salvage, upgrade          recovery and repair
//!   namespace ─► data                                      names; bytes of a file to sectors of the device
//!   engine ─► inode ─► lock, mode, options, statistics     what a mount and a file keep
//!                     └► bedplate_cache, bedplate_store
//! ```
#![forbid(unsafe_code)]

mod activity;
mod adopt;
mod background;
mod calendar;
mod check;
mod checkpoint;
mod data;
mod engine;
#[cfg(any(test, feature = "forge"))]
#[doc(hidden)]
pub mod forge;
mod format;
mod inode;
mod lease;
mod lock;
mod log_place;
mod mode;
mod mount;
mod namespace;
mod options;
mod pause;
mod salvage;
mod schedule;
mod shrink;
mod statistics;
mod tune;
mod types;
mod upgrade;

mod copy_range;
mod file;
mod filesystem;
mod queue;
mod units;

pub use bedplate_cache::{CacheCounters, SharedCache};
#[cfg(feature = "interleave")]
pub use bedplate_store::inherit;
pub use bedplate_store::{
    BlockNo, Epoch, Error, ErrorKind, FileBlock, FileKind, InodeNo, IoMode, LogInfo, Lsn, OwnPlace,
    Result, Timestamp, readable_name, right_of, told_name,
};
#[cfg(any(test, feature = "planted-bugs"))]
pub use bedplate_store::{PlantedBug, plant};

pub use activity::{FileActivity, FilePath};
pub use adopt::{
    AdoptedExtent, AdoptedInode, AdoptedVolume, Adoption, METADATA_RUNS_MAX, adopt, superblock_over,
};
pub use calendar::format_time;
pub use check::{CheckReport, Finding, FindingKind};
pub use checkpoint::{
    ChangedBlocks, ChangedKind, ChangedRange, CheckpointDifference, CheckpointHold, CheckpointInfo,
    CheckpointOptions, CheckpointScope, CheckpointSpace, CloneReport, CloneSource, DifferenceKind,
    Pressure, RollbackOptions, RollbackReport, ScheduleRun,
};
pub use copy_range::CopyStep;
pub use data::{
    DefragStep, FilePlacement, MemberBytes, PlaceStep, PlacementMember, PlacementState,
};
pub use engine::{
    CheckpointCounts, DefragmenterReport, DefragmenterState, Fragmentation, IntegrityCounts,
    KeptExtent, MapCounts, MovedFile, RecoveryReport, SpacePolicy,
};
pub use file::{File, ReadBytes};
pub use filesystem::{FileSystem, FsInfo, IoThreads};
pub use format::FormatReport;
pub use inode::WindowBytes;
pub use lease::{
    LeaseClient, LeaseCounts, LeaseProcess, LeaseReport, LeaseRequests, LeaseWait, LeasedBy,
    LeasedInode, RefusedInode,
};
pub use log_place::{LogMove, LogMoveOptions, LogSpot};
pub use namespace::{AclKind, SetGroupId, split_mode_suffix};
#[doc(hidden)]
pub use options::{BetweenRecords, Limits};
pub use options::{FormatOptions, InodeLockSetting, MountOptions, OpenOptions, meant};
pub use options::{
    TUNABLES, Takes, Tunable, TunableInfo, TunableSet, TunableState, TuneOptions, TunedBy, Unit,
};
#[cfg(feature = "interleave")]
pub use pause::{Pause, PauseHook, on_pause};
pub use queue::{Queue, QueueCompletion};
pub use salvage::{LostRange, Salvage, SalvagedEntry};
pub use schedule::{ClockReading, Schedule};
pub use shrink::{ShrinkPlan, ShrinkStep};
#[cfg(feature = "statistics-switch")]
pub use statistics::statistics_switch;
pub use statistics::{CounterSnapshot, Latencies, LatencySnapshot, Reason, WaitTime, Waits};
pub use types::{
    AllocateMode, Attr, DirEntry, ExtentInfo, NewFile, ReleaseBehind, RenameMode, SetAttr, Statfs,
    TrimStep, Untorn,
};
pub use units::{format_duration, format_size, parse_duration, parse_size};
pub use upgrade::UpgradeReport;
