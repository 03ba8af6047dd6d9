//! The file system on one [`block::BlockDevice`]: names, inodes, extents, I/O modes, the intent log and recovery.
#![forbid(unsafe_code)]

mod activity;
mod bytes;
mod cache;
mod calendar;
mod change;
mod check;
mod checkpoint;
mod checksum;
mod daemon;
mod decode;
mod error;
mod extent;
#[cfg(any(test, feature = "forge"))]
#[doc(hidden)]
pub mod forge;
mod format;
mod info;
mod inode;
mod io;
mod keeper;
mod latency;
mod listed;
mod lock;
mod log;
mod meta;
mod mode;
#[cfg(test)]
mod model_locks;
mod mount;
mod mover;
mod names;
mod options;
mod pause;
mod planted;
mod row;
mod salvage;
mod space;
mod state;
mod stats;
mod superblock;
mod tally;
mod trial;
mod tune;
mod types;

mod file;
mod filesystem;
mod queue;
mod report;
mod units;

pub use activity::{FileActivity, FilePath};
pub use cache::CacheCounters;
pub use calendar::format_time;
pub use checkpoint::{
    ChangedBlocks, ChangedKind, ChangedRange, CheckpointCounts, CheckpointDifference, CheckpointHold, CheckpointInfo, CheckpointOptions,
    CheckpointScope, CheckpointSpace, CloneReport, CloneSource, DifferenceKind, Moment, Pressure, RollbackOptions, RollbackReport, Schedule,
    ScheduleRun, SpacePolicy,
};
pub use error::{Error, ErrorKind, Result};
pub use file::File;
pub use filesystem::FileSystem;
pub use io::{DefragStep, Fragmentation};
pub use latency::{Latencies, LatencySnapshot};
pub use mover::{MovedFile, MoverReport, MoverState};
pub use names::{readable_name, split_mode_suffix};
#[doc(hidden)]
pub use options::{BetweenRecords, Limits};
pub use options::{FormatOptions, InodeLockSetting, MountOptions, OpenOptions};
#[cfg(feature = "interleave")]
pub use pause::{Pause, PauseHook, on_pause};
#[cfg(feature = "interleave")]
pub use planted::inherit;
#[cfg(any(test, feature = "planted-bugs"))]
pub use planted::{PlantedBug, plant};
pub use queue::{Queue, QueueCompletion};
pub use report::{CheckReport, Finding, FindingKind, FormatReport, FsInfo, LogInfo, RecoveryReport};
pub use salvage::{LostRange, Salvage, SalvagedEntry};
#[cfg(feature = "statistics-switch")]
pub use stats::statistics_switch;
pub use stats::{CounterSnapshot, Reason};
pub use tune::{TUNABLES, Takes, Tunable, TunableInfo, TunableSet, TunableState, TuneOptions, TunedBy, Unit};
pub use types::{
    AllocateMode, Attr, BlockNo, DirEntry, Epoch, ExtentInfo, FileBlock, FileKind, InodeNo, IoMode, Lsn, NewFile, RenameMode, SetAttr, Statfs,
    Timestamp, Untorn,
};
pub use units::{format_duration, format_size, parse_duration, parse_size};
