//! What a way does when it is open: write and read the areas, and be measured.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Areas, Way};
use crate::Result;
use crate::results::{Case, Measurement};
use crate::target::{Target, TargetInfo};
use crate::workload::{Env, Mixed, Work};

/// What submits the operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Submission {
    /// So many threads with synchronous calls.
    Threads(usize),
    /// One thread with so many operations in flight.
    Queue(usize),
}

/// One case: reads or writes of one size, at random places of the measured part of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Load {
    /// The measured part, in bytes.
    pub size_bytes: u64,
    /// What an operation moves, in bytes.
    pub block_bytes: u64,
    /// Whether it reads.
    pub is_read: bool,
    pub submission: Submission,
}

impl Load {
    /// Returns the workload that has this case alone.
    pub fn mixed(&self) -> Mixed {
        let (threads, depths) = match self.submission {
            Submission::Threads(threads) => (vec![threads], Vec::new()),
            Submission::Queue(depth) => (Vec::new(), vec![depth]),
        };
        Mixed {
            size_bytes: self.size_bytes,
            block_bytes: vec![self.block_bytes],
            reads_percent: vec![if self.is_read { 100 } else { 0 }],
            random_percent: vec![100],
            threads,
            depths,
            queue_threads: 1,
            locking: false,
            latencies: Vec::new(),
        }
    }

    /// Returns how tables call it. Each is a figure of its own: ways are compared, not depths.
    pub fn case(&self) -> Case {
        let case = self.mixed().cases().remove(0);
        Case { curve: case.name.clone(), ..case }
    }

    /// Says why a target cannot serve it.
    pub fn refused_by(&self, way: Way, info: &TargetInfo) -> Option<String> {
        match (way, self.submission) {
            (Way::Lease, Submission::Queue(_)) => {
                Some("the program that is measured makes synchronous calls".into())
            }
            _ => self.mixed().refuses(0, info),
        }
    }
}

/// Measures a load on a target of this process.
pub(super) fn measured(load: &Load, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
    load.mixed().run(0, target, env)
}

/// A way that is open.
pub(super) trait Client {
    /// Writes the area of a way and makes it durable, as the way's own rules ask for.
    fn write(&self, areas: &Areas, way: Way) -> Result<()>;
    /// Reads the areas of the ways with these numbers, compares, and returns how many are as they
    /// were written; fails at the first that is not.
    fn check(&self, areas: &Areas, ways: &[usize]) -> Result<usize>;
    /// Measures a load; afterwards nothing waits to be written.
    fn measure(&self, load: &Load, env: &Env<'_>) -> Result<Measurement>;
}

/// Returns all cases: each submission reading, then each writing.
pub(super) fn loads(
    size_bytes: u64,
    block_bytes: u64,
    threads: &[usize],
    depths: &[usize],
) -> Vec<Load> {
    let threads = threads.iter().map(|&threads| Submission::Threads(threads));
    let all: Vec<Submission> =
        threads.chain(depths.iter().map(|&depth| Submission::Queue(depth))).collect();
    let load = |is_read| {
        move |submission: &Submission| Load {
            size_bytes,
            block_bytes,
            is_read,
            submission: *submission,
        }
    };
    all.iter().map(load(true)).chain(all.iter().map(load(false))).collect()
}

/// Returns the options of a run, for the record.
pub(super) fn options(
    size_bytes: u64,
    block_bytes: u64,
    threads: &[usize],
    depths: &[usize],
    time: Duration,
) -> BTreeMap<String, String> {
    let list =
        |numbers: &[usize]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    BTreeMap::from([
        ("size".into(), bedplate::format_size(size_bytes)),
        ("block".into(), bedplate::format_size(block_bytes)),
        ("threads".into(), list(threads)),
        ("depth".into(), list(depths)),
        ("time".into(), bedplate::format_duration(time)),
    ])
}
