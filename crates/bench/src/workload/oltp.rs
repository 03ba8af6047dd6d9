//! `oltp`: update-heavy transactions over many tables in few large files, with a redo log. JFS2's
//! table 5; with pages of several sizes, files that lie scattered, and checkpoints meanwhile, what
//! the VERITAS paper measured too.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bedplate::AlignedBuf;

use super::database::{Database, LIST, Layout, Mover, client, writer};
use super::oltp_images::ImagesBeside;
use super::redo_log::RedoLog;
use super::{Env, Work, list, sampled, sizes};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{FileSpec, FileState, QueueSetup, Role, Target, TargetFile, TargetInfo};
use crate::{Error, Result};

/// How pages are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageMoves {
    /// One synchronous call a page.
    Calls,
    /// Lists through a queue.
    Lists,
}

/// How the data files lie on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataLayout {
    /// Written in order, as one piece where there is one that is free.
    Contiguous,
    /// In pieces of 64 KiB that lie apart, as far as the file system's allocator goes along.
    Scattered,
}

impl DataLayout {
    fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Scattered => "scattered",
        }
    }
}

impl std::str::FromStr for DataLayout {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        [Self::Contiguous, Self::Scattered]
            .into_iter()
            .find(|layout| layout.name() == text)
            .ok_or_else(|| format!("unknown layout '{text}': use contiguous or scattered"))
    }
}

/// What one more thread does beside clients and writers.
pub(super) type Beside<'a> = &'a (dyn Fn(&mut Worker<'_>) -> Result<()> + Sync);

/// Options of `oltp`. Every combination of the lists is a case.
#[derive(Debug, Clone)]
pub struct Oltp {
    /// Size of all data files together in bytes.
    pub data_bytes: u64,
    /// Number of data files.
    pub files: usize,
    /// Number of tables, spread over the files.
    pub tables: u64,
    /// Size of the redo log in bytes.
    pub log_bytes: u64,
    /// Block size of the redo log in bytes.
    pub log_block_bytes: u64,
    /// Sizes of a page in bytes, powers of two from 512.
    pub page_bytes: Vec<u64>,
    /// How the data files lie.
    pub layouts: Vec<DataLayout>,
    /// Numbers of checkpoints of the data files made in one measurement, each instead of the one
    /// before; of a kernel file system reflinks, or a snapshot of btrfs.
    pub checkpoints: Vec<usize>,
    /// Numbers of clients.
    pub clients: Vec<usize>,
    /// Threads that write dirty pages.
    pub writers: usize,
    /// Pages that a transaction touches.
    pub pages_per_transaction: usize,
    /// Percent of touched pages that it changes.
    pub updates_percent: u8,
    /// Redo in bytes that a transaction writes.
    pub redo_bytes: u64,
    /// The database's own cache in percent of the data.
    pub cache_percent: f64,
    /// How pages are moved.
    pub moves: PageMoves,
    /// Length of the ramp-up and of the ramp-down.
    pub ramp: Duration,
}

impl Default for Oltp {
    fn default() -> Self {
        Self {
            data_bytes: 1 << 30,
            files: 4,
            tables: 40,
            log_bytes: 128 << 20,
            log_block_bytes: 4096,
            page_bytes: vec![DEFAULT_PAGE_BYTES],
            layouts: vec![DataLayout::Contiguous],
            checkpoints: vec![0],
            clients: vec![16, 64],
            writers: 4,
            pages_per_transaction: 8,
            updates_percent: 75,
            redo_bytes: 2048,
            cache_percent: 10.0,
            moves: PageMoves::Calls,
            ramp: Duration::from_secs(1),
        }
    }
}

const DEFAULT_PAGE_BYTES: u64 = 8192;
const LOG: &str = "oltp-log";

/// One combination of the lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct Variant {
    page_bytes: u64,
    layout: DataLayout,
    pub(super) checkpoints: usize,
    clients: usize,
}

impl Oltp {
    fn variants(&self) -> Vec<Variant> {
        let mut variants = Vec::new();
        for &page_bytes in &self.page_bytes {
            for &layout in &self.layouts {
                for &checkpoints in &self.checkpoints {
                    let variant =
                        |&clients: &usize| Variant { page_bytes, layout, checkpoints, clients };
                    variants.extend(self.clients.iter().map(variant));
                }
            }
        }
        variants
    }

    /// Returns the first combination, with so many clients.
    pub(super) fn variant(&self, clients: usize) -> Variant {
        Variant { clients, ..self.variants()[0] }
    }

    fn case(&self, variant: &Variant) -> Case {
        let mut words = Vec::new();
        if self.page_bytes != [DEFAULT_PAGE_BYTES] {
            words.push(format!("{} pages", bedplate::format_size(variant.page_bytes)));
        }
        if self.layouts != [DataLayout::Contiguous] {
            words.push(variant.layout.name().to_owned());
        }
        if self.checkpoints != [0] {
            let many = if variant.checkpoints == 1 { "" } else { "s" };
            words.push(format!("{} checkpoint{many}", variant.checkpoints));
        }
        let curve = if words.is_empty() { "transactions".to_owned() } else { words.join(", ") };
        words.push(format!("{} clients", variant.clients));
        let x = variant.clients as f64;
        Case { name: words.join(", "), curve, axis: "clients".into(), x }
    }

    fn data_file(&self, layout: DataLayout, index: usize) -> FileSpec {
        let (name, state) = match layout {
            DataLayout::Contiguous => (format!("oltp-data-{index}"), FileState::Written),
            DataLayout::Scattered => (format!("oltp-scattered-{index}"), FileState::Scattered),
        };
        FileSpec { name, size_bytes: self.file_bytes(), state }
    }

    /// A file holds whole pages of every size.
    fn file_bytes(&self) -> u64 {
        let largest = self.page_bytes.iter().copied().max().unwrap_or(DEFAULT_PAGE_BYTES);
        self.data_bytes / largest / self.files as u64 * largest
    }

    pub(super) fn names(&self, layout: DataLayout) -> Vec<String> {
        (0..self.files).map(|i| self.data_file(layout, i).name).collect()
    }

    /// The layouts that a target has: a region of a raw device is one piece.
    fn layouts_of(&self, target: &TargetInfo) -> impl Iterator<Item = DataLayout> {
        let raw = target.role == Role::Raw;
        self.layouts.iter().copied().filter(move |layout| !raw || *layout == DataLayout::Contiguous)
    }

    fn make_files(&self, layout: DataLayout, target: &dyn Target) -> Result<()> {
        (0..self.files).try_for_each(|i| target.create(&self.data_file(layout, i)))
    }

    fn layout(&self, variant: Variant) -> Layout {
        let (page_bytes, clients) = (variant.page_bytes, variant.clients);
        let pages_per_file = self.file_bytes() / page_bytes;
        let pages = pages_per_file * self.files as u64;
        debug_assert!(
            pages * page_bytes <= self.data_bytes && clients > 0,
            "the files hold whole pages of the data: {pages} for {clients} clients"
        );
        Layout {
            page_bytes,
            placed: variant.layout,
            files: self.files,
            pages_per_file,
            tables: self.tables,
            pages_per_transaction: self.pages_per_transaction,
            updates_percent: self.updates_percent,
            redo_bytes: self.redo_bytes,
            clients,
            dirty_max: ((pages / 64) as usize).clamp(64, 4096),
        }
    }

    /// Opens the files, and lets `work` use the database on them, with so large a cache of its own.
    pub(super) fn with_database<T>(
        &self,
        variant: Variant,
        cache_percent: f64,
        target: &dyn Target,
        work: impl FnOnce(&Database<'_>) -> Result<T>,
    ) -> Result<T> {
        let files = self.open(variant.layout, target)?;
        let log_file = target.open(LOG)?;
        let log = RedoLog::new(
            &*log_file,
            self.log_bytes,
            self.log_block_bytes.next_multiple_of(log_file.align_bytes()),
        );
        let cache_pages =
            (self.data_bytes as f64 * cache_percent / 100.0 / variant.page_bytes as f64) as u64;
        work(&Database::new(self.layout(variant), &files, log, cache_pages))
    }

    fn open(&self, layout: DataLayout, target: &dyn Target) -> Result<Vec<Box<dyn TargetFile>>> {
        self.names(layout).iter().map(|name| target.open(name)).collect()
    }

    /// Brings the pages that are touched most into the target's cache, where it has one: as often
    /// as it takes for a cache to see that they are.
    pub(super) fn warm(&self, target: &dyn Target) -> Result<()> {
        const TIMES: usize = 3;
        if !matches!(target.info().role, Role::Buffered | Role::ConcurrentCache) {
            return Ok(());
        }
        let variant = self.variant(1);
        let files = self.open(variant.layout, target)?;
        let mut buf = AlignedBuf::zeroed(variant.page_bytes as usize);
        let layout = self.layout(variant);
        (0..TIMES)
            .flat_map(|_| layout.hot_places())
            .try_for_each(|(file, offset)| files[file].read_at(&mut buf, offset))
    }

    /// Says why a target cannot move pages as it has to.
    pub(super) fn refuses_moves(&self, target: &TargetInfo) -> Option<String> {
        let buffered = target.role == Role::Buffered && target.is_path();
        (self.moves == PageMoves::Lists && buffered).then(|| "a queue needs direct I/O".into())
    }

    /// Lets clients and writers work for one phase; `beside` is what one more thread does
    /// meanwhile.
    pub(super) fn phase(
        &self,
        db: &Database<'_>,
        target: &dyn Target,
        env: &Env<'_>,
        phase: Phase,
        beside: Option<Beside<'_>>,
    ) -> Result<Measurement> {
        let clients = db.layout.clients;
        let workers = clients + self.writers;
        let job = Job {
            target,
            threads: workers + usize::from(beside.is_some()),
            phase,
            classes: &Class::ALL,
            rated: &[Class::Transaction],
            sample_every: Some(sampled(env.time)),
            stop: env.stop,
        };
        db.begin_phase();
        run(&job, |index| {
            let guard = (index < clients).then(|| db.enter());
            let mover = match self.moves {
                PageMoves::Calls => Mover::calls(db.layout.page_bytes, index as u64),
                PageMoves::Lists => Mover::list(target.queue(
                    &self.names(db.layout.placed),
                    &QueueSetup { depth: LIST, buffer_bytes: db.layout.page_bytes as usize },
                )?),
            };
            Ok(move |worker: &mut Worker<'_>| match (guard, beside) {
                (Some(guard), _) => client(worker, db, guard, mover),
                (None, Some(beside)) if worker.index == workers => beside(worker),
                (None, _) => writer(worker, db, mover),
            })
        })
    }

    /// Runs one measurement with so large a cache.
    pub(super) fn measure(
        &self,
        variant: Variant,
        cache_percent: f64,
        target: &dyn Target,
        env: &Env<'_>,
    ) -> Result<Measurement> {
        let images = ImagesBeside::new(target, self.names(variant.layout), variant.checkpoints);
        let mut measurement = self.measure_beside(variant, cache_percent, target, env, &images)?;
        if variant.checkpoints > 0 {
            measurement.figures.extend(images.end()?);
            // What was written beside a checkpoint lies elsewhere now: the next measurement finds
            // files as the first did.
            self.names(variant.layout).iter().try_for_each(|name| target.remove(name))?;
            self.make_files(variant.layout, target)?;
        }
        if self.layouts.contains(&DataLayout::Scattered) {
            let extents = self
                .names(variant.layout)
                .iter()
                .map(|name| target.extents(name))
                .collect::<Result<Option<Vec<usize>>>>()?;
            let sum = extents.map(|extents| extents.iter().sum::<usize>());
            measurement.figures.extend(sum.map(|sum| ("data extents".into(), sum as f64)));
        }
        Ok(measurement)
    }

    fn measure_beside(
        &self,
        variant: Variant,
        cache_percent: f64,
        target: &dyn Target,
        env: &Env<'_>,
        images: &ImagesBeside<'_>,
    ) -> Result<Measurement> {
        let beside = |worker: &mut Worker<'_>| images.make(worker);
        let beside: Option<Beside<'_>> = (variant.checkpoints > 0).then_some(&beside);
        self.with_database(variant, cache_percent, target, |db| {
            let phase = Phase::Timed {
                warm_up: self.ramp.max(env.warm_up),
                time: env.time,
                after: self.ramp,
            };
            let mut measurement = self.phase(db, target, env, phase, beside)?;
            let (touched, missed) =
                (db.touched.load(Relaxed) as f64, db.missed.load(Relaxed) as f64);
            let commits = measurement.latency.get("commit").map_or(0, |l| l.count) as f64;
            measurement.figures.insert(
                "cache hits %".into(),
                if touched > 0.0 { 100.0 * (1.0 - missed / touched) } else { 0.0 },
            );
            measurement
                .figures
                .insert("waits for a clean page".into(), db.dirty_waits.load(Relaxed) as f64);
            measurement.figures.insert(
                "commits per log write".into(),
                if commits > 0.0 { commits / (db.log.writes().max(1) as f64) } else { 0.0 },
            );
            Ok(measurement)
        })
    }
}

impl Work for Oltp {
    fn name(&self) -> &'static str {
        "oltp"
    }

    fn title(&self) -> &'static str {
        "update-heavy transactions over many tables in few large files, with a redo log"
    }

    fn unit(&self) -> &'static str {
        "tps"
    }

    fn options(&self) -> BTreeMap<String, String> {
        let moves = if self.moves == PageMoves::Calls { "threads" } else { "queue" };
        BTreeMap::from([
            ("size".into(), bedplate::format_size(self.data_bytes)),
            ("files".into(), self.files.to_string()),
            ("tables".into(), self.tables.to_string()),
            ("log".into(), bedplate::format_size(self.log_bytes)),
            ("log-block".into(), bedplate::format_size(self.log_block_bytes)),
            ("page".into(), sizes(&self.page_bytes)),
            ("layout".into(), list(&self.layouts.iter().map(|l| l.name()).collect::<Vec<_>>())),
            ("checkpoints".into(), list(&self.checkpoints)),
            ("clients".into(), list(&self.clients)),
            ("writers".into(), self.writers.to_string()),
            ("pages".into(), self.pages_per_transaction.to_string()),
            ("updates".into(), format!("{} %", self.updates_percent)),
            ("redo".into(), bedplate::format_size(self.redo_bytes)),
            ("database-cache".into(), format!("{} %", self.cache_percent)),
            ("engine".into(), moves.into()),
            ("ramp".into(), bedplate::format_duration(self.ramp)),
        ])
    }

    fn validate(&self) -> Result<()> {
        if self.clients.is_empty()
            || self.clients.iter().any(|&n| n == 0 || n > 4096)
            || self.writers == 0
            || self.files == 0
            || self.tables == 0
        {
            return Err(Error::usage(
                "clients, writers, files and tables must be at least 1, and clients at most 4096",
            ));
        }
        if self.pages_per_transaction == 0
            || self.updates_percent > 100
            || !(0.0..=100.0).contains(&self.cache_percent)
        {
            return Err(Error::usage(
                "a transaction touches at least one page, and percentages lie between 0 and 100",
            ));
        }
        if self.log_block_bytes < 512
            || !self.log_block_bytes.is_multiple_of(512)
            || self.redo_bytes == 0
            || self.log_bytes < 4 << 20
        {
            return Err(Error::usage(
                "the redo log is at least 4 MiB, its blocks are a multiple of 512 and a \
                 transaction writes at least a byte of redo",
            ));
        }
        if self.layouts.is_empty() || self.checkpoints.is_empty() || self.page_bytes.is_empty() {
            return Err(Error::usage(
                "oltp has nothing to do: give sizes of a page, layouts and numbers of checkpoints",
            ));
        }
        if let Some(page) =
            self.page_bytes.iter().find(|p| !p.is_power_of_two() || !(512..=1 << 20).contains(*p))
        {
            return Err(Error::usage(format!(
                "a page of {page} bytes is no power of two from 512 bytes to 1 MiB"
            )));
        }
        let largest = self.page_bytes.iter().copied().max().unwrap_or(DEFAULT_PAGE_BYTES);
        if self.file_bytes() / largest * self.files as u64 / self.tables < 10 {
            return Err(Error::usage("--size leaves fewer than ten pages to a table"));
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        self.variants().iter().map(|variant| self.case(variant)).collect()
    }

    fn space_bytes(&self) -> u64 {
        // While a file is scattered another lies between its pieces. Beside a checkpoint every page
        // may be written elsewhere, and what the one before kept is not free again yet.
        let scattered = self.layouts.contains(&DataLayout::Scattered);
        let kept = if self.checkpoints.iter().any(|&n| n > 0) { 2 } else { 0 };
        let copies = self.layouts.len() as u64 + kept;
        let between = if scattered { self.file_bytes() } else { 0 };
        copies * self.data_bytes + between + self.log_bytes
    }

    fn refuses(&self, case: usize, target: &TargetInfo) -> Option<String> {
        let variant = self.variants()[case];
        if target.role == Role::Raw && variant.layout == DataLayout::Scattered {
            return Some("a region of a raw device lies in one piece".into());
        }
        if target.role == Role::Raw && variant.checkpoints > 0 {
            return Some("a raw device keeps no image of itself".into());
        }
        self.refuses_moves(target)
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        self.layouts_of(target.info()).try_for_each(|layout| self.make_files(layout, target))?;
        target.create(&FileSpec::written(LOG, self.log_bytes))
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        self.measure(self.variants()[case], self.cache_percent, target, env)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        for layout in self.layouts_of(target.info()) {
            self.names(layout).iter().try_for_each(|name| target.remove(name))?;
        }
        target.remove(LOG)
    }
}
