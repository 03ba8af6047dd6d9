//! Tables for a terminal.

use std::fmt::Write;

use crate::columns::{align, percent, push_not_measured};
use crate::results::{Results, WorkloadResults};
use crate::summary::{Row, by_case, summarize};
use crate::units::{format_micros, format_number};
use crate::way_table::push_ways;

/// Returns the compact table of everything measured.
#[must_use]
pub fn table(results: &Results) -> String {
    let mut text = String::new();
    for workload in &results.workloads {
        if workload.name == "ways" {
            push_ways(&mut text, workload);
        } else {
            push_workload(&mut text, workload);
        }
    }
    if results.interrupted {
        text.push_str("\nInterrupted: only what was finished is shown.\n");
    }
    text
}

const HEAD: [&str; 15] = [
    "",
    "rate",
    "±",
    "ratio",
    "(min … max)",
    "KiB/s",
    "mean",
    "p50",
    "p95",
    "p99",
    "cpu",
    "us/sy/id/wa",
    "reads",
    "writes",
    "flushes",
];

fn push_workload(text: &mut String, workload: &WorkloadResults) {
    let rows = summarize(workload);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\n{}: {} ({})", workload.name, workload.title, workload.unit);
    let options: Vec<String> =
        workload.options.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let _ = writeln!(text, "  {}", options.join(" · "));
    let mut lines: Vec<Vec<String>> = vec![HEAD.map(str::to_owned).to_vec()];
    for (case, rows) in by_case(workload, &rows) {
        if !rows.is_empty() {
            lines.push(vec![case.name.clone()]);
            lines.extend(rows.iter().map(|row| cells(row)));
        }
    }
    align(text, &lines);
    let _ = writeln!(
        text,
        "  us/sy/id/wa: percent of the processors in user and system code, idle, and waiting for a \
         device; reads, writes, flushes: what reached the device for each operation{}",
        counting_words(&rows)
    );
    push_figures(text, workload, &rows);
    push_not_measured(text, workload);
}

/// Says how device operations were counted, where that matters.
fn counting_words(rows: &[Row]) -> &'static str {
    if rows.iter().any(|row| row.counted_one_by_one) {
        ", counted one by one in a pass of their own"
    } else {
        ""
    }
}

fn cells(row: &Row) -> Vec<String> {
    let [p50, ..] = row.main_latency_us().unwrap_or_default();
    let [mean, p95, p99] = row.response_us.unwrap_or_default();
    let micros = |us: f64| if us > 0.0 { format_micros(us) } else { "–".into() };
    let [reads, writes, flushes] =
        row.device_per_op.map_or([const { String::new() }; 3], |counts| counts.map(format_number));
    vec![
        format!("  {}", row.label),
        format_number(row.rate.median),
        percent(&row.rate),
        format!("{:.3}", row.ratio.median),
        format!("{:.2} … {:.2}", row.ratio.min, row.ratio.max),
        format_number(row.kib_per_s),
        micros(mean),
        micros(p50),
        micros(p95),
        micros(p99),
        format!("{:.0}%", row.busy_percent),
        row.cpu_percent.map(|share| format!("{share:.0}")).join("/"),
        reads,
        writes,
        flushes,
    ]
}

/// Figures that only some workloads have, one line a target.
fn push_figures(text: &mut String, workload: &WorkloadResults, rows: &[Row]) {
    for row in rows.iter().filter(|row| !row.figures.is_empty()) {
        let figures: Vec<String> = row
            .figures
            .iter()
            .map(|(name, value)| format!("{name} {}", format_number(*value)))
            .collect();
        let _ = writeln!(
            text,
            "  {} · {}: {}",
            workload.cases[row.case].name,
            row.label,
            figures.join(", ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::{results, timed};

    #[test]
    fn the_table_shows_rates_ratios_and_noise() {
        let mut results =
            results(&[("raw", &[1000.0, 1100.0, 900.0]), ("xfs", &[500.0, 500.0, 500.0])]);
        let text = table(&results);
        let line = |label: &str| {
            text.lines().find(|l| l.trim_start().starts_with(label)).unwrap().to_owned()
        };
        assert!(
            line("raw").contains("1,000")
                && line("raw").contains("10%")
                && line("raw").contains("1.000"),
            "{text}"
        );
        assert!(line("xfs").contains("0.500") && line("xfs").contains("0.45 … 0.56"), "{text}");
        assert!(!text.contains("Interrupted"));
        results.interrupted = true;
        assert!(table(&results).contains("Interrupted"));
    }
    #[test]
    fn s_543_the_table_shows_response_times_rates_in_kib_and_shares() {
        let text = table(&timed());
        for word in ["KiB/s", "mean", "p95", "190 µs", "101 µs", "41/0/0/7"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}
