//! Results as Markdown: `docs/results.md` is made of this and nothing else.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::papers::paper;
use crate::results::{Results, WorkloadResults};
use crate::summary::{Row, by_case, summarize};
use crate::units::{format_micros, format_number};
use crate::volumes::VolumeReport;

/// Returns the tables of several runs as one document.
#[must_use]
pub fn markdown(runs: &[Results]) -> String {
    let mut text = String::from(
        "# Measured results\n\nMade by `bedplate bench tables`; not edited by hand. Each value is \
         the median over rounds with its smallest and largest; each ratio is taken within a round \
         against the first target, and ± is half the distance of the ends as a part of the median: \
         a difference smaller than that says nothing. Mean and percentiles are response \
         times; user, system, idle and waiting (for a device) are percent of the processors.\n",
    );
    for run in runs {
        push_run(&mut text, run);
    }
    text
}

fn push_run(text: &mut String, run: &Results) {
    let machine = &run.machine;
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "\n## {}: {} × {}, {}, Linux {}{}\n\n    {}\n",
        run.started,
        machine.cpus,
        machine.cpu_model,
        bedplate::format_size(machine.memory_bytes),
        machine.kernel,
        if machine.hypervisor { ", virtual" } else { "" },
        program_name(&run.command)
    );
    if run.interrupted {
        text.push_str("The run was interrupted; the rounds that were finished are shown.\n");
    }
    run.workloads.iter().for_each(|workload| push_workload(text, workload));
    run.volumes.iter().for_each(|volumes| push_volumes(text, volumes));
}

fn push_volumes(text: &mut String, report: &VolumeReport) {
    let _ = writeln!(
        text,
        "### volume\n\nMembers: {}. Medians of {} rounds. A plain loop issues the member \
         operations of the layout from as many threads, with nothing in between.\n",
        report.members.join(", "),
        report.rounds
    );
    text.push_str(
        "| what | reached | compared with | ratio | ratio to a plain loop | |\n| --- | ---: | --- \
         | ---: | ---: | --- |\n",
    );
    for row in &report.rows {
        let plain = row.plain_ratio.map_or_else(|| "–".into(), |ratio| format!("**{ratio:.2}**"));
        let (reached, reference) = (format_number(row.volume), format_number(row.reference));
        let _ = writeln!(
            text,
            "| {} | {reached} {} | {}: {reference} | **{:.2}** | {plain} | {} |",
            row.what, row.unit, row.of, row.ratio, row.note
        );
    }
    text.push('\n');
}

/// The command as it is typed, whatever directory the program was run from.
fn program_name(command: &[String]) -> String {
    let mut words = command.to_vec();
    if let Some(program) = words.first_mut() {
        *program = program.rsplit('/').next().unwrap_or_default().to_owned();
    }
    words.join(" ")
}

fn push_workload(text: &mut String, workload: &WorkloadResults) {
    let rows = summarize(workload);
    let options: Vec<String> =
        workload.options.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let _ = writeln!(
        text,
        "### {}\n\n{} rounds; {}.\n",
        workload.name,
        workload.rounds,
        options.join("; ")
    );
    push_paper(text, workload, &rows);
    let _ = writeln!(
        text,
        "| case | target | {} | min … max | ± | ratio | min … max | KiB/s | mean | p50 | p95 | p99 \
         | CPU | user | system | idle | waiting | device I/O per op | flushes per op |",
        workload.unit
    );
    let _ = writeln!(text, "| --- | --- |{}", " ---: |".repeat(17));
    for (case, rows) in by_case(workload, &rows) {
        rows.iter()
            .enumerate()
            .for_each(|(i, row)| push_row(text, if i == 0 { &case.name } else { "" }, row));
    }
    text.push('\n');
    push_figures(text, workload, &rows);
}

/// The figures of this workload alone, medians too.
fn push_figures(text: &mut String, workload: &WorkloadResults, rows: &[Row]) {
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.figures.keys()).collect();
    if names.is_empty() {
        return;
    }
    let heads: String = names.iter().map(|name| format!(" {name} |")).collect();
    let _ =
        writeln!(text, "| case | target |{heads}\n| --- | --- |{}", " ---: |".repeat(names.len()));
    for row in rows.iter().filter(|row| !row.figures.is_empty()) {
        let value = |name: &&String| {
            row.figures
                .get(*name)
                .map_or_else(|| " – |".into(), |value| format!(" {} |", format_number(*value)))
        };
        let values: String = names.iter().map(value).collect();
        let _ = writeln!(text, "| {} | {} |{values}", workload.cases[row.case].name, row.label);
    }
    text.push('\n');
}

fn push_paper(text: &mut String, workload: &WorkloadResults, rows: &[Row]) {
    let Some(paper) = paper(workload, rows) else { return };
    let _ = writeln!(text, "{}: {}.\n", paper.source, paper.says);
    if paper.lines.is_empty() {
        return;
    }
    text.push_str("| ratio | case | paper | here |\n| --- | --- | ---: | ---: |\n");
    for line in &paper.lines {
        let _ = writeln!(
            text,
            "| {} ({}) | {} | {:.2} | **{:.2}** |",
            line.what, line.targets, line.case, line.paper, line.here
        );
    }
    text.push('\n');
}

fn push_row(text: &mut String, case: &str, row: &Row) {
    let micros =
        |us: Option<f64>| us.filter(|us| *us > 0.0).map_or_else(|| "–".into(), format_micros);
    let (latency, response) = (row.main_latency_us(), row.response_us);
    let device = row
        .device_per_op
        .map_or(("–".into(), "–".into()), |[r, w, f]| (format_number(r + w), format_number(f)));
    let _ = writeln!(
        text,
        "| {case} | {} | {} | {} … {} | {:.0} % | **{:.3}** | {:.2} … {:.2} | {} | {} | {} | {} | \
         {} | {:.0} % | {} | {} | {} |",
        row.label,
        format_number(row.rate.median),
        format_number(row.rate.min),
        format_number(row.rate.max),
        row.rate.noise() * 100.0,
        row.ratio.median,
        row.ratio.min,
        row.ratio.max,
        format_number(row.kib_per_s),
        micros(response.map(|r| r[0])),
        micros(latency.map(|l| l[0])),
        micros(response.map(|r| r[1])),
        micros(response.map(|r| r[2])),
        row.busy_percent,
        row.cpu_percent.map(|share| format!("{share:.0}")).join(" | "),
        device.0,
        device.1
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::{results, timed};

    #[test]
    fn layouts_are_a_table_of_their_own() {
        let mut run = results(&[("raw", &[100.0])]);
        run.workloads.clear();
        let row = crate::VolumeRow {
            what: "stripe".into(),
            unit: "MiB/s".into(),
            volume: 90.0,
            reference: 100.0,
            of: "the sum".into(),
            ratio: 0.9,
            plain_ratio: Some(0.95),
            note: String::new(),
        };
        run.volumes = Some(VolumeReport {
            rounds: 5,
            members: vec!["memory".into()],
            rows: vec![row.clone(), crate::VolumeRow { plain_ratio: None, ..row }],
        });
        let text = markdown(&[run]);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| stripe")).collect();
        assert!(
            rows[0].contains("**0.90** | **0.95**") && rows[1].contains("**0.90** | –"),
            "{text}"
        );
        let cells: Vec<usize> = text
            .lines()
            .filter(|line| line.starts_with("| "))
            .map(|line| line.matches('|').count())
            .collect();
        assert!(cells.len() == 4 && cells.iter().all(|cells| *cells == 7), "{text}");
    }

    #[test]
    fn tables_have_as_many_cells_as_heads() {
        let mut run = results(&[("raw", &[100.0, 110.0]), ("xfs", &[90.0, 95.0])]);
        run.command = vec!["/opt/tools/bedplate".into(), "bench".into(), "all".into()];
        let text = markdown(&[run]);
        assert!(
            text.contains("\n    bedplate bench all\n") && !text.contains("/opt/tools"),
            "{text}"
        );
        let cells: Vec<usize> = text
            .lines()
            .filter(|l| l.starts_with("| ") && !l.contains("paper"))
            .map(|l| l.matches('|').count())
            .collect();
        assert!(cells.len() >= 4 && cells.iter().all(|&n| n == 20), "{cells:?}");
    }

    #[test]
    fn figures_of_a_workload_have_a_table_of_their_own() {
        let mut run = results(&[("volume", &[50.0, 60.0]), ("xfs", &[20.0, 25.0])]);
        for record in run.workloads[0].records.iter_mut().filter(|record| record.target == 0) {
            record.measurement.figures.insert("image made µs".into(), 70.0);
        }
        let text = markdown(&[run]);
        let table = text.split("| image made µs |").nth(1).expect("a head");
        assert!(table.contains("| volume | 70.0 |") && !table.contains("| xfs |"), "{text}");
    }
    #[test]
    fn s_543_the_page_shows_response_times_rates_in_kib_and_shares() {
        let text = markdown(&[timed()]);
        for word in ["KiB/s", "mean", "p95", "190 µs", "101 µs", "| 41 | 0 | 0 | 7 |"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}
