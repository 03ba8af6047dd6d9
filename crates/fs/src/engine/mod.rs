//! The state of a mounted file system, shared by everything that works on it. What works on it is
//! in the modules above: data path, names, checkpoints. They reach device, log, metadata tree and
//! allocator only through the engine's words, so that what must go with an access stands once.
//!
//! | file | holds |
//! | --- | --- |
//! | `views` | which checkpoints have inode numbers; rows as the present or a checkpoint has them |
//! | `epoch_state` | the epoch, and when files look up again what they may write in place |
//! | `deferred_free` | blocks that left a file while it was read |
//! | `queues` | queues with I/O in flight, for threads that wait for its locks |
//! | `locks`, `listed`, `daemons` | the file system's locks; which inodes are open, cached or held; wake-ups |
//! | `maps` | the memory that extent maps take, under one cap |
//! | `trials`, `tuning` | modes on trial; tunables in effect and stored |
//! | `device`, `metadata`, `space` | what the parts above ask of device, metadata and free space |
//! | `space_policy`, `defrag_status`, `recovery` | what happens on a full volume; what defragmentation does; what the mount did |
//! | `shrinking` | how far a shrink is, and what it asks of free space and metadata |

mod acl_note;
mod daemons;
mod deferred_free;
mod defrag_status;
mod deleters;
mod device;
mod epoch_state;
mod kept;
mod listed;
mod locks;
mod maps;
mod metadata;
mod queues;
mod recovery;
mod shrinking;
mod space;
mod space_policy;
mod sums;
mod trials;
mod trim;
mod tuning;
mod views;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bedplate_block::sync::{Mutex as Ranked, rank};
use bedplate_block::{BlockDevice, Geometry, Waker, Workers};
use parking_lot::Mutex;

pub(crate) use acl_note::{ACLS, AclNote};
use daemons::{piece_threads, window_threads};
use deferred_free::DeferredFree;
pub(crate) use defrag_status::DefragStatus;
pub use defrag_status::{DefragmenterReport, DefragmenterState, Fragmentation, MovedFile};
use deleters::Deleters;
pub(crate) use epoch_state::EpochState;
pub use kept::KeptExtent;
pub(crate) use listed::Listed;
pub(crate) use locks::Unhurried;
pub use maps::MapCounts;
use maps::Maps;
pub(crate) use queues::HelpedQueue;
use queues::Queues;
pub use recovery::RecoveryReport;
pub(crate) use shrinking::{MovedRow, Phase, Shrinking, Window};
pub use space_policy::{CheckpointCounts, SpacePolicy};
pub(crate) use space_policy::{SPACE_POLICY, SpacePolicyState, decode_policy};
pub use sums::IntegrityCounts;
use sums::SumCounters;
pub(crate) use trials::{Trial, Trials};
pub(crate) use tuning::{
    Tuning, TuningState, cache_options, check_options, check_stored, initial_tuning, refusal,
    stored_key,
};
pub(crate) use views::Views;

use crate::inode::{HeldBytes, Inode, InodeList, InodeTable, SharedBytes};
use crate::lease::Leases;
use crate::lock::{ChangeLock, Changing, NamesLock, is_covered};
use crate::pause::{Pause, pause};
use crate::schedule::ScheduleState;
use crate::statistics::Sampler;
use crate::{Epoch, Error, ErrorKind, InodeNo, Lsn, MountOptions, Result, Statfs};
use bedplate_cache::PageCache;
use bedplate_store::{
    Allocator, Committed, Grid, MetaStore, Outlook, PlantedBug, PriorRows, Purpose, Record,
    RecordKind, RowChange, Table, has_before_images, planted,
};

/// How many inode numbers one `next_ino` setting reserves.
const INO_BATCH: u64 = 1024;

/// Name of the setting from which inode numbers are free after a crash.
pub(crate) const NEXT_INO: &[u8] = b"next_ino";
/// Name of the setting that holds the epoch.
pub(crate) const EPOCH: &[u8] = b"epoch";

/// What a front end does before a checkpoint by schedule.
pub(crate) type FlushFrontend = Box<dyn Fn() + Send + Sync>;

/// A mounted file system.
pub(crate) struct Engine {
    device: Arc<dyn BlockDevice>,
    /// The log's own device. It changes under the size lock; nothing is taken while it is looked at.
    log_device: Mutex<Option<Arc<dyn BlockDevice>>>,
    geometry: Geometry,
    /// Allocation unit in bytes.
    block_size: u32,
    /// Blocks and sectors.
    grid: Grid,
    /// As of the mount; what has changed since is in `tuning`.
    options: MountOptions,
    /// What can be changed while mounted.
    tuning: Tuning,
    meta: MetaStore,
    allocator: Arc<Allocator>,
    inodes: InodeTable,
    /// The open files.
    open_files: InodeList,
    /// The files that may have pages in the library cache.
    cached_files: InodeList,
    /// Rank 0.2: the file system grows, or its size must stay; how far a shrink is.
    growing: Ranked<Option<Shrinking>, { rank::SIZE }>,
    /// Rank 0.4: one clone at a time, and no rollback meanwhile.
    cloning: Ranked<(), { rank::CLONING }>,
    /// Rank 0.9: shared by changes and opens, alone while a checkpoint is made, deleted or rolled
    /// back to.
    changes: ChangeLock,
    /// Ranks 1 and 1.1: names of a directory change one at a time.
    names: NamesLock,
    /// Rank 0.3: one runs or changes schedules at a time; when each had its turn.
    schedule_state: Ranked<ScheduleState, { rank::SCHEDULES }>,
    /// What background defragmentation does and did.
    defrag_status: DefragStatus,
    /// Wakes the checkpoint scheduler before its time.
    scheduler_waker: Waker,
    /// What a front end does so that writes which its kernel still holds arrive; called with no
    /// lock held.
    flush_frontend: OnceLock<FlushFrontend>,
    /// Rank 0.5: one at a time withholds free blocks to discard them.
    trimming: Ranked<(), { rank::TRIM }>,
    /// Rank 0.5: one at a time deletes checkpoints because the volume is full.
    room: Ranked<(), { rank::ROOM }>,
    /// Calls that wait for the end of deletions of checkpoints.
    deleters: Deleters,
    /// Files that are served in another mode for a while.
    trials: Trials,
    /// What happens to checkpoints when the volume is full, and what did.
    space_policy: SpacePolicyState,
    /// Whether there are access control lists.
    acl_note: AclNote,
    /// The epoch, and which generation of the set of checkpoints it belongs to.
    epoch_state: EpochState,
    /// Which checkpoints were looked into.
    views: Views,
    /// Blocks that left a file while it was read.
    deferred_free: DeferredFree,
    /// The files of which a write is held.
    held_files: InodeList,
    /// Those with writes that are delayed.
    delayed_files: InodeList,
    /// Those with windows that were read ahead.
    windowed_files: InodeList,
    /// Files whose truncation is under way.
    truncated_files: InodeList,
    /// Those that are published to processes with leases.
    leased_files: InodeList,
    /// What other processes do with files by themselves, where that is wanted.
    leases: OnceLock<Arc<Leases>>,
    /// The memory of the extent maps.
    maps: Maps,
    /// How much is held of sectors that odd writes change in part.
    held_bytes: HeldBytes,
    /// How much is kept of writes that are delayed.
    delayed_bytes: SharedBytes,
    /// How much is read ahead past the caches.
    window_bytes: SharedBytes,
    /// What reads it where a reader is not to wait.
    window_threads: Workers,
    piece_threads: Workers,
    inode_count: AtomicU64,
    /// Whether the format of the volume has checksums of file data.
    may_have_sums: bool,
    /// Whether records of the log may carry data.
    may_carry: bool,
    /// What was done about them.
    sums: SumCounters,
    /// Which I/O is timed, how long it took, and what it waited for.
    sampler: Sampler,
    recovery: RecoveryReport,
    /// Wakes the sync daemon before its time.
    sync_waker: Waker,
    /// Itself, for what outlives a borrow: open files and the cache's way back.
    this: Weak<Self>,
    /// The library cache.
    cache: Arc<PageCache>,
    /// The queues with I/O in flight.
    queues: Queues,
    unmounted: AtomicBool,
    /// Rank 4.4: which inode numbers are free, and which of them are reserved.
    next_ino: Ranked<NextIno, { rank::INODE_NUMBERS }>,
    /// Inodes whose lazy times wait for the sync daemon.
    lazy: Mutex<HashMap<InodeNo, Arc<Inode>>>,
}

/// What `Engine` is assembled from.
pub(crate) struct Parts {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) log_device: Option<Arc<dyn BlockDevice>>,
    pub(crate) block_size: u32,
    pub(crate) options: MountOptions,
    pub(crate) tuning: Tuning,
    pub(crate) meta: MetaStore,
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) epoch: Epoch,
    pub(crate) inode_count: u64,
    pub(crate) next_ino: u64,
    pub(crate) recovery: RecoveryReport,
}

struct NextIno {
    next: u64,
    /// Numbers below this are covered by the logged setting.
    reserved: u64,
}

impl Engine {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let geometry = parts.device.geometry();
        let cache = cache_options(&parts.options, geometry.logical_block_size, parts.block_size);
        Arc::new_cyclic(|this| Self {
            geometry,
            device: parts.device,
            log_device: Mutex::new(parts.log_device),
            block_size: parts.block_size,
            grid: Grid::new(parts.block_size, geometry.logical_block_size, geometry.buffer_align),
            sampler: Sampler::new(parts.options.latency_sample),
            defrag_status: DefragStatus::new(&parts.options),
            maps: Maps::new(&parts.options),
            window_threads: window_threads(&parts.options),
            piece_threads: piece_threads(&parts.options),
            options: parts.options,
            may_have_sums: parts.meta.region().superblock().sums,
            may_carry: parts.meta.region().superblock().carries,
            tuning: parts.tuning,
            meta: parts.meta,
            allocator: parts.allocator,
            inodes: InodeTable::new(),
            open_files: InodeList::default(),
            cached_files: InodeList::default(),
            growing: Ranked::new(None),
            cloning: Ranked::new(()),
            changes: ChangeLock::default(),
            names: NamesLock::default(),
            schedule_state: Ranked::default(),
            scheduler_waker: Waker::default(),
            flush_frontend: OnceLock::new(),
            trimming: Ranked::new(()),
            room: Ranked::new(()),
            deleters: Deleters::default(),
            trials: Trials::default(),
            space_policy: SpacePolicyState::default(),
            acl_note: AclNote::default(),
            epoch_state: EpochState::new(parts.epoch),
            views: Views::default(),
            deferred_free: DeferredFree::default(),
            held_files: InodeList::default(),
            delayed_files: InodeList::default(),
            windowed_files: InodeList::default(),
            truncated_files: InodeList::default(),
            leased_files: InodeList::default(),
            leases: OnceLock::new(),
            held_bytes: HeldBytes::default(),
            delayed_bytes: SharedBytes::default(),
            window_bytes: SharedBytes::default(),
            inode_count: AtomicU64::new(parts.inode_count),
            sums: SumCounters::default(),
            recovery: parts.recovery,
            next_ino: Ranked::new(NextIno { next: parts.next_ino, reserved: parts.next_ino }),
            lazy: Mutex::new(HashMap::new()),
            sync_waker: Waker::default(),
            cache: PageCache::new(&cache),
            this: this.clone(),
            queues: Queues::default(),
            unmounted: AtomicBool::new(false),
        })
    }

    /// Refuses changes on a read-only mount and after a failed write or flush; holds back a writer
    /// that outruns the metadata.
    #[inline]
    pub(crate) fn begin_change(&self) -> Result<()> {
        self.begin(Purpose::Change)
    }

    /// As [`begin_change`](Self::begin_change), for what frees blocks or names: it goes on for a
    /// while where the metadata has no room to grow.
    pub(crate) fn begin_removal(&self) -> Result<()> {
        self.begin(Purpose::Removal)
    }

    /// As [`begin_removal`](Self::begin_removal), for the deletion of a checkpoint.
    pub(crate) fn begin_deletion(&self) -> Result<()> {
        self.begin(Purpose::Deletion)
    }

    #[inline]
    fn begin(&self, purpose: Purpose) -> Result<()> {
        if self.options.read_only
            || self.unmounted.load(Ordering::Acquire)
            || self.meta.has_failed()
        {
            return Err(self.refusal_of_changes());
        }
        pause(Pause::Change);
        let block_bytes = u64::from(self.block_size);
        let outlook = || {
            let (free_blocks, reserved_blocks) = self.allocator.free_and_reserved();
            Outlook { free_blocks, block_bytes, reserved_blocks }
        };
        self.meta.throttle(purpose, || self.allocator.free_at_least() * block_bytes, outlook)
    }

    /// Says why there are no changes.
    #[cold]
    fn refusal_of_changes(&self) -> Error {
        let name = self.device.name();
        if self.options.read_only {
            return Error::new(ErrorKind::ReadOnly, format!("{name} is mounted read-only"));
        }
        match self.meta.failed() {
            Some(failure) if !self.unmounted.load(Ordering::Acquire) => {
                self.stop_leases();
                Error {
                    kind: ErrorKind::ReadOnly,
                    message: format!("the file system turned read-only: {failure}"),
                    ..failure
                }
            }
            _ => Error::new(ErrorKind::Busy, format!("{name} was unmounted")),
        }
    }

    /// Logs a record that changes no extents and makes its rows visible.
    pub(crate) fn commit(&self, kind: RecordKind, rows: Vec<RowChange>) -> Lsn {
        assert!(
            is_covered() || !rows.iter().any(|row| has_before_images(row.table)),
            "I-CHG-1: a freeze waits for every change of a file's rows"
        );
        pause(Pause::Commit);
        let committed =
            self.meta.commit(Record { kind, rows, exposes: None, barrier: false }, None);
        if self.meta.commit_due() {
            self.sync_waker.wake();
        }
        committed.lsn
    }

    /// Logs a record of changed extents, whose first rows and their past are `known`.
    pub(crate) fn commit_extents(&self, record: Record, known: &PriorRows) -> Committed {
        let committed = self.meta.commit(record, Some(known));
        if self.meta.commit_due() {
            self.sync_waker.wake();
        }
        committed
    }

    /// Returns the epoch that new extents are born in.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch_state.epoch()
    }

    /// Has new extents born in another epoch. Nothing else is committed meanwhile.
    pub(crate) fn begin_epoch(&self, epoch: Epoch) {
        debug_assert!(epoch > self.epoch(), "I-CKP-1: epochs go forward: {epoch:?}");
        self.epoch_state.begin(epoch);
    }

    /// Makes every file look up its copy-on-write epoch again.
    pub(crate) fn epochs_changed(&self) {
        self.epoch_state.changed();
    }

    /// Counts the changes of the set of checkpoints.
    #[inline]
    pub(crate) fn epoch_generation(&self) -> u32 {
        self.epoch_state.generation()
    }

    /// Has every change of the set of checkpoints call `watch`, which takes leaf locks only.
    pub(crate) fn watch_epochs(&self, watch: impl Fn() + Send + Sync + 'static) {
        self.epoch_state.watch(watch);
    }

    /// Makes the whole mount show a checkpoint.
    pub(crate) fn show_checkpoint(&self, epoch: Epoch) {
        self.views.set_base(epoch);
    }

    /// Returns which checkpoints are held or were looked into.
    pub(crate) fn views(&self) -> &Views {
        &self.views
    }

    /// Returns the values in effect that can be changed while mounted.
    #[inline]
    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Returns the files that are served in another mode for a while.
    pub(crate) fn trials(&self) -> &Trials {
        &self.trials
    }

    /// Returns the calls that wait for the end of deletions of checkpoints.
    pub(crate) fn deleters(&self) -> &Deleters {
        &self.deleters
    }

    /// Returns what happens to checkpoints on a full volume.
    pub(crate) fn space_policy(&self) -> &SpacePolicyState {
        &self.space_policy
    }

    /// Returns what background defragmentation does and did.
    pub(crate) fn defrag_status(&self) -> &DefragStatus {
        &self.defrag_status
    }

    /// Returns which I/O is timed, and how long it took.
    #[inline]
    pub(crate) fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Returns the library cache.
    #[inline]
    pub(crate) fn cache(&self) -> &Arc<PageCache> {
        &self.cache
    }

    /// Returns what other processes do with files by themselves, where that is wanted.
    #[inline]
    pub(crate) fn leases(&self) -> Option<&Arc<Leases>> {
        self.leases.get()
    }

    /// Begins to lease files; returns whether none were leased before.
    pub(crate) fn begin_leases(&self, leases: &Arc<Leases>) -> bool {
        self.leases.set(Arc::clone(leases)).is_ok()
    }

    /// Returns the first inode number that no inode has. None is made meanwhile.
    pub(crate) fn ino_end(&self) -> InodeNo {
        InodeNo(self.next_ino.lock().next)
    }

    /// Marks the file system as unmounted: every change is refused from now on.
    pub(crate) fn retire(&self) {
        self.unmounted.store(true, Ordering::Release);
    }

    /// Makes everything acknowledged durable.
    pub(crate) fn sync_everything(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        // What is taken of what processes appended waits in memory then.
        let collected = self.collect_tails(true);
        let held = self.write_all_held().and(collected);
        let flushed = self.cache.flush_all().and(held);
        self.wait_for_truncations();
        self.commit_all_times(&self.change());
        self.meta.sync(self.meta.last_lsn())?;
        flushed
    }

    /// Returns a number that no inode had before. The setting that reserves numbers has a record of
    /// its own, committed before any of them is given out: threads that make inodes commit them in
    /// any order (I-NAM-2).
    pub(crate) fn new_ino(&self) -> InodeNo {
        let mut ino = self.next_ino.lock();
        if ino.next == ino.reserved {
            let reserved = ino.reserved + INO_BATCH;
            let row =
                RowChange::put(Table::Setting, NEXT_INO.to_vec(), reserved.to_le_bytes().to_vec());
            if !planted(PlantedBug::NumberNotReserved) {
                let _lsn = self.commit(RecordKind::Setting, vec![row]);
            }
            ino.reserved = reserved;
        }
        assert!(ino.next < ino.reserved, "I-NAM-2: only reserved numbers are given out");
        ino.next += 1;
        InodeNo(ino.next - 1)
    }

    /// Puts an inode with lazy times on the sync daemon's list.
    #[inline]
    pub(crate) fn list_lazy(&self, inode: &Arc<Inode>) {
        // A load first: it is nearly always listed, and a swap would move the cache line between
        // processors.
        if !inode.times_listed.load(Ordering::Relaxed) {
            self.add_lazy(inode);
        }
    }

    #[cold]
    fn add_lazy(&self, inode: &Arc<Inode>) {
        if !inode.times_listed.swap(true, Ordering::Relaxed) {
            self.lazy.lock().insert(inode.ino, Arc::clone(inode));
        }
    }

    /// Logs the lazy times of one inode. The caller holds no lock.
    pub(crate) fn commit_times(&self, inode: &Inode) {
        if inode.has_lazy_times() {
            self.log_times(&self.change(), inode);
        }
    }

    fn log_times(&self, _changing: &Changing<'_>, inode: &Inode) {
        if !inode.has_lazy_times() {
            return;
        }
        let mut attr = inode.attr_lock();
        if attr.row.nlink == 0 {
            return;
        }
        let change = attr.change();
        let lsn = self.commit(RecordKind::SetAttr, vec![change]);
        inode.note_lsn(lsn, false);
    }

    /// Logs all lazy times.
    pub(crate) fn commit_all_times(&self, changing: &Changing<'_>) {
        let listed = std::mem::take(&mut *self.lazy.lock());
        for inode in listed.into_values() {
            inode.times_listed.store(false, Ordering::Relaxed);
            if self.meta.has_room_for_times() {
                self.log_times(changing, &inode);
            } else {
                self.list_lazy(&inode);
            }
        }
    }

    /// Returns totals.
    pub(crate) fn statfs(&self) -> Statfs {
        let totals = self.allocator.totals();
        let block = u64::from(self.block_size);
        let available = totals.free.saturating_sub(totals.reserve);
        Statfs {
            block_size: self.block_size,
            total_bytes: totals.total * block,
            free_bytes: totals.free * block,
            available_bytes: available * block,
            inodes: self.inode_count(),
        }
    }

    /// Returns itself, for what outlives a borrow.
    pub(crate) fn weak(&self) -> Weak<Self> {
        self.this.clone()
    }

    /// Returns what the mount had to do.
    pub(crate) fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// Takes back, at once and without waiting, what other processes do by themselves.
    pub(crate) fn stop_leases(&self) {
        if let Some(leases) = self.leases.get() {
            leases.stop();
        }
    }

    /// Takes back what other processes do by themselves, and waits until they have ended it.
    pub(crate) fn end_leases(&self) {
        if let Some(leases) = self.leases.get() {
            leases.stop();
            leases.drain_all();
            if let Err(error) = self.end_tails(None) {
                tracing::error!("what processes wrote behind the end of files is lost: {error}");
            }
            self.note_leased_writes();
        }
    }

    /// Takes note of the writes that other processes made by themselves.
    pub(crate) fn note_leased_writes(&self) {
        let files = self.listed(Listed::Leased);
        files.iter().filter(|inode| inode.has_lazy_times()).for_each(|inode| self.list_lazy(inode));
    }

    /// Returns whether two handles are of one file system.
    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}
