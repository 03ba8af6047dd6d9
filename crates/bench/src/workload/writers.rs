//! `writers`: MTW of the NFS paper. Threads that each write their own section of one existing file,
//! then make it durable.

use std::collections::BTreeMap;
use std::time::Instant;

use bedplate::AlignedBuf;
use rand::RngExt;

use super::{Env, Work, list};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{FileSpec, Target, fill_pattern};
use crate::{Error, Result};

/// Options of `writers`.
#[derive(Debug, Clone)]
pub struct Writers {
    /// Size of the file in bytes: every thread writes an equal part of it once.
    pub size_bytes: u64,
    /// Size of one write in bytes.
    pub block_bytes: u64,
    /// Numbers of threads; each is a case.
    pub threads: Vec<usize>,
}

impl Default for Writers {
    fn default() -> Self {
        Self { size_bytes: 256 << 20, block_bytes: 8192, threads: vec![1, 4, 16, 64] }
    }
}

const FILE: &str = "writers";

impl Work for Writers {
    fn name(&self) -> &'static str {
        "writers"
    }

    fn title(&self) -> &'static str {
        "threads that each write their own section of one existing file in random order, durable \
         at the end"
    }

    fn unit(&self) -> &'static str {
        "MiB/s"
    }

    fn options(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("size".into(), bedplate::format_size(self.size_bytes)),
            ("block".into(), bedplate::format_size(self.block_bytes)),
            ("threads".into(), list(&self.threads)),
        ])
    }

    fn validate(&self) -> Result<()> {
        if self.threads.is_empty() || self.threads.iter().any(|&n| n == 0 || n > 4096) {
            return Err(Error::usage("writers needs numbers of threads between 1 and 4096"));
        }
        if self.block_bytes < 512 || !self.block_bytes.is_multiple_of(512) {
            return Err(Error::usage(format!(
                "a write of {} bytes is not a multiple of 512",
                self.block_bytes
            )));
        }
        let most = self.threads.iter().copied().max().unwrap_or(1) as u64;
        if self.size_bytes / self.block_bytes < most {
            return Err(Error::usage("--size holds fewer writes than there are threads"));
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |&n: &usize| Case {
            name: format!("{n} threads"),
            curve: "sections".into(),
            axis: "threads".into(),
            x: n as f64,
        };
        self.threads.iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        target.create(&FileSpec::written(FILE, self.size_bytes))
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let threads = self.threads[case];
        let section = self.size_bytes / self.block_bytes / threads as u64;
        let file = target.open(FILE)?;
        let classes = [Class::Write];
        let job = Job {
            target,
            threads,
            phase: Phase::Work,
            classes: &classes,
            rated: &classes,
            sample_every: None,
            stop: env.stop,
        };
        let mut measurement = run(&job, |index| {
            let mut buf = AlignedBuf::zeroed(self.block_bytes as usize);
            fill_pattern(&mut buf, index as u64);
            let file = &file;
            Ok(move |worker: &mut Worker<'_>| {
                let mut order: Vec<u32> = (0..section as u32).collect();
                for i in (1..order.len()).rev() {
                    order.swap(i, worker.rng.random_range(0..=i));
                }
                let first = index as u64 * section;
                let mut begin = Instant::now();
                for block in order {
                    file.write_at(&buf, (first + u64::from(block)) * self.block_bytes)?;
                    let end = Instant::now();
                    worker.record(Class::Write, begin, end, self.block_bytes);
                    begin = end;
                    if worker.done(begin) {
                        break;
                    }
                }
                file.sync_data()
            })
        })?;
        measurement.rate = measurement.bytes as f64 / measurement.elapsed_s / f64::from(1 << 20);
        Ok(measurement)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        target.remove(FILE)
    }
}
