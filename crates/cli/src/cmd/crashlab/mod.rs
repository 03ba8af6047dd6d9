//! `bedplate crashlab [OPTIONS] --check CMD -- COMMAND…`: power cuts under the user's own program.
//!
//! ```text
//! record ─ fresh volume, or one that is not touched ─► --setup ─► COMMAND, its device writes and acknowledgements recorded
//! replay ─ sample (seed) ─► for each state: the device a cut leaves ─► mount, which recovers ─► --check ─► verdict
//! report ─ text, --json, --report DIR: crashlab.html and crashlab.json
//! ```

mod acknowledged;
mod html;
mod layout;
mod place;
mod program;
mod record;
mod replay;
mod report;
mod stored;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bedplate::{parse_duration, parse_size};
use clap::Args;
use serve::fuse::MountSettings;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Exit, Failure, Result};
use crate::output::Output;
use place::Place;
use record::Recorded;
use report::Report;

/// Cut the power under your own program, hundreds of times, and check what your recovery makes of it
///
/// COMMAND runs on a mounted volume whose device writes are recorded. Then the lab makes the states that a power cut may leave at any of them: of
/// the writes that no flush had covered any may be lost or torn, and those that arrived may have done so in any order. Each state is mounted and the
/// checker runs on it; it passes when that ends with exit code 0. Exit code 4 says that states failed.
///
/// All programs find the mount in BEDPLATE_DIR and a directory outside of it, for sockets and logs, in BEDPLATE_SCRATCH. What COMMAND prints, line by line,
/// or writes to the pipe BEDPLATE_ACKNOWLEDGE, it has acknowledged: the checker finds the lines that were out before the cut in the file
/// BEDPLATE_ACKNOWLEDGED, and the number of the state in BEDPLATE_STATE.
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
    /// How many states are tried at once; two for each processor when it is not given. With 1 every mount is on the same directory
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

/// What every part of the lab needs.
struct Lab<'a> {
    arguments: &'a Arguments,
    output: &'a Output,
    settings: MountSettings,
    stop: Arc<AtomicBool>,
    place: Place,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let mut settings = MountSettings::parse(&arguments.options.join(","))?;
    if settings.file_system.read_only {
        return Err(Failure::usage("a crash lab on a read-only mount has nothing to record: leave out the mount option ro"));
    }
    settings.source.get_or_insert_with(|| "crashlab".to_owned());
    require_fuse()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))?;
    }
    let lab = Lab { arguments, output, settings, stop, place: Place::make(arguments.dir.as_deref())? };
    let recorded = match &arguments.replay {
        Some(dir) => stored::load(dir)?,
        None => record::record(&lab)?,
    };
    let report = try_states(&lab, &recorded)?;
    if let Some(dir) = &arguments.report {
        report::write(&report, dir)?;
    }
    drop(lab);
    output.show(&report)?;
    Ok(if report.failed == 0 { Exit::Done } else { Exit::Broken })
}

fn try_states(lab: &Lab, recorded: &Recorded) -> Result<Report> {
    let seed = lab.arguments.seed.unwrap_or_else(any_seed);
    let layout = replay::uncut(lab, recorded)?;
    let started = Instant::now();
    let tried = replay::states(lab, recorded, seed)?;
    Report::new(lab, recorded, seed, &tried, &layout, started.elapsed())
}

/// A number that people can type.
fn any_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| u64::from(now.subsec_nanos()) / 1000 + 1)
}

/// Refuses to begin where nothing can be mounted.
fn require_fuse() -> Result<()> {
    if std::path::Path::new("/dev/fuse").exists() {
        return Ok(());
    }
    let why = "a crash lab runs programs on a mount, and there is no /dev/fuse here";
    Err(Failure::new("unavailable", format!("{why}: load the module with 'modprobe fuse', or give the container the device (--device /dev/fuse)")))
}
