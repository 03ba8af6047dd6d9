//! The threads of a replay.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate::AlignedBuf;

use super::plan::{Kind, Op, Plan};
use super::{Pace, ReplayOptions};
use crate::measure::Latencies;
use crate::target::{TargetFile, fill_pattern};
use crate::{Error, Result};

/// The most that one call moves at a time; longer ones are made in pieces.
const PIECE_BYTES: u64 = 4 << 20;
/// A call that begins later than this after its time counts as late.
const LATE: Duration = Duration::from_millis(1);

/// What threads have done.
pub(crate) struct Played {
    pub took: Duration,
    /// Time in calls, of all threads together.
    pub waited: Duration,
    pub reads: Latencies,
    pub writes: Latencies,
    pub syncs: Latencies,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Calls that were made of whole blocks around what the trace has.
    pub rounded: u64,
    pub early: u64,
    pub late: u64,
    pub late_max: Duration,
}

impl Played {
    fn new() -> Self {
        Self {
            took: Duration::ZERO,
            waited: Duration::ZERO,
            reads: Latencies::new(),
            writes: Latencies::new(),
            syncs: Latencies::new(),
            read_bytes: 0,
            written_bytes: 0,
            rounded: 0,
            early: 0,
            late: 0,
            late_max: Duration::ZERO,
        }
    }

    fn merge(&mut self, other: &Self) {
        self.took = self.took.max(other.took);
        self.waited += other.waited;
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.syncs.merge(&other.syncs);
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.rounded += other.rounded;
        self.early += other.early;
        self.late += other.late;
        self.late_max = self.late_max.max(other.late_max);
    }
}

/// An open file, and how much of it is there.
pub(crate) struct Opened {
    pub file: Box<dyn TargetFile>,
    pub written: AtomicU64,
}

/// What all threads share.
struct Stage<'a> {
    files: &'a [Opened],
    options: &'a ReplayOptions,
    /// When the first call was due; set once all threads are there.
    go: OnceLock<Instant>,
    is_over: AtomicBool,
    /// Set from outside: everything is to end.
    stop: &'a AtomicBool,
}

impl Stage<'_> {
    fn is_over(&self) -> bool {
        self.is_over.load(Relaxed) || self.stop.load(Relaxed)
    }

    /// Waits until all threads are there; nothing where one of them is not to come.
    fn started(&self) -> Option<Instant> {
        const TURN: Duration = Duration::from_micros(200);
        while !self.is_over() {
            if let Some(started) = self.go.get() {
                return Some(*started);
            }
            std::thread::sleep(TURN);
        }
        None
    }
}

/// Plays all threads.
///
/// # Errors
/// `Interrupted` when `stop` was set meanwhile, and what the target says.
pub(crate) fn play(
    plan: &Plan,
    files: &[Opened],
    options: &ReplayOptions,
    stop: &AtomicBool,
) -> Result<Played> {
    let (go, is_over) = (OnceLock::new(), AtomicBool::new(false));
    let stage = Stage { files, options, go, is_over, stop };
    let played: Vec<Result<Played>> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for ops in &plan.threads {
            let spawned = std::thread::Builder::new().spawn_scoped(scope, || thread(&stage, ops));
            match spawned {
                Ok(spawned) => threads.push(spawned),
                Err(error) => {
                    stage.is_over.store(true, Relaxed);
                    return vec![Err(Error::io("the system", "start a thread", error))];
                }
            }
        }
        let _first = stage.go.set(Instant::now());
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause)))
            .collect()
    });
    let mut sum = Played::new();
    for one in played {
        sum.merge(&one?);
    }
    if stop.load(Relaxed) { Err(Error::interrupted()) } else { Ok(sum) }
}

fn thread(stage: &Stage<'_>, ops: &[Op]) -> Result<Played> {
    let longest = ops.iter().map(|op| op.len).max().unwrap_or(0).min(PIECE_BYTES);
    // Room for the blocks around.
    let mut buffer = AlignedBuf::zeroed(longest as usize + 2 * 4096);
    fill_pattern(&mut buffer, ops.len() as u64);
    let mut played = Played::new();
    let Some(started) = stage.started() else { return Ok(played) };
    // When the call before ended, in the trace and here.
    let (mut traced_end_ns, mut ended) = (0, started);
    for op in ops {
        if stage.is_over() {
            break;
        }
        match stage.options.pace {
            Pace::Fast => {}
            Pace::Timed { speed } => keep_to_time(&mut played, started, op, speed),
            Pace::Thinking => think(stage, ended, op.at_ns.saturating_sub(traced_end_ns)),
        }
        let began = Instant::now();
        let done = one(stage, op, &mut buffer, &mut played);
        ended = Instant::now();
        played.waited += ended - began;
        traced_end_ns = op.at_ns.saturating_add(op.took_ns);
        if done.is_err() {
            stage.is_over.store(true, Relaxed);
        }
        done?;
    }
    played.took = started.elapsed();
    Ok(played)
}

/// Waits until a call is due, or counts that it is late.
fn keep_to_time(played: &mut Played, started: Instant, op: &Op, speed: f64) {
    let due = Duration::from_nanos((op.at_ns as f64 / speed) as u64);
    let now = started.elapsed();
    match due.checked_sub(now) {
        Some(rest) => std::thread::sleep(rest),
        None => {
            played.late += u64::from(now - due > LATE);
            played.late_max = played.late_max.max(now - due);
        }
    }
}

/// Spends the time that a thread of the trace spent between two calls. Short ones were computing,
/// and a sleep would be longer than they are.
fn think(stage: &Stage<'_>, ended: Instant, think_ns: u64) {
    const SLEEP_MIN: Duration = Duration::from_micros(200);
    const SLEEP_MAX: Duration = Duration::from_millis(100);
    let due = ended + Duration::from_nanos(think_ns);
    let is_long = Duration::from_nanos(think_ns) > SLEEP_MIN;
    loop {
        let rest = due.saturating_duration_since(Instant::now());
        if rest.is_zero() || stage.is_over() {
            return;
        }
        if is_long {
            std::thread::sleep(rest.min(SLEEP_MAX));
        } else {
            std::hint::spin_loop();
        }
    }
}

fn one(stage: &Stage<'_>, op: &Op, buffer: &mut AlignedBuf, played: &mut Played) -> Result<()> {
    let opened =
        stage.files.get(op.file).ok_or_else(|| Error::usage("the plan has no such file"))?;
    let end = op.offset + op.len;
    if op.kind == Kind::Read && end > opened.written.load(Relaxed) {
        played.early += 1;
        return Ok(());
    }
    let began = Instant::now();
    match op.kind {
        Kind::Read => {
            pieces(opened, op, buffer, played, |file, buf, at| file.read_at(buf, at))?;
            played.reads.record(began.elapsed());
            played.read_bytes += op.len;
        }
        Kind::Write | Kind::DurableWrite => {
            pieces(opened, op, buffer, played, |file, buf, at| file.write_at(buf, at))?;
            if op.kind == Kind::DurableWrite {
                opened.file.sync_data()?;
            }
            played.writes.record(began.elapsed());
            played.written_bytes += op.len;
            opened.written.fetch_max(end, Relaxed);
        }
        Kind::Begin => opened.file.begin_writing(op.offset, op.len)?,
        Kind::SyncData | Kind::Sync => {
            if op.kind == Kind::Sync { opened.file.sync_all() } else { opened.file.sync_data() }?;
            played.syncs.record(began.elapsed());
        }
    }
    Ok(())
}

/// Moves a call's bytes in pieces of whole blocks.
fn pieces(
    opened: &Opened,
    op: &Op,
    buffer: &mut AlignedBuf,
    played: &mut Played,
    mut call: impl FnMut(&dyn TargetFile, &mut [u8], u64) -> Result<()>,
) -> Result<()> {
    let align = opened.file.align_bytes().max(1);
    let (start, end) = (op.offset / align * align, (op.offset + op.len).next_multiple_of(align));
    played.rounded += u64::from((start, end) != (op.offset, op.offset + op.len));
    let room = buffer.len() as u64 / align * align;
    let mut at = start;
    while at < end {
        let len = (end - at).min(room);
        call(&*opened.file, &mut buffer[..len as usize], at)?;
        at += len;
    }
    Ok(())
}
