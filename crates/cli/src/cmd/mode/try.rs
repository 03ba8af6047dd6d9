//! `bedplate mode try FILE MODE [--for DURATION] [--keep-if CONDITION]…`

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate::{FileActivity, IoMode, Timestamp};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::address::PathArg;
use crate::cmd::iostat;
use crate::cmd::mode::condition::{Condition, Outcome, judge};
use crate::cmd::mode::trial::{Measured, OnTrial, Trial, Verdict};
use crate::failure::{Failure, Result};
use crate::mount::live;
use crate::render::output::Output;

/// Try another I/O mode on a live file: measure it as it is served now, then in the new mode, and
/// keep the mode only if it was worth it
///
/// A condition compares a quantity: p50, p99, average (of reads and writes; read.p99, write.p99,
/// sync.p99 of these alone), throughput, operations (a second) or hit (ratio of the library cache),
/// with <, <=, > or >=, against a change (-10%) or a value (500us, 200M, 10000, 0.8). Ctrl-C puts
/// the file back; so does the mount, within ten seconds, when this command is killed, and a crash.
/// The verdict stays with the file: 'bedplate explain' and 'bedplate stat' show it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file on a mount
    file: PathBuf,
    /// The mode to try: cached, direct, concurrent or concurrent+cache
    #[arg(value_parser = |text: &str| text.parse::<IoMode>())]
    mode: IoMode,
    /// How long to measure, before and again after the switch
    #[arg(long = "for", value_name = "DURATION", value_parser = iostat::interval, default_value = "60s")]
    length: Duration,
    /// When to keep the new mode; given several times, all have to hold
    #[arg(long, value_name = "CONDITION", default_value = "p99 < -10%", allow_hyphen_values = true, value_parser = |text: &str| text.parse::<Condition>())]
    keep_if: Vec<Condition>,
    /// Fewer reads and writes than this in either part say nothing: the file is put back
    #[arg(long, value_name = "N", default_value_t = 100)]
    operations_min: u64,
}

/// How often the mount is told that the trial goes on; it waits for ten seconds.
const RENEWED_EVERY: Duration = Duration::from_secs(1);

impl Arguments {
    /// The conditions as one sentence.
    fn conditions(&self) -> String {
        self.keep_if
            .iter()
            .map(|condition| condition.text.as_str())
            .collect::<Vec<_>>()
            .join(" and ")
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let path = &arguments.file;
    refuse_unfit(path)?;
    let file = OnTrial::open(path)?;
    let mode_before = file.mode()?;
    let served_before = file.served()?;
    if served_before == arguments.mode.name() {
        return Err(Failure::usage(format!(
            "{} is served as {served_before} already: there is nothing to try",
            path.display()
        )));
    }
    let interrupted = interrupts()?;
    let began = Timestamp::now().0;
    let Some(before) = measure(arguments, &file, &interrupted)? else {
        return Err(stopped("before anything was changed"));
    };
    let cached =
        served_before.parse().is_ok_and(IoMode::writes_behind) || arguments.mode.writes_behind();
    let mut trial = Trial {
        began,
        mode_before,
        served_before,
        mode_tried: arguments.mode.name().to_owned(),
        keep_if: arguments.conditions(),
        verdict: Verdict::Running,
        reason: "it is under way".to_owned(),
        before,
        after: None,
        note: cached.then(|| {
            "what the kernel's page cache answers to programs that opened the file cached is not \
             seen here, and counts for neither side"
                .to_owned()
        }),
    };
    file.begin(arguments.mode)?;
    let judged =
        file.store(&trial).and_then(|()| try_out(arguments, &file, &mut trial, &interrupted));
    let judged = judged.and_then(|verdict| {
        if verdict == Verdict::Kept { keep(&file, &mut trial) } else { Ok(verdict) }
    });
    // A kept mode is set by now: the file is served in it all the time.
    let ended = file.end();
    match judged {
        Ok(verdict) => trial.verdict = verdict,
        Err(failure) => {
            (trial.verdict, trial.reason) = (Verdict::Reverted, failure.message.clone());
            // The failure itself is what has to be told.
            drop(file.store(&trial));
            return Err(failure);
        }
    }
    ended?;
    file.store(&trial)?;
    output.show(&trial)
}

/// Refuses a file that no trial can be made with.
fn refuse_unfit(path: &Path) -> Result<()> {
    if let PathArg::Inside { volume, .. } = PathArg::parse(path) {
        return Err(Failure::usage(format!(
            "{} is not mounted: a trial needs programs that use the file",
            volume.display()
        )));
    }
    if live::require_mount(path)?.read_only {
        return Err(Failure::new(
            "read_only",
            format!(
                "{} lies on a mount that is read-only: its mode cannot be changed",
                path.display()
            ),
        ));
    }
    Ok(())
}

/// Measures in the other mode, and judges.
fn try_out(
    arguments: &Arguments,
    file: &OnTrial,
    trial: &mut Trial,
    interrupted: &AtomicBool,
) -> Result<Verdict> {
    let (wanted, now) = (arguments.mode.name(), file.served()?);
    if now != wanted {
        trial.reason = format!(
            "it could not be served as {wanted}: its opens want {now}; 'bedplate explain' tells \
             which"
        );
        return Ok(Verdict::Reverted);
    }
    let Some(after) = measure(arguments, file, interrupted)? else {
        return Err(stopped("and the file put back as it was"));
    };
    let few = [("before", &trial.before), ("after", &after)]
        .into_iter()
        .find(|(_, part)| part.operations < arguments.operations_min);
    let few = few.map(|(when, part)| {
        format!(
            "only {} reads and writes {when} the switch, fewer than {}",
            part.operations, arguments.operations_min
        )
    });
    let outcome = judge(&arguments.keep_if, |quantity| {
        Some((trial.before.value(quantity)?, after.value(quantity)?))
    });
    trial.after = Some(after);
    let (verdict, reason) = match (few, outcome) {
        (Some(few), _) => (Verdict::Reverted, few),
        (None, Outcome::Hold(found)) => (Verdict::Kept, found),
        (None, Outcome::Fails(found)) => (Verdict::Reverted, format!("not {found}")),
        (None, Outcome::Unknown(what)) => (
            Verdict::Reverted,
            format!(
                "'{what}' could not be judged: too few operations were timed; measure longer, or \
                 time more with the tunable latency-sample"
            ),
        ),
    };
    trial.reason = reason;
    Ok(verdict)
}

/// Sets the mode for good, unless one was set meanwhile.
fn keep(file: &OnTrial, trial: &mut Trial) -> Result<Verdict> {
    let now = file.mode()?;
    if now != trial.mode_before {
        let set = now.map_or_else(|| "taken away".to_owned(), |mode| format!("set to {mode}"));
        trial.reason =
            format!("the file's mode was {set} meanwhile, and stays so; {}", trial.reason);
        return Ok(Verdict::Reverted);
    }
    file.set_mode(&trial.mode_tried)?;
    Ok(Verdict::Kept)
}

/// Measures; `None` when it was interrupted. A trial that is under way is renewed meanwhile.
fn measure(
    arguments: &Arguments,
    file: &OnTrial,
    interrupted: &AtomicBool,
) -> Result<Option<Measured>> {
    let (from, began): (FileActivity, Instant) = (file.look()?, Instant::now());
    let mut renewed = began;
    while began.elapsed() < arguments.length {
        if interrupted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if renewed.elapsed() > RENEWED_EVERY {
            renewed = Instant::now();
            file.go_on()?;
        }
        std::thread::sleep(
            Duration::from_millis(50).min(arguments.length - began.elapsed().min(arguments.length)),
        );
    }
    file.go_on()?;
    Ok(Some(Measured::between(&from, &file.look()?, began.elapsed().as_secs_f64())))
}

/// Takes the signals that would end this command with the file in the wrong mode.
fn interrupts() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))?;
    }
    Ok(flag)
}

fn stopped(how: &str) -> Failure {
    Failure::new("interrupted", format!("the trial was interrupted, {how}"))
}
