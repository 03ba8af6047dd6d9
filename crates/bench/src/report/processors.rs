//! What the processors did: user, system and idle time over the cases of a curve, as the NFS paper's
//! figures 11 to 13 have them, and over the time of one measurement.

use super::devices::Figure;
use super::plot::{Point, Series, Words, curves, over_time};
use crate::results::{TimePoint, WorkloadResults};
use crate::summary::{Row, records_of};

/// A share of the processors: its name, and where it stands in a row.
type Share = (&'static str, fn(&Row) -> f64);

/// What is drawn over cases, waiting counted as idle.
const SHARES: [Share; 3] = [
    ("User time", |row| row.cpu_percent[0]),
    ("System time", |row| row.cpu_percent[1]),
    ("Idle or waiting", |row| row.cpu_percent[2] + row.cpu_percent[3]),
];

/// The most curves that are drawn.
const CURVES: usize = 4;

/// One plot a share for each of the first curves, a line for each target.
pub(super) fn cpu_curves(workload: &WorkloadResults, rows: &[Row]) -> Vec<Figure> {
    let mut names: Vec<&str> = Vec::new();
    for case in &workload.cases {
        let again = names.contains(&case.curve.as_str());
        let points = workload.cases.iter().filter(|other| other.curve == case.curve).count();
        if !again && points > 1 {
            names.push(&case.curve);
        }
    }
    let plots = |curve: &&str| SHARES.map(|share| cpu_curve(workload, rows, curve, share));
    names.iter().take(CURVES).flat_map(plots).collect()
}

fn cpu_curve(
    workload: &WorkloadResults,
    rows: &[Row],
    curve: &str,
    (name, share): Share,
) -> Figure {
    let cases: Vec<_> = workload.cases.iter().filter(|case| case.curve == curve).collect();
    let mut xs: Vec<f64> = cases.iter().map(|case| case.x).collect();
    xs.dedup();
    let series: Vec<Series> = (0..workload.targets.len())
        .map(|target| {
            let of_curve = rows
                .iter()
                .filter(|row| row.target == target && workload.cases[row.case].curve == curve);
            let points =
                of_curve.map(|row| Point::plain(workload.cases[row.case].x, share(row))).collect();
            Series { colour: target, points }
        })
        .collect();
    let axis = cases.first().map_or("", |case| case.axis.as_str());
    let words = Words { title: &format!("{name}: {curve}"), x: axis, y: "%" };
    (String::new(), curves(&words, &xs, &series))
}

/// A line over time: its colour, and where it stands in a sample.
type Line = (usize, fn(&TimePoint) -> f64);

/// What is drawn over time.
const OVER_TIME: [Line; 4] = [
    (1, |point| point.user_percent),
    (2, |point| point.system_percent),
    (3, |point| point.idle_percent - point.iowait_percent),
    (4, |point| point.iowait_percent),
];

/// One plot for each target: the first round of a case.
pub(super) fn cpu_over_time(workload: &WorkloadResults, case: usize) -> Vec<Figure> {
    let plot = |target: usize| {
        let timeline = &records_of(workload, case, target).next()?.measurement.timeline;
        if timeline.is_empty() {
            return None;
        }
        let series = OVER_TIME.map(|(colour, share)| Series {
            colour,
            points: timeline.iter().map(|p| Point::plain(p.t_s, share(p).max(0.0))).collect(),
        });
        let title =
            format!("CPU, {}: {}", workload.targets[target].label, workload.cases[case].name);
        let words = Words { title: &title, x: "seconds", y: "%" };
        let said =
            "Blue: user, orange: system, green: idle, pink: waiting for a device.".to_owned();
        Some((said, over_time(&words, &series, &[])))
    };
    (0..workload.targets.len()).filter_map(plot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Case;
    use crate::summary::summarize;
    use crate::summary::tests::results;

    #[test]
    fn s_543_shares_are_drawn_over_cases_and_over_time() {
        let mut results = results(&[("a", &[1.0]), ("b", &[2.0])]);
        let workload = &mut results.workloads[0];
        let second = Case { x: 2.0, name: "other".into(), ..workload.cases[0].clone() };
        assert!(cpu_curves(workload, &summarize(workload)).is_empty(), "one point is no curve");
        assert!(cpu_over_time(workload, 0).is_empty());
        workload.cases.push(second);
        let record = crate::results::Record { case: 1, ..workload.records[0].clone() };
        workload.records.push(record);
        workload.records[0].measurement.timeline = [0.1, 0.2]
            .map(|t_s| TimePoint {
                t_s,
                user_percent: 30.0,
                idle_percent: 60.0,
                ..TimePoint::default()
            })
            .to_vec();
        let curves = cpu_curves(workload, &summarize(workload));
        assert_eq!(curves.len(), 3);
        assert!(curves.iter().all(|(_, plot)| plot.starts_with("<svg")));
        let over_time = cpu_over_time(workload, 0);
        assert_eq!(over_time.len(), 1, "of the target that has samples");
        assert!(over_time[0].1.contains("CPU, a: only"), "{}", over_time[0].1);
    }
}
