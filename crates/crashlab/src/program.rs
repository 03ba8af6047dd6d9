//! The user's programs: each in a process group of its own, with a limit, and nothing of it left
//! behind.
//!
//! A server that a program starts leaves its group. It is known by its surroundings: the directory
//! for sockets and logs that no other program got.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use crate::error::{Error, ErrorKind, Result};

/// The variable by which a program and all that it starts are known.
const SCRATCH: &str = "BEDPLATE_SCRATCH";

/// Kills what has a directory for sockets and logs in its surroundings. Returns how many it killed.
fn kill_leftovers(scratch: &Path) -> usize {
    let mut killed = 0;
    let wanted = [OsStr::new(SCRATCH).as_bytes(), b"=", scratch.as_os_str().as_bytes()].concat();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid =
            process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { continue };
        let surroundings = std::fs::read(process.path().join("environ")).unwrap_or_default();
        if surroundings.split(|byte| *byte == 0).any(|variable| variable == wanted) {
            // It may have ended meanwhile, which is what is wanted.
            let _ended_already = kill_process(pid, Signal::KILL);
            killed += 1;
        }
    }
    killed
}

/// How often a wait looks whether the lab was asked to stop.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Returns the command that the shell makes of a line.
pub fn shell(line: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]);
    command
}

/// Makes the error of a lab that was asked to stop.
pub fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "ended early; what was mounted and made is removed again")
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself or by a signal.
    With(ExitStatus),
    /// It was killed because its time was over.
    TimedOut,
}

impl Ended {
    /// Returns whether it ended well.
    pub fn is_success(self) -> bool {
        matches!(self, Self::With(status) if status.success())
    }

    /// Returns how it ended in words.
    pub fn words(self) -> String {
        match self {
            Self::With(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => status.to_string(),
            },
            Self::TimedOut => "time is over".to_owned(),
        }
    }
}

/// A program that runs. Dropped before its end, it and what it started are killed.
#[derive(Debug)]
pub struct Program {
    child: Child,
    group: Pid,
    /// Becomes readable when the program has ended.
    end: OwnedFd,
    scratch: PathBuf,
    reaped: bool,
}

impl Program {
    /// Starts a program without standard input, and with a directory for sockets and logs that no
    /// other program gets.
    pub fn start(command: &mut Command, scratch: &Path) -> Result<Self> {
        let name = command.get_program().to_owned();
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::new(
                ErrorKind::NotFound,
                format!("there is no program {}: name one that exists", Path::new(&name).display()),
            ),
            _ => Error::io(&format!("run {}", Path::new(&name).display()), &error),
        };
        let child = command
            .env(SCRATCH, scratch)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(&failed)?;
        let group = Pid::from_child(&child);
        let end = pidfd_open(group, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        Ok(Self { child, group, end, scratch: scratch.to_owned(), reaped: false })
    }

    /// Returns what the program prints, when it was started with a pipe.
    pub fn take_output(&mut self) -> Option<OwnedFd> {
        self.child.stdout.take().map(OwnedFd::from)
    }

    /// Waits for the end, and kills what the program left running.
    ///
    /// # Errors
    /// `interrupted` when `stop` is set first.
    pub fn wait(mut self, limit: Option<Duration>, stop: &AtomicBool) -> Result<Ended> {
        let started = Instant::now();
        loop {
            match poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&POLL_INTERVAL)) {
                Ok(1..) => return self.reap().map(Ended::With),
                Ok(0) | Err(Errno::INTR) => {}
                Err(error) => return Err(Error::io("wait for a program", &error.into())),
            }
            if stop.load(Ordering::Relaxed) {
                return Err(interrupted());
            }
            if limit.is_some_and(|limit| started.elapsed() > limit) {
                self.reap()?;
                return Ok(Ended::TimedOut);
            }
        }
    }

    /// Kills the group and takes the program's status. Until that is taken no other group has its
    /// number.
    fn reap(&mut self) -> Result<ExitStatus> {
        self.reaped = true;
        // The group may be empty already, which is what is wanted.
        let _ended_already = kill_process_group(self.group, Signal::KILL);
        // Again, for what was being started: what is dying has no surroundings any more.
        while kill_leftovers(&self.scratch) > 0 {}
        self.child.wait().map_err(|error| Error::io("wait for a program", &error))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.reaped
            && let Err(error) = self.reap()
        {
            tracing::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other test has it.
    fn scratch() -> PathBuf {
        std::env::temp_dir().join(format!(
            "bedplate-{:?}-{}",
            std::thread::current().id(),
            std::process::id()
        ))
    }

    fn start(command: &mut Command) -> Program {
        Program::start(command, &scratch()).expect("sh runs")
    }

    fn run(line: &str, limit: Option<Duration>) -> Ended {
        start(&mut shell(line)).wait(limit, &AtomicBool::new(false)).expect("it is not stopped")
    }

    #[test]
    fn an_end_is_told_in_words() {
        assert!(run("exit 0", None).is_success());
        assert_eq!(run("exit 3", None).words(), "exit code 3");
        assert_eq!(run("kill -9 $$", None).words(), "signal 9");
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_what_it_started() {
        let started = Instant::now();
        assert_eq!(run("sleep 600 & sleep 600", Some(Duration::from_millis(10))), Ended::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(300));
    }

    #[test]
    fn what_a_program_leaves_running_is_killed() {
        let (reader, writer) = std::io::pipe().expect("a pipe can be made");
        // One in its group, and one that is a server and has left it.
        let program = start(shell("sleep 600 & setsid -f sleep 600").stdout(writer));
        assert!(program.wait(None, &AtomicBool::new(false)).expect("it ends").is_success());
        // The end of the last writer.
        let rest = std::io::read_to_string(reader).expect("the pipe ends");
        assert_eq!(rest, "");
    }

    #[test]
    fn a_lab_that_is_stopped_does_not_wait_for_a_program() {
        let program = start(&mut shell("sleep 600"));
        assert_eq!(
            program.wait(None, &AtomicBool::new(true)).expect_err("it is stopped").kind,
            ErrorKind::Interrupted
        );
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = Program::start(&mut Command::new("/no/such/program"), &scratch())
            .expect_err("there is none");
        assert!(error.message.contains("/no/such/program"), "{error}");
    }
}
