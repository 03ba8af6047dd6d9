//! The intent log.

mod device;
mod place;
mod record;

pub(crate) use device::LogDeviceHead;
pub(crate) use place::{LogParts, LogPlace, LogPosition};
pub(crate) use record::{Exposure, Record, RecordKind};

use crate::{Error, LogInfo, Lsn, Result};

/// How a wait for the log ended.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncOutcome {
    /// What was asked for holds.
    Durable,
    /// The log has no room (or dropped records that no ring could hold): make a durable metadata commit, then [`IntentLog::skip_to`].
    NeedsCommit,
}

/// What a replay found.
#[derive(Debug, Clone)]
pub(crate) struct ReplayReport {
    /// Records handed to the visitor.
    pub(crate) records: u64,
    /// The last record of the log: every one up to it is in the metadata or was visited.
    pub(crate) last: Lsn,
    /// Why the log ends there, one sentence.
    pub(crate) end: String,
    /// Says which part is damaged although it had once been durable: records are lost.
    pub(crate) damaged: Option<String>,
    /// The position of the next incarnation; open the log there once a durable metadata commit holds it.
    pub(crate) next: LogPosition,
}

/// Hands every record of the log after `position` to `visitor`, in order. Changes nothing on any device.
///
/// What was read may sit in a volatile cache (the process was killed, the machine not): a mount that goes on to write must flush the data
/// device, then commit the metadata durably together with [`ReplayReport::next`], and only then [`IntentLog::open`] there.
///
/// # Errors
/// `Corrupt` when an intact log write holds what this software does not write; errors of the devices and of the visitor.
pub(crate) fn replay(parts: &LogParts, position: LogPosition, visitor: impl FnMut(Lsn, Record) -> Result<()>) -> Result<ReplayReport> {
    let _ = (parts, position, visitor);
    todo!()
}

/// The open log: takes records, makes them durable in groups. Any number of threads.
#[derive(Debug)]
pub(crate) struct IntentLog {}

impl IntentLog {
    /// Opens the log for writing at a position that a durable metadata commit holds and behind which nothing of its incarnation was written:
    /// [`LogPosition::START`] of a fresh volume, [`ReplayReport::next`] otherwise.
    ///
    /// # Errors
    /// `Corrupt` for a place outside its device or not aligned to the device's blocks.
    pub(crate) fn open(parts: LogParts, position: LogPosition) -> Result<Self> {
        let _ = (parts, position);
        todo!()
    }

    /// Adds a record to the buffer and returns its ordinal. Memory only; never blocks on I/O and never fails.
    ///
    /// Called under the metadata store's mutex, so that the log's order is the order of the memtable. Data the record exposes has been written.
    pub(crate) fn append(&self, record: &Record) -> Lsn {
        let _ = record;
        todo!()
    }

    /// Makes every record up to `lsn` durable, and all data writes of the caller that completed before the call: one flush, shared with others.
    /// `Lsn(0)` asks for the flush only.
    ///
    /// # Errors
    /// The first failure of the log, for ever.
    pub(crate) fn sync(&self, lsn: Lsn) -> Result<SyncOutcome> {
        let _ = lsn;
        todo!()
    }

    /// Makes every record up to `lsn` *sealed*: durable, and replay will take it without a look at the data it exposed.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub(crate) fn seal(&self, lsn: Lsn) -> Result<SyncOutcome> {
        let _ = lsn;
        todo!()
    }

    /// Makes it safe to overwrite, in place, data that record `lsn` exposed. Call before the write is issued.
    /// Costs nothing when the record is sealed or still buffered (its log write then waits for a flush of the data); seals otherwise.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub(crate) fn permit_overwrite(&self, lsn: Lsn) -> Result<SyncOutcome> {
        let _ = lsn;
        todo!()
    }

    /// The last record appended.
    pub(crate) fn last_lsn(&self) -> Lsn {
        todo!()
    }

    /// Every record up to this one is durable.
    pub(crate) fn durable_lsn(&self) -> Lsn {
        todo!()
    }

    /// Every record up to this one is sealed; blocks freed by such a record may be reused. Never above [`durable_lsn`](Self::durable_lsn).
    pub(crate) fn sealed_lsn(&self) -> Lsn {
        todo!()
    }

    /// Bytes of records not yet written; a large value asks for a metadata commit.
    pub(crate) fn buffered_bytes(&self) -> u64 {
        todo!()
    }

    /// Returns the position to store in a metadata commit that holds all records up to `lsn`.
    pub(crate) fn position_after(&self, lsn: Lsn) -> LogPosition {
        let _ = lsn;
        todo!()
    }

    /// Moves the tail to a position that a metadata commit now holds durably.
    pub(crate) fn trim(&self, position: LogPosition) {
        let _ = position;
        todo!()
    }

    /// Drops buffered records up to `lsn`: a metadata commit, made after a flush of the data device, holds them durably.
    /// Needed after [`SyncOutcome::NeedsCommit`], allowed after any durable metadata commit. Call [`trim`](Self::trim) first.
    pub(crate) fn skip_to(&self, lsn: Lsn) {
        let _ = lsn;
        todo!()
    }

    /// The failure that latched the log.
    pub(crate) fn failed(&self) -> Option<Error> {
        todo!()
    }

    /// Counters; `metadata_commits` is left to the metadata store.
    pub(crate) fn info(&self) -> LogInfo {
        todo!()
    }
}
