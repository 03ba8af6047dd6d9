//! `increments`: one file read from its beginning in small, middle and large steps, cold. JFS2's
//! table 2.

use std::collections::BTreeMap;
use std::time::Instant;

use bedplate::AlignedBuf;

use super::{Env, Work};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{FileSpec, Target, TargetFile};
use crate::{Error, Result};

/// Options of `increments`.
#[derive(Debug, Clone)]
pub struct Increments {
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Pairs of a step and how much of the file is read with it, both in bytes; each is a case.
    pub steps: Vec<(u64, u64)>,
}

impl Default for Increments {
    fn default() -> Self {
        Self {
            size_bytes: 1 << 30,
            steps: vec![(1, 1 << 20), (4096, 1 << 30), (10 << 20, 1 << 30)],
        }
    }
}

const FILE: &str = "increments";

impl Work for Increments {
    fn name(&self) -> &'static str {
        "increments"
    }

    fn title(&self) -> &'static str {
        "one file read sequentially in small and large steps, cold"
    }

    fn unit(&self) -> &'static str {
        "MiB/s"
    }

    fn options(&self) -> BTreeMap<String, String> {
        let steps = self.steps.iter().map(|&(step, over)| {
            format!("{} over {}", bedplate::format_size(step), bedplate::format_size(over))
        });
        BTreeMap::from([
            ("size".into(), bedplate::format_size(self.size_bytes)),
            ("steps".into(), steps.collect::<Vec<_>>().join(", ")),
        ])
    }

    fn validate(&self) -> Result<()> {
        match self
            .steps
            .iter()
            .find(|&&(step, over)| step == 0 || over < step || over > self.size_bytes)
        {
            Some((step, over)) => Err(Error::usage(format!(
                "steps of {step} bytes over {over} do not fit a file of {} bytes",
                self.size_bytes
            ))),
            None if self.steps.is_empty() => {
                Err(Error::usage("increments needs at least one step"))
            }
            None => Ok(()),
        }
    }

    fn cases(&self) -> Vec<Case> {
        let case = |&(step, over): &(u64, u64)| Case {
            name: format!(
                "{} steps over {}",
                bedplate::format_size(step),
                bedplate::format_size(over)
            ),
            curve: "sequential read, cold".into(),
            axis: "step bytes".into(),
            x: step as f64,
        };
        self.steps.iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        target.create(&FileSpec::written(FILE, self.size_bytes))
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let (step, over) = self.steps[case];
        target.make_cold()?;
        let file = target.open(FILE)?;
        let align = file.align_bytes();
        // A clock read costs more than a cached step of a byte: small steps are timed in groups.
        let group = (4096 / step).max(1);
        let job = Job {
            target,
            threads: 1,
            phase: Phase::Work,
            classes: &[Class::Read],
            rated: &[Class::Read],
            sample_every: None,
            stop: env.stop,
        };
        let mut measurement = run(&job, |_| {
            let mut buf = AlignedBuf::zeroed((step.next_multiple_of(align) + align) as usize);
            let file = &*file;
            Ok(move |worker: &mut Worker<'_>| {
                let mut offset = 0;
                let mut begin = Instant::now();
                while offset + step <= over && !worker.done(begin) {
                    let until = (offset + step * group).min(over);
                    while offset + step <= until {
                        read_step(file, &mut buf, offset, step, align)?;
                        offset += step;
                    }
                    let end = Instant::now();
                    worker.record(Class::Read, begin, end, step * group);
                    begin = end;
                }
                Ok(())
            })
        })?;
        let bytes = over - over % step;
        measurement.bytes = bytes;
        measurement.ops = over / step;
        measurement.ops_observed = measurement.ops;
        measurement.rate = bytes as f64 / measurement.elapsed_s / f64::from(1 << 20);
        if let Some(device) = measurement.device {
            measurement
                .figures
                .insert("KiB read from the device".into(), device.read_bytes as f64 / 1024.0);
        }
        Ok(measurement)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        target.remove(FILE)
    }
}

/// Reads one step. Where only aligned reads are possible, it reads what holds the step, as a
/// program would have to.
fn read_step(
    file: &dyn TargetFile,
    buf: &mut [u8],
    offset: u64,
    step: u64,
    align: u64,
) -> Result<()> {
    let first = offset - offset % align;
    let end = (offset + step).next_multiple_of(align);
    file.read_at(&mut buf[..(end - first) as usize], first)
}
