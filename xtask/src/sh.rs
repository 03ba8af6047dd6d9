//! Running other programs: no standard input, a time limit, and their output in the error.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::cleanup::{Guard, is_stopping};

/// What a finished program left.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// Returns both outputs, error first.
    pub fn text(&self) -> String {
        format!("{}{}", self.stderr, self.stdout)
    }
}

/// Runs a program to its end with output captured; kills it after `limit`.
///
/// # Errors
/// When it cannot be started or does not end in time. A bad exit status is not an error here.
pub fn finish(command: &mut Command, limit: Duration) -> Result<Finished> {
    let what = describe(command);
    let mut family = Family::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let stdout = collect(family.child.stdout.take());
    let stderr = collect(family.child.stderr.take());
    let status = family.wait(limit).with_context(|| format!("waiting for {what}"))?;
    Ok(Finished { status, stdout: stdout.take(), stderr: stderr.take() })
}

/// Runs a program that has to succeed and returns its standard output.
///
/// # Errors
/// As [`finish`]; also when it ends with a bad status, with what it printed.
pub fn output(command: &mut Command, limit: Duration) -> Result<String> {
    let finished = finish(command, limit)?;
    if !finished.status.success() {
        bail!("{} ended with {}: {}", describe(command), finished.status, finished.text().trim());
    }
    Ok(finished.stdout)
}

/// Returns the directory in which cargo builds.
///
/// # Errors
/// When cargo does not say.
pub fn target_directory() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let metadata = output(
        Command::new(cargo).args(["metadata", "--format-version", "1", "--no-deps"]),
        Duration::from_secs(60),
    )?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    metadata["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .context("cargo does not say where it builds")
}

/// Runs a program whose output goes to ours and returns whether it succeeded.
///
/// # Errors
/// When it cannot be started or does not end in time.
pub fn passes(command: &mut Command, limit: Duration) -> Result<bool> {
    let what = describe(command);
    let mut family = Family::start(command)?;
    Ok(family.wait(limit).with_context(|| format!("waiting for {what}"))?.success())
}

/// A program and whatever it starts, in a process group of their own: a compiler's driver that is
/// killed must not leave its compilers behind. Dropped before its end, the whole group is killed.
pub struct Family {
    /// The program itself.
    pub child: Child,
    group: Option<Guard>,
}

impl Family {
    /// Starts `command` without standard input.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        let what = describe(command);
        ensure!(!is_stopping(), "{what} is not started any more: a signal ended this run");
        let child = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {what}"))?;
        let group = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("a process has a number")?;
        let group = Some(Guard::new(move || {
            // The group may be empty already, which is what is wanted.
            let _ended_already = kill_process_group(group, Signal::KILL);
        }));
        Ok(Self { child, group })
    }

    /// Waits for the program's end; after `limit` kills the group.
    ///
    /// # Errors
    /// When the limit passed.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let status = wait(&mut self.child, limit);
        match &status {
            Ok(_) => self.group.take().into_iter().for_each(Guard::done),
            Err(_) => drop(self.group.take()),
        }
        status
    }
}

/// Waits for a child; kills it after `limit`.
///
/// # Errors
/// When the limit passed.
pub fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            bail!("it did not end within {} s and was killed", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a program with its arguments, as a person would type it.
pub fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// Output that a thread is collecting. A grandchild may hold the pipe open for longer than the
/// child lives, so collecting never blocks the caller for more than a moment after the child's end.
struct Collected(std::sync::mpsc::Receiver<Vec<u8>>);

impl Collected {
    fn take(self) -> String {
        let mut bytes = Vec::new();
        while let Ok(part) = self.0.recv_timeout(Duration::from_millis(500)) {
            bytes.extend(part);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> Collected {
    let (sender, receiver) = std::sync::mpsc::channel();
    if let Some(mut pipe) = pipe {
        std::thread::spawn(move || {
            let mut part = vec![0; 65_536];
            while let Ok(len @ 1..) = pipe.read(&mut part) {
                if sender.send(part[..len].to_vec()).is_err() {
                    break;
                }
            }
        });
    }
    Collected(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_outputs_and_the_status_are_kept() {
        let done = finish(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            Duration::from_secs(60),
        )
        .expect("sh runs");
        assert_eq!(
            (done.stdout.as_str(), done.stderr.as_str(), done.status.code()),
            ("out\n", "err\n", Some(3))
        );
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_named() {
        let error = finish(Command::new("sleep").arg("600"), Duration::from_millis(50))
            .expect_err("it hangs");
        assert!(format!("{error:#}").contains("sleep 600"), "{error:#}");
    }

    #[test]
    fn a_bad_status_carries_what_was_printed() {
        let error = output(
            Command::new("sh").args(["-c", "echo the reason >&2; exit 1"]),
            Duration::from_secs(60),
        )
        .expect_err("it fails");
        assert!(error.to_string().contains("the reason"), "{error}");
    }
}
