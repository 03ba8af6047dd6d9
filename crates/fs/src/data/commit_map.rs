//! Publishing: the one place where a file's extents, size and times reach the log.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::DataPath;
use super::cached::is_behind;
use super::exposure::Exposing;
use crate::lease::LeasedFile;
use crate::lock::is_covered;
use crate::pause::{Pause, pause};
use crate::{FileBlock, InodeNo, Lsn, Result, Timestamp};
use bedplate_store::{
    Committed, Extent, ExtentChange, ExtentMap, Grid, PlantedBug, PriorRows, Record, RecordKind,
    RowChange, Table, freed_by, inode_key, planted,
};

/// What happens to the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SizeChange {
    /// It becomes at least this.
    AtLeast(u64),
    /// It becomes at least this, with what a process has filled of its tail.
    Filled(u64),
    /// It becomes this.
    Set(u64),
    /// It stays.
    Keep,
}

impl SizeChange {
    /// Returns whether the change, of blocks up to this one, leaves a tail of the file alone.
    fn spares_tail(self, lease: Option<&Arc<LeasedFile>>, blocks_end: u64) -> bool {
        let size = match self {
            Self::Filled(_) => return true,
            Self::AtLeast(size) | Self::Set(size) => Some(size),
            Self::Keep => None,
        };
        lease.is_none_or(|lease| lease.spares_tail(blocks_end, size))
    }

    /// Where the file ends with what is collected of a tail.
    fn filled(self) -> Option<u64> {
        if let Self::Filled(size) = self { Some(size) } else { None }
    }
}

/// Whether a file's truncation is under way, for the orphan table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// Nothing to say.
    None,
    /// Blocks beyond the end remain to be freed, also after a crash.
    Begin,
    /// They are freed.
    End,
}

/// That a change gives a file blocks that another one has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shares {
    /// The other one.
    pub(super) source: InodeNo,
    /// Its family, which the file joins (I-CKP-6).
    pub(super) family: InodeNo,
}

/// A change of a file's map and size, to become one record.
pub(super) struct Change {
    pub(super) kind: RecordKind,
    pub(super) size: SizeChange,
    pub(super) mark: Mark,
    /// Whether the file's content changed, and with it the modification time.
    pub(super) touches: bool,
    /// Whether every written block stays where it is and written; anything else needs the exclusive
    /// inode lock, or `readers`.
    pub(super) only_adds: bool,
    /// Whether readers may be on their way to blocks that it takes out of the map: the inode lock
    /// is held shared.
    pub(super) readers: bool,
    /// The data it makes readable.
    pub(super) exposing: Option<Exposing>,
    /// Where its blocks come from that another file has too.
    pub(super) shares: Option<Shares>,
}

impl Change {
    pub(super) fn new(kind: RecordKind, size: SizeChange) -> Self {
        Self {
            kind,
            size,
            mark: Mark::None,
            touches: true,
            only_adds: false,
            readers: false,
            exposing: None,
            shares: None,
        }
    }

    /// A change that leaves every written block where it is.
    pub(super) fn adding(kind: RecordKind, size: SizeChange) -> Self {
        Self { only_adds: true, ..Self::new(kind, size) }
    }

    pub(super) fn exposing(self, exposing: Exposing) -> Self {
        Self { exposing: Some(exposing).filter(|exposing| !exposing.is_empty()), ..self }
    }

    pub(super) fn marked(self, mark: Mark) -> Self {
        Self { mark, ..self }
    }
}

impl DataPath<'_> {
    /// Makes `extents` all that the file blocks of `range` map; what they do not cover any more
    /// becomes free unless a checkpoint needs it.
    pub(super) fn publish_extents(
        self,
        range: Range<u64>,
        extents: &[(FileBlock, Extent)],
        change: Change,
    ) -> Result<Lsn> {
        debug_assert!(
            extents.iter().all(|(at, extent)| {
                range.contains(&at.0) && at.0 + u64::from(extent.blocks) <= range.end
            }),
            "I-EXT-1: what is published lies in its range: {extents:?} in {range:?}"
        );
        self.commit_map(change, range.clone(), |map| {
            // Under the map's lock: a reservation of blocks for holes looks at the map and the
            // reservations as one.
            self.forget_reserved(&range);
            map.plan_set(range, extents)
        })
    }

    /// Plans a change of a range on the locked map, logs, and carries the plan out; what it frees becomes free once the
    /// record is sealed.
    pub(super) fn commit_map(
        self,
        change: Change,
        range: Range<u64>,
        plan: impl FnOnce(&ExtentMap) -> Vec<ExtentChange>,
    ) -> Result<Lsn> {
        assert!(
            is_covered() || self.state().is_covered(),
            "I-CHG-1: a freeze waits for the change of inode {}",
            self.inode.ino.0
        );
        let mut map = self.map_mut(ExtentMap::around(&range))?;
        assert!(
            change.size.spares_tail(self.state().lease(), range.end),
            "I-LEA-9, I-LEA-12: inode {} is changed where a process makes it grow",
            self.inode.ino.0
        );
        let changes = plan(&map);
        if !change.only_adds && !planted(PlantedBug::MemoOutlivesMap) {
            self.state().recent.clear();
            self.state().held_sectors.clear();
            self.state().read_windows.clear();
        }
        let old = map.apply(&changes);
        debug_assert_eq!(old.len(), changes.len(), "I-CKP-3: what every change replaces is known");
        let collected = change.size.filled().zip(self.state().lease());
        let told_early = collected.filter(|_| planted(PlantedBug::TailCollectedEarly));
        told_early.inspect(|(size, lease)| lease.tail_collected(range.end, *size));
        let known = self.known(&changes, &old);
        pause(Pause::Planned);
        let (readers, only_adds) = (change.readers, change.only_adds);
        if planted(PlantedBug::ChangedPartEvicted) {
            self.read_again_too_early(&mut map, &range)?;
        }
        let committed = self.log(&map, &changes, change, &known);
        // The file has its new size by now: what waits for the tail no more reads up to that.
        if let (Some((size, lease)), None) = (collected, told_early) {
            lease.tail_collected(range.end, size);
        }
        self.lease_follows(&map, only_adds);
        drop(map);
        pause(Pause::Recorded);
        let lsn = committed.lsn;
        let freed = committed
            .freed
            .unwrap_or_else(|| if only_adds { Vec::new() } else { freed_by(&changes, &old) });
        debug_assert!(
            freed.iter().all(|run| run.blocks > 0),
            "I-SPC-2: what becomes free is some: {freed:?}"
        );
        if readers {
            self.defer_free(lsn, freed);
        } else {
            freed.into_iter().for_each(|run| self.fs.release_after(lsn, run));
        }
        Ok(lsn)
    }

    /// Has the lease of the file go by its map.
    #[inline]
    fn lease_follows(self, map: &ExtentMap, only_adds: bool) {
        if let Some(lease) = self.state().lease() {
            lease.map_changed(only_adds);
            if lease.is_wrong_in_use() {
                self.rewrite_lease(lease, map);
            }
        }
    }

    /// Logs the changed rows (ranks 4 and 5, under the map's write lock).
    fn log(
        self,
        map: &ExtentMap,
        changes: &[ExtentChange],
        change: Change,
        known: &PriorRows,
    ) -> Committed {
        let mut rows = self.rows(changes);
        let mut attr = self.inode.attr_lock();
        let size = match change.size {
            SizeChange::AtLeast(size) | SizeChange::Filled(size) => attr.row.size.max(size),
            SizeChange::Set(size) => size,
            SizeChange::Keep => attr.row.size,
        };
        // Where only times change they follow later, as those of a write in place.
        let times_only = change.mark == Mark::None
            && change.shares.is_none()
            && (size, map.blocks()) == (attr.row.size, attr.row.blocks);
        if !times_only {
            attr.merge_times();
            if change.touches && !is_behind() {
                let now = Timestamp::now();
                (attr.row.mtime, attr.row.ctime) = (now, now);
            }
            (attr.row.size, attr.row.blocks) = (size, map.blocks());
            let joined = change.shares.filter(|shares| shares.family != self.inode.ino);
            attr.row.parent = joined.map_or(attr.row.parent, |shares| shares.family);
            rows.push(attr.change());
        }
        rows.extend(self.mark(change.mark, attr.row.nlink));
        debug_assert!(size <= Grid::FILE_BYTES_MAX, "a file ends before its largest size: {size}");
        // Behind the extents, whose old rows are known.
        if let Some(exposing) = change.exposing.as_ref().filter(|exposing| exposing.sums()) {
            rows.extend(exposing.sum_rows());
        }
        let committed = match change.shares {
            Some(shares) => self.commit_shared(change.kind, rows, shares),
            None => self.commit(change.kind, rows, change.exposing, known),
        };
        self.state().set_logged_size(attr.row.size);
        match change.size {
            SizeChange::AtLeast(size) | SizeChange::Filled(size) => {
                self.inode.size.fetch_max(size, Ordering::AcqRel);
            }
            SizeChange::Set(size) => self.inode.size.store(size, Ordering::Release),
            SizeChange::Keep => {}
        }
        self.inode.note_lsn(committed.lsn, true);
        drop(attr);
        if times_only && change.touches {
            self.wrote_in_place();
        }
        committed
    }

    /// The row that says whether a truncation is under way.
    fn mark(self, mark: Mark, nlink: u32) -> Option<RowChange> {
        let orphan = inode_key(self.inode.ino);
        match mark {
            Mark::None => None,
            Mark::Begin if planted(PlantedBug::TruncationNotMarked) => None,
            Mark::Begin => Some(RowChange::put(Table::Orphan, orphan, Vec::new())),
            // A file without names is an orphan of its own right.
            Mark::End if nlink == 0 => None,
            Mark::End => Some(RowChange::delete(Table::Orphan, orphan)),
        }
    }

    /// Logs a record that gives the file blocks of another one: with a barrier, because what was
    /// written to them in place may not be durable (I-CPY-2).
    fn commit_shared(self, kind: RecordKind, rows: Vec<RowChange>, shares: Shares) -> Committed {
        let barrier = !planted(PlantedBug::RangeWithoutBarrier);
        self.fs.commit_shared(
            Record { kind, rows, exposes: None, barrier },
            [shares.source, self.inode.ino],
        )
    }

    fn commit(
        self,
        kind: RecordKind,
        rows: Vec<RowChange>,
        exposing: Option<Exposing>,
        known: &PriorRows,
    ) -> Committed {
        let Some(exposing) = exposing.filter(|_| !planted(PlantedBug::ExposureWithoutChecksum))
        else {
            return self
                .fs
                .commit_extents(Record { kind, rows, exposes: None, barrier: false }, known);
        };
        let exposes = exposing.finish();
        let exposed = exposes.as_ref().map_or(&[][..], |exposure| &exposure.segments);
        // Most expose one; a copy of that takes no memory of its own.
        let (one, more) = match exposed {
            [one] => ([*one], Vec::new()),
            all => ([(0, 0)], all.to_vec()),
        };
        let segments = if more.is_empty() && !exposed.is_empty() { &one[..] } else { &more };
        let barrier = exposes.is_none();
        let carried = exposes.as_ref().is_some_and(|exposure| exposure.logged.is_some());
        let committed = self.fs.commit_extents(Record { kind, rows, exposes, barrier }, known);
        // These blocks cannot be found before the map is unlocked.
        if !segments.is_empty() {
            let sealed = self.fs.sealed_lsn();
            self.state().unsealed.add(segments, committed.lsn, sealed, carried);
        }
        committed
    }
}
