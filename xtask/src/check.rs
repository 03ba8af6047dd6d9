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

/// Builds test binaries and returns how many there are.
fn build_tests(which: &[&str]) -> Result<usize> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--message-format=json-render-diagnostics"]).args(which);
    let messages = sh::output(&mut command, STEP_LIMIT)?;
    Ok(messages.lines().filter(|line| is_test_binary(line)).count())
}

/// Tells whether a message of cargo is about a test binary.
fn is_test_binary(line: &str) -> bool {
    let message: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    message["profile"]["test"] == true && message["executable"].is_string()
}

/// Runs tests, prints what they print and how far it is, and sums the verdicts.
fn test(tally: &mut Tally, which: &[&str]) -> Result<()> {
    println!("   building the tests");
    let began = Instant::now();
    let binaries = build_tests(which)?;
    println!("   built {binaries} test binaries in {} s", began.elapsed().as_secs());
    let mut command = cargo();
    command
        .arg("test")
        .args(which)
        .args(["--no-fail-fast", "--", "--show-output"])
        .stdout(Stdio::piped());
    let mut family = sh::Family::start(&mut command)?;
    let pipe = family.child.stdout.take().context("cargo test has no output")?;
    let reader = std::thread::spawn(move || {
        let (mut output, mut begun) = (TestOutput::default(), 0);
        for line in BufReader::new(pipe).lines().map_while(std::result::Result::ok) {
            if line.starts_with("running ") {
                begun += 1;
                // Behind the binaries come the examples in the documentation.
                let of = if begun <= binaries {
                    format!("binary {begun} of {binaries}")
                } else {
                    "examples".to_owned()
                };
                println!("   {of}: {} so far, {} s", output.tally, began.elapsed().as_secs());
            }
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
        tally.add(
            "cargo test",
            Outcome::Failed(
                "it ended badly without naming a test; see its output above".to_owned(),
            ),
        );
    }
    Ok(())
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

    #[test]
    fn test_binaries_are_counted_in_what_cargo_says() {
        let line =
            r#"{"reason":"compiler-artifact","profile":{"test":true},"executable":"/x/fs-1"}"#;
        assert!(is_test_binary(line));
        assert!(
            !is_test_binary(&line.replace("true", "false"))
                && !is_test_binary(&line.replace("\"/x/fs-1\"", "null"))
                && !is_test_binary("words")
        );
    }
}
