//! Totals of tests: what passed, what failed, what was skipped and why.

use std::collections::BTreeSet;
use std::fmt;

/// How one test of real programs ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it promises.
    Passed,
    /// It did not; the sentence says what happened.
    Failed(String),
    /// It could not run here; the sentence says what is missing.
    Skipped(String),
}

/// Sums over tests; failures and skips keep their names and reasons.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed.
    pub passed: usize,
    /// Names of those that failed, each with a reason.
    pub failed: Vec<(String, String)>,
    /// Names of those that could not run, each with a reason.
    pub skipped: Vec<(String, String)>,
    /// Names of those that failed beside others and passed alone, each with its place; they are
    /// neither passed nor failed.
    pub flaky: Vec<(String, String)>,
}

impl Tally {
    /// Adds one test.
    pub fn add(&mut self, name: &str, outcome: Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Failed(reason) => self.failed.push((name.to_owned(), reason)),
            Outcome::Skipped(reason) => self.skipped.push((name.to_owned(), reason)),
        }
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.flaky.extend(other.flaky);
    }

    /// Prints the names of what failed, what was skipped, and what failed once.
    pub fn print_details(&self) {
        for (name, reason) in &self.flaky {
            println!("FLAKY    {name}: {reason}");
        }
        for (name, reason) in &self.skipped {
            println!("skipped  {name}: {reason}");
        }
        for (name, reason) in &self.failed {
            println!("FAILED   {name}: {reason}");
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        )?;
        match self.flaky.len() {
            0 => Ok(()),
            flaky => write!(f, ", {flaky} flaky"),
        }
    }
}

/// Reads the lines that `cargo test -- --show-output` prints and sums them.
///
/// A test that cannot run here prints `skipped: REASON` and returns; the harness calls that a pass,
/// so the line is looked for in the shown output of passing tests and the test is counted as
/// skipped.
#[derive(Debug, Default)]
pub struct TestOutput {
    /// The totals so far.
    pub tally: Tally,
    /// The tests whose verdict was printed.
    pub ended: BTreeSet<String>,
    /// The test whose captured output is being shown.
    section: Option<String>,
    /// What the harness is printing.
    part: Part,
}

/// The parts of what one test binary prints.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// One line a test with its verdict.
    #[default]
    Verdicts,
    /// What passing tests printed.
    Successes,
    /// What failing tests printed.
    Failures,
}

impl TestOutput {
    /// Takes one line; returns whether it is worth printing: what failed and what it printed is;
    /// 1,500 lines that say `ok` would only hide it.
    pub fn line(&mut self, line: &str) -> bool {
        if line == "successes:" {
            self.part = Part::Successes;
        } else if line == "failures:" {
            self.part = Part::Failures;
        } else if line.starts_with("test result: ") || line.starts_with("running ") {
            self.part = Part::Verdicts;
        }
        match self.part {
            Part::Verdicts => self.verdict(line),
            Part::Successes => self.shown_output(line),
            Part::Failures => {}
        }
        match self.part {
            Part::Verdicts => !is_routine(line),
            Part::Successes => false,
            Part::Failures => true,
        }
    }

    fn verdict(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test ") else { return };
        let Some((name, verdict)) = rest.rsplit_once(" ... ") else { return };
        let name = name.trim_end_matches(" - should panic");
        self.ended.insert(name.to_owned());
        if verdict.starts_with("ok") {
            self.tally.passed += 1;
        } else if verdict.starts_with("FAILED") {
            self.tally.add(name, Outcome::Failed("see its output above".to_owned()));
        } else if verdict.starts_with("ignored") {
            self.tally.add(name, Outcome::Skipped(verdict.to_owned()));
        }
    }

    fn shown_output(&mut self, line: &str) {
        if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.section = Some(name.to_owned());
        } else if let Some(reason) = line.strip_prefix("skipped: ")
            && let Some(name) = self.section.take()
        {
            self.tally.passed = self.tally.passed.saturating_sub(1);
            self.tally.add(&name, Outcome::Skipped(reason.to_owned()));
        }
    }
}

/// Returns whether a line of the harness says only that all goes well.
fn is_routine(line: &str) -> bool {
    line.is_empty()
        || line.starts_with("running ")
        || line.starts_with("test result: ok")
        || (line.starts_with("test ") && line.ends_with(" ... ok"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_of_the_harness_are_summed() {
        let mut output = TestOutput::default();
        let text = "running 4 tests\ntest a::one ... ok\ntest a::two - should panic ... ok\ntest b \
                    ... FAILED\ntest c ... ok\n\nsuccesses:\n\n---- c stdout ----\nsome \
                    words\nskipped: no FUSE here\n\nsuccesses:\n    a::one\n    \
                    c\n\nfailures:\n\n---- b stdout ----\nskipped: not a skip, the test \
                    failed\n\ntest result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 \
                    filtered out\n";
        let printed: Vec<_> = text.lines().filter(|line| output.line(line)).collect();
        assert_eq!(printed.first(), Some(&"test b ... FAILED"));
        assert!(printed.contains(&"skipped: not a skip, the test failed"), "{printed:?}");
        assert!(!printed.iter().any(|line| line.contains("ok") || line.contains("some words")));
        assert_eq!(output.tally.passed, 2);
        assert_eq!(output.tally.failed.len(), 1);
        assert_eq!(output.tally.skipped, vec![("c".to_owned(), "no FUSE here".to_owned())]);
        assert_eq!(output.tally.to_string(), "2 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn merging_keeps_names() {
        let mut sum = Tally::default();
        sum.add("x", Outcome::Passed);
        let mut other = Tally::default();
        other.add("y", Outcome::Failed("why".to_owned()));
        sum.merge(other);
        assert_eq!(sum.to_string(), "1 passed, 1 failed, 0 skipped");
        assert_eq!(sum.failed[0].0, "y");
    }
}
