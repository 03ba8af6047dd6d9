//! The crash judge at CI's size, in the release build: fifty thousand distinct crash states, every
//! cut of the directed workloads, many threads, errors, long changes with another operation in the
//! middle, programs on a mount.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::sh;
use crate::tally::{Outcome, Tally};

/// Distinct crash states of random workloads.
const STATES: &str = "50000";
/// The longest any of it may take.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// Runs the judge and adds what came of it to `tally`.
///
/// # Errors
/// When the judge does not build.
pub fn run(cargo: &mut Command, tally: &mut Tally) -> Result<()> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    if !sh::passes(cargo.args(["build", "--release", "--quiet", "-p", "bedplate-sim"]), LIMIT)? {
        bail!("the judge does not build");
    }
    let program = sh::target_directory()?.join("release/bedplate-sim");
    let runs: [(&str, &[&str]); 7] = [
        ("random workloads", &["--seeds", "0", "--states", STATES]),
        ("directed workloads, every cut", &["--directed", "--seeds", "1", "--every", "4"]),
        ("three threads", &["--threads", "3", "--seeds", "0", "--states", "2000"]),
        ("directed workloads, every fifth call fails", &["--failing", "--stride", "5"]),
        ("long changes, another step in the middle", &["--pairs", "16", "--cuts", "2"]),
        (
            "interleaved workloads, groups of devices among them",
            &["--interleaved", "--seeds", "0", "--states", "8000", "--cuts", "20"],
        ),
        ("programs on a mount", &["--mounted", "--seeds", "40", "--cuts", "10"]),
    ];
    let count = runs.len();
    for (at, (name, arguments)) in runs.into_iter().enumerate() {
        println!("   {name}: {} of {count}", at + 1);
        let name = format!("judge {name}");
        let finished =
            sh::finish(Command::new(&program).args(arguments).args(["--jobs", &jobs]), LIMIT)?;
        print!("{name}: {}", finished.text());
        tally.add(&name, outcome(&finished));
    }
    Ok(())
}

/// How a run of the judge ended. One that cannot run here says so on a line of its own.
fn outcome(finished: &sh::Finished) -> Outcome {
    let skipped = finished.stdout.lines().find_map(|line| line.strip_prefix("skipped: "));
    match (finished.status.success(), skipped) {
        (true, None) => Outcome::Passed,
        (true, Some(reason)) => Outcome::Skipped(reason.to_owned()),
        (false, _) => Outcome::Failed("see what it printed above".to_owned()),
    }
}

/// Lets the judge look at the directed workloads for half a minute, in the build that tests have;
/// `build` makes that.
///
/// # Errors
/// When the judge does not build.
pub fn look(build: &mut Command, tally: &mut Tally) -> Result<()> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    if !sh::passes(build.arg("--quiet"), LIMIT)? {
        bail!("the judge does not build");
    }
    let arguments =
        ["--directed", "--seeds", "1", "--cuts", "20", "--seconds", "30", "--jobs", &jobs];
    let passed = sh::passes(
        Command::new(sh::target_directory()?.join("debug/bedplate-sim")).args(arguments),
        LIMIT,
    )?;
    let outcome = if passed {
        Outcome::Passed
    } else {
        Outcome::Failed("see what it printed above".to_owned())
    };
    tally.add("judge, a first look", outcome);
    Ok(())
}
