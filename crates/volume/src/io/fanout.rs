//! Several members at once from one thread: submission and completion pairs that positioned calls
//! borrow.
//!
//! A call that concerns one member goes to its device directly. One that concerns several takes a
//! lane, submits to all but the last, serves the last from its own thread, and collects: no thread
//! is woken, and the members work side by side.

use std::sync::Arc;
use std::time::Instant;

use bedplate_block::sync::{Mutex, rank};
use bedplate_block::{
    AlignedBuf, Completion, DeviceQueue, Operation, QueueOptions, Request, RequestKind, Result,
    Segment,
};

use crate::group::MemberHandle;

/// One member's part of a call.
#[derive(Debug)]
pub(crate) struct Job {
    pub handle: Arc<MemberHandle>,
    pub kind: RequestKind,
    /// What is written or receives what is read, segment behind segment; `None` for a flush.
    pub buf: Option<AlignedBuf>,
    pub segments: Vec<Segment>,
}

/// How a job ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub handle: Arc<MemberHandle>,
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
    queues: Vec<(Arc<MemberHandle>, Box<dyn DeviceQueue>)>,
    /// Whether one of them failed.
    broken: bool,
}

/// Lanes that are not borrowed now.
#[derive(Default)]
pub(crate) struct Lanes {
    /// A leaf.
    idle: Mutex<Vec<Lane>, { rank::VOLUME_LEAF }>,
}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lanes({} idle)", self.idle.lock().len())
    }
}

/// A job on its way.
struct JobInFlight {
    handle: Arc<MemberHandle>,
    kind: RequestKind,
    start: Instant,
    end: u64,
    len: u64,
    covers: u64,
    done: Option<(Result<()>, Option<AlignedBuf>)>,
}

/// Jobs on their way, with the lane that they borrowed. Dropped, it waits for them.
#[derive(Default)]
pub(crate) struct Fanout {
    lane: Option<Lane>,
    jobs: Vec<JobInFlight>,
}

impl Lanes {
    /// Carries out jobs side by side, and `own` from the calling thread meanwhile.
    pub fn run<T>(&self, jobs: Vec<Job>, own: impl FnOnce() -> T) -> (Vec<Done>, T) {
        let mut fanout = self.begin(jobs);
        let outcome = own();
        let done = self.poll(&mut fanout, Wait::ForAll).expect("a wait for all ends with all");
        (done, outcome)
    }

    /// Starts jobs side by side.
    pub fn begin(&self, jobs: Vec<Job>) -> Fanout {
        let mut fanout = Fanout { lane: None, jobs: Vec::with_capacity(jobs.len()) };
        if jobs.is_empty() {
            return fanout;
        }
        let mut lane = self.idle.lock().pop().unwrap_or_default();
        for job in jobs {
            lane.start(job, &mut fanout.jobs);
        }
        fanout.lane = Some(lane);
        fanout
    }

    /// Returns how the jobs of a trip ended, once all have.
    pub fn poll(&self, fanout: &mut Fanout, wait: Wait) -> Option<Vec<Done>> {
        if let Some(lane) = &mut fanout.lane {
            lane.collect(&mut fanout.jobs, wait);
            if fanout.jobs.iter().any(|job| job.done.is_none()) {
                return None;
            }
            // After a queue failed what is in it is not known; a member that left meanwhile has no
            // queue any more.
            let lane = fanout.lane.take().filter(|lane| {
                !lane.broken && lane.queues.iter().all(|(_, queue)| queue.in_flight() == 0)
            });
            self.idle.lock().extend(lane.map(Lane::without_failed));
        }
        let done = fanout.jobs.drain(..).map(|job| {
            let (result, buf) = job.done.expect("every job was collected");
            Done { handle: job.handle, result, buf }
        });
        Some(done.collect())
    }

    /// Closes the queues of members that are no longer in use.
    pub fn forget(&self, gone: &Arc<MemberHandle>) {
        for lane in self.idle.lock().iter_mut() {
            lane.queues.retain(|(handle, _)| !Arc::ptr_eq(handle, gone));
        }
    }
}

impl Lane {
    fn queue(&mut self, handle: &Arc<MemberHandle>) -> Result<&mut Box<dyn DeviceQueue>> {
        if let Some(at) = self.queues.iter().position(|(known, _)| Arc::ptr_eq(known, handle)) {
            return Ok(&mut self.queues[at].1);
        }
        let queue =
            handle.device.queue(&QueueOptions { depth_max: 16, ..QueueOptions::default() })?;
        self.queues.push((Arc::clone(handle), queue));
        Ok(&mut self.queues.last_mut().expect("one was pushed").1)
    }

    fn start(&mut self, job: Job, jobs: &mut Vec<JobInFlight>) {
        let token = jobs.len() as u64;
        let end = job.segments.last().map_or(0, |segment| segment.offset + u64::from(segment.len));
        let len = job.segments.iter().map(|segment| u64::from(segment.len)).sum();
        let covers = job.handle.needs_flush().unwrap_or(0);
        let start = job.handle.begin();
        let mut entry = JobInFlight {
            handle: Arc::clone(&job.handle),
            kind: job.kind,
            start,
            end,
            len,
            covers,
            done: None,
        };
        let first = job.segments.first().copied().unwrap_or(Segment { offset: 0, len: 0 });
        let rest = job.segments.get(1..).unwrap_or_default().to_vec();
        let request = Request { token, kind: job.kind, buf: job.buf, first, rest };
        let pushed = match self.queue(&job.handle) {
            Ok(queue) => queue
                .push(request)
                .map_err(|_| refused(&job.handle, "the queue is full"))
                .and_then(|()| queue.submit()),
            Err(error) => Err(error),
        };
        if let Err(error) = pushed {
            entry.end(Err(error), None);
        }
        jobs.push(entry);
    }

    /// Collects jobs: those that have ended, or all.
    fn collect(&mut self, jobs: &mut [JobInFlight], wait: Wait) {
        let mut completions: Vec<Completion> = Vec::new();
        let mut from = 0;
        while let Some(waiting) = (from..jobs.len()).find(|at| jobs[*at].done.is_none()) {
            let handle = Arc::clone(&jobs[waiting].handle);
            let collected = self.queue(&handle).and_then(|queue| {
                queue.complete(usize::from(wait == Wait::ForAll), &mut completions)
            });
            if let Err(error) = collected {
                self.broken = true;
                jobs[waiting].end(Err(error), None);
            }
            for completion in completions.drain(..) {
                // A completion that comes twice ends a job once.
                if let Some(job) =
                    jobs.get_mut(completion.token as usize).filter(|job| job.done.is_none())
                {
                    job.end(completion.result, completion.buf);
                }
            }
            from = if wait == Wait::No { waiting + 1 } else { 0 };
        }
    }

    /// Closes the queues of members that left while the lane was away.
    fn without_failed(mut self) -> Self {
        self.queues.retain(|(handle, _)| !handle.is_failed());
        self
    }
}

impl JobInFlight {
    fn end(&mut self, mut result: Result<()>, buf: Option<AlignedBuf>) {
        let (ok, took) = (result.is_ok(), self.start.elapsed());
        match self.kind {
            RequestKind::Read => self.handle.end_read(took, self.end, self.len, ok),
            RequestKind::Write => self.handle.end_write(took, self.len, ok),
            RequestKind::Flush => result = self.handle.end_flush(took, self.covers, result),
        }
        self.done = Some((result, buf));
    }
}

fn refused(handle: &MemberHandle, detail: &str) -> bedplate_block::Error {
    bedplate_block::Error {
        kind: bedplate_block::ErrorKind::Io,
        operation: Operation::Queue,
        device: handle.name().to_owned(),
        offset: None,
        detail: detail.to_owned(),
        errno: None,
    }
}
