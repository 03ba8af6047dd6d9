//! Real programs on the release binary: databases that are killed, data that is verified, input
//! that is bad.
//!
//! One table lists the tests with what they need and how long they may take. They run one at a
//! time. A test that returns an error has failed; one whose needs are not met is skipped with the
//! reason. However a test ends, nothing of it stays on the machine.

mod acls;
mod advise;
mod backups;
mod bad_input;
mod bed;
mod branches;
mod convert;
mod crashlab;
mod doctor;
mod edges;
mod exported;
mod failing_device;
mod fio;
mod full_volume;
mod guest;
mod leased;
mod leased_fio;
mod ledger;
mod mariadb;
mod mixed_open;
mod modes;
mod nbd;
mod needs;
mod nfs;
mod nfs_run;
mod outside;
mod package;
mod pages;
mod peer;
mod postgres;
mod ratio;
mod ratio_files;
mod ratio_names;
mod ratio_nbd;
mod ratio_programs;
mod ratio_redo;
mod recovery;
mod restricted;
mod scale;
mod scrubs;
mod sqlite;
mod suites;
mod superblock;
mod table;
mod volumes;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

pub use needs::exec_without_io_uring;
pub use peer::serve as serve_peer;
pub use ratio_files::append;

use crate::tally::{Outcome, Tally};
use crate::{cleanup, released};
use bed::Bed;
use table::{MEASUREMENTS, TESTS, Test};

/// What `cargo xtask real` takes.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Tests to run: those whose name starts with one of these; all when none is named
    names: Vec<String>,
    /// List the tests and what they need
    #[arg(long)]
    list: bool,
    /// Scale of pgbench's tables
    #[arg(long, default_value_t = 2)]
    scale: u32,
    /// Seconds of load; the kill comes in the middle
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// How often a database is killed
    #[arg(long, default_value_t = 3)]
    kills: u32,
    /// Files of the recovery measurement; 10,000 tells of a large volume
    #[arg(long, default_value_t = 500)]
    files: u64,
    /// Extents of the recovery measurement; 1,000,000 tells of a large volume
    #[arg(long, default_value_t = 50_000)]
    extents: u64,
    /// Power cuts under PostgreSQL with untorn pages; 400 tells more
    #[arg(long, default_value_t = 24)]
    states: u32,
    /// Rounds of a comparison
    #[arg(long, default_value_t = 2)]
    rounds: u32,
    /// Buffers of PostgreSQL in a comparison
    #[arg(long, default_value = "128MB", value_name = "SIZE")]
    buffers: String,
    /// Of a comparison: only the first target, which the others are compared with, and these
    #[arg(long = "target", value_name = "NAME")]
    targets: Vec<String>,
    /// Write how a load went through time into this directory, as CSV and SVG
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Use this binary instead of building one
    #[arg(long)]
    program: Option<PathBuf>,
    #[command(flatten)]
    suites: suites::Choice,
}

impl Default for Options {
    fn default() -> Self {
        use clap::Parser;

        #[derive(Parser)]
        struct Bare {
            #[command(flatten)]
            options: Options,
        }
        Bare::parse_from(["real"]).options
    }
}

/// Runs the tests that `options` names and adds their outcomes to `tally`.
///
/// # Errors
/// When no test has such a name or the binary cannot be built.
pub fn run(options: &Options, tally: &mut Tally) -> Result<()> {
    let chosen = choose(options)?;
    if options.list {
        for test in chosen {
            println!("{:<32} up to {} s, needs {:?}", test.name, test.budget_s, test.needs);
        }
        return Ok(());
    }
    needs::install();
    let program = match &options.program {
        Some(program) => {
            program.canonicalize().with_context(|| format!("cannot find {}", program.display()))?
        }
        None => released::build()?.join("bedplate"),
    };
    let count = chosen.len();
    for (at, test) in chosen.into_iter().enumerate() {
        println!("real {}: {} of {count}", test.name, at + 1);
        run_until_sure(&format!("real {}", test.name), tally, || run_one(test, &program, options));
    }
    Ok(())
}

/// Runs a test, and once more where it failed: on a loaded machine a program may lose to a time
/// limit. One that fails and then passes is counted as flaky, with the reason of its failure.
fn run_until_sure(name: &str, tally: &mut Tally, mut run: impl FnMut() -> Outcome) {
    let mut told = || {
        let start = Instant::now();
        let outcome = run();
        let verdict = match &outcome {
            Outcome::Passed => "ok".to_owned(),
            Outcome::Failed(reason) => format!("FAILED: {reason}"),
            Outcome::Skipped(reason) => format!("skipped: {reason}"),
        };
        println!("{name} ... {verdict} ({:.1} s)", start.elapsed().as_secs_f64());
        outcome
    };
    match told() {
        Outcome::Failed(reason) if !cleanup::is_stopping() => match told() {
            Outcome::Passed => tally.flaky.push((
                name.to_owned(),
                format!("it failed once and then passed, which proves nothing: {reason}"),
            )),
            again => tally.add(name, again),
        },
        outcome => tally.add(name, outcome),
    }
}

fn choose(options: &Options) -> Result<Vec<&'static Test>> {
    if options.names.is_empty() {
        return Ok(TESTS.iter().chain(if options.list { MEASUREMENTS } else { &[] }).collect());
    }
    let named =
        |test: &&Test| options.names.iter().any(|name| test.name.starts_with(name.as_str()));
    let chosen: Vec<_> = TESTS.iter().chain(MEASUREMENTS).filter(named).collect();
    ensure!(
        !chosen.is_empty(),
        "no test has a name that starts so: `cargo xtask real --list` names them"
    );
    Ok(chosen)
}

/// Runs one test within its budget.
fn run_one(test: &Test, program: &Path, options: &Options) -> Outcome {
    if let Some(reason) = test.needs.iter().find_map(|need| need.missing()) {
        return Outcome::Skipped(reason);
    }
    // A longer load gets its time on top, once a kill and round.
    let budget = Duration::from_secs(
        test.budget_s
            + options.seconds * u64::from(options.kills.max(2 * options.rounds)) * 4
            + options.extents / 1000,
    );
    let (ended, watch) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let expired = watch.recv_timeout(budget) == Err(mpsc::RecvTimeoutError::Timeout);
        if expired {
            // Whatever the test hangs on comes back with an error once its servers are dead.
            cleanup::run_all();
        }
        expired
    });
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        Bed::new(program).and_then(|mut bed| (test.run)(&mut bed, options))
    }));
    drop(ended);
    let expired = watchdog.join().expect("the watchdog does not panic");
    cleanup::run_all();
    match result {
        _ if expired => Outcome::Failed(format!("it did not end within {} s", budget.as_secs())),
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(error)) => Outcome::Failed(format!("{error:#}")),
        Err(_) => Outcome::Failed("it panicked; see its output above".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_once_is_flaky_and_what_fails_twice_has_failed() {
        let verdict = |outcomes: &[Outcome]| {
            let (mut tally, mut outcomes) = (Tally::default(), outcomes.iter().cloned());
            run_until_sure("a", &mut tally, || outcomes.next().expect("no third run"));
            assert_eq!(outcomes.next(), None, "every run is made");
            (tally.passed, tally.flaky.len(), tally.failed.len(), tally.skipped.len())
        };
        let failed = || Outcome::Failed("slow".to_owned());
        assert_eq!(verdict(&[Outcome::Passed]), (1, 0, 0, 0));
        assert_eq!(verdict(&[Outcome::Skipped("no root".to_owned())]), (0, 0, 0, 1));
        assert_eq!(verdict(&[failed(), Outcome::Passed]), (0, 1, 0, 0));
        assert_eq!(verdict(&[failed(), failed()]), (0, 0, 1, 0));
    }
}
