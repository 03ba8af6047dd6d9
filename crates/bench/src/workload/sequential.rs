//! `sequential`: large sequential reads of 1 … N files at once, one to a device where the target
//! has several. The AIX guide's table.

use std::collections::BTreeMap;
use std::time::Instant;

use bedplate::AlignedBuf;

use super::{Env, Work, list, sampled};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{FileSpec, Target};
use crate::{Error, Result};

/// Options of `sequential`.
#[derive(Debug, Clone)]
pub struct Sequential {
    /// Size of each file in bytes.
    pub size_bytes: u64,
    /// Size of one read in bytes.
    pub block_bytes: u64,
    /// Numbers of streams; each is a case.
    pub streams: Vec<usize>,
}

impl Default for Sequential {
    fn default() -> Self {
        Self { size_bytes: 256 << 20, block_bytes: 1 << 20, streams: vec![1, 2, 4, 8] }
    }
}

impl Sequential {
    fn file(&self, index: usize) -> FileSpec {
        FileSpec::written(format!("stream-{index}"), self.size_bytes)
    }

    fn most(&self) -> usize {
        self.streams.iter().copied().max().unwrap_or(1)
    }
}

impl Work for Sequential {
    fn name(&self) -> &'static str {
        "sequential"
    }

    fn title(&self) -> &'static str {
        "large sequential reads of several files at once, cold"
    }

    fn unit(&self) -> &'static str {
        "MiB/s"
    }

    fn options(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("size".into(), bedplate::format_size(self.size_bytes)),
            ("block".into(), bedplate::format_size(self.block_bytes)),
            ("streams".into(), list(&self.streams)),
        ])
    }

    fn validate(&self) -> Result<()> {
        if self.streams.is_empty() || self.streams.iter().any(|&n| n == 0 || n > 256) {
            return Err(Error::usage("sequential needs numbers of streams between 1 and 256"));
        }
        if self.block_bytes < 512
            || !self.block_bytes.is_multiple_of(512)
            || !self.size_bytes.is_multiple_of(self.block_bytes)
        {
            return Err(Error::usage(
                "--block must be a multiple of 512, and --size a multiple of --block",
            ));
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |&n: &usize| Case {
            name: format!("{n} stream{}", if n == 1 { "" } else { "s" }),
            curve: "reads".into(),
            axis: "streams".into(),
            x: n as f64,
        };
        self.streams.iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        self.size_bytes * self.most() as u64
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        (0..self.most()).try_for_each(|i| target.create(&self.file(i)))
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        target.make_cold()?;
        let classes = [Class::Read];
        let job = Job {
            target,
            threads: self.streams[case],
            phase: Phase::Work,
            classes: &classes,
            rated: &classes,
            sample_every: Some(sampled(env.time)),
            stop: env.stop,
        };
        let mut measurement = run(&job, |index| {
            let file = target.open(&self.file(index).name)?;
            let mut buf = AlignedBuf::zeroed(self.block_bytes as usize);
            Ok(move |worker: &mut Worker<'_>| {
                let mut begin = Instant::now();
                for offset in (0..self.size_bytes).step_by(self.block_bytes as usize) {
                    file.read_at(&mut buf, offset)?;
                    let end = Instant::now();
                    worker.record(Class::Read, begin, end, self.block_bytes);
                    begin = end;
                    if worker.done(begin) {
                        break;
                    }
                }
                Ok(())
            })
        })?;
        measurement.rate = measurement.bytes as f64 / measurement.elapsed_s / f64::from(1 << 20);
        Ok(measurement)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        (0..self.most()).try_for_each(|i| target.remove(&self.file(i).name))
    }
}
