//! What a run leaves behind: everything needed to read it years later and to compare it with
//! another.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bedplate::WaitTime;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::measure::{CpuTimes, DeviceOps, DeviceUse, LatencySummary};
use crate::target::TargetInfo;
use crate::volumes::VolumeReport;
use crate::{Error, ErrorKind, Result};

/// Raised when a field changes its meaning; a file of a newer schema is refused.
const SCHEMA: u32 = 1;

/// Everything that one run measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Version of this layout.
    pub schema: u32,
    /// Version of the software.
    pub version: String,
    /// When the run began, as `YYYY-MM-DDThh:mm:ssZ`.
    pub started: String,
    /// The command that was run.
    pub command: Vec<String>,
    /// Whether the run was ended early; what is here was finished before that.
    pub interrupted: bool,
    /// The machine it ran on.
    pub machine: Machine,
    /// The workloads in the order they ran.
    pub workloads: Vec<WorkloadResults>,
    /// What layouts of several devices reached, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<VolumeReport>,
}

/// What was measured with one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadResults {
    /// The workload's name.
    pub name: String,
    /// What it does, in one line.
    pub title: String,
    /// The unit of the rate.
    pub unit: String,
    /// The options it ran with.
    pub options: BTreeMap<String, String>,
    /// Rounds asked for.
    pub rounds: usize,
    /// The targets; the first is what the others are compared with.
    pub targets: Vec<TargetInfo>,
    /// The cases.
    pub cases: Vec<Case>,
    /// The measurements, in the order they were made.
    pub records: Vec<Record>,
    /// Device operations counted request by request, where the workload asks for it and the system
    /// allows it.
    #[serde(default)]
    pub counts: Vec<Count>,
    /// Cases that a target cannot serve, each with its reason.
    pub skipped: Vec<Skipped>,
}

/// Device operations for each operation of the program, from a short pass in which every request
/// was counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// Index into the cases.
    pub case: usize,
    /// Index into the targets.
    pub target: usize,
    /// Reads for each operation.
    pub reads: f64,
    /// Writes that carried data.
    pub writes: f64,
    /// Bytes written.
    pub written_bytes: f64,
    /// Flushes.
    pub flushes: f64,
}

/// One point of a workload's parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The name in tables.
    pub name: String,
    /// The curve it belongs to.
    pub curve: String,
    /// What varies along the curve: `threads`, `depth` …
    pub axis: String,
    /// Where on the curve it lies.
    pub x: f64,
}

/// One measurement of one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Index into the cases.
    pub case: usize,
    /// Index into the targets.
    pub target: usize,
    /// The round, from 0.
    pub round: usize,
    /// What was measured.
    pub measurement: Measurement,
}

/// A case that a target cannot serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Index into the cases.
    pub case: usize,
    /// Index into the targets.
    pub target: usize,
    /// Why.
    pub reason: String,
}

/// What one measurement found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The workload's rate, in its unit; higher is better.
    pub rate: f64,
    /// Length of the counted window in seconds.
    pub elapsed_s: f64,
    /// Operations counted.
    pub ops: u64,
    /// Operations between the two readings of the instruments. On a machine without an idle
    /// processor the readings come late; counts per operation are taken over these.
    pub ops_observed: u64,
    /// Bytes moved by the program, not by the device.
    pub bytes: u64,
    /// Latencies by kind of operation.
    pub latency: BTreeMap<String, LatencySummary>,
    /// How the processors were used, all of the machine.
    pub cpu: CpuUse,
    /// Processor time of this process, and of those that serve the target where they are known, in
    /// microseconds for each operation; `None` where that is not known.
    #[serde(default)]
    pub cpu_us_per_op: Option<f64>,
    /// How often a worker gave up its processor, per operation: waits for the device, for locks and
    /// for hand-offs.
    pub waits_per_op: f64,
    /// Waits for a lock of a file, per operation; `None` where that is not known (the kernel keeps
    /// it to itself).
    #[serde(default)]
    pub lock_waits_per_op: Option<f64>,
    /// What reads and writes waited for between the two readings, by class; empty where that is not
    /// known. Those for the device, and for an I/O thread, are from a sample.
    #[serde(default)]
    pub waits: BTreeMap<String, WaitTime>,
    /// How busy each device was, of which that is known.
    #[serde(default)]
    pub devices: Vec<DeviceUse>,
    /// Context switches of the whole machine.
    pub context_switches_per_s: f64,
    /// What reached the device; `None` where it is not counted.
    pub device: Option<DeviceOps>,
    /// Growth of the kernel's page cache.
    pub page_cache_growth_bytes: i64,
    /// Rates through the run, where the workload asks for them.
    pub timeline: Vec<TimePoint>,
    /// Figures of this workload alone.
    pub figures: BTreeMap<String, f64>,
}

impl Measurement {
    /// Returns how busy the devices were on average, in percent; `None` where that is not known.
    #[must_use]
    pub fn devices_busy_percent(&self) -> Option<f64> {
        let sum: f64 = self.devices.iter().map(|device| device.busy_percent).sum();
        (!self.devices.is_empty()).then(|| sum / self.devices.len() as f64)
    }

    /// Returns what the whole machine spent for each operation, in microseconds of a processor: also
    /// the kernel's own threads, and whatever else ran.
    #[must_use]
    pub fn machine_us_per_op(&self) -> f64 {
        let spent_us = self.cpu.busy_cpus() * self.elapsed_s * 1e6;
        if self.ops_observed > 0 { spent_us / self.ops_observed as f64 } else { 0.0 }
    }

    /// Returns the rate for each processor that was busy: what the workload would cost on a full
    /// machine.
    #[must_use]
    pub fn rate_per_busy_cpu(&self) -> f64 {
        let busy = self.cpu.busy_cpus();
        if busy > 0.0 { self.rate / busy } else { 0.0 }
    }

    /// Returns what the program moved in a second, in KiB.
    #[must_use]
    pub fn kib_per_s(&self) -> f64 {
        if self.elapsed_s > 0.0 { self.bytes as f64 / 1024.0 / self.elapsed_s } else { 0.0 }
    }

    /// Returns the latencies of the kind of operation that matters most to the workload: its
    /// response times.
    #[must_use]
    pub fn main_latency(&self) -> Option<&LatencySummary> {
        let kinds = ["image", "transaction", "commit", "read", "write"];
        kinds.iter().find_map(|kind| self.latency.get(*kind))
    }

    /// Returns a device count for each operation of the program.
    #[must_use]
    pub fn per_op(&self, count: impl Fn(&DeviceOps) -> u64) -> Option<f64> {
        let device = self.device.as_ref()?;
        (self.ops_observed > 0).then(|| count(device) as f64 / self.ops_observed as f64)
    }
}

/// How the processors of the machine were used, in percent of all of them together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// User time.
    pub user_percent: f64,
    /// System and interrupt time.
    pub system_percent: f64,
    /// Idle.
    pub idle_percent: f64,
    /// Idle while a block device was at work.
    pub iowait_percent: f64,
    /// Taken by other guests of the host.
    pub steal_percent: f64,
    /// How many processors there are.
    pub cpus: f64,
    /// User time of this process in seconds.
    pub process_user_s: f64,
    /// System time of this process in seconds.
    pub process_system_s: f64,
}

impl CpuUse {
    pub(crate) fn of(times: &CpuTimes) -> Self {
        let total = times.user_s + times.system_s + times.idle_s + times.iowait_s + times.steal_s;
        let percent = |part: f64| if total > 0.0 { part / total * 100.0 } else { 0.0 };
        Self {
            user_percent: percent(times.user_s),
            system_percent: percent(times.system_s),
            idle_percent: percent(times.idle_s),
            iowait_percent: percent(times.iowait_s),
            steal_percent: percent(times.steal_s),
            cpus: std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64),
            process_user_s: times.process_user_s,
            process_system_s: times.process_system_s,
        }
    }

    /// Returns user and system time in percent.
    #[must_use]
    pub fn busy_percent(&self) -> f64 {
        self.user_percent + self.system_percent
    }

    /// Returns the shares that `vmstat` shows, in percent: user, system, idle, and idle while a
    /// block device was at work.
    #[must_use]
    pub fn shares_percent(&self) -> [f64; 4] {
        [self.user_percent, self.system_percent, self.idle_percent, self.iowait_percent]
    }

    fn busy_cpus(&self) -> f64 {
        self.busy_percent() / 100.0 * self.cpus
    }
}

/// One sample of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TimePoint {
    /// Seconds since the threads were let go.
    pub t_s: f64,
    /// The workload's rate since the sample before.
    pub rate: f64,
    /// Reads that reached the device.
    pub device_reads_per_s: f64,
    /// Writes that reached the device.
    pub device_writes_per_s: f64,
    /// Flushes that reached the device.
    pub device_flushes_per_s: f64,
    /// User time of all processors.
    pub user_percent: f64,
    /// System time of all processors.
    pub system_percent: f64,
    /// Idle time of all processors, waiting for devices included.
    pub idle_percent: f64,
    /// The part of it in which a block device was at work.
    #[serde(default)]
    pub iowait_percent: f64,
    /// Waits for a lock of a file, where they are known.
    #[serde(default)]
    pub lock_waits_per_s: Option<f64>,
    /// Context switches of the machine.
    pub waits_per_s: f64,
}

impl Results {
    /// Starts an empty set of results for this machine, now.
    #[must_use]
    pub fn begin(command: Vec<String>) -> Self {
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: crate::machine::utc_now(),
            command,
            interrupted: false,
            machine: Machine::read(),
            workloads: Vec::new(),
            volumes: None,
        }
    }

    /// Reads a results file, or `results.json` in a directory.
    ///
    /// # Errors
    /// `Io` when it cannot be read, `Results` when it is not one of ours or of a newer layout.
    pub fn load(path: &Path) -> Result<Self> {
        let file = if path.is_dir() { path.join("results.json") } else { path.to_path_buf() };
        let text =
            fs::read_to_string(&file).map_err(|e| Error::io(file.display(), "cannot read", e))?;
        let bad =
            |what: String| Error::new(ErrorKind::Results, format!("{}: {what}", file.display()));
        let header: SchemaOnly =
            serde_json::from_str(&text).map_err(|e| bad(format!("not a results file: {e}")))?;
        if header.schema > SCHEMA {
            return Err(bad(format!(
                "its layout is {} and this software knows {SCHEMA}: use the version that wrote it",
                header.schema
            )));
        }
        serde_json::from_str(&text).map_err(|e| bad(format!("not a results file: {e}")))
    }

    /// Writes `results.json` into a directory.
    ///
    /// # Errors
    /// `Io`.
    pub fn save(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)
            .map_err(|e| Error::io(directory.display(), "cannot make the directory", e))?;
        let file = directory.join("results.json");
        let text = serde_json::to_string(self).expect("results hold nothing that JSON cannot say");
        fs::write(&file, text).map_err(|e| Error::io(file.display(), "cannot write", e))
    }
}

#[derive(Deserialize)]
struct SchemaOnly {
    schema: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_survive_a_file() {
        let results = Results::begin(vec!["bedplate".into(), "bench".into()]);
        let dir = tempfile::tempdir().unwrap();
        results.save(dir.path()).unwrap();
        assert_eq!(Results::load(dir.path()).unwrap(), results);
        assert_eq!(Results::load(&dir.path().join("results.json")).unwrap(), results);
    }

    #[test]
    fn foreign_and_newer_files_are_refused_in_one_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.json");
        for (text, word) in [
            ("{}", "not a results file"),
            ("hello", "not a results file"),
            ("{\"schema\": 99}", "layout is 99"),
        ] {
            fs::write(&file, text).unwrap();
            let message = Results::load(&file).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
        assert!(
            Results::load(&dir.path().join("none"))
                .unwrap_err()
                .to_string()
                .contains("cannot read")
        );
    }

    #[test]
    fn processor_use_adds_up() {
        let times = CpuTimes {
            user_s: 1.0,
            system_s: 1.0,
            idle_s: 1.0,
            iowait_s: 0.5,
            steal_s: 0.5,
            ..CpuTimes::default()
        };
        let cpu = CpuUse::of(&times);
        assert_eq!(cpu.busy_percent(), 50.0);
        assert_eq!(CpuUse::of(&CpuTimes::default()).busy_percent(), 0.0);
    }
}
