//! What the lab found, for people.

use std::fmt;
use std::time::Duration;

use bedplate::{format_duration, format_size};
use bedplate_crashlab::{Report, pattern_words, verdict_line};

use crate::render::output::Shown;
use crate::render::text;

/// How many failing states are told one by one.
const FAILURES_MAX: usize = 12;

impl fmt::Display for Shown<Report> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = &self.0;
        let work = &report.recorded;
        let (writes, flushes) =
            (text::count(work.writes, "write"), text::count_in(work.flushes, "flush", "flushes"));
        let (bytes, lines) = (
            format_size(work.written_bytes),
            text::count(work.acknowledgements as u64, "acknowledged line"),
        );
        writeln!(f, "{}", report.circumstances)?;
        writeln!(
            f,
            "recorded in {}: {writes} ({bytes}), {flushes}, {lines}",
            report.circumstances.duration()
        )?;
        let took = format_duration(Duration::from_millis(report.duration_ms));
        let states = text::count(report.states as u64, "state");
        writeln!(
            f,
            "tried in {took}: {states} ({} a minute), seed {}\n",
            report.rate_per_minute(),
            report.seed
        )?;
        let row = |name: &str, states: usize, passed: usize, failed: usize| {
            vec![name.to_owned(), states.to_string(), passed.to_string(), failed.to_string()]
        };
        let mut rows = vec![
            ["what arrived of the unflushed writes", "states", "passed", "failed"]
                .map(str::to_owned)
                .to_vec(),
        ];
        rows.extend(report.patterns.iter().map(|count| {
            row(pattern_words(count.pattern), count.states, count.passed, count.failed)
        }));
        rows.push(row("together", report.states, report.passed, report.failed));
        f.write_str(&text::table(&rows, &[1, 2, 3]))?;
        if report.failed == 0 {
            return write!(f, "\nno state failed");
        }
        tell_failures(report, f)
    }
}

fn tell_failures(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let heads = ["state", "cut after", "unflushed", "arrived", "torn", "acknowledged", "checker"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(report.failures().take(FAILURES_MAX).map(|result| {
        let numbers = [
            result.state,
            result.after,
            result.unflushed,
            result.arrived,
            result.torn,
            result.acknowledged,
        ];
        numbers.iter().map(usize::to_string).chain([verdict_line(result)]).collect()
    }));
    write!(f, "\n{}", text::table(&rows, &[0, 1, 2, 3, 4, 5]))?;
    if report.failed > FAILURES_MAX {
        writeln!(f, "and {} more", report.failed - FAILURES_MAX)?;
    }
    write!(f, "\nagain, with the number of a state: {}", report.again)
}
