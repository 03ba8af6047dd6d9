//! The store: commit, read, and the metadata commit that moves rows into the tree.

use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bedplate_block::BlockDevice;
use bedplate_block::sync::{Mutex as Ranked, MutexGuard, RwLock, RwLockWriteGuard, rank};
use parking_lot::Mutex;

use super::guard::Tree;
use super::memtable::Memtable;
use super::misordered::logged_instead;
use super::pace::due_above;
use super::read::{Snapshot, State};
use super::region::Region;
use super::space::{Keeping, SpaceView};
use super::sum_cache::SumCache;
use super::tree::{Writing, open_tree, write_frozen_rows};
use crate::allocator::Allocator;
use crate::extent::Run;
use crate::images::{CheckpointSet, Others, PriorRows};
use crate::log::{
    HomeWrites, IntentLog, LogInfo, LogParts, LogPosition, Record, RecordKind, ReplayReport,
    SyncOutcome,
};
use crate::pack::EXTENTS_OF_PACK;
use crate::planted::{PlantedBug, planted};
use crate::row::{RowChange, Table};
use crate::sums::of_row;
use crate::{Error, ErrorKind, Lsn, Result};

/// How much more than the pages of the tree checksums of data that are remembered may take: the
/// so-manieth part.
const SUMS_OF_CACHE: u64 = 8;

/// A record that was committed.
#[must_use]
#[derive(Debug)]
pub struct Committed {
    /// The record's number.
    pub lsn: Lsn,
    /// The runs that no extent row covers any more; `None` where checkpoints have no say, and what
    /// leaves a file is free.
    pub freed: Option<Vec<Run>>,
}

/// The store while no other thread reads or changes a row.
pub struct Locked<'a> {
    store: &'a MetaStore,
    state: RwLockWriteGuard<'a, State>,
}

impl Locked<'_> {
    /// Returns the rows.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the checkpoints, to change them.
    pub fn checkpoint_set(&mut self) -> &mut CheckpointSet {
        &mut self.state.checkpoint_set
    }

    /// Commits a record; blocks that its extents cover and its own rows did not are as `others`
    /// says.
    pub fn commit(&mut self, record: Record, others: Others) -> Result<Committed> {
        self.store.commit_locked(&mut self.state, record, None, others)
    }
}

/// All metadata of a mounted file system. Every method may be called from any thread.
pub struct MetaStore {
    /// `None` once the tree is closed.
    db: Mutex<Option<Tree>>,
    pub(super) region: Arc<Region>,
    pub(super) device: Arc<dyn BlockDevice>,
    /// What records carry and their places on the device do not have yet.
    pub(super) homes: Arc<HomeWrites>,
    /// Unset on a read-only mount, and until recovery is through.
    pub(super) log: OnceLock<IntentLog>,
    /// Rank 5: taken after every inode lock, before the log's buffer.
    pub(super) state: RwLock<State, { rank::METADATA_STORE }>,
    /// Checksums of data that were looked up.
    pub(super) sum_cache: SumCache,
    /// The free space as the last metadata commit has it, and where it is in memory, which looks at
    /// it: neither keeps the other, or the tree, alive.
    pub(super) space: OnceLock<(Arc<SpaceView>, Weak<Allocator>)>,
    /// The next metadata commit counts the free space anew.
    pub(super) recounts: AtomicBool,
    /// The most extents of a pack.
    pub(super) pack_extents: AtomicUsize,
    /// One metadata commit at a time; rank 4.5, never taken while `state` is held.
    committing: Ranked<(), { rank::METADATA_COMMIT }>,
    pub(super) active_bytes: AtomicUsize,
    /// From how many of these on a metadata commit is due.
    pub(super) due_bytes: AtomicUsize,
    metadata_commits: AtomicU64,
    /// Why the last metadata commit found no room for the region to grow, if it did not.
    refusal: Mutex<Option<Error>>,
    failed: OnceLock<Error>,
}

impl MetaStore {
    /// Takes over an open tree; the log follows with [`start`](Self::start).
    pub fn new(db: Tree, region: Arc<Region>, device: Arc<dyn BlockDevice>) -> Result<Self> {
        let snapshot = Arc::new(Snapshot::take(&db)?);
        let region_bytes = region.metadata_len();
        Ok(Self {
            sum_cache: SumCache::new(db.cache_bytes / SUMS_OF_CACHE),
            db: Mutex::new(Some(db)),
            region,
            device,
            homes: Arc::default(),
            log: OnceLock::new(),
            state: RwLock::new(State::new(snapshot)),
            space: OnceLock::new(),
            recounts: AtomicBool::new(false),
            pack_extents: AtomicUsize::new(EXTENTS_OF_PACK),
            committing: Ranked::new(()),
            active_bytes: AtomicUsize::new(0),
            due_bytes: AtomicUsize::new(due_above(region_bytes)),
            metadata_commits: AtomicU64::new(0),
            refusal: Mutex::new(None),
            failed: OnceLock::new(),
        })
    }

    /// Ends recovery: what was replayed becomes durable together with the position of a new log
    /// incarnation, and the log opens there. What was replayed is durable in the log, and so is the
    /// data that it exposes (I-REC-1): the tree may grow into what it freed. Where it has no room
    /// to grow, the log goes on behind what was replayed.
    pub fn start(&self, parts: LogParts, replayed: &ReplayReport) -> Result<()> {
        if self.homes.bytes() > 0 {
            // Before the tree grows into what later records freed.
            self.write_homes()?;
            self.device.flush()?;
        }
        let (frozen, _) = self.freeze();
        let done = self.write_frozen(&frozen, &replayed.next);
        let log = match self.take_back_refused(&done) {
            Some(_) => IntentLog::resume(parts, &replayed.kept)?,
            None => done.and_then(|()| IntentLog::open(parts, replayed.next))?,
        };
        let log = log.with_homes(Arc::clone(&self.homes));
        assert!(self.log.set(log).is_ok(), "the log is opened once");
        Ok(())
    }

    /// Closes the tree. The caller has made everything durable.
    pub fn close(&self) {
        let _one = self.committing.lock();
        self.look_at(None);
        *self.db.lock() = None;
    }

    #[inline]
    pub(super) fn log(&self) -> &IntentLog {
        self.log.get().expect("a writable mount opened its log")
    }

    /// Returns the last record appended; 0 on a read-only mount.
    #[inline]
    pub fn last_lsn(&self) -> Lsn {
        self.log.get().map_or(Lsn(0), IntentLog::last_lsn)
    }

    /// Returns the last sealed record: blocks freed up to it may be reused.
    #[inline]
    pub fn sealed_lsn(&self) -> Lsn {
        self.log.get().map_or(Lsn(0), IntentLog::sealed_lsn)
    }

    /// Takes note of a failed flush that the store did not make itself: nothing becomes durable any
    /// more.
    pub fn latch(&self, error: Error) {
        self.failed.get_or_init(|| {
            let error = error.latching("the device");
            tracing::error!("{error}");
            error
        });
    }

    /// Returns the region of the tree.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the device that log and metadata are on.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Returns the log's counters.
    pub fn log_info(&self) -> LogInfo {
        let mut info = self.log.get().map(IntentLog::info).unwrap_or_default();
        info.metadata_commits = self.metadata_commits.load(Ordering::Relaxed);
        info
    }

    /// Returns whether a write or flush has failed, what every change asks.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failed.get().is_some()
            || self.log.get().is_some_and(IntentLog::has_failed)
            || self.region.has_failed()
    }

    /// Returns the first failure of a write or flush, if there was one.
    pub fn failed(&self) -> Option<Error> {
        self.failed
            .get()
            .cloned()
            .or_else(|| self.log.get().and_then(IntentLog::failed))
            .or_else(|| self.region.failed())
    }

    /// Logs a record and makes its rows visible (I-META-1), with what checkpoints keep of the rows
    /// before. Nothing is durable before [`sync`](Self::sync). `known` saves looking rows up. When
    /// the old rows cannot be read the store latches as after a failed write, and the record is
    /// dropped.
    pub fn commit(&self, record: Record, known: Option<&PriorRows>) -> Committed {
        let mut state = self.state.write();
        self.commit_locked(&mut state, record, known, Others::Free).unwrap_or_else(|e| {
            self.failed.get_or_init(|| e.latching("reading the rows that checkpoints keep"));
            Committed { lsn: self.last_lsn(), freed: Some(Vec::new()) }
        })
    }

    /// Runs `work` while no other thread reads or changes a row.
    pub fn exclusively<T>(&self, work: impl FnOnce(&mut Locked<'_>) -> Result<T>) -> Result<T> {
        self.check()?;
        self.revive();
        let mut locked = Locked { store: self, state: self.state.write() };
        work(&mut locked)
    }

    fn commit_locked(
        &self,
        state: &mut State,
        mut record: Record,
        known: Option<&PriorRows>,
        others: Others,
    ) -> Result<Committed> {
        let uncovered = if state.checkpoint_set.is_idle() && others != Others::Covered {
            None
        } else {
            let get = |table, key: &[u8]| state.get(table, key);
            let set = &state.checkpoint_set;
            let plan = match others {
                Others::Moved => set.plan_moved(&record.rows, get)?,
                Others::Free | Others::Covered => set.plan(&record.rows, known, get)?,
            };
            let uncovered = state.checkpoint_set.apply(&plan, others)?;
            assert!(
                plan.images.iter().all(|image| image.value.is_some()),
                "I-CKP-3: the old rows join the record that changes them"
            );
            record.rows.extend(plan.images);
            Some(uncovered)
        };
        let lsn = self.log().append(logged_instead(&record).as_ref().unwrap_or(&record));
        debug_assert!(
            lsn == self.last_lsn(),
            "I-META-1: nothing is appended between a record and its rows"
        );
        self.apply(state, record.rows);
        if others == Others::Moved {
            // Rows may have come under keys that a deletion has passed.
            state.checkpoint_set.deleted_up_to = None;
        }
        if let Some(uncovered) = &uncovered {
            state.checkpoint_set.note_unshared(lsn, &uncovered.left, others, self.sealed_lsn());
        }
        Ok(Committed { lsn, freed: uncovered.map(|uncovered| uncovered.freed) })
    }

    /// Makes rows visible that came out of the log.
    pub fn replay(&self, mut rows: Vec<RowChange>) {
        if planted(PlantedBug::RowsInReverse) {
            rows.reverse();
        }
        if planted(PlantedBug::SumsNotReplayed) {
            rows.retain(|row| row.table != Table::Sum);
        }
        self.apply(&mut self.state.write(), rows);
    }

    fn apply(&self, state: &mut State, rows: Vec<RowChange>) {
        for row in rows {
            if row.table == Table::Sum {
                self.sum_cache.note(of_row(&row.key, row.value.as_deref()));
            }
            state.active.apply(row);
        }
        self.active_bytes.store(state.active.bytes(), Ordering::Relaxed);
    }

    /// Returns a row.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.revive();
        let snapshot = {
            let state = self.state.read();
            match state.above(table, key) {
                Some(row) => return Ok(row.map(|bytes| bytes.to_vec())),
                None => Arc::clone(&state.snapshot),
            }
        };
        snapshot.get(table, key)
    }

    /// Visits rows with `from <= key < to` in key order (I-META-4: as of one moment).
    pub fn scan(
        &self,
        table: Table,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.revive();
        self.state.read().scan(table, from, to, visit)
    }

    /// Reads the rows and what checkpoints know of them, all of one moment.
    pub fn reading<T>(&self, work: impl FnOnce(&State) -> Result<T>) -> Result<T> {
        self.revive();
        work(&self.state.read())
    }

    /// Takes over what recovery found of checkpoints.
    pub fn set_checkpoints(&self, checkpoint_set: CheckpointSet) {
        self.state.write().checkpoint_set = checkpoint_set;
    }

    /// Visits every row of a table.
    pub fn scan_all(
        &self,
        table: Table,
        visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.scan(table, Bound::Unbounded, Bound::Unbounded, visit)
    }

    /// Makes every record up to `lsn` durable and flushes the data device once (shared with all
    /// that wait).
    pub fn sync(&self, lsn: Lsn) -> Result<()> {
        self.check()?;
        if planted(PlantedBug::LoggedOutOfOrder) {
            // Its own promises it keeps.
            let last = self
                .commit(
                    Record {
                        kind: RecordKind::Setting,
                        rows: Vec::new(),
                        exposes: None,
                        barrier: false,
                    },
                    None,
                )
                .lsn;
            return self.log().sync(last).map(drop);
        }
        match self.log.get().map(|log| log.sync(lsn)).transpose()? {
            None | Some(SyncOutcome::Durable) => Ok(()),
            Some(SyncOutcome::NeedsCommit) => self.metadata_commit(),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        self.failed().map_or(Ok(()), Err)
    }

    /// Moves everything committed so far into the tree, durably, and the log's tail behind it.
    ///
    /// # Errors
    /// `NoSpace` where the region had no room to grow: then nothing has changed (I-META-5).
    /// Everything else latches.
    pub fn metadata_commit(&self) -> Result<()> {
        let sealed_before = self.is_cramped();
        match self.try_metadata_commit() {
            // Once more: what the last records freed is sealed first.
            Err(e) if e.kind == ErrorKind::NoSpace && !sealed_before && self.is_cramped() => {
                self.try_metadata_commit()
            }
            other => other,
        }
    }

    fn try_metadata_commit(&self) -> Result<()> {
        let one = self.committing.lock();
        self.check()?;
        // Under the lock: the metadata commit before this one may have been refused.
        self.open_again(&one);
        let done = self.metadata_commit_locked();
        if let Some(refusal) = self.take_back_refused(&done) {
            return Err(refusal);
        }
        done.map_err(|e| {
            let e = e.latching("the metadata");
            self.failed.get_or_init(|| e.clone());
            e
        })
    }

    /// Returns why the region found no room to grow, as long as that holds.
    pub(super) fn refusal(&self) -> Option<Error> {
        self.refusal.lock().clone()
    }

    /// Returns whether the tree holds back what the log has, because the region has no room to
    /// grow.
    pub fn is_cramped(&self) -> bool {
        self.refusal.lock().is_some()
    }

    /// Takes a metadata commit back for which the region had no room to grow, and returns why:
    /// nothing was written that a reader of the tree sees, the log's tail did not move, and the
    /// rows stay in memory for the next one.
    pub(super) fn take_back_refused(&self, done: &Result<()>) -> Option<Error> {
        // The tree may hand on another error than the one it was told first.
        let refusal =
            self.region.take_refusal().filter(|_| done.is_err() && self.failed().is_none());
        self.refusal.lock().clone_from(&refusal);
        if refusal.is_some() {
            let mut state = self.state.write();
            if let Some(frozen) = state.frozen.take() {
                state.active.absorb_older(&frozen);
            }
            debug_assert!(
                state.frozen.is_none(),
                "I-META-5: after a refusal the rows are those of before"
            );
            self.active_bytes.store(state.active.bytes(), Ordering::Relaxed);
        }
        refusal
    }

    /// Runs `work` while no metadata commit is under way.
    pub(super) fn alone<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let one = self.committing.lock();
        self.check()?;
        self.open_again(&one);
        work()
    }

    fn metadata_commit_locked(&self) -> Result<()> {
        let log = self.log();
        let (frozen, lsn) = self.freeze();
        // The log's tail moves behind what carries it.
        self.write_homes()?;
        let outcome = if self.is_cramped() { log.seal(lsn)? } else { log.sync(lsn)? };
        self.region.note_sealed(log.sealed_lsn());
        if outcome == SyncOutcome::NeedsCommit {
            self.device.flush()?;
        }
        assert!(
            outcome == SyncOutcome::NeedsCommit || log.durable_lsn() >= lsn,
            "I-META-3: the log is durable before the tree claims to hold it"
        );
        let position = log.position_after(lsn);
        assert!(
            position.applied == lsn,
            "I-META-2: the commit holds records up to {lsn:?}, the position says {:?}",
            position.applied
        );
        if planted(PlantedBug::TrimmedBeforeCommit) {
            log.trim(position);
        }
        self.write_frozen(&frozen, &position)?;
        log.trim(position);
        log.skip_to(lsn);
        debug_assert!(
            log.durable_lsn() >= lsn && log.sealed_lsn() >= lsn,
            "I-META-3: what the tree holds durably is sealed: {lsn:?}"
        );
        Ok(())
    }

    /// Writes the frozen rows into the tree, durably, and lets readers see them there (I-META-4).
    pub(super) fn write_frozen(&self, frozen: &Memtable, position: &LogPosition) -> Result<()> {
        debug_assert!(
            position.incarnation > 0 && position.sequence > 0,
            "I-META-2: a commit stores where its log goes on: {position:?}"
        );
        let rows = Table::ALL.into_iter().flat_map(|table| {
            frozen
                .table(table)
                .iter()
                .map(move |(key, value)| (table, key.as_slice(), value.as_deref()))
        });
        let keeping = self.keeping();
        self.prepare_allocator(frozen.bytes() as u64);
        let snapshot = {
            let db = self.db.lock();
            let db = db
                .as_ref()
                .ok_or_else(|| Error::new(ErrorKind::Busy, "the volume was unmounted"))?;
            let before = |regions: Option<&BTreeSet<u64>>| self.before_change(regions);
            let (pack, sums) = (self.pack_limit(), frozen.sums());
            let writing = Writing { keeping, pack, sums, before: &before };
            write_frozen_rows(db, position, rows, writing)?;
            Arc::new(Snapshot::take(db)?)
        };
        if matches!(keeping, Keeping::Rebuilt(_)) {
            self.recounts.store(false, Ordering::Relaxed);
        }
        self.look_at(Some(&snapshot));
        self.note_tree_size();
        let mut state = self.state.write();
        assert!(
            state.frozen.is_some(),
            "I-META-4: the frozen rows stay until readers find them in the tree"
        );
        let old = std::mem::replace(&mut state.snapshot, snapshot);
        let written = state.frozen.take();
        drop(state);
        // Many rows take a while to be freed, and commits do not wait for that.
        drop((old, written));
        self.metadata_commits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Opens the tree again after it was told of a failure: it serves nothing from then on, and a
    /// read that failed is to fail alone (S-35). Where nothing may be written any more, what
    /// opening writes stays in memory. As long as that fails, the old snapshot answers what it
    /// holds.
    #[inline]
    pub(super) fn revive(&self) {
        if self.region.is_lost() {
            self.revive_lost();
        }
    }

    #[cold]
    fn revive_lost(&self) {
        // Not while a metadata commit is under way, which may be the caller's own: it fails, or the
        // next reader does this.
        if let Some(one) = self.committing.try_lock() {
            self.open_again(&one);
        }
    }

    fn open_again(&self, _one: &MutexGuard<'_, ()>) {
        let mut db = self.db.lock();
        let Some(cache_bytes) =
            db.as_ref().map(|tree| tree.cache_bytes).filter(|_| self.region.is_lost())
        else {
            return;
        };
        let region = if self.failed().is_some() {
            Arc::new(self.region.shadow())
        } else {
            Arc::clone(&self.region)
        };
        self.region.set_lost(false);
        let opened = open_tree(&region, cache_bytes)
            .and_then(|tree| Ok((Arc::new(Snapshot::take(&tree)?), tree)));
        match opened {
            Ok((snapshot, tree)) => {
                // What the old tree meets while it closes is no failure of the new one.
                *db = Some(tree);
                self.region.set_lost(false);
                // I-META-4: the tree is as of its last durable commit, and none is under way.
                self.look_at(Some(&snapshot));
                self.state.write().snapshot = snapshot;
            }
            Err(error) => {
                self.region.set_lost(true);
                tracing::debug!(%error, "the metadata tree does not open again");
            }
        }
    }

    pub(super) fn freeze(&self) -> (Arc<Memtable>, Lsn) {
        let mut state = self.state.write();
        assert!(
            state.frozen.is_none(),
            "a metadata commit that fails latches the store or takes the rows back"
        );
        let frozen = Arc::new(std::mem::take(&mut state.active));
        state.frozen = Some(Arc::clone(&frozen));
        self.active_bytes.store(0, Ordering::Relaxed);
        debug_assert_eq!(
            state.active.bytes(),
            0,
            "I-META-4: what is frozen is in the active memtable no more"
        );
        (frozen, self.last_lsn())
    }
}
