//! What is told of leases.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::Ordering;

use bedplate_lease::{Counters, Fallback, Reason};
use serde::{Deserialize, Serialize};

use super::{Leases, client};
use crate::InodeNo;

/// How the leases of a mount stand.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LeaseReport {
    /// The processes that have any.
    pub clients: Vec<LeasedBy>,
    /// The files that are published.
    pub files: Vec<LeasedInode>,
    /// Waits for processes that are under way and take long.
    pub waits: Vec<LeaseWait>,
    /// How often a file was taken back.
    pub revocations: u64,
    /// How often that took long because a process did not go on.
    pub long_waits: u64,
    /// Processes that were ended because they did not go on (`lease-kill=`).
    #[serde(default)]
    pub killed: u64,
    /// How often a file was taken back while asynchronous requests of a process were in flight, and
    /// waited for them.
    #[serde(default)]
    pub request_waits: u64,
    /// How often a process got blocks behind the end of a file, to make it grow by itself.
    #[serde(default)]
    pub tails: u64,
    /// How often a process got a buffer for what it appends to a file that rests on the mount, new or
    /// anew.
    #[serde(default)]
    pub buffers: u64,
    /// What all processes did since the mount, those that have ended too.
    #[serde(default)]
    pub total: LeaseCounts,
    /// Files for which leases were asked and refused, the latest last.
    #[serde(default)]
    pub refused_files: Vec<RefusedInode>,
}

/// What processes did under leases, as they say, and what they did not get.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseCounts {
    /// Reads that went to the device.
    pub reads: u64,
    /// Writes that did.
    pub writes: u64,
    /// Syncs that did.
    pub syncs: u64,
    /// Reads that found all their pages in the cache of the mount.
    #[serde(default)]
    pub hits: u64,
    /// Calls on leased files that went to the mount, by every reason there is.
    pub fallbacks: Vec<(String, u64)>,
    /// Requests that got no lease, by every reason there is.
    pub refused: Vec<(String, u64)>,
}

/// A file for which a lease was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedInode {
    /// Its inode.
    pub inode: InodeNo,
    /// Why it stayed on the mount when a lease was last asked for.
    pub reason: String,
}

/// Files of which the last refusal is kept.
const REFUSED_FILES_MAX: usize = 256;

/// Requests that got no lease.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counts: [u64; Reason::ALL.len()],
    /// The latest last, each file once.
    files: VecDeque<(InodeNo, Reason)>,
}

impl Refusals {
    pub(super) fn note(&mut self, ino: Option<InodeNo>, reason: Reason) {
        if let Some(at) = Reason::ALL.iter().position(|&known| known == reason) {
            self.counts[at] += 1;
        }
        let Some(ino) = ino else { return };
        self.files.retain(|(other, _)| *other != ino);
        if self.files.len() == REFUSED_FILES_MAX {
            self.files.pop_front();
        }
        self.files.push_back((ino, reason));
    }

    fn told(&self) -> (Vec<(String, u64)>, Vec<RefusedInode>) {
        let counts = Reason::ALL.iter().zip(self.counts);
        let files = self.files.iter();
        (
            counts.map(|(reason, count)| (reason.name().to_owned(), count)).collect(),
            files
                .map(|&(inode, reason)| RefusedInode {
                    inode,
                    reason: reason.sentence().to_owned(),
                })
                .collect(),
        )
    }
}

/// A process with leases, and what it did, as it says.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LeasedBy {
    /// The process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its name, and whether it runs.
    pub process: String,
    /// Reads that went to the device.
    pub reads: u64,
    /// Writes that did.
    pub writes: u64,
    /// Syncs that did.
    pub syncs: u64,
    /// Reads that found all their pages in the cache of the mount.
    #[serde(default)]
    pub hits: u64,
    /// Calls on leased files that went to the mount, by reason; those that happened.
    pub fallbacks: Vec<(String, u64)>,
}

/// A published file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LeasedInode {
    /// Its inode.
    pub inode: InodeNo,
    /// Whether it is handed out at this moment.
    pub handed_out: bool,
}

/// A wait for a process that holds a file and does not go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseWait {
    /// The process.
    pub pid: u32,
    /// Its name, and whether it runs.
    pub process: String,
    /// The file; `None`: all of them, at the end of the mount.
    pub inode: Option<InodeNo>,
    /// Whether the process may be writing to it.
    pub writes: bool,
}

impl fmt::Display for LeaseWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let does = if self.writes { "a write of" } else { "a read of" };
        let what = self.inode.map_or("a file".to_owned(), |ino| format!("inode {}", ino.0));
        write!(
            f,
            "process {} ({}) does not end {does} {what} under its lease; what needs the file alone \
             waits until the process goes on or ends",
            self.pid, self.process
        )
    }
}

fn every(counters: &Counters) -> Vec<(String, u64)> {
    let all = Fallback::ALL.iter().zip(counters.fallbacks);
    all.map(|(fallback, count)| (fallback.name().to_owned(), count)).collect()
}

fn told(counters: &Counters) -> Vec<(String, u64)> {
    every(counters).into_iter().filter(|(_, count)| *count > 0).collect()
}

impl Leases {
    pub(crate) fn report(&self, files: Vec<LeasedInode>) -> LeaseReport {
        let (clients, mut sum) = {
            let clients = self.clients.lock();
            (std::sync::Arc::clone(&clients.all), clients.ended)
        };
        let clients = clients.iter().map(|client| {
            let counters = client.counters();
            sum.add(&counters);
            LeasedBy {
                pid: client.pid,
                uid: client.uid,
                process: client::describe(client.pid),
                reads: counters.reads,
                writes: counters.writes,
                syncs: counters.syncs,
                hits: counters.hits,
                fallbacks: told(&counters),
            }
        });
        let clients = clients.collect();
        let (counts, refused_files) = self.refusals.lock().told();
        LeaseReport {
            clients,
            files,
            waits: self.waits.lock().clone(),
            revocations: self.revocations.load(Ordering::Relaxed),
            long_waits: self.long_waits.load(Ordering::Relaxed),
            killed: self.killed.load(Ordering::Relaxed),
            request_waits: self.request_waits.load(Ordering::Relaxed),
            tails: self.tails.load(Ordering::Relaxed),
            buffers: self.buffers.load(Ordering::Relaxed),
            total: LeaseCounts {
                reads: sum.reads,
                writes: sum.writes,
                syncs: sum.syncs,
                hits: sum.hits,
                fallbacks: every(&sum),
                refused: counts,
            },
            refused_files,
        }
    }
}
