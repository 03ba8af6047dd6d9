//! Processes that take part: servers, which are ended with whatever started them, and programs that
//! run to their end.
//!
//! They are groups of their own, so that a Ctrl-C at the terminal reaches this process alone, which
//! then ends them in order. A server is asked to end, too, when this process dies.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use serde_json::Value;

use crate::{Error, Result};

/// A server that serves nothing after so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// One that does not end is made to.
const END_PATIENCE: Duration = Duration::from_secs(30);
const NAP: Duration = Duration::from_millis(2);

/// A server of ours, until it is dropped.
#[derive(Debug)]
pub(super) struct Service {
    child: Child,
    name: &'static str,
    errors: PathBuf,
}

impl Service {
    /// Starts one, and waits until it serves: it then writes a document, which is returned.
    ///
    /// `arguments` are those of `program`, which is `bedplate`; `dir` is where its messages go.
    ///
    /// # Errors
    /// `Target` with the sentence that it told; `Interrupted`.
    pub fn start(
        name: &'static str,
        program: &Path,
        arguments: &[&OsStr],
        dir: &Path,
        stop: &AtomicBool,
    ) -> Result<(Self, Value)> {
        let errors = dir.join(format!("{name}.messages"));
        let mut command = bound(program);
        command.arg("--json").args(arguments);
        let mut child = spawned(name, &mut command, Stdio::piped(), &errors)?;
        let output = child.stdout.take().expect("it was asked for");
        let mut service = Self { child, name, errors };
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut documents = serde_json::Deserializer::from_reader(output).into_iter::<Value>();
            // It fails where the start was given up.
            let _unheard = sender.send(documents.next().and_then(std::result::Result::ok));
            documents.for_each(drop);
        });
        let begun = Instant::now();
        let told = loop {
            match receiver.recv_timeout(Duration::from_millis(50)) {
                Ok(told) => break told,
                Err(_) if stop.load(Relaxed) => return Err(Error::interrupted()),
                Err(RecvTimeoutError::Timeout) if begun.elapsed() < PATIENCE => {}
                Err(_) => break None,
            }
        };
        match told.as_ref().map(|told| (told, failure(told))) {
            Some((told, None)) => Ok((service, told.clone())),
            Some((_, Some(why))) => Err(Error::target(why)),
            None => {
                service.end()?;
                Err(Error::target(service.said("it ended without a word")))
            }
        }
    }

    /// Returns the number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and waits until it has.
    ///
    /// # Errors
    /// `Target` where it failed at its end, or had to be killed.
    pub fn end(&mut self) -> Result<()> {
        if let Some(status) = self.status(Duration::ZERO)? {
            return self.judged(status);
        }
        let pid = Pid::from_child(&self.child);
        for signal in [Signal::TERM, Signal::QUIT, Signal::KILL] {
            // It may have ended in between.
            let _gone = kill_process(pid, signal);
            if let Some(status) = self.status(END_PATIENCE)? {
                return self.judged(status);
            }
        }
        Err(Error::target(format!("{}: it cannot be ended", self.name)))
    }

    fn status(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        let begun = Instant::now();
        loop {
            let ended = self.child.try_wait();
            let ended = ended.map_err(|e| Error::io(self.name, "cannot wait for its end", e))?;
            if ended.is_some() || begun.elapsed() >= patience {
                return Ok(ended);
            }
            std::thread::sleep(NAP);
        }
    }

    fn judged(&self, status: ExitStatus) -> Result<()> {
        if status.success() {
            return Ok(());
        }
        Err(Error::target(self.said(&format!("it ended with {status}"))))
    }

    /// Returns what it wrote about a failure, or else this.
    fn said(&self, otherwise: &str) -> String {
        format!("{}: {}", self.name, first_line(&self.errors).as_deref().unwrap_or(otherwise))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // A failure was told by whatever ended it in order, or there is another one to tell.
        let _ended = self.end();
    }
}

/// A program that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// What it wrote on its standard output.
    pub output: Vec<u8>,
    /// Its processor time in seconds, and that of its children.
    pub processor_s: f64,
}

/// Runs a program to its end; it is killed, with what it started, when `stop` is set.
///
/// # Errors
/// `Target` with the first line that it wrote on its standard error; `Interrupted`.
pub(super) fn run_to_end(
    name: &'static str,
    mut command: Command,
    dir: &Path,
    stop: &AtomicBool,
) -> Result<Ended> {
    let (errors, output) = (dir.join(format!("{name}.messages")), dir.join(format!("{name}.out")));
    let failed = |e: std::io::Error| Error::io(name, "cannot run", e);
    let into = File::create(&output).map_err(failed)?;
    let mut child = spawned(name, &mut command, Stdio::from(into), &errors)?;
    let pid = Pid::from_child(&child);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while waitid(WaitId::Pid(pid), options).map_err(|e| failed(e.into()))?.is_none() {
        if stop.load(Relaxed) {
            let _gone = kill_process_group(pid, Signal::KILL);
            child.wait().map_err(failed)?;
            return Err(Error::interrupted());
        }
        std::thread::sleep(NAP);
    }
    // Its account is there until it is waited for.
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        let why = first_line(&errors).unwrap_or_else(|| format!("it ended with {status}"));
        return Err(Error::target(format!("{name}: {why}")));
    }
    let mut bytes = Vec::new();
    File::open(&output).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(failed)?;
    Ok(Ended { output: bytes, processor_s: spent_s(&stat) })
}

/// Returns a command of this program that is asked to end when this process dies.
pub(super) fn bound(program: &Path) -> Command {
    let mut command = Command::new(program);
    let parent = std::process::id().to_string();
    command.args(["run", "--ends-with", &parent, "--"]).arg(program);
    command
}

fn spawned(
    name: &'static str,
    command: &mut Command,
    output: Stdio,
    errors: &Path,
) -> Result<Child> {
    let failed = |e| Error::io(name, "cannot run", e);
    let errors = File::create(errors).map_err(failed)?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    command.spawn().map_err(|e| {
        let program: OsString = command.get_program().to_owned();
        Error::io(Path::new(&program).display(), "cannot run", e)
    })
}

/// Returns the sentence of a document that tells a failure.
fn failure(told: &Value) -> Option<String> {
    told.get("error")?.get("message")?.as_str().map(ToOwned::to_owned)
}

/// Returns the first line of a file that says anything, without the name of the program.
fn first_line(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    Some(line.strip_prefix("bedplate: ").unwrap_or(line).to_owned())
}

/// Reads the processor time of a process and of its children that it waited for: fields 14 to 17,
/// after a name that may hold anything, in hundredths of a second.
fn spent_s(stat: &str) -> f64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields = after_name.split_whitespace().skip(11).take(4);
    fields.map(|ticks| ticks.parse::<f64>().unwrap_or(0.0) / 100.0).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_read_behind_a_name_with_parentheses() {
        let line = "7 (a) b) Z 1 2 3 4 5 6 7 8 9 10 250 50 30 20 20 0 1 0 99";
        assert!((spent_s(line) - 3.5).abs() < 1e-9);
        assert_eq!(spent_s(""), 0.0);
    }

    #[test]
    fn a_program_that_fails_says_why_and_one_that_is_stopped_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let go_on = AtomicBool::new(false);
        let run =
            |script: &str, stop: &AtomicBool| run_to_end("shell", shell(script), dir.path(), stop);
        assert_eq!(run("echo good", &go_on).unwrap().output, b"good\n");
        let told = run("echo bedplate: bad >&2; exit 3", &go_on).unwrap_err().to_string();
        assert_eq!(told, "shell: bad");
        let stop = AtomicBool::new(true);
        let ended = run("sleep 1000", &stop).unwrap_err();
        assert_eq!(ended.kind, crate::ErrorKind::Interrupted);
    }

    #[test]
    fn a_server_that_is_no_server_is_told_with_its_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        let start = |script: &str| {
            // Not by this process, whose other tests start programs that would hold it open.
            let write = "printf '%s\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"";
            let text = format!("#!/bin/sh\n{script}");
            let mut writer = Command::new("sh");
            let arguments = ["-c", write, "sh", &text];
            assert!(writer.args(arguments).arg(&program).status().unwrap().success());
            Service::start("server", &program, &[], dir.path(), &AtomicBool::new(false))
        };
        let refused = r#"echo '{"error": {"message": "it is busy"}}'; exit 1"#;
        assert_eq!(start(refused).unwrap_err().to_string(), "it is busy");
        let silent = start("echo too bad >&2; exit 1").unwrap_err().to_string();
        assert_eq!(silent, "server: too bad");
        let (mut served, told) = start("echo '{\"port\": 7}'; exec sleep 1000").unwrap();
        assert_eq!(told["port"], 7);
        let ended = served.end().unwrap_err().to_string();
        assert!(ended.contains("signal"), "a shell dies of the signal: {ended}");
    }
}
