//! `copy`: a large file copied in small and in large requests, and with several requests in flight;
//! what it does to the page cache.

use std::collections::BTreeMap;
use std::time::Instant;

use bedplate::AlignedBuf;

use super::{Env, Work};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{
    Done, FileSpec, FileState, Op, OpKind, QueueSetup, Role, Target, TargetInfo, TargetQueue,
};
use crate::{Error, Result};

/// Options of `copy`.
#[derive(Debug, Clone)]
pub struct Copy {
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Pairs of the size of one request in bytes and how many are in flight (1: synchronous calls);
    /// each is a case.
    pub requests: Vec<(u64, usize)>,
}

impl Default for Copy {
    fn default() -> Self {
        Self { size_bytes: 1 << 30, requests: vec![(4096, 1), (8 << 20, 1), (2 << 20, 4)] }
    }
}

const SOURCE: &str = "copy-source";
const COPY: &str = "copy-target";

impl Work for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn title(&self) -> &'static str {
        "a file copied in small and large requests, durable at the end"
    }

    fn unit(&self) -> &'static str {
        "MiB/s"
    }

    fn options(&self) -> BTreeMap<String, String> {
        let requests = self
            .requests
            .iter()
            .map(|&(bytes, in_flight)| format!("{} x {in_flight}", bedplate::format_size(bytes)));
        BTreeMap::from([
            ("size".into(), bedplate::format_size(self.size_bytes)),
            ("requests".into(), requests.collect::<Vec<_>>().join(", ")),
        ])
    }

    fn validate(&self) -> Result<()> {
        let bad = |&&(bytes, in_flight): &&(u64, usize)| {
            bytes < 512
                || !bytes.is_multiple_of(512)
                || !self.size_bytes.is_multiple_of(bytes)
                || in_flight == 0
                || in_flight > 256
        };
        match self.requests.iter().find(bad) {
            Some((bytes, _)) => Err(Error::usage(format!(
                "--size must be a multiple of the request of {bytes} bytes, which must be one of \
                 512"
            ))),
            None if self.requests.is_empty() => {
                Err(Error::usage("copy needs at least one size of request"))
            }
            None => Ok(()),
        }
    }

    fn cases(&self) -> Vec<Case> {
        let case = |&(bytes, in_flight): &(u64, usize)| {
            let size = bedplate::format_size(bytes);
            let name = if in_flight == 1 {
                format!("{size} requests")
            } else {
                format!("{size} requests, {in_flight} in flight")
            };
            Case { name, curve: "copy".into(), axis: "request bytes".into(), x: bytes as f64 }
        };
        self.requests.iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        2 * self.size_bytes
    }

    fn refuses(&self, case: usize, target: &TargetInfo) -> Option<String> {
        if self.requests[case].1 == 1 {
            return None;
        }
        if target.role == Role::Buffered && target.is_path() {
            return Some("a queue needs direct I/O".into());
        }
        (target.places.len() > 1).then(|| "a queue serves one device".into())
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        target.create(&FileSpec::written(SOURCE, self.size_bytes))
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let (bytes, in_flight) = self.requests[case];
        // As cp does it, the copy grows; a queue's file has its size from the start.
        let state = if in_flight == 1 { FileState::Empty } else { FileState::Unwritten };
        target.create(&FileSpec { name: COPY.into(), size_bytes: self.size_bytes, state })?;
        target.make_cold()?;
        let classes = [Class::Read, Class::Write];
        let job = Job {
            target,
            threads: 1,
            phase: Phase::Work,
            classes: &classes,
            rated: &[Class::Write],
            sample_every: None,
            stop: env.stop,
        };
        let mut measurement = run(&job, |_| {
            Ok(move |worker: &mut Worker<'_>| match in_flight {
                1 => self.by_calls(worker, target, bytes),
                depth => self.by_queue(worker, target, bytes, depth),
            })
        })?;
        target.remove(COPY)?;
        measurement.bytes = self.size_bytes;
        measurement.rate = self.size_bytes as f64 / measurement.elapsed_s / f64::from(1 << 20);
        measurement.figures.insert(
            "page cache growth MiB".into(),
            measurement.page_cache_growth_bytes as f64 / f64::from(1 << 20),
        );
        Ok(measurement)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        target.remove(SOURCE)?;
        target.remove(COPY)
    }
}

impl Copy {
    fn by_calls(&self, worker: &mut Worker<'_>, target: &dyn Target, bytes: u64) -> Result<()> {
        let (source, copy) = (target.open(SOURCE)?, target.open(COPY)?);
        let mut buf = AlignedBuf::zeroed(bytes as usize);
        let mut begin = Instant::now();
        for offset in (0..self.size_bytes).step_by(bytes as usize) {
            source.read_at(&mut buf, offset)?;
            let middle = Instant::now();
            copy.write_at(&buf, offset)?;
            let end = Instant::now();
            worker.record(Class::Read, begin, middle, bytes);
            worker.record(Class::Write, middle, end, bytes);
            begin = end;
            if worker.done(begin) {
                break;
            }
        }
        copy.sync_data()
    }

    /// Each slot reads a piece, then writes it, then takes the next piece.
    fn by_queue(
        &self,
        worker: &mut Worker<'_>,
        target: &dyn Target,
        bytes: u64,
        depth: usize,
    ) -> Result<()> {
        let files = [SOURCE.to_owned(), COPY.to_owned()];
        let mut queue =
            target.queue(&files, &QueueSetup { depth, buffer_bytes: bytes as usize })?;
        let mut slots: Vec<(OpKind, u64, Instant)> = Vec::with_capacity(depth);
        let mut next = 0;
        while slots.len() < depth && next < self.size_bytes {
            let buf = queue.take_buffer();
            queue.push(
                Op { kind: OpKind::Read, file: 0, offset: next, token: slots.len() as u64 },
                buf,
            )?;
            slots.push((OpKind::Read, next, Instant::now()));
            next += bytes;
        }
        let mut in_flight = slots.len();
        let mut done: Vec<Done> = Vec::with_capacity(depth);
        while in_flight > 0 {
            queue.complete(1, &mut done)?;
            let now = Instant::now();
            for one in done.drain(..) {
                in_flight -= 1;
                let slot = &mut slots[one.token as usize];
                let class = if slot.0 == OpKind::Read { Class::Read } else { Class::Write };
                worker.record(class, slot.2, now, bytes);
                let op = match slot.0 {
                    OpKind::Read => {
                        Op { kind: OpKind::Write, file: 1, offset: slot.1, token: one.token }
                    }
                    OpKind::Write if next < self.size_bytes && !worker.done(now) => {
                        next += bytes;
                        Op { kind: OpKind::Read, file: 0, offset: next - bytes, token: one.token }
                    }
                    OpKind::Write => continue,
                };
                *slot = (op.kind, op.offset, now);
                queue_again(&mut *queue, op, one)?;
                in_flight += 1;
            }
        }
        drop(queue);
        target.open(COPY)?.sync_data()
    }
}

fn queue_again(queue: &mut dyn TargetQueue, op: Op, done: Done) -> Result<()> {
    queue.push(op, done.buf)
}
