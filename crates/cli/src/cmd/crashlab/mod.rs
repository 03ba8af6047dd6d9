//! `bedplate crashlab [OPTIONS] --check CMD -- COMMAND…`: power cuts under the user's own program.

mod report;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bedplate::{parse_duration, parse_size};
use bedplate_crashlab::{Lab, Run, Selection, Stage, Workplace};
use bedplate_serve::fuse::MountSettings;
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::device;
use crate::failure::{Exit, Failure, Result};
use crate::render::output::{Output, Shown};
use crate::render::progress::{Spinner, Steps};

/// Cut the power under your own program, hundreds of times, and check what your recovery makes of
/// it
///
/// COMMAND runs on a mounted volume whose device writes are recorded. Then the lab makes the states
/// that a power cut may leave at any of them: of the writes that no flush had covered any may be
/// lost or torn, and those that arrived may have done so in any order. Each state is mounted and
/// the checker runs on it; it passes when that ends with exit code 0. Exit code 4 says that states
/// failed.
///
/// All programs find the mount in BEDPLATE_DIR and a directory outside of it, for sockets and logs,
/// in BEDPLATE_SCRATCH. What COMMAND prints, line by line, or writes to the pipe
/// BEDPLATE_ACKNOWLEDGE, it has acknowledged: the checker finds the lines that were out before the
/// cut in the file BEDPLATE_ACKNOWLEDGED, and the number of the state in BEDPLATE_STATE.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct Arguments {
    /// The checker, a line for the shell: exit code 0 says that nothing is missing
    #[arg(long, value_name = "CMD")]
    check: String,
    /// Runs on the volume before the recording begins, a line for the shell
    #[arg(long, value_name = "CMD", conflicts_with = "replay")]
    setup: Option<String>,
    /// Start with this volume instead of a fresh one; it is only read
    #[arg(long, value_name = "PATH", conflicts_with_all = ["size", "replay"])]
    image: Option<PathBuf>,
    /// Size of the fresh volume; the space is taken as it is written
    #[arg(long, value_parser = parse_size, default_value = "1G", conflicts_with = "replay")]
    size: u64,
    /// Options of the mounts, as 'bedplate mount -o' takes them
    #[arg(short, value_name = "OPTION[,OPTION…]")]
    options: Vec<String>,
    /// What a power cut never tears, in bytes
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "512", conflicts_with = "replay")]
    sector: u64,
    /// How many states are tried
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    states: u64,
    /// Chooses the states; chosen and printed when it is not given
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Try this state of the seed alone
    #[arg(long, value_name = "N")]
    state: Option<u64>,
    /// How many states are tried at once; two for each processor when it is not given. With 1 every
    /// mount is on the same directory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: Option<u64>,
    /// How long one run of the checker may take
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    timeout: Duration,
    /// Write crashlab.html and crashlab.json here
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Keep failing states here as image files, as the cut left them
    #[arg(long, value_name = "DIR")]
    keep_failing: Option<PathBuf>,
    /// Keep the recording here, for --replay
    #[arg(long, value_name = "DIR", conflicts_with = "replay")]
    recording: Option<PathBuf>,
    /// Try states of a recording that was kept, instead of running COMMAND
    #[arg(long, value_name = "DIR")]
    replay: Option<PathBuf>,
    /// Where to work; a directory of its own is made in it
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "replay", conflicts_with = "replay")]
    command: Vec<String>,
}

const EXAMPLE: &str = "\
Example:
  bedplate crashlab --setup 'sqlite3 $BEDPLATE_DIR/db \"CREATE TABLE t(n INTEGER PRIMARY KEY)\"' \\
      --check 'test $(sqlite3 $BEDPLATE_DIR/db \"SELECT count(*) FROM t\") -ge $(wc -l < $BEDPLATE_ACKNOWLEDGED)' -- ./workload.sh";

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let mut settings = MountSettings::parse(&arguments.options.join(","))?;
    if settings.file_system.read_only {
        return Err(Failure::usage(
            "a crash lab on a read-only mount has nothing to record: leave out the mount option ro",
        ));
    }
    settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    settings.source.get_or_insert_with(|| "crashlab".to_owned());
    require_fuse()?;
    let stop = stopped_by_signals()?;
    let shown = Mutex::new(Progress::Idle);
    let seed = arguments.seed.unwrap_or_else(any_seed);
    let lab = Lab {
        settings,
        check: &arguments.check,
        timeout: arguments.timeout,
        jobs: arguments.jobs(),
        keep_failing: arguments.keep_failing.as_deref(),
        open_image: &device::open_to_look,
        stop: &stop,
        progress: &|stage| shown.lock().unwrap_or_else(PoisonError::into_inner).at(stage, output),
        workplace: Workplace::make(arguments.dir.as_deref())?,
    };
    let recorded = match &arguments.replay {
        Some(dir) => bedplate_crashlab::load(&lab, dir)?,
        None => bedplate_crashlab::record(&lab, &arguments.run(&arguments.options.join(",")))?,
    };
    let selection = Selection { seed, states: arguments.states, only: arguments.state };
    let report = bedplate_crashlab::try_states(&lab, &recorded, &selection, arguments.again(seed))?;
    if let Some(dir) = &arguments.report {
        bedplate_crashlab::write(&report, dir)?;
    }
    *shown.lock().unwrap_or_else(PoisonError::into_inner) = Progress::Idle;
    drop(lab);
    let exit = if report.failed == 0 { Exit::Done } else { Exit::Broken };
    output.show(&Shown(report))?;
    Ok(exit)
}

impl Arguments {
    /// Returns how many states are tried at once.
    fn jobs(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.map_or(2 * processors, |jobs| jobs as usize)
    }

    /// Returns what is to be recorded.
    fn run<'a>(&'a self, options: &'a str) -> Run<'a> {
        Run {
            command: &self.command,
            setup: self.setup.as_deref(),
            image: self.image.as_deref(),
            size_bytes: self.size,
            sector_bytes: self.sector,
            options,
            keep: self.recording.as_deref(),
        }
    }

    /// Returns the command that tries one state again.
    fn again(&self, seed: u64) -> String {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        let mut line = "bedplate crashlab".to_owned();
        let kept = self.replay.as_ref().or(self.recording.as_ref());
        if let Some(dir) = kept {
            line.push_str(&format!(" --replay {}", dir.display()));
        }
        if !self.options.is_empty() {
            line.push_str(&format!(" -o {}", quoted(&self.options.join(","))));
        }
        line.push_str(&format!(" --seed {seed} --state STATE --check {}", quoted(&self.check)));
        if kept.is_none() {
            line.push_str(" …");
        }
        line
    }
}

/// How far the lab is, on a terminal.
enum Progress {
    Idle,
    Waiting { _spinner: Spinner },
    Counting(Steps),
}

impl Progress {
    fn at(&mut self, stage: Stage, output: &Output) {
        let label = match stage {
            Stage::Setup => "setup",
            Stage::Recording => "recording",
            Stage::Checking => "checking the uncut run",
            Stage::States { done, total, failed } => {
                if !matches!(self, Self::Counting(_)) {
                    *self = Self::Counting(Steps::new(output));
                }
                if let Self::Counting(steps) = self {
                    steps.at(done, total, &format!("states, {failed} failed"));
                }
                return;
            }
        };
        // The one before is gone from the terminal first.
        *self = Self::Idle;
        *self = Self::Waiting { _spinner: Spinner::start(output, label) };
    }
}

/// Takes the signals that end the lab early.
fn stopped_by_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))?;
    }
    Ok(stop)
}

/// A number that people can type.
fn any_seed() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |now| u64::from(now.subsec_nanos()) / 1000 + 1)
}

/// Refuses to begin where nothing can be mounted.
fn require_fuse() -> Result<()> {
    if Path::new("/dev/fuse").exists() {
        return Ok(());
    }
    let why = "a crash lab runs programs on a mount, and there is no /dev/fuse here";
    Err(Failure::new(
        "unavailable",
        format!(
            "{why}: load the module with 'modprobe fuse', or give the container the device \
             (--device /dev/fuse)"
        ),
    ))
}
