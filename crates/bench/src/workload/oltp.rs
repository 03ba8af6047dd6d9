//! `oltp`: update-heavy transactions over many tables in few large files, with a redo log. JFS2's
//! table 5.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bedplate::AlignedBuf;

use super::database::{Database, LIST, Layout, Mover, client, writer};
use super::redo_log::RedoLog;
use super::{Env, Work, list};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{FileSpec, QueueSetup, Role, Target, TargetFile, TargetInfo};
use crate::{Error, Result};

/// How pages are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageMoves {
    /// One synchronous call a page.
    Calls,
    /// Lists through a queue.
    Lists,
}

/// What one more thread does beside clients and writers.
pub(super) type Beside<'a> = &'a (dyn Fn(&mut Worker<'_>) -> Result<()> + Sync);

/// Options of `oltp`.
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
    /// Numbers of clients; each is a case.
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

pub(super) const PAGE_BYTES: u64 = 8192;
const LOG: &str = "oltp-log";

impl Oltp {
    fn data_file(&self, index: usize) -> FileSpec {
        FileSpec::written(format!("oltp-data-{index}"), self.pages_per_file() * PAGE_BYTES)
    }

    fn pages_per_file(&self) -> u64 {
        self.data_bytes / PAGE_BYTES / self.files as u64
    }

    fn names(&self) -> Vec<String> {
        (0..self.files).map(|i| self.data_file(i).name).collect()
    }

    fn layout(&self, clients: usize) -> Layout {
        let pages = self.pages_per_file() * self.files as u64;
        debug_assert!(
            pages * PAGE_BYTES <= self.data_bytes && clients > 0,
            "the files hold whole pages of the data: {pages} for {clients} clients"
        );
        Layout {
            page_bytes: PAGE_BYTES,
            files: self.files,
            pages_per_file: self.pages_per_file(),
            tables: self.tables,
            pages_per_transaction: self.pages_per_transaction,
            updates_percent: self.updates_percent,
            redo_bytes: self.redo_bytes,
            clients,
            dirty_max: ((pages / 64) as usize).clamp(64, 4096),
        }
    }

    /// Opens the files, and lets `work` use the database on them, with so many clients and so large
    /// a cache of its own.
    pub(super) fn with_database<T>(
        &self,
        clients: usize,
        cache_percent: f64,
        target: &dyn Target,
        work: impl FnOnce(&Database<'_>) -> Result<T>,
    ) -> Result<T> {
        let files = self
            .names()
            .iter()
            .map(|name| target.open(name))
            .collect::<Result<Vec<Box<dyn TargetFile>>>>()?;
        let log_file = target.open(LOG)?;
        let log = RedoLog::new(
            &*log_file,
            self.log_bytes,
            self.log_block_bytes.next_multiple_of(log_file.align_bytes()),
        );
        let cache_pages =
            (self.data_bytes as f64 * cache_percent / 100.0 / PAGE_BYTES as f64) as u64;
        work(&Database::new(self.layout(clients), &files, log, cache_pages))
    }

    /// Brings the pages that are touched most into the target's cache, where it has one: as often
    /// as it takes for a cache to see that they are.
    pub(super) fn warm(&self, target: &dyn Target) -> Result<()> {
        const TIMES: usize = 3;
        if !matches!(target.info().role, Role::Buffered | Role::ConcurrentCache) {
            return Ok(());
        }
        let files = self
            .names()
            .iter()
            .map(|name| target.open(name))
            .collect::<Result<Vec<Box<dyn TargetFile>>>>()?;
        let mut buf = AlignedBuf::zeroed(PAGE_BYTES as usize);
        let layout = self.layout(1);
        (0..TIMES)
            .flat_map(|_| layout.hot_places())
            .try_for_each(|(file, offset)| files[file].read_at(&mut buf, offset))
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
            sample_every: Some((env.time / 20).max(Duration::from_millis(50))),
            stop: env.stop,
        };
        db.begin_phase();
        run(&job, |index| {
            let guard = (index < clients).then(|| db.enter());
            let mover = match self.moves {
                PageMoves::Calls => Mover::calls(PAGE_BYTES, index as u64),
                PageMoves::Lists => Mover::list(target.queue(
                    &self.names(),
                    &QueueSetup { depth: LIST, buffer_bytes: PAGE_BYTES as usize },
                )?),
            };
            Ok(move |worker: &mut Worker<'_>| match (guard, beside) {
                (Some(guard), _) => client(worker, db, guard, mover),
                (None, Some(beside)) if worker.index == workers => beside(worker),
                (None, _) => writer(worker, db, mover),
            })
        })
    }

    /// Runs one measurement with so many clients and so large a cache.
    pub(super) fn measure(
        &self,
        clients: usize,
        cache_percent: f64,
        target: &dyn Target,
        env: &Env<'_>,
    ) -> Result<Measurement> {
        self.with_database(clients, cache_percent, target, |db| {
            let phase = Phase::Timed {
                warm_up: self.ramp.max(env.warm_up),
                time: env.time,
                after: self.ramp,
            };
            let mut measurement = self.phase(db, target, env, phase, None)?;
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
        let pages = self.pages_per_file() * self.files as u64;
        if pages / self.tables < 10 {
            return Err(Error::usage("--size leaves fewer than ten pages to a table"));
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |&n: &usize| Case {
            name: format!("{n} clients"),
            curve: "transactions".into(),
            axis: "clients".into(),
            x: n as f64,
        };
        self.clients.iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        self.data_bytes + self.log_bytes
    }

    fn refuses(&self, _case: usize, target: &TargetInfo) -> Option<String> {
        let buffered = target.role == Role::Buffered && target.is_path();
        (self.moves == PageMoves::Lists && buffered).then(|| "a queue needs direct I/O".into())
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        (0..self.files).try_for_each(|i| target.create(&self.data_file(i)))?;
        target.create(&FileSpec::written(LOG, self.log_bytes))
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        self.measure(self.clients[case], self.cache_percent, target, env)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        self.names().iter().try_for_each(|name| target.remove(name))?;
        target.remove(LOG)
    }
}
