//! An inode in memory, and the table of those that are loaded.
//!
//! Lock ranks are in `docs/locks.md`; an inode's attributes have rank 4: above its extent map,
//! below the metadata store.
//!
//! | file | holds |
//! | --- | --- |
//! | `file_state` | what an inode keeps about its data: locks, extent map, opens, its part of the cache |
//! | `cow_epoch`, `imaged` | up to which epoch extents are copied on write; which rows have a before-image |
//! | `recent`, `unsealed`, `block_set` | long extents found without the map; bytes that wait for a seal; file blocks with reservations |
//! | `held_sectors`, `held_write`, `delayed` | sectors and writes that wait in memory |
//! | `combining` | small writes that wait for the inode lock, to be written together |
//! | `placed` | on which members the file is to lie |
//! | `read_windows` | what is read ahead past the caches |
//! | `steady` | how the file is served, and whether its reads and writes take the slow path |
//! | `list` | inodes that something holds for |
//! | `table` | which inodes are loaded, and when they are let go of |
//!
//! Invariants:
//! - I-INO-1: an inode row is built and committed while the attribute lock is held, so images in
//!   the log never go backwards.
//! - I-INO-2: an inode without names and pins is dead once a thread has claimed it, which reclaims
//!   it under the same hold of the change lock, and nothing pins it again; pins outlive their
//!   inode's stay in memory.
//! - I-INO-3: an inode that was not asked for between two turns of the sync daemon, and of which
//!   nothing waits, is let go of where its shard holds more than `SHARD_IDLE_MAX`.
//!
//! A front end may retain every inode it ever heard of: the kernel behind a mount does, until it
//! runs out of memory. So retentions do not keep an inode loaded. When a full table lets it go, or
//! it was idle for long, its count is *parked* in a few bytes, and given back to it when it is
//! loaded again.

mod block_set;
mod combining;
mod cow_epoch;
mod delayed;
mod file_state;
mod held_sectors;
mod held_write;
mod imaged;
mod list;
mod placed;
mod read_windows;
mod recent;
mod share;
mod steady;
mod table;
mod unsealed;

pub(crate) use combining::{Joined, Together, WRITE_BYTES_MAX as COMBINED_WRITE_BYTES_MAX};
pub(crate) use delayed::{
    DelayLimits, Pieces as DelayedPieces, Snapshot as DelayedSnapshot, Way as DelayedWay,
};
pub(crate) use file_state::{CachePart, FileState};
pub(crate) use held_sectors::HeldBytes;
pub(crate) use held_write::WRITE_BYTES_MAX as HELD_WRITE_BYTES_MAX;
pub(crate) use imaged::Imaged;
pub(crate) use list::InodeList;
pub(crate) use placed::Places;
pub use read_windows::WindowBytes;
pub(crate) use read_windows::{
    Filling as FillingWindow, Found, Waiting as WaitingWindow, Why as WhyWindow,
};
pub(crate) use recent::Place;
pub(crate) use share::SharedBytes;
pub(crate) use table::InodeTable;
pub(crate) use unsealed::{Unsealed, Voucher};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use bedplate_block::sync::{Mutex as Ranked, MutexGuard, rank};
use parking_lot::Mutex;

use crate::statistics::FileLatencies;
use crate::statistics::{CounterSnapshot, Counters};
use crate::{Attr, Error, ErrorKind, FileKind, InodeNo, Lsn, Result, Timestamp};
use bedplate_store::{InodeRow, RowChange, Table, inode_key};

/// What keeps an inode in memory.
#[derive(Debug, Default)]
struct Life {
    /// Opens, and retentions by the front end.
    pins: u64,
    /// Being reclaimed: it may not be pinned again.
    dead: bool,
}

impl Life {
    fn give_back(&mut self, ino: InodeNo, count: u64) {
        assert!(
            self.pins >= count,
            "I-INO-2: inode {} has {} pins, {count} are given back",
            ino.0,
            self.pins
        );
        self.pins -= count;
    }
}

/// A loaded inode.
pub(crate) struct Inode {
    pub(crate) ino: InodeNo,
    pub(crate) kind: FileKind,
    /// Rank 4. `size` in it is the size that the log knows.
    attr: Ranked<InodeRow, { rank::ATTRIBUTES }>,
    /// The size that readers see; larger than the logged one while cached writes wait.
    pub(crate) size: Arc<AtomicU64>,
    /// Modification time of overwrites, not yet in the row; `i64::MIN` when there is none.
    lazy_mtime: AtomicI64,
    /// Access time not yet in the row; `i64::MIN` when there is none.
    lazy_atime: AtomicI64,
    /// Whether the inode stands in the file system's list of inodes with lazy times.
    pub(crate) times_listed: AtomicBool,
    /// Turns of the sync daemon since it was asked for.
    rests: AtomicU32,
    /// The last record that changed this inode or its names.
    meta_lsn: AtomicU64,
    /// The last record that is needed to read its data back.
    data_lsn: AtomicU64,
    life: Mutex<Life>,
    pub(crate) counters: Counters,
    pub(crate) latencies: FileLatencies,
    /// Everything about its data: locks, extent map, opens, cache.
    pub(crate) data: FileState,
}

const NO_TIME: i64 = i64::MIN;

/// The attributes, locked (I-INO-1).
pub(crate) struct AttrGuard<'a> {
    inode: &'a Inode,
    pub(crate) row: MutexGuard<'a, InodeRow>,
}

impl AttrGuard<'_> {
    /// Moves lazy times into the row, so that what is set next is newer.
    pub(crate) fn merge_times(&mut self) {
        self.inode.merge_lazy(&mut self.row);
    }

    /// Returns the row's present image as a change.
    pub(crate) fn change(&mut self) -> RowChange {
        self.inode.merge_lazy(&mut self.row);
        RowChange::put(Table::Inode, inode_key(self.inode.ino), self.row.encode())
    }
}

/// Returns what a row says of its inode.
pub(crate) fn attr_of(ino: InodeNo, row: &InodeRow, block_size: u32) -> Attr {
    Attr {
        ino,
        kind: row.kind,
        mode: row.mode,
        nlink: row.nlink,
        uid: row.uid,
        gid: row.gid,
        rdev: row.rdev,
        size: row.size,
        allocated_bytes: row.blocks.saturating_mul(block_size.into()),
        atime: row.atime,
        mtime: row.mtime,
        ctime: row.ctime,
        btime: row.btime,
        io_mode: row.io_mode,
    }
}

impl Inode {
    pub(crate) fn new(ino: InodeNo, row: InodeRow) -> Self {
        Self {
            ino,
            kind: row.kind,
            size: Arc::new(AtomicU64::new(row.size)),
            attr: Ranked::new(row),
            lazy_mtime: AtomicI64::new(NO_TIME),
            lazy_atime: AtomicI64::new(NO_TIME),
            times_listed: AtomicBool::new(false),
            rests: AtomicU32::new(0),
            meta_lsn: AtomicU64::new(0),
            data_lsn: AtomicU64::new(0),
            life: Mutex::new(Life::default()),
            counters: Counters::default(),
            latencies: FileLatencies::default(),
            data: FileState::new(ino),
        }
    }

    fn note_used(&self) {
        // A load first: it is nearly always noted.
        if self.rests.load(Ordering::Relaxed) != 0 {
            self.rests.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a turn of the sync daemon that found the inode not asked for.
    fn rest(&self) {
        self.rests.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the inode was not asked for between two turns.
    fn is_rested(&self) -> bool {
        self.rests.load(Ordering::Relaxed) > 1
    }

    pub(crate) fn attr_lock(&self) -> AttrGuard<'_> {
        AttrGuard { inode: self, row: self.attr.lock() }
    }

    /// Takes note of writes that processes with leases made.
    pub(crate) fn absorb_leased_writes(&self) {
        if self.data.lease().is_some_and(|lease| lease.take_touched()) {
            self.note_mtime(Timestamp::now());
        }
    }

    fn merge_lazy(&self, row: &mut InodeRow) {
        self.absorb_leased_writes();
        let mtime = self.lazy_mtime.swap(NO_TIME, Ordering::Relaxed);
        if mtime != NO_TIME {
            row.mtime = Timestamp(mtime);
            row.ctime = row.ctime.max(Timestamp(mtime));
        }
        let atime = self.lazy_atime.swap(NO_TIME, Ordering::Relaxed);
        if atime != NO_TIME {
            row.atime = Timestamp(atime);
        }
    }

    /// Notes an overwrite's time without touching the row.
    #[inline]
    pub(crate) fn note_mtime(&self, now: Timestamp) {
        // The clock moves in steps of milliseconds: most writes find it noted.
        if self.lazy_mtime.load(Ordering::Relaxed) != now.0 {
            self.lazy_mtime.store(now.0, Ordering::Relaxed);
        }
    }

    /// Notes a read's time without touching the row.
    pub(crate) fn note_atime(&self, now: Timestamp) {
        self.lazy_atime.store(now.0, Ordering::Relaxed);
    }

    pub(crate) fn has_lazy_times(&self) -> bool {
        self.absorb_leased_writes();
        self.lazy_mtime.load(Ordering::Relaxed) != NO_TIME
            || self.lazy_atime.load(Ordering::Relaxed) != NO_TIME
    }

    /// Remembers a record that concerns the inode; `data` when the data cannot be read back without
    /// it.
    pub(crate) fn note_lsn(&self, lsn: Lsn, data: bool) {
        self.meta_lsn.fetch_max(lsn.0, Ordering::AcqRel);
        if data {
            self.data_lsn.fetch_max(lsn.0, Ordering::AcqRel);
            if let Some(lease) = self.data.lease() {
                lease.note_data(lsn);
            }
        }
        let of_data = self.data_lsn();
        debug_assert!(
            of_data <= self.meta_lsn(),
            "a change that a data sync makes durable is one that a sync makes durable: {of_data:?}"
        );
    }

    pub(crate) fn meta_lsn(&self) -> Lsn {
        Lsn(self.meta_lsn.load(Ordering::Acquire))
    }

    pub(crate) fn data_lsn(&self) -> Lsn {
        Lsn(self.data_lsn.load(Ordering::Acquire))
    }

    /// Returns the counters.
    pub(crate) fn snapshot(&self) -> CounterSnapshot {
        self.data.steady.io_counters.complete(&self.counters.snapshot())
    }

    /// Sets all counters back to zero.
    pub(crate) fn reset_statistics(&self) {
        self.counters.reset();
        self.data.steady.io_counters.reset();
        self.latencies.reset();
        self.data.waits.reset();
    }

    /// Returns the size that readers see, with what a process with a lease has filled of a tail.
    pub(crate) fn seen_size(&self) -> u64 {
        // In this order: what is collected in between is in the size by then.
        let tail = self.data.lease().and_then(|lease| lease.tail_end());
        self.size.load(Ordering::Acquire).max(tail.unwrap_or(0))
    }

    /// Returns what `stat` tells.
    pub(crate) fn stat(&self, block_size: u32) -> Attr {
        self.absorb_leased_writes();
        let size = self.seen_size();
        // While it is being changed: without, as a moment ago.
        let reserved = self.data.reserved.try_lock().map_or(0, |set| set.count());
        let row = self.attr.lock();
        let lazy = |time: &AtomicI64, logged: Timestamp| match time.load(Ordering::Relaxed) {
            NO_TIME => logged,
            nanos => Timestamp(nanos),
        };
        let mtime = lazy(&self.lazy_mtime, row.mtime);
        Attr {
            size: if row.kind == FileKind::File { size } else { row.size },
            atime: lazy(&self.lazy_atime, row.atime),
            mtime,
            ctime: if mtime == row.mtime { row.ctime } else { row.ctime.max(mtime) },
            allocated_bytes: row.blocks.saturating_add(reserved).saturating_mul(block_size.into()),
            ..attr_of(self.ino, &row, block_size)
        }
    }

    /// Takes over another row. With one that has a name the inode is alive, also where it could not
    /// be reclaimed before.
    pub(crate) fn replace_row(&self, row: InodeRow) {
        let mut life = self.life.lock();
        debug_assert_eq!(row.kind, self.kind, "inode {} stays of its kind", self.ino.0);
        life.dead &= row.nlink == 0;
        let mut attr = self.attr.lock();
        self.size.store(row.size, Ordering::Release);
        *attr = row;
    }

    /// States that the inode is no more, pinned or not: what is gone is not reclaimed.
    pub(crate) fn kill(&self) {
        self.life.lock().dead = true;
        self.attr.lock().nlink = 0;
    }

    /// Pins the inode; returns whether it was pinned before.
    pub(crate) fn pin(&self) -> Result<bool> {
        let mut life = self.life.lock();
        if life.dead {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("inode {} was removed", self.ino.0),
            ));
        }
        life.pins += 1;
        Ok(life.pins > 1)
    }

    /// Gives back `count` pins; returns whether nothing keeps the inode then, so that it is to be
    /// claimed.
    #[must_use]
    pub(crate) fn unpin(&self, count: u64) -> bool {
        let mut life = self.life.lock();
        life.give_back(self.ino, count);
        self.is_unkept(&life)
    }

    /// As [`unpin`](Self::unpin), without a look at the row, whose lock may not be waited for under
    /// the lock of the table; returns whether no pin is left.
    #[must_use]
    fn take_pins(&self, count: u64) -> bool {
        let mut life = self.life.lock();
        life.give_back(self.ino, count);
        life.pins == 0
    }

    /// Returns whether nothing keeps the inode, and no thread has claimed it.
    pub(crate) fn is_dying(&self) -> bool {
        self.is_unkept(&self.life.lock())
    }

    /// Claims the inode where nothing keeps it; returns whether the caller must reclaim it now.
    #[must_use]
    pub(crate) fn lost_name(&self) -> bool {
        let mut life = self.life.lock();
        let dying = self.is_unkept(&life);
        life.dead |= dying;
        dying
    }

    fn is_unkept(&self, life: &Life) -> bool {
        life.pins == 0 && !life.dead && self.attr.lock().nlink == 0
    }

    /// Returns how many names it has.
    pub(crate) fn names(&self) -> u32 {
        self.attr.lock().nlink
    }

    /// Returns the pins to park when nothing else is lost with the inode: what it knows of records
    /// that are not sealed yet, a later sync or overwrite must find here, and one without names
    /// must be here when its last pin goes.
    fn pins_if_idle(&self, sealed: Lsn) -> Option<u64> {
        let life = self.life.lock();
        let idle = self.meta_lsn() <= sealed && !self.has_lazy_times() && self.data.is_idle();
        (idle && (life.pins == 0 || self.attr.lock().nlink > 0)).then_some(life.pins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn row(nlink: u32) -> InodeRow {
        let time = Timestamp(1);
        InodeRow {
            kind: FileKind::File,
            mode: 0o644,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            io_mode: None,
            parent: InodeNo(0),
            target: Vec::new(),
        }
    }

    #[test]
    fn only_one_caller_reclaims() {
        let inode = Inode::new(InodeNo(2), row(0));
        inode.pin().unwrap();
        inode.pin().unwrap();
        assert!(!inode.lost_name(), "it is still pinned");
        assert!(!inode.unpin(1));
        assert!(inode.unpin(1), "the last pin of a nameless inode reclaims");
        assert!(inode.is_dying());
        assert!(inode.lost_name());
        assert!(!inode.is_dying() && !inode.lost_name(), "another caller claimed it");
        assert!(inode.pin().is_err(), "I-INO-2: a dead inode cannot be pinned");
        inode.replace_row(row(1));
        assert!(inode.pin().is_ok(), "a rollback gave it its name back");
    }

    #[test]
    fn an_inode_stays_until_its_records_are_sealed() {
        // A file was written, closed, dropped from memory and opened again: its sync then knew
        // nothing of the records that still waited.
        let inode = Inode::new(InodeNo(2), row(1));
        inode.note_lsn(Lsn(7), true);
        assert_eq!(inode.pins_if_idle(Lsn(6)), None);
        assert_eq!(inode.pins_if_idle(Lsn(7)), Some(0));
        inode.pin().unwrap();
        assert_eq!(inode.pins_if_idle(Lsn(7)), Some(1));
    }

    #[test]
    fn a_nameless_inode_that_is_pinned_stays_loaded() {
        let inode = Inode::new(InodeNo(2), row(0));
        inode.pin().unwrap();
        assert_eq!(inode.pins_if_idle(Lsn(9)), None);
    }

    #[test]
    fn lazy_times_reach_the_row_and_stat() {
        let inode = Inode::new(InodeNo(2), row(1));
        inode.note_mtime(Timestamp(50));
        assert_eq!(inode.stat(4096).mtime, Timestamp(50));
        assert!(inode.has_lazy_times());
        let change = inode.attr_lock().change();
        let logged = InodeRow::decode(&change.value.unwrap()).unwrap();
        assert_eq!((logged.mtime, logged.ctime), (Timestamp(50), Timestamp(50)));
        assert!(!inode.has_lazy_times());
    }
}
