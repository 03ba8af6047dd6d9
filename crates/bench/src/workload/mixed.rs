//! `mixed`: what the NFS paper's `sio` does. Reads and writes of one size to one file, by threads
//! with synchronous calls or by queues.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bedplate::AlignedBuf;
use rand::Rng;

use super::{Env, Work, list, sampled, scale, sizes};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{
    Done, FileSpec, Op, OpKind, QueueSetup, Role, Target, TargetFile, TargetInfo, TargetQueue,
    fill_pattern,
};
use crate::{Error, Result};

/// Options of `mixed`. Every combination of the lists is a case.
#[derive(Debug, Clone)]
pub struct Mixed {
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Sizes of one operation in bytes.
    pub block_bytes: Vec<u64>,
    /// Percent of operations that read.
    pub reads_percent: Vec<u8>,
    /// Percent of operations at a random place; the others follow on the thread's one before.
    pub random_percent: Vec<u8>,
    /// Numbers of threads that make synchronous calls.
    pub threads: Vec<usize>,
    /// Depths of a queue.
    pub depths: Vec<usize>,
    /// Threads that have a queue of each depth.
    pub queue_threads: usize,
    /// Takes the file's advisory lock around every access, shared to read and exclusive to write.
    pub locking: bool,
    /// Latencies to give the device one after the other (memory only): how long it takes decides
    /// what a lock held meanwhile costs.
    pub latencies: Vec<Duration>,
}

impl Default for Mixed {
    fn default() -> Self {
        Self {
            size_bytes: 1 << 30,
            block_bytes: vec![8192],
            reads_percent: vec![100, 0, 50],
            random_percent: vec![100],
            threads: vec![1, 4, 16, 64],
            depths: vec![1, 32, 128],
            queue_threads: 1,
            locking: false,
            latencies: Vec::new(),
        }
    }
}

const FILE: &str = "mixed";

/// What submits the operations.
#[derive(Debug, Clone, Copy)]
pub(super) enum Submission {
    Threads(usize),
    Queues { threads: usize, depth: usize },
}

/// One combination of the lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pattern {
    pub block_bytes: u64,
    pub reads_percent: u8,
    pub random_percent: u8,
    pub submission: Submission,
    pub latency: Option<Duration>,
}

impl Mixed {
    fn patterns(&self) -> Vec<Pattern> {
        let threads = self.threads.iter().map(|&n| Submission::Threads(n));
        let queues = self
            .depths
            .iter()
            .map(|&depth| Submission::Queues { threads: self.queue_threads, depth });
        let submissions: Vec<Submission> = threads.chain(queues).collect();
        let latencies: Vec<Option<Duration>> = if self.latencies.is_empty() {
            vec![None]
        } else {
            self.latencies.iter().copied().map(Some).collect()
        };
        let mut patterns = Vec::new();
        for &block_bytes in &self.block_bytes {
            for &random_percent in &self.random_percent {
                for &reads_percent in &self.reads_percent {
                    for &submission in &submissions {
                        let pattern = |latency| Pattern {
                            block_bytes,
                            reads_percent,
                            random_percent,
                            submission,
                            latency,
                        };
                        patterns.extend(latencies.iter().map(|&latency| pattern(latency)));
                    }
                }
            }
        }
        patterns
    }
}

impl Pattern {
    pub(super) fn mix(&self) -> String {
        let what = match self.reads_percent {
            100 => "reads".to_owned(),
            0 => "writes".to_owned(),
            percent => format!("{percent}% reads"),
        };
        let order = match self.random_percent {
            100 => "random".to_owned(),
            0 => "sequential".to_owned(),
            percent => format!("{percent}% random"),
        };
        format!("{} {order} {what}", bedplate::format_size(self.block_bytes))
    }

    fn case(&self) -> Case {
        let case = self.submission_case();
        let Some(latency) = self.latency else { return case };
        let micros = latency.as_secs_f64() * 1e6;
        Case {
            name: format!("{}, latency {}", case.name, bedplate::format_duration(latency)),
            curve: case.name,
            axis: "device latency in µs".into(),
            x: micros,
        }
    }

    fn submission_case(&self) -> Case {
        let mix = self.mix();
        match self.submission {
            Submission::Threads(n) => Case {
                name: format!("{mix}, {n} thr"),
                curve: format!("{mix}, threads"),
                axis: "threads".into(),
                x: n as f64,
            },
            Submission::Queues { threads, depth } => {
                let many = if threads == 1 { String::new() } else { format!(" × {threads}") };
                Case {
                    name: format!("{mix}, queue {depth}{many}"),
                    curve: format!("{mix}, queue{many}"),
                    axis: "queue depth".into(),
                    x: depth as f64,
                }
            }
        }
    }
}

impl Work for Mixed {
    fn name(&self) -> &'static str {
        "mixed"
    }

    fn title(&self) -> &'static str {
        "reads and writes of one file, by threads with synchronous calls and by queues"
    }

    fn unit(&self) -> &'static str {
        "IOPS"
    }

    fn options(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("size".into(), bedplate::format_size(self.size_bytes)),
            ("block".into(), sizes(&self.block_bytes)),
            ("reads".into(), list(&self.reads_percent)),
            ("random".into(), list(&self.random_percent)),
            ("threads".into(), list(&self.threads)),
            ("depth".into(), list(&self.depths)),
            ("queue-threads".into(), self.queue_threads.to_string()),
            ("locking".into(), self.locking.to_string()),
            (
                "latency".into(),
                list(
                    &self
                        .latencies
                        .iter()
                        .map(|&l| bedplate::format_duration(l))
                        .collect::<Vec<_>>(),
                ),
            ),
        ])
    }

    fn validate(&self) -> Result<()> {
        if self.patterns().is_empty() {
            return Err(Error::usage("mixed has nothing to do: give --threads or --depth"));
        }
        if self.reads_percent.iter().chain(&self.random_percent).any(|&p| p > 100) {
            return Err(Error::usage("a percentage is above 100"));
        }
        if self
            .threads
            .iter()
            .chain(&self.depths)
            .chain([&self.queue_threads])
            .any(|&n| n == 0 || n > 4096)
        {
            return Err(Error::usage("a number of threads or a depth is 0 or above 4096"));
        }
        if let Some(&block) =
            self.block_bytes.iter().find(|&&b| b < 512 || !b.is_multiple_of(512) || b > 64 << 20)
        {
            return Err(Error::usage(format!(
                "an operation of {block} bytes is not a multiple of 512, or above 64 MiB"
            )));
        }
        let most = self.threads.iter().copied().max().unwrap_or(1) as u64;
        match self.block_bytes.iter().find(|&&b| self.size_bytes / b < most) {
            Some(&b) => Err(Error::usage(format!(
                "--size holds fewer operations of {} than there are threads",
                bedplate::format_size(b)
            ))),
            None if self.locking && !self.depths.is_empty() => Err(Error::usage(
                "--locking goes with threads: a queue cannot wait for a lock; leave out --depth",
            )),
            None => Ok(()),
        }
    }

    fn cases(&self) -> Vec<Case> {
        self.patterns().iter().map(Pattern::case).collect()
    }

    fn space_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn refuses(&self, case: usize, target: &TargetInfo) -> Option<String> {
        match self.patterns()[case].submission {
            Submission::Queues { .. } if target.role == Role::Buffered && target.is_path() => {
                Some("a queue needs direct I/O".into())
            }
            Submission::Queues { .. }
                if self.latencies.iter().any(|latency| !latency.is_zero()) =>
            {
                Some("an added latency serves threads only".into())
            }
            Submission::Queues { .. } if target.places.iter().any(|p| p.added_latency_us > 0) => {
                Some("an added latency serves threads only".into())
            }
            _ => None,
        }
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        target.create(&FileSpec::written(FILE, self.size_bytes))
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let pattern = self.patterns()[case];
        if let Some(latency) = pattern.latency {
            target.set_latency(latency)?;
        }
        let threads = match pattern.submission {
            Submission::Threads(n) | Submission::Queues { threads: n, .. } => n,
        };
        let classes = [Class::Read, Class::Write];
        let phase = Phase::Timed { warm_up: env.warm_up, time: env.time, after: Duration::ZERO };
        let job = Job {
            target,
            threads,
            phase,
            classes: &classes,
            rated: &classes,
            sample_every: Some(sampled(env.time)),
            stop: env.stop,
        };
        let blocks = self.size_bytes / pattern.block_bytes;
        match pattern.submission {
            Submission::Threads(_) if self.locking => run(&job, |_| {
                let file = target.open_lockable(FILE)?;
                Ok(move |worker: &mut Worker<'_>| {
                    by_calls(worker, &Locked(&*file), &pattern, blocks)
                })
            }),
            Submission::Threads(_) => {
                let file = target.open(FILE)?;
                run(&job, |_| {
                    Ok(|worker: &mut Worker<'_>| by_calls(worker, &*file, &pattern, blocks))
                })
            }
            Submission::Queues { depth, .. } => run(&job, |_| {
                let setup = QueueSetup { depth, buffer_bytes: pattern.block_bytes as usize };
                let queue = target.queue(&[FILE.to_owned()], &setup)?;
                Ok(move |worker: &mut Worker<'_>| by_queue(worker, queue, &pattern, blocks, depth))
            }),
        }
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        if !self.latencies.is_empty() {
            target.set_latency(Duration::ZERO)?;
        }
        target.remove(FILE)
    }
}

/// Decides what each operation is and where it goes.
struct Choice {
    pattern: Pattern,
    blocks: u64,
    next: u64,
}

impl Choice {
    fn new(worker: &Worker<'_>, pattern: &Pattern, blocks: u64) -> Self {
        // A thread that goes on sequentially starts in its own part of the file.
        Self {
            pattern: *pattern,
            blocks,
            next: blocks / worker.threads as u64 * worker.index as u64,
        }
    }

    fn next(&mut self, worker: &mut Worker<'_>) -> (OpKind, u64) {
        let dice = worker.rng.next_u64();
        let kind = if scale(dice, 100) < u64::from(self.pattern.reads_percent) {
            OpKind::Read
        } else {
            OpKind::Write
        };
        let dice = worker.rng.next_u64();
        let block = if scale(dice, 100) < u64::from(self.pattern.random_percent) {
            scale(dice >> 32, self.blocks)
        } else {
            self.next
        };
        self.next = (block + 1) % self.blocks;
        (kind, block * self.pattern.block_bytes)
    }
}

/// Reads and writes with synchronous calls until the measurement ends.
pub(super) fn by_calls(
    worker: &mut Worker<'_>,
    file: &dyn TargetFile,
    pattern: &Pattern,
    blocks: u64,
) -> Result<()> {
    let mut read_buf = AlignedBuf::zeroed(pattern.block_bytes as usize);
    let mut write_buf = AlignedBuf::zeroed(pattern.block_bytes as usize);
    fill_pattern(&mut write_buf, worker.index as u64);
    let mut choice = Choice::new(worker, pattern, blocks);
    let mut begin = Instant::now();
    while !worker.done(begin) {
        let (kind, offset) = choice.next(worker);
        match kind {
            OpKind::Read => file.read_at(&mut read_buf, offset)?,
            OpKind::Write => file.write_at(&write_buf, offset)?,
        }
        let end = Instant::now();
        worker.record(class_of(kind), begin, end, pattern.block_bytes);
        begin = end;
    }
    Ok(())
}

fn class_of(kind: OpKind) -> Class {
    match kind {
        OpKind::Read => Class::Read,
        OpKind::Write => Class::Write,
    }
}

/// A file whose lock is held around every access.
struct Locked<'a>(&'a dyn TargetFile);

impl TargetFile for Locked<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.lock(false)?;
        self.0.read_at(buf, offset)?;
        self.0.unlock()
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.0.lock(true)?;
        self.0.write_at(buf, offset)?;
        self.0.unlock()
    }

    fn sync_data(&self) -> Result<()> {
        self.0.sync_data()
    }

    fn align_bytes(&self) -> u64 {
        self.0.align_bytes()
    }
}

fn by_queue(
    worker: &mut Worker<'_>,
    mut queue: Box<dyn TargetQueue>,
    pattern: &Pattern,
    blocks: u64,
    depth: usize,
) -> Result<()> {
    let mut choice = Choice::new(worker, pattern, blocks);
    let mut done: Vec<Done> = Vec::with_capacity(depth);
    let start = Instant::now();
    let mut pending = vec![(Class::Read, start); depth];
    for (slot, entry) in pending.iter_mut().enumerate() {
        let mut buf = queue.take_buffer();
        fill_pattern(&mut buf, slot as u64);
        let (kind, offset) = choice.next(worker);
        *entry = (class_of(kind), Instant::now());
        queue.push(Op { kind, file: 0, offset, token: slot as u64 }, buf)?;
    }
    let mut in_flight = depth;
    while in_flight > 0 {
        queue.complete(1, &mut done)?;
        let now = Instant::now();
        let ended = worker.done(now);
        for Done { token, buf } in done.drain(..) {
            let slot = token as usize;
            let (class, begin) = pending[slot];
            worker.record(class, begin, now, pattern.block_bytes);
            if ended {
                in_flight -= 1;
                continue;
            }
            let (kind, offset) = choice.next(worker);
            pending[slot] = (class_of(kind), now);
            queue.push(Op { kind, file: 0, offset, token }, buf)?;
        }
    }
    Ok(())
}
