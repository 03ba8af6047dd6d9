//! What the lab found, for people and for programs.

use std::ops::Range;
use std::time::{Duration, Instant};

use bedplate_block::{CrashStep, Spooled};
use serde::Serialize;

use crate::acknowledged::{before, line};
use crate::error::Result;
use crate::lab::Lab;
use crate::layout::Layout;
use crate::recorded::{Circumstances, Recorded};
use crate::replay::{self, Selection, Tried, Verdict};
use crate::sample::Pattern;

/// The whole result; the fields are the JSON document's.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Bedplate's.
    pub version: &'static str,
    /// What was run, and on what.
    pub circumstances: Circumstances,
    /// The checker.
    pub check: String,
    /// What the states follow from.
    pub seed: u64,
    /// What the program did.
    pub recorded: Work,
    /// How many states were tried.
    pub states: usize,
    /// How many passed.
    pub passed: usize,
    /// How many did not pass, for whatever reason.
    pub failed: usize,
    /// How long that took, in milliseconds.
    pub duration_ms: u64,
    /// How each pattern fared.
    pub patterns: Vec<Counts>,
    /// Every state.
    pub results: Vec<StateResult>,
    /// The command that shows a failing state again; `STATE` is to be replaced by its number.
    pub again: String,
    /// Operations of the recording at which a flush made durable what came before it, for the
    /// picture.
    #[serde(skip)]
    pub(crate) flushes: Vec<usize>,
}

/// What the program did.
#[derive(Debug, Serialize)]
pub struct Work {
    /// Operations of the device before the program began.
    pub first: usize,
    /// Operations of the device when it had ended.
    pub last: usize,
    /// Its writes.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Its flushes.
    pub flushes: u64,
    /// The lines it acknowledged.
    pub acknowledgements: usize,
}

/// How one pattern fared.
#[derive(Debug, Serialize)]
pub struct Counts {
    /// Which.
    pub pattern: Pattern,
    /// How many states had it.
    pub states: usize,
    /// How many of them passed.
    pub passed: usize,
    /// How many did not.
    pub failed: usize,
}

/// One state.
#[derive(Debug, Serialize)]
pub struct StateResult {
    /// Its number.
    pub state: usize,
    /// The power went after so many operations of the device.
    pub after: usize,
    /// What became of the writes that no flush had covered.
    pub pattern: Pattern,
    /// How many these were.
    pub unflushed: usize,
    /// How many of them arrived whole.
    pub arrived: usize,
    /// How many of them arrived in part.
    pub torn: usize,
    /// Lines that were out before the cut.
    pub acknowledged: usize,
    /// What became of the state.
    pub verdict: Verdict,
    /// How the checker ended.
    pub ended: String,
    /// The end of what it printed.
    pub said: String,
    /// How long mounting and checking took, in milliseconds.
    pub duration_ms: u64,
    /// The last line that was out; of states that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_acknowledged: Option<String>,
    /// What did not arrive whole; of states that failed, the last of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Missing>,
}

/// A write that did not arrive, or not whole.
#[derive(Debug, Serialize)]
pub struct Missing {
    /// Its number in the recording.
    pub operation: usize,
    /// Where it went on the volume, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// What arrived of it, in bytes from its start.
    pub arrived: Vec<Range<u64>>,
    /// The file it belongs to, at the cut or in the end, and the bytes in it; none: the file
    /// system's own, or a file that was gone or not yet durable.
    pub file: Option<String>,
}

/// Tries the states of a selection. `again` is the command that tries one of them again, for the
/// report.
///
/// # Errors
/// `Checker` where the checker fails although nothing was lost, `NotFound` for a state that the
/// seed does not have, `Interrupted`; those of the system, the file system and the mount.
pub fn try_states(
    lab: &Lab<'_>,
    recorded: &Recorded,
    selection: &Selection,
    again: String,
) -> Result<Report> {
    let layout = replay::uncut(lab, recorded)?;
    let started = Instant::now();
    let tried = replay::states(lab, recorded, selection)?;
    let duration_ms = millis(started.elapsed());
    Ok(Report {
        duration_ms,
        ..Report::new(lab, recorded, &tried, &layout, selection.seed, again)?
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How many writes of a state are named, and in how many states: the layout of the files at a cut
/// costs a mount.
const MISSING_MAX: usize = 64;
const EXPLAINED_MAX: usize = 50;

impl Report {
    fn new(
        lab: &Lab<'_>,
        recorded: &Recorded,
        tried: &[Tried],
        in_the_end: &Layout,
        seed: u64,
        again: String,
    ) -> Result<Self> {
        let (writes, written_bytes, flushes) = recorded.volume_of_work();
        let mut results: Vec<StateResult> =
            tried.iter().map(|tried| StateResult::new(recorded, tried)).collect();
        let failing =
            tried.iter().zip(&mut results).filter(|(tried, _)| tried.verdict != Verdict::Passed);
        for (tried, result) in failing.take(EXPLAINED_MAX) {
            let layout = replay::layout_after(lab, recorded, tried.state.after)?;
            for missing in &mut result.missing {
                let range = missing.offset..missing.offset + missing.len;
                missing.file = layout.name(&range).or_else(|| in_the_end.name(&range));
            }
        }
        let passed = results.iter().filter(|result| result.verdict == Verdict::Passed).count();
        let (first, last) = (*recorded.cuts.start(), *recorded.cuts.end());
        let operations = recorded.recording.operations();
        assert!(
            first <= last && last <= operations.len() && passed <= results.len(),
            "a report is of what was recorded and tried"
        );
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            circumstances: recorded.circumstances.clone(),
            check: lab.check.to_owned(),
            seed,
            recorded: Work {
                first,
                last,
                writes,
                written_bytes,
                flushes,
                acknowledgements: recorded.acknowledgements.len(),
            },
            states: results.len(),
            passed,
            failed: results.len() - passed,
            duration_ms: 0,
            patterns: Pattern::ALL.iter().map(|pattern| Counts::of(*pattern, &results)).collect(),
            results,
            again,
            flushes: (first..last)
                .filter(|at| matches!(operations[*at], Spooled::Flush { .. }))
                .collect(),
        })
    }

    /// Returns how many states a minute were tried.
    #[must_use]
    pub fn rate_per_minute(&self) -> u64 {
        (self.states as u64 * 60_000) / self.duration_ms.max(1)
    }

    /// Returns the states that did not pass.
    pub fn failures(&self) -> impl Iterator<Item = &StateResult> {
        self.results.iter().filter(|result| result.verdict != Verdict::Passed)
    }
}

impl Counts {
    fn of(pattern: Pattern, results: &[StateResult]) -> Self {
        let of_pattern = || results.iter().filter(|result| result.pattern == pattern);
        let (states, passed) = (
            of_pattern().count(),
            of_pattern().filter(|result| result.verdict == Verdict::Passed).count(),
        );
        Self { pattern, states, passed, failed: states - passed }
    }
}

impl StateResult {
    fn new(recorded: &Recorded, tried: &Tried) -> Self {
        let state = &tried.state;
        let unflushed = recorded.recording.unflushed(state.after);
        let acknowledged = before(&recorded.acknowledgements, state.after);
        let range = |operation: usize| match recorded.recording.operations()[operation] {
            Spooled::Write { offset, len, .. } => offset..offset + len,
            Spooled::Flush { .. } => 0..0,
        };
        let is_whole = |step: &CrashStep| {
            let range = range(step.operation);
            step.parts.iter().map(|part| part.end - part.start).sum::<u64>()
                == range.end - range.start
        };
        let (whole, torn): (Vec<&CrashStep>, Vec<&CrashStep>) =
            state.steps.iter().partition(|step| is_whole(step));
        let failed = tried.verdict != Verdict::Passed;
        let missing = |operation: &usize| {
            if whole.iter().any(|step| step.operation == *operation) {
                return None;
            }
            let arrived = torn
                .iter()
                .find(|step| step.operation == *operation)
                .map(|step| step.parts.clone())
                .unwrap_or_default();
            let range = range(*operation);
            Some(Missing {
                operation: *operation,
                offset: range.start,
                len: range.end - range.start,
                arrived,
                file: None,
            })
        };
        let mut named: Vec<Missing> = if failed {
            unflushed.iter().rev().filter_map(missing).take(MISSING_MAX).collect()
        } else {
            Vec::new()
        };
        named.reverse();
        Self {
            state: state.number,
            after: state.after,
            pattern: state.pattern,
            unflushed: unflushed.len(),
            arrived: whole.len(),
            torn: torn.len(),
            acknowledged,
            verdict: tried.verdict,
            ended: tried.ended.clone(),
            said: tried.said.clone(),
            duration_ms: millis(tried.duration),
            last_acknowledged: acknowledged
                .checked_sub(1)
                .filter(|_| failed)
                .map(|last| line(&recorded.lines, &recorded.acknowledgements, last)),
            missing: named,
        }
    }
}

/// Says what a pattern means.
#[must_use]
pub fn pattern_words(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Nothing => "none of it",
        Pattern::Everything => "all of it",
        Pattern::InOrder => "in order, the last write torn",
        Pattern::Subset => "any of it, any of that torn",
    }
}

/// Says what became of a state.
pub(crate) fn verdict_words(result: &StateResult) -> String {
    match result.verdict {
        Verdict::Passed => "passed".to_owned(),
        Verdict::Failed | Verdict::TimedOut => result.ended.clone(),
        Verdict::NotMounted => format!("Bedplate could not mount it: {}", result.ended),
    }
}

/// Says what became of a state, with the last line of what the checker said.
#[must_use]
pub fn verdict_line(result: &StateResult) -> String {
    let said = result.said.lines().last().map(|line| format!(": {line}")).unwrap_or_default();
    format!("{}{said}", verdict_words(result))
}
