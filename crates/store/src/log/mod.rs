//! The intent log: makes metadata changes durable, in order, many at once, with one flush.
//!
//! ```text
//!  ring on the device (a *batch* is one log write: header and records, padded to the write unit)
//!
//!   0                                                                                     len
//!   ├──────────┬────────┬──────┬───────────┬───────────────────────┬──────────┬───────────┤
//!   │ batch 17 │  18    │  19  │  (room)   │ batch 12 (tail)       │ 13 … 15  │ 16 │ waste │
//!   └──────────┴────────┴──────┴───────────┴───────────────────────┴──────────┴────┴───────┘
//!                               ▲ head       ▲ position of the last metadata commit
//!
//!  lsn      0 ────────── sealed ─────────── durable ────────── taken ─────────── last
//!             nothing is       replay checks       being written     buffered
//!             checked          exposed data
//! ```
//!
//! - I-LOG-1: the order of lsns is the order of `append`; the records of a batch are consecutive.
//! - I-LOG-2: a batch lies within the ring and over no batch that replay from the last durable
//!   metadata commit may need.
//! - I-LOG-3: `sync(lsn)` succeeds only after a flush of the data device, begun after the call, has
//!   succeeded and every record up to `lsn` was written before a flush of its device that has
//!   succeeded, or is held by a durable metadata commit.
//! - I-LOG-4: a record whose batch is not sealed by itself carries the checksum of the data it
//!   exposes, or exposes none. It may carry the data, too (`home`).
//! - I-LOG-5: sealed ≤ durable. A record is sealed when a durable batch says that its data was
//!   durable (`sealed` in the header), or when no record up to it has data to check: replay then
//!   takes it without reading data, so the data may be overwritten and its blocks reused.
//! - I-LOG-6: after the first failed write or flush nothing is ever reported durable again.
//! - I-LOG-7: replay hands over a prefix of the appended records that contains every acknowledged
//!   one.
//! - I-LOG-8: where a log goes on in its incarnation, the rest of its ring is durably zero before
//!   the first write.
//! - I-LOG-9: a log goes on in another place only in a new incarnation, whose position a durable
//!   metadata commit holds together with all records before it, and once the superblock names that
//!   place: replay from that position finds an empty log in the old place and in the new one.
//!
//! Why replay never rejects an acknowledged record: it was durable together with its data; its data
//! changes in place only after [`IntentLog::permit_overwrite`], and its blocks go to others only
//! once the record that freed them is sealed. Both imply that the record is sealed, and the batch
//! that says so is in the chain, because all batches before it were durable with it.

mod batch;
mod buffer;
mod commit;
mod device;
mod group;
mod home;
mod info;
mod moving;
mod place;
mod record;
mod replay;
mod ring;
mod sync;
mod window;

#[cfg(test)]
pub mod tests;

#[cfg(any(test, feature = "forge"))]
pub use batch::seal_batches;
pub use device::LogDeviceHead;
pub use home::{HomeOverlay, HomeWrites, LoggedData};
pub use info::LogInfo;
pub use place::{LogParts, LogPlace, LogPosition};
#[cfg(any(test, feature = "forge"))]
pub use record::encode_record;
pub use record::{Exposure, Record, RecordKind};
pub use replay::{Kept, ReplayReport, replay};
pub(crate) use ring::LiveBatch;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bedplate_block::sync::{Mutex, rank};

use crate::{Error, ErrorKind, Lsn, Result};

/// How a wait for the log ended.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncOutcome {
    /// What was asked for holds.
    Durable,
    /// The log has no room (or dropped records that no ring could hold): make a durable metadata
    /// commit, then [`IntentLog::skip_to`].
    NeedsCommit,
}

/// The open log. Any number of threads; ranks in `docs/locks.md`.
#[derive(Debug)]
pub struct IntentLog {
    /// Highest lsn that a caller of `sync` waits for, and of `seal`.
    sync_to: AtomicU64,
    seal_to: AtomicU64,
    group: group::Group,
    /// What records carry and their places do not have yet.
    homes: Arc<HomeWrites>,
    /// Rank 5a; taken by the leader of the group only, never contended.
    leader: Mutex<commit::Leader, { rank::LOG_LEADER }>,
    /// Rank 6.
    buffer: Mutex<buffer::Buffer, { rank::LOG_BUFFER }>,
    /// Rank 7.
    ring: Mutex<ring::Ring, { rank::LOG_RING }>,
    /// Copies of what the mutexes guard, for reading without them.
    last: AtomicU64,
    durable: AtomicU64,
    sealed: AtomicU64,
    used: AtomicU64,
    /// Length of the ring in bytes.
    size: AtomicU64,
    /// Whether the ring lies on a device of its own.
    separate: AtomicBool,
    failed: OnceLock<Error>,
    watch: OnceLock<Arc<dyn LogWatch>>,
    counters: Counters,
    opened: Instant,
}

/// A span in whole microseconds.
fn us(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Is told how far the log is. Called with locks of the log held: it takes none and does not wait.
pub trait LogWatch: std::fmt::Debug + Send + Sync {
    /// Records up to `durable` are durable, and up to `sealed` sealed. Neither goes back.
    fn progressed(&self, durable: Lsn, sealed: Lsn);
    /// A write or flush failed: nothing becomes durable any more.
    fn failed(&self);
}

#[derive(Debug, Default)]
struct Counters {
    writes: AtomicU64,
    bytes: AtomicU64,
    records: AtomicU64,
    flushes: AtomicU64,
    busy_us: AtomicU64,
}

/// Buffering more than this, with no caller waiting for it, is pointless: a metadata commit is due
/// long before.
const BUFFERED_BYTES_MAX: u64 = 16 << 20;

/// What part of the ring the data of one record may take: one in so many.
const CARRIED_PART: u64 = 256;

/// Into how many pieces the ring is shared out where the metadata has no room.
const PIECES: u64 = 16;

/// Checks the log's place, and that a write may begin at a ring byte; returns the write unit in
/// bytes.
fn check_place(parts: &LogParts, offset: u64) -> Result<u64> {
    let unit = parts.check()?;
    if !offset.is_multiple_of(unit) || offset > parts.place.len_bytes {
        let name = parts.ring_device().name();
        return Err(Error::corrupt(format!(
            "{name}: the log cannot go on at ring byte {offset}: its write unit is {unit} bytes"
        )));
    }
    Ok(unit)
}

/// Returns what the ring and its write unit dictate.
fn limits_of(place: LogPlace, unit: u64) -> buffer::Limits {
    let as_len = |bytes: u64| usize::try_from(bytes).expect("bounded by a constant");
    buffer::Limits {
        unit: as_len(unit),
        batch: as_len(batch::BATCH_BYTES_MAX.min(place.len_bytes / 4) / unit * unit),
        buffered: as_len(BUFFERED_BYTES_MAX.min(place.len_bytes / 2)),
    }
}

impl IntentLog {
    /// Opens the log for writing at a position that a durable metadata commit holds and behind
    /// which nothing of its incarnation was written: [`LogPosition::START`] of a fresh volume,
    /// [`ReplayReport::next`] otherwise.
    ///
    /// # Errors
    /// `Corrupt` for a place outside its device or not aligned to the device's blocks, or a
    /// position that is not.
    pub fn open(parts: LogParts, position: LogPosition) -> Result<Self> {
        let unit = check_place(&parts, position.offset)?;
        let ring = ring::Ring::new(parts.place, position);
        Ok(Self::over(parts, unit, ring))
    }

    /// Goes on behind what replay found, where no metadata commit can hold it: the ring's other
    /// bytes are zeroed, so that nothing which an earlier life left there follows (I-LOG-8), and
    /// what is there is sealed.
    ///
    /// # Errors
    /// As [`open`](Self::open); `NoSpace` where the ring has no room for that.
    pub fn resume(parts: LogParts, kept: &Kept) -> Result<Self> {
        let ring = ring::Ring::resumed(parts.place, kept);
        let unit = check_place(&parts, ring.head())?;
        let free = ring.free();
        let zeroed: u64 = free.iter().map(|(_, len)| len).sum();
        assert_eq!(
            zeroed + ring.used_bytes(),
            parts.place.len_bytes,
            "I-LOG-8: what is not in use becomes zero"
        );
        for (offset, len) in free {
            parts.ring_device().write_zeroes(parts.place.start_byte + offset, len)?;
        }
        parts.ring_device().flush()?;
        let name = parts.ring_device().name().to_owned();
        let log = Self::over(parts, unit, ring);
        for record in &kept.rest {
            log.append(record);
        }
        match log.seal(log.last_lsn())? {
            SyncOutcome::Durable => Ok(log),
            SyncOutcome::NeedsCommit => Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "{name}: the log is full, and the metadata has no room to grow: mount \
                         read-only (-o ro)"
                ),
            )),
        }
    }

    fn over(parts: LogParts, unit: u64, ring: ring::Ring) -> Self {
        let place = parts.place;
        let limits = limits_of(place, unit);
        let (last, sealed) = (ring.placed(), ring.sealed());
        Self {
            sync_to: AtomicU64::new(0),
            seal_to: AtomicU64::new(0),
            group: group::Group::new(),
            homes: Arc::default(),
            leader: Mutex::new(commit::Leader::new(parts, limits.unit)),
            buffer: Mutex::new(buffer::Buffer::new(limits, last)),
            last: AtomicU64::new(last.0),
            durable: AtomicU64::new(ring.durable().0),
            sealed: AtomicU64::new(sealed.0),
            used: AtomicU64::new(ring.used_bytes()),
            size: AtomicU64::new(place.len_bytes),
            separate: AtomicBool::new(place.separate),
            ring: Mutex::new(ring),
            failed: OnceLock::new(),
            watch: OnceLock::new(),
            counters: Counters::default(),
            opened: Instant::now(),
        }
    }

    /// Adds a record to the buffer and returns its ordinal. Memory only; never blocks on I/O and
    /// never fails.
    ///
    /// Called under the metadata store's mutex, so that the log's order is the order of the
    /// memtable. Data the record exposes has been written, or the record carries it: then reads of
    /// the device find it once this returns ([`HomeWrites::overlay`]).
    pub fn append(&self, record: &Record) -> Lsn {
        let mut buffer = self.buffer.lock();
        let lsn = buffer.append(record);
        if let Some(logged) = record.exposes.as_ref().and_then(|it| it.logged.as_ref()) {
            self.homes.add(lsn, &logged.writes);
        }
        self.last.store(lsn.0, Ordering::Release);
        lsn
    }

    /// Makes every record up to `lsn` durable, and all data writes that completed before the call:
    /// one flush, shared with other callers. `Lsn(0)` asks for the flush only.
    ///
    /// # Errors
    /// The first failure of the log, for ever.
    pub fn sync(&self, lsn: Lsn) -> Result<SyncOutcome> {
        self.sync_to.fetch_max(lsn.0, Ordering::SeqCst);
        self.group.join(|| self.lead());
        self.outcome(lsn <= self.durable_lsn())
    }

    /// Makes every record up to `lsn` *sealed*: durable, and replay will take it without a look at
    /// the data it exposed. Returns at once when it is.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn seal(&self, lsn: Lsn) -> Result<SyncOutcome> {
        if lsn > self.sealed_lsn() {
            self.seal_to.fetch_max(lsn.0, Ordering::SeqCst);
            self.group.join(|| self.lead());
        }
        self.outcome(lsn <= self.sealed_lsn())
    }

    /// Makes it safe to overwrite, in place, data that record `lsn` exposed. Call before the write
    /// is issued. Costs nothing when the record is sealed or still buffered (its log write then
    /// waits for a flush of the data); seals otherwise.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn permit_overwrite(&self, lsn: Lsn) -> Result<SyncOutcome> {
        if lsn <= self.sealed_lsn() || self.buffer.lock().permit_overwrite(lsn) {
            return self.outcome(true);
        }
        self.seal(lsn)
    }

    fn outcome(&self, reached: bool) -> Result<SyncOutcome> {
        match self.failed.get() {
            Some(error) => Err(error.clone()),
            None if reached => Ok(SyncOutcome::Durable),
            None => Ok(SyncOutcome::NeedsCommit),
        }
    }

    /// Has the log go on with data that is not at home since before it was opened.
    pub(crate) fn with_homes(self, homes: Arc<HomeWrites>) -> Self {
        Self { homes, ..self }
    }

    /// Returns whether a record may carry so many bytes of data: not where a sync flushes the data
    /// device before the log is written, because the log has a device of its own, nor where a few
    /// such records fill the ring.
    #[inline]
    pub(crate) fn carries_data(&self, bytes: u64) -> bool {
        !self.separate.load(Ordering::Relaxed) && bytes <= self.size_bytes() / CARRIED_PART
    }

    /// The last record appended.
    #[inline]
    pub fn last_lsn(&self) -> Lsn {
        Lsn(self.last.load(Ordering::Acquire))
    }

    /// Every record up to this one is durable.
    pub(crate) fn durable_lsn(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire))
    }

    /// Every record up to this one is sealed; blocks freed by such a record may be reused. Never
    /// above [`durable_lsn`](Self::durable_lsn).
    #[inline]
    pub fn sealed_lsn(&self) -> Lsn {
        Lsn(self.sealed.load(Ordering::Acquire))
    }

    /// Length of the ring in bytes.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Bytes of the ring that replay may need, as of the last round.
    #[inline]
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether the buffer holds so much that it is better written than dropped.
    pub(crate) fn buffers_much(&self) -> bool {
        self.buffer.lock().is_quarter_full()
    }

    /// Returns whether the ring has room for all that is buffered, and behind it for log writes of
    /// so many bytes and as many sixteenths of the ring.
    pub(crate) fn has_room(&self, sixteenths: u64, bytes: u64) -> bool {
        let buffer = self.buffer.lock();
        let ring = self.ring.lock();
        let unit = buffer.unit() as u64;
        let piece = ring.len_bytes() / PIECES / unit * unit;
        let pieces = sixteenths.saturating_add(bytes.div_ceil(piece));
        let wanted =
            std::iter::repeat_n(piece, usize::try_from(pieces.min(PIECES + 1)).expect("a few"));
        buffer.dropped() <= ring.durable() && ring.fits(buffer.lengths().chain(wanted))
    }

    /// Returns whether a record would be written, and not dropped for want of room.
    pub fn holds(&self, record: &Record) -> bool {
        let buffer = self.buffer.lock();
        let ring = self.ring.lock();
        let len = (record.encoded_len() + batch::HEADER_BYTES).next_multiple_of(buffer.unit());
        buffer.takes(len)
            && ring.fits(buffer.lengths().chain([len as u64, ring.len_bytes() / PIECES]))
    }

    /// Returns the position to store in a metadata commit that holds all records up to `lsn`.
    pub(crate) fn position_after(&self, lsn: Lsn) -> LogPosition {
        self.ring.lock().position_after(lsn)
    }

    /// Moves the tail to a position that a metadata commit now holds durably.
    pub fn trim(&self, position: LogPosition) {
        let mut ring = self.ring.lock();
        ring.trim(position);
        self.used.store(ring.used_bytes(), Ordering::Relaxed);
    }

    /// Takes note that a metadata commit, made after a flush of the data device, holds everything
    /// up to `lsn` durably: that much is durable and sealed, and what of it is still buffered is
    /// dropped. Needed after [`SyncOutcome::NeedsCommit`], good after any durable metadata commit.
    /// Call [`trim`](Self::trim) first.
    pub(crate) fn skip_to(&self, lsn: Lsn) {
        let mut buffer = self.buffer.lock();
        assert!(
            lsn <= buffer.last(),
            "I-LOG-1: the metadata cannot hold a record that was not appended"
        );
        buffer.skip_to(lsn);
        let mut ring = self.ring.lock();
        ring.skip_to(lsn);
        self.publish_progress(&ring);
    }

    /// The failure that latched the log.
    #[inline]
    pub fn failed(&self) -> Option<Error> {
        self.failed.get().cloned()
    }

    /// Returns whether a write or flush has failed.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }

    /// Returns what lies at a place of the ring: where it begins there, its length, and the log write
    /// that it is, unless replay needs nothing of it.
    pub(crate) fn lies_at(&self, offset: u64) -> Option<(u64, u64, Option<LiveBatch>)> {
        self.ring.lock().lies_at(offset)
    }

    /// Counters; `metadata_commits` is left to the metadata store, names and places to the mount.
    pub fn info(&self) -> LogInfo {
        LogInfo {
            size_bytes: self.size_bytes(),
            used_bytes: self.ring.lock().used_bytes(),
            separate: self.separate.load(Ordering::Relaxed),
            writes: self.counters.writes.load(Ordering::Relaxed),
            bytes: self.counters.bytes.load(Ordering::Relaxed),
            records: self.counters.records.load(Ordering::Relaxed),
            flushes: self.counters.flushes.load(Ordering::Relaxed),
            syncs: self.group.arrivals(),
            metadata_commits: 0,
            device: None,
            start_byte: 0,
            busy_us: self.counters.busy_us.load(Ordering::Relaxed),
            open_us: us(self.opened.elapsed()),
        }
    }

    fn requested(&self) -> (Lsn, Lsn) {
        (Lsn(self.sync_to.load(Ordering::SeqCst)), Lsn(self.seal_to.load(Ordering::SeqCst)))
    }

    /// Durable first: a reader of sealed and then durable must never see the former above the
    /// latter.
    fn publish_progress(&self, ring: &ring::Ring) {
        self.durable.store(ring.durable().0, Ordering::Release);
        self.sealed.store(ring.sealed().0, Ordering::Release);
        self.used.store(ring.used_bytes(), Ordering::Relaxed);
        if let Some(watch) = self.watch.get() {
            watch.progressed(ring.durable(), ring.sealed());
        }
    }

    /// Tells `watch` from now on, and at once how far the log is. The first watch stays.
    pub(crate) fn watch(&self, watch: Arc<dyn LogWatch>) {
        let watch = self.watch.get_or_init(|| watch);
        self.publish_progress(&self.ring.lock());
        if self.failed.get().is_some() {
            watch.failed();
        }
    }

    /// I-LOG-6: the first failure stays.
    fn latch(&self, error: Error) {
        let error = error.latching("the intent log");
        tracing::error!("{error}");
        let latched = self.failed.set(error);
        assert!(latched.is_ok(), "I-LOG-6: the log failed twice");
        if let Some(watch) = self.watch.get() {
            watch.failed();
        }
    }
}
