//! Devices that fail: the same workloads with an error at the N-th call, for every N, once and for
//! ever.
//!
//! A step that fails may have happened in part: every byte is then the old or the new one, and
//! names are those before or after it. What the file system shows next is where the model goes on.
//! Syncs that succeeded are promises as ever, and once a flush has failed none may succeed (S-33).

mod format;
mod mounting;

pub use format::{try_format_cuts, try_format_failures};

use std::sync::Arc;

use bedplate_block::{
    BlockDevice, CrashChoice, Fault, FaultRule, FlushFault, FlushOutcome, ReadFault, Recorded,
    SimulatedDevice, Trigger, WriteFault,
};
use bedplate_fs::{
    AllocateMode, CheckpointInfo, ErrorKind, FileKind, FileSystem, InodeNo, MountOptions, NewFile,
    OpenOptions,
};
use serde::Serialize;

use crate::act::Stage;
use crate::bed::{Bed, Wires, fresh_bed, quiet};
use crate::history::{Done, History};
use crate::judge::{Cut, judge};
use crate::kept::{compare, used_numbers};
use crate::live::compare_outcome;
use crate::model::Model;
use crate::outcome::{Outcome, Promise};
use crate::view::{Seen, View, difference, see};
use crate::workload::{Change, Setup, Step, StepKind};

/// A kind of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Reads fail.
    Read,
    /// Writes fail after a part of them has arrived.
    Write,
    /// Writes fail because there is no space below the device.
    NoSpace,
    /// Flushes fail, and what they should have made durable is in doubt for ever.
    Flush,
}

impl Failure {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::NoSpace, Self::Flush];

    fn fault(self) -> Fault {
        match self {
            Self::Read => Fault::Read(ReadFault::Fail),
            Self::Write => Fault::Write(WriteFault::Fail),
            Self::NoSpace => Fault::Write(WriteFault::NoSpace),
            Self::Flush => Fault::Flush(FlushFault::Fail),
        }
    }
}

/// What the runs showed.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct FailureTally {
    /// Runs in which the error struck.
    pub runs: u64,
    /// Of these, the ones after which the file system was read-only.
    pub latched: u64,
    /// Crash states that were recovered and compared afterwards.
    pub states: u64,
}

impl FailureTally {
    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.latched += other.latched;
        self.states += other.states;
    }
}

/// Runs steps again and again, with the first, second, third … call failing, until none fails any
/// more: all calls, or one in `stride`.
///
/// # Errors
/// The first broken promise: which call failed, and what was wrong then.
pub fn try_failures(
    setup: &Setup,
    steps: &[Step],
    failure: Failure,
    for_ever: bool,
    stride: u64,
) -> Result<FailureTally, String> {
    let mut tally = FailureTally::default();
    for nth in (1..).step_by(usize::try_from(stride).expect("small")) {
        let trigger = if for_ever { Trigger::From(nth) } else { Trigger::Nth(nth) };
        let context = |what: String| {
            format!(
                "{failure:?} {} {nth} fails: {what}",
                if for_ever { "from call" } else { "call" }
            )
        };
        let mut run = Run::start(
            setup,
            fresh_bed(setup, nth),
            FaultRule::new(failure.fault(), trigger),
            failure,
        )
        .map_err(context)?;
        for (number, step) in steps.iter().enumerate() {
            run.step(step).map_err(|what| context(format!("step {number}, {step:?}: {what}")))?;
        }
        if !run.struck() {
            return Ok(tally);
        }
        tally.runs += 1;
        tally.latched += u64::from(run.end().map_err(context)?);
        tally.states += run.cut(nth).map_err(context)?;
    }
    unreachable!("no workload makes that many calls")
}

struct Run {
    wires: Wires,
    /// `None` once a flush had failed while the volume was not mounted: then the power is off.
    stage: Option<Stage>,
    history: History,
    device: Arc<SimulatedDevice>,
    rule: FaultRule,
    failure: Failure,
}

impl Run {
    fn start(setup: &Setup, bed: Bed, rule: FaultRule, failure: Failure) -> Result<Self, String> {
        let wires = bed.connect();
        let fs = wires.mount(quiet()).map_err(|e| format!("a fresh volume does not mount: {e}"))?;
        let seen = see(&fs).map_err(|e| format!("a fresh volume cannot be read: {e}"))?;
        let model = Model::recovered(setup.block_size, seen, Default::default());
        let history = History::new(bed, model);
        let device = Arc::clone(history.bed.weakest());
        device.inject(rule.clone());
        let stage = Some(Stage::new(fs).moving_log(wires.spare_log()));
        Ok(Self { wires, stage, history, device, rule, failure })
    }

    fn struck(&self) -> bool {
        self.device.counters().errors > 0
    }

    fn push(
        &mut self,
        view: View,
        promise: Promise,
        touched: Vec<InodeNo>,
        moved: Option<(InodeNo, Change, u64, u64)>,
    ) {
        let end = self.history.operations();
        self.history.done.push(Done { end, view, promise, touched, moved, ..Done::default() });
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let (began, was_struck) = (self.device.operation_count(), self.struck());
        let Some(stage) = &mut self.stage else { return Ok(()) };
        // After a failed flush nothing but a power cut helps.
        let hopeless = self.failure == Failure::Flush && self.device.counters().errors > 0;
        let mounts = matches!(step, Step::Remount | Step::Kill);
        match step {
            _ if mounts && !hopeless => return self.mount_again(step),
            Step::Grow(mib) => return self.grow(*mib),
            Step::Shrink(mib) => return self.shrink(*mib),
            Step::Die(step, _) => {
                self.step(step)?;
                return self.step(&Step::Kill);
            }
            _ => {}
        }
        let step = if mounts { &Step::Sync } else { step };
        let result = match step.kind() {
            StepKind::Captures(capture) => {
                stage.make_checkpoint(capture).and_then(|made| self.see_made(&made))
            }
            _ => stage.carry_out(step),
        };
        let parts =
            self.history.model.lose(&self.stage.as_ref().expect("it is mounted").automatic())?;
        self.history.push_parts(parts);
        let mut model = self.history.model.clone();
        match result {
            Ok(outcome) => {
                if outcome.promise != Promise::None
                    && self.failure == Failure::Flush
                    && self.struck()
                    && (was_struck || !flushed_since(&self.device, began))
                {
                    return Err("S-33: it promised durability after a flush had failed".into());
                }
                compare_outcome(&mut model, step, &outcome)?;
                let before = model.view();
                model.apply(step, &outcome).map_err(|why| format!("it succeeded, but {why}"))?;
                let view = model.view();
                let touched = if before.names == view.names { Vec::new() } else { outcome.touched };
                self.history.model = model;
                self.push(view, outcome.promise, touched, outcome.moved);
                Ok(())
            }
            // A full volume is no fault of the device's.
            Err(error) if error.kind == ErrorKind::NoSpace && error.source.is_none() => Ok(()),
            // The model refuses it too.
            Err(_) if model.apply(step, &Outcome::default()).is_err() => Ok(()),
            Err(error) if !self.struck() => {
                Err(format!("it failed and nothing speaks against it: {error}"))
            }
            Err(error) => {
                one_sentence(&error)?;
                self.doubt(step, &model)
            }
        }
    }

    /// What a checkpoint shows; where the error strikes a look at it, the look is taken once more
    /// without it.
    fn see_made(&self, made: &CheckpointInfo) -> bedplate_fs::Result<Outcome> {
        let stage = self.stage.as_ref().expect("it is mounted");
        let struck = self.struck();
        match stage.made_checkpoint(made) {
            Err(_) if !struck && self.struck() || self.failure == Failure::Read && struck => {
                self.healthy(|| stage.made_checkpoint(made))
            }
            seen => seen,
        }
    }

    fn fs(&self) -> &FileSystem {
        &self.stage.as_ref().expect("it is mounted").fs
    }

    /// From here on the device works, or fails on if it is to fail for ever.
    fn healthy<T>(&self, look: impl FnOnce() -> T) -> T {
        self.device.clear_faults();
        let seen = look();
        if let Trigger::From(_) = self.rule.trigger {
            self.device.inject(FaultRule { trigger: Trigger::Always, ..self.rule.clone() });
        }
        seen
    }

    /// A checkpoint whose making failed is wholly there or wholly absent, and changes none of the
    /// others (S-54).
    fn whole_or_absent(&self, step: &Step, seen: &Seen) -> Result<(), String> {
        let before = self.history.model.view();
        for (line, shown) in &before.checkpoints {
            let now = seen.view.checkpoints.get(line).ok_or_else(|| {
                format!("S-54: '{line}' is gone because another one could not be made")
            })?;
            difference(now, shown).map_or(Ok(()), |what| {
                Err(format!("S-54: '{line}' shows something else: {what}"))
            })?;
        }
        for (line, shown) in
            seen.view.checkpoints.iter().filter(|(line, _)| !before.checkpoints.contains_key(*line))
        {
            if self.failure == Failure::Read {
                return Err(format!(
                    "S-35: '{line}' was made although its making failed, and nothing is in doubt"
                ));
            }
            let nodes = seen.past.get(line).map(|nodes| nodes.as_ref().clone()).unwrap_or_default();
            let made = Seen { view: shown.as_ref().clone(), nodes, ..Seen::default() };
            let outcome =
                Outcome { checkpoint: Some((line.clone(), Arc::new(made))), ..Outcome::default() };
            self.history.model.clone().apply(step, &outcome).map_err(|why| {
                format!("S-54: '{line}' is there after its making failed, but {why}")
            })?;
        }
        Ok(())
    }

    /// What is free in memory is what a mount finds free: nothing was taken for a change that
    /// failed and kept.
    fn nothing_leaked(&self) -> Result<(), String> {
        let entries =
            self.fs().read_dir(InodeNo::ROOT, None, usize::MAX).map_err(|e| e.to_string())?;
        let Some(any) = entries.iter().find(|entry| entry.kind == FileKind::File) else {
            return Ok(());
        };
        // Blocks that left files wait for a request that needs more than there are.
        let file =
            self.fs().open_inode(any.ino, &OpenOptions::read_write()).map_err(|e| e.to_string())?;
        if file.allocate(AllocateMode::Preallocate { keep_size: true }, 0, 1 << 36).is_ok() {
            return Err("a file has 64 GiB on a small volume".into());
        }
        drop(file);
        let free = self.fs().statfs().free_bytes;
        let remains = self.history.bed.cut(self.history.operations(), &CrashChoice::KeepAll);
        let mounted = remains
            .mount(MountOptions { read_only: true, ..quiet() })
            .map_err(|e| format!("the volume does not mount: {e}"))?;
        let found = mounted.statfs().free_bytes;
        if free == found {
            Ok(())
        } else {
            Err(format!("{free} bytes are free until the next mount, which finds {found}"))
        }
    }

    /// The step happened, did not happen, or happened in part.
    fn doubt(&mut self, step: &Step, intended: &Model) -> Result<(), String> {
        let before = self.history.model.view();
        let moved = match *step {
            Step::Allocate(on, change @ (Change::Collapse | Change::Insert), offset, len) => {
                self.history.model.clone().ino(on).ok().map(|ino| (ino, change, offset, len))
            }
            _ => None,
        };
        let end = self.history.operations();
        self.stage.as_ref().expect("it is mounted").close_held();
        let seen = self.healthy(|| see(self.fs())).map_err(|e| {
            format!("S-33, S-35: what was written cannot be read after an error: {e}")
        })?;
        // A cut in the middle of the step may leave a clone as it is there now.
        let numbered = self.history.model.with_clone_of(step, &seen);
        let intended = numbered.as_ref().unwrap_or(intended);
        self.history.done.push(Done { end, view: intended.view(), moved, ..Done::default() });
        // What the step made has a number or a line that the model could not know.
        let made = matches!(step.kind(), StepKind::Captures(_));
        if made {
            self.whole_or_absent(step, &seen)?;
        }
        let known = |view: &View| {
            let old = |line: &&String| !made || !line.starts_with("checkpoint ");
            without_numbers(view.names.iter().filter(old))
        };
        let one_of = |view: &View| known(view) == known(&seen.view);
        if !one_of(&before) && !one_of(&intended.view()) {
            return Err(format!(
                "after the error the names are neither old nor new: {:#?}",
                seen.view.names
            ));
        }
        let at = self.history.operations();
        if one_of(&before) && !made {
            compare(&self.history, at, &seen.view)
                .map_err(|what| format!("after the error: {what}"))?;
        }
        let used = used_numbers(&self.history, at);
        self.history.model = Model::recovered(self.history.model.block_size, seen, used);
        let view = self.history.model.view();
        self.push(view, Promise::None, Vec::new(), None);
        Ok(())
    }

    /// S-33, S-35: returns whether the file system turned read-only, after checking that it means
    /// it.
    fn end(&mut self) -> Result<bool, String> {
        self.device.clear_faults();
        let Some(stage) = &mut self.stage else { return Ok(true) };
        stage.close_held();
        let fs = &stage.fs;
        let latched = fs.info().failed;
        let seen = see(fs)
            .map_err(|e| format!("S-33, S-35: the volume cannot be read after an error: {e}"))?;
        if let Some(what) = difference(&seen.view, &self.history.model.view()) {
            return Err(format!("after the error: {what}"));
        }
        let Some(reason) = latched else {
            if self.failure == Failure::Flush {
                return Err("S-33: a flush failed and the file system goes on".into());
            }
            // S-520: the first tells what failed when pages were written that no sync asked for.
            fs.sync()
                .or_else(|_told| fs.sync())
                .map_err(|e| format!("a sync fails although nothing is latched: {e}"))?;
            self.push(seen.view, Promise::All, Vec::new(), None);
            self.nothing_leaked()?;
            return Ok(false);
        };
        refuses(fs, &reason)?;
        Ok(true)
    }

    /// Cuts the power at the end and on the way, on a device that works again.
    fn cut(&self, nth: u64) -> Result<u64, String> {
        let (first, last) = (self.history.first_operation(), self.history.operations());
        let mut states = 0;
        let end = [
            CrashChoice::KeepAll,
            CrashChoice::LoseAll,
            CrashChoice::Seeded(nth),
            CrashChoice::Seeded(!nth),
        ];
        let on_the_way = (1..4).map(|part| {
            (first + (last - first) * part / 4, CrashChoice::Seeded(nth + part as u64))
        });
        for (after, choice) in end.into_iter().map(|choice| (last, choice)).chain(on_the_way) {
            judge(&self.history, &Cut { after, choice, again: None })?;
            states += 1;
        }
        Ok(states)
    }
}

/// Says whether the first flush after an operation of the device was honoured: then it is one of the
/// sync daemon's that failed, and cuts of the power show whether the promise is kept.
fn flushed_since(device: &SimulatedDevice, operation: usize) -> bool {
    let flushes = |recorded: &Recorded| match recorded {
        Recorded::Flush { outcome, .. } => Some(*outcome),
        _ => None,
    };
    let first = device.operations().iter().skip(operation).find_map(flushes);
    first == Some(FlushOutcome::Honoured)
}

/// What a person reads: one sentence.
pub(crate) fn one_sentence(error: &bedplate_fs::Error) -> Result<(), String> {
    let text = error.to_string();
    if text.is_empty() || text.contains('\n') || text.ends_with('.') {
        Err(format!("the message is not one sentence: {text:?}"))
    } else {
        Ok(())
    }
}

/// Names without the inode numbers of what the model could not name.
fn without_numbers<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    names
        .map(|line| {
            line.split(" inode ")
                .map(|part| part.split_once(' ').map_or(part, |(_, rest)| rest))
                .collect()
        })
        .collect()
}

/// S-33: every later sync fails with that error, changes are refused as read-only with the reason
/// and what to do.
fn refuses(fs: &FileSystem, reason: &str) -> Result<(), String> {
    for _ in 0..2 {
        match fs.sync() {
            Ok(()) => return Err("S-33: a sync succeeds after a failure was latched".into()),
            Err(error) if error.kind == ErrorKind::ReadOnly => {
                return Err(format!("S-33: the sync hides the reason: {error}"));
            }
            Err(_) => {}
        }
        if fs.sync_inode(InodeNo::ROOT).is_ok() {
            return Err("S-33: a sync of a directory succeeds after a failure was latched".into());
        }
    }
    for entry in fs
        .read_dir(InodeNo::ROOT, None, usize::MAX)
        .map_err(|e| e.to_string())?
        .into_iter()
        .filter(|entry| entry.kind == FileKind::File)
    {
        let file = fs
            .open_inode(entry.ino, &OpenOptions::read_only())
            .map_err(|e| format!("S-33: reads do not go on: {e}"))?;
        if file.sync_data().is_ok() || file.sync_all().is_ok() {
            return Err("S-33: a sync of a file succeeds after a failure was latched".into());
        }
    }
    match fs.make(InodeNo::ROOT, b"late", FileKind::File, NewFile::default(), 0) {
        Err(error)
            if error.kind == ErrorKind::ReadOnly
                && ["read-only", "unmount", "mount again"]
                    .iter()
                    .all(|word| error.message.contains(word)) => {}
        other => {
            return Err(format!(
                "S-33: a change is not refused as read-only with what to do ({reason}): {other:?}"
            ));
        }
    }
    if fs.clone().unmount().is_ok() {
        Err("S-33: an unmount succeeds after a failure was latched".into())
    } else {
        Ok(())
    }
}
