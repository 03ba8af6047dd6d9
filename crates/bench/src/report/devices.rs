//! How busy the devices were over time, and what reads and writes waited for.

use super::plot::{Bar, Point, Series, Words, bars, over_time};
use crate::measure::DeviceUse;
use crate::results::{Measurement, WorkloadResults};
use crate::summary::records_of;
use crate::units::format_micros;

/// A sentence that says what is to be seen, and the plot.
pub(super) type Figure = (String, String);

/// The first measurement of each target in a case.
fn first_of_each(
    workload: &WorkloadResults,
    case: usize,
) -> impl Iterator<Item = (usize, &Measurement)> {
    (0..workload.targets.len())
        .filter_map(move |t| Some((t, &records_of(workload, case, t).next()?.measurement)))
}

/// Draws the utilisation of each device of a case; `None` where none was measured.
pub(super) fn utilisation(workload: &WorkloadResults, case: usize) -> Option<Figure> {
    let found: Vec<(usize, &DeviceUse)> = first_of_each(workload, case)
        .flat_map(|(target, measured)| measured.devices.iter().map(move |device| (target, device)))
        .collect();
    if found.iter().all(|(_, device)| device.series.is_empty()) {
        return None;
    }
    let said: Vec<String> = found
        .iter()
        .map(|(target, device)| {
            format!(
                "{}, {}: busy {:.0} %, {:.1} requests in flight on average",
                workload.targets[*target].label,
                device.name,
                device.busy_percent,
                device.queue_depth_mean
            )
        })
        .collect();
    let series: Vec<Series> = found
        .iter()
        .map(|(target, device)| Series {
            colour: *target,
            points: device.series.iter().map(|p| Point::plain(p.t_s, p.busy_percent)).collect(),
        })
        .collect();
    let title = format!("Busy devices, one line each: {}", workload.cases[case].name);
    let plot = over_time(&Words { title: &title, x: "seconds", y: "%" }, &series, &[]);
    Some((format!("{}.", said.join("; ")), plot))
}

/// The classes of waits in the order of their parts, with the colours that stand for them.
const CLASSES: [(&str, &str); 5] = [
    ("inode_shared", "inode lock, shared"),
    ("inode_exclusive", "exclusive"),
    ("byte_range", "byte range"),
    ("queue", "I/O thread"),
    ("device", "device"),
];

/// Draws what an operation waited for on average, by class; `None` where that is not known, or
/// nothing was waited for.
pub(super) fn waits(workload: &WorkloadResults, case: usize) -> Option<Figure> {
    let drawn: Vec<Bar> = first_of_each(workload, case)
        .filter(|(_, measured)| measured.ops_observed > 0)
        .filter_map(|(target, measured)| {
            let ns = |class: &str| {
                measured.waits.get(class).map_or(0, |wait| wait.ns) / measured.ops_observed
            };
            let parts: Vec<(usize, u64)> =
                CLASSES.iter().enumerate().map(|(at, (class, _))| (at, ns(class))).collect();
            let total: u64 = parts.iter().map(|(_, ns)| ns).sum();
            let name = workload.targets[target].label.clone();
            (total > 0).then(|| Bar::parts(name, &parts, format_micros(total as f64 / 1e3)))
        })
        .collect();
    if drawn.is_empty() {
        return None;
    }
    let key: Vec<&str> = CLASSES.iter().map(|(_, name)| *name).collect();
    let title =
        format!("Waits of an operation ({}): {}", key.join(", "), workload.cases[case].name);
    Some((String::new(), bars(&title, &drawn, None)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bedplate::WaitTime;

    use super::*;
    use crate::measure::DevicePoint;
    use crate::summary::tests::results;

    #[test]
    fn s_504_devices_and_waits_are_drawn_where_they_were_measured() {
        let mut found = results(&[("a", &[100.0]), ("b", &[90.0])]).workloads.remove(0);
        assert!(utilisation(&found, 0).is_none() && waits(&found, 0).is_none());
        let point = |t_s: f64| DevicePoint { t_s, busy_percent: 80.0, queue_depth_mean: 2.5 };
        found.records[1].measurement.devices = vec![DeviceUse {
            name: "sda".into(),
            busy_percent: 80.0,
            queue_depth_mean: 2.5,
            series: vec![point(0.1), point(0.2)],
        }];
        let wait = WaitTime { count: 9, ns: 90_500, ns_max: 20_000 };
        found.records[1].measurement.waits = BTreeMap::from([("inode_exclusive".into(), wait)]);
        let (said, plot) = utilisation(&found, 0).unwrap();
        assert_eq!(said, "b, sda: busy 80 %, 2.5 requests in flight on average.", "S-504");
        assert!(plot.contains("Busy devices") && plot.starts_with("<svg"), "S-504");
        let (_, plot) = waits(&found, 0).unwrap();
        assert!(plot.contains("Waits of an operation") && plot.contains("1.00 µs"), "{plot}");
    }
}
