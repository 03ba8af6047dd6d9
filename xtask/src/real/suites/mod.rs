//! Suites of others on the mount and on XFS, side by side: pjdfstest, fsx, fsstress, the generic
//! group of fstests, LTP's system calls on files, and CPython's tests of files.
//!
//! None of their code is here. A suite is a crate that cargo installs, or a source tree whose path
//! is given; one that is not there is skipped, with what to give. What the mount fails and XFS does
//! not has to be named in docs/proof.md, with its reason: what is not named there fails the run.

mod cpython;
mod exercisers;
mod fstests;
mod ltp;
mod pjdfstest;
mod results;
mod sources;
mod test_mount;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use super::Options;
use super::bed::Bed;
use exercisers::Fsx;
use results::{Named, Results, Verdict, differences};
use test_mount::{LEASED, Runner, Side, TestMount};

/// What `cargo xtask real suites` takes.
#[derive(Debug, Clone, Args)]
pub struct Choice {
    /// Suites: a selection of some minutes
    #[arg(long)]
    quick: bool,
    /// Suites: which of them; all when none is named
    #[arg(long = "suite", value_enum)]
    suites: Vec<Suite>,
    /// Suites: the I/O modes of the mount; leased is concurrent, the programs with leases
    #[arg(long = "mode", default_value = "cached", value_parser = ["cached", "direct",
        "concurrent",
        "concurrent+cache", LEASED])]
    modes: Vec<String>,
    /// Suites: only tests whose names start so
    #[arg(long, value_name = "PREFIX")]
    only: Vec<String>,
    /// Suites: how many seconds one test of fstests or LTP may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    limit: u64,
    /// Suites: the source tree of pjdfstest in C
    #[arg(long, value_name = "PATH")]
    pjdfstest: Option<PathBuf>,
    /// Suites: the source tree of fstests, for fsx, fsstress and its generic group
    #[arg(long, value_name = "PATH")]
    xfstests: Option<PathBuf>,
    /// Suites: the source tree of the Linux Test Project
    #[arg(long, value_name = "PATH")]
    ltp: Option<PathBuf>,
}

/// A suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// pjdfstest in Rust, the crate.
    Pjdfstest,
    /// pjdfstest in C.
    PjdfstestC,
    /// Random operations on one file.
    Fsx,
    /// Random operations on a tree of names.
    Fsstress,
    /// The generic group of fstests.
    Fstests,
    /// The system calls on files of the Linux Test Project.
    Ltp,
    /// CPython's tests of files and descriptors.
    Cpython,
}

impl Suite {
    const ALL: [Self; 7] = [
        Self::Pjdfstest,
        Self::PjdfstestC,
        Self::Fsx,
        Self::Fsstress,
        Self::Fstests,
        Self::Ltp,
        Self::Cpython,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Pjdfstest => "pjdfstest",
            Self::PjdfstestC => "pjdfstest-c",
            Self::Fsx => "fsx",
            Self::Fsstress => "fsstress",
            Self::Fstests => "fstests",
            Self::Ltp => "ltp",
            Self::Cpython => "cpython",
        }
    }
}

/// A suite that is there: where its program or its tree lies.
enum Ready {
    Pjdfstest(PathBuf),
    PjdfstestC(PathBuf),
    FsxCrate(PathBuf),
    FsxTree(PathBuf),
    Fsstress(PathBuf),
    Fstests(PathBuf),
    Ltp(PathBuf),
    Cpython,
}

/// Brings a suite: installs its crate, or builds the tree that is given.
fn prepare(suite: Suite, choice: &Choice) -> Result<Ready> {
    let tree = |path: &Option<PathBuf>, option: &str| {
        path.clone().with_context(|| format!("give its source tree with --{option} PATH"))
    };
    Ok(match suite {
        Suite::Pjdfstest => Ready::Pjdfstest(sources::from_crate("pjdfstest")?),
        Suite::PjdfstestC => {
            Ready::PjdfstestC(pjdfstest::tree(&tree(&choice.pjdfstest, "pjdfstest")?)?)
        }
        Suite::Fsx => match &choice.xfstests {
            Some(path) => Ready::FsxTree(fstests::tree(path)?.join("ltp/fsx")),
            None => Ready::FsxCrate(sources::from_crate("fsx")?),
        },
        Suite::Fsstress => Ready::Fsstress(
            fstests::tree(&tree(&choice.xfstests, "xfstests")?)?.join("ltp/fsstress"),
        ),
        Suite::Fstests => Ready::Fstests(fstests::tree(&tree(&choice.xfstests, "xfstests")?)?),
        Suite::Ltp => Ready::Ltp(ltp::tree(&tree(&choice.ltp, "ltp")?)?),
        Suite::Cpython => cpython::prepare().map(|()| Ready::Cpython)?,
    })
}

/// Runs a suite on one side, after it ran on others.
fn run(
    bed: &Bed,
    side: &Side,
    ready: &Ready,
    choice: &Choice,
    before: &[Results],
) -> Result<Results> {
    let (runner, limit) = (Runner::new(bed, side)?, Duration::from_secs(choice.limit));
    if let Ready::Fstests(tree) = ready {
        let mut tests = fstests::tests(tree, choice.quick, &choice.only)?;
        let Some(first) = before.first() else {
            return fstests::generic(bed, side, tree, &runner, &tests, limit);
        };
        // What the suite skips it skips for what the machine or FUSE lacks, in every mode; and XFS
        // is asked for what the mount ran.
        tests.retain(|test| {
            first.0.get(test).is_none_or(|verdict| !matches!(verdict, Verdict::Skipped(_)))
        });
        let mut results = fstests::generic(bed, side, tree, &runner, &tests, limit)?;
        if *side != Side::Xfs {
            let skipped =
                first.0.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Skipped(_)));
            skipped.for_each(|(test, verdict)| results.add(test, verdict.clone()));
        }
        return Ok(results);
    }
    let test_mount = TestMount::new(bed, side)?;
    let (place, quick) = (&test_mount.directory, choice.quick);
    let mut results = match ready {
        Ready::Pjdfstest(program) => pjdfstest::in_rust(program, place, &runner, &choice.only)?,
        Ready::PjdfstestC(tree) => pjdfstest::in_c(tree, place, &runner, &choice.only)?,
        Ready::FsxCrate(program) => exercisers::fsx(&Fsx::Crate(program), place, &runner, quick)?,
        Ready::FsxTree(program) => {
            exercisers::fsx(&Fsx::OfFstests(program), place, &runner, quick)?
        }
        Ready::Fsstress(program) => exercisers::fsstress(program, place, &runner, quick)?,
        Ready::Ltp(tree) => ltp::syscalls(tree, place, &runner, quick, &choice.only, limit)?,
        Ready::Cpython => cpython::tests(place, &runner, quick, &choice.only, limit)?,
        Ready::Fstests(_) => unreachable!("it is run above"),
    };
    results.add_check(test_mount.end(bed, side));
    Ok(results)
}

/// Runs the suites on the mount in each mode and on XFS, prints counts and differences, and fails
/// for a difference that has no reason.
pub fn compare(bed: &mut Bed, options: &Options) -> Result<()> {
    let choice = &options.suites;
    let document = Path::new("docs/proof.md");
    let named =
        Named::parse(&std::fs::read_to_string(document).context("cannot read docs/proof.md")?);
    let modes: Vec<Side> = choice.modes.iter().map(|word| Side::of(word)).collect();
    let (mut rows, mut absent) = (Vec::new(), Vec::new());
    let mut unnamed = Vec::new();
    for suite in Suite::ALL
        .into_iter()
        .filter(|suite| choice.suites.is_empty() || choice.suites.contains(suite))
    {
        let ready = match prepare(suite, choice) {
            Ok(ready) => ready,
            Err(error) => {
                println!("    {}: skipped: {error:#}", suite.name());
                absent.push(format!("{}: skipped: {error:#}", suite.name()));
                continue;
            }
        };
        let mut sides = Vec::new();
        for side in modes.iter().chain([&Side::Xfs]) {
            let start = Instant::now();
            let results = run(bed, side, &ready, choice, &sides)
                .with_context(|| format!("{} on {side}", suite.name()))?;
            println!(
                "    {} on {side}: {results} passed/failed/skipped in {:.0} s",
                suite.name(),
                start.elapsed().as_secs_f64()
            );
            sides.push(results);
        }
        let xfs = sides.pop().expect("XFS was the last");
        for (side, results) in modes.iter().zip(&sides) {
            unnamed.extend(tell(suite, side, &xfs, results, &named));
        }
        rows.push((suite, xfs, sides));
    }
    print_table(&modes, &rows);
    absent.iter().for_each(|line| println!("    {line}"));
    ensure!(!rows.is_empty(), "no suite is here: see what to give above");
    ensure!(unnamed.is_empty(), "docs/proof.md gives no reason for: {}", unnamed.join(", "));
    Ok(())
}

/// Prints the differences of one suite in one mode and returns the failures that the document does
/// not name.
fn tell(suite: Suite, side: &Side, xfs: &Results, results: &Results, named: &Named) -> Vec<String> {
    let mut unnamed = Vec::new();
    for difference in differences(xfs, results) {
        // One script of many assertions is named once.
        let script = difference.test.split('#').next().unwrap_or_default();
        let reason = named
            .reason(suite.name(), difference.test)
            .or_else(|| named.reason(suite.name(), script));
        println!(
            "    {} {side}: {difference}: {}",
            suite.name(),
            reason.unwrap_or("not named in docs/proof.md")
        );
        if reason.is_none() && difference.is_failure() {
            unnamed.push(format!("{} {} ({side})", suite.name(), difference.test));
        }
    }
    for (test, verdict) in
        results.0.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Failed(_)))
    {
        if xfs.0.get(test).is_some_and(|there| matches!(there, Verdict::Failed(_))) {
            println!("    {} {side}: {test} fails, as on XFS: {}", suite.name(), verdict.reason());
        }
    }
    for (reason, tests) in skipped(results) {
        println!(
            "    {} {side}: {} skipped: {reason}: {}",
            suite.name(),
            tests.len(),
            tests.join(", ")
        );
    }
    unnamed
}

/// What was skipped, by the suite's reason.
fn skipped(results: &Results) -> BTreeMap<&str, Vec<&str>> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (test, verdict) in &results.0 {
        if let Verdict::Skipped(reason) = verdict {
            by_reason.entry(reason).or_default().push(test);
        }
    }
    by_reason
}

/// Prints the counts as a table for the document.
fn print_table(modes: &[Side], rows: &[(Suite, Results, Vec<Results>)]) {
    let heads: Vec<_> = modes.iter().map(ToString::to_string).collect();
    println!(
        "\n| suite | XFS | {} |\n| --- | --- |{}",
        heads.join(" | "),
        " --- |".repeat(modes.len())
    );
    for (suite, xfs, sides) in rows {
        let counts: Vec<_> = sides.iter().map(ToString::to_string).collect();
        println!("| {} | {xfs} | {} |", suite.name(), counts.join(" | "));
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_the_document_does_not_name_is_told() {
        let side = Side::Mount("cached".to_owned());
        let of = |tests: &[(&str, bool)]| {
            let mut results = Results::default();
            tests.iter().for_each(|(test, good)| {
                results.add(
                    *test,
                    if *good { Verdict::Passed } else { Verdict::Failed("why".to_owned()) },
                );
            });
            results
        };
        let xfs = of(&[("a", true), ("b.t#3", true), ("c", false), ("d", true)]);
        let here = of(&[("a", false), ("b.t#3", false), ("c", false), ("d", true)]);
        let named = Named::parse(
            "### Where the mount differs from XFS\n| pjdfstest-c | b.t | no such flag |\n",
        );
        assert_eq!(
            tell(Suite::PjdfstestC, &side, &xfs, &here, &named),
            vec!["pjdfstest-c a (cached)"]
        );
    }
}
