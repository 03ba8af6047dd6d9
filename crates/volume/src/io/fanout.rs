//! Several members at once from one thread: submission and completion pairs that positioned calls borrow.
//!
//! A call that concerns one member goes to its device directly. One that concerns several takes a lane, submits to all but the last, serves
//! the last from its own thread, and collects: no thread is woken, and the members work side by side.

use std::sync::Arc;
use std::time::Instant;

use block::{AlignedBuf, Completion, DeviceQueue, Operation, QueueOptions, Request, RequestKind, Result, Segment};
use parking_lot::Mutex;

use crate::group::Live;

/// One member's part of a call.
#[derive(Debug)]
pub(crate) struct Job {
    pub live: Arc<Live>,
    pub kind: RequestKind,
    /// What is written or receives what is read, segment behind segment; `None` for a flush.
    pub buf: Option<AlignedBuf>,
    pub segments: Vec<Segment>,
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub live: Arc<Live>,
    pub result: Result<()>,
    pub buf: Option<AlignedBuf>,
}

/// Whether to wait for jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// What has ended is taken along.
    No,
    ForAll,
}

/// The queues of one borrower, made when they are first needed.
#[derive(Default)]
struct Lane {
    queues: Vec<(Arc<Live>, Box<dyn DeviceQueue>)>,
    /// Whether one of them failed.
    broken: bool,
}

/// Lanes that nobody borrows now.
#[derive(Default)]
pub(crate) struct Lanes {
    idle: Mutex<Vec<Lane>>,
}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lanes({} idle)", self.idle.lock().len())
    }
}

/// A job on its way.
struct Flying {
    live: Arc<Live>,
    kind: RequestKind,
    start: Instant,
    end: u64,
    len: u64,
    covers: u64,
    done: Option<(Result<()>, Option<AlignedBuf>)>,
}

/// Jobs on their way, with the lane that they borrowed. Dropped, it waits for them.
#[derive(Default)]
pub(crate) struct Trip {
    lane: Option<Lane>,
    flying: Vec<Flying>,
}

impl Lanes {
    /// Carries out jobs side by side, and `own` from the calling thread meanwhile.
    pub fn run<T>(&self, jobs: Vec<Job>, own: impl FnOnce() -> T) -> (Vec<Done>, T) {
        let mut trip = self.depart(jobs);
        let outcome = own();
        let done = self.arrive(&mut trip, Wait::ForAll).expect("who waits for all gets all");
        (done, outcome)
    }

    /// Starts jobs side by side.
    pub fn depart(&self, jobs: Vec<Job>) -> Trip {
        let mut trip = Trip { lane: None, flying: Vec::with_capacity(jobs.len()) };
        if jobs.is_empty() {
            return trip;
        }
        let mut lane = self.idle.lock().pop().unwrap_or_default();
        for job in jobs {
            lane.start(job, &mut trip.flying);
        }
        trip.lane = Some(lane);
        trip
    }

    /// Returns how the jobs of a trip ended, once all have.
    pub fn arrive(&self, trip: &mut Trip, wait: Wait) -> Option<Vec<Done>> {
        if let Some(lane) = &mut trip.lane {
            lane.collect(&mut trip.flying, wait);
            if trip.flying.iter().any(|job| job.done.is_none()) {
                return None;
            }
            // After a queue failed nobody knows what is in it; a member that left meanwhile has no queue any more.
            let lane = trip.lane.take().filter(|lane| !lane.broken && lane.queues.iter().all(|(_, queue)| queue.in_flight() == 0));
            self.idle.lock().extend(lane.map(Lane::without_failed));
        }
        let done = trip.flying.drain(..).map(|job| {
            let (result, buf) = job.done.expect("every job was collected");
            Done { live: job.live, result, buf }
        });
        Some(done.collect())
    }

    /// Closes the queues of members that are no longer in use.
    pub fn forget(&self, gone: &Arc<Live>) {
        for lane in self.idle.lock().iter_mut() {
            lane.queues.retain(|(live, _)| !Arc::ptr_eq(live, gone));
        }
    }
}

impl Lane {
    fn queue(&mut self, live: &Arc<Live>) -> Result<&mut Box<dyn DeviceQueue>> {
        if let Some(at) = self.queues.iter().position(|(known, _)| Arc::ptr_eq(known, live)) {
            return Ok(&mut self.queues[at].1);
        }
        let queue = live.device.queue(&QueueOptions { depth_max: 16, ..QueueOptions::default() })?;
        self.queues.push((Arc::clone(live), queue));
        Ok(&mut self.queues.last_mut().expect("one was pushed").1)
    }

    fn start(&mut self, job: Job, flying: &mut Vec<Flying>) {
        let token = flying.len() as u64;
        let end = job.segments.last().map_or(0, |segment| segment.offset + u64::from(segment.len));
        let len = job.segments.iter().map(|segment| u64::from(segment.len)).sum();
        let covers = job.live.needs_flush().unwrap_or(0);
        let start = job.live.begin();
        let mut flight = Flying { live: Arc::clone(&job.live), kind: job.kind, start, end, len, covers, done: None };
        let first = job.segments.first().copied().unwrap_or(Segment { offset: 0, len: 0 });
        let rest = job.segments.get(1..).unwrap_or_default().to_vec();
        let request = Request { token, kind: job.kind, buf: job.buf, first, rest };
        let pushed = match self.queue(&job.live) {
            Ok(queue) => queue.push(request).map_err(|_| refused(&job.live, "the queue is full")).and_then(|()| queue.submit()),
            Err(error) => Err(error),
        };
        if let Err(error) = pushed {
            flight.end(Err(error), None);
        }
        flying.push(flight);
    }

    /// Collects jobs: those that have ended, or all.
    fn collect(&mut self, flying: &mut [Flying], wait: Wait) {
        let mut completions: Vec<Completion> = Vec::new();
        let mut from = 0;
        while let Some(waiting) = (from..flying.len()).find(|at| flying[*at].done.is_none()) {
            let live = Arc::clone(&flying[waiting].live);
            let collected = self.queue(&live).and_then(|queue| queue.complete(usize::from(wait == Wait::ForAll), &mut completions));
            if let Err(error) = collected {
                self.broken = true;
                flying[waiting].end(Err(error), None);
            }
            for completion in completions.drain(..) {
                // A completion that comes twice ends a job once.
                if let Some(job) = flying.get_mut(completion.token as usize).filter(|job| job.done.is_none()) {
                    job.end(completion.result, completion.buf);
                }
            }
            from = if wait == Wait::No { waiting + 1 } else { 0 };
        }
    }

    /// Closes the queues of members that left while the lane was away.
    fn without_failed(mut self) -> Self {
        self.queues.retain(|(live, _)| !live.is_failed());
        self
    }
}

impl Flying {
    fn end(&mut self, result: Result<()>, buf: Option<AlignedBuf>) {
        let (ok, took) = (result.is_ok(), self.start.elapsed());
        match self.kind {
            RequestKind::Read => self.live.end_read(took, self.end, self.len, ok),
            RequestKind::Write => self.live.end_write(took, self.len, ok),
            RequestKind::Flush => self.live.end_flush(took, self.covers, ok),
        }
        self.done = Some((result, buf));
    }
}

fn refused(live: &Live, detail: &str) -> block::Error {
    block::Error {
        kind: block::ErrorKind::Io,
        operation: Operation::Queue,
        device: live.name().to_owned(),
        offset: None,
        detail: detail.to_owned(),
        errno: None,
    }
}
