//! Mistakes that can be switched on, so that the crash judge can show that it finds them.
//!
//! Only the judge's own tests ask for the feature `planted-bugs`; the unit tests of this crate have it. Without it the question below is the constant `false`, and nothing of this is
//! in the program; `cargo xtask tidy` sees to it that nobody else asks.

#[cfg(any(test, feature = "planted-bugs"))]
use std::cell::{Cell, RefCell};

use crate::log::Record;
#[cfg(any(test, feature = "planted-bugs"))]
use crate::{
    log::RecordKind,
    row::{RowChange, Table},
};

/// A mistake that loses or shows what it must not. Each stands where a slip of the hand would make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// A group commit does not flush after it wrote the log.
    MissingFlush,
    /// A sync of a file without pending metadata flushes nothing.
    SyncWithoutFlush,
    /// A log write that seals its records goes out before the data they expose.
    LogBeforeData,
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
    /// A failed flush is forgotten, and the next sync reports what it lost as durable.
    FailedFlushForgotten,
    /// Pages of a file that is written untorn are written in place.
    UntornInPlace,
    /// Of a log on a device of its own, the log is flushed before the data that it exposes.
    DataFlushedAfterLog,
    /// A rollback is two records, and the first may be durable without the second.
    RollbackInParts,
    /// Blocks that were shared are written in place before the record that ended the sharing is sealed.
    WriteBeforeUnshared,
    /// Who comes while a round of group commit is under way takes it for one that serves it.
    JoinedTooLate,
    /// The superblocks are there before the volume that they describe is.
    PublishedWhileFormatting,
    /// What a thread changes of extended attributes goes into the log with its next change or sync, and not before what others change after it.
    LoggedOutOfOrder,
    /// Every seventh caller of a group commit that finds a round under way returns at once.
    SeventhAnsweredEarly,
    /// A truncation in several records does not note that it is under way.
    #[cfg(any(test, feature = "planted-bugs"))]
    TruncationNotMarked,
    /// The images of a checkpoint that is deleted go to the oldest one that holds the file, and not to the next older.
    ImagesToOldestHeir,
}

#[cfg(any(test, feature = "planted-bugs"))]
impl PlantedBug {
    /// All of them.
    pub const ALL: [Self; 24] = [
        Self::MissingFlush,
        Self::SyncWithoutFlush,
        Self::LogBeforeData,
        Self::ExposureWithoutChecksum,
        Self::ReuseBeforeSealed,
        Self::OverwriteWithoutSeal,
        Self::NewBlockNotPadded,
        Self::TailNotZeroed,
        Self::MetadataCommitWithoutFlush,
        Self::TailBeforeCommit,
        Self::SuperblockWithoutFlush,
        Self::RenameNotNoted,
        Self::SameIncarnation,
        Self::FailedFlushForgotten,
        Self::UntornInPlace,
        Self::DataFlushedAfterLog,
        Self::RollbackInParts,
        Self::WriteBeforeUnshared,
        Self::JoinedTooLate,
        Self::PublishedWhileFormatting,
        Self::LoggedOutOfOrder,
        Self::SeventhAnsweredEarly,
        Self::TruncationNotMarked,
        Self::ImagesToOldestHeir,
    ];
}

#[cfg(any(test, feature = "planted-bugs"))]
thread_local! {
    static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
    /// What this thread changed and did not log yet.
    static UNLOGGED: RefCell<Vec<RowChange>> = const { RefCell::new(Vec::new()) };
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

/// Returns whether this thread makes a mistake.
#[cfg(any(test, feature = "planted-bugs"))]
pub(crate) fn planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// What is logged instead of a record where the order or the mark of a truncation is wrong.
#[cfg(any(test, feature = "planted-bugs"))]
pub(crate) fn logged_instead(record: &Record) -> Option<Record> {
    if planted(PlantedBug::TruncationNotMarked) && record.kind == RecordKind::Truncate {
        let rows = record.rows.iter().filter(|row| row.table != Table::Orphan).cloned().collect();
        return Some(Record { kind: record.kind, rows, exposes: record.exposes.clone(), barrier: record.barrier });
    }
    if !planted(PlantedBug::LoggedOutOfOrder) {
        return None;
    }
    UNLOGGED.with_borrow_mut(|unlogged| {
        if record.kind == RecordKind::Xattr {
            let (late, rows) = record.rows.iter().cloned().partition(|row| row.table == Table::Xattr);
            unlogged.extend::<Vec<_>>(late);
            return Some(Record { kind: record.kind, rows, exposes: None, barrier: false });
        }
        let rows = unlogged.drain(..).chain(record.rows.iter().cloned()).collect();
        Some(Record { kind: record.kind, rows, exposes: record.exposes.clone(), barrier: record.barrier })
    })
}

/// Everybody logs in order.
#[cfg(not(any(test, feature = "planted-bugs")))]
pub(crate) const fn logged_instead(_: &Record) -> Option<Record> {
    None
}

/// Nobody makes mistakes.
#[cfg(not(any(test, feature = "planted-bugs")))]
pub(crate) const fn planted(_: PlantedBug) -> bool {
    false
}
