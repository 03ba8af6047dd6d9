//! From single measurements to the rows of a table: medians over rounds, and ratios taken within
//! each round.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::measure::{DeviceOps, LatencySummary, Spread};
use crate::results::{Case, Measurement, Record, Skipped, WorkloadResults};
use crate::target::Role;

/// One target in one case, over all rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Index of the case.
    pub case: usize,
    /// Index of the target.
    pub target: usize,
    /// The target's name.
    pub label: String,
    /// The part it plays.
    pub role: Role,
    /// The rate in the workload's unit.
    pub rate: Spread,
    /// The rate against the first target's in the same round.
    pub ratio: Spread,
    /// Length of a measurement in seconds.
    pub elapsed_s: Spread,
    /// Median latencies in microseconds by kind of operation: 50th, 99th and 99.9th percentile.
    pub latency_us: BTreeMap<String, [f64; 3]>,
    /// Response times in microseconds of the kind of operation that matters most: mean, 95th and
    /// 99th percentile, medians over rounds.
    pub response_us: Option<[f64; 3]>,
    /// What the program moved in a second, in KiB.
    pub kib_per_s: f64,
    /// Busy processors in percent of all.
    pub busy_percent: f64,
    /// Shares of the processors in percent: user, system, idle, and idle while a block device was
    /// at work.
    pub cpu_percent: [f64; 4],
    /// Processor time for each operation in microseconds: of this process and of those that serve the
    /// target.
    pub cpu_us_per_op: Option<f64>,
    /// That of the whole machine.
    pub machine_us_per_op: f64,
    /// The rate for each busy processor.
    pub rate_per_busy_cpu: f64,
    /// Device reads, writes and flushes for each operation of the program; `None` where they are
    /// not counted.
    pub device_per_op: Option<[f64; 3]>,
    /// Bytes written to the device for each operation.
    pub device_bytes_per_op: Option<f64>,
    /// Whether the device's operations were counted request by request; the kernel's statistics
    /// count an empty flush as a write too.
    pub counted_one_by_one: bool,
    /// Waits of a thread for each operation.
    pub waits_per_op: f64,
    /// Waits for a lock of a file for each operation, where they are known.
    pub lock_waits_per_op: Option<f64>,
    /// How busy the devices were on average, in percent, where that is known.
    pub devices_busy_percent: Option<f64>,
    /// Figures of this workload alone.
    pub figures: BTreeMap<String, f64>,
}

impl Row {
    /// Returns the latency of the kind of operation that matters most to the workload.
    #[must_use]
    pub fn main_latency_us(&self) -> Option<[f64; 3]> {
        ["image", "transaction", "commit", "read", "write"]
            .iter()
            .find_map(|kind| self.latency_us.get(*kind))
            .copied()
    }
}

/// Returns the rows of a workload, case by case, targets in their order.
#[must_use]
pub fn summarize(workload: &WorkloadResults) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in 0..workload.cases.len() {
        for target in 0..workload.targets.len() {
            let records: Vec<&Record> = records_of(workload, case, target).collect();
            if !records.is_empty() {
                rows.push(row(workload, case, target, &records));
            }
        }
    }
    rows
}

/// Returns the measurements of one target in one case.
pub(crate) fn records_of(
    workload: &WorkloadResults,
    case: usize,
    target: usize,
) -> impl Iterator<Item = &Record> {
    workload.records.iter().filter(move |r| r.case == case && r.target == target)
}

/// Returns the cases in their order with the rows of each.
pub(crate) fn by_case<'a>(
    workload: &'a WorkloadResults,
    rows: &'a [Row],
) -> impl Iterator<Item = (&'a Case, Vec<&'a Row>)> {
    workload
        .cases
        .iter()
        .enumerate()
        .map(|(i, case)| (case, rows.iter().filter(|row| row.case == i).collect()))
}

fn row(workload: &WorkloadResults, case: usize, target: usize, records: &[&Record]) -> Row {
    let spread = |value: &dyn Fn(&Measurement) -> f64| {
        Spread::of(&records.iter().map(|r| value(&r.measurement)).collect::<Vec<_>>())
    };
    let median = |value: &dyn Fn(&Measurement) -> f64| median(records, value);
    let ratios: Vec<f64> = records
        .iter()
        .filter_map(|r| Some(r.measurement.rate / reference(workload, case, r.round)?))
        .collect();
    debug_assert!(
        ratios.len() <= records.len()
            && records.iter().all(|r| r.case == case && r.target == target),
        "a row is of one target in one case"
    );
    let first = &records[0].measurement;
    let per_op = |count: fn(&DeviceOps) -> u64| median(&|m| m.per_op(count).unwrap_or(0.0));
    let exact = workload.counts.iter().find(|count| count.case == case && count.target == target);
    let counted = first
        .device
        .is_some()
        .then(|| [per_op(|d| d.reads), per_op(|d| d.writes), per_op(|d| d.flushes)]);
    let figures = first
        .figures
        .keys()
        .map(|name| (name.clone(), median(&|m| m.figures.get(name).copied().unwrap_or(0.0))));
    let share = |at: usize| median(&|m| m.cpu.shares_percent()[at]);
    Row {
        case,
        target,
        label: workload.targets[target].label.clone(),
        role: workload.targets[target].role,
        rate: spread(&|m| m.rate),
        ratio: Spread::of(&ratios),
        elapsed_s: spread(&|m| m.elapsed_s),
        latency_us: latency_us(records),
        response_us: response_us(records),
        kib_per_s: median(&Measurement::kib_per_s),
        busy_percent: median(&|m| m.cpu.busy_percent()),
        cpu_percent: [share(0), share(1), share(2), share(3)],
        cpu_us_per_op: cpu_us_per_op(records),
        machine_us_per_op: median(&Measurement::machine_us_per_op),
        rate_per_busy_cpu: median(&Measurement::rate_per_busy_cpu),
        device_per_op: exact.map(|count| [count.reads, count.writes, count.flushes]).or(counted),
        device_bytes_per_op: exact
            .map(|count| count.written_bytes)
            .or(first.device.map(|_| per_op(|d| d.written_bytes))),
        counted_one_by_one: exact.is_some(),
        waits_per_op: median(&|m| m.waits_per_op),
        lock_waits_per_op: first
            .lock_waits_per_op
            .map(|_| median(&|m| m.lock_waits_per_op.unwrap_or(0.0))),
        devices_busy_percent: first
            .devices_busy_percent()
            .map(|_| median(&|m| m.devices_busy_percent().unwrap_or(0.0))),
        figures: figures.collect(),
    }
}

/// The median over rounds of what each measured.
fn median(records: &[&Record], value: impl Fn(&Measurement) -> f64) -> f64 {
    Spread::of(&records.iter().map(|r| value(&r.measurement)).collect::<Vec<_>>()).median
}

/// The median over the rounds in which it is known.
fn cpu_us_per_op(records: &[&Record]) -> Option<f64> {
    let known: Vec<f64> = records.iter().filter_map(|r| r.measurement.cpu_us_per_op).collect();
    (!known.is_empty()).then(|| Spread::of(&known).median)
}

/// Percentiles of each kind of operation, medians over rounds.
fn latency_us(records: &[&Record]) -> BTreeMap<String, [f64; 3]> {
    let of_kind = |kind: &String| {
        let at = |pick: fn(&LatencySummary) -> f64| {
            median(records, |m| m.latency.get(kind).map_or(0.0, pick))
        };
        [at(|l| l.p50_us), at(|l| l.p99_us), at(|l| l.p999_us)]
    };
    records[0].measurement.latency.keys().map(|kind| (kind.clone(), of_kind(kind))).collect()
}

/// Response times of the kind of operation that matters most, medians over rounds.
fn response_us(records: &[&Record]) -> Option<[f64; 3]> {
    let at =
        |pick: fn(&LatencySummary) -> f64| median(records, |m| m.main_latency().map_or(0.0, pick));
    records[0]
        .measurement
        .main_latency()
        .is_some()
        .then(|| [at(|l| l.mean_us), at(|l| l.quantile_us(0.95).unwrap_or(0.0)), at(|l| l.p99_us)])
}

/// Returns what was not measured and why, a sentence each; of a target that served no case, one.
pub(crate) fn not_measured(workload: &WorkloadResults) -> Vec<String> {
    let mut told = Vec::new();
    for skipped in &workload.skipped {
        let label = &workload.targets[skipped.target].label;
        let same =
            |other: &&Skipped| other.target == skipped.target && other.reason == skipped.reason;
        let what = if workload.skipped.iter().filter(same).count() == workload.cases.len() {
            label.clone()
        } else {
            format!("{} on {label}", workload.cases[skipped.case].name)
        };
        let sentence = format!("{what}: {}", skipped.reason);
        if !told.contains(&sentence) {
            told.push(sentence);
        }
    }
    told
}

/// The rate that the others of a round are compared with: the first target's that serves the case.
fn reference(workload: &WorkloadResults, case: usize, round: usize) -> Option<f64> {
    let same = workload.records.iter().filter(|r| r.case == case && r.round == round);
    same.min_by_key(|r| r.target).map(|r| r.measurement.rate).filter(|&rate| rate > 0.0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::results::{CpuUse, Results};
    use crate::target::TargetInfo;

    pub(crate) fn measurement(rate: f64) -> Measurement {
        Measurement {
            rate,
            elapsed_s: 1.0,
            ops: rate as u64,
            ops_observed: rate as u64,
            bytes: 0,
            latency: BTreeMap::new(),
            cpu: CpuUse::default(),
            cpu_us_per_op: None,
            waits_per_op: 0.0,
            lock_waits_per_op: None,
            waits: BTreeMap::new(),
            devices: Vec::new(),
            context_switches_per_s: 0.0,
            device: Some(DeviceOps { reads: rate as u64 * 2, ..DeviceOps::default() }),
            page_cache_growth_bytes: 0,
            timeline: Vec::new(),
            figures: BTreeMap::new(),
        }
    }

    /// Results of one workload with one case: for each target its rates, round by round.
    pub(crate) fn results(rates: &[(&str, &[f64])]) -> Results {
        let target = |label: &str| TargetInfo {
            label: label.into(),
            spec: label.into(),
            kind: "raw".into(),
            role: Role::Raw,
            engine: String::new(),
            file_system: None,
            counted_by: String::new(),
            places: Vec::new(),
        };
        let mut records = Vec::new();
        for (t, (_, values)) in rates.iter().enumerate() {
            records.extend(values.iter().enumerate().map(|(round, &rate)| Record {
                case: 0,
                target: t,
                round,
                measurement: measurement(rate),
            }));
        }
        let mut results = Results::begin(vec!["bedplate".into()]);
        results.workloads.push(WorkloadResults {
            name: "mixed".into(),
            title: "test".into(),
            unit: "IOPS".into(),
            options: BTreeMap::new(),
            rounds: rates[0].1.len(),
            targets: rates.iter().map(|(label, _)| target(label)).collect(),
            cases: vec![Case {
                name: "only".into(),
                curve: "c".into(),
                axis: "threads".into(),
                x: 1.0,
            }],
            records,
            counts: Vec::new(),
            skipped: Vec::new(),
        });
        results
    }

    /// Results whose response times, bytes and shares of the processors are known.
    pub(crate) fn timed() -> Results {
        let mut results = results(&[("a", &[10.0, 10.0, 10.0])]);
        for (round, record) in results.workloads[0].records.iter_mut().enumerate() {
            let m = &mut record.measurement;
            m.bytes = 2048 << round;
            m.elapsed_s = 2.0;
            let mut latencies = crate::measure::Latencies::new();
            for us in 1..=100u64 {
                latencies.record(std::time::Duration::from_micros(us << round));
            }
            m.latency.insert("transaction".into(), latencies.summary().unwrap());
            m.cpu.user_percent = 40.0 + round as f64;
            m.cpu.iowait_percent = 7.0;
        }
        results
    }

    /// S-543: response times, KiB a second and the shares of the processors are medians over rounds.
    #[test]
    fn s_543_rows_have_response_times_rates_in_kib_and_shares() {
        let results = timed();
        let rows = summarize(&results.workloads[0]);
        let [mean, p95, p99] = rows[0].response_us.unwrap();
        assert!(
            (mean - 101.0).abs() < 1.0 && (p95 - 190.0).abs() < 1.0 && (p99 - 198.0).abs() < 1.0
        );
        assert_eq!((rows[0].kib_per_s, rows[0].cpu_percent), (2.0, [41.0, 0.0, 0.0, 7.0]));
    }

    #[test]
    fn a_target_that_serves_nothing_is_told_once() {
        let mut results = results(&[("a", &[1.0]), ("b", &[]), ("c", &[])]);
        let workload = &mut results.workloads[0];
        workload.cases.push(Case { name: "other".into(), ..workload.cases[0].clone() });
        let skipped = |case, target, reason: &str| Skipped { case, target, reason: reason.into() };
        workload.skipped =
            vec![skipped(0, 1, "no server"), skipped(1, 1, "no server"), skipped(1, 2, "no list")];
        assert_eq!(not_measured(workload), ["b: no server", "other on c: no list"]);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine is twice as fast in the second round: the ratio does not see it.
        let results = results(&[("a", &[100.0, 200.0, 100.0]), ("b", &[90.0, 180.0, 95.0])]);
        let rows = summarize(&results.workloads[0]);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].ratio.min, rows[0].ratio.max), (1.0, 1.0));
        assert_eq!((rows[1].ratio.median, rows[1].ratio.max), (0.9, 0.95));
        assert_eq!(rows[1].rate.median, 95.0);
        assert_eq!(rows[1].device_per_op, Some([2.0, 0.0, 0.0]));
    }
}
