//! A database as its disks see it: clients that read pages and commit, writers that clean pages, a
//! redo log.
//!
//! ```text
//!   client: touch pages ─► miss: read ─► update: mark dirty ─► commit in the redo log (group commit)
//!                                              │ waits while too many are dirty
//!   writer: take dirty pages ◄─────────────────┘ ─► write each ─► now and then sync (checkpoint)
//! ```

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate::AlignedBuf;
use parking_lot::{Condvar, Mutex};
use rand::Rng;

use super::oltp::DataLayout;
use super::page_cache::PageCache;
use super::redo_log::RedoLog;
use super::scale;
use crate::Result;
use crate::driver::{Class, Worker};
use crate::target::{Done, Op, OpKind, TargetFile, TargetQueue, fill_pattern};

/// What the database looks like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub page_bytes: u64,
    /// How the files lie on the device.
    pub placed: DataLayout,
    pub files: usize,
    pub pages_per_file: u64,
    pub tables: u64,
    pub pages_per_transaction: usize,
    pub updates_percent: u8,
    pub redo_bytes: u64,
    pub clients: usize,
    /// Most pages that are dirty at once.
    pub dirty_max: usize,
}

impl Layout {
    fn pages_per_table(&self) -> u64 {
        self.pages_per_file * self.files as u64 / self.tables
    }

    /// Most of what is touched lies in so many pages at the beginning of each table.
    fn hot_per_table(&self) -> u64 {
        (self.pages_per_table() / 5).max(1)
    }

    /// Returns the file of a page, and where in it the page begins.
    fn place(&self, page: u64) -> (usize, u64) {
        ((page / self.pages_per_file) as usize, page % self.pages_per_file * self.page_bytes)
    }

    /// Returns where the pages lie that are touched most.
    pub(crate) fn hot_places(&self) -> impl Iterator<Item = (usize, u64)> {
        let (per_table, hot) = (self.pages_per_table(), self.hot_per_table());
        (0..self.tables)
            .flat_map(move |table| (0..hot).map(move |page| self.place(table * per_table + page)))
    }
}

/// A page: which file, and which page of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Page(u64);

/// One database in use.
pub(crate) struct Database<'a> {
    pub layout: Layout,
    pub files: &'a [Box<dyn TargetFile>],
    pub log: RedoLog<'a>,
    cache: PageCache,
    dirty: Dirty,
    running_clients: AtomicUsize,
    /// Phases that were begun. Each has random numbers of its own: pages that come in the order of
    /// the phase before would be found in every cache.
    phases: AtomicUsize,
    pub touched: AtomicU64,
    pub missed: AtomicU64,
    pub dirty_waits: AtomicU64,
}

impl<'a> Database<'a> {
    pub(crate) fn new(
        layout: Layout,
        files: &'a [Box<dyn TargetFile>],
        log: RedoLog<'a>,
        cache_pages: u64,
    ) -> Self {
        let dirty = Dirty {
            state: Mutex::default(),
            changed: Condvar::new(),
            room: Condvar::new(),
            max: layout.dirty_max,
        };
        Self {
            layout,
            files,
            log,
            cache: PageCache::new(cache_pages),
            dirty,
            running_clients: AtomicUsize::new(0),
            phases: AtomicUsize::new(0),
            touched: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            dirty_waits: AtomicU64::new(0),
        }
    }

    /// Begins another phase.
    pub(crate) fn begin_phase(&self) {
        self.phases.fetch_add(1, Relaxed);
    }

    /// Registers a client before any thread begins; it counts until the guard is dropped.
    pub(crate) fn enter(&self) -> ClientGuard<'_> {
        self.running_clients.fetch_add(1, Relaxed);
        ClientGuard(&self.running_clients)
    }

    fn place(&self, page: Page) -> (usize, u64) {
        self.layout.place(page.0)
    }

    /// Picks a page: any table alike; in it, four times in five one of the first fifth of its
    /// pages.
    fn pick(&self, worker: &mut Worker<'_>) -> Page {
        let per_table = self.layout.pages_per_table();
        let dice = worker.rng.next_u64();
        let table = scale(dice, self.layout.tables);
        let hot = scale(dice >> 32, 5) != 0;
        let span = if hot { self.layout.hot_per_table() } else { per_table };
        Page(table * per_table + scale(worker.rng.next_u64(), span))
    }
}

/// Pages that wait to be written.
struct Dirty {
    state: Mutex<DirtyState>,
    /// There is something to write.
    changed: Condvar,
    /// There is room again.
    room: Condvar,
    max: usize,
}

#[derive(Default)]
struct DirtyState {
    queue: VecDeque<Page>,
    waiting: HashSet<Page>,
}

impl Dirty {
    /// Marks a page; returns whether it had to wait for room. When the measurement ends it waits no
    /// longer.
    fn mark(&self, page: Page, worker: &Worker<'_>) -> bool {
        let mut state = self.state.lock();
        if state.waiting.contains(&page) {
            return false;
        }
        let mut waited = false;
        while state.queue.len() >= self.max && !(waited && worker.done(Instant::now())) {
            waited = true;
            self.room.wait_for(&mut state, Duration::from_millis(50));
        }
        if state.waiting.insert(page) {
            state.queue.push_back(page);
            self.changed.notify_one();
        }
        waited
    }

    /// Takes up to `most` pages; waits a moment for the first.
    fn take(&self, most: usize, out: &mut Vec<Page>) {
        let mut state = self.state.lock();
        if state.queue.is_empty() {
            self.changed.wait_for(&mut state, Duration::from_millis(5));
        }
        let n = most.min(state.queue.len());
        for page in state.queue.drain(..n).collect::<Vec<_>>() {
            state.waiting.remove(&page);
            out.push(page);
        }
        self.room.notify_all();
    }
}

/// Moves pages one call at a time, or as one list.
pub(crate) enum Mover {
    Calls(AlignedBuf),
    List { queue: Box<dyn TargetQueue>, free: Vec<AlignedBuf>, done: Vec<Done> },
}

/// Pages in one list.
pub(crate) const LIST: usize = 16;

impl Mover {
    pub(crate) fn calls(page_bytes: u64, seed: u64) -> Self {
        let mut buf = AlignedBuf::zeroed(page_bytes as usize);
        fill_pattern(&mut buf, seed);
        Self::Calls(buf)
    }

    pub(crate) fn list(mut queue: Box<dyn TargetQueue>) -> Self {
        let mut free: Vec<AlignedBuf> = (0..LIST).map(|_| queue.take_buffer()).collect();
        free.iter_mut().enumerate().for_each(|(i, buf)| fill_pattern(buf, i as u64));
        Self::List { queue, free, done: Vec::with_capacity(LIST) }
    }

    fn run(
        &mut self,
        kind: OpKind,
        pages: &[Page],
        db: &Database<'_>,
        worker: &mut Worker<'_>,
    ) -> Result<()> {
        let class = if kind == OpKind::Read { Class::Read } else { Class::Write };
        let bytes = db.layout.page_bytes;
        match self {
            Self::Calls(buf) => {
                for &page in pages {
                    let (file, offset) = db.place(page);
                    let begin = Instant::now();
                    match kind {
                        OpKind::Read => db.files[file].read_at(buf, offset)?,
                        OpKind::Write => db.files[file].write_at(buf, offset)?,
                    }
                    worker.record(class, begin, Instant::now(), bytes);
                }
                Ok(())
            }
            Self::List { queue, free, done } => {
                for some in pages.chunks(LIST) {
                    let begin = Instant::now();
                    for (token, &page) in some.iter().enumerate() {
                        let (file, offset) = db.place(page);
                        let buf = free.pop().expect("as many buffers as a list has pages");
                        queue.push(Op { kind, file, offset, token: token as u64 }, buf)?;
                    }
                    queue.complete(some.len(), done)?;
                    let end = Instant::now();
                    for one in done.drain(..) {
                        free.push(one.buf);
                        worker.record(class, begin, end, bytes);
                    }
                }
                Ok(())
            }
        }
    }
}

/// Counts a client out, also when it fails: writers wait for the last one.
pub(crate) struct ClientGuard<'a>(&'a AtomicUsize);

impl Drop for ClientGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// One client: comes during the ramp-up, leaves during the ramp-down.
pub(crate) fn client(
    worker: &mut Worker<'_>,
    db: &Database<'_>,
    _guard: ClientGuard<'_>,
    mut mover: Mover,
) -> Result<()> {
    (1..db.phases.load(Relaxed)).for_each(|_| worker.rng.jump());
    let share = worker.index as f64 / db.layout.clients as f64;
    let comes = worker.go() + (worker.counted_from() - worker.go()).mul_f64(share);
    let leaves = worker.counted_until() + (worker.end() - worker.counted_until()).mul_f64(share);
    std::thread::sleep(comes.saturating_duration_since(Instant::now()));
    let (mut pages, mut missing) = (Vec::new(), Vec::new());
    let (mut touched, mut missed, mut dirty_waits) = (0, 0, 0);
    let mut begin = Instant::now();
    while !worker.done(begin) && begin < leaves {
        pages.clear();
        missing.clear();
        for _ in 0..db.layout.pages_per_transaction {
            let page = db.pick(worker);
            if !db.cache.touch(page.0) {
                missing.push(page);
            }
            pages.push(page);
        }
        touched += pages.len() as u64;
        missed += missing.len() as u64;
        mover.run(OpKind::Read, &missing, db, worker)?;
        let mut updates = false;
        for &page in &pages {
            if scale(worker.rng.next_u64(), 100) < u64::from(db.layout.updates_percent) {
                updates = true;
                dirty_waits += u64::from(db.dirty.mark(page, worker));
            }
        }
        if updates {
            let commit = Instant::now();
            db.log.commit(db.layout.redo_bytes)?;
            worker.record(Class::Commit, commit, Instant::now(), 0);
        }
        let end = Instant::now();
        worker.record(Class::Transaction, begin, end, 0);
        begin = end;
    }
    db.touched.fetch_add(touched, Relaxed);
    db.missed.fetch_add(missed, Relaxed);
    db.dirty_waits.fetch_add(dirty_waits, Relaxed);
    Ok(())
}

/// Page writes between two checkpoints of one writer.
const CHECKPOINT_EVERY: usize = 8192;

/// One writer: cleans pages until the last client has left.
pub(crate) fn writer(worker: &mut Worker<'_>, db: &Database<'_>, mut mover: Mover) -> Result<()> {
    let mut batch = Vec::new();
    let mut since_checkpoint = 0;
    let mut result = Ok(());
    while db.running_clients.load(Relaxed) > 0 {
        batch.clear();
        db.dirty.take(LIST, &mut batch);
        if result.is_err() {
            // Clients may be waiting for room: keep making it, write nothing more.
            continue;
        }
        result = mover.run(OpKind::Write, &batch, db, worker);
        since_checkpoint += batch.len();
        if since_checkpoint >= CHECKPOINT_EVERY && result.is_ok() {
            since_checkpoint = 0;
            result = db.files.iter().try_for_each(|file| file.sync_data());
        }
        if result.is_err() {
            worker.end_all();
        }
    }
    result
}
