//! A program and all that it starts, until they have ended, and signals to them.
//!
//! Processes that lose their parent become children of this one (`PR_SET_CHILD_SUBREAPER`), so a
//! server that goes into the background is waited for as well. The program is asked to end when this
//! process dies: without its files it is of no use.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, getppid, kill_process,
    set_child_subreaper, set_parent_process_death_signal, wait, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::failure::{Failure, Result};

/// What a terminal sends, it sends to the program, too.
const OF_TERMINAL: [i32; 2] = [SIGINT, SIGQUIT];

/// Signals to this process, taken from now on.
pub struct Signals(signal_hook::iterator::Signals);

impl Signals {
    pub fn take() -> Result<Self> {
        signal_hook::iterator::Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT])
            .map(Self)
            .map_err(|error| Failure::new("io", format!("cannot take signals: {error}")))
    }
}

/// Becomes a program that is asked to end when its parent dies, which has the number `parent`.
pub fn become_program(parent: u32, name: &OsStr, arguments: &[OsString]) -> Result<()> {
    let path = Path::new(name);
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|errno| Failure::system("prepare to run", path, &errno.into()))?;
    // It may have died before.
    if getppid().map(|pid| pid.as_raw_pid().cast_unsigned()) != Some(parent) {
        return Err(Failure::new("io", "what has begun this program has ended"));
    }
    Err(Failure::system("run", path, &Command::new(name).args(arguments).exec()))
}

/// How far the program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Runs(Pid),
    /// It has ended, and some that it started have not.
    Left,
    /// All have ended.
    Over,
}

/// The processes of a program.
pub struct Children {
    /// Those of this process that are not the program's.
    helpers: BTreeSet<u32>,
}

impl Children {
    /// Adopts what loses its parent from now on.
    pub fn adopt(helpers: BTreeSet<u32>) -> Result<Self> {
        set_child_subreaper(Some(getpid())).map_err(|errno| {
            let error = std::io::Error::from(errno);
            Failure::new("io", format!("cannot look after what the program starts: {error}"))
        })?;
        Ok(Self { helpers })
    }

    /// Waits until a child and all that it started have ended; returns how the child ended.
    pub fn wait(self, child: u32, signals: Signals) -> Result<ExitStatus> {
        let child = Pid::from_raw(child.cast_signed()).expect("a process has a number");
        let stage = Arc::new(Mutex::new(Stage::Runs(child)));
        let (seen, helpers) = (Arc::clone(&stage), self.helpers.clone());
        std::thread::spawn(move || pass_on(signals, &seen, &helpers));
        let lock = || stage.lock().unwrap_or_else(PoisonError::into_inner);
        let mut status = None;
        // It fails where none is left.
        while let Ok(_) | Err(Errno::INTR) =
            waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        {
            // Its number stays its own until no signal is sent to it any more.
            let mut stage = lock();
            if let Ok(Some((ended, told))) = wait(WaitOptions::NOHANG)
                && ended == child
            {
                *stage = Stage::Left;
                status = Some(ExitStatus::from_raw(told.as_raw()));
            }
            drop(stage);
            if status.is_some() && own_children(&self.helpers).is_empty() {
                break;
            }
        }
        *lock() = Stage::Over;
        status.ok_or_else(|| Failure::new("io", "the program's end was not told by the system"))
    }
}

/// Passes signals on to the program, or to what it left. Once all have ended, one more gives up on
/// a server that does not answer.
fn pass_on(mut signals: Signals, stage: &Mutex<Stage>, helpers: &BTreeSet<u32>) {
    for number in signals.0.forever() {
        let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(signal) = Signal::from_named_raw(number) else { continue };
        let send = |to: Pid| {
            if let Err(errno) = kill_process(to, signal) {
                tracing::debug!("a signal was not passed on: {errno}");
            }
        };
        match *stage {
            Stage::Over => {
                tracing::error!("what was not synced on the server when it fell silent is lost");
                std::process::exit(128 + number);
            }
            _ if OF_TERMINAL.contains(&number) => {}
            Stage::Runs(child) => send(child),
            Stage::Left => {
                let left = own_children(helpers).into_iter();
                left.filter_map(|pid| Pid::from_raw(pid.cast_signed())).for_each(send);
            }
        }
    }
}

/// Returns the children of this process that are the program's; none where the system does not list
/// them.
fn own_children(helpers: &BTreeSet<u32>) -> BTreeSet<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let mut all = BTreeSet::new();
    for list in lists {
        all.extend(list.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    all.retain(|pid| !helpers.contains(pid));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_are_no_children_of_the_program() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        assert!(own_children(&BTreeSet::new()).contains(&pid));
        assert!(!own_children(&[pid].into()).contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!own_children(&BTreeSet::new()).contains(&pid));
    }
}
