//! The thread of a connection or queue for what blocks: flushes, changes of the allocation, and what a queue
//! does not take.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use bedplate_block::AlignedBuf;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::{Disk, Result, Run, Zeroing};

/// What is to be done.
#[derive(Debug)]
pub enum Work {
    Read(AlignedBuf),
    Write(AlignedBuf),
    /// Makes the request's range durable.
    SyncRange,
    Sync,
    Trim,
    Zero(Zeroing),
    Status {
        limit: usize,
    },
}

impl Work {
    /// Returns the buffer of work that is not done.
    pub fn into_buf(self) -> Option<AlignedBuf> {
        match self {
            Self::Read(buf) | Self::Write(buf) => Some(buf),
            Self::SyncRange | Self::Sync | Self::Trim | Self::Zero(_) | Self::Status { .. } => None,
        }
    }
}

/// One piece of work, on a range.
#[derive(Debug)]
pub struct Job {
    pub token: u64,
    pub offset: u64,
    pub len: u64,
    pub work: Work,
}

/// What came of one.
#[derive(Debug)]
pub struct Outcome {
    pub token: u64,
    pub result: Result<()>,
    pub buf: Option<AlignedBuf>,
    pub runs: Vec<Run>,
}

/// The thread. Dropped, it has done all that it was given.
#[derive(Debug)]
pub struct Lane {
    jobs: Option<Sender<Job>>,
    outcomes: Receiver<Outcome>,
    /// Readable when there are outcomes.
    event: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    pub fn start(disk: &Arc<dyn Disk>, name: &str) -> io::Result<Self> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let ((jobs, taken), (told, outcomes)) = (channel(), channel());
        let (disk, told_of) = (Arc::clone(disk), Arc::clone(&event));
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || run(&*disk, &taken, &told, &told_of))?;
        Ok(Self { jobs: Some(jobs), outcomes, event, thread: Some(thread) })
    }

    /// Hands a piece of work over.
    pub fn push(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("only the drop takes the sender");
        jobs.send(job).expect("the thread ends only when it gets no more work");
    }

    /// Waits until something is done that was given and not taken.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&self) -> io::Result<()> {
        let mut events = [PollFd::new(&*self.event, PollFlags::IN)];
        match poll(&mut events, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what is done.
    pub fn take(&self) -> Vec<Outcome> {
        let mut count = [0; 8];
        // Nothing to read: nothing was told since the last time.
        let _empty = rustix::io::read(&*self.event, &mut count);
        self.outcomes.try_iter().collect()
    }
}

impl AsFd for Lane {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.jobs = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a thread that waits for a disk had panicked");
        }
    }
}

fn run(disk: &dyn Disk, jobs: &Receiver<Job>, told: &Sender<Outcome>, event: &OwnedFd) {
    while let Ok(first) = jobs.recv() {
        let mut batch = vec![first];
        batch.extend(jobs.try_iter());
        let tell = |outcome| {
            // It is not heard where the connection has ended.
            let _heard = told.send(outcome);
            let _woken = rustix::io::write(event, &1_u64.to_ne_bytes());
        };
        sync_together(disk, &mut batch, &tell);
        batch.into_iter().for_each(|job| tell(carry_out(disk, job)));
    }
}

/// Answers several waiting flushes with one: each covers what was answered before it was asked for,
/// and so does one that begins now.
fn sync_together(disk: &dyn Disk, batch: &mut Vec<Job>, tell: &impl Fn(Outcome)) {
    let is_sync = |job: &Job| matches!(job.work, Work::Sync | Work::SyncRange);
    if batch.iter().filter(|job| is_sync(job)).count() < 2 {
        return;
    }
    let failure = disk.sync().err().map(|error| Arc::new(error.to_string()));
    debug_assert!(
        batch.iter().any(|job| matches!(job.work, Work::Sync | Work::SyncRange)),
        "a sync was made because something asked for it"
    );
    for job in batch.extract_if(.., |job| is_sync(job)) {
        let result = match &failure {
            None => Ok(()),
            Some(text) => Err(crate::Error::Sync(Arc::clone(text))),
        };
        tell(Outcome { token: job.token, result, buf: None, runs: Vec::new() });
    }
}

fn carry_out(disk: &dyn Disk, job: Job) -> Outcome {
    let Job { token, offset, len, work } = job;
    let (mut kept, mut runs) = (None, Vec::new());
    let result = match work {
        Work::Read(mut buf) => {
            let result = disk.read_at(&mut buf, offset);
            kept = Some(buf);
            result
        }
        Work::Write(buf) => {
            let result = disk.write_at(&buf, offset);
            kept = Some(buf);
            result
        }
        Work::Sync => disk.sync(),
        Work::SyncRange => disk.sync_range(offset, len),
        Work::Trim => disk.trim(offset, len),
        Work::Zero(zeroing) => disk.zero(offset, len, zeroing),
        Work::Status { limit } => disk.runs(offset, len, limit).map(|found| runs = found),
    };
    Outcome { token, result, buf: kept, runs }
}
