//! `scan`: a report that reads a large file from end to end beside transactions, whose pages are in
//! a second-level cache: does it throw them out?
//!
//! ```text
//!   hot pages read ─► warm-up ─► before ─► the scan, from its first byte to its last ─► then
//!                     └────────────── clients and writers of `oltp` all the time ──────────┘
//! ```
//! How many reads of the database the cache answered follows from the bytes that the device read,
//! less the file that was scanned: it is read once, and cold. So it is measured alike for every
//! cache, the kernel's too.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate::AlignedBuf;

use super::cached::unlimited;
use super::database::Database;
use super::oltp::{Beside, Oltp};
use super::{Env, Work, list};
use crate::driver::{Phase, Worker};
use crate::results::{Case, Measurement, TimePoint};
use crate::target::{FileSpec, Target, TargetFile, TargetInfo};
use crate::{Error, Result};

/// Options of `scan`.
#[derive(Debug, Clone)]
pub struct Scan {
    /// The database; its number of clients is set here instead.
    pub database: Oltp,
    /// Clients.
    pub clients: usize,
    /// The second-level cache in percent of the data.
    pub cache_percent: f64,
    /// Sizes of the scanned file as multiples of that cache; each is a case.
    pub multiples: Vec<u64>,
    /// Size of one read of the scan in bytes.
    pub block_bytes: u64,
}

impl Default for Scan {
    fn default() -> Self {
        let database = Oltp { updates_percent: 25, cache_percent: 2.0, ..Oltp::default() };
        Self {
            database,
            clients: 16,
            cache_percent: 40.0,
            multiples: vec![8],
            block_bytes: 256 << 10,
        }
    }
}

const FILE: &str = "scanned";

impl Scan {
    fn cache_bytes(&self) -> u64 {
        (self.database.data_bytes as f64 * self.cache_percent / 100.0) as u64
    }

    fn scanned_bytes(&self, multiple: u64) -> u64 {
        (self.cache_bytes() * multiple).next_multiple_of(self.block_bytes)
    }

    fn largest_bytes(&self) -> u64 {
        self.multiples.iter().map(|&multiple| self.scanned_bytes(multiple)).max().unwrap_or(0)
    }

    fn phases(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let scanned = target.open(FILE)?;
        let bytes = self.scanned_bytes(self.multiples[case]);
        let (read, took_ns) = (AtomicU64::new(0), AtomicU64::new(0));
        let scan = |worker: &mut Worker<'_>| {
            let (begin, result) = (Instant::now(), self.read_all(worker, &*scanned, bytes, &read));
            took_ns.store(begin.elapsed().as_nanos() as u64, Relaxed);
            worker.end_all();
            result
        };
        let variant = self.database.variant(self.clients);
        self.database.with_database(variant, self.database.cache_percent, target, |db| {
            let phase = |phase, beside| self.phase(db, target, env, phase, beside);
            let timed =
                |time| Phase::Timed { warm_up: Duration::ZERO, time, after: Duration::ZERO };
            phase(timed(self.database.ramp.max(env.warm_up)), None)?;
            let before = phase(timed(env.time), None)?;
            let during = phase(Phase::Work, Some(&scan))?;
            let then = phase(timed(env.time), None)?;
            let read = read.load(Relaxed);
            let mut figures = BTreeMap::from([(
                "scan MiB/s".to_owned(),
                read as f64 / f64::from(1 << 20) / (took_ns.load(Relaxed) as f64 / 1e9),
            )]);
            for (name, phase, scanned) in
                [("before", &before, 0), ("during", &during, read), ("then", &then, 0)]
            {
                figures.extend(
                    phase
                        .told(scanned)
                        .into_iter()
                        .map(|(what, value)| (format!("{name} {what}"), value)),
                );
            }
            let timeline =
                [before.measured.timeline, during.measured.timeline, then.measured.timeline]
                    .into_iter()
                    .fold(Vec::new(), joined);
            Ok(Measurement { timeline, figures, ..during.measured })
        })
    }

    /// Lets the database work, and reads what it asked for and what the devices read, while no
    /// transaction runs.
    fn phase(
        &self,
        db: &Database<'_>,
        target: &dyn Target,
        env: &Env<'_>,
        phase: Phase,
        beside: Option<Beside<'_>>,
    ) -> Result<Counted> {
        let read = || (db.missed.load(Relaxed), target.device_ops().map(|ops| ops.read_bytes));
        let (asked, device) = read();
        let measured = self.database.phase(db, target, env, phase, beside)?;
        let (asked_then, device_then) = read();
        debug_assert!(asked_then >= asked, "what was asked for is counted up");
        let device_bytes =
            device_then.zip(device).map(|(then, before)| then.saturating_sub(before));
        Ok(Counted {
            measured,
            asked_bytes: (asked_then - asked) * db.layout.page_bytes,
            device_bytes,
        })
    }

    /// Reads the file once, from end to end.
    fn read_all(
        &self,
        worker: &Worker<'_>,
        file: &dyn TargetFile,
        bytes: u64,
        read: &AtomicU64,
    ) -> Result<()> {
        let mut buf = AlignedBuf::zeroed(self.block_bytes as usize);
        for offset in (0..bytes).step_by(self.block_bytes as usize) {
            if worker.done(Instant::now()) {
                break;
            }
            file.read_at(&mut buf, offset)?;
            read.fetch_add(self.block_bytes, Relaxed);
        }
        Ok(())
    }
}

/// A phase, with what the database asked for in all of it, and what the devices read; `None` where
/// that is not counted.
struct Counted {
    measured: Measurement,
    asked_bytes: u64,
    device_bytes: Option<u64>,
}

impl Counted {
    /// What is told of a phase in which so many bytes were scanned too.
    fn told(&self, scanned: u64) -> Vec<(&'static str, f64)> {
        let mut told = vec![("tps", self.measured.rate)];
        told.extend(
            self.measured.latency.get("transaction").map(|latency| ("p99 µs", latency.p99_us)),
        );
        told.extend(self.hits_percent(scanned).map(|percent| ("hits %", percent)));
        told
    }

    /// Reads of the database that no device was asked for, in percent.
    fn hits_percent(&self, scanned: u64) -> Option<f64> {
        let missed = self.device_bytes?.saturating_sub(scanned);
        (self.asked_bytes > 0)
            .then(|| (100.0 * (1.0 - missed as f64 / self.asked_bytes as f64)).clamp(0.0, 100.0))
    }
}

fn joined(mut all: Vec<TimePoint>, next: Vec<TimePoint>) -> Vec<TimePoint> {
    let end = all.last().map_or(0.0, |point| point.t_s);
    all.extend(next.into_iter().map(|point| TimePoint { t_s: end + point.t_s, ..point }));
    all
}

impl Work for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn title(&self) -> &'static str {
        "transactions beside one sequential scan of a file larger than the second-level cache, \
         before it, during it and then"
    }

    fn unit(&self) -> &'static str {
        "tps during the scan"
    }

    fn options(&self) -> BTreeMap<String, String> {
        let mut options = self.database.options();
        options.insert("clients".into(), self.clients.to_string());
        options.insert("cache".into(), format!("{} %", self.cache_percent));
        options.insert("scan".into(), format!("{} times the cache", list(&self.multiples)));
        options.insert("scan-block".into(), bedplate::format_size(self.block_bytes));
        options
    }

    fn validate(&self) -> Result<()> {
        if self.clients == 0
            || self.multiples.is_empty()
            || self.multiples.iter().any(|&multiple| multiple == 0 || multiple > 1000)
        {
            return Err(Error::usage(
                "scan has nothing to do: give clients, and sizes of the scanned file from 1 to \
                 1000 times the cache",
            ));
        }
        if !(1.0..=100.0).contains(&self.cache_percent)
            || self.block_bytes == 0
            || !self.block_bytes.is_multiple_of(4096)
        {
            return Err(Error::usage(
                "the cache is 1 to 100 percent of the data, and a read of the scan a multiple of \
                 4096",
            ));
        }
        self.database.validate()
    }

    fn cases(&self) -> Vec<Case> {
        let case = |&multiple: &u64| Case {
            name: format!("scan of {multiple} times the cache"),
            curve: "transactions during a scan".into(),
            axis: "scanned file / cache".into(),
            x: multiple as f64,
        };
        self.multiples.iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        self.database.space_bytes() + self.largest_bytes()
    }

    fn refuses(&self, _case: usize, target: &TargetInfo) -> Option<String> {
        self.database.refuses_moves(target).or_else(|| unlimited(target))
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        self.database.prepare(target)?;
        target.create(&FileSpec::written(FILE, self.largest_bytes()))
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        target.make_cold()?;
        let _limit = target.set_cache_bytes(self.cache_bytes())?;
        self.database.warm(target)?;
        self.phases(case, target, env)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        target.remove(FILE)?;
        self.database.clean(target)
    }
}
