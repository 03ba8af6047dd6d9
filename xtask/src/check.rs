//! The one door: every step of `cargo xtask check`, with its time, and one closing line of totals.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;

use crate::tally::{Outcome, Tally};
use crate::{binaries, judge, real, sh, tidy};

/// The longest any single step may take.
const STEP_LIMIT: Duration = Duration::from_secs(40 * 60);

/// One step of the check, in the order they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// The formatting is rustfmt's.
    Fmt,
    /// Sizes, crate edges, words, links, licences and ids are in order.
    Tidy,
    /// Clippy has nothing to say.
    Clippy,
    /// Unit, integration and documentation tests.
    Test,
    /// The documentation builds without a warning.
    Doc,
    /// The crash judge, fifty thousand states.
    Judge,
    /// Real programs on the release binary.
    Real,
}

impl Step {
    /// The steps that need no release build and no programs of others.
    const QUICK: [Self; 4] = [Self::Fmt, Self::Tidy, Self::Test, Self::Judge];
    const ALL: [Self; 7] =
        [Self::Fmt, Self::Tidy, Self::Clippy, Self::Test, Self::Doc, Self::Judge, Self::Real];

    fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Tidy => "tidy",
            Self::Clippy => "clippy",
            Self::Test => "test",
            Self::Doc => "doc",
            Self::Judge => "judge",
            Self::Real => "real",
        }
    }

    /// Runs the step; a step that is not made of tests adds to the tally only when it fails.
    fn run(self, tally: &mut Tally, quick: bool) -> Result<()> {
        let passed = match self {
            Self::Fmt => sh::passes(cargo().args(["fmt", "--all", "--check"]), STEP_LIMIT)?,
            Self::Tidy => tidy::passes()?,
            Self::Clippy => sh::passes(
                cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
                STEP_LIMIT,
            )?,
            Self::Test if quick => return test(tally, &[&["--lib"], &ROOMS[..]].concat()),
            Self::Test => return test(tally, &["--workspace"]),
            Self::Judge if quick => return judge::look(cargo().arg("build").args(ROOMS), tally),
            Self::Judge => return judge::run(&mut cargo(), tally),
            Self::Real => return real::run(&real::Options::default(), tally),
            Self::Doc => sh::passes(
                cargo()
                    .args(["doc", "--workspace", "--no-deps"])
                    .env("RUSTDOCFLAGS", "-D warnings"),
                STEP_LIMIT,
            )?,
        };
        if !passed {
            tally.add(
                &format!("step {}", self.name()),
                Outcome::Failed("see its output above".to_owned()),
            );
        }
        Ok(())
    }
}

/// Returns the steps to run, in their order: those named; else the quick ones, or all.
fn chosen(named: &[Step], quick: bool) -> Vec<Step> {
    let wanted = |step: &Step| {
        if named.is_empty() { !quick || Step::QUICK.contains(step) } else { named.contains(step) }
    };
    Step::ALL.into_iter().filter(wanted).collect()
}

/// Runs the named steps, or all, and returns whether nothing failed. `quick` runs the first answers
/// alone, for a newcomer: style, unit tests, and a look of the judge.
///
/// # Errors
/// Never for a failed check: those are counted and named, and the other steps still run.
pub fn check(steps: &[Step], quick: bool) -> Result<bool> {
    let mut tally = Tally::default();
    let mut times = Vec::new();
    let (steps, began) = (chosen(steps, quick), Instant::now());
    for (at, step) in steps.iter().copied().enumerate() {
        println!(
            "== {}: step {} of {}, {} s so far",
            step.name(),
            at + 1,
            steps.len(),
            began.elapsed().as_secs()
        );
        let start = Instant::now();
        let failed_before = tally.failed.len();
        if let Err(error) = step.run(&mut tally, quick) {
            tally.add(&format!("step {}", step.name()), Outcome::Failed(format!("{error:#}")));
        }
        times.push((step, start.elapsed(), tally.failed.len() == failed_before));
    }
    println!();
    for (step, time, good) in times {
        println!(
            "{:<7} {:>7.1} s  {}",
            step.name(),
            time.as_secs_f64(),
            if good { "good" } else { "FAILED" }
        );
    }
    tally.print_details();
    println!("{tally}");
    Ok(tally.failed.is_empty())
}

/// Runs tests of real programs as `options` say and returns whether none failed.
///
/// # Errors
/// When no test has such a name, or the binary does not build.
pub fn real(options: &real::Options) -> Result<bool> {
    let mut tally = Tally::default();
    real::run(options, &mut tally)?;
    tally.print_details();
    println!("{tally}");
    Ok(tally.failed.is_empty())
}

/// Returns the cargo that runs this program.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// What the quick form builds, always together: another selection would compile what all of them
/// use once more, with other features.
const ROOMS: [&str; 12] = [
    "-p",
    "bedplate-block",
    "-p",
    "bedplate-volume",
    "-p",
    "bedplate-store",
    "-p",
    "bedplate-cache",
    "-p",
    "bedplate-fs",
    "-p",
    "bedplate-sim",
];

/// Runs tests and sums the verdicts.
fn test(tally: &mut Tally, which: &[&str]) -> Result<()> {
    println!("   building the tests");
    let began = Instant::now();
    let tests = binaries::build(&mut cargo(), which, STEP_LIMIT)?;
    println!("   built {} test binaries in {} s", tests.len(), began.elapsed().as_secs());
    binaries::run(&tests, tally)?;
    // The quick form has no examples: `--lib` leaves them out.
    if which.contains(&"--lib") { Ok(()) } else { binaries::examples(&mut cargo(), which, tally) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_run_in_their_order_and_named_ones_alone() {
        assert_eq!(chosen(&[], false), Step::ALL);
        assert_eq!(chosen(&[], true), Step::QUICK);
        assert_eq!(chosen(&[Step::Doc, Step::Fmt], true), [Step::Fmt, Step::Doc]);
    }
}
