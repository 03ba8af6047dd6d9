//! What the lab found, for people and for programs.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use block::{CrashStep, Spooled};
use serde::Serialize;
use sim::Pattern;

use super::acknowledged::{before, line};
use super::record::{Circumstances, Recorded, duration};
use super::replay::{Tried, Verdict};
use super::{Arguments, Lab, html, replay};
use crate::failure::{Failure, Result};
use crate::text;

/// The whole result; the fields are the JSON document's.
#[derive(Debug, Serialize)]
pub struct Report {
    pub version: &'static str,
    pub circumstances: Circumstances,
    pub check: String,
    pub seed: u64,
    pub recorded: Work,
    /// How many states were tried.
    pub states: usize,
    pub passed: usize,
    /// How many did not pass, for whatever reason.
    pub failed: usize,
    pub duration_ms: u64,
    pub patterns: Vec<Counts>,
    pub results: Vec<StateResult>,
    /// The command that shows a failing state again; `STATE` stands for its number.
    pub again: String,
    /// Operations of the recording at which a flush made durable what came before it, for the picture.
    #[serde(skip)]
    pub flushes: Vec<usize>,
}

/// What the program did.
#[derive(Debug, Serialize)]
pub struct Work {
    /// Operations of the device before the program began, and when it had ended.
    pub first: usize,
    pub last: usize,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub acknowledgements: usize,
}

/// How one pattern fared.
#[derive(Debug, Serialize)]
pub struct Counts {
    pub pattern: Pattern,
    pub states: usize,
    pub passed: usize,
    pub failed: usize,
}

/// One state.
#[derive(Debug, Serialize)]
pub struct StateResult {
    pub state: usize,
    /// The power went after so many operations of the device.
    pub after: usize,
    pub pattern: Pattern,
    /// Writes that no flush had covered: all, and those that arrived whole and in part.
    pub unflushed: usize,
    pub arrived: usize,
    pub torn: usize,
    /// Lines that were out before the cut.
    pub acknowledged: usize,
    pub verdict: Verdict,
    /// How the checker ended.
    pub ended: String,
    /// The end of what it printed.
    pub said: String,
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
    pub operation: usize,
    /// On the volume, in bytes.
    pub offset: u64,
    pub len: u64,
    /// What arrived of it, in bytes from its start.
    pub arrived: Vec<Range<u64>>,
    /// The file it belongs to, at the cut or in the end, and the bytes in it; none: the file system's own, or a file that was gone or not yet durable.
    pub file: Option<String>,
}

/// How many writes of a state are named, and in how many states: the layout of the files at a cut costs a mount.
const MISSING_MAX: usize = 64;
const EXPLAINED_MAX: usize = 50;

impl Report {
    pub fn new(lab: &Lab, recorded: &Recorded, seed: u64, tried: &[Tried], in_the_end: &super::layout::Layout, took: Duration) -> Result<Self> {
        let (writes, written_bytes, flushes) = recorded.volume_of_work();
        let mut results: Vec<StateResult> = tried.iter().map(|tried| StateResult::new(recorded, tried)).collect();
        let failing = tried.iter().zip(&mut results).filter(|(tried, _)| tried.verdict != Verdict::Passed);
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
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            circumstances: recorded.circumstances.clone(),
            check: lab.arguments.check.clone(),
            seed,
            recorded: Work { first, last, writes, written_bytes, flushes, acknowledgements: recorded.told.len() },
            states: results.len(),
            passed,
            failed: results.len() - passed,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            patterns: Pattern::ALL.iter().map(|pattern| Counts::of(*pattern, &results)).collect(),
            results,
            again: again(lab.arguments, seed),
            flushes: (first..last).filter(|at| matches!(operations[*at], Spooled::Flush { .. })).collect(),
        })
    }

    /// Returns how many states a minute were tried.
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
        let (states, passed) = (of_pattern().count(), of_pattern().filter(|result| result.verdict == Verdict::Passed).count());
        Self { pattern, states, passed, failed: states - passed }
    }
}

impl StateResult {
    fn new(recorded: &Recorded, tried: &Tried) -> Self {
        let state = &tried.state;
        let unflushed = recorded.recording.unflushed(state.after);
        let acknowledged = before(&recorded.told, state.after);
        let range = |operation: usize| match recorded.recording.operations()[operation] {
            Spooled::Write { offset, len, .. } => offset..offset + len,
            Spooled::Flush { .. } => 0..0,
        };
        let is_whole = |step: &CrashStep| {
            let range = range(step.operation);
            step.parts.iter().map(|part| part.end - part.start).sum::<u64>() == range.end - range.start
        };
        let (whole, torn): (Vec<&CrashStep>, Vec<&CrashStep>) = state.steps.iter().partition(|step| is_whole(step));
        let failed = tried.verdict != Verdict::Passed;
        let missing = |operation: &usize| {
            if whole.iter().any(|step| step.operation == *operation) {
                return None;
            }
            let arrived = torn.iter().find(|step| step.operation == *operation).map(|step| step.parts.clone()).unwrap_or_default();
            let range = range(*operation);
            Some(Missing { operation: *operation, offset: range.start, len: range.end - range.start, arrived, file: None })
        };
        let mut named: Vec<Missing> = if failed { unflushed.iter().rev().filter_map(missing).take(MISSING_MAX).collect() } else { Vec::new() };
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
            duration_ms: u64::try_from(tried.duration.as_millis()).unwrap_or(u64::MAX),
            last_acknowledged: acknowledged.checked_sub(1).filter(|_| failed).map(|last| line(&recorded.lines, &recorded.told, last)),
            missing: named,
        }
    }
}

/// Returns the command that tries one state again.
fn again(arguments: &Arguments, seed: u64) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let mut line = "bedplate crashlab".to_owned();
    let kept = arguments.replay.as_ref().or(arguments.recording.as_ref());
    if let Some(dir) = kept {
        line.push_str(&format!(" --replay {}", dir.display()));
    }
    if !arguments.options.is_empty() {
        line.push_str(&format!(" -o {}", quoted(&arguments.options.join(","))));
    }
    line.push_str(&format!(" --seed {seed} --state STATE --check {}", quoted(&arguments.check)));
    if kept.is_none() {
        line.push_str(" …");
    }
    line
}

/// Says what a pattern means.
pub fn pattern_words(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Nothing => "none of it",
        Pattern::Everything => "all of it",
        Pattern::InOrder => "in order, the last write torn",
        Pattern::Subset => "any of it, any of that torn",
    }
}

/// Says what became of a state.
pub fn verdict_words(result: &StateResult) -> String {
    match result.verdict {
        Verdict::Passed => "passed".to_owned(),
        Verdict::Failed | Verdict::TimedOut => result.ended.clone(),
        Verdict::NotMounted => format!("Bedplate could not mount it: {}", result.ended),
    }
}

/// Says what became of a state, with the last line of what the checker said.
pub fn verdict_line(result: &StateResult) -> String {
    let said = result.said.lines().last().map(|line| format!(": {line}")).unwrap_or_default();
    format!("{}{said}", verdict_words(result))
}

/// Writes `crashlab.html` and `crashlab.json` into a directory.
pub fn write(report: &Report, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| Failure::system("make the directory", dir, &error))?;
    let json = serde_json::to_vec_pretty(report).map_err(|error| Failure::new("io", format!("cannot write the report as JSON: {error}")))?;
    for (name, bytes) in [("crashlab.json", json), ("crashlab.html", html::page(report).into_bytes())] {
        let path = dir.join(name);
        std::fs::write(&path, bytes).map_err(|error| Failure::system("write", &path, &error))?;
    }
    Ok(())
}

/// How many failing states are told one by one.
const TOLD_MAX: usize = 12;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = &self.recorded;
        let (writes, flushes) = (text::count(work.writes, "write"), text::count_in(work.flushes, "flush", "flushes"));
        let (bytes, told) = (bedplate::format_size(work.written_bytes), text::count(work.acknowledgements as u64, "acknowledged line"));
        writeln!(f, "{}", self.circumstances)?;
        writeln!(f, "recorded in {}: {writes} ({bytes}), {flushes}, {told}", duration(&self.circumstances))?;
        let took = bedplate::format_duration(Duration::from_millis(self.duration_ms));
        writeln!(f, "tried in {took}: {} ({} a minute), seed {}\n", text::count(self.states as u64, "state"), self.rate_per_minute(), self.seed)?;
        let row = |name: &str, states: usize, passed: usize, failed: usize| {
            vec![name.to_owned(), states.to_string(), passed.to_string(), failed.to_string()]
        };
        let mut rows = vec![["what arrived of the unflushed writes", "states", "passed", "failed"].map(str::to_owned).to_vec()];
        rows.extend(self.patterns.iter().map(|count| row(pattern_words(count.pattern), count.states, count.passed, count.failed)));
        rows.push(row("together", self.states, self.passed, self.failed));
        f.write_str(&text::table(&rows, &[1, 2, 3]))?;
        if self.failed == 0 {
            return write!(f, "\nno state failed");
        }
        self.tell_failures(f)
    }
}

impl Report {
    fn tell_failures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = ["state", "cut after", "unflushed", "arrived", "torn", "acknowledged", "checker"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(self.failures().take(TOLD_MAX).map(|result| {
            let numbers = [result.state, result.after, result.unflushed, result.arrived, result.torn, result.acknowledged];
            numbers.iter().map(usize::to_string).chain([verdict_line(result)]).collect()
        }));
        write!(f, "\n{}", text::table(&rows, &[0, 1, 2, 3, 4, 5]))?;
        if self.failed > TOLD_MAX {
            writeln!(f, "and {} more", self.failed - TOLD_MAX)?;
        }
        write!(f, "\nagain, with the number of a state: {}", self.again)
    }
}
