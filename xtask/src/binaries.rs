//! Runs the test binaries of the workspace one by one: how far the run is, which tests a hung
//! binary had not ended, and failures of tests that drive other programs a second time, alone.
//!
//! `cargo test` runs the binaries too, but a test of it that waits for ever ends the whole run at
//! the limit of the step and names nothing.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::sh;
use crate::tally::{Outcome, Tally, TestOutput};

/// A binary that prints nothing for this long hangs: the harness prints a line when a test ends,
/// and no test takes half of it.
const SILENCE: Duration = Duration::from_secs(12 * 60);
/// The longest that one binary may take.
const BINARY_LIMIT: Duration = Duration::from_secs(40 * 60);

/// Packages whose tests start programs and daemons, which on a loaded machine may lose to a time
/// limit: what failed there runs once more, alone, and is reported as flaky when it passes. A
/// failure anywhere else counts at once: there it is a race of the software itself.
const DRIVERS: [&str; 6] = [
    "bedplate-cli",
    "bedplate-serve",
    "bedplate-preload",
    "bedplate-bench",
    "bedplate-crashlab",
    "xtask",
];

/// Binaries whose tests mostly wait, for rebuilds that go on by themselves: so many run at a time,
/// whatever the processors are.
const WAITING: [(&str, &str, &str); 1] = [("bedplate-volume", "it", "--test-threads=8")];

/// A test binary that cargo built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// The package it belongs to.
    package: String,
    /// The target's name within the package.
    target: String,
    /// The program.
    program: PathBuf,
    /// The package's directory, in which its tests run.
    directory: PathBuf,
}

impl Binary {
    /// Reads a message of `cargo test --no-run --message-format=json`; `None` when it is not about
    /// a test binary.
    fn of_message(line: &str) -> Option<Self> {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let directory = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
        Some(Self {
            package: package_name(message["package_id"].as_str()?),
            target: message["target"]["name"].as_str()?.to_owned(),
            program: message["executable"].as_str()?.into(),
            directory,
        })
    }

    fn name(&self) -> String {
        format!("{} {}", self.package, self.target)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }

    /// Returns whether it tests a package, and one target of that where one is named.
    pub fn is_of(&self, package: &str, target: Option<&str>) -> bool {
        self.package == package && target.is_none_or(|target| self.target == target)
    }

    /// Runs the tests whose names contain one of some words, or all, through a program that starts
    /// others.
    ///
    /// # Errors
    /// When it cannot be started or one fails, with what it printed.
    pub fn pass_under(&self, launcher: &[OsString], words: &[&str], limit: Duration) -> Result<()> {
        let [first, more @ ..] = launcher else { bail!("no program starts {}", self.name()) };
        let inner = self.command(words);
        let mut command = Command::new(first);
        command.args(more).arg(inner.get_program()).args(inner.get_args());
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        sh::output(&mut command, limit).map(drop)
    }

    /// Returns the names of the tests in it.
    fn tests(&self) -> Result<BTreeSet<String>> {
        let list = sh::output(
            &mut self.command(&["--list", "--format", "terse"]),
            Duration::from_secs(60),
        )?;
        Ok(list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    /// Runs all its tests, prints what is worth it, and returns the verdicts; what hangs is killed
    /// and what had not ended is named.
    fn run(&self) -> Result<Tally> {
        let mut command = self.command(&["--show-output"]);
        let waiting = WAITING.iter().find(|(package, target, _)| self.is_of(package, Some(target)));
        command.args(waiting.map(|(.., threads)| threads));
        let heard = listen(&mut command, SILENCE)?;
        let mut tally = heard.output.tally;
        match heard.end {
            End::Exit(good) if good || !tally.failed.is_empty() => {}
            End::Exit(_) => tally.add(
                &self.name(),
                Outcome::Failed(
                    "it ended badly without naming a test; see its output above".to_owned(),
                ),
            ),
            End::Silent(limit) => {
                for test in self.tests()?.difference(&heard.output.ended) {
                    let reason = format!(
                        "it had not ended when {} had been silent for {} s and was killed",
                        self.name(),
                        limit.as_secs()
                    );
                    tally.add(test, Outcome::Failed(reason));
                }
            }
        }
        if DRIVERS.contains(&self.package.as_str()) {
            self.run_failed_again(&mut tally)?;
        }
        Ok(tally)
    }

    /// Runs what failed once more, each test alone.
    fn run_failed_again(&self, tally: &mut Tally) -> Result<()> {
        let names = self.tests()?;
        for (name, reason) in std::mem::take(&mut tally.failed) {
            let again = names
                .contains(&name)
                .then(|| listen(&mut self.command(&["--exact", &name, "--show-output"]), SILENCE))
                .transpose()?;
            match again.map(|heard| heard.end) {
                Some(End::Exit(true)) => tally.flaky.push((
                    name,
                    format!("{}: it failed beside the others and passed alone", self.name()),
                )),
                _ => tally.failed.push((name, reason)),
            }
        }
        Ok(())
    }
}

/// Returns the package that an id of cargo's names: `path+file:///x/crates/fs#bedplate-fs@0.1.0`,
/// or `…/xtask#0.1.0`.
fn package_name(id: &str) -> String {
    let (place, version) = id.rsplit_once('#').unwrap_or((id, ""));
    match version.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => place.rsplit('/').next().unwrap_or(place).to_owned(),
    }
}

/// How a binary ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// By itself, with a good status or a bad one.
    Exit(bool),
    /// It printed nothing for this long and was killed.
    Silent(Duration),
}

/// What was heard of a run.
struct Heard {
    output: TestOutput,
    end: End,
}

/// Runs a test binary, prints what is worth printing, and sums its verdicts; a silence of `limit`
/// ends it.
fn listen(command: &mut Command, limit: Duration) -> Result<Heard> {
    let mut family = sh::Family::start(command.stdout(Stdio::piped()))?;
    let lines = lines_of(family.child.stdout.take().context("a test binary has no output")?);
    let mut output = TestOutput::default();
    loop {
        match lines.recv_timeout(limit) {
            Ok(line) if output.line(&line) => println!("{line}"),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => return Ok(Heard { output, end: End::Silent(limit) }),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let good = family.wait(BINARY_LIMIT)?.success();
    Ok(Heard { output, end: End::Exit(good) })
}

/// Reads lines on a thread of their own, so that a wait for one can end.
fn lines_of(pipe: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(std::result::Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Builds the test binaries of the packages that `which` selects.
///
/// # Errors
/// When they do not build, with what the compiler said.
pub fn build(cargo: &mut Command, which: &[&str], limit: Duration) -> Result<Vec<Binary>> {
    cargo.args(["test", "--no-run", "--message-format=json-render-diagnostics"]).args(which);
    let binaries: Vec<Binary> =
        sh::output(cargo, limit)?.lines().filter_map(Binary::of_message).collect();
    if binaries.is_empty() {
        bail!("cargo built no test binary");
    }
    // Tests of commands load it, and cargo makes no shared library for tests of other packages.
    let mut library = Command::new(cargo.get_program());
    library.args(["build", "--quiet", "-p", "bedplate-preload", "--lib"]);
    if !sh::passes(&mut library, limit)? {
        bail!("libbedplate_lease.so does not build");
    }
    Ok(binaries)
}

/// Runs `binaries` one after the other and says how far the run is.
///
/// # Errors
/// When one cannot be started. A test that fails is counted and named, and the others still run.
pub fn run(binaries: &[Binary], tally: &mut Tally) -> Result<()> {
    let began = Instant::now();
    for (at, binary) in binaries.iter().enumerate() {
        println!(
            "   {}, binary {} of {}: {tally} so far, {} s",
            binary.name(),
            at + 1,
            binaries.len(),
            began.elapsed().as_secs()
        );
        tally.merge(binary.run()?);
    }
    Ok(())
}

/// Runs the examples in the documentation of the packages that `which` selects.
///
/// # Errors
/// When cargo cannot be started.
pub fn examples(cargo: &mut Command, which: &[&str], tally: &mut Tally) -> Result<()> {
    println!("   examples in the documentation");
    let heard = listen(
        cargo.args(["test", "--doc", "--no-fail-fast"]).args(which).args(["--", "--show-output"]),
        SILENCE,
    )?;
    let named = !heard.output.tally.failed.is_empty();
    tally.merge(heard.output.tally);
    if heard.end != End::Exit(true) && !named {
        tally.add(
            "examples in the documentation",
            Outcome::Failed("they ended badly without naming one; see the output above".to_owned()),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn test_binaries_are_found_in_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///x/crates/fs#bedplate-fs@0.1.0","manifest_path":"/x/crates/fs/Cargo.toml",
            "target":{"name":"filesystem"},"profile":{"test":true},"executable":"/x/fs-1"}"#;
        let binary = Binary::of_message(line).expect("it is one");
        assert_eq!(
            (binary.name().as_str(), binary.directory.to_str()),
            ("bedplate-fs filesystem", Some("/x/crates/fs"))
        );
        assert_eq!(Binary::of_message(&line.replace("true", "false")), None);
        assert_eq!(Binary::of_message(&line.replace("\"/x/fs-1\"", "null")), None);
        assert_eq!(Binary::of_message("words"), None);
        assert_eq!(package_name("path+file:///x/xtask#0.1.0"), "xtask");
    }

    #[test]
    fn a_binary_that_goes_silent_is_killed_and_what_it_said_before_counts() {
        let heard = listen(
            &mut shell("echo 'running 2 tests'; echo 'test a ... ok'; sleep 600"),
            Duration::from_secs(1),
        )
        .expect("sh runs");
        assert_eq!(
            (heard.end, heard.output.tally.passed),
            (End::Silent(Duration::from_secs(1)), 1)
        );
        assert!(heard.output.ended.contains("a"), "{:?}", heard.output.ended);
    }

    #[test]
    fn a_bad_end_is_told_from_a_good_one() {
        let end =
            |script| listen(&mut shell(script), Duration::from_secs(60)).expect("sh runs").end;
        assert_eq!(
            (end("true"), end("echo 'test a ... FAILED'; exit 101")),
            (End::Exit(true), End::Exit(false))
        );
    }

    /// A binary of one test, `a`, that fails or not as the script says. Another program writes it:
    /// a copy of an open descriptor in a process that a test beside this one starts would make it
    /// busy.
    fn binary(package: &str, script: &str) -> (tempfile::TempDir, Binary) {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("tests");
        let text =
            format!("#!/bin/sh\nif [ \"$1\" = --list ]; then echo 'a: test'; exit; fi\n{script}\n");
        let write = shell("printf %s \"$TEXT\" > \"$PROGRAM\" && chmod +x \"$PROGRAM\"")
            .env("TEXT", text)
            .env("PROGRAM", &program)
            .status();
        assert!(write.expect("sh runs").success());
        let (package, target) = (package.to_owned(), "tests".to_owned());
        let binary = Binary { package, target, program, directory: directory.path().to_owned() };
        (directory, binary)
    }

    #[test]
    fn what_fails_once_is_flaky_where_programs_are_driven_and_failed_everywhere_else() {
        let script = "if [ \"$1\" = --exact ]; then echo 'test a ... ok'; else echo 'test a ... \
                      FAILED'; exit 101; fi";
        let verdict = |package| {
            let (_directory, binary) = binary(package, script);
            let tally = binary.run().expect("sh runs");
            (tally.flaky.len(), tally.failed.len())
        };
        assert_eq!(verdict("bedplate-cli"), (1, 0));
        assert_eq!(verdict("bedplate-fs"), (0, 1));
    }

    #[test]
    fn what_fails_twice_has_failed() {
        let (_directory, binary) = binary("bedplate-cli", "echo 'test a ... FAILED'; exit 101");
        let tally = binary.run().expect("sh runs");
        assert_eq!((tally.flaky.len(), tally.failed.len()), (0, 1));
    }
}
