//! Parts of the tables of every kind: columns, noise, and what was not measured.

use std::fmt::Write;

use crate::measure::Spread;
use crate::results::WorkloadResults;
use crate::summary::not_measured;

pub(crate) fn push_not_measured(text: &mut String, workload: &WorkloadResults) {
    for sentence in not_measured(workload) {
        let _ = writeln!(text, "  not measured: {sentence}");
    }
}

pub(crate) fn percent(spread: &Spread) -> String {
    if spread.n < 2 { "–".into() } else { format!("{:.0}%", spread.noise() * 100.0) }
}

/// Pads columns; a line of one cell spans all of them.
pub(crate) fn align(text: &mut String, lines: &[Vec<String>]) {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        lines.iter().filter(|l| l.len() > 1).map(|l| l[column].chars().count()).max().unwrap_or(0)
    };
    debug_assert!(
        lines.iter().all(|line| line.len() == 1 || line.len() == columns),
        "a line has a cell for each column, or one for all"
    );
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        if let [only] = &line[..] {
            let _ = writeln!(text, "  {only}");
            continue;
        }
        let _ = write!(text, "  {:<w$}", line[0], w = widths[0]);
        for (cell, &width) in line.iter().zip(&widths).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
}
