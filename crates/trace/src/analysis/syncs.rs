//! Syncs of a file, and what each waited for.

use serde::Serialize;

use crate::slot::Call;

/// Syncs of one file.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Syncs {
    /// Calls that succeeded.
    pub calls: u64,
    /// The time they took together, in nanoseconds.
    pub took_ns: u64,
    /// Half of them took no longer, in nanoseconds.
    pub took_ns_p50: u64,
    /// 99 of 100 took no longer, in nanoseconds.
    pub took_ns_p99: u64,
    /// The longest, in nanoseconds.
    pub took_ns_max: u64,
    /// Bytes that were written to the file before them and after the sync before.
    pub waited_bytes: u64,
    /// Writes of those.
    pub waited_writes: u64,
    /// Syncs before which nothing was written.
    pub idle: u64,
    #[serde(skip)]
    took: Vec<u64>,
}

/// One sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SyncWait {
    /// Which of the files.
    pub file: u32,
    /// The call.
    pub call: Call,
    /// When it began.
    pub begin_ns: u64,
    /// How long it took.
    pub took_ns: u64,
    /// Writes to the file since the sync before.
    pub writes: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Syncs {
    pub(super) fn add(&mut self, wait: &SyncWait) {
        self.calls += 1;
        self.took_ns = self.took_ns.saturating_add(wait.took_ns);
        self.took_ns_max = self.took_ns_max.max(wait.took_ns);
        self.waited_bytes = self.waited_bytes.saturating_add(wait.bytes);
        self.waited_writes += wait.writes;
        self.idle += u64::from(wait.writes == 0);
        self.took.push(wait.took_ns);
    }

    pub(super) fn finish(&mut self) {
        self.took.sort_unstable();
        let at = |part: f64| {
            let place = (self.took.len() as f64 * part) as usize;
            self.took.get(place.min(self.took.len().saturating_sub(1))).copied().unwrap_or(0)
        };
        (self.took_ns_p50, self.took_ns_p99) = (at(0.5), at(0.99));
        self.took = Vec::new();
    }
}
