//! The engine for systems that forbid io_uring: a bounded pool of server threads per device ("aio
//! servers"), shared by its queues; and of devices over the network.
//!
//! ```text
//!   queue ──submit──► jobs (one line for all) ──► server thread: pread, pwrite, fdatasync ──► the queue's own completions
//! ```
//! Servers start when a job finds none idle, up to the bound; they end with the device.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::descriptor::from_io;
use crate::inline::{Served, serve};
use crate::pool::BufferPool;
use crate::{
    AlignedBuf, Completion, DeviceCounters, DeviceQueue, EngineThreads, Operation, QueueOptions,
    Request, Result,
};

struct Job {
    request: Request,
    home: Arc<Home>,
    /// Since when it waits for a server; `None` where one was idle.
    since: Option<Instant>,
}

/// Where a queue's completions wait for it.
#[derive(Default)]
struct Home {
    done: Mutex<Done>,
    wake: Condvar,
}

#[derive(Default)]
struct Done {
    completions: Vec<Completion>,
    /// How many completions the sleeping owner waits for; 0: it does not sleep.
    wanted: usize,
}

struct Line {
    jobs: VecDeque<Job>,
    idle: usize,
    servers: Vec<JoinHandle<()>>,
    closing: bool,
}

struct Shared {
    device: Arc<dyn Served>,
    line: Mutex<Line>,
    wake: Condvar,
}

/// The server threads of one device, once a queue needs them.
#[derive(Debug)]
pub(crate) struct Servers {
    count_max: usize,
    pool: OnceLock<Arc<ServerPool>>,
}

impl Servers {
    pub fn new(count_max: usize) -> Self {
        Self { count_max, pool: OnceLock::new() }
    }

    /// Makes a queue of a device.
    pub fn queue(
        &self,
        device: &Arc<impl Served + 'static>,
        options: &QueueOptions,
    ) -> ThreadQueue {
        let start = || Arc::new(ServerPool::new(device.clone(), self.count_max));
        self.pool.get_or_init(start).queue(options)
    }

    /// Returns how busy they are.
    pub fn told(&self) -> EngineThreads {
        let none_yet =
            EngineThreads { count_max: self.count_max as u64, ..EngineThreads::default() };
        self.pool.get().map_or(none_yet, |pool| pool.told())
    }
}

/// The threads that are there.
pub(crate) struct ServerPool {
    shared: Arc<Shared>,
    servers_max: usize,
}

impl std::fmt::Debug for ServerPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServerPool(at most {} threads)", self.servers_max)
    }
}

impl ServerPool {
    pub fn new(device: Arc<dyn Served>, servers_max: usize) -> Self {
        let line = Line { jobs: VecDeque::new(), idle: 0, servers: Vec::new(), closing: false };
        let shared = Shared { device, line: Mutex::new(line), wake: Condvar::new() };
        Self { shared: Arc::new(shared), servers_max: servers_max.clamp(1, 1024) }
    }

    pub fn queue(self: &Arc<Self>, options: &QueueOptions) -> ThreadQueue {
        ThreadQueue {
            pool: Arc::clone(self),
            home: Arc::new(Home::default()),
            depth_max: options.depth_max.clamp(1, 4096),
            pushed: Vec::new(),
            submitted: 0,
            buffers: BufferPool::new(options),
        }
    }

    /// Returns how busy the servers are.
    pub fn told(&self) -> EngineThreads {
        let line = self.shared.line.lock();
        // A server that has been woken counts as idle until it takes its job, which waits till then.
        let count = line.servers.len();
        EngineThreads {
            count: count as u64,
            count_max: self.servers_max as u64,
            busy: count.saturating_sub(line.idle) as u64,
            waiting: line.jobs.len() as u64,
            waited: self.shared.device.counters().snapshot().saturated,
        }
    }

    /// Puts jobs in line and sees to it that enough servers are awake.
    fn submit(&self, requests: &mut Vec<Request>, home: &Arc<Home>) -> Result<()> {
        let mut line = self.shared.line.lock();
        self.start_servers(&mut line, requests.len())?;
        if line.idle == 0 {
            self.shared
                .device
                .counters()
                .add(&DeviceCounters { saturated: 1, ..DeviceCounters::default() });
        }
        let awakened = line.idle.min(requests.len());
        // Idle servers take the jobs that are in line, in their order.
        let taken = line.idle.saturating_sub(line.jobs.len()).min(requests.len());
        let since = (taken < requests.len()).then(Instant::now);
        let job = |(at, request)| Job {
            request,
            home: Arc::clone(home),
            since: since.filter(|_| at >= taken),
        };
        line.jobs.extend(requests.drain(..).enumerate().map(job));
        drop(line);
        for _ in 0..awakened {
            self.shared.wake.notify_one();
        }
        Ok(())
    }

    /// Starts servers until there is one for every job, or as many as may be.
    fn start_servers(&self, line: &mut Line, jobs: usize) -> Result<()> {
        let mut missing = (line.jobs.len() + jobs)
            .saturating_sub(line.idle)
            .min(self.servers_max - line.servers.len());
        while missing > 0 {
            let shared = Arc::clone(&self.shared);
            match std::thread::Builder::new()
                .name("bedplate-server".into())
                .spawn(move || serve_jobs(&shared))
            {
                Ok(server) => line.servers.push(server),
                // A pool that is smaller than it might be still serves.
                Err(_) if !line.servers.is_empty() => return Ok(()),
                Err(error) => {
                    return Err(from_io(self.shared.device.name(), Operation::Queue, None, &error));
                }
            }
            line.idle += 1;
            missing -= 1;
        }
        Ok(())
    }
}

/// What a server thread does for as long as it lives. It counts as idle from its start.
fn serve_jobs(shared: &Shared) {
    let mut line = shared.line.lock();
    loop {
        if let Some(job) = line.jobs.pop_front() {
            line.idle -= 1;
            drop(line);
            carry_out(shared, job);
            line = shared.line.lock();
            line.idle += 1;
        } else if line.closing {
            return;
        } else {
            shared.wake.wait(&mut line);
        }
    }
}

fn carry_out(shared: &Shared, job: Job) {
    let waited = job.since.map_or(Duration::ZERO, |since| since.elapsed());
    let mut completion = serve(&*shared.device, job.request);
    completion.waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
    let mut done = job.home.done.lock();
    done.completions.push(completion);
    let enough = done.wanted > 0 && done.completions.len() >= done.wanted;
    drop(done);
    if enough {
        job.home.wake.notify_one();
    }
}

impl Drop for ServerPool {
    fn drop(&mut self) {
        let servers = {
            let mut line = self.shared.line.lock();
            line.closing = true;
            std::mem::take(&mut line.servers)
        };
        self.shared.wake.notify_all();
        for server in servers {
            // A server that panicked has reported it; the others must still end before the device
            // closes.
            let _ = server.join();
        }
    }
}

/// One thread's queue to the servers of a device.
pub(crate) struct ThreadQueue {
    pool: Arc<ServerPool>,
    home: Arc<Home>,
    depth_max: usize,
    pushed: Vec<Request>,
    /// Submitted and not handed back.
    submitted: usize,
    buffers: BufferPool,
}

impl ThreadQueue {
    /// Waits until `min` completions are there and hands all of them out.
    fn collect(&mut self, min: usize, out: &mut Vec<Completion>) -> usize {
        let mut done = self.home.done.lock();
        while done.completions.len() < min {
            done.wanted = min;
            self.home.wake.wait(&mut done);
        }
        done.wanted = 0;
        let count = done.completions.len();
        debug_assert!(
            count <= self.submitted,
            "what completes was submitted: {count} of {}",
            self.submitted
        );
        out.append(&mut done.completions);
        self.submitted -= count;
        count
    }
}

impl DeviceQueue for ThreadQueue {
    fn depth_max(&self) -> usize {
        self.depth_max
    }

    fn in_flight(&self) -> usize {
        self.pushed.len() + self.submitted
    }

    fn push(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.depth_max {
            return Err(request);
        }
        self.pushed.push(request);
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        if self.pushed.is_empty() {
            return Ok(());
        }
        let count = self.pushed.len();
        self.pool.submit(&mut self.pushed, &self.home)?;
        self.submitted += count;
        Ok(())
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Completion>) -> Result<usize> {
        self.submit()?;
        Ok(self.collect(min.min(self.submitted), out))
    }

    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.buffers.take()
    }

    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.buffers.give(buf);
    }
}

impl Drop for ThreadQueue {
    fn drop(&mut self) {
        self.collect(self.submitted, &mut Vec::new());
    }
}
