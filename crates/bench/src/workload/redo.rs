//! `redo`: what a database's log does. Every append is durable before the next; several committers
//! share the file.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate::AlignedBuf;

use super::{Env, Work, list, sampled, sizes};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{FileSpec, FileState, Target, fill_pattern};
use crate::{Error, Result};

/// How the file looks before the appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogState {
    /// Every append extends it.
    Extending,
    /// Allocated, never written.
    Unwritten,
    /// Written before: appends go over it, as a circular log's do.
    Written,
}

impl LogState {
    fn name(self) -> &'static str {
        match self {
            Self::Extending => "extending",
            Self::Unwritten => "unwritten",
            Self::Written => "written",
        }
    }
}

impl std::str::FromStr for LogState {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        [Self::Extending, Self::Unwritten, Self::Written]
            .into_iter()
            .find(|state| state.name() == text)
            .ok_or_else(|| {
                format!("unknown state '{text}' of a log: use extending, unwritten or written")
            })
    }
}

/// Options of `redo`. Every combination of the lists is a case.
#[derive(Debug, Clone)]
pub struct Redo {
    /// Sizes of one append in bytes.
    pub append_bytes: Vec<u64>,
    /// Numbers of threads that commit.
    pub committers: Vec<usize>,
    /// States of the file.
    pub states: Vec<LogState>,
    /// The most that the log grows to in one measurement, in bytes; a measurement that gets there
    /// ends early.
    pub size_bytes: u64,
}

impl Default for Redo {
    fn default() -> Self {
        Self {
            append_bytes: vec![512, 4096, 16_384],
            committers: vec![1, 8],
            states: vec![LogState::Extending, LogState::Unwritten, LogState::Written],
            size_bytes: 512 << 20,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Pattern {
    append_bytes: u64,
    committers: usize,
    state: LogState,
}

impl Redo {
    fn patterns(&self) -> Vec<Pattern> {
        let mut patterns = Vec::new();
        for &state in &self.states {
            for &committers in &self.committers {
                patterns.extend(self.append_bytes.iter().map(|&append_bytes| Pattern {
                    append_bytes,
                    committers,
                    state,
                }));
            }
        }
        patterns
    }

    fn file(&self, state: LogState) -> FileSpec {
        let file_state = match state {
            LogState::Extending => FileState::Empty,
            LogState::Unwritten => FileState::Unwritten,
            LogState::Written => FileState::Written,
        };
        FileSpec {
            name: format!("redo-{}", state.name()),
            size_bytes: self.size_bytes,
            state: file_state,
        }
    }
}

impl Work for Redo {
    fn name(&self) -> &'static str {
        "redo"
    }

    fn title(&self) -> &'static str {
        "durable appends to a log, each committed before its thread's next"
    }

    fn unit(&self) -> &'static str {
        "commits/s"
    }

    fn options(&self) -> BTreeMap<String, String> {
        let states: Vec<&str> = self.states.iter().map(|s| s.name()).collect();
        BTreeMap::from([
            ("append".into(), sizes(&self.append_bytes)),
            ("committers".into(), list(&self.committers)),
            ("states".into(), states.join(",")),
            ("size".into(), bedplate::format_size(self.size_bytes)),
        ])
    }

    fn validate(&self) -> Result<()> {
        if self.patterns().is_empty() {
            return Err(Error::usage("redo has nothing to do: give sizes, committers and states"));
        }
        if self.committers.iter().any(|&n| n == 0 || n > 4096) {
            return Err(Error::usage("a number of committers is 0 or above 4096"));
        }
        match self
            .append_bytes
            .iter()
            .find(|&&b| b == 0 || !b.is_multiple_of(512) || b > self.size_bytes / 64)
        {
            Some(b) => Err(Error::usage(format!(
                "an append of {b} bytes is no multiple of 512, or --size does not hold 64 of them"
            ))),
            None => Ok(()),
        }
    }

    fn cases(&self) -> Vec<Case> {
        let case = |p: &Pattern| {
            let size = bedplate::format_size(p.append_bytes);
            Case {
                name: format!(
                    "{}, {size}, {} committer{}",
                    p.state.name(),
                    p.committers,
                    if p.committers == 1 { "" } else { "s" }
                ),
                curve: format!("{}, {size}", p.state.name()),
                axis: "committers".into(),
                x: p.committers as f64,
            }
        };
        self.patterns().iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        self.size_bytes * self.states.len() as u64
    }

    fn counts_requests(&self) -> bool {
        true
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        self.states.iter().try_for_each(|&state| target.create(&self.file(state)))
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let pattern = self.patterns()[case];
        let spec = self.file(pattern.state);
        if pattern.state != LogState::Written {
            // The appends of the measurement before used the state up.
            target.create(&spec)?;
        }
        let file = target.open(&spec.name)?;
        // What cannot be written so small is padded, as a database pads its log's blocks.
        let append = pattern.append_bytes.next_multiple_of(file.align_bytes());
        let next = AtomicU64::new(0);
        // No warm-up: it would use up the state that is to be measured.
        let phase = Phase::Timed { warm_up: Duration::ZERO, time: env.time, after: Duration::ZERO };
        let classes = [Class::Commit];
        let job = Job {
            target,
            threads: pattern.committers,
            phase,
            classes: &classes,
            rated: &classes,
            sample_every: Some(sampled(env.time)),
            stop: env.stop,
        };
        let measurement = run(&job, |index| {
            let mut buf = AlignedBuf::zeroed(append as usize);
            fill_pattern(&mut buf, index as u64);
            let (file, next) = (&file, &next);
            Ok(move |worker: &mut Worker<'_>| {
                let mut begin = Instant::now();
                while !worker.done(begin) {
                    // The order of the log is the one thing committers share, in every database.
                    let offset = next.fetch_add(append, Relaxed);
                    if offset + append > spec.size_bytes {
                        break;
                    }
                    file.write_at(&buf, offset)?;
                    file.sync_data()?;
                    let end = Instant::now();
                    worker.record(Class::Commit, begin, end, append);
                    begin = end;
                }
                Ok(())
            })
        })?;
        Ok(measurement)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        self.states.iter().try_for_each(|&state| target.remove(&self.file(state).name))
    }
}
