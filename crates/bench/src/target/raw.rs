//! A device without a file system: files are regions of it, one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bedplate::BlockDevice;
use parking_lot::Mutex;

use super::queue::{Region, RegionQueue};
use super::volume::Counted;
use super::{
    FileSpec, PageCacheLimit, QueueSetup, Target, TargetFile, TargetInfo, TargetQueue, fill,
};
use crate::measure::{DeviceOps, DeviceTime};
use crate::{Error, Result};

/// Regions start at multiples of this, so that no region begins in the middle of a stripe of any
/// or erase block.
const REGION_ALIGN: u64 = 1 << 20;

/// A raw device.
pub(crate) struct RawTarget {
    info: TargetInfo,
    counted: Counted,
    /// Start and length by name.
    regions: Mutex<BTreeMap<String, (u64, u64)>>,
}

impl RawTarget {
    pub(crate) fn new(info: TargetInfo, counted: Counted) -> Self {
        Self { info, counted, regions: Mutex::new(BTreeMap::new()) }
    }

    fn region(&self, name: &str) -> Result<(u64, u64)> {
        let found = self.regions.lock().get(name).copied();
        found.ok_or_else(|| {
            Error::target(format!("{}: there is no region '{name}'", self.info.label))
        })
    }

    /// Finds the first gap that holds `len` bytes.
    fn reserve(&self, name: &str, len: u64) -> Result<u64> {
        let mut regions = self.regions.lock();
        regions.remove(name);
        let mut taken: Vec<(u64, u64)> = regions.values().copied().collect();
        taken.sort_unstable();
        let mut start = 0;
        for (begin, length) in taken {
            if start + len <= begin {
                break;
            }
            start = (begin + length).next_multiple_of(REGION_ALIGN);
        }
        if start + len > self.counted.device.size_bytes() {
            return Err(too_small(&self.info, self.counted.device.size_bytes(), start + len));
        }
        regions.insert(name.to_owned(), (start, len));
        Ok(start)
    }
}

/// Says that a target does not hold what a workload wants.
pub(crate) fn too_small(info: &TargetInfo, has: u64, needs: u64) -> Error {
    let (has, needs) = (bedplate::format_size(has), bedplate::format_size(needs));
    Error::target(format!(
        "{}: it holds {has} and the workload needs {needs}: give a larger target or a smaller \
         --size",
        info.label
    ))
}

impl Target for RawTarget {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn capacity_bytes(&self) -> Result<u64> {
        Ok(self.counted.device.size_bytes())
    }

    fn files_grow(&self) -> bool {
        false
    }

    fn create(&self, spec: &FileSpec) -> Result<()> {
        let align = u64::from(self.counted.device.geometry().physical_block_size);
        self.reserve(&spec.name, spec.size_bytes.next_multiple_of(align))?;
        // A raw device has no unwritten state, and what a workload reads must be there: every
        // region is filled.
        fill(&*self.open(&spec.name)?, spec.size_bytes.next_multiple_of(align))
    }

    fn open(&self, name: &str) -> Result<Box<dyn TargetFile>> {
        let (start, len) = self.region(name)?;
        Ok(Box::new(RegionFile { device: Arc::clone(&self.counted.device), start, len }))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.regions.lock().remove(name);
        Ok(())
    }

    fn queue(&self, files: &[String], setup: &QueueSetup) -> Result<Box<dyn TargetQueue>> {
        let region = |name: &String| {
            Ok(Region { device: Arc::clone(&self.counted.device), start: self.region(name)?.0 })
        };
        let regions = files.iter().map(region).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(RegionQueue::open(&regions, setup)?))
    }

    fn quiesce(&self) -> Result<()> {
        Ok(self.counted.device.flush()?)
    }

    fn make_cold(&self) -> Result<()> {
        Ok(())
    }

    fn set_cache_bytes(&self, _bytes: u64) -> Result<Option<PageCacheLimit>> {
        Ok(None)
    }

    fn set_latency(&self, latency: Duration) -> Result<()> {
        self.counted.set_latency(latency)
    }

    fn count_requests(&self, on: bool) -> bool {
        self.counted.stat.as_ref().is_some_and(|stat| stat.count_requests(on))
    }

    fn device_ops(&self) -> Option<DeviceOps> {
        Some(self.counted.ops())
    }

    fn device_times(&self) -> Vec<DeviceTime> {
        self.counted.time().into_iter().collect()
    }
}

/// A region used as a file, from the caller's thread.
pub(crate) struct RegionFile {
    pub device: Arc<dyn BlockDevice>,
    pub start: u64,
    pub len: u64,
}

impl TargetFile for RegionFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        debug_assert!(offset + buf.len() as u64 <= self.len);
        Ok(self.device.read_at(buf, self.start + offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        debug_assert!(offset + buf.len() as u64 <= self.len);
        Ok(self.device.write_at(buf, self.start + offset)?)
    }

    fn sync_data(&self) -> Result<()> {
        Ok(self.device.flush()?)
    }

    fn align_bytes(&self) -> u64 {
        u64::from(self.device.geometry().logical_block_size)
    }
}
