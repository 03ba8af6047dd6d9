//! What may notice a mistake: test binaries and the judge, each with a time limit, and stopped as
//! soon as it does.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::BUILD_LIMIT;
use super::catalogue::Crate;
use crate::sh::{self, Family};

/// The variable that plants a mistake in a process.
const VARIABLE: &str = "BEDPLATE_PLANTED";

/// Tests that are not asked: orders of threads are tried thousands of times, and cost is a matter
/// of counters.
const LEFT_OUT: [&str; 2] = ["model", "cost"];

/// Returns the cargo that runs this program.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Programs with the mistakes in them.
pub struct Programs {
    store_unit: PathBuf,
    fs_unit: PathBuf,
    fs_whole: PathBuf,
    volume_unit: PathBuf,
    volume_whole: PathBuf,
    judge: PathBuf,
    judge_tests: PathBuf,
}

impl Programs {
    /// Builds them, all at once.
    ///
    /// # Errors
    /// When one does not build.
    pub fn build() -> Result<Self> {
        let mut command = cargo();
        command.args([
            "test",
            "--no-run",
            "--message-format=json-render-diagnostics",
            "-p",
            "bedplate-store",
            "-p",
            "bedplate-fs",
            "-p",
            "bedplate-volume",
            "-p",
            "bedplate-sim",
        ]);
        command.args(["--features", "bedplate-fs/planted-bugs,bedplate-volume/planted-bugs"]);
        let messages = sh::output(&mut command, BUILD_LIMIT)?;
        let find = |package: &str, kind: &str, name: &str| {
            let found = messages
                .lines()
                .filter_map(|line| executable(line, package, kind, name))
                .next_back();
            found.with_context(|| format!("cargo did not name the {kind} {name} of {package}"))
        };
        Ok(Self {
            store_unit: find("crates/store", "lib", "bedplate_store")?,
            fs_unit: find("crates/fs", "lib", "bedplate_fs")?,
            fs_whole: find("crates/fs", "test", "filesystem")?,
            volume_unit: find("crates/volume", "lib", "bedplate_volume")?,
            volume_whole: find("crates/volume", "test", "it")?,
            judge: find("crates/sim", "bin", "bedplate-sim")?,
            judge_tests: find("crates/sim", "test", "crash")?,
        })
    }

    /// What may notice a mistake of a room, the cheapest first. The short form asks the first two.
    pub fn noticers(&self, of: Crate, room: &str, seconds: u64, quick: bool) -> Vec<Noticer> {
        let judge = |name: &str, arguments: &[&str]| {
            let mut all: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
            all.extend([
                "--no-shrink".to_owned(),
                "--seconds".to_owned(),
                seconds.to_string(),
                "--keep".to_owned(),
                "target/mutants-kept".to_owned(),
            ]);
            Noticer {
                name: format!("judge, {name}"),
                program: self.judge.clone(),
                arguments: all,
                directory: PathBuf::from("."),
                tests: false,
            }
        };
        let tests = |name: &str, program: &Path, filters: &[&str]| {
            let mut all: Vec<String> = filters.iter().map(|&word| word.to_owned()).collect();
            LEFT_OUT.iter().for_each(|word| all.extend(["--skip".to_owned(), (*word).to_owned()]));
            Noticer {
                name: name.to_owned(),
                program: program.to_path_buf(),
                arguments: all,
                directory: PathBuf::from(of.directory()),
                tests: true,
            }
        };
        let near = format!("{room}::");
        let mut all = match of {
            Crate::Store | Crate::Fs => vec![
                tests(
                    "unit tests of the room",
                    if of == Crate::Store { &self.store_unit } else { &self.fs_unit },
                    &[&near],
                ),
                judge("directed at the room", &directed_at(room)),
                judge("directed", &["--directed", "--seeds", "3", "--cuts", "60"]),
                tests("judge, formatting", &self.judge_tests, &["failing::s_98"]),
                tests("fs/tests", &self.fs_whole, &[]),
                judge("random", &["--seeds", "0"]),
                judge("three threads", &["--threads", "3", "--seeds", "0"]),
                judge("one step in the middle of another", &["--interleaved", "--seeds", "0"]),
                judge("failing calls", &["--failing", "--stride", "97"]),
                tests("unit tests of fs", &self.fs_unit, &[]),
                tests("unit tests of store", &self.store_unit, &[]),
            ],
            Crate::Cache => vec![tests("fs/tests", &self.fs_whole, &["leases::pages"])],
            Crate::Volume => vec![
                tests("unit tests of the room", &self.volume_unit, &[&near]),
                judge("groups", &["--interleaved", "--groups", "--seeds", "0", "--cuts", "60"]),
                tests("volume/tests", &self.volume_whole, &[]),
                tests("unit tests of volume", &self.volume_unit, &[]),
            ],
        };
        all.truncate(if quick { 2 } else { all.len() });
        all
    }
}

/// What asks the judge for the directed workloads that a room is most used by.
fn directed_at(room: &str) -> Vec<&'static str> {
    let workloads: &[&str] = match room {
        "checkpoint" | "images" => &["checkpoint", "clone", "rolled back"],
        "meta" | "mount" | "superblock" => &["metadata", "growth", "checkpoint"],
        "background" => &["scattered"],
        _ => &["overwrite", "removed", "log", "sync", "names"],
    };
    let named = workloads.iter().flat_map(|name| ["--workload", name]);
    ["--directed", "--seeds", "3", "--cuts", "60"].into_iter().chain(named).collect()
}

/// Reads one message of cargo: the program, if it is the one.
fn executable(line: &str, package: &str, kind: &str, name: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let target = &message["target"];
    let is_it = message["reason"] == "compiler-artifact"
        && target["name"] == name
        && target["kind"].as_array()?.iter().any(|one| one == kind);
    let of_it = message["manifest_path"].as_str()?.ends_with(&format!("{package}/Cargo.toml"));
    // A program has a test binary of its own, which is not asked.
    let tested = message["profile"]["test"] == (kind != "bin");
    message["executable"].as_str().filter(|_| is_it && of_it && tested).map(PathBuf::from)
}

/// One way to notice a mistake.
#[derive(Debug, Clone)]
pub struct Noticer {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
    /// Whether it is a test binary, which goes on after a failure.
    tests: bool,
}

impl Noticer {
    /// Runs it with a mistake, or none; returns what noticed it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn notices(&self, mistake: Option<&str>, limit: Duration) -> Result<Option<String>> {
        let output = tempfile::NamedTempFile::new()?;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .current_dir(&self.directory)
            .stdout(Stdio::from(output.reopen()?))
            .stderr(Stdio::from(File::create("/dev/null")?));
        command.env_remove(VARIABLE).envs(mistake.map(|name| (VARIABLE, name)));
        let mut family = Family::start(&mut command)?;
        let start = Instant::now();
        loop {
            let ended = family.child.try_wait()?;
            let text = std::fs::read_to_string(output.path()).unwrap_or_default();
            if let Some(test) = first_failure(&text).filter(|_| self.tests) {
                end(family)?;
                return Ok(Some(format!("{}: `{test}`", self.name)));
            }
            if let Some(status) = ended {
                end(family)?;
                return Ok((!status.success()).then(|| self.name.clone()));
            }
            if start.elapsed() > limit {
                end(family)?;
                return Ok(Some(format!("{}: it does not end", self.name)));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Kills what is left of a program and waits for it.
fn end(mut family: Family) -> Result<()> {
    let _ended_already = family.child.kill();
    family.wait(Duration::from_secs(60)).map(drop)
}

/// The first test that the harness says has failed.
fn first_failure(text: &str) -> Option<&str> {
    text.lines()
        .find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
        .map(|name| name.trim_end_matches(" - should panic"))
}

/// How long what has no mistake takes, measured once for each noticer; one that fails without a
/// mistake says nothing with one.
#[derive(Default)]
pub struct Sound(Mutex<HashMap<Vec<String>, Option<Duration>>>);

impl Sound {
    /// Returns how long a noticer may take with a mistake; `None` where it fails without one.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn limit(&self, noticer: &Noticer) -> Result<Option<Duration>> {
        let key: Vec<String> = std::iter::once(noticer.program.to_string_lossy().into_owned())
            .chain(noticer.arguments.iter().cloned())
            .collect();
        let mut known = self.0.lock().expect("no thread panics with it");
        if let Some(limit) = known.get(&key) {
            return Ok(*limit);
        }
        let start = Instant::now();
        let failed = noticer.notices(None, Duration::from_secs(1800))?;
        let took = start.elapsed();
        if let Some(what) = &failed {
            println!("not asked, because it fails without a mistake: {what}");
        }
        let limit = failed.is_none().then(|| took * 4 + Duration::from_secs(60));
        ensure!(took < Duration::from_secs(1800), "{} takes too long to be asked", noticer.name);
        known.insert(key, limit);
        Ok(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, tests: bool) -> Noticer {
        let arguments = vec!["-c".to_owned(), script.to_owned()];
        Noticer {
            name: "shell".to_owned(),
            program: PathBuf::from("sh"),
            arguments,
            directory: PathBuf::from("/"),
            tests,
        }
    }

    #[test]
    fn a_failure_a_bad_end_and_no_end_are_noticed() {
        let limit = Duration::from_secs(60);
        let asked = |noticer: &Noticer, limit| noticer.notices(Some("X"), limit).expect("sh runs");
        assert_eq!(asked(&shell("exit 0", true), limit), None);
        assert_eq!(asked(&shell("exit 3", false), limit), Some("shell".to_owned()));
        assert_eq!(
            asked(&shell("echo test a::b ... FAILED; sleep 600", true), limit),
            Some("shell: `a::b`".to_owned())
        );
        assert_eq!(
            asked(&shell("sleep 600", true), Duration::from_millis(200)),
            Some("shell: it does not end".to_owned())
        );
        assert_eq!(
            asked(&shell("[ \"$BEDPLATE_PLANTED\" = X ]", false), limit),
            None,
            "the mistake is in the environment"
        );
        assert_eq!(
            shell("[ -n \"$BEDPLATE_PLANTED\" ] && exit 1; exit 0", false)
                .notices(None, limit)
                .expect("sh runs"),
            None
        );
    }

    #[test]
    fn what_fails_without_a_mistake_is_not_asked() {
        let sound = Sound::default();
        assert_eq!(sound.limit(&shell("exit 1", false)).expect("sh runs"), None);
        assert!(
            sound
                .limit(&shell("exit 0", false))
                .expect("sh runs")
                .is_some_and(|limit| limit >= Duration::from_secs(60))
        );
    }

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/x/crates/fs/Cargo.toml","target":{"kind":["lib"],"name":"fs"},"profile":{"test":true},"executable":"/x/fs-1"}"#;
        assert_eq!(executable(line, "crates/fs", "lib", "fs"), Some(PathBuf::from("/x/fs-1")));
        assert_eq!(executable(line, "crates/volume", "lib", "fs"), None);
        assert_eq!(executable(&line.replace("true", "false"), "crates/fs", "lib", "fs"), None);
        let judge = line.replace("lib", "bin");
        assert_eq!(
            executable(&judge, "crates/fs", "bin", "fs"),
            None,
            "the program's own unit tests"
        );
        assert_eq!(
            executable(&judge.replace("true", "false"), "crates/fs", "bin", "fs"),
            Some(PathBuf::from("/x/fs-1"))
        );
        assert_eq!(executable("warning: not json", "crates/fs", "lib", "fs"), None);
    }
}
