//! Servers of files: `bedplate export`.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::bed::{Bed, COMMAND_LIMIT, kill};
use crate::cleanup::Guard;
use crate::sh;

/// A server in the foreground. Dropped, it is killed.
pub struct Exported {
    child: Child,
    guard: Option<Guard>,
    /// How clients name what is served; how QEMU does, of a disk in a guest's memory.
    pub uri: String,
}

impl Exported {
    /// Serves files.
    ///
    /// # Errors
    /// When it does not say where.
    pub fn start<A: AsRef<OsStr>>(
        bed: &Bed,
        protocol: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Self> {
        let mut command = bed.bedplate(["export", protocol]);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let what = sh::describe(&command);
        let mut child = command.spawn().with_context(|| format!("cannot start {what}"))?;
        let pid = child.id();
        let guard = Some(Guard::new(move || kill(pid)));
        let told = child.stdout.take().context("its output is taken once")?;
        let mut uri = String::new();
        BufReader::new(told).read_line(&mut uri)?;
        ensure!(
            uri.starts_with(protocol) || uri.starts_with("-chardev"),
            "{what} served nothing: {uri}"
        );
        Ok(Self { child, guard, uri: uri.trim().to_owned() })
    }

    /// Ends it as a person would; it has to end well.
    ///
    /// # Errors
    /// When it does not.
    pub fn end(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let status = sh::wait(&mut self.child, COMMAND_LIMIT)?;
        self.guard.take().into_iter().for_each(Guard::done);
        ensure!(status.success(), "the server ended with {status}");
        Ok(())
    }

    /// Kills it.
    ///
    /// # Errors
    /// When it had ended by itself.
    pub fn crash(mut self) -> Result<()> {
        ensure!(self.child.try_wait()?.is_none(), "the server had ended by itself");
        self.child.kill()?;
        self.child.wait()?;
        self.guard.take().into_iter().for_each(Guard::done);
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }
}
