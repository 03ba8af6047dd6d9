//! An inode in memory, and the table of those that are loaded.
//!
//! Lock ranks are in `docs/locks.md`; an inode's attributes have rank 4: above its extent map, below the metadata store.
//!
//! | file | holds |
//! | --- | --- |
//! | `file_state` | what an inode keeps about its data: locks, extent map, opens, its part of the cache |
//! | `cow_epoch`, `imaged` | up to which epoch extents are copied on write; which rows have a before-image |
//! | `recent`, `unsealed`, `block_set` | long extents found without the map; bytes that wait for a seal; file blocks with reservations |
//! | `list` | inodes that something holds for |
//!
//! Invariants:
//! - I-INO-1: an inode row is built and committed while the attribute lock is held, so images in the log never go backwards.
//! - I-INO-2: an inode without names and pins is dead once a thread has claimed it, which reclaims it under the same hold of the change lock, and nothing
//!   pins it again; pins outlive their inode's stay in memory.
//!
//! A front end may retain every inode it ever heard of: the kernel behind a mount does, until it runs out of memory. So retentions do not keep an
//! inode loaded. When a full table lets it go, its count is *parked* in a few bytes, and given back to it when it is loaded again.

mod block_set;
mod cow_epoch;
mod file_state;
mod imaged;
mod list;
mod recent;
mod unsealed;

pub(crate) use file_state::{CachePart, FileState};
pub(crate) use imaged::Imaged;
pub(crate) use list::InodeList;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::statistics::FileLatencies;
use crate::statistics::{CounterSnapshot, Counters};
use crate::{Attr, Error, ErrorKind, FileKind, InodeNo, Lsn, Result, Timestamp};
use bedplate_store::{InodeRow, RowChange, Table, inode_key};

/// How many unpinned inodes a shard keeps before it drops some.
const SHARD_INODES_MAX: usize = 4096;
const SHARDS: usize = 16;

/// What keeps an inode in memory.
#[derive(Debug, Default)]
struct Life {
    /// Opens, and retentions by the front end.
    pins: u64,
    /// Being reclaimed: it may not be pinned again.
    dead: bool,
}

/// A loaded inode.
pub(crate) struct Inode {
    pub(crate) ino: InodeNo,
    pub(crate) kind: FileKind,
    /// Rank 4. `size` in it is the size that the log knows.
    attr: Mutex<InodeRow>,
    /// The size that readers see; larger than the logged one while cached writes wait.
    pub(crate) size: Arc<AtomicU64>,
    /// Modification time of overwrites, not yet in the row; `i64::MIN` when there is none.
    lazy_mtime: AtomicI64,
    /// Access time not yet in the row; `i64::MIN` when there is none.
    lazy_atime: AtomicI64,
    /// Whether the inode stands in the file system's list of inodes with lazy times.
    pub(crate) times_listed: AtomicBool,
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
            attr: Mutex::new(row),
            lazy_mtime: AtomicI64::new(NO_TIME),
            lazy_atime: AtomicI64::new(NO_TIME),
            times_listed: AtomicBool::new(false),
            meta_lsn: AtomicU64::new(0),
            data_lsn: AtomicU64::new(0),
            life: Mutex::new(Life::default()),
            counters: Counters::default(),
            latencies: FileLatencies::default(),
            data: FileState::default(),
        }
    }

    pub(crate) fn attr_lock(&self) -> AttrGuard<'_> {
        AttrGuard { inode: self, row: self.attr.lock() }
    }

    fn merge_lazy(&self, row: &mut InodeRow) {
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
        self.lazy_mtime.load(Ordering::Relaxed) != NO_TIME
            || self.lazy_atime.load(Ordering::Relaxed) != NO_TIME
    }

    /// Remembers a record that concerns the inode; `data` when the data cannot be read back without
    /// it.
    pub(crate) fn note_lsn(&self, lsn: Lsn, data: bool) {
        self.meta_lsn.fetch_max(lsn.0, Ordering::AcqRel);
        if data {
            self.data_lsn.fetch_max(lsn.0, Ordering::AcqRel);
        }
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

    /// Lets all that is counted begin anew.
    pub(crate) fn reset_statistics(&self) {
        self.counters.reset();
        self.data.steady.io_counters.reset();
        self.latencies.reset();
    }

    /// Returns what `stat` tells.
    pub(crate) fn stat(&self, block_size: u32) -> Attr {
        let row = self.attr.lock();
        let lazy = |time: &AtomicI64, logged: Timestamp| match time.load(Ordering::Relaxed) {
            NO_TIME => logged,
            nanos => Timestamp(nanos),
        };
        let mtime = lazy(&self.lazy_mtime, row.mtime);
        Attr {
            size: if row.kind == FileKind::File {
                self.size.load(Ordering::Acquire)
            } else {
                row.size
            },
            atime: lazy(&self.lazy_atime, row.atime),
            mtime,
            ctime: if mtime == row.mtime { row.ctime } else { row.ctime.max(mtime) },
            ..attr_of(self.ino, &row, block_size)
        }
    }

    /// Takes over another row. With one that has a name the inode is alive, also where it could not
    /// be reclaimed before.
    pub(crate) fn replace_row(&self, row: InodeRow) {
        let mut life = self.life.lock();
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

    /// Pins the inode.
    pub(crate) fn pin(&self) -> Result<()> {
        let mut life = self.life.lock();
        if life.dead {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("inode {} was removed", self.ino.0),
            ));
        }
        life.pins += 1;
        Ok(())
    }

    /// Gives back `count` pins; returns whether nothing keeps the inode then, so that it is to be
    /// claimed.
    #[must_use]
    pub(crate) fn unpin(&self, count: u64) -> bool {
        let mut life = self.life.lock();
        assert!(
            life.pins >= count,
            "I-INO-2: inode {} has {} pins, {count} are given back",
            self.ino.0,
            life.pins
        );
        life.pins -= count;
        self.is_unkept(&life)
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

#[derive(Default)]
struct Shard {
    inodes: HashMap<InodeNo, Arc<Inode>>,
    /// Pins of inodes that are not loaded; none is 0.
    parked: HashMap<InodeNo, u64>,
}

/// The loaded inodes, in shards.
pub(crate) struct InodeTable {
    shards: [Mutex<Shard>; SHARDS],
    /// Sums of the inodes that are loaded no more.
    left: Counters,
    /// How often all of them were looked at.
    #[cfg(test)]
    pub(crate) walks: AtomicU64,
}

impl InodeTable {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            left: Counters::default(),
            #[cfg(test)]
            walks: AtomicU64::new(0),
        }
    }

    fn shard(&self, ino: InodeNo) -> &Mutex<Shard> {
        &self.shards[usize::try_from(ino.0 % SHARDS as u64).expect("below SHARDS")]
    }

    /// Returns a loaded inode, or loads it with `load` (called with the shard locked, so that it is
    /// loaded once). A full table lets go of idle inodes whose records are `sealed`.
    pub(crate) fn get_or_load(
        &self,
        ino: InodeNo,
        sealed: Lsn,
        load: impl FnOnce() -> Result<InodeRow>,
    ) -> Result<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.inodes.get(&ino) {
            return Ok(Arc::clone(inode));
        }
        let inode = Arc::new(Inode::new(ino, load()?));
        self.shrink(&mut shard, sealed);
        inode.life.lock().pins = shard.parked.remove(&ino).unwrap_or(0);
        shard.inodes.insert(ino, Arc::clone(&inode));
        Ok(inode)
    }

    /// Returns an inode if it is loaded.
    pub(crate) fn if_loaded(&self, ino: InodeNo) -> Option<Arc<Inode>> {
        self.shard(ino).lock().inodes.get(&ino).cloned()
    }

    /// Returns whether an inode is pinned, loaded or not.
    pub(crate) fn is_pinned(&self, ino: InodeNo) -> bool {
        let shard = self.shard(ino).lock();
        shard
            .inodes
            .get(&ino)
            .map_or_else(|| shard.parked.contains_key(&ino), |inode| inode.life.lock().pins > 0)
    }

    /// Takes `count` pins off an inode that is not loaded; a loaded one is returned, for the caller
    /// to unpin.
    pub(crate) fn unpin_parked(&self, ino: InodeNo, count: u64) -> Option<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.inodes.get(&ino) {
            return Some(Arc::clone(inode));
        }
        let pins = shard.parked.get_mut(&ino)?;
        assert!(
            *pins >= count,
            "I-INO-2: inode {} has {pins} parked pins, {count} are given back",
            ino.0
        );
        *pins -= count;
        if *pins == 0 {
            shard.parked.remove(&ino);
        }
        None
    }

    pub(crate) fn insert(&self, inode: Arc<Inode>, sealed: Lsn) {
        let mut shard = self.shard(inode.ino).lock();
        self.shrink(&mut shard, sealed);
        shard.inodes.insert(inode.ino, inode);
    }

    pub(crate) fn remove(&self, ino: InodeNo) {
        if let Some(inode) = self.shard(ino).lock().inodes.remove(&ino) {
            self.left.absorb(&inode.snapshot());
        }
    }

    /// Returns the loaded inodes that a test picks; it is called with a shard locked.
    pub(crate) fn loaded(&self, pick: impl Fn(&Inode) -> bool) -> Vec<Arc<Inode>> {
        #[cfg(test)]
        self.walks.fetch_add(1, Ordering::Relaxed);
        self.shards
            .iter()
            .flat_map(|shard| {
                shard
                    .lock()
                    .inodes
                    .values()
                    .filter(|inode| pick(inode))
                    .cloned()
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Forgets inodes that are no more, retained or not.
    pub(crate) fn drop_all(&self, inodes: &[Arc<Inode>]) {
        inodes.iter().for_each(|inode| self.remove(inode.ino));
    }

    /// Returns the sums of the counters of all inodes that are loaded or were.
    pub(crate) fn counters(&self) -> CounterSnapshot {
        let sum = Counters::default();
        sum.absorb(&self.left.snapshot());
        self.shards.iter().for_each(|shard| {
            shard.lock().inodes.values().for_each(|inode| sum.absorb(&inode.snapshot()))
        });
        sum.snapshot()
    }

    /// Lets all that is counted begin anew.
    pub(crate) fn reset_statistics(&self) {
        self.left.reset();
        self.shards.iter().for_each(|shard| {
            shard.lock().inodes.values().for_each(|inode| inode.reset_statistics())
        });
    }

    /// Drops idle inodes from a full shard: half of it at once, so that the cost is constant an
    /// inode.
    fn shrink(&self, shard: &mut Shard, sealed: Lsn) {
        let Shard { inodes, parked } = shard;
        if inodes.len() < SHARD_INODES_MAX || !inodes.len().is_power_of_two() {
            return;
        }
        let mut spare = SHARD_INODES_MAX / 2;
        inodes.retain(|ino, inode| {
            // An open holds the inode itself, so the pins of one that only the table holds are
            // retentions.
            if spare == 0 || Arc::strong_count(inode) > 1 {
                return true;
            }
            let Some(pins) = inode.pins_if_idle(sealed) else { return true };
            if pins > 0 {
                parked.insert(*ino, pins);
            }
            spare -= 1;
            self.left.absorb(&inode.snapshot());
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(nlink: u32) -> InodeRow {
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
    fn i_ino_2_pins_outlive_the_stay_in_memory() {
        let table = InodeTable::new();
        let count = (SHARDS * SHARD_INODES_MAX * 2) as u64;
        for ino in 1..=count {
            let inode = table.get_or_load(InodeNo(ino), Lsn(0), || Ok(row(1))).unwrap();
            inode.pin().unwrap();
            inode.pin().unwrap();
        }
        let loaded: usize = table.shards.iter().map(|shard| shard.lock().inodes.len()).sum();
        assert!(
            loaded <= SHARDS * SHARD_INODES_MAX,
            "{loaded} inodes are loaded though nobody uses them"
        );
        for ino in 1..=count {
            if let Some(inode) = table.unpin_parked(InodeNo(ino), 1) {
                assert!(!inode.unpin(1));
            }
            // The last name goes while it is retained: it must live on until the last pin goes.
            let inode = table.get_or_load(InodeNo(ino), Lsn(0), || Ok(row(1))).unwrap();
            inode.attr_lock().row.nlink = 0;
            assert!(!inode.lost_name());
            assert!(inode.unpin(1), "inode {ino}");
            table.remove(InodeNo(ino));
        }
        assert!(table.shards.iter().all(|shard| shard.lock().parked.is_empty()));
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
