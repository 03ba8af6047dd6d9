//! The table of ways: what an operation costs by each, case by case. A way that was not measured has
//! its line, and its reason below.

use std::fmt::Write;

use crate::columns::{align, percent, push_not_measured};
use crate::results::WorkloadResults;
use crate::summary::{Row, summarize};
use crate::units::{format_micros, format_number};

const HEAD: [&str; 9] =
    ["", "IOPS", "±", "ratio", "(min … max)", "p50", "p99", "CPU per op", "of the machine"];

pub(crate) fn push_ways(text: &mut String, workload: &WorkloadResults) {
    let rows = summarize(workload);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\n{}: {} ({})", workload.name, workload.title, workload.unit);
    let options: Vec<String> =
        workload.options.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let _ = writeln!(text, "  {} rounds · {}", workload.rounds, options.join(" · "));
    let mut lines = vec![HEAD.map(str::to_owned).to_vec()];
    for (case, told) in workload.cases.iter().enumerate() {
        lines.push(vec![told.name.clone()]);
        for (target, info) in workload.targets.iter().enumerate() {
            let row = rows.iter().find(|row| (row.case, row.target) == (case, target));
            lines.push(cells(&info.label, row));
        }
    }
    align(text, &lines);
    text.push_str(
        "  ratio: to the first line, within each round; CPU per op: processor time of the client and \
         of all servers for each\n  operation; of the machine: that of the whole machine, the \
         kernel's threads and all else that ran included\n",
    );
    push_not_measured(text, workload);
}

fn cells(label: &str, row: Option<&Row>) -> Vec<String> {
    let name = format!("  {label}");
    let Some(row) = row else {
        let none = std::iter::repeat_n("–".to_owned(), HEAD.len() - 1);
        return std::iter::once(name).chain(none).collect();
    };
    let [p50, p99, _] = row.main_latency_us().unwrap_or_default();
    vec![
        name,
        format_number(row.rate.median),
        percent(&row.rate),
        format!("{:.3}", row.ratio.median),
        format!("{:.2} … {:.2}", row.ratio.min, row.ratio.max),
        format_micros(p50),
        format_micros(p99),
        row.cpu_us_per_op.map_or_else(|| "–".to_owned(), format_micros),
        format_micros(row.machine_us_per_op),
    ]
}

#[cfg(test)]
mod tests {
    use crate::results::Skipped;
    use crate::summary::tests::results;
    use crate::table;

    #[test]
    fn s_582_a_way_without_figures_has_a_line_and_a_reason() {
        let mut results = results(&[("library", &[1000.0, 1200.0]), ("NBD", &[500.0, 600.0])]);
        let workload = &mut results.workloads[0];
        workload.name = "ways".into();
        let mut other = workload.targets[0].clone();
        other.label = "NFS".into();
        workload.targets.push(other);
        let reason = "needs root".to_owned();
        workload.skipped.push(Skipped { case: 0, target: 2, reason });
        workload.records.iter_mut().for_each(|r| r.measurement.cpu_us_per_op = Some(12.5));
        let text = table(&results);
        let line = |label: &str| {
            text.lines().find(|l| l.trim_start().starts_with(label)).unwrap().to_owned()
        };
        assert!(line("library").contains("1.000") && line("library").contains("12.5 µs"), "{text}");
        assert!(line("NBD").contains("0.500"), "{text}");
        assert!(line("NFS").contains('–'), "{text}");
        assert!(text.contains("not measured: NFS: needs root"), "{text}");
    }
}
