//! The one door: every step of `cargo xtask check`, with its time, and one closing line of totals.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::tally::{Outcome, Tally, TestOutput};
use crate::{judge, real, sh, tidy};

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
    const ALL: [Self; 7] = [Self::Fmt, Self::Tidy, Self::Clippy, Self::Test, Self::Doc, Self::Judge, Self::Real];

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
    fn run(self, tally: &mut Tally) -> Result<()> {
        let passed = match self {
            Self::Fmt => sh::passes(cargo().args(["fmt", "--all", "--check"]), STEP_LIMIT)?,
            Self::Tidy => tidy::passes()?,
            Self::Clippy => sh::passes(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]), STEP_LIMIT)?,
            Self::Test => return test(tally),
            Self::Judge => return judge::run(&mut cargo(), tally),
            Self::Real => return real::run(&real::Options::default(), tally),
            Self::Doc => sh::passes(cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"), STEP_LIMIT)?,
        };
        if !passed {
            tally.add(&format!("step {}", self.name()), Outcome::Failed("see its output above".to_owned()));
        }
        Ok(())
    }
}

/// Runs the named steps, or all, and returns whether nothing failed.
///
/// # Errors
/// Never for a failed check: those are counted and named, and the other steps still run.
pub fn check(steps: &[Step]) -> Result<bool> {
    let mut tally = Tally::default();
    let mut times = Vec::new();
    for step in Step::ALL {
        if !steps.is_empty() && !steps.contains(&step) {
            continue;
        }
        println!("== {}", step.name());
        let start = Instant::now();
        let failed_before = tally.failed.len();
        if let Err(error) = step.run(&mut tally) {
            tally.add(&format!("step {}", step.name()), Outcome::Failed(format!("{error:#}")));
        }
        times.push((step, start.elapsed(), tally.failed.len() == failed_before));
    }
    println!();
    for (step, time, good) in times {
        println!("{:<7} {:>7.1} s  {}", step.name(), time.as_secs_f64(), if good { "good" } else { "FAILED" });
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

/// Runs the workspace's tests, prints what they print and sums the verdicts.
fn test(tally: &mut Tally) -> Result<()> {
    let mut family = sh::Family::start(cargo().args(["test", "--workspace", "--no-fail-fast", "--", "--show-output"]).stdout(Stdio::piped()))?;
    let pipe = family.child.stdout.take().context("cargo test has no output")?;
    let reader = std::thread::spawn(move || {
        let mut output = TestOutput::default();
        for line in BufReader::new(pipe).lines().map_while(std::result::Result::ok) {
            if output.line(&line) {
                println!("{line}");
            }
        }
        output.tally
    });
    let status = family.wait(STEP_LIMIT);
    let tests = reader.join().expect("the reader of the tests' output does not panic");
    let explained = !tests.failed.is_empty();
    tally.merge(tests);
    if !status?.success() && !explained {
        tally.add("cargo test", Outcome::Failed("it ended badly without naming a test; see its output above".to_owned()));
    }
    Ok(())
}
