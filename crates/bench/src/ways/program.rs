//! A program as it is, under the preload library: both sides. `bedplate` itself is the program: it
//! opens the file, and reads and writes it with the C library's `pread` and `pwrite`, as any program
//! does that knows nothing of Bedplate.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::{Client, Load, measured};
use super::service::{Ended, bound, run_to_end};
use super::{Areas, Way};
use crate::results::Measurement;
use crate::target::{
    Caching, FileSpec, PageCacheLimit, PlainFile, QueueSetup, Target, TargetFile, TargetInfo,
    TargetQueue,
};
use crate::workload::Env;
use crate::{Error, Result};

/// What the program is to do.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    file: PathBuf,
    task: Task,
    /// Where it writes what it measured.
    into: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
enum Task {
    Write {
        areas: Areas,
        way: usize,
    },
    Check {
        areas: Areas,
        ways: Vec<usize>,
    },
    Measure {
        load: Load,
        time: Duration,
        warm_up: Duration,
        info: Box<TargetInfo>,
        processes: Vec<u32>,
    },
}

/// Does what an order of this program says, in the process that it was started as.
///
/// # Errors
/// `Usage` for what is no order; `Io` and `Target` for what fails.
pub fn follow_order(text: &str) -> Result<()> {
    let order: Order = serde_json::from_str(text)
        .map_err(|e| Error::usage(format!("this is no order of 'bedplate bench ways': {e}")))?;
    let open = || PlainFile::open(order.file.clone(), Caching::Direct, false);
    match order.task {
        Task::Write { areas, way } => areas.write(way, &open()?),
        Task::Check { areas, ways } => areas.check(&ways, &open()?).map(drop),
        Task::Measure { load, time, warm_up, info, processes } => {
            let stop = AtomicBool::new(false);
            let target = Plain { path: order.file.clone(), info: *info, processes };
            let measurement = measured(&load, &target, &Env { warm_up, time, stop: &stop })?;
            target.quiesce()?;
            let text = serde_json::to_vec(&measurement).expect("figures are numbers and texts");
            std::fs::write(&order.into, text)
                .map_err(|e| Error::io(order.into.display(), "cannot write", e))
        }
    }
}

/// The file, by synchronous calls alone.
struct Plain {
    path: PathBuf,
    info: TargetInfo,
    processes: Vec<u32>,
}

impl Target for Plain {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn capacity_bytes(&self) -> Result<u64> {
        Ok(u64::MAX)
    }

    fn create(&self, _spec: &FileSpec) -> Result<()> {
        Err(Error::target("the program makes no file"))
    }

    fn open(&self, _name: &str) -> Result<Box<dyn TargetFile>> {
        Ok(Box::new(PlainFile::open(self.path.clone(), Caching::Direct, false)?))
    }

    fn remove(&self, _name: &str) -> Result<()> {
        Err(Error::target("the program removes no file"))
    }

    fn queue(&self, _files: &[String], _setup: &QueueSetup) -> Result<Box<dyn TargetQueue>> {
        Err(Error::target("the program makes synchronous calls"))
    }

    fn quiesce(&self) -> Result<()> {
        self.open("")?.sync_data()
    }

    fn make_cold(&self) -> Result<()> {
        Ok(())
    }

    fn set_cache_bytes(&self, _bytes: u64) -> Result<Option<PageCacheLimit>> {
        Ok(None)
    }

    fn count_requests(&self, _on: bool) -> bool {
        false
    }

    fn processes(&self) -> &[u32] {
        &self.processes
    }

    fn device_ops(&self) -> Option<crate::measure::DeviceOps> {
        None
    }
}

/// The file by a program under the preload library.
pub(super) struct Program<'a> {
    pub program: &'a Path,
    pub file: PathBuf,
    pub dir: &'a Path,
    pub info: TargetInfo,
    pub processes: Vec<u32>,
    pub stop: &'a AtomicBool,
}

impl Program<'_> {
    fn order(&self, task: Task) -> Result<(Ended, PathBuf)> {
        let into = self.dir.join("program.json");
        let order = Order { file: self.file.clone(), task, into: into.clone() };
        let order = serde_json::to_string(&order).expect("an order is numbers and texts");
        let mut command = bound(self.program);
        command.args(["--json", "run", "--report", "--"]).arg(self.program);
        command.args(["bench", "program"]).arg(order);
        Ok((run_to_end("program", command, self.dir, self.stop)?, into))
    }
}

impl Client for Program<'_> {
    fn write(&self, areas: &Areas, way: Way) -> Result<()> {
        let (ended, _) = self.order(Task::Write { areas: *areas, way: way.number() })?;
        Told::of(&ended)?.moved_by_lease()
    }

    fn check(&self, areas: &Areas, ways: &[usize]) -> Result<usize> {
        let (ended, _) = self.order(Task::Check { areas: *areas, ways: ways.to_vec() })?;
        Told::of(&ended)?.moved_by_lease()?;
        Ok(ways.len())
    }

    fn measure(&self, load: &Load, env: &Env<'_>) -> Result<Measurement> {
        let (info, processes) = (Box::new(self.info.clone()), self.processes.clone());
        let (time, warm_up) = (env.time, env.warm_up);
        let task = Task::Measure { load: *load, time, warm_up, info, processes };
        let (ended, into) = self.order(task)?;
        let told = Told::of(&ended)?;
        told.moved_by_lease()?;
        let text = std::fs::read(&into)
            .map_err(|e| Error::io(into.display(), "cannot read what was measured", e))?;
        let mut measurement: Measurement = serde_json::from_slice(&text)
            .map_err(|e| Error::io(into.display(), "cannot read what was measured", e))?;
        measurement.figures.insert("percent on the device".into(), told.percent_direct());
        Ok(measurement)
    }
}

/// What `run --report` told.
#[derive(Debug, Default)]
struct Told {
    direct: u64,
    through_the_mount: u64,
    reasons: Vec<String>,
}

impl Told {
    fn of(ended: &Ended) -> Result<Self> {
        let told: Value = serde_json::from_slice(&ended.output)
            .map_err(|e| Error::io("program", "cannot read what 'run --report' told", e))?;
        let mut found = Self::default();
        let number = |name: &str| told[name].as_u64().unwrap_or(0);
        found.direct = number("reads") + number("writes");
        for class in ["through_the_mount", "refused"] {
            for (reason, count) in told[class].as_object().into_iter().flatten() {
                found.through_the_mount += count.as_u64().unwrap_or(0);
                found.reasons.push(format!("{reason} {count}"));
            }
        }
        Ok(found)
    }

    fn percent_direct(&self) -> f64 {
        let all = self.direct + self.through_the_mount;
        if all == 0 { 0.0 } else { self.direct as f64 * 100.0 / all as f64 }
    }

    /// What went through the mount measures the mount.
    fn moved_by_lease(&self) -> Result<()> {
        if self.direct > 0 && self.percent_direct() >= 50.0 {
            return Ok(());
        }
        let why = if self.reasons.is_empty() {
            "no file of a mount was opened with the library".to_owned()
        } else {
            self.reasons.join(", ")
        };
        Err(Error::target(format!("the program was served by the mount and by no lease: {why}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Told {
        Told::of(&Ended { output: text.as_bytes().to_vec(), processor_s: 0.0 }).unwrap()
    }

    #[test]
    fn s_582_what_the_mount_served_is_no_measurement_of_a_lease() {
        let leased = r#"{"reads": 90, "writes": 9, "through_the_mount": {"unaligned": 1}}"#;
        assert!((told(leased).percent_direct() - 99.0).abs() < 1e-9);
        told(leased).moved_by_lease().unwrap();
        let why = |text: &str| told(text).moved_by_lease().unwrap_err().to_string();
        let refused = why(r#"{"reads": 0, "writes": 0, "refused": {"mode": 2}}"#);
        assert!(refused.contains("mode 2"), "{refused}");
        assert!(why(r#"{"reads": 1, "through_the_mount": {"stale": 3}}"#).contains("stale 3"));
        assert!(why("{}").contains("no file of a mount"));
        assert!(Told::of(&Ended { output: b"?".to_vec(), processor_s: 0.0 }).is_err());
    }

    #[test]
    fn an_order_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let areas = Areas { start: 8192, bytes: 4096, seed: 3 };
        std::fs::File::create(&file).unwrap().set_len(areas.end()).unwrap();
        let order = |task| {
            let into = dir.path().join("into");
            serde_json::to_string(&Order { file: file.clone(), task, into }).unwrap()
        };
        follow_order(&order(Task::Write { areas, way: 4 })).unwrap();
        follow_order(&order(Task::Check { areas, ways: vec![4] })).unwrap();
        assert!(follow_order(&order(Task::Check { areas, ways: vec![4, 5] })).is_err());
        assert_eq!(follow_order("x").unwrap_err().kind, crate::ErrorKind::Usage);
    }
}
