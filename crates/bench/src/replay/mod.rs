//! A trace, made again on a target: the same calls by as many threads, true to time or one behind
//! the other.

pub(crate) mod plan;
pub(crate) mod play;

use std::sync::atomic::{AtomicBool, AtomicU64};

use bedplate_trace::Trace;
use serde::Serialize;

use crate::measure::{DeviceOps, Latencies, LatencySummary};
use crate::target::{FileSpec, FileState, Target, Targets};
use crate::{Error, Result};
pub use plan::LeftOut;
use plan::{Plan, PlannedFile};
use play::{Opened, Played};

/// When calls are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// As fast as the target can.
    Fast,
    /// When the trace had them, or so many times as fast.
    Timed {
        /// How many times as fast.
        speed: f64,
    },
    /// As long after the end of the thread's call before as in the trace: what the thread did
    /// between two calls takes the time that it took.
    Thinking,
}

/// How a trace is replayed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplayOptions {
    /// When calls are made.
    pub pace: Pace,
    /// What the making of the files left in caches stays there.
    pub is_warm: bool,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { pace: Pace::Fast, is_warm: false }
    }
}

/// Calls of one kind, in the replay and in the trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplayedCalls {
    /// Calls that were made.
    pub calls: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// How long they took.
    pub latency: Option<LatencySummary>,
    /// Those calls in the trace.
    pub traced_calls: u64,
    /// How long they took in the trace.
    pub traced_latency: Option<LatencySummary>,
}

/// What came of a replay on one target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replayed {
    /// The target's label.
    pub target: String,
    /// Threads.
    pub threads: u64,
    /// Files.
    pub files: u64,
    /// From the first call to the last.
    pub seconds: f64,
    /// The same in the trace.
    pub traced_seconds: f64,
    /// Reads, writes and syncs a second.
    pub calls_per_second: f64,
    /// The same in the trace.
    pub traced_calls_per_second: f64,
    /// Reads.
    pub reads: ReplayedCalls,
    /// Writes.
    pub writes: ReplayedCalls,
    /// Syncs.
    pub syncs: ReplayedCalls,
    /// Calls that began more than a millisecond after their time.
    pub late: u64,
    /// The longest of these delays, in milliseconds.
    pub late_ms_max: f64,
    /// Calls that were made of the whole blocks around them, because the target takes no others.
    pub rounded: u64,
    /// Calls that were not made.
    pub left_out: LeftOut,
    /// What reached the target's devices, all that was dirty at the end with it.
    pub device: Option<DeviceOps>,
    /// The device that most of the traced bytes lay on; nothing where the kernel counts none.
    pub traced_device_name: Option<String>,
    /// What reached that device while the trace was recorded, from all programs.
    pub traced_device: Option<DeviceOps>,
    /// The trace was settled, so that both counts are of the same work.
    pub traced_settled: bool,
}

/// Replays a trace on each target in turn.
///
/// # Errors
/// `Usage` for a trace that cannot be replayed, and what the targets say.
pub fn replay(trace: &Trace, targets: &Targets, options: &ReplayOptions) -> Result<Vec<Replayed>> {
    if let Pace::Timed { speed } = options.pace
        && !(speed.is_finite() && speed > 0.0)
    {
        return Err(Error::usage("a speed is a number greater than 0"));
    }
    let plan = plan::plan(trace)?;
    targets.0.iter().map(|target| on(&**target, trace, &plan, options)).collect()
}

fn on(
    target: &dyn Target,
    trace: &Trace,
    plan: &Plan,
    options: &ReplayOptions,
) -> Result<Replayed> {
    let needed = plan.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.end_bytes));
    let has = target.capacity_bytes()?;
    if needed > has {
        let (has, needed) = (bedplate::format_size(has), bedplate::format_size(needed));
        let label = &target.info().label;
        return Err(Error::target(format!(
            "{label}: it holds {has}, and the files of the trace are {needed}: give a larger target"
        )));
    }
    plan.files.iter().try_for_each(|file| target.create(&spec(target, file)))?;
    let played = played(target, plan, options);
    // Removed whatever came of it; the first failure counts.
    let removed = plan.files.iter().try_for_each(|file| target.remove(&file.name));
    let (played, device) = played?;
    removed?;
    Ok(told(target, trace, plan, &played, device))
}

/// What a file is before the first call: as long as it was, or as long as it will be where it
/// cannot grow.
pub(crate) fn spec(target: &dyn Target, file: &PlannedFile) -> FileSpec {
    let name = file.name.clone();
    match (file.before_bytes, target.files_grow()) {
        (0, _) => FileSpec { name, size_bytes: file.end_bytes, state: FileState::Empty },
        (before, true) => FileSpec::written(name, before),
        (_, false) => FileSpec::written(name, file.end_bytes),
    }
}

fn played(
    target: &dyn Target,
    plan: &Plan,
    options: &ReplayOptions,
) -> Result<(Played, Option<DeviceOps>)> {
    if options.is_warm { target.quiesce() } else { target.make_cold() }?;
    let open = |file: &PlannedFile| {
        let written = AtomicU64::new(file.before_bytes);
        Ok(Opened { file: target.open(&file.name)?, written })
    };
    let files = plan.files.iter().map(open).collect::<Result<Vec<_>>>()?;
    let before = target.device_ops();
    let played = play::play(plan, &files, options, &AtomicBool::new(false))?;
    drop(files);
    target.quiesce()?;
    let device = target.device_ops().zip(before).map(|(after, before)| after.since(&before));
    Ok((played, device))
}

fn told(
    target: &dyn Target,
    trace: &Trace,
    plan: &Plan,
    played: &Played,
    device: Option<DeviceOps>,
) -> Replayed {
    let seconds = played.took.as_secs_f64();
    let traced = |kinds: &[plan::Kind]| {
        let mut latencies = Latencies::new();
        let ops = plan.ops().filter(|op| kinds.contains(&op.kind));
        ops.for_each(|op| latencies.record(std::time::Duration::from_nanos(op.took_ns)));
        latencies.summary()
    };
    let calls = |latencies: &Latencies, bytes: u64, kinds: &[plan::Kind]| {
        let (latency, traced_latency) = (latencies.summary(), traced(kinds));
        let count = |summary: &Option<LatencySummary>| summary.as_ref().map_or(0, |s| s.count);
        ReplayedCalls {
            calls: count(&latency),
            bytes,
            traced_calls: count(&traced_latency),
            latency,
            traced_latency,
        }
    };
    use plan::Kind::{DurableWrite, Read, Sync, SyncData, Write};
    let reads = calls(&played.reads, played.read_bytes, &[Read]);
    let writes = calls(&played.writes, played.written_bytes, &[Write, DurableWrite]);
    let syncs = calls(&played.syncs, 0, &[SyncData, Sync]);
    let made = reads.calls + writes.calls + syncs.calls;
    let traced_made = reads.traced_calls + writes.traced_calls + syncs.traced_calls;
    let traced_seconds = traced_seconds(plan);
    let (traced_device_name, traced_device) = traced_device(trace, plan).unzip();
    Replayed {
        target: target.info().label.clone(),
        threads: plan.threads.len() as u64,
        files: plan.files.len() as u64,
        seconds,
        traced_seconds,
        calls_per_second: made as f64 / seconds.max(1e-9),
        traced_calls_per_second: traced_made as f64 / traced_seconds.max(1e-9),
        reads,
        writes,
        syncs,
        late: played.late,
        late_ms_max: played.late_max.as_secs_f64() * 1e3,
        rounded: played.rounded,
        left_out: LeftOut { early: played.early, ..plan.left_out },
        device,
        traced_device_name,
        traced_device,
        traced_settled: trace.about.settled,
    }
}

/// From the first call to the end of the last.
fn traced_seconds(plan: &Plan) -> f64 {
    let first = plan.ops().map(|op| op.at_ns).min().unwrap_or(0);
    let last = plan.ops().map(|op| op.at_ns.saturating_add(op.took_ns)).max().unwrap_or(0);
    last.saturating_sub(first) as f64 / 1e9
}

/// What the device did that most of the traced bytes lay on: a program reads and writes some files
/// of the system's, too.
fn traced_device(trace: &Trace, plan: &Plan) -> Option<(String, DeviceOps)> {
    let bytes_on = |device: u64| -> u64 {
        plan.ops().filter(|op| plan.files[op.file].device == device).map(|op| op.len).sum()
    };
    let used = trace.about.devices.iter().map(|device| (bytes_on(device.device), device));
    let (_, device) = used.filter(|(bytes, _)| *bytes > 0).max_by_key(|(bytes, _)| *bytes)?;
    let ops = DeviceOps {
        reads: device.reads,
        read_bytes: device.read_bytes,
        writes: device.writes,
        written_bytes: device.written_bytes,
        flushes: device.flushes,
    };
    Some((device.name.clone(), ops))
}

#[cfg(test)]
mod tests;
