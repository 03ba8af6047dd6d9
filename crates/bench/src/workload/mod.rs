//! The workloads, each written once over [`Target`].

mod cached;
mod checkpoint;
mod copy;
mod database;
mod images;
mod increments;
mod mixed;
mod oltp;
mod oltp_images;
mod page_cache;
mod pipe;
mod redo;
mod redo_log;
mod scan;
mod sequential;
mod server;
mod sio;
mod writers;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use cached::Cached;
pub use checkpoint::Checkpoint;
pub use copy::Copy;
pub use images::Images;
pub use increments::Increments;
pub use mixed::Mixed;
pub use oltp::{DataLayout, Oltp, PageMoves};
pub use pipe::Pipe;
pub use redo::{LogState, Redo};
pub use scan::Scan;
pub use sequential::Sequential;
pub use server::{Engine, Server};
pub use sio::Sio;
pub use writers::Writers;

use crate::Result;
use crate::results::{Case, Measurement};
use crate::target::{Target, TargetInfo};

/// A workload with its options. Every one validates them when a run begins.
#[derive(Debug, Clone)]
pub enum Workload {
    /// One file read in small, middle and large steps, cold.
    Increments(Increments),
    /// Update-heavy transactions over many tables with a redo log.
    Oltp(Oltp),
    /// The same figures from a real database.
    Server(Server),
    /// Threads that each write their own section of one file.
    Writers(Writers),
    /// Reads and writes, random and sequential, by threads and by queues.
    Mixed(Mixed),
    /// Accesses to one file by threads that each lock the record first.
    Sio(Sio),
    /// A file through a pipe, a compressor and another pipe.
    Pipe(Pipe),
    /// Large sequential reads of 1 … N files at once.
    Sequential(Sequential),
    /// Transactions with a second-level cache while the database's own cache shrinks.
    Cached(Cached),
    /// Transactions beside a sequential scan.
    Scan(Scan),
    /// Durable appends.
    Redo(Redo),
    /// A large file copied in small and large requests.
    Copy(Copy),
    /// Overwrites directly after a checkpoint or reflink.
    Checkpoint(Checkpoint),
    /// Checkpoints, clones, reflinks and snapshots: made, deleted and listed.
    Images(Images),
}

impl Workload {
    pub(crate) fn work(&self) -> &dyn Work {
        match self {
            Self::Increments(w) => w,
            Self::Oltp(w) => w,
            Self::Server(w) => w,
            Self::Writers(w) => w,
            Self::Mixed(w) => w,
            Self::Sio(w) => w,
            Self::Pipe(w) => w,
            Self::Sequential(w) => w,
            Self::Cached(w) => w,
            Self::Scan(w) => w,
            Self::Redo(w) => w,
            Self::Copy(w) => w,
            Self::Checkpoint(w) => w,
            Self::Images(w) => w,
        }
    }

    /// Returns the workload's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.work().name()
    }
}

/// How long timed workloads run, and what ends them early.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Env<'a> {
    pub warm_up: Duration,
    pub time: Duration,
    pub stop: &'a AtomicBool,
}

/// What a workload must be able to do.
pub(crate) trait Work: Send + Sync {
    fn name(&self) -> &'static str;
    /// Says in one line what it does.
    fn title(&self) -> &'static str;
    /// The unit of [`Measurement::rate`].
    fn unit(&self) -> &'static str;
    /// The options, for the record.
    fn options(&self) -> BTreeMap<String, String>;
    /// Checks the options.
    fn validate(&self) -> Result<()>;
    fn cases(&self) -> Vec<Case>;
    /// Returns how many bytes of files a target must hold.
    fn space_bytes(&self) -> u64;
    /// Says why a target cannot serve a case; `None` when it can.
    fn refuses(&self, _case: usize, _target: &TargetInfo) -> Option<String> {
        None
    }
    /// Says whether device operations are to be counted one by one, in a pass of its own.
    fn counts_requests(&self) -> bool {
        false
    }
    /// Makes the files. Called once for each target.
    fn prepare(&self, target: &dyn Target) -> Result<()>;
    /// Measures one case. Nothing is open before and nothing after.
    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement>;
    /// Removes the files.
    fn clean(&self, target: &dyn Target) -> Result<()>;
}

/// Writes a list of numbers as options show it.
fn list<T: ToString>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// How often the timeline of a measurement of this length is sampled.
fn sampled(time: Duration) -> Duration {
    (time / 20).max(Duration::from_millis(50))
}

/// Writes a list of sizes as options show it.
fn sizes(values: &[u64]) -> String {
    values.iter().map(|&v| bedplate::format_size(v)).collect::<Vec<_>>().join(",")
}

/// Scales a random 32-bit number to `0..n` without a division (Lemire); `n` is far below 2^32.
fn scale(random: u64, n: u64) -> u64 {
    ((random & 0xffff_ffff) * n) >> 32
}
