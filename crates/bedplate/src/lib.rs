//! Ordinary files with the speed of a raw device, for databases: the public library.
#![forbid(unsafe_code)]

pub use bedplate_block::{
    AlignedBuf, BlockDevice, Completion, DeviceCounters, DeviceOptions, DeviceQueue, Engine,
    EngineReport, EngineThreads, Error as DeviceError, ErrorKind as DeviceErrorKind, Geometry,
    MemoryDevice, QueueOptions, Request, RequestKind, Segment, create_image,
};
pub use bedplate_fs::{
    AllocateMode, Attr, CacheCounters, ChangedBlocks, ChangedKind, ChangedRange, CheckReport,
    CheckpointCounts, CheckpointDifference, CheckpointHold, CheckpointInfo, CheckpointOptions,
    CheckpointScope, CheckpointSpace, ClockReading, CloneReport, CloneSource, CopyStep,
    CounterSnapshot, DefragStep, DefragmenterReport, DefragmenterState, DifferenceKind, DirEntry,
    Epoch, Error, ErrorKind, ExtentInfo, File, FileActivity, FileKind, FilePath, FilePlacement,
    FileSystem, Finding, FindingKind, FormatOptions, FormatReport, Fragmentation, FsInfo,
    InodeLockSetting, InodeNo, IntegrityCounts, IoMode, IoThreads, KeptExtent, Latencies,
    LatencySnapshot, LeaseCounts, LeaseReport, LeaseWait, LeasedBy, LeasedInode, LogInfo, LogMove,
    LogMoveOptions, LogSpot, LostRange, MapCounts, MemberBytes, MountOptions, MovedFile, NewFile,
    OpenOptions, OwnPlace, PlaceStep, PlacementMember, PlacementState, Pressure, Queue,
    QueueCompletion, Reason, RecoveryReport, RefusedInode, ReleaseBehind, RenameMode, Result,
    RollbackOptions, RollbackReport, Salvage, SalvagedEntry, Schedule, ScheduleRun, SetAttr,
    ShrinkPlan, ShrinkStep, SpacePolicy, Statfs, TUNABLES, Takes, Timestamp, TrimStep, Tunable,
    TunableInfo, TunableSet, TunableState, TuneOptions, TunedBy, Unit, Untorn, UpgradeReport,
    WaitTime, Waits, format_duration, format_size, format_time, meant, parse_duration, parse_size,
    readable_name, right_of, split_mode_suffix,
};
pub use bedplate_volume::{
    ArbiterProvider, Arrangement, Arrival, Config as GroupConfig, Difference, Error as GroupError,
    ErrorKind as GroupErrorKind, FOREGROUND_PERCENT_DEFAULT, FOREGROUND_UNLIMITED, Foreground,
    Group, HEAD_BYTES, Id, ImportOptions, Innodb, JoinHalf, JoinPlan, Label, Layout,
    MEMBER_BYTES_MIN, Member, MemberState, MemberStatistics, NewDivided, NewGroup, NewVolume,
    OpenPieces, OperationStatistics, PageArbiter, PageFormat, PlexStatistics, Postgres, Relayout,
    RelayoutProgress, RelayoutState, Result as GroupResult, Role, ScrubFinding, ScrubReport,
    ScrubResult, ScrubSchedule, Shape, Split, Sqlite, SyncProgress, TABLE_BYTES, TableLock,
    TableMember, TableVolume, Target, UNIT_BYTES_DEFAULT, Undecided, Volume, VolumeConfig,
    VolumeOptions, VolumePart, VolumeStatistics, VolumeTable, WeakGroup, Which, add_member,
    add_volume, begin_replace, create as create_group, create_divided, end_replace, grow_volume,
    page_formats, remove_member, remove_volume,
};

/// The example of the README, compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The examples of the book's chapter on embedding, run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/embedding.md")]
struct Embedding;
