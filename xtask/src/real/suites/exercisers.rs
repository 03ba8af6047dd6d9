//! fsx and fsstress: random operations on one file, each compared with what it should hold, and of
//! many processes on a tree of names.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::pjdfstest::last_line;
use super::results::{Results, Verdict};
use super::test_mount::Runner;

const LIMIT: Duration = Duration::from_secs(900);

/// How fsx of fstests reaches the file: each case with its arguments.
const CASES: [(&str, &[&str]); 6] = [
    ("buffered and mapped", &[]),
    ("without maps", &["-R", "-W"]),
    ("past the page cache", &["-Z", "-R", "-W", "-r", "4096", "-w", "4096", "-t", "4096"]),
    (
        "asynchronous past the page cache",
        &["-A", "-Z", "-R", "-W", "-r", "4096", "-w", "4096", "-t", "4096"],
    ),
    ("closed and opened", &["-c", "50"]),
    ("synced", &["-y"]),
];

/// The program that is driven.
pub enum Fsx<'a> {
    /// fsx of fstests: all cases.
    OfFstests(&'a Path),
    /// The crate `fsx`: its default alone, because it knows no other arguments.
    Crate(&'a Path),
}

/// Runs fsx with some seeds, each so many operations.
pub fn fsx(program: &Fsx, directory: &Path, runner: &Runner, quick: bool) -> Result<Results> {
    let (seeds, operations) = if quick { (1, "2000") } else { (3, "20000") };
    let mut results = Results::default();
    let (program, cases) = match program {
        Fsx::OfFstests(program) => (program, &CASES[..]),
        Fsx::Crate(program) => (program, &CASES[..1]),
    };
    for (case, arguments) in cases {
        for seed in 1..=seeds {
            let test = format!("{case}, seed {seed}");
            let log = runner.logs.join(format!("fsx-{}-{seed}.log", case.replace(' ', "-")));
            let file = directory.join("fsx");
            let mut command = Command::new(program);
            command
                .args(*arguments)
                .args(["-N", operations, "-S", &seed.to_string(), "-P"])
                .arg(&runner.logs)
                .arg(&file);
            let ended = runner.run(&mut command, &log, LIMIT)?;
            finish(&mut results, &test, &ended, &log)?;
            drop(std::fs::remove_file(&file));
        }
    }
    Ok(results)
}

/// Runs fsstress with some seeds; that the volume is sound afterwards is told by its check.
pub fn fsstress(program: &Path, directory: &Path, runner: &Runner, quick: bool) -> Result<Results> {
    let (seeds, operations) = if quick { (1, "500") } else { (4, "3000") };
    let mut results = Results::default();
    for seed in 1..=seeds {
        let log = runner.logs.join(format!("fsstress-{seed}.log"));
        let place = directory.join(format!("stress-{seed}"));
        std::fs::create_dir(&place)?;
        let mut command = Command::new(program);
        command.args(["-p", "4", "-n", operations, "-s", &seed.to_string(), "-d"]).arg(&place);
        let ended = runner.run(&mut command, &log, LIMIT)?;
        finish(&mut results, &format!("seed {seed}"), &ended, &log)?;
    }
    Ok(results)
}

fn finish(
    results: &mut Results,
    test: &str,
    ended: &super::test_mount::Ended,
    log: &Path,
) -> Result<()> {
    if ended.code == Some(0) {
        results.add(test, Verdict::Passed);
        return Ok(std::fs::remove_file(log)?);
    }
    results.add(test, Verdict::Failed(last_line(&ended.text, ended.late)));
    Ok(())
}
