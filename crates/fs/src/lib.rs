//! The file system on one [`block::BlockDevice`]: names, inodes, extents, I/O modes, the intent log and recovery.
#![forbid(unsafe_code)]

mod activity;
mod allocator;
mod background;
mod bytes;
mod cache;
mod calendar;
mod check;
mod checkpoint;
mod checksum;
mod data;
mod decode;
mod engine;
mod error;
mod extent;
#[cfg(any(test, feature = "forge"))]
#[doc(hidden)]
pub mod forge;
mod format;
mod grid;
mod images;
mod inode;
mod lock;
mod log;
mod meta;
mod mode;
#[cfg(test)]
mod model_locks;
mod mount;
mod name;
mod namespace;
mod options;
mod pause;
mod planted;
mod row;
mod salvage;
mod schedule;
mod statistics;
mod superblock;
mod tune;
mod types;

mod file;
mod filesystem;
mod queue;
mod units;

pub use activity::{FileActivity, FilePath};
pub use cache::CacheCounters;
pub use calendar::format_time;
pub use check::{CheckReport, Finding, FindingKind};
pub use checkpoint::{
    ChangedBlocks, ChangedKind, ChangedRange, CheckpointDifference, CheckpointHold, CheckpointInfo, CheckpointOptions, CheckpointScope,
    CheckpointSpace, CloneReport, CloneSource, DifferenceKind, Pressure, RollbackOptions, RollbackReport, ScheduleRun,
};
pub use data::DefragStep;
pub use engine::{CheckpointCounts, Fragmentation, MovedFile, MoverReport, MoverState, RecoveryReport, SpacePolicy};
pub use error::{Error, ErrorKind, Result};
pub use file::File;
pub use filesystem::{FileSystem, FsInfo};
pub use format::FormatReport;
pub use log::LogInfo;
pub use name::readable_name;
pub use namespace::split_mode_suffix;
#[doc(hidden)]
pub use options::{BetweenRecords, Limits};
pub use options::{FormatOptions, InodeLockSetting, MountOptions, OpenOptions};
pub use options::{TUNABLES, Takes, Tunable, TunableInfo, TunableSet, TunableState, TuneOptions, TunedBy, Unit};
#[cfg(feature = "interleave")]
pub use pause::{Pause, PauseHook, on_pause};
#[cfg(feature = "interleave")]
pub use planted::inherit;
#[cfg(any(test, feature = "planted-bugs"))]
pub use planted::{PlantedBug, plant};
pub use queue::{Queue, QueueCompletion};
pub use salvage::{LostRange, Salvage, SalvagedEntry};
pub use schedule::{Moment, Schedule};
#[cfg(feature = "statistics-switch")]
pub use statistics::statistics_switch;
pub use statistics::{CounterSnapshot, Latencies, LatencySnapshot, Reason};
pub use types::{
    AllocateMode, Attr, BlockNo, DirEntry, Epoch, ExtentInfo, FileBlock, FileKind, InodeNo, IoMode, Lsn, NewFile, RenameMode, SetAttr, Statfs,
    Timestamp, Untorn,
};
pub use units::{format_duration, format_size, parse_duration, parse_size};
