//! The replaying half: the device that a cut leaves, mounted, and the checker's verdict on it; several at once.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bedplate::{BlockDevice, DeviceError, DeviceErrorKind};
use block::{CrashChoice, CrashStep, Operation, RecordingDevice};
use serde::Serialize;
use sim::{CrashState, Sampling, sample};

use super::Lab;
use super::acknowledged::{before, copy_first};
use super::layout::Layout;
use super::place::{Mounted, new_file};
use super::program::{Ended, Program, shell};
use super::record::Recorded;
use crate::failure::{Failure, Result, plain};
use crate::progress::Steps;

/// What became of one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The checker is content.
    Passed,
    /// The checker found fault.
    Failed,
    /// The checker did not end in time.
    TimedOut,
    /// The volume could not be mounted: Bedplate broke its promise, not the program.
    NotMounted,
}

/// A state that was tried.
#[derive(Debug, Clone)]
pub struct Tried {
    pub state: CrashState,
    pub verdict: Verdict,
    /// How the checker ended.
    pub ended: String,
    /// The end of what it printed.
    pub said: String,
    pub duration: Duration,
}

/// How much of what a checker prints is kept.
const SAID_BYTES: u64 = 4096;

/// Runs the checker where nothing was lost. What fails there tells nothing of power cuts. Returns where the files lay in the end.
pub fn uncut(lab: &Lab, recorded: &Recorded) -> Result<Layout> {
    let all = recorded.recording.operations().len();
    let state = CrashState { number: 0, after: all, pattern: sim::Pattern::Everything, steps: everything(recorded, all) };
    let tried = try_state(lab, recorded, &state, "uncut", "mnt", recorded.told.len())?;
    if tried.verdict != Verdict::Passed {
        let said = tried.said.lines().last().map(|line| format!(", saying '{line}'")).unwrap_or_default();
        let why = "the checker fails even where nothing was lost";
        return Err(Failure::new("checker", format!("{why} ({}{said}): mend it, or the command, first", tried.ended)));
    }
    layout_after(lab, recorded, *recorded.cuts.end())
}

fn everything(recorded: &Recorded, after: usize) -> Vec<CrashStep> {
    recorded.recording.crash_steps(after, &CrashChoice::KeepAll)
}

/// Returns where the files lay at a moment of the recording, as far as the device knew.
pub fn layout_after(lab: &Lab, recorded: &Recorded, after: usize) -> Result<Layout> {
    Layout::of(recorded.recording.crash_device(after, &everything(recorded, after), lab.place.nameless(&format!("spool-layout-{after}"))?))
}

/// Tries the states of a seed, or the one that was asked for; they come back in the order of their numbers.
pub fn states(lab: &Lab, recorded: &Recorded, seed: u64) -> Result<Vec<Tried>> {
    let mut told: Vec<usize> = recorded.told.iter().map(|line| line.after).collect();
    told.dedup();
    let wanted = lab.arguments.state.map_or(lab.arguments.states, |state| state.saturating_add(1));
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(1_000_001);
    let mut states = sample(&recorded.recording, &Sampling { seed, states: wanted, cuts: recorded.cuts.clone(), told: &told });
    if let Some(only) = lab.arguments.state {
        states.retain(|state| state.number as u64 == only);
        if states.is_empty() {
            return Err(Failure::new("not_found", format!("seed {seed} has no state {only} of this recording")));
        }
    }
    // In the order of the cuts the recording makes devices quickest.
    states.sort_by_key(|state| (state.after, state.number));
    let mut tried = try_all(lab, recorded, &states)?;
    tried.sort_by_key(|tried| tried.state.number);
    Ok(tried)
}

fn try_all(lab: &Lab, recorded: &Recorded, states: &[CrashState]) -> Result<Vec<Tried>> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = lab.arguments.jobs.map_or(2 * processors, |jobs| jobs as usize).min(states.len()).max(1);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(states.len())));
    let progress = Mutex::new(Steps::new(lab.output));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs)
            .map(|worker| {
                let (next, done, progress) = (&next, &done, &progress);
                scope.spawn(move || -> Result<()> {
                    // One job is always at the place where the command was.
                    let mount = if jobs == 1 { "mnt".to_owned() } else { format!("mnt-{worker}") };
                    while let Some(state) = states.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let told = before(&recorded.told, state.after);
                        let tried = try_state(lab, recorded, state, &state.number.to_string(), &mount, told);
                        // Who fails takes the others along.
                        let tried = tried.inspect_err(|_| next.store(states.len(), Ordering::Relaxed))?;
                        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                        done.push(tried);
                        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
                        progress.at(done.len(), states.len(), &format!("states, {} failed", failures(&done)));
                    }
                    Ok(())
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join().map_err(|_| Failure::new("io", "a thread of the lab died"))).collect();
        ended.into_iter().try_for_each(|ended| ended?)
    })?;
    Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn failures(done: &[Tried]) -> usize {
    done.iter().filter(|tried| tried.verdict != Verdict::Passed).count()
}

/// Makes the state, mounts it and runs the checker.
fn try_state(lab: &Lab, recorded: &Recorded, state: &CrashState, name: &str, mount: &str, told: usize) -> Result<Tried> {
    let started = Instant::now();
    let make = || -> Result<Arc<RecordingDevice>> {
        let scratch = lab.place.nameless(&format!("spool-{name}"))?;
        Ok(recorded.recording.crash_device(state.after, &state.steps, scratch))
    };
    let dir = lab.place.directory(mount)?;
    let finish = |verdict, ended, said| Tried { state: state.clone(), verdict, ended, said, duration: started.elapsed() };
    let tried = match Mounted::start(make()?, &dir, &lab.settings) {
        Ok(mounted) => {
            let checked = run_checker(lab, recorded, &dir, name, state, told);
            let abandoned = mounted.abandon();
            let (ended, said) = checked?;
            abandoned?;
            finish(verdict(ended), ended.words(), said)
        }
        // Only what the volume itself is to blame for; a machine on which nothing can be mounted says nothing about the state.
        Err(failure) if ["corrupt", "not_a_volume", "io"].contains(&failure.kind.as_str()) => {
            finish(Verdict::NotMounted, failure.message, String::new())
        }
        Err(failure) => return Err(failure),
    };
    if tried.verdict != Verdict::Passed
        && let Some(keep) = &lab.arguments.keep_failing
    {
        keep_image(&*make()?, keep, name)?;
    }
    Ok(tried)
}

fn verdict(ended: Ended) -> Verdict {
    match ended {
        Ended::TimedOut => Verdict::TimedOut,
        Ended::With(status) if status.success() => Verdict::Passed,
        Ended::With(_) => Verdict::Failed,
    }
}

fn run_checker(lab: &Lab, recorded: &Recorded, dir: &Path, name: &str, state: &CrashState, told: usize) -> Result<(Ended, String)> {
    let scratch = lab.place.scratch(&format!("scratch-{name}"))?;
    let acknowledged = lab.place.path(&format!("acknowledged-{name}"));
    copy_first(&recorded.lines, &recorded.told, told, &acknowledged)?;
    let output = lab.place.nameless(&format!("output-{name}"))?;
    let copy = || output.try_clone().map(Stdio::from).map_err(|error| Failure::new("io", format!("cannot keep what the checker prints: {error}")));
    let mut command = shell(&lab.arguments.check);
    command.env("BEDPLATE_DIR", dir).env("BEDPLATE_ACKNOWLEDGED", &acknowledged);
    command.env("BEDPLATE_STATE", name).env("BEDPLATE_CUT", state.after.to_string());
    command.stdout(copy()?).stderr(copy()?);
    let ended = Program::start(&mut command, &scratch)?.wait(Some(lab.arguments.timeout), &lab.stop)?;
    let removed = std::fs::remove_dir_all(&scratch).and_then(|()| std::fs::remove_file(&acknowledged));
    removed.map_err(|error| Failure::system("clean up", &scratch, &error))?;
    Ok((ended, end_of(&output)))
}

/// Returns the end of what a program printed.
fn end_of(output: &File) -> String {
    let read = || -> std::io::Result<String> {
        let length = output.metadata()?.len();
        let mut bytes = vec![0; usize::try_from(length.min(SAID_BYTES)).unwrap_or_default()];
        output.read_exact_at(&mut bytes, length.saturating_sub(SAID_BYTES))?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_else(|error| plain(&error))
}

/// Writes a state into an image file, sparse where it holds zeros.
fn keep_image(device: &RecordingDevice, dir: &Path, name: &str) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| Failure::system("make the directory", dir, &error))?;
    let path = dir.join(format!("state-{name}.img"));
    let file = new_file(&path)?;
    file.set_len(device.size_bytes()).map_err(|error| Failure::system("write", &path, &error))?;
    device.copy_to(&mut |offset, bytes| {
        file.write_all_at(bytes, offset).map_err(|error| DeviceError {
            kind: DeviceErrorKind::Io,
            operation: Operation::Write,
            device: path.display().to_string(),
            offset: Some(offset),
            detail: plain(&error),
            errno: error.raw_os_error(),
        })
    })?;
    Ok(())
}
