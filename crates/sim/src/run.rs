//! Runs a workload on the simulated device, holds what the file system does against the model, and writes down what had been promised when.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use block::{BlockDevice, Geometry, MemoryDevice, Recorded, Snapshot};
use fs::{ErrorKind, FileSystem, FormatOptions, InodeNo, MountOptions};

use crate::act::{Outcome, Promise, Stage, Wrote};
use crate::bed::{Bed, Snapshots, Wires};
use crate::model::Model;
use crate::view::{Seen, View, see};
use crate::workload::{Change, Ground, On, Setup, Step};

/// Size of a fresh volume in bytes.
const SIZE: u64 = 48 << 20;
/// Size to which its device may grow.
pub(crate) const SIZE_MAX: u64 = 64 << 20;
/// Size of a log's own device in bytes: its head, and the smallest ring.
const LOG_SIZE: u64 = (64 << 10) + (1 << 20);
/// What the device held before it was formatted, so that a stale block shows.
const STALE: u8 = 0xdb;

/// One step as it was carried out, or a part of one.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// Device operations after it.
    pub end: usize,
    /// What was visible afterwards.
    pub view: View,
    /// What it promised.
    pub promise: Promise,
    /// Inodes whose names or attributes it changed.
    pub touched: Vec<InodeNo>,
    /// The file in which it moved bytes, and how: change, offset, length.
    pub moved: Option<(InodeNo, Change, u64, u64)>,
    /// What it wrote to a file, or which of its bytes it changed in another way.
    pub wrote: Option<Wrote>,
    /// More of the same step follows: its `end` is the step's, because nobody saw when this part was done.
    pub part: bool,
    /// When it began and ended, on a clock of all threads.
    pub span: Range<u64>,
}

/// Steps that somebody else's sync promised: so many of them, from so many device operations on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor {
    pub(crate) end: usize,
    pub(crate) steps: usize,
}

/// So many operations behind a pair a cut still counts as right after it.
const AFTER_PAIR: usize = 12;

/// Two steps that were carried out at once.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    /// How many pauses each of them came to.
    pub(crate) pauses: [u64; 2],
    /// The device operations while they were under way.
    pub(crate) operations: Range<usize>,
}

/// A recorded workload.
#[derive(Debug)]
pub struct History {
    /// The devices it ran on.
    pub bed: Bed,
    /// What the volume was like before the first step, durably.
    pub before: View,
    /// The steps.
    pub done: Vec<Done>,
    pub(crate) floors: Vec<Floor>,
    first: usize,
    pub(crate) model: Model,
    /// The device operations of mounts after the process died.
    deaths: Vec<Range<usize>>,
    /// The pairs of steps of which one came in the middle of the other.
    pub(crate) pairs: Vec<Pair>,
}

impl History {
    /// Begins at a volume that was just mounted.
    pub(crate) fn new(bed: Bed, model: Model) -> Self {
        let first = bed.operation_count();
        Self { bed, before: model.view(), done: Vec::new(), floors: Vec::new(), first, model, deaths: Vec::new(), pairs: Vec::new() }
    }

    /// Adds a step that was carried out.
    pub(crate) fn push(&mut self, done: Done) {
        // What changed nothing (a rename onto itself) logs nothing, so a sync of what it touched promises nothing more.
        let changed = self.done.last().map_or(&self.before, |last| &last.view).names != done.view.names;
        let touched = if changed { done.touched } else { Vec::new() };
        self.done.push(Done { touched, ..done });
    }

    /// Adds what was visible in the middle of a step that is over.
    pub(crate) fn push_parts(&mut self, views: Vec<View>) {
        let end = self.operations();
        self.done.extend(views.into_iter().map(|view| Done { end, view, part: true, ..Done::default() }));
    }

    /// Adds what two steps did that were carried out at once.
    pub(crate) fn push_notes(&mut self, notes: Vec<Done>) {
        self.done.extend(notes);
    }

    /// Where a cut meets most: pairs of steps under way, mounts after a process died, and updates of the superblock of a single device.
    pub(crate) fn spans(&self) -> Vec<Range<usize>> {
        let pairs = self.pairs.iter().map(|pair| pair.operations.start..pair.operations.end + AFTER_PAIR);
        let data = if self.bed.devices().count() == 1 { self.bed.data().operations() } else { Vec::new() };
        let updates =
            data.iter().enumerate().filter(|(_, operation)| matches!(operation, Recorded::Write { offset: 0, .. })).map(|(at, _)| at + 1..at + 4);
        let spans = pairs.chain(updates).chain(self.deaths.iter().cloned()).map(|span| span.start.max(self.first)..span.end.min(self.operations()));
        spans.filter(|span| span.start < span.end).collect()
    }

    /// The operations of the data device of mounts after the process died.
    #[cfg(test)]
    pub(crate) fn deaths_on_data(&self) -> Vec<Range<usize>> {
        let on_data = |after: usize| self.bed.moments(after)[0];
        self.deaths.iter().map(|death| on_data(death.start)..on_data(death.end)).collect()
    }

    /// How many steps were over after so many device operations; parts are no steps.
    pub(crate) fn steps_over(&self, after: usize) -> usize {
        self.done.iter().take_while(|done| done.end <= after).filter(|done| !done.part).count()
    }

    /// The first operation after which a cut is judged (the volume is formatted and mounted).
    #[must_use]
    pub fn first_operation(&self) -> usize {
        self.first
    }

    /// How many operations the devices saw.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.bed.operation_count()
    }
}

/// Carries out a step that does not mount, on the file system and in the model.
pub(crate) fn carry_out(stage: &Stage, history: &mut History, step: &Step) -> std::result::Result<Outcome, String> {
    let result = stage.carry_out(step);
    let parts = history.model.lose(&stage.automatic())?;
    if let Err(error) = &result
        && !parts.is_empty()
    {
        return Err(format!("S-82: it failed although checkpoints were deleted for it: {error}"));
    }
    history.push_parts(parts);
    hold_against(&mut history.model, step, &result)?;
    // A step that cannot be carried out changes nothing and promises nothing.
    Ok(result.unwrap_or_default())
}

/// Carries out in the model what a step did on the file system.
pub(crate) fn hold_against(model: &mut Model, step: &Step, result: &fs::Result<Outcome>) -> std::result::Result<(), String> {
    match result {
        Ok(outcome) => {
            compare_outcome(model, step, outcome)?;
            model.apply(step, outcome).map_err(|why| format!("it succeeded, but {why}"))
        }
        // A full volume is no fault, and changes nothing (S-34); how full it is the model does not know.
        Err(error) if error.kind == ErrorKind::NoSpace => Ok(()),
        Err(error) => match model.clone().apply(step, &Outcome::default()) {
            Err(_) => Ok(()),
            Ok(()) => Err(format!("it failed and nothing speaks against it: {error}")),
        },
    }
}

/// Mount options under which nothing happens by itself, so that a run repeats exactly.
pub(crate) fn quiet() -> MountOptions {
    MountOptions { sync_interval: Duration::from_secs(86_400), cache_bytes: 8 << 20, metadata_cache_bytes: 8 << 20, ..MountOptions::default() }
}

fn geometry(setup: &Setup) -> Geometry {
    Geometry {
        logical_block_size: setup.sector,
        physical_block_size: setup.sector,
        untorn_unit: setup.untorn_unit,
        volatile_cache: setup.volatile_cache,
        ..MemoryDevice::GEOMETRY
    }
}

/// Returns a fresh volume on devices that were full of something else, made once for each kind.
fn fresh(setup: &Setup) -> Snapshots {
    type Made = Mutex<HashMap<(u32, u32, bool, Ground), Snapshots>>;
    static MADE: OnceLock<Made> = OnceLock::new();
    let mut made = MADE.get_or_init(Made::default).lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let bed = stale_bed(setup, 0);
        let wires = bed.connect();
        wires.make_group().expect("devices that belong to no group can be members");
        let volume = wires.volume(true).expect("a new group opens");
        FileSystem::format(&volume, wires.log(), &format_options(setup)).expect("a device without a volume can be formatted");
        drop(volume);
        bed.snapshots()
    };
    made.entry((setup.sector, setup.block_size, setup.separate_log, setup.ground)).or_insert_with(make).clone()
}

/// Makes devices without a volume, full of something else.
pub(crate) fn stale_bed(setup: &Setup, seed: u64) -> Bed {
    let size = if setup.ground == Ground::One { SIZE_MAX } else { setup.ground.member_bytes() };
    let mut contents = vec![Snapshot::filled(size, STALE); setup.ground.members()];
    contents.extend(setup.separate_log.then(|| Snapshot::filled(LOG_SIZE, STALE)));
    let bed = Bed::over(setup.ground, &contents, geometry(setup), seed);
    start_small(bed)
}

/// A single device may grow later; members of a group stay as they are.
fn start_small(bed: Bed) -> Bed {
    if bed.ground() == Ground::One {
        bed.data().start_smaller(SIZE);
    }
    bed
}

/// How volumes are made.
pub(crate) fn format_options(setup: &Setup) -> FormatOptions {
    FormatOptions { block_size: setup.block_size, log_bytes: Some(1 << 20), ..FormatOptions::default() }
}

/// Makes the devices of a run, with a fresh volume on them.
pub(crate) fn fresh_bed(setup: &Setup, seed: u64) -> Bed {
    start_small(Bed::over(setup.ground, &fresh(setup), geometry(setup), seed).logging(setup.per_record))
}

/// Runs `steps` on a fresh volume.
///
/// # Errors
/// What the live file system did that the model does not: one sentence, and the number of the step.
pub fn record(setup: &Setup, steps: &[Step]) -> std::result::Result<History, String> {
    record_on(fresh_bed(setup, 0), setup.block_size, None, steps)
}

/// Runs `steps` on the volume of some devices; `known` are inode numbers that an earlier life on it used.
pub(crate) fn record_on(bed: Bed, block_size: u32, known: Option<BTreeSet<InodeNo>>, steps: &[Step]) -> std::result::Result<History, String> {
    let wires = bed.connect();
    let fs = wires.mount(quiet()).map_err(|e| format!("the volume does not mount: {e}"))?;
    let seen = see(&fs).map_err(|e| format!("the volume cannot be read: {e}"))?;
    // A member that was away when the power went is behind until the next mount brought it up to date.
    let whole = known.is_none();
    let model = Model::recovered(block_size, seen, known.unwrap_or_default());
    let history = History::new(bed, model);
    let mut recorder = Recorder { wires, whole, returns: false, stage: Some(Stage::new(fs)), history };
    for (number, step) in steps.iter().enumerate() {
        recorder.step(step, number).map_err(|what| format!("step {number}, {step:?}: {what}"))?;
    }
    recorder.compare()?;
    Ok(recorder.history)
}

/// Looking at everything opens every file, which changes how it is served: not after every step.
const COMPARE_EVERY: usize = 8;

struct Recorder {
    wires: Wires,
    /// No member of the group is away or behind.
    whole: bool,
    /// Members that are away are there at the next mount.
    returns: bool,
    /// `None` only between two mounts.
    stage: Option<Stage>,
    history: History,
}

impl Recorder {
    fn step(&mut self, step: &Step, number: usize) -> std::result::Result<(), String> {
        let outcome = match step {
            Step::Remount => self.remount()?,
            Step::Kill => self.kill()?,
            Step::Grow(mib) => self.grow(*mib)?,
            Step::Die(step, calls) => self.die(step, *calls)?,
            Step::Vanish(member) => self.vanish(usize::from(*member)),
            Step::Return => self.return_all(),
            Step::During(first, second, turns) => return self.during(first, second, turns),
            _ => carry_out(self.stage.as_ref().expect("it is mounted"), &mut self.history, step)?,
        };
        if number.is_multiple_of(COMPARE_EVERY) {
            self.compare()?;
        }
        let (end, view) = (self.history.operations(), self.history.model.view());
        let Outcome { promise, touched, moved, wrote, .. } = outcome;
        self.history.push(Done { end, view, promise, touched, moved, wrote, ..Done::default() });
        Ok(())
    }

    fn during(&mut self, first: &Step, second: &Step, turns: &[u16]) -> std::result::Result<(), String> {
        assert!(!first.is_recorders() && !second.is_recorders(), "a step that mounts or changes devices is no half of a pair");
        crate::pair::carry_out(self.stage.as_ref().expect("it is mounted"), &mut self.history, first, second, turns)
    }

    fn see(&self) -> std::result::Result<Seen, String> {
        see(&self.stage.as_ref().expect("it is mounted").fs).map_err(|e| format!("a sound volume cannot be read: {e}"))
    }

    fn remount(&mut self) -> std::result::Result<Outcome, String> {
        let stage = self.stage.take().expect("it is mounted");
        stage.unmount().map_err(|e| format!("nothing keeps a volume from being unmounted: {e}"))?;
        self.mount_again(true)?;
        self.whole = !self.is_one_away();
        self.history.model.apply(&Step::Remount, &Outcome::default())?;
        self.compare()?;
        Ok(Outcome { promise: Promise::All, ..Outcome::default() })
    }

    /// The process dies: what only it knew is gone, what the device was told is not.
    fn kill(&mut self) -> std::result::Result<Outcome, String> {
        let at = self.history.operations();
        self.wires.cut();
        drop(self.stage.take());
        self.wires = self.history.bed.connect();
        self.mount_again(false)?;
        self.history.deaths.push(at..self.history.operations());
        let seen = self.see()?;
        crate::judge::compare(&self.history, at, &seen.view).map_err(|what| format!("after the process died: {what}"))?;
        let used = crate::judge::used_numbers(&self.history, at);
        let block_size = self.history.model.block_size;
        self.history.model = Model::recovered(block_size, seen, used);
        Ok(Outcome { promise: Promise::All, ..Outcome::default() })
    }

    /// The process dies in the middle of a step, or after it where that takes fewer calls.
    fn die(&mut self, step: &Step, calls: u16) -> std::result::Result<Outcome, String> {
        assert!(!step.is_recorders() && !step.makes(), "only a step whose outcome is known beforehand is cut short");
        self.wires.cut_after(calls.into());
        let stage = self.stage.as_ref().expect("it is mounted");
        let result = stage.carry_out(step);
        let mut done = Done { end: self.history.operations(), part: true, ..Done::default() };
        match result {
            Ok(outcome) if !self.wires.is_cut() => {
                hold_against(&mut self.history.model, step, &Ok(outcome.clone()))?;
                let Outcome { promise, touched, moved, wrote, .. } = outcome;
                done = Done { promise, touched, moved, wrote, ..done };
            }
            // It had come some way: all, some or nothing of it is there.
            _ => drop(self.history.model.apply(step, &Outcome::default())),
        }
        self.history.push(Done { view: self.history.model.view(), ..done });
        self.kill()
    }

    /// Mounts; with `sync` what members are behind with is copied first.
    fn mount_again(&mut self, sync: bool) -> std::result::Result<(), String> {
        self.arrive();
        let fs = self.wires.mount_synced(sync, quiet()).map_err(|e| format!("the volume does not mount again: {e}"))?;
        self.stage = Some(Stage::new(fs));
        Ok(())
    }

    fn is_one_away(&self) -> bool {
        let bed = &self.history.bed;
        (0..bed.ground().members()).any(|member| bed.is_away(member))
    }

    /// A member answers no more, if none is away or behind.
    fn vanish(&mut self, member: usize) -> Outcome {
        let bed = &self.history.bed;
        if bed.ground() != Ground::One && self.whole && !self.is_one_away() {
            bed.set_away(member % bed.ground().members(), true);
            self.whole = false;
        }
        Outcome::default()
    }

    /// Members are there again, and behind until the next mount brought them up to date. An open group does not look for them.
    fn return_all(&mut self) -> Outcome {
        self.returns = true;
        Outcome::default()
    }

    /// Members that return do so while nothing is mounted.
    fn arrive(&mut self) {
        if std::mem::take(&mut self.returns) {
            let bed = &self.history.bed;
            (0..bed.ground().members()).for_each(|member| bed.set_away(member, false));
        }
    }

    fn grow(&mut self, mib: u8) -> std::result::Result<Outcome, String> {
        if self.history.bed.ground() != Ground::One {
            return Ok(Outcome::default());
        }
        let device = Arc::clone(self.history.bed.data());
        let size = (device.refresh_size().map_err(|e| e.to_string())? + (u64::from(mib) << 20)).min(SIZE_MAX);
        device.grow(size);
        let grown = self.stage.as_ref().expect("it is mounted").fs.grow().map_err(|e| format!("the volume does not grow: {e}"))?;
        if grown == size { Ok(Outcome::default()) } else { Err(format!("the volume has {grown} bytes after it grew to {size}")) }
    }

    /// Holds all that the live file system shows against the model.
    fn compare(&self) -> std::result::Result<(), String> {
        let seen = self.see()?;
        let expected = self.history.model.view();
        difference(&seen.view, &expected).map_or(Ok(()), |what| Err(format!("the live file system is wrong: {what}")))
    }
}

/// What a step returned against what the model has, before the step is carried out there.
pub(crate) fn compare_outcome(model: &mut Model, step: &Step, outcome: &Outcome) -> std::result::Result<(), String> {
    if let (Step::Read(on, _, offset, len), Some(read)) = (step, &outcome.read) {
        let content = model.content(*on)?;
        let from = usize::try_from(*offset).expect("small").min(content.len());
        let to = (from + usize::try_from(*len).expect("small")).min(content.len());
        if read[..] != content[from..to] {
            let at = read.iter().zip(&content[from..to]).position(|(a, b)| a != b).unwrap_or_else(|| read.len().min(to - from));
            return Err(format!("S-20: the read differs from byte {at} on ({} bytes, {} expected)", read.len(), to - from));
        }
    }
    let appended = match step {
        Step::Append(file, dir, ..) => Some(On::Name(*file, *dir)),
        Step::AppendHeld(slot, ..) => Some(On::Held(*slot)),
        _ => None,
    };
    if let (Some(on), Some(at)) = (appended, outcome.at) {
        let end = model.content(on)?.len() as u64;
        if at != end {
            return Err(format!("S-32: the append went to byte {at} of {end}"));
        }
    }
    Ok(())
}

/// The first difference between two views.
pub(crate) fn difference(seen: &View, expected: &View) -> Option<String> {
    if seen.names != expected.names {
        return Some(format!("names\n   found:    {:#?}\n   expected: {:#?}", seen.names, expected.names));
    }
    let (ino, content) = seen.contents.iter().find(|(ino, content)| expected.contents.get(ino) != Some(*content))?;
    let wanted = expected.contents.get(ino).map_or(&[][..], |wanted| wanted);
    let at = content.iter().zip(wanted).position(|(a, b)| a != b).unwrap_or_else(|| content.len().min(wanted.len()));
    let (found, due) = (content.get(at), wanted.get(at));
    Some(format!("inode {} holds {found:x?} at byte {at} where {due:x?} is due ({} bytes, {} due)", ino.0, content.len(), wanted.len()))
}
