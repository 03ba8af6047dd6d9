//! `bedplate trace --pid PID`: a process that runs already.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use bedplate_trace::{Follower, Trace, kernel_line};
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::ring::Ring;
use super::running::{Running, descriptors, family, followed, is_alive, threads};
use crate::failure::{Failure, Result};

/// Which processes, and how long.
#[derive(Debug, Args)]
pub struct Attaching {
    /// Record a process that runs, by the kernel's tracepoints, until it ends or this program is
    /// told to (Ctrl-C)
    #[arg(long, value_name = "PID", conflicts_with_all = ["program", "children", "children_of", "scratch"])]
    pid: Option<u32>,
    /// The same, with all that descends from it
    #[arg(long, value_name = "PID", conflicts_with_all = ["program", "children", "scratch"])]
    children_of: Option<u32>,
    /// End when this file is gone
    #[arg(long = "while", value_name = "FILE", conflicts_with = "program")]
    as_long_as: Option<PathBuf>,
}

/// How long the ring fills before it is read again.
const TURN: Duration = Duration::from_millis(20);
/// Turns between looks at what ends the recording.
const LOOK: Duration = Duration::from_millis(200);

impl Attaching {
    /// Tells whether a process was named.
    pub fn is_wanted(&self) -> bool {
        self.pid.is_some() || self.children_of.is_some()
    }

    /// Tells that an end was named and no process.
    pub fn is_half(&self) -> bool {
        self.as_long_as.is_some() && !self.is_wanted()
    }

    /// The process that was named.
    fn root(&self) -> Result<u32> {
        let named = self.pid.or(self.children_of);
        let root = named.ok_or_else(|| Failure::usage("name a process with --pid"))?;
        if is_alive(root) {
            return Ok(root);
        }
        Err(Failure::usage(format!("there is no process {root} that could be recorded")))
    }

    /// Returns the command of the process.
    pub fn command(&self) -> Vec<String> {
        let root = self.pid.or(self.children_of).unwrap_or(0);
        let bytes = std::fs::read(format!("/proc/{root}/cmdline")).unwrap_or_default();
        let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// Records so many calls at the most; says when it has begun.
    pub fn record(&self, calls_max: usize, began: impl FnOnce()) -> Result<Attached> {
        let root = self.root()?;
        let with_children = self.children_of.is_some();
        let processes = if with_children { family(root) } else { BTreeSet::from([root]) };
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| {
                Failure::new("io", format!("cannot watch for signals: {error}"))
            })?;
        }
        let numbers = followed();
        let calls: Vec<u64> = numbers.0.iter().map(|(number, _)| *number).collect();
        let mut ring = Ring::open(&calls, &threads(&processes))?;
        let (started, from) = (SystemTime::now(), Instant::now());
        let running = Running { processes: processes.clone(), with_children };
        let mut follower = Follower::new(&numbers, running, calls_max);
        for process in &processes {
            descriptors(*process).into_iter().for_each(|fd| follower.learn(*process, fd));
        }
        began();
        let mut looked = Instant::now();
        while !stop.load(Relaxed) {
            std::thread::sleep(TURN);
            ring.read(|line| kernel_line(line).iter().for_each(|line| follower.take(line)))?;
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                let is_gone = self.as_long_as.as_ref().is_some_and(|file| !file.exists());
                if is_gone || !processes.iter().any(|process| is_alive(*process)) {
                    break;
                }
            }
        }
        ring.stop()?;
        while ring.read(|line| kernel_line(line).iter().for_each(|line| follower.take(line)))? {}
        let took = from.elapsed();
        let mut trace = follower.finished();
        trace.about.lost += ring.overruns();
        Ok(Attached { trace, started, took })
    }
}

/// What was recorded.
pub struct Attached {
    pub trace: Trace,
    pub started: SystemTime,
    pub took: Duration,
}
