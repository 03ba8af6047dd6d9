//! `sio`: the NFS paper's program of that name. Threads read and write records of one file, half of
//! them at random places and half in order, and lock each record before they touch it.
//!
//! ```text
//!   thread ──► place ──► lock of the record ──► read or write ──► unlock
//!                          shared to read, exclusive to write
//! ```
//! The lock is the kernel's advisory one of a range of bytes; over NFS in user space it is one among the
//! opens of this process. A raw device and the library have none: there the access is made without, and the figures say so.

use std::collections::BTreeMap;
use std::time::Duration;

use super::mixed::{Pattern, Submission, by_calls};
use super::{Env, Work, list, sampled, sizes};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{FileSpec, Target, TargetFile};
use crate::{Error, Result};

/// Options of `sio`. Every combination of the lists is a case.
#[derive(Debug, Clone)]
pub struct Sio {
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Sizes of a record in bytes.
    pub block_bytes: Vec<u64>,
    /// Percent of accesses that read.
    pub reads_percent: Vec<u8>,
    /// Percent of accesses at a random place; the others follow on the thread's one before.
    pub random_percent: u8,
    /// Numbers of threads.
    pub threads: Vec<usize>,
}

impl Default for Sio {
    fn default() -> Self {
        Self {
            size_bytes: 1 << 30,
            block_bytes: vec![2048, 8192, 32_768],
            reads_percent: vec![100, 50, 0],
            random_percent: 50,
            threads: vec![16],
        }
    }
}

const FILE: &str = "sio";

impl Sio {
    fn patterns(&self) -> Vec<Pattern> {
        let mut patterns = Vec::new();
        for &block_bytes in &self.block_bytes {
            for &threads in &self.threads {
                patterns.extend(self.reads_percent.iter().map(|&reads_percent| Pattern {
                    block_bytes,
                    reads_percent,
                    random_percent: self.random_percent,
                    submission: Submission::Threads(threads),
                    latency: None,
                }));
            }
        }
        patterns
    }
}

impl Work for Sio {
    fn name(&self) -> &'static str {
        "sio"
    }

    fn title(&self) -> &'static str {
        "records of one file, half in order and half at random, each locked before it is touched"
    }

    fn unit(&self) -> &'static str {
        "IOPS"
    }

    fn options(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("size".into(), bedplate::format_size(self.size_bytes)),
            ("block".into(), sizes(&self.block_bytes)),
            ("reads".into(), list(&self.reads_percent)),
            ("random".into(), format!("{} %", self.random_percent)),
            ("threads".into(), list(&self.threads)),
        ])
    }

    fn validate(&self) -> Result<()> {
        if self.patterns().is_empty() {
            return Err(Error::usage("sio has nothing to do: give sizes, mixes and threads"));
        }
        if self.random_percent > 100 || self.reads_percent.iter().any(|&p| p > 100) {
            return Err(Error::usage("a percentage is above 100"));
        }
        if self.threads.iter().any(|&n| n == 0 || n > 4096) {
            return Err(Error::usage("a number of threads is 0 or above 4096"));
        }
        let most = self.threads.iter().copied().max().unwrap_or(1) as u64;
        match self.block_bytes.iter().find(|&&b| {
            b < 512 || !b.is_multiple_of(512) || b > 64 << 20 || self.size_bytes / b < most
        }) {
            Some(b) => Err(Error::usage(format!(
                "a record of {b} bytes is no multiple of 512, above 64 MiB, or --size holds fewer \
                 of them than there are threads"
            ))),
            None => Ok(()),
        }
    }

    fn cases(&self) -> Vec<Case> {
        let case = |pattern: &Pattern| {
            let Submission::Threads(threads) = pattern.submission else {
                unreachable!("every pattern of sio is one of threads")
            };
            // The paper draws its figures over the part of writes.
            let size = bedplate::format_size(pattern.block_bytes);
            Case {
                name: format!("{}, {threads} thr", pattern.mix()),
                curve: format!("{size}, {threads} threads"),
                axis: "percent of writes".into(),
                x: f64::from(100 - pattern.reads_percent),
            }
        };
        self.patterns().iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        target.create(&FileSpec::written(FILE, self.size_bytes))
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let pattern = self.patterns()[case];
        let Submission::Threads(threads) = pattern.submission else {
            unreachable!("every pattern of sio is one of threads")
        };
        let classes = [Class::Read, Class::Write];
        let job = Job {
            target,
            threads,
            phase: Phase::Timed { warm_up: env.warm_up, time: env.time, after: Duration::ZERO },
            classes: &classes,
            rated: &classes,
            sample_every: Some(sampled(env.time)),
            stop: env.stop,
        };
        let blocks = self.size_bytes / pattern.block_bytes;
        let locked = target.info().has_record_locks();
        let mut measurement = run(&job, |_| {
            // An open of its own: locks exclude opens, not threads.
            let file = if locked { target.open_lockable(FILE)? } else { target.open(FILE)? };
            Ok(move |worker: &mut Worker<'_>| {
                if locked {
                    by_calls(worker, &RecordLocked(&*file), &pattern, blocks)
                } else {
                    by_calls(worker, &*file, &pattern, blocks)
                }
            })
        })?;
        let per_cpu = measurement.rate_per_busy_cpu();
        let figures = &mut measurement.figures;
        figures.insert("IOPS of a busy processor".into(), per_cpu);
        figures.insert("locks per access".into(), f64::from(u8::from(locked)));
        Ok(measurement)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        target.remove(FILE)
    }
}

/// A file of which each record is locked around an access to it.
struct RecordLocked<'a>(&'a dyn TargetFile);

impl TargetFile for RecordLocked<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.lock_range(offset, buf.len() as u64, false)?;
        self.0.read_at(buf, offset)?;
        self.0.unlock_range(offset, buf.len() as u64)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.0.lock_range(offset, buf.len() as u64, true)?;
        self.0.write_at(buf, offset)?;
        self.0.unlock_range(offset, buf.len() as u64)
    }

    fn sync_data(&self) -> Result<()> {
        self.0.sync_data()
    }

    fn align_bytes(&self) -> u64 {
        self.0.align_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Targets;
    use std::time::Instant;

    #[test]
    fn s_544_an_access_waits_for_its_record_and_for_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let spec = format!("path:{},buffered", directory.path().display()).parse().unwrap();
        let targets = Targets::open(&[spec], &mut |_| false).unwrap();
        let target = &*targets.0[0];
        target.create(&FileSpec::written(FILE, 4 * 8192)).unwrap();
        let open = || target.open_lockable(FILE).unwrap();
        let (file, other) = (open(), open());
        let accessed = RecordLocked(&*file);
        other.lock_range(8192, 8192, true).unwrap();
        other.lock_range(16_384, 8192, false).unwrap();
        let mut buf = vec![0; 8192];
        accessed.write_at(&buf, 0).unwrap();
        accessed.write_at(&buf, 24_576).unwrap();
        accessed.read_at(&mut buf, 16_384).unwrap();
        for (offset, write) in [(8192, false), (16_384, true)] {
            let begin = Instant::now();
            std::thread::scope(|scope| {
                let waited = scope.spawn(|| {
                    let mut buf = vec![0; 8192];
                    match write {
                        true => accessed.write_at(&buf, offset).unwrap(),
                        false => accessed.read_at(&mut buf, offset).unwrap(),
                    }
                    begin.elapsed()
                });
                std::thread::sleep(Duration::from_millis(80));
                other.unlock_range(offset, 8192).unwrap();
                assert!(waited.join().unwrap() >= Duration::from_millis(80), "at {offset}");
            });
        }
        // Nothing is held after an access.
        other.lock_range(0, 4 * 8192, true).unwrap();
    }
}
