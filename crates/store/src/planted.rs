//! Mistakes that can be switched on, so that the crash judge can show that it finds them.
//!
//! Only the judge's own tests and `cargo xtask mutants` ask for the feature `planted-bugs`; the
//! unit tests of this crate have it. Without it the question below is the constant `false`, and
//! nothing of this is in the program; `cargo xtask tidy` sees to it that no other crate asks.
//!
//! A test plants a mistake in its own thread. `BEDPLATE_PLANTED=NAME` in the environment plants one
//! in the whole process, so that any test binary can be run with any mistake without being built
//! again.

#[cfg(any(test, feature = "planted-bugs"))]
use std::{cell::Cell, sync::OnceLock};

/// Makes an enum, and the list of all its values for what plants them.
macro_rules! listed {
    ($(#[$of_all:meta])* pub enum $list:ident { $($(#[$of_one:meta])* $name:ident,)* }) => {
        $(#[$of_all])*
        pub enum $list {
            $($(#[$of_one])* $name,)*
        }

        #[cfg(any(test, feature = "planted-bugs"))]
        impl $list {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

listed! {
/// A mistake that loses or shows what it must not. Each stands where a slip of the hand would make
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// A group commit does not flush after it wrote the log.
    MissingFlush,
    /// A sync of a file without pending metadata flushes nothing.
    SyncWithoutFlush,
    /// A directory counts as synced whose last record is not durable.
    DirectoryNotSynced,
    /// A log write that seals its records goes out before the data they expose.
    LogBeforeData,
    /// A flush counts for records that were appended while it was under way.
    FlushCountsForLater,
    /// A record exposes data without its checksum, and nothing waits for the data.
    ExposureWithoutChecksum,
    /// Blocks are used again before the record that freed them is sealed.
    ReuseBeforeSealed,
    /// Bytes that a checksum in the log vouches for are overwritten in place without a seal.
    OverwriteWithoutSeal,
    /// A new block is written without zeros around the data.
    NewBlockNotPadded,
    /// A file that grows shows what lay behind its old end.
    TailNotZeroed,
    /// The metadata tree's flushes are left out.
    MetadataCommitWithoutFlush,
    /// The log's tail moves behind a metadata commit that is not durable.
    TailBeforeCommit,
    /// The superblock is written without a flush.
    SuperblockWithoutFlush,
    /// A rename is not noted where a sync of the file or the directory looks.
    RenameNotNoted,
    /// A recovery goes on with the incarnation of the log that it recovered.
    SameIncarnation,
    /// A recovery does not flush the log's own device, and relies on what a cut may take back.
    RecoveryWithoutFlush,
    /// A failed flush is forgotten, and the next sync reports what it lost as durable.
    FailedFlushForgotten,
    /// A flush of the metadata succeeds although one of the log has failed, and the other way round.
    FlushesApart,
    /// Pages of a file that is written untorn are written in place.
    UntornInPlace,
    /// Of a log on a device of its own, the log is flushed before the data that it exposes.
    DataFlushedAfterLog,
    /// A rollback is two records, and the first may be durable without the second.
    RollbackInParts,
    /// Blocks that were shared are written in place before the record that unshared them is sealed.
    WriteBeforeUnshared,
    /// A caller that comes while a round of group commit is under way takes it for its own.
    JoinedTooLate,
    /// The superblocks are there before the volume that they describe is.
    PublishedWhileFormatting,
    /// What a thread changes of extended attributes goes into the log with its next change or sync,
    /// and not before what others change after it.
    LoggedOutOfOrder,
    /// Every seventh caller of a group commit that finds a round under way returns at once.
    SeventhAnsweredEarly,
    /// A truncation in several records does not note that it is under way.
    TruncationNotMarked,
    /// The images of a checkpoint that is deleted go to the oldest that holds the file, not the next.
    ImagesToOldestHeir,
    /// A log write says that it seals its own records although nothing was flushed before it.
    SealedWithoutFlush,
    /// A log write says of the one before it that it was durable, whether it was or not.
    DurableTooEarly,
    /// A log write says of nothing that it is sealed; in memory it is.
    SealNotSaid,
    /// A record that must wait for its data does not wait.
    BarrierForgotten,
    /// Records that expose data count as sealed as soon as they are durable.
    ExposureForgotten,
    /// Records are sealed whose data is in the log and not where it belongs.
    SealedBeforeHome,
    /// Data that a record carries goes where it belongs above what was written there since.
    HomeOverNewer,
    /// A record carries what is written over bytes that the record before expects on the device.
    LoggedOverUncarried,
    /// Reads do not see what only the log has.
    HomeNotRead,
    /// What records carry is forgotten instead of written where it belongs.
    HomeNotWritten,
    /// A replay does not take the data that records carry.
    HomeNotReplayed,
    /// What the log's buffer had no room for is not kept from being acknowledged.
    DropNotNoted,
    /// Records behind a metadata commit are dropped with those before it.
    SkipsTooMuch,
    /// An overwrite is let through although the record that exposes the bytes is being written.
    PermitTooLate,
    /// An overwrite is let through, and the record that exposes the bytes does not wait for it.
    PermitWithoutBarrier,
    /// Replay starts one log write too late.
    PositionTooFar,
    /// A group commit counts as done when it begins.
    ServedBeforeWork,
    /// Callers that sleep are not woken at the end of a group commit.
    WakeForgotten,
    /// Replay looks for the data of sealed records, which may have been overwritten since.
    SealNotBelieved,
    /// Replay takes records whose data did not arrive.
    ExposureNotChecked,
    /// Replay leaves out a record whose data did not arrive and goes on behind it.
    GapInReplay,
    /// Replay takes a log write that is not whole.
    TornBatchTaken,
    /// Replay does not look at the start of the ring when the end is reached.
    WrapNotFollowed,
    /// A row of the tree is shown beside its newer image.
    HiddenRowShown,
    /// Of two images of a row in memory the older one is shown by scans.
    LowestLayerWins,
    /// The memtable forgets a row that is removed, and the tree's is shown again.
    DeletionForgotten,
    /// A metadata commit does not move the log's position.
    PositionNotCommitted,
    /// The log's tail moves before the metadata commit is written.
    TrimmedBeforeCommit,
    /// Replay applies the rows of a record in reverse order.
    RowsInReverse,
    /// Both copies of the superblock have the same generation although they differ.
    GenerationStays,
    /// A mount leaves the copies of the superblock as a power cut left them.
    CopiesStayUnequal,
    /// A change of the superblock stays in memory.
    SuperblockNotWritten,
    /// The metadata region grows over what was there before.
    RegionNotZeroed,
    /// The superblock names a larger metadata region before its zeros are durable.
    RegionGrowthWithoutFlush,
    /// A checkpoint does not look at the images of newer ones.
    NewerImagesIgnored,
    /// A mount does not remove files that lost their last name.
    OrphansLeft,
    /// A mount counts the blocks that only checkpoints need as free.
    ImagesFreeAfterMount,
    /// What a file remembers of its map outlives a change of it.
    MemoOutlivesMap,
    /// The old row of an inode, a name or an attribute is not kept for a checkpoint.
    ImageForgotten,
    /// A later image of a row replaces the one that a checkpoint has.
    ImageOverwritten,
    /// The old row of an extent is not kept for a checkpoint.
    ExtentImageForgotten,
    /// The old row goes to the oldest checkpoint and not to the newest.
    ImageForOldest,
    /// A checkpoint keeps the past of inodes that are younger than it.
    LaterInodesHeld,
    /// A checkpoint of named files keeps the past of all.
    NamedHoldsAll,
    /// What a deleted checkpoint had is written in place before the deletion is durable.
    DeletedWrittenAtOnce,
    /// A checkpoint is made beside dirty pages that were acknowledged.
    FreezeLeavesDirty,
    /// Checkpoints and rollbacks do not wait for long changes of closed files.
    FreezeBesideChanges,
    /// A rollback leaves pages of what was there before in the library cache.
    RollbackKeepsPages,
    /// A write of whole sectors leaves a file's copies of them as they were.
    HeldSectorsStay,
    /// What goes to new blocks instead of waiting for a seal loses the bytes around it.
    RenewedInPart,
    /// A read does not see a write that is held.
    HeldWriteNotRead,
    /// A sync does not write what is held.
    HeldWriteNotSynced,
    /// A checkpoint does not have the writes that are held.
    FreezeLeavesHeld,
    /// A read does not see a write that is delayed.
    DelayedWriteNotRead,
    /// A sync does not write what is delayed.
    DelayedWriteNotSynced,
    /// A write goes to the device past one of the same sectors that is delayed.
    DelayedWritePassed,
    /// Of writes that are written together one is left out.
    CombinedWriteLeftOut,
    /// A large read passes pages of the library cache that are dirty.
    LargeReadPassesDirty,
    /// A large write passes the library cache and is not announced to it.
    LargeWriteUnannounced,
    /// What was read ahead stays when it is written.
    WindowOutlivesWrite,
    /// What was read ahead beside a write stays when that has ended.
    WindowReadBesideWrite,
    /// A sync does not wait for a truncation that has taken dirty pages away.
    SyncPassesTruncation,
    /// Blocks are discarded before the record that freed them is sealed.
    DiscardBeforeSealed,
    /// What needs a file alone does not wait for processes that do I/O on it under a lease.
    LeaseNotDrained,
    /// What needs a file alone does not wait for asynchronous requests of processes with leases.
    LeaseRequestsNotDrained,
    /// Processes with leases write on in blocks that a new checkpoint needs.
    LeaseOutlivesCheckpoint,
    /// Blocks that left a file stay in the map that processes with leases go by.
    LeaseMapNotRewritten,
    /// A file is handed out to processes with leases while a write of it is held in memory.
    LeasedWhileHeld,
    /// The mount writes to a file beside the process that has the right to odd writes of it.
    WriteBesideOddOwner,
    /// A sync makes nothing of what a process with a lease wrote behind the end of the file durable.
    TailNotSynced,
    /// The record of what a process wrote behind the end of a file does not wait for the device.
    TailWithoutBarrier,
    /// The mount makes a file grow to which a process appends in its memory.
    GrowthBesideAppends,
    /// The mount reads and writes a file without what a process wrote over it in its memory.
    OverwritesNotTaken,
    /// What a process wrote behind the end of a file counts as collected before the file has its size.
    TailCollectedEarly,
    /// A checkpoint's record does not wait for what was written in place before it.
    CheckpointWithoutBarrier,
    /// After a checkpoint extents are born in its own epoch.
    EpochStays,
    /// A checkpoint's record does not move the epoch, and nothing that goes with it.
    EpochNotCommitted,
    /// A checkpoint of named files has no images of the directories that lead to them.
    WaysForgotten,
    /// A checkpoint is reported before it is durable.
    CheckpointNotSynced,
    /// A deleted checkpoint takes with it what an older one needs.
    ImagesNotHandedOn,
    /// What a deleted checkpoint hands on replaces what the heir has.
    HeirOverwritten,
    /// What a deleted checkpoint alone had is used again before the deletion is sealed.
    DeletionFreesAtOnce,
    /// What a deleted checkpoint alone had stays in use until the next mount.
    DeletionFreesNothing,
    /// A checkpoint is deleted while files of it are open.
    DeletedWhileOpen,
    /// A deletion of a checkpoint is reported before it is durable.
    DeletionNotSynced,
    /// The old row of a change goes to a checkpoint although one that is being deleted has an older
    /// one for it.
    DeletingNotAsked,
    /// Of several checkpoints that are being deleted the newest hands on first.
    NewestDeletedFirst,
    /// A checkpoint's own row goes with the first step of its deletion.
    DeletionEndsEarly,
    /// Nothing goes on behind a mount with the deletion of a checkpoint that was interrupted.
    DeletionNotResumed,
    /// A mount waits for the end of the deletion of a checkpoint that was interrupted.
    MountEndsDeletions,
    /// A change finds no space although a deletion of a checkpoint goes on that frees some.
    DeletionNotAwaited,
    /// A checkpoint with few images is deleted at once while an older one is being deleted.
    ShortDeletionFirst,
    /// A check wants files noted that only a checkpoint has which is being deleted.
    GoneFilesCompared,
    /// A rollback makes no checkpoint of what it replaces.
    RollbackWithoutUndo,
    /// A rollback that is not forced goes on under open files.
    RollbackUnderOpenFiles,
    /// A rollback is reported before it is durable.
    RollbackNotSynced,
    /// What a rollback frees is used again before it is sealed.
    RollbackFreesAtOnce,
    /// Files in memory stay as they were before a rollback.
    RollbackNotReadAgain,
    /// A rollback puts back only what newer checkpoints have.
    RollbackSkipsOwnImages,
    /// A rollback leaves the files that are younger than the checkpoint.
    LaterFilesStay,
    /// The blocks that a clone shares are not counted as shared.
    CloneUncounted,
    /// A file that was cloned, and its clone, write shared blocks in place.
    CloneWrittenInPlace,
    /// Extents count as the file's own although a clone shares them.
    ClonedUptoStays,
    /// A clone ends after the first record of extents.
    CloneEndsEarly,
    /// What a clone had that was being made counts as what the moment held that is compared with.
    UnfinishedCompared,
    /// A clone is reported before it is durable.
    CloneNotSynced,
    /// The checkpoint that a clone of the present was made from stays.
    PassingCheckpointStays,
    /// Preallocated blocks that two files share count as needed by neither.
    UnwrittenNotNeeded,
    /// Blocks that two rows need count as not shared.
    TwoAreNone,
    /// Blocks of one extent count as shared where one of them is.
    SharedAsAWhole,
    /// A range that is shared may be the target's before what the source was written in place is on
    /// the device.
    RangeWithoutBarrier,
    /// Blocks that a copied range shares are not counted as shared.
    RangeUncounted,
    /// A copied range gives a file a block that it has elsewhere.
    BlockHadTwice,
    /// Files that share a range go by what they looked up before.
    RangeWrittenInPlace,
    /// A change in the middle of a shared run forgets what lies behind it.
    ShareTailLost,
    /// A full volume and retention delete checkpoints that are marked as kept.
    KeptIsRemovable,
    /// A full volume deletes checkpoints although the policy refuses.
    PolicyIgnored,
    /// Defragmentation goes on while a checkpoint is made.
    MoveBesideFreeze,
    /// Defragmentation moves a file whose pages are dirty.
    MoveLeavesDirty,
    /// Defragmentation copies blocks that others need too.
    MoveOfShared,
    /// Defragmentation copies to a place that is no better.
    MoveToNoBetterPlace,
    /// Defragmentation publishes a copy that may not be durable.
    MoveWithoutChecksum,
    /// Background defragmentation does not wait for busy programs.
    MoverNeverWaits,
    /// A survey counts a file with holes as scattered.
    HolesCountAsSeeks,
    /// A metadata commit does not fold into the stored free space what a removed extent had.
    FreedRunNotFolded,
    /// A metadata commit folds its changes into the stored free space twice.
    SpaceFoldedTwice,
    /// A region that is packed loses one of its free runs.
    PackedRunForgotten,
    /// The stored free space is committed before the rows that change it, which may fail.
    SpaceCommittedApart,
    /// Regions that the allocator has not loaded stay so while a metadata commit changes them.
    ChangedRegionNotLoaded,
    /// A pack does not say where the file has holes between its extents.
    PackHoleForgotten,
    /// The numbers of a pack are cut off where they are too far from the least one.
    PackPlaceWraps,
    /// Of two packs that become one, the last extent of the first is lost.
    PackTailLostAtJoin,
    /// A pack or row stays in the tree beside the packs that have its extents since.
    RepackedRowStays,
    /// A read from the middle of a pack begins with the next one.
    PackBeforeNotRead,
    /// An extent of a pack that gets another place keeps the epoch that it was born in.
    PatchKeepsBirth,
    /// A part of a map that has changed leaves memory and is read again before the rows have changed.
    ChangedPartEvicted,
    /// A part of a map is read from a block on, without what begins before the block and reaches it.
    PartBeginsLate,
    /// A part of a map says to have all up to the next one, also where not all was read.
    PartTooLong,
    /// A block that is used again keeps the checksum of what it held before.
    OldSumKept,
    /// Replay does not take over the checksums of a record.
    SumsNotReplayed,
    /// Of a read of several blocks only the first is compared with its checksum.
    OnlyFirstSumChecked,
    /// A directory is removed while names are made in it.
    VictimNotLocked,
    /// An inode number is given out before the log has that it is reserved.
    NumberNotReserved,
    /// A file system ends where it is to end before all that lies beyond was moved.
    ShrinkBeforeMoved,
    /// The superblock names the log's new place before the metadata tree holds what the old has.
    LogSwitchedFirst,
    /// The blocks of the log's old place are free before the log has left it.
    LogPlaceFreedEarly,
    /// What is freed beyond the end that a file system is to have is handed out again.
    FenceLetsThrough,
    /// Lots keep what lies beyond the end that a file system is to have, and hand it out.
    LotsBeyondFence,
    /// A lot takes the blocks that its group freed before the records that freed them are sealed.
    LotBeforeSealed,
    /// Shared blocks are moved, and the maps of open files say where they were.
    MovedMapStays,
    /// A part of the metadata counts at its new place before it is there.
    RegionMovedWithoutCopy,
    /// A part of the metadata moves as one copy has it, whatever the checksums of its pages.
    MovedPageNotCompared,
    /// Blocks for a file that was placed come from anywhere.
    PlacementIgnored,
    /// A move to the members that a file was placed on passes over a block.
    PlacedMoveSkipsBlock,
    /// What a directory says of placement is not taken over by what is made in it.
    PlacementNotInherited,
    /// The attribute that places a file is not read.
    PlacementNotRead,
    /// Replay believes one copy of the log, and looks at no other.
    OneCopyReplayed,
    /// A superblock that is not what was written is not looked for in other copies.
    FirstSuperblockBelieved,
    /// A page of the tree counts as it was read, whatever its checksum.
    PageNotCompared,
    /// A scrub takes any bytes for a log write.
    LogWriteNotCompared,
    /// A scrub does not ask for checksums of what only checkpoints have.
    KeptNotCompared,
    /// The bytes of a page that other processes read in the cache change in place.
    SharedPageNotWithdrawn,
    /// A page that other processes read in the cache may pass the end of its file.
    SharedPageBeyondEnd,
    /// A block that is used again is compared with the checksum that was remembered of it.
    SumRemembered,
    /// After a crash copies of file data are made alike before their checksums are looked at.
    DoubtfulDataNotCompared,
    /// An access control list and the mode that it says are two records.
    AclApartFromMode,
    /// A change of the mode leaves the access control list as it was.
    AclOutlivesMode,
    /// The first access control list is not noted where the next mount looks.
    AclNotNoted,
}
}

#[cfg(any(test, feature = "planted-bugs"))]
thread_local! {
    static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
}

/// Plants a mistake in what this thread does from now on, or takes it out.
#[cfg(any(test, feature = "planted-bugs"))]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
}

/// Returns what plants this thread's mistake in another one.
#[cfg(all(feature = "planted-bugs", feature = "interleave"))]
pub fn inherit() -> impl FnOnce() + Send {
    let bug = PLANTED.get();
    move || plant(bug)
}

/// Returns what makes another thread as faultless as this one.
#[cfg(all(not(feature = "planted-bugs"), feature = "interleave"))]
pub fn inherit() -> impl FnOnce() + Send {
    || ()
}

/// Returns whether this thread makes a mistake, or the whole process.
#[cfg(any(test, feature = "planted-bugs"))]
pub fn planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug) || in_process() == Some(bug)
}

/// The mistake that the environment plants.
#[cfg(any(test, feature = "planted-bugs"))]
fn in_process() -> Option<PlantedBug> {
    static NAMED: OnceLock<Option<PlantedBug>> = OnceLock::new();
    let find = || {
        let name = std::env::var("BEDPLATE_PLANTED").ok()?;
        PlantedBug::ALL.iter().copied().find(|bug| format!("{bug:?}") == name)
    };
    *NAMED.get_or_init(find)
}

/// Without the feature there are no mistakes.
#[cfg(not(any(test, feature = "planted-bugs")))]
#[inline]
pub const fn planted(_: PlantedBug) -> bool {
    false
}
