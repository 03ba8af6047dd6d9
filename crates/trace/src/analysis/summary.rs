//! The summary: one row a file, failures, syncs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use serde::Serialize;

use super::moves::{Moves, Streams};
use super::syncs::{SyncWait, Syncs};
use crate::slot::{Call, how};
use crate::trace::{About, Event, Process, Trace, errno_name};

/// What a trace says.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    /// Circumstances.
    pub about: About,
    /// The processes.
    pub processes: Vec<Process>,
    /// The files, those with the most bytes first.
    pub files: Vec<FileSummary>,
    /// Calls that failed, those that failed most often first.
    pub failures: Vec<Failures>,
    /// Calls in all.
    pub calls: u64,
    /// Files that were mapped: what is read and written so is not seen.
    pub maps: u64,
    /// Rings of io_uring that were set up: what goes through them is not seen.
    pub rings: u64,
    /// Requests whose end was not collected.
    pub unfinished: u64,
    /// The longest syncs.
    pub longest_syncs: Vec<SyncWait>,
}

/// One file.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FileSummary {
    /// Which of the trace's files.
    pub number: u32,
    /// Its path.
    pub path: String,
    /// The device's number.
    pub device: u64,
    /// Its size when it was first seen.
    pub size_bytes: u64,
    /// Opens that succeeded.
    pub opens: u64,
    /// Flags that it was opened with.
    pub flags: Vec<&'static str>,
    /// Reads.
    pub reads: Moves,
    /// Writes.
    pub writes: Moves,
    /// Syncs.
    pub syncs: Syncs,
    /// Calls under way at a time, at the most.
    pub depth_max: u64,
    /// The same when one began, on average.
    pub depth_mean: f64,
    /// Times that it was mapped.
    pub maps: u64,
    /// Calls that set its size or its space.
    pub sized: u64,
    /// Calls that failed.
    pub failed: u64,
}

/// Calls that failed alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failures {
    /// The call.
    pub call: &'static str,
    /// The error's name.
    pub errno: String,
    /// The file; empty of a call without one.
    pub path: String,
    /// How often.
    pub count: u64,
    /// Flags of the last open that failed so.
    pub flags: Vec<&'static str>,
}

/// Flags of an open that say how data moves, on processors where they are alike.
const FLAGS: [(u32, &str); 8] = [
    (libc_flags::O_DIRECT, "O_DIRECT"),
    (libc_flags::O_SYNC, "O_SYNC"),
    (libc_flags::O_DSYNC, "O_DSYNC"),
    (libc_flags::O_APPEND, "O_APPEND"),
    (libc_flags::O_CREAT, "O_CREAT"),
    (libc_flags::O_TRUNC, "O_TRUNC"),
    (libc_flags::O_EXCL, "O_EXCL"),
    (libc_flags::O_TMPFILE, "O_TMPFILE"),
];

/// Of Linux; `O_DIRECT` differs between processors.
pub(crate) mod libc_flags {
    #[cfg(target_arch = "aarch64")]
    pub const O_DIRECT: u32 = 0o200_000;
    #[cfg(not(target_arch = "aarch64"))]
    pub const O_DIRECT: u32 = 0o40_000;
    pub const O_SYNC: u32 = 0o4_010_000;
    pub const O_DSYNC: u32 = 0o10_000;
    pub const O_APPEND: u32 = 0o2_000;
    pub const O_CREAT: u32 = 0o100;
    pub const O_TRUNC: u32 = 0o1_000;
    pub const O_EXCL: u32 = 0o200;
    pub const O_TMPFILE: u32 = 0o20_000_000;
}

fn flag_names(flags: u32) -> Vec<&'static str> {
    let is_sync = flags & libc_flags::O_SYNC == libc_flags::O_SYNC;
    FLAGS
        .iter()
        .filter(|(bits, name)| flags & bits == *bits && !(is_sync && *name == "O_DSYNC"))
        .map(|(_, name)| *name)
        .collect()
}

/// Syncs that are told one by one.
const LONGEST: usize = 40;

/// What is followed of a file from call to call.
#[derive(Default)]
struct Following {
    summary: FileSummary,
    reads: Streams,
    writes: Streams,
    flags: u32,
    /// Writes since the last sync, and their bytes.
    unsynced: (u64, u64),
    /// Ends of calls under way.
    under_way: BinaryHeap<Reverse<u64>>,
    begun: u64,
    depths: u64,
}

impl Following {
    fn add(&mut self, event: &Event, file: u32) -> Option<SyncWait> {
        let summary = &mut self.summary;
        if event.errno != 0 {
            summary.failed += 1;
            return None;
        }
        match event.call {
            Call::Open => {
                summary.opens += 1;
                self.flags |= event.flags;
            }
            Call::Read => summary.reads.add(event, &mut self.reads),
            Call::Write => {
                summary.writes.add(event, &mut self.writes);
                self.unsynced.0 += 1;
                self.unsynced.1 = self.unsynced.1.saturating_add(event.moved);
            }
            Call::Map => summary.maps += 1,
            Call::Truncate | Call::Allocate => summary.sized += 1,
            _ => {}
        }
        if event.call.is_move() {
            self.deepen(event);
        }
        event.call.is_sync().then(|| {
            let (writes, bytes) = std::mem::take(&mut self.unsynced);
            let (call, begin_ns, took_ns) = (event.call, event.begin_ns, event.took_ns);
            let wait = SyncWait { file, call, begin_ns, took_ns, writes, bytes };
            self.summary.syncs.add(&wait);
            wait
        })
    }

    /// Counts the calls that are under way when one begins, itself among them.
    fn deepen(&mut self, event: &Event) {
        while self.under_way.peek().is_some_and(|end| end.0 <= event.begin_ns) {
            self.under_way.pop();
        }
        self.under_way.push(Reverse(event.end_ns()));
        let depth = self.under_way.len() as u64;
        self.summary.depth_max = self.summary.depth_max.max(depth);
        self.begun += 1;
        self.depths += depth;
    }

    fn finished(mut self) -> FileSummary {
        self.summary.flags = flag_names(self.flags);
        self.summary.depth_mean =
            if self.begun == 0 { 0.0 } else { self.depths as f64 / self.begun as f64 };
        self.summary.syncs.finish();
        self.summary
    }
}

/// Sums a trace up.
#[must_use]
pub fn summarized(trace: &Trace) -> Summary {
    let mut summary = Summary {
        about: trace.about.clone(),
        processes: trace.processes.clone(),
        calls: trace.events.len() as u64,
        ..Summary::default()
    };
    let mut files: Vec<Following> = (0..).zip(&trace.files).map(following).collect();
    let mut failures: BTreeMap<(Call, u16, Option<u32>), (u64, u32)> = BTreeMap::new();
    for event in &trace.events {
        summary.maps += u64::from(event.call == Call::Map && event.errno == 0);
        summary.rings += u64::from(event.call == Call::Ring && event.errno == 0);
        summary.unfinished += u64::from(event.how & how::UNFINISHED != 0);
        if event.errno != 0 {
            let failed = failures.entry((event.call, event.errno, event.file)).or_default();
            *failed = (failed.0 + 1, event.flags);
        }
        let file = event.file.and_then(|file| Some((file, files.get_mut(file as usize)?)));
        if let Some((number, file)) = file {
            summary.longest_syncs.extend(file.add(event, number));
        }
    }
    let is_used = |file: &FileSummary| file.opens + file.reads.calls + file.writes.calls > 0;
    summary.files = files.into_iter().map(Following::finished).filter(is_used).collect();
    summary
        .files
        .sort_by_key(|file| Reverse((file.reads.bytes + file.writes.bytes, file.syncs.calls)));
    summary.failures = failures.into_iter().map(|(key, told)| failed(trace, key, told)).collect();
    summary.failures.sort_by_key(|failed| Reverse(failed.count));
    summary.longest_syncs.sort_by_key(|wait| Reverse(wait.took_ns));
    summary.longest_syncs.truncate(LONGEST);
    summary
}

fn following((number, file): (u32, &crate::trace::TracedFile)) -> Following {
    let summary = FileSummary {
        number,
        path: file.path.clone(),
        device: file.device,
        size_bytes: file.size_bytes,
        ..FileSummary::default()
    };
    Following { summary, ..Following::default() }
}

fn failed(
    trace: &Trace,
    (call, errno, file): (Call, u16, Option<u32>),
    (count, flags): (u64, u32),
) -> Failures {
    let path = file.and_then(|file| trace.files.get(file as usize));
    Failures {
        call: call.name(),
        errno: errno_name(errno),
        path: path.map_or_else(String::new, |file| file.path.clone()),
        count,
        flags: if call == Call::Open { flag_names(flags) } else { Vec::new() },
    }
}
