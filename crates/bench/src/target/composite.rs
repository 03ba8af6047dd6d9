//! Several places as one target: files go to them in turn. For sequential streams over 1 … N
//! devices.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bedplate::Waits;
use parking_lot::Mutex;

use super::{FileSpec, PageCacheLimit, QueueSetup, Target, TargetFile, TargetInfo, TargetQueue};
use crate::measure::{DeviceOps, DeviceTime};
use crate::{Error, Result};

/// Several targets of one kind.
pub(crate) struct Composite {
    info: TargetInfo,
    parts: Vec<Box<dyn Target>>,
    /// Which part holds which file.
    files: Mutex<std::collections::BTreeMap<String, usize>>,
    next: AtomicUsize,
}

impl Composite {
    pub(crate) fn new(info: TargetInfo, parts: Vec<Box<dyn Target>>) -> Self {
        Self { info, parts, files: Mutex::default(), next: AtomicUsize::new(0) }
    }

    fn part_of(&self, name: &str) -> Result<&dyn Target> {
        let at = self.files.lock().get(name).copied();
        at.map(|at| &*self.parts[at])
            .ok_or_else(|| Error::target(format!("{}: there is no file '{name}'", self.info.label)))
    }
}

impl Target for Composite {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn capacity_bytes(&self) -> Result<u64> {
        // Files take turns, so the smallest part limits all.
        let parts =
            self.parts.iter().map(|part| part.capacity_bytes()).collect::<Result<Vec<_>>>()?;
        Ok(parts.iter().min().copied().unwrap_or(0) * parts.len() as u64)
    }

    fn files_grow(&self) -> bool {
        self.parts.iter().all(|part| part.files_grow())
    }

    fn create(&self, spec: &FileSpec) -> Result<()> {
        let known = self.files.lock().get(&spec.name).copied();
        let at = known.unwrap_or_else(|| self.next.fetch_add(1, Relaxed) % self.parts.len());
        self.files.lock().insert(spec.name.clone(), at);
        self.parts[at].create(spec)
    }

    fn open(&self, name: &str) -> Result<Box<dyn TargetFile>> {
        self.part_of(name)?.open(name)
    }

    fn open_lockable(&self, name: &str) -> Result<Box<dyn TargetFile>> {
        self.part_of(name)?.open_lockable(name)
    }

    fn extents(&self, name: &str) -> Result<Option<usize>> {
        self.part_of(name)?.extents(name)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.part_of(name)?.remove(name)
    }

    fn queue(&self, files: &[String], setup: &QueueSetup) -> Result<Box<dyn TargetQueue>> {
        let parts: Vec<usize> =
            files.iter().filter_map(|name| self.files.lock().get(name).copied()).collect();
        match parts.first() {
            Some(&first)
                if parts.len() == files.len() && parts.iter().all(|&part| part == first) =>
            {
                self.parts[first].queue(files, setup)
            }
            _ => Err(Error::target(format!(
                "{}: a queue serves one device; give one place to this target",
                self.info.label
            ))),
        }
    }

    fn quiesce(&self) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.quiesce())
    }

    fn make_cold(&self) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.make_cold())
    }

    fn set_cache_bytes(&self, bytes: u64) -> Result<Option<PageCacheLimit>> {
        if self.info.is_path() {
            // One limit holds for the whole process.
            return self.parts[0].set_cache_bytes(bytes);
        }
        self.parts
            .iter()
            .try_for_each(|part| part.set_cache_bytes(bytes / self.parts.len() as u64).map(drop))?;
        Ok(None)
    }

    fn count_requests(&self, on: bool) -> bool {
        // Every part is told, also after one that could not.
        self.parts.iter().filter(|part| part.count_requests(on)).count() == self.parts.len()
    }

    fn set_latency(&self, latency: Duration) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.set_latency(latency))
    }

    fn waits(&self) -> Option<Waits> {
        self.parts
            .iter()
            .map(|part| part.waits())
            .try_fold(Waits::default(), |sum, waits| Some(sum.plus(&waits?)))
    }

    fn device_times(&self) -> Vec<DeviceTime> {
        self.parts.iter().flat_map(|part| part.device_times()).collect()
    }

    fn device_ops(&self) -> Option<DeviceOps> {
        self.parts
            .iter()
            .map(|part| part.device_ops())
            .try_fold(DeviceOps::default(), |sum, ops| Some(sum.plus(&ops?)))
    }
}
