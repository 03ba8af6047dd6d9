//! The mount that outlives its command.
//!
//! ```text
//! bedplate mount ──spawn──> bedplate mount --daemon-child      (a new process: nothing of the parent's threads or locks comes along)
//!   │                         │ detach_from_terminal()         own session, working directory /
//!   │                         │ recover and mount
//!   │ start() <──one line── announce()                         the report, or the failure
//!   │                         │ silence()                      standard output and error go to the log file or nowhere
//!   exit                      serve until unmounted
//! ```
//!
//! Of the caller's descriptors it inherits none but the standard three: a lock file that a script
//! holds does not stay locked. Warnings before the line reach the terminal: the child keeps the
//! parent's standard error until then.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// What the child tells the parent, as one line of JSON.
#[derive(Serialize, Deserialize)]
enum Word<T> {
    Ready(T),
    Failed(Failure),
}

/// Starts this program again with `arguments` and returns what it announces.
pub fn start<T: DeserializeOwned>(arguments: &[OsString]) -> Result<T> {
    if let Err(error) = bedplate_block::close_descriptors_on_exec() {
        tracing::debug!("the daemon inherits what its caller left open: {error}");
    }
    let program = std::env::current_exe().map_err(|error| {
        Failure::new("io", format!("cannot find the program to start as a daemon: {error}"))
    })?;
    let mut command = Command::new(&program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child =
        command.spawn().map_err(|error| Failure::system("start the daemon", &program, &error))?;
    let line = first_line(&mut child)
        .map_err(|error| Failure::system("hear from the daemon", &program, &error))?;
    match serde_json::from_str(&line) {
        Ok(Word::Ready(told)) => Ok(told),
        Ok(Word::Failed(failure)) => {
            // The exit status only repeats the failure; waiting keeps the volume busy until it is
            // really free.
            let _status = child.wait();
            Err(failure)
        }
        Err(_) => Err(died(&mut child)),
    }
}

fn first_line(child: &mut Child) -> io::Result<String> {
    let mut line = String::new();
    if let Some(pipe) = child.stdout.take() {
        BufReader::new(pipe).read_line(&mut line)?;
    }
    Ok(line)
}

fn died(child: &mut Child) -> Failure {
    let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    Failure::new(
        "daemon_died",
        format!(
            "the daemon ended before the volume was mounted ({how}): run 'bedplate mount \
             --foreground' to see why"
        ),
    )
}

/// Leaves the terminal's session, so that neither its end nor its Ctrl-C reaches the daemon, and
/// the directory it was started in.
pub fn detach_from_terminal() -> Result<()> {
    rustix::process::setsid().map_err(|error| {
        Failure::new("io", format!("cannot start a session of its own: {error}"))
    })?;
    std::env::set_current_dir("/")
        .map_err(|error| Failure::system("change to", Path::new("/"), &error))
}

/// Tells the parent how it went.
///
/// # Errors
/// When the parent is gone: then its caller does not know of this mount, and it should end.
pub fn announce<T: Serialize>(told: std::result::Result<T, &Failure>) -> Result<()> {
    let word = match told {
        Ok(told) => Word::Ready(told),
        Err(failure) => Word::Failed(failure.clone()),
    };
    let line = serde_json::to_string(&word)
        .map_err(|error| Failure::new("io", format!("cannot write the announcement: {error}")))?;
    let mut pipe = io::stdout().lock();
    writeln!(pipe, "{line}").and_then(|()| pipe.flush()).map_err(|error| {
        Failure::new("io", format!("the command that started the daemon is gone: {error}"))
    })
}

/// Opens the file for what the daemon has to say later.
pub fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|error| Failure::system("open the log file", path, &error))
}

/// Sends standard output and error to the log file, or nowhere.
pub fn silence(log: Option<&File>) -> Result<()> {
    let nowhere;
    let target = match log {
        Some(log) => log,
        None => {
            let path = Path::new("/dev/null");
            nowhere = OpenOptions::new()
                .write(true)
                .open(path)
                .map_err(|error| Failure::system("open", path, &error))?;
            &nowhere
        }
    };
    let redirected =
        rustix::stdio::dup2_stdout(target).and_then(|()| rustix::stdio::dup2_stderr(target));
    redirected
        .map_err(|error| Failure::new("io", format!("cannot let go of the terminal: {error}")))
}
