//! Stops and starts the database, and tells how far a conversion is.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use bedplate::{format_duration, format_size};
use bedplate_direct::convert::{Operator, Pass, Stopping};
use bedplate_direct::{Error, ErrorKind};

use crate::render::output::Output;
use crate::render::progress::Bytes;
use crate::render::text;

/// The bar of the pass that runs.
pub struct Bar {
    output: Output,
    total: u64,
    bytes: Mutex<Bytes>,
}

impl Bar {
    pub fn new(output: &Output, total: u64) -> Self {
        let bytes = Mutex::new(Bytes::new(output, "copy", total));
        Self { output: *output, total, bytes }
    }

    pub fn advance(&self, bytes: u64) {
        self.with(|bar| bar.advance(bytes));
    }

    /// Ends the bar, and begins one of what comes next.
    fn next(&self, label: &str) {
        self.with(|bar| *bar = Bytes::new(&self.output, label, self.total));
    }

    fn with(&self, change: impl FnOnce(&mut Bytes)) {
        change(&mut self.bytes.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }
}

/// The database's commands, or a person.
pub struct Person<'a> {
    pub name: PathBuf,
    pub bar: &'a Bar,
    pub output: &'a Output,
}

impl Person<'_> {
    fn say(&self, sentence: &str) {
        // A reader that is gone misses it; the conversion goes on.
        let _said = self.output.say(sentence);
    }
}

impl Operator for Person<'_> {
    fn stop(&mut self, how: &Stopping, expected: Duration) -> bedplate_direct::Result<()> {
        self.bar.next("compare");
        let name = text::name(&self.name);
        let takes = format_duration(expected);
        self.say(&format!("stopping for about {takes}, and what stop and start take"));
        match how {
            Stopping::None => Ok(()),
            Stopping::Commands { stop, .. } => shell("--stop", stop),
            Stopping::Wait => {
                eprintln!("Stop what writes to {name}, then press Enter.");
                let mut line = String::new();
                let read = std::io::stdin().lock().read_line(&mut line);
                match read {
                    Ok(0) | Err(_) => Err(Error {
                        kind: ErrorKind::Closed,
                        message: "standard input ended before the database was stopped: run it \
                                  from a terminal, or with --stop and --start"
                            .to_owned(),
                    }),
                    Ok(_) => Ok(()),
                }
            }
        }
    }

    fn start(&mut self, how: &Stopping) -> bedplate_direct::Result<()> {
        match how {
            Stopping::None => Ok(()),
            Stopping::Commands { start, .. } => shell("--start", start),
            Stopping::Wait => {
                eprintln!("Start it again: {} is ready.", text::name(&self.name));
                Ok(())
            }
        }
    }

    fn passed(&mut self, number: usize, pass: &Pass) {
        self.bar.next(&format!("pass {}", number + 1));
        self.say(&format!(
            "pass {number}: {} looked into, {} read, {} written in {}",
            text::count(pass.files, "file"),
            format_size(pass.read),
            format_size(pass.written),
            format_duration(pass.took)
        ));
    }
}

/// Runs a command of a shell to its end. What it prints goes to standard error, since standard
/// output is this command's; what it leaves in the background may keep neither open.
fn shell(option: &str, command: &str) -> bedplate_direct::Result<()> {
    let failed = |why: String| Error {
        kind: ErrorKind::Failed,
        message: format!("the command of {option}, '{}', {why}", text::one_line(command)),
    };
    let output = if std::io::stderr().is_terminal() { Stdio::inherit() } else { Stdio::null() };
    let status = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output)
        .status()
        .map_err(|error| failed(format!("cannot be run: {error}")))?;
    if status.success() { Ok(()) } else { Err(failed(format!("ended with {status}"))) }
}
