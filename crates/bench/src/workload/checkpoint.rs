//! `checkpoint`: what overwrites cost directly after an image of a file was made at once, and once
//! more when nothing is shared any more.
//!
//! ```text
//!   fill ──► overwrite every page ──► image ──► overwrite every page ──► overwrite every page ──► second image ──► both removed
//!                 "before"           timed          "after"                  "again"               timed           timed
//! ```
//! A volume makes a checkpoint, a kernel file system a reflink. Every pass writes each page once,
//! in the same order, and ends with a sync.

use std::collections::BTreeMap;
use std::time::Instant;

use bedplate::AlignedBuf;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Env, Work};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{Done, FileSpec, Op, OpKind, QueueSetup, Role, Target, TargetInfo};
use crate::{Error, Result};

/// Options of `checkpoint`.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Pages in flight on one thread's queue; 0: no such case.
    pub depth: usize,
    /// Threads with one page each; 0: no such case.
    pub threads: usize,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { size_bytes: 1 << 30, page_bytes: 8192, depth: 32, threads: 16 }
    }
}

/// How the pages of a pass are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IoMethod {
    Queue(usize),
    Threads(usize),
}

/// One case.
#[derive(Debug, Clone, Copy)]
struct Point {
    method: IoMethod,
    random: bool,
    /// The second pass after the image, not the first.
    again: bool,
}

const FILE: &str = "checkpointed";
const IMAGES: [&str; 2] = ["bench-first", "bench-second"];

impl Work for Checkpoint {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn title(&self) -> &'static str {
        "overwrites directly after a checkpoint or reflink of the file, of what they were before"
    }

    fn unit(&self) -> &'static str {
        "% of before"
    }

    fn options(&self) -> BTreeMap<String, String> {
        let size = |bytes| bedplate::format_size(bytes);
        let (depth, threads) = (self.depth.to_string(), self.threads.to_string());
        [
            ("size", size(self.size_bytes)),
            ("page", size(self.page_bytes)),
            ("depth", depth),
            ("threads", threads),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn validate(&self) -> Result<()> {
        if self.page_bytes < 512
            || !self.page_bytes.is_power_of_two()
            || self.size_bytes == 0
            || !self.size_bytes.is_multiple_of(self.page_bytes)
        {
            return Err(Error::usage(
                "--page must be a power of two of at least 512, and --size a multiple of it above \
                 0",
            ));
        }
        if (self.depth == 0 && self.threads == 0) || self.depth > 1024 || self.threads > 1024 {
            return Err(Error::usage(
                "give --depth or --threads: one of them from 1 to 1024, 0 leaves its cases out",
            ));
        }
        Ok(())
    }

    fn cases(&self) -> Vec<Case> {
        let case = |point: &Point| {
            let (method, axis, x) = match point.method {
                IoMethod::Queue(depth) => (format!("queue of {depth}"), "depth", depth),
                IoMethod::Threads(threads) => (format!("{threads} threads"), "threads", threads),
            };
            let (order, pass) = (
                if point.random { "random" } else { "sequential" },
                if point.again { "second pass" } else { "first pass" },
            );
            Case {
                name: format!("{order}, {method}, {pass}"),
                curve: format!("{order}, {pass}"),
                axis: axis.into(),
                x: x as f64,
            }
        };
        self.points().iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        // The file, what the passes after the image write elsewhere, and what is not free again
        // yet.
        3 * self.size_bytes
    }

    fn refuses(&self, case: usize, target: &TargetInfo) -> Option<String> {
        if target.role == Role::Raw {
            return Some("a raw device keeps no image of itself".into());
        }
        match self.points()[case].method {
            IoMethod::Queue(_) if target.role == Role::Buffered && target.is_path() => {
                Some("a queue needs direct I/O".into())
            }
            _ => None,
        }
    }

    fn prepare(&self, _target: &dyn Target) -> Result<()> {
        Ok(())
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let point = self.points()[case];
        // A new file each time: what the case before left is scattered.
        target.remove(FILE)?;
        target.create(&FileSpec::written(FILE, self.size_bytes))?;
        let order = self.order(point.random);
        let pass = || self.pass(target, env, point.method, &order);
        let before = pass()?;
        let made_us = timed_us(|| target.make_image(IMAGES[0], Some(FILE)))?;
        let measured = pass().and_then(|after| {
            Ok((
                if point.again { pass()? } else { after },
                timed_us(|| target.make_image(IMAGES[1], Some(FILE)))?,
            ))
        });
        let removed_us =
            timed_us(|| IMAGES.iter().try_for_each(|image| target.remove_image(image)))?;
        let (mut measurement, made_again_us) = measured?;
        let per_second = |m: &Measurement| m.ops as f64 / m.elapsed_s;
        measurement.rate = per_second(&measurement) / per_second(&before) * 100.0;
        let figures = [
            ("before 1/s", per_second(&before)),
            ("measured 1/s", per_second(&measurement)),
            ("image made µs", made_us),
            ("image of the scattered file made µs", made_again_us),
            ("both removed µs", removed_us),
        ];
        measurement.figures.extend(figures.map(|(name, value)| (name.to_owned(), value)));
        Ok(measurement)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        target.remove(FILE)
    }
}

fn timed_us(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64() * 1e6)
}

impl Checkpoint {
    fn points(&self) -> Vec<Point> {
        let ways = [
            (self.depth > 0).then_some(IoMethod::Queue(self.depth)),
            (self.threads > 0).then_some(IoMethod::Threads(self.threads)),
        ];
        let all = ways
            .into_iter()
            .flatten()
            .flat_map(|method| [true, false].map(|random| (method, random)));
        all.flat_map(|(method, random)| [false, true].map(|again| Point { method, random, again }))
            .collect()
    }

    /// The pages of a pass.
    fn order(&self, random: bool) -> Vec<u64> {
        let mut order: Vec<u64> = (0..self.size_bytes / self.page_bytes).collect();
        if random {
            order.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(self.size_bytes));
        }
        order
    }

    fn pass(
        &self,
        target: &dyn Target,
        env: &Env<'_>,
        method: IoMethod,
        order: &[u64],
    ) -> Result<Measurement> {
        let threads = if let IoMethod::Threads(threads) = method { threads } else { 1 };
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
        let measured = run(&job, |_| {
            Ok(move |worker: &mut Worker<'_>| match method {
                IoMethod::Threads(_) => self.by_calls(worker, target, order),
                IoMethod::Queue(depth) => self.by_queue(worker, target, order, depth),
            })
        });
        target.quiesce()?;
        measured
    }

    fn by_calls(&self, worker: &mut Worker<'_>, target: &dyn Target, order: &[u64]) -> Result<()> {
        let file = target.open(FILE)?;
        let mut buf = AlignedBuf::zeroed(self.page_bytes as usize);
        worker.rng.fill(&mut buf[..]);
        let mut begin = Instant::now();
        for page in order.iter().skip(worker.index).step_by(worker.threads) {
            file.write_at(&buf, page * self.page_bytes)?;
            let end = Instant::now();
            worker.record(Class::Write, begin, end, self.page_bytes);
            begin = end;
            if worker.done(begin) {
                break;
            }
        }
        file.sync_data()
    }

    fn by_queue(
        &self,
        worker: &mut Worker<'_>,
        target: &dyn Target,
        order: &[u64],
        depth: usize,
    ) -> Result<()> {
        let mut queue = target.queue(
            &[FILE.to_owned()],
            &QueueSetup { depth, buffer_bytes: self.page_bytes as usize },
        )?;
        let mut rest = order.iter();
        let mut begins = vec![Instant::now(); depth];
        let mut idle: Vec<Done> =
            (0..depth as u64).map(|token| Done { token, buf: queue.take_buffer() }).collect();
        idle.iter_mut().for_each(|slot| worker.rng.fill(&mut slot.buf[..]));
        let mut in_flight = 0;
        loop {
            for Done { token, buf } in idle.drain(..) {
                let Some(page) = rest.next() else { continue };
                begins[token as usize] = Instant::now();
                queue.push(
                    Op { kind: OpKind::Write, file: 0, offset: page * self.page_bytes, token },
                    buf,
                )?;
                in_flight += 1;
            }
            if in_flight == 0 {
                break;
            }
            queue.complete(1, &mut idle)?;
            in_flight -= idle.len();
            let now = Instant::now();
            idle.iter().for_each(|done| {
                worker.record(Class::Write, begins[done.token as usize], now, self.page_bytes);
            });
            if worker.done(now) {
                rest = [].iter();
            }
        }
        drop(queue);
        target.open(FILE)?.sync_data()
    }
}
