//! The file by another client of NFS: libnfs, driven by fio's engine `nfs`, which is a process for
//! each thread and has a list of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use serde_json::Value;

use super::client::{Client, Load, Submission};
use super::service::run_to_end;
use super::{Areas, Way};
use crate::measure::{CpuTimes, LatencySummary, processor_s};
use crate::results::{CpuUse, Measurement};
use crate::workload::Env;
use crate::{Error, Result};

/// The file as fio has it.
pub(super) struct Libnfs<'a> {
    pub fio: &'a Path,
    /// The exported directory as libnfs names it.
    pub url: String,
    /// The file in it.
    pub file: String,
    pub dir: &'a Path,
    pub processes: Vec<u32>,
    pub stop: &'a AtomicBool,
}

/// Says why a fio does not speak NFS; `None` where it does.
pub(super) fn lacking(fio: &Path) -> Option<String> {
    let mut command = Command::new(fio);
    command.arg("--enghelp=nfs").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let name = fio.display();
    match command.status() {
        Ok(status) if status.success() => None,
        Ok(_) => {
            Some(format!("{name} has no engine nfs: name one that is built with libnfs with --fio"))
        }
        Err(_) => Some(format!(
            "there is no program {name}: install fio built with libnfs, or name it with --fio"
        )),
    }
}

impl Libnfs<'_> {
    /// Runs one job and returns its part of the document, and what fio's processes took in seconds.
    fn run(&self, arguments: &[String]) -> Result<(Value, f64)> {
        let into = self.dir.join("fio.json");
        let mut command = Command::new(self.fio);
        command
            .args(["--name=way", "--ioengine=nfs", "--group_reporting", "--allow_file_create=0"])
            .args(["--randrepeat=0", "--norandommap", "--output-format=json"])
            .arg(format!("--nfs_url={}", self.url))
            .arg(format!("--filename={}", self.file))
            .arg(format!("--output={}", into.display()))
            .args(arguments)
            .current_dir(self.dir);
        let ended = run_to_end("fio", command, self.dir, self.stop)?;
        let text = std::fs::read_to_string(&into)
            .map_err(|e| Error::io(into.display(), "cannot read what fio told", e))?;
        // It may stand behind a warning.
        let text = text.find('{').map_or("", |at| &text[at..]);
        let told: Value = serde_json::from_str(text)
            .map_err(|e| Error::io("fio", "cannot read what it told", e))?;
        let job = told["jobs"][0].clone();
        match job["error"].as_i64() {
            Some(0) => Ok((job, ended.processor_s)),
            _ => Err(Error::target("fio: its job failed")),
        }
    }

    /// Puts a pattern where fio finds it, and returns the word that names it.
    fn pattern(&self, areas: &Areas, way: usize) -> Result<String> {
        let path: PathBuf = self.dir.join("fio.pattern");
        std::fs::write(&path, &*areas.content(way))
            .map_err(|e| Error::io(path.display(), "cannot write", e))?;
        Ok(format!("'{}'", path.display()))
    }

    fn place(areas: &Areas, way: usize) -> [String; 3] {
        let (bytes, offset) = (areas.bytes, areas.offset(way));
        [format!("--bs={bytes}"), format!("--size={bytes}"), format!("--offset={offset}")]
    }
}

impl Client for Libnfs<'_> {
    fn write(&self, areas: &Areas, way: Way) -> Result<()> {
        let pattern = self.pattern(areas, way.number())?;
        let what = ["--rw=write".to_owned(), format!("--buffer_pattern={pattern}")];
        // Its end closes the file, which commits.
        self.run(&[&Self::place(areas, way.number())[..], &what[..]].concat()).map(drop)
    }

    fn check(&self, areas: &Areas, ways: &[usize]) -> Result<usize> {
        ways.iter().try_for_each(|&way| {
            let pattern = format!("--verify_pattern={}", self.pattern(areas, way)?);
            let what = ["--rw=read", "--verify=pattern", &pattern].map(ToOwned::to_owned);
            self.run(&[&Self::place(areas, way)[..], &what[..]].concat()).map(drop)
        })?;
        Ok(ways.len())
    }

    fn measure(&self, load: &Load, env: &Env<'_>) -> Result<Measurement> {
        let (threads, depth) = match load.submission {
            Submission::Threads(threads) => (threads, 1),
            Submission::Queue(depth) => (1, depth),
        };
        let arguments = [
            format!("--rw={}", if load.is_read { "randread" } else { "randwrite" }),
            format!("--bs={}", load.block_bytes),
            format!("--size={}", load.size_bytes),
            format!("--numjobs={threads}"),
            format!("--iodepth={depth}"),
            format!("--runtime={}ms", (env.warm_up + env.time).as_millis()),
            "--time_based".to_owned(),
        ];
        let before = (CpuTimes::now(), processor_s(&self.processes));
        let own = processor_s(&[]);
        let (job, spent_s) = self.run(&arguments)?;
        let servers_s = (|| {
            let own = processor_s(&[])? - own?;
            Some(processor_s(&self.processes)? - before.1? - own)
        })();
        let cpu = CpuTimes::now().since(&before.0);
        measurement(&job, load, servers_s.map(|servers| servers.max(0.0) + spent_s), &cpu)
    }
}

/// Reads what fio measured. Processor time is that of all of it, from the start of its processes on.
fn measurement(
    job: &Value,
    load: &Load,
    spent_s: Option<f64>,
    cpu: &CpuTimes,
) -> Result<Measurement> {
    let (class, other) = if load.is_read { ("read", "write") } else { ("write", "read") };
    let told = &job[class];
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let ops = told["total_ios"].as_u64().unwrap_or(0);
    let elapsed_s = number(&told["runtime"]) / 1000.0;
    if ops == 0 || elapsed_s <= 0.0 || job[other]["total_ios"].as_u64() != Some(0) {
        return Err(Error::target("fio: it told of no operation of the kind that was asked for"));
    }
    let latency = latency(told, ops);
    Ok(Measurement {
        rate: ops as f64 / elapsed_s,
        elapsed_s,
        ops,
        ops_observed: ops,
        bytes: ops * load.block_bytes,
        latency: BTreeMap::from([(class.to_owned(), latency)]),
        cpu: CpuUse::of(cpu),
        cpu_us_per_op: spent_s.map(|spent| spent * 1e6 / ops as f64),
        waits_per_op: number(&job["ctx"]) / ops as f64,
        lock_waits_per_op: None,
        waits: BTreeMap::new(),
        devices: Vec::new(),
        context_switches_per_s: cpu.context_switches as f64 / elapsed_s,
        device: None,
        page_cache_growth_bytes: 0,
        timeline: Vec::new(),
        figures: BTreeMap::new(),
    })
}

/// Reads latencies, which are told in nanoseconds.
fn latency(told: &Value, count: u64) -> LatencySummary {
    let us = |value: &Value| value.as_f64().unwrap_or(0.0) / 1000.0;
    let percentiles = told["clat_ns"]["percentile"].as_object();
    let mut quantiles_us: Vec<(f64, f64)> = percentiles
        .into_iter()
        .flatten()
        .filter_map(|(percent, ns)| Some((percent.parse::<f64>().ok()? / 100.0, us(ns))))
        .collect();
    quantiles_us.sort_by(|a, b| a.0.total_cmp(&b.0));
    let at = |quantile: f64| {
        let found = quantiles_us.iter().find(|(kept, _)| (kept - quantile).abs() < 1e-9);
        found.map_or(0.0, |(_, us)| *us)
    };
    LatencySummary {
        count,
        mean_us: us(&told["clat_ns"]["mean"]),
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: us(&told["clat_ns"]["max"]),
        quantiles_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = r#"{"error": 0, "ctx": 200, "write": {"total_ios": 0}, "read": {"total_ios": 100,
        "runtime": 500, "clat_ns": {"mean": 2500.5, "max": 9000, "percentile": {"50.000000": 2000,
        "99.000000": 8000, "99.900000": 8500}}}}"#;

    fn load(is_read: bool) -> Load {
        let submission = Submission::Threads(1);
        Load { size_bytes: 1 << 20, block_bytes: 8192, is_read, submission }
    }

    #[test]
    fn what_fio_tells_becomes_a_measurement() {
        let job: Value = serde_json::from_str(JOB).unwrap();
        let m = measurement(&job, &load(true), Some(0.01), &CpuTimes::default()).unwrap();
        assert_eq!((m.rate, m.ops, m.bytes, m.cpu_us_per_op), (200.0, 100, 819_200, Some(100.0)));
        let latency = m.main_latency().unwrap();
        assert_eq!((latency.p50_us, latency.p99_us, latency.max_us), (2.0, 8.0, 9.0));
        assert_eq!(latency.quantile_us(0.999), Some(8.5));
        assert!(measurement(&job, &load(false), None, &CpuTimes::default()).is_err());
    }

    #[test]
    fn s_582_a_fio_without_libnfs_is_a_reason() {
        let none = lacking(Path::new("/nonexistent/fio")).unwrap();
        assert!(none.contains("/nonexistent/fio") && none.contains("--fio"), "{none}");
        assert!(lacking(Path::new("false")).unwrap().contains("no engine nfs"));
        assert_eq!(lacking(Path::new("true")), None);
    }
}
