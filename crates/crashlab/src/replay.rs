//! The replaying half: the device that a cut leaves, mounted, and the checker's verdict on it;
//! several at once.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bedplate::{BlockDevice, DeviceError, DeviceErrorKind};
use bedplate_block::{CrashChoice, CrashStep, Operation, RecordingDevice};
use serde::Serialize;

use crate::acknowledged::{before, copy_first};
use crate::error::{Error, ErrorKind, Result, plain};
use crate::lab::{Lab, Stage};
use crate::layout::Layout;
use crate::program::{Ended, Program, shell};
use crate::recorded::Recorded;
use crate::sample::{CrashState, Pattern, Sampling, sample};
use crate::workplace::{Mounted, new_file};

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

/// Runs the checker where nothing was lost. What fails there tells nothing of power cuts. Returns
/// where the files lay in the end.
pub fn uncut(lab: &Lab<'_>, recorded: &Recorded) -> Result<Layout> {
    let all = recorded.recording.operations().len();
    let state = CrashState {
        number: 0,
        after: all,
        pattern: Pattern::Everything,
        steps: everything(recorded, all),
    };
    (lab.progress)(Stage::Checking);
    let tried = try_state(lab, recorded, &state, "uncut", "mnt", recorded.acknowledgements.len())?;
    if tried.verdict != Verdict::Passed {
        let said =
            tried.said.lines().last().map(|line| format!(", saying '{line}'")).unwrap_or_default();
        let why = "the checker fails even where nothing was lost";
        return Err(Error::new(
            ErrorKind::Checker,
            format!("{why} ({}{said}): mend it, or the command, first", tried.ended),
        ));
    }
    layout_after(lab, recorded, *recorded.cuts.end())
}

fn everything(recorded: &Recorded, after: usize) -> Vec<CrashStep> {
    recorded.recording.crash_steps(after, &CrashChoice::KeepAll)
}

/// Returns where the files lay at a moment of the recording, as far as the device knew.
pub fn layout_after(lab: &Lab<'_>, recorded: &Recorded, after: usize) -> Result<Layout> {
    Layout::of(recorded.recording.crash_device(
        after,
        &everything(recorded, after),
        lab.workplace.nameless(&format!("spool-layout-{after}"))?,
    ))
}

/// Which states are tried.
#[derive(Debug, Clone, Copy)]
pub struct Selection {
    /// The states follow from it.
    pub seed: u64,
    /// How many are tried.
    pub states: u64,
    /// The one that alone is tried.
    pub only: Option<u64>,
}

/// Tries the states of a selection; they come back in the order of their numbers.
pub fn states(lab: &Lab<'_>, recorded: &Recorded, selection: &Selection) -> Result<Vec<Tried>> {
    let Selection { seed, states, only } = *selection;
    let mut acknowledged: Vec<usize> =
        recorded.acknowledgements.iter().map(|line| line.after).collect();
    acknowledged.dedup();
    let wanted = only.map_or(states, |state| state.saturating_add(1));
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(1_000_001);
    let sampling =
        Sampling { seed, states: wanted, cuts: recorded.cuts.clone(), acknowledged: &acknowledged };
    let mut states = sample(&recorded.recording, &sampling);
    if let Some(only) = only {
        states.retain(|state| state.number as u64 == only);
        if states.is_empty() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("seed {seed} has no state {only} of this recording"),
            ));
        }
    }
    // In the order of the cuts the recording makes devices quickest.
    states.sort_by_key(|state| (state.after, state.number));
    let mut tried = try_all(lab, recorded, &states)?;
    tried.sort_by_key(|tried| tried.state.number);
    Ok(tried)
}

fn try_all(lab: &Lab<'_>, recorded: &Recorded, states: &[CrashState]) -> Result<Vec<Tried>> {
    let jobs = lab.jobs.min(states.len()).max(1);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(states.len())));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs)
            .map(|worker| {
                let (next, done) = (&next, &done);
                scope.spawn(move || -> Result<()> {
                    // One job is always at the place where the command was.
                    let mount = if jobs == 1 { "mnt".to_owned() } else { format!("mnt-{worker}") };
                    while let Some(state) = states.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let lines = before(&recorded.acknowledgements, state.after);
                        let tried = try_state(
                            lab,
                            recorded,
                            state,
                            &state.number.to_string(),
                            &mount,
                            lines,
                        );
                        // The first error ends the other workers, too.
                        let tried =
                            tried.inspect_err(|_| next.store(states.len(), Ordering::Relaxed))?;
                        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                        done.push(tried);
                        (lab.progress)(Stage::States {
                            done: done.len(),
                            total: states.len(),
                            failed: failures(&done),
                        });
                    }
                    Ok(())
                })
            })
            .collect();
        let died = |_| Error::new(ErrorKind::Io, "a thread of the lab died");
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join().map_err(died)).collect();
        ended.into_iter().try_for_each(|ended| ended?)
    })?;
    Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn failures(done: &[Tried]) -> usize {
    done.iter().filter(|tried| tried.verdict != Verdict::Passed).count()
}

/// Makes the state, mounts it and runs the checker.
fn try_state(
    lab: &Lab<'_>,
    recorded: &Recorded,
    state: &CrashState,
    name: &str,
    mount: &str,
    lines: usize,
) -> Result<Tried> {
    let started = Instant::now();
    let make = || -> Result<Arc<RecordingDevice>> {
        let scratch = lab.workplace.nameless(&format!("spool-{name}"))?;
        Ok(recorded.recording.crash_device(state.after, &state.steps, scratch))
    };
    let dir = lab.workplace.directory(mount)?;
    let finish = |verdict, ended, said| Tried {
        state: state.clone(),
        verdict,
        ended,
        said,
        duration: started.elapsed(),
    };
    let tried = match Mounted::start(make()?, &dir, &lab.settings) {
        Ok(mounted) => {
            let checked = run_checker(lab, recorded, &dir, name, state, lines);
            let abandoned = mounted.abandon();
            let (ended, said) = checked?;
            abandoned?;
            finish(verdict(ended), ended.words(), said)
        }
        Err(error) if blames_the_volume(error.kind) => {
            finish(Verdict::NotMounted, error.message, String::new())
        }
        Err(error) => return Err(error),
    };
    if tried.verdict != Verdict::Passed
        && let Some(keep) = lab.keep_failing
    {
        keep_image(&*make()?, keep, name)?;
    }
    Ok(tried)
}

/// Returns whether an error of a mount can be the volume's fault. A machine on which nothing can be
/// mounted says nothing about the state.
fn blames_the_volume(kind: ErrorKind) -> bool {
    use bedplate::ErrorKind as Kind;
    match kind {
        ErrorKind::FileSystem(kind) => matches!(kind, Kind::Corrupt | Kind::NotAVolume | Kind::Io),
        ErrorKind::Mount(kind) => {
            matches!(kind, bedplate_serve::ErrorKind::Io | bedplate_serve::ErrorKind::FileSystem)
        }
        kind => matches!(kind, ErrorKind::Corrupt | ErrorKind::Io),
    }
}

fn verdict(ended: Ended) -> Verdict {
    match ended {
        Ended::TimedOut => Verdict::TimedOut,
        Ended::With(status) if status.success() => Verdict::Passed,
        Ended::With(_) => Verdict::Failed,
    }
}

fn run_checker(
    lab: &Lab<'_>,
    recorded: &Recorded,
    dir: &Path,
    name: &str,
    state: &CrashState,
    lines: usize,
) -> Result<(Ended, String)> {
    let scratch = lab.workplace.scratch(&format!("scratch-{name}"))?;
    let acknowledged = lab.workplace.path(&format!("acknowledged-{name}"));
    copy_first(&recorded.lines, &recorded.acknowledgements, lines, &acknowledged)?;
    let output = lab.workplace.nameless(&format!("output-{name}"))?;
    let copy = || {
        output
            .try_clone()
            .map(Stdio::from)
            .map_err(|error| Error::io("keep what the checker prints", &error))
    };
    let mut command = shell(lab.check);
    command.env("BEDPLATE_DIR", dir).env("BEDPLATE_ACKNOWLEDGED", &acknowledged);
    command.env("BEDPLATE_STATE", name).env("BEDPLATE_CUT", state.after.to_string());
    command.stdout(copy()?).stderr(copy()?);
    let ended = Program::start(&mut command, &scratch)?.wait(Some(lab.timeout), lab.stop)?;
    let removed =
        std::fs::remove_dir_all(&scratch).and_then(|()| std::fs::remove_file(&acknowledged));
    removed.map_err(|error| Error::system("clean up", &scratch, &error))?;
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
    std::fs::create_dir_all(dir)
        .map_err(|error| Error::system("make the directory", dir, &error))?;
    let path = dir.join(format!("state-{name}.img"));
    let file = new_file(&path)?;
    file.set_len(device.size_bytes()).map_err(|error| Error::system("write", &path, &error))?;
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
