//! `bedplate mode try FILE MODE [--for DURATION] [--keep-if CONDITION]`

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate::{FileActivity, IoMode, Timestamp};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::iostat;
use crate::condition::{Condition, Outcome};
use crate::failure::{Failure, Result};
use crate::live;
use crate::output::Output;
use crate::trial::{Measured, Trial, Verdict};

/// Try another I/O mode on a live file: measure it as it is served now, then in the new mode, and keep the mode only if it was worth it
///
/// A condition compares quantities: p50, p99, average (of reads and writes; read.p99, write.p99, sync.p99 of these alone), throughput, operations (a
/// second) and hit (ratio of the library cache), with <, <=, > or >=, against a change (-10%) or a value (500us, 200M, 10000, 0.8), joined by 'and' and
/// 'or'. Ctrl-C puts the file back. The verdict stays with the file: 'bedplate explain' and 'bedplate stat' show it.
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
    /// When to keep the new mode
    #[arg(long, value_name = "CONDITION", default_value = "p99 < -10%", allow_hyphen_values = true, value_parser = |text: &str| text.parse::<Condition>())]
    keep_if: Condition,
    /// Fewer reads and writes than this in either part say nothing: the file is put back
    #[arg(long, value_name = "N", default_value_t = 100)]
    operations_min: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let path = &arguments.file;
    live::require_mount(path)?;
    let before = look(arguments)?;
    let (mode_before, served_before) = (live::get(path, live::MODE)?.filter(|mode| !mode.is_empty()), served(arguments)?);
    if served_before == arguments.mode.name() {
        return Err(Failure::usage(format!("{} is served as {served_before} already: there is nothing to try", path.display())));
    }
    let interrupted = interrupts()?;
    let began = Timestamp::now().0;
    let Some(before) = measure(arguments, &before, &interrupted)? else { return Err(stopped("before anything was changed")) };
    let cached = served_before == IoMode::Cached.name() || arguments.mode == IoMode::Cached;
    let mut trial = Trial {
        began,
        mode_before,
        served_before,
        mode_tried: arguments.mode.name().to_owned(),
        keep_if: arguments.keep_if.text.clone(),
        verdict: Verdict::Running,
        reason: "the trial is under way, or was killed".to_owned(),
        before,
        after: None,
        note: cached.then(|| {
            "what the kernel's page cache answers to programs that opened the file cached is not seen here, and counts for neither side".to_owned()
        }),
    };
    // First: whoever finds the file in the new mode after this command was killed finds out why.
    trial.store(path)?;
    let judged = try_out(arguments, &mut trial, &interrupted);
    if !matches!(judged, Ok(Verdict::Kept)) {
        put_back(arguments, &trial)?;
    }
    match judged {
        Ok(verdict) => trial.verdict = verdict,
        Err(failure) => {
            (trial.verdict, trial.reason) = (Verdict::Reverted, failure.message.clone());
            trial.store(path)?;
            return Err(failure);
        }
    }
    trial.store(path)?;
    output.show(&trial)
}

/// Switches, measures and judges; whatever comes of it but `Kept`, the caller puts the file back.
fn try_out(arguments: &Arguments, trial: &mut Trial, interrupted: &AtomicBool) -> Result<Verdict> {
    let wanted = arguments.mode.name();
    live::set(&arguments.file, live::MODE, wanted)?;
    let now = served(arguments)?;
    if now != wanted {
        trial.reason = format!("it could not be served as {wanted}: its opens want {now}; 'bedplate explain' tells which");
        return Ok(Verdict::Reverted);
    }
    let Some(after) = measure(arguments, &look(arguments)?, interrupted)? else { return Err(stopped("and the file put back as it was")) };
    let few = [("before", &trial.before), ("after", &after)].into_iter().find(|(_, part)| part.operations < arguments.operations_min);
    let few = few.map(|(when, part)| format!("only {} reads and writes {when} the switch, fewer than {}", part.operations, arguments.operations_min));
    let outcome = arguments.keep_if.judge(|quantity| Some((trial.before.value(quantity)?, after.value(quantity)?)));
    trial.after = Some(after);
    let (verdict, reason) = match (few, outcome) {
        (Some(few), _) => (Verdict::Reverted, few),
        (None, Outcome::Holds(found)) => (Verdict::Kept, found),
        (None, Outcome::Fails(found)) => (Verdict::Reverted, format!("not {found}")),
        (None, Outcome::Unknown(what)) => (
            Verdict::Reverted,
            format!("'{what}' could not be judged: too few operations were timed; measure longer, or time more with the tunable latency-sample"),
        ),
    };
    trial.reason = reason;
    Ok(verdict)
}

fn put_back(arguments: &Arguments, trial: &Trial) -> Result<()> {
    match &trial.mode_before {
        Some(mode) => live::set(&arguments.file, live::MODE, mode),
        None => live::remove(&arguments.file, live::MODE),
    }
}

fn served(arguments: &Arguments) -> Result<String> {
    live::get(&arguments.file, live::EFFECTIVE_MODE)?
        .ok_or_else(|| Failure::usage(format!("{} is not a file: a trial needs one", arguments.file.display())))
}

fn look(arguments: &Arguments) -> Result<FileActivity> {
    let missing = || Failure::usage(format!("{} is not a file: a trial needs one", arguments.file.display()));
    live::get_as(&arguments.file, live::ACTIVITY)?.ok_or_else(missing)
}

/// Measures from a look on; `None` when it was interrupted.
fn measure(arguments: &Arguments, from: &FileActivity, interrupted: &AtomicBool) -> Result<Option<Measured>> {
    let began = Instant::now();
    while began.elapsed() < arguments.length {
        if interrupted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(50).min(arguments.length - began.elapsed().min(arguments.length)));
    }
    Ok(Some(Measured::between(from, &look(arguments)?, began.elapsed().as_secs_f64())))
}

/// Takes the signals that would end this command with the file in the wrong mode.
fn interrupts() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))?;
    }
    Ok(flag)
}

fn stopped(how: &str) -> Failure {
    Failure::new("interrupted", format!("the trial was interrupted, {how}"))
}
