//! What is told of leases.

use std::fmt;
use std::sync::atomic::Ordering;

use bedplate_lease::{Counters, Fallback};
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
            "process {} ({}) does not end {does} {what} under its lease; what needs the file alone waits until the process goes on or ends",
            self.pid, self.process
        )
    }
}

fn told(counters: &Counters) -> Vec<(String, u64)> {
    let all = Fallback::ALL.iter().zip(counters.fallbacks);
    all.filter(|(_, count)| *count > 0)
        .map(|(fallback, count)| (fallback.name().to_owned(), count))
        .collect()
}

impl Leases {
    pub(crate) fn report(&self, files: Vec<LeasedInode>) -> LeaseReport {
        let clients = self.clients();
        let clients = clients.iter().map(|client| {
            let counters = client.counters();
            LeasedBy {
                pid: client.pid,
                uid: client.uid,
                process: client::describe(client.pid),
                reads: counters.reads,
                writes: counters.writes,
                syncs: counters.syncs,
                fallbacks: told(&counters),
            }
        });
        LeaseReport {
            clients: clients.collect(),
            files,
            waits: self.waits.lock().clone(),
            revocations: self.revocations.load(Ordering::Relaxed),
            long_waits: self.long_waits.load(Ordering::Relaxed),
        }
    }
}
