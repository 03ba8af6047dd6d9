//! One workload's part of the page: paper, curves, latencies, processors, time, and the table of
//! everything.

use std::fmt::Write;

use super::devices::{Figure, utilisation, waits};
use super::escape;
use super::plot::{
    Bar, CPU_COLOURS, PAPER_COLOUR, Point, Series, Words, bars, css_colour, curves, over_time,
    quantiles,
};
use super::processors::{cpu_curves, cpu_over_time};
use super::verdict::{self, verdict};
use super::ways::cost_plots;
use crate::measure::{DeviceOps, LatencySummary};
use crate::papers::paper;
use crate::results::{Case, Measurement, Record, TimePoint, WorkloadResults};
use crate::summary::{Row, by_case, not_measured, records_of, summarize};
use crate::units::{format_micros, format_number};

pub(super) fn section(page: &mut String, workload: &WorkloadResults) {
    let rows = summarize(workload);
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<h2 id=\"{0}\">{0}</h2><p>{1}.</p>",
        escape(&workload.name),
        escape(&capital(&workload.title))
    );
    let options: Vec<String> =
        workload.options.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let _ = write!(
        page,
        "<p class=\"soft\">{} rounds · {}</p>",
        workload.rounds,
        escape(&options.join(" · "))
    );
    push_paper(page, workload, &rows);
    legend(page, workload);
    page.push_str("<div class=\"plots\">");
    let paper = paper_plot(workload, &rows).map(|plot| (String::new(), plot));
    for (said, plot) in
        paper.into_iter().chain(rate_plots(workload, &rows)).chain(other_plots(workload, &rows))
    {
        let said = if said.is_empty() { said } else { format!("<p>{}</p>", escape(&said)) };
        let _ = write!(page, "<div>{said}{plot}</div>");
    }
    page.push_str("</div>");
    push_table(page, workload, &rows);
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn push_paper(page: &mut String, workload: &WorkloadResults, rows: &[Row]) {
    if let Some(paper) = paper(workload, rows) {
        let _ = write!(page, "<p><b>{}:</b> {}.</p>", escape(paper.source), escape(paper.says));
    }
}

/// The paper's ratios beside ours, where there are any.
fn paper_plot(workload: &WorkloadResults, rows: &[Row]) -> Option<String> {
    let lines = paper(workload, rows)?.lines;
    let most = 8;
    let drawn: Vec<Bar> = lines
        .iter()
        .take(most)
        .flat_map(|line| {
            let here = Bar::single(
                format!("{}, {}", line.targets, line.case),
                line.here,
                1,
                format!("{:.2} here", line.here),
            );
            let paper = Bar::single(
                line.what.clone(),
                line.paper,
                PAPER_COLOUR,
                format!("{:.2} paper", line.paper),
            );
            [paper, here]
        })
        .collect();
    (!drawn.is_empty()).then(|| bars("Paper beside here: ratios of rates", &drawn, None))
}

fn legend(page: &mut String, workload: &WorkloadResults) {
    page.push_str("<div class=\"legend\">");
    for (i, target) in workload.targets.iter().enumerate() {
        let _ = write!(
            page,
            "<span><i style=\"background:{}\"></i>{}</span>",
            css_colour(i),
            escape(&target.label)
        );
    }
    page.push_str("</div>");
}

/// One plot a curve; a curve of one point, or of different kinds of case, is a bar chart.
fn rate_plots(workload: &WorkloadResults, rows: &[Row]) -> Vec<Figure> {
    let mut names: Vec<&str> = Vec::new();
    for case in &workload.cases {
        if !names.contains(&case.curve.as_str()) {
            names.push(&case.curve);
        }
    }
    names.into_iter().flat_map(|name| rate_plot(workload, rows, name)).collect()
}

fn rate_plot(workload: &WorkloadResults, rows: &[Row], curve: &str) -> Vec<Figure> {
    let cases: Vec<(usize, &Case)> =
        workload.cases.iter().enumerate().filter(|(_, case)| case.curve == curve).collect();
    let axis = cases.first().map_or("", |(_, case)| case.axis.as_str());
    // Rates of a byte at a time and of megabytes do not share an axis.
    if cases.len() == 1 || axis.ends_with("bytes") {
        let bars = |&(i, case): &(usize, &Case)| {
            (rate_said(workload, i), rate_bars(workload, rows, i, case))
        };
        return cases.iter().map(bars).collect();
    }
    let mut xs: Vec<f64> = cases.iter().map(|(_, case)| case.x).collect();
    xs.dedup();
    let series: Vec<Series> = (0..workload.targets.len())
        .map(|target| {
            let of_curve = rows
                .iter()
                .filter(|row| row.target == target && workload.cases[row.case].curve == curve);
            let points = of_curve.map(|row| Point {
                x: workload.cases[row.case].x,
                y: row.rate.median,
                low: row.rate.min,
                high: row.rate.max,
            });
            Series { colour: target, points: points.collect() }
        })
        .collect();
    let plot = curves(&Words { title: &capital(curve), x: axis, y: &workload.unit }, &xs, &series);
    let said = cases.last().map_or_else(String::new, |(last, case)| {
        let said = rate_said(workload, *last);
        if said.is_empty() { said } else { format!("{}: {said}", capital(&case.name)) }
    });
    vec![(said, plot)]
}

fn rate_said(workload: &WorkloadResults, case: usize) -> String {
    verdict(workload, case, &verdict::RATE, |m| Some(m.rate))
}

fn rate_bars(workload: &WorkloadResults, rows: &[Row], index: usize, case: &Case) -> String {
    let drawn: Vec<Bar> = rows
        .iter()
        .filter(|row| row.case == index)
        .map(|row| {
            Bar::single(
                row.label.clone(),
                row.rate.median,
                row.target,
                format_number(row.rate.median),
            )
        })
        .collect();
    bars(&format!("{}, {}", capital(&case.name), workload.unit), &drawn, None)
}

/// Latencies, processors and time of the case with the most load, which is the last of its curve.
fn other_plots(workload: &WorkloadResults, rows: &[Row]) -> Vec<Figure> {
    let mut plots = Vec::new();
    let last_of_curve = |i: usize| {
        workload.cases.iter().rposition(|case| case.curve == workload.cases[i].curve) == Some(i)
    };
    let busiest: Vec<usize> = (0..workload.cases.len()).filter(|&i| last_of_curve(i)).collect();
    for &case in busiest.iter().take(6) {
        let tail = |m: &Measurement| Some(m.main_latency()?.p99_us);
        plots.push((verdict(workload, case, &verdict::TAIL, tail), latency_plot(workload, case)));
    }
    let case = busiest.first().copied().unwrap_or(0);
    let effort = |m: &Measurement| Some(m.rate_per_busy_cpu());
    plots.push((verdict(workload, case, &verdict::EFFORT, effort), cpu_plot(workload, rows, case)));
    plots.extend(cpu_curves(workload, rows));
    plots.extend(cpu_over_time(workload, case));
    // Every case where there are few; else those with the most load.
    let shown: Vec<usize> = if workload.cases.len() <= 8 {
        (0..workload.cases.len()).collect()
    } else {
        busiest.iter().copied().take(2).collect()
    };
    for case in shown {
        plots.extend(time_plots(workload, case));
    }
    for &case in busiest.iter().take(6) {
        plots.extend(utilisation(workload, case));
        plots.extend(waits(workload, case));
    }
    if workload.name == "ways" {
        plots.extend(cost_plots(workload, rows));
    }
    if workload.name == "redo" {
        plots.extend(per_commit_plots(workload, rows));
    }
    plots.retain(|(_, plot)| !plot.is_empty());
    plots
}

fn latency_plot(workload: &WorkloadResults, case: usize) -> String {
    let series: Vec<Series> = (0..workload.targets.len())
        .map(|target| {
            // The round in the middle stands for all: quantiles of different rounds do not add up.
            let mut records: Vec<_> = records_of(workload, case, target).collect();
            records.sort_by(|a, b| a.measurement.rate.total_cmp(&b.measurement.rate));
            let middle = records.get(records.len() / 2);
            let latency = middle.and_then(|r| r.measurement.main_latency());
            let points = latency.map_or_else(Vec::new, known_quantiles);
            Series { colour: target, points }
        })
        .collect();
    let reaches = |one: &Series| one.points.iter().any(|p| p.x >= 0.9);
    if !series.iter().any(reaches) {
        return String::new();
    }
    quantiles(
        &Words {
            title: &format!("Latency: {}", workload.cases[case].name),
            x: "share of operations that were faster",
            y: "",
        },
        &series,
    )
}

/// The quantiles that enough operations stand behind; the very longest is one operation and says
/// little.
fn known_quantiles(latency: &LatencySummary) -> Vec<Point> {
    let enough = |q: f64| q < 1.0 && latency.count as f64 * (1.0 - q) >= 3.0;
    latency
        .quantiles_us
        .iter()
        .filter(|(q, _)| enough(*q))
        .map(|&(q, us)| Point::plain(q, us))
        .collect()
}

fn cpu_plot(workload: &WorkloadResults, rows: &[Row], case: usize) -> String {
    let drawn: Vec<Bar> = rows
        .iter()
        .filter(|row| row.case == case)
        .filter_map(|row| {
            let m = &records_of(workload, case, row.target).next()?.measurement;
            let shares = [
                m.cpu.user_percent,
                m.cpu.system_percent,
                m.cpu.idle_percent + m.cpu.iowait_percent,
            ];
            let parts =
                shares.iter().zip(CPU_COLOURS).map(|(&share, (ink, _))| (share, ink)).collect();
            Some(Bar {
                name: row.label.clone(),
                parts,
                note: format!("{:.0} % busy", row.busy_percent),
            })
        })
        .collect();
    let key: Vec<&str> = CPU_COLOURS.iter().map(|(_, name)| *name).collect();
    bars(&format!("CPU ({}): {}", key.join(", "), workload.cases[case].name), &drawn, Some(100.0))
}

/// What [`time_plots`] shows: a name, a unit and where to find it.
type Channel = (&'static str, &'static str, fn(&TimePoint) -> Option<f64>);

fn time_plots(workload: &WorkloadResults, case: usize) -> Vec<Figure> {
    let channels: [Channel; 5] = [
        ("Throughput", "", |p| Some(p.rate)),
        ("Device I/O", "operations/s", |p| Some(p.device_reads_per_s + p.device_writes_per_s)),
        ("Busy processors", "%", |p| Some(p.user_percent + p.system_percent)),
        ("Context switches (waits for devices, locks, hand-offs)", "1/s", |p| Some(p.waits_per_s)),
        ("Waits for a lock of a file, where known", "1/s", |p| p.lock_waits_per_s),
    ];
    let timelines: Vec<_> = (0..workload.targets.len())
        .filter_map(|t| Some((t, records_of(workload, case, t).next()?)))
        .collect();
    if timelines.iter().all(|(_, record)| record.measurement.timeline.is_empty()) {
        return Vec::new();
    }
    let ends: Vec<f64> = timelines
        .iter()
        .filter_map(|(_, r)| r.measurement.timeline.last().map(|p| p.t_s))
        .collect();
    let elapsed = timelines.first().map_or(0.0, |(_, r)| r.measurement.elapsed_s);
    // Ramp-up and ramp-down are equally long: what is not counted lies half before and half after.
    let ramp = (ends.iter().copied().fold(0.0, f64::max) - elapsed).max(0.0) / 2.0;
    let plot = |&(name, unit, value): &Channel| {
        let points = |timeline: &[TimePoint]| {
            timeline.iter().filter_map(|p| Some(Point::plain(p.t_s, value(p)?))).collect()
        };
        let of_target = |(target, record): &(usize, &Record)| Series {
            colour: *target,
            points: points(&record.measurement.timeline),
        };
        let series: Vec<Series> = timelines.iter().map(of_target).collect();
        let unit = if unit.is_empty() { workload.unit.as_str() } else { unit };
        let plot = over_time(
            &Words {
                title: &format!("{name}: {}", workload.cases[case].name),
                x: "seconds",
                y: unit,
            },
            &series,
            &[ramp, ramp + elapsed],
        );
        let said = if name == channels[0].0 {
            rate_said(workload, case)
        } else {
            verdict(workload, case, &verdict::LEAST, |m| mean(&m.timeline, value))
        };
        (said, plot)
    };
    channels.iter().map(plot).collect()
}

fn mean(timeline: &[TimePoint], value: fn(&TimePoint) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = timeline.iter().filter_map(value).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn per_commit_plots(workload: &WorkloadResults, rows: &[Row]) -> Vec<Figure> {
    let chart = |what: &str,
                 case: usize,
                 pick: fn([f64; 3]) -> f64,
                 count: fn(&DeviceOps) -> u64| {
        let of_case = rows.iter().filter(|row| row.case == case);
        let values = of_case.filter_map(|row| row.device_per_op.map(|device| (row, pick(device))));
        let drawn: Vec<Bar> = values
            .map(|(row, value)| {
                Bar::single(row.label.clone(), value, row.target, format_number(value))
            })
            .collect();
        let plot = bars(&format!("{what} per commit: {}", workload.cases[case].name), &drawn, None);
        (verdict(workload, case, &verdict::FEWEST, |m| m.per_op(count)), plot)
    };
    let extending = (0..workload.cases.len())
        .filter(|&case| workload.cases[case].name.starts_with("extending, 4 KiB"));
    extending
        .flat_map(|case| {
            [
                chart("Device writes", case, |d| d[1], |d| d.writes),
                chart("Flushes", case, |d| d[2], |d| d.flushes),
            ]
        })
        .collect()
}

fn push_table(page: &mut String, workload: &WorkloadResults, rows: &[Row]) {
    let open = if workload.cases.len() <= 8 { " open" } else { "" };
    let _ = write!(
        page,
        "<details{open}><summary>All figures</summary><div \
         class=\"scroll\"><table><tr><th>target</th><th>{}</th><th>min … \
         max</th><th>noise</th><th>ratio</th><th>min … \
         max</th><th>KiB/s</th><th>mean</th><th>p50</th><th>p95</th><th>p99</th><th>p99.9</th>\
         <th>CPU</th><th>user</th><th>system</th><th>idle</th><th>waiting</th><th>per busy CPU</th><th>device \
         reads, writes per op</th><th>written per op</th><th>flushes per op</th><th>waits per \
         op</th><th>for locks</th><th>devices busy</th></tr>",
        escape(&workload.unit)
    );
    for (case, rows) in by_case(workload, rows) {
        let _ =
            write!(page, "<tr class=\"case\"><td colspan=\"24\">{}</td></tr>", escape(&case.name));
        rows.iter().for_each(|row| table_row(page, row));
    }
    page.push_str("</table></div>");
    push_figures(page, workload, rows);
    for sentence in not_measured(workload) {
        let _ = write!(page, "<p class=\"soft\">Not measured: {}.</p>", escape(&sentence));
    }
    page.push_str("</details>");
}

/// Figures that only this workload has, one column each.
fn push_figures(page: &mut String, workload: &WorkloadResults, rows: &[Row]) {
    let Some(names) = rows
        .iter()
        .map(|row| row.figures.keys().collect::<Vec<_>>())
        .max_by_key(Vec::len)
        .filter(|names| !names.is_empty())
    else {
        return;
    };
    let _ = write!(
        page,
        "<div class=\"scroll\"><table><tr><th>target</th><th class=\"text\">case</th>"
    );
    for name in &names {
        let _ = write!(page, "<th>{}</th>", escape(name));
    }
    page.push_str("</tr>");
    for row in rows {
        let case = &workload.cases[row.case].name;
        let _ = write!(
            page,
            "<tr><td>{}</td><td class=\"text\">{}</td>",
            escape(&row.label),
            escape(case)
        );
        for name in &names {
            let value =
                row.figures.get(*name).map_or_else(|| "–".into(), |value| format_number(*value));
            let _ = write!(page, "<td>{value}</td>");
        }
        page.push_str("</tr>");
    }
    page.push_str("</table></div>");
}

fn table_row(page: &mut String, row: &Row) {
    let micros =
        |us: Option<f64>| us.filter(|us| *us > 0.0).map_or_else(|| "–".into(), format_micros);
    let (latency, response) = (row.main_latency_us(), row.response_us);
    let device = |pick: fn([f64; 3]) -> f64| {
        row.device_per_op.map_or_else(|| "–".into(), |d| format_number(pick(d)))
    };
    let _ = write!(
        page,
        "<tr><td>{}</td><td class=\"best\">{}</td><td>{} … {}</td><td>±{:.1} %</td><td \
         class=\"best\">{:.3}</td><td>{:.2} … {:.2}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td>{}</td><td>{}</td><td>{:.0} %</td>{}<td>{}</td><td>{}, {}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        escape(&row.label),
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
        micros(latency.map(|l| l[2])),
        row.busy_percent,
        row.cpu_percent.map(|share| format!("<td>{share:.0} %</td>")).concat(),
        format_number(row.rate_per_busy_cpu),
        device(|d| d[0]),
        device(|d| d[1]),
        row.device_bytes_per_op
            .map_or_else(|| "–".into(), |bytes| bedplate::format_size(bytes.round() as u64)),
        device(|d| d[2]),
        format_number(row.waits_per_op),
        row.lock_waits_per_op.map_or_else(|| "–".into(), format_number),
        row.devices_busy_percent.map_or_else(|| "–".into(), |busy| format!("{busy:.0} %"))
    );
}
