//! Bracketing a checkpoint with a database's own backup mode: `--database
//! postgresql://…|sqlite:PATH|command:PROGRAM`.
//!
//! ```text
//!   this command                      a helper of its own process group (psql, sqlite3 or sh)
//!   start ──────────────────────────▶ enters the mode, and writes the word
//!   makes the checkpoint  ◀────────── "bedplate-ready"
//!   closes the helper's input ──────▶ reads to the end of its input, leaves the mode, ends
//! ```
//!
//! The end of its input is all that releases the helper, so a command that is killed at any moment
//! releases the database too: the kernel closes the pipe. A helper that enters no mode or leaves
//! none in time is killed, and with it goes its session and what that held.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::database::postgres::Address;
use crate::failure::{Failure, Result, plain};

/// What the helper writes once the database waits.
const READY: &str = "bedplate-ready";

/// A database, as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// A server of PostgreSQL.
    Postgres(Address),
    /// A database file.
    Sqlite(String),
    /// A program that is run with `freeze` and with `thaw`.
    Program(String),
}

/// What the command line gives as a database. A wrong one is refused by the command and not by the
/// parser, which would repeat it, with its password.
#[derive(Debug, Clone)]
pub struct Given(std::result::Result<Database, String>);

impl std::str::FromStr for Given {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(Self(text.parse()))
    }
}

impl Given {
    /// Returns the database; the command line holds no password of it any more.
    pub fn database(&self) -> Result<&Database> {
        let database =
            self.0.as_ref().map_err(|why| Failure::usage(format!("--database: {why}")))?;
        if let Database::Postgres(address) = database {
            address.hide()?;
        }
        Ok(database)
    }
}

/// The database whose backup mode a checkpoint is made in.
#[derive(Debug, clap::Args)]
pub struct Around {
    /// Bracket it with a database's own backup mode: postgresql://…, sqlite:PATH, or
    /// command:PROGRAM, which is run with 'freeze' and with 'thaw'
    ///
    /// Usually not needed: a checkpoint is one moment across all files, so a database opens it as
    /// after a power cut, which it must survive anyway. It is of use where recovery is to be short,
    /// or parts of the database lie on other volumes.
    #[arg(long, value_name = "DATABASE")]
    database: Option<Given>,
    /// How long the database may take to begin to wait, and to go on
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = bedplate::parse_duration, requires = "database")]
    database_timeout: Duration,
}

impl Around {
    /// Without a database.
    #[cfg(test)]
    pub const NONE: Self = Self { database: None, database_timeout: Duration::from_secs(60) };

    /// Returns whether a database is given.
    ///
    /// # Errors
    /// What is given names none.
    pub fn is_given(&self) -> Result<bool> {
        self.database.as_ref().map(Given::database).transpose().map(|database| database.is_some())
    }

    /// Carries `work` out while the database waits; without one, at once.
    ///
    /// # Errors
    /// The work's, and those of a database that does not wait or go on.
    pub fn carry_out<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.database.as_ref().map(Given::database).transpose()? {
            Some(database) => database.around(self.database_timeout, work),
            None => work(),
        }
    }
}

impl std::str::FromStr for Database {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let known = "it is postgresql://…, sqlite:PATH or command:PROGRAM";
        match text.split_once(':') {
            Some((scheme @ ("postgresql" | "postgres"), rest)) if rest.starts_with("//") => {
                Address::parse(scheme, &rest[2..])
                    .map(Self::Postgres)
                    .map_err(|why| format!("PostgreSQL: {why}"))
            }
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(path.to_owned())),
            Some(("command", program)) if !program.is_empty() => {
                Ok(Self::Program(program.to_owned()))
            }
            // It is not repeated: it may hold a password.
            _ => Err(format!("what is given names no database: {known}")),
        }
    }
}

/// A database that waits. Dropped, it is released.
pub struct Bracket {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    /// What the helper writes, a line at a time.
    lines: Receiver<String>,
    /// What it complains of.
    complaints: Option<thread::JoinHandle<String>>,
    patience: Duration,
    /// The program to thaw when the helper had to be killed before it could.
    thaws: Option<String>,
}

impl Database {
    fn name(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "PostgreSQL",
            Self::Sqlite(_) => "SQLite",
            Self::Program(_) => "the database's program",
        }
    }

    /// The helper, and what it is told at first.
    fn helper(&self) -> (Command, String) {
        let with = |program: &str, arguments: &[&OsStr]| {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        };
        let text = OsStr::new;
        match self {
            Self::Postgres(address) => {
                let command = with(
                    "psql",
                    &["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &address.text]
                        .map(text),
                );
                // Before version 15 the functions have other names; the older form of the mode that
                // outlives its session is never used.
                let begin = format!(
                    "SELECT current_setting('server_version_num')::int >= 150000 AS new \
                     \\gset\n\\if :new\nSELECT pg_backup_start('bedplate', true);\n\\else\nSELECT \
                     pg_start_backup('bedplate', true, false);\n\\endif\n\\echo {READY}\n"
                );
                (command, begin)
            }
            Self::Sqlite(path) => {
                // A name that begins with a dash is a file all the same.
                let path = if path.starts_with('-') { format!("./{path}") } else { path.clone() };
                let command = with("sqlite3", &["-batch", "-bail", &path].map(text));
                (
                    command,
                    format!(
                        ".timeout 30000\nPRAGMA wal_checkpoint(TRUNCATE);\nBEGIN \
                         IMMEDIATE;\n.print {READY}\n"
                    ),
                )
            }
            Self::Program(program) => {
                // Thawed also when it failed to freeze, because it may have got halfway, and when
                // the other end is gone. The program is a word of its own, not a line of the shell.
                let script = "trap '' PIPE; \"$1\" freeze </dev/null >&2; frozen=$?; if [ $frozen \
                              = 0 ]; then echo bedplate-ready; cat >/dev/null; fi; \"$1\" thaw \
                              </dev/null >&2 && exit $frozen";
                (with("sh", &["-c", script, "sh", program].map(text)), String::new())
            }
        }
    }

    /// What ends the mode; the end of the input follows.
    fn release(&self) -> &'static str {
        match self {
            Self::Postgres(_) => {
                "\\if :new\nSELECT count(*) FROM pg_backup_stop(false);\n\\else\nSELECT count(*) \
                 FROM pg_stop_backup(false, false);\n\\endif\n"
            }
            Self::Sqlite(_) => "COMMIT;\n",
            Self::Program(_) => "",
        }
    }

    /// Makes the database wait, does `work`, and releases it whatever came of that.
    pub fn around<T>(&self, patience: Duration, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let bracket = Bracket::begin(self, patience)?;
        let worked = work();
        let ended = bracket.end(self.release());
        let done = worked?;
        ended?;
        Ok(done)
    }
}

/// Reads what a program says, line by line, on a thread of its own.
fn lines_of(output: Option<ChildStdout>) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in output
            .into_iter()
            .flat_map(|output| BufReader::new(output).lines())
            .map_while(std::result::Result::ok)
        {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

impl Bracket {
    fn begin(database: &Database, patience: Duration) -> Result<Self> {
        if let Database::Sqlite(path) = database {
            // The shell of SQLite would make an empty database and hold that.
            std::fs::metadata(path).map_err(|error| {
                let message = format!(
                    "cannot find the database {path}: {}; no checkpoint was made",
                    plain(&error)
                );
                Failure::new("not_found", message)
            })?;
        }
        let (mut command, first) = database.helper();
        let program = command.get_program().to_string_lossy().into_owned();
        // A process group of its own: what ends this command at the terminal must not end the
        // helper before it has released the database.
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            Failure::new(
                "unavailable",
                format!(
                    "cannot run '{program}', which asks {} to wait: {}; install it, or leave \
                     --database out",
                    database.name(),
                    plain(&error)
                ),
            )
        })?;
        let lines = lines_of(child.stdout.take());
        let errors = child.stderr.take();
        let complaints = thread::spawn(move || {
            let mut text = String::new();
            // What cannot be read is not told.
            let _read = errors.map(|errors| errors.take(64 << 10).read_to_string(&mut text));
            text
        });
        let input = child.stdin.take();
        let thaws =
            if let Database::Program(program) = database { Some(program.clone()) } else { None };
        let mut bracket = Self {
            name: database.name(),
            child,
            input,
            lines,
            complaints: Some(complaints),
            patience,
            thaws,
        };
        bracket.tell(&first);
        bracket.wait_until_ready()?;
        Ok(bracket)
    }

    fn tell(&mut self, text: &str) {
        if let Some(input) = &mut self.input {
            // A helper that ended says why itself.
            let _told = input.write_all(text.as_bytes()).and_then(|()| input.flush());
        }
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == READY => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let (name, patience) = (self.name, bedplate::format_duration(self.patience));
                    let message = format!(
                        "{name} did not begin to wait within {patience}: no checkpoint was made; \
                         give it more with --database-timeout"
                    );
                    return Err(Failure::new("timeout", message));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.input = None;
                    let _status = self.wait_for_end();
                    let (name, said) = (self.name, self.complaint());
                    return Err(Failure::new(
                        "database",
                        format!("{name} does not wait: no checkpoint was made; it says: {said}"),
                    ));
                }
            }
        }
    }

    fn complaint(&mut self) -> String {
        let said = self
            .complaints
            .take()
            .and_then(|complaints| complaints.join().ok())
            .unwrap_or_default();
        let lines: Vec<&str> =
            said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if lines.is_empty() { "nothing".to_owned() } else { lines.join("; ") }
    }

    /// Releases the database, and waits until it is.
    fn end(mut self, release: &str) -> Result<()> {
        self.tell(release);
        self.input = None;
        if self.wait_for_end() == Some(true) {
            return Ok(());
        }
        self.kill();
        let (name, said) = (self.name, self.complaint());
        let message = format!(
            "the checkpoint was made, but {name} was not released in order, so its session was \
             ended; it says: {said}"
        );
        Err(Failure::new("database", message))
    }

    /// Waits for the helper's end; returns whether it was a good one, `None` if it did not come.
    fn wait_for_end(&mut self) -> Option<bool> {
        let deadline = Instant::now() + self.patience;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(5)),
                Ok(Some(status)) => return Some(status.success()),
                Err(_) => return Some(false),
            }
        }
        None
    }

    /// Ends the helper and all that it started.
    fn kill(&mut self) {
        if let Ok(None) = self.child.try_wait()
            && let Some(group) = rustix::process::Pid::from_raw(self.child.id().cast_signed())
        {
            // One that just ended needs none.
            let _killed = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let _status = self.child.wait();
            if let Some(program) = self.thaws.take() {
                self.thaw(&program);
            }
        }
    }

    /// Thaws in the place of a helper that hung.
    fn thaw(&mut self, program: &str) {
        match Command::new(program)
            .arg("thaw")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
        {
            Ok(child) => self.child = child,
            Err(error) => return tracing::warn!("'{program} thaw' cannot be run: {error}"),
        }
        if self.wait_for_end() != Some(true) {
            tracing::warn!("'{program} thaw' failed or hangs: release the database by hand");
            self.kill();
        }
    }
}

impl Drop for Bracket {
    fn drop(&mut self) {
        if self.input.take().is_some() {
            self.wait_for_end();
        }
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_named_as_people_write_them() {
        let parse = |text: &str| text.parse::<Database>();
        let address = |rest| Database::Postgres(Address::parse("postgresql", rest).unwrap());
        assert_eq!(parse("postgresql:///app?host=/run"), Ok(address("/app?host=/run")));
        assert_eq!(parse("sqlite:/a:b"), Ok(Database::Sqlite("/a:b".into())));
        assert_eq!(parse("command:./freeze it"), Ok(Database::Program("./freeze it".into())));
        for wrong in ["", "mysql://x", "sqlite:", "postgresql:app", "command:"] {
            assert!(parse(wrong).unwrap_err().contains("names no database"), "{wrong}");
        }
        for secret in [
            "postgres:/me:secret@host",
            "postgresql://me:secret@x@host",
            "Postgresql://me:secret@host",
        ] {
            assert!(!parse(secret).unwrap_err().contains("secret"), "{secret}");
        }
    }
}
