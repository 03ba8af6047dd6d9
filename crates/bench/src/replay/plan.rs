//! From a trace to what each thread of a replay does: a pure function.
//!
//! A thread of the trace is a lane, and one that had several requests under way as many lanes as
//! those were. Lanes that followed each other in time share a thread of the replay.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use bedplate_trace::{Call, Event, Trace, how};
use serde::Serialize;

use crate::{Error, Result};

/// Threads of a replay, at the most.
const THREADS_MAX: usize = 1024;

/// What one call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    /// A write that is durable when it returns.
    DurableWrite,
    /// Has the kernel begin to write a part.
    Begin,
    SyncData,
    Sync,
}

/// A call of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op {
    /// When it began, from the first call of the trace.
    pub at_ns: u64,
    pub took_ns: u64,
    pub kind: Kind,
    /// Which of the plan's files.
    pub file: usize,
    pub offset: u64,
    pub len: u64,
}

/// A file that the replay needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedFile {
    /// Which of the trace's files.
    pub number: u32,
    pub name: String,
    pub device: u64,
    /// Bytes that are there before.
    pub before_bytes: u64,
    /// Where the last call ends.
    pub end_bytes: u64,
}

/// Calls of the trace that a replay does not make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Calls that failed, or whose end was not collected.
    pub failed: u64,
    /// Reads and writes that moved nothing.
    pub empty: u64,
    /// Calls that set a file's size or space, and copies between files.
    pub sized: u64,
    /// Reads that came before what they read was written: only where threads do not keep to time.
    pub early: u64,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub files: Vec<PlannedFile>,
    pub threads: Vec<Vec<Op>>,
    pub left_out: LeftOut,
}

impl Plan {
    /// Returns all calls.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &Op> {
        self.threads.iter().flatten()
    }
}

/// Plans the replay of a trace.
///
/// # Errors
/// `Usage`, of a trace without a call to be made or with too many at once.
pub(crate) fn plan(trace: &Trace) -> Result<Plan> {
    let durable = durable_files(trace);
    let mut plan = Plan::default();
    let mut place_of: HashMap<u32, usize> = HashMap::new();
    let mut lanes = Lanes::default();
    for event in &trace.events {
        let Some(number) = event.file else { continue };
        let Some(file) = trace.files.get(number as usize).filter(|file| file.inode != 0) else {
            continue;
        };
        let Some(kind) = kind_of(event, &durable, &mut plan.left_out) else { continue };
        let place = *place_of.entry(number).or_insert_with(|| {
            let before_bytes = if file.is_device { 0 } else { file.size_bytes };
            plan.files.push(PlannedFile {
                number,
                name: format!("traced-{number}"),
                device: file.device,
                before_bytes,
                end_bytes: before_bytes,
            });
            plan.files.len() - 1
        });
        let len = if event.call == Call::RangeSync { event.asked } else { event.moved };
        let Some(end) = event.offset.checked_add(len) else { continue };
        if event.call.is_move() {
            plan.files[place].end_bytes = plan.files[place].end_bytes.max(end);
        }
        let (at_ns, took_ns, offset) = (event.begin_ns, event.took_ns, event.offset);
        lanes.add(event, Op { at_ns, took_ns, kind, file: place, offset, len });
    }
    devices_are_whole(trace, &place_of, &mut plan.files);
    plan.threads = lanes.into_threads();
    if plan.threads.is_empty() {
        return Err(Error::usage(
            "the trace has no read, write or sync of a file to be made again",
        ));
    }
    if plan.threads.len() > THREADS_MAX {
        return Err(Error::usage(format!(
            "the trace has {} calls under way at once, and a replay has at most {THREADS_MAX} \
             threads",
            plan.threads.len()
        )));
    }
    Ok(plan)
}

/// A block device has all of its bytes from the start, as far as the trace goes.
fn devices_are_whole(trace: &Trace, place_of: &HashMap<u32, usize>, files: &mut [PlannedFile]) {
    for (number, place) in place_of {
        if trace.files[*number as usize].is_device {
            files[*place].before_bytes = files[*place].end_bytes;
        }
    }
}

fn kind_of(event: &Event, durable: &[bool], left_out: &mut LeftOut) -> Option<Kind> {
    let is_durable = event.how & how::DURABLE != 0
        || event.file.and_then(|file| durable.get(file as usize)) == Some(&true);
    let kind = match event.call {
        Call::Read => Kind::Read,
        Call::Write if is_durable => Kind::DurableWrite,
        Call::Write => Kind::Write,
        Call::DataSync => Kind::SyncData,
        Call::Sync | Call::FsSync => Kind::Sync,
        Call::RangeSync => Kind::Begin,
        Call::Truncate | Call::Allocate | Call::Copy => {
            left_out.sized += 1;
            return None;
        }
        _ => return None,
    };
    if !event.is_done() {
        left_out.failed += 1;
        return None;
    }
    if event.call.is_move() && event.moved == 0 {
        left_out.empty += 1;
        return None;
    }
    Some(kind)
}

/// Files of which each open asked for durable writes.
fn durable_files(trace: &Trace) -> Vec<bool> {
    const O_DSYNC: u32 = 0o10_000;
    let mut opened = vec![(false, true); trace.files.len()];
    let opens = trace.events.iter().filter(|event| event.call == Call::Open && event.errno == 0);
    for event in opens {
        if let Some(file) = event.file.and_then(|file| opened.get_mut(file as usize)) {
            *file = (true, file.1 && event.flags & O_DSYNC != 0);
        }
    }
    opened.into_iter().map(|(is_open, is_durable)| is_open && is_durable).collect()
}

/// Calls one after the other.
struct Lane {
    first_ns: u64,
    end_ns: u64,
    ops: Vec<Op>,
}

#[derive(Default)]
struct Lanes {
    /// By process and thread.
    all: BTreeMap<(u32, u32), Vec<Lane>>,
}

impl Lanes {
    fn add(&mut self, event: &Event, op: Op) {
        let lanes = self.all.entry((event.process, event.thread)).or_default();
        let is_free = |lane: &&mut Lane| lane.end_ns <= op.at_ns;
        let end_ns = event.end_ns();
        match lanes.iter_mut().find(is_free) {
            Some(lane) => {
                lane.end_ns = end_ns;
                lane.ops.push(op);
            }
            None => lanes.push(Lane { first_ns: op.at_ns, end_ns, ops: vec![op] }),
        }
    }

    /// Gives each lane to a thread whose last call had ended when it began.
    fn into_threads(self) -> Vec<Vec<Op>> {
        let mut lanes: Vec<Lane> = self.all.into_values().flatten().collect();
        lanes.sort_by_key(|lane| lane.first_ns);
        let mut threads: Vec<Vec<Op>> = Vec::new();
        let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        for mut lane in lanes {
            let free = ends.peek().filter(|end| end.0.0 <= lane.first_ns).map(|end| end.0.1);
            let thread = match free {
                Some(thread) => {
                    ends.pop();
                    threads[thread].append(&mut lane.ops);
                    thread
                }
                None => {
                    threads.push(lane.ops);
                    threads.len() - 1
                }
            };
            ends.push(Reverse((lane.end_ns, thread)));
        }
        threads
    }
}
