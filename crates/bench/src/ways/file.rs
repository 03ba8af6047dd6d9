//! The file of the volume as a target, by the ways that this process goes itself.

use std::path::PathBuf;
use std::sync::Arc;

use bedplate::{BlockDevice, FileSystem, IoMode, OpenOptions};

use super::client::{Client, Load, measured};
use super::guest::{Guest, GuestFile, GuestQueue};
use super::{Areas, Way};
use crate::measure::{DeviceOps, DeviceStat, DeviceTime};
use crate::results::Measurement;
use crate::target::{
    Caching, FileSpec, NfsFile, NfsQueue, PageCacheLimit, PlainFile, QueueSetup, Region,
    RegionFile, RegionQueue, Target, TargetFile, TargetInfo, TargetQueue, VolumeFile, VolumeQueue,
    open_file,
};
use crate::workload::Env;
use crate::{Error, Result};

/// How the file is reached.
pub(super) enum Entrance {
    /// A file of a volume that is mounted in this process.
    Library { fs: FileSystem, path: String },
    /// A file on a mounted file system.
    Path { path: PathBuf, caching: Caching },
    /// A device that is the file.
    Device { device: Arc<dyn BlockDevice>, len: u64 },
    /// A disk of a guest.
    Guest(Arc<Guest>),
    /// A file of an NFS server.
    Nfs(Arc<bedplate_nfs::File>),
}

impl Entrance {
    fn volume_file(fs: &FileSystem, path: &str) -> Result<bedplate::File> {
        let options = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() };
        Ok(fs.open(path, &options)?)
    }
}

/// The file by one way.
pub(super) struct WayTarget {
    pub info: TargetInfo,
    pub entrance: Entrance,
    /// The processes that serve it.
    pub processes: Vec<u32>,
    /// Where operations of the volume's device are counted.
    pub stat: Option<DeviceStat>,
}

impl WayTarget {
    fn region(&self, device: &Arc<dyn BlockDevice>) -> Region {
        Region { device: Arc::clone(device), start: 0 }
    }
}

impl Target for WayTarget {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn capacity_bytes(&self) -> Result<u64> {
        Ok(u64::MAX)
    }

    fn create(&self, spec: &FileSpec) -> Result<()> {
        Err(Error::target(format!("{}: '{}' is made by the library", self.info.label, spec.name)))
    }

    fn open(&self, _name: &str) -> Result<Box<dyn TargetFile>> {
        Ok(match &self.entrance {
            Entrance::Library { fs, path } => {
                Box::new(VolumeFile { file: Entrance::volume_file(fs, path)?, align: 512 })
            }
            Entrance::Path { path, caching: Caching::Buffered } => {
                Box::new(PlainFile::open(path.clone(), Caching::Buffered, false)?)
            }
            Entrance::Path { path, caching: Caching::Direct } => {
                let device = open_file(path)?;
                let len = device.size_bytes();
                Box::new(RegionFile { device, start: 0, len })
            }
            Entrance::Device { device, len } => {
                Box::new(RegionFile { device: Arc::clone(device), start: 0, len: *len })
            }
            Entrance::Guest(guest) => Box::new(GuestFile(Arc::clone(guest))),
            Entrance::Nfs(file) => {
                Box::new(NfsFile { file: Arc::clone(file), label: self.info.label.clone() })
            }
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        Err(Error::target(format!("{}: '{name}' is removed by the library", self.info.label)))
    }

    fn queue(&self, _files: &[String], setup: &QueueSetup) -> Result<Box<dyn TargetQueue>> {
        Ok(match &self.entrance {
            Entrance::Library { fs, path } => {
                let file = Arc::new(Entrance::volume_file(fs, path)?);
                Box::new(VolumeQueue::open(fs, vec![file], setup)?)
            }
            Entrance::Path { path, .. } => {
                Box::new(RegionQueue::open(&[self.region(&open_file(path)?)], setup)?)
            }
            Entrance::Device { device, .. } => {
                Box::new(RegionQueue::open(&[self.region(device)], setup)?)
            }
            Entrance::Guest(guest) => Box::new(GuestQueue::open(guest, setup)?),
            Entrance::Nfs(file) => {
                Box::new(NfsQueue::new(vec![Arc::clone(file)], setup, &self.info.label))
            }
        })
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

    fn device_times(&self) -> Vec<DeviceTime> {
        self.stat.as_ref().and_then(DeviceStat::time).into_iter().collect()
    }

    fn device_ops(&self) -> Option<DeviceOps> {
        self.stat.as_ref().map(DeviceStat::read)
    }
}

impl Client for WayTarget {
    fn write(&self, areas: &Areas, way: Way) -> Result<()> {
        areas.write(way.number(), &*self.open("")?)
    }

    fn check(&self, areas: &Areas, ways: &[usize]) -> Result<usize> {
        areas.check(ways, &*self.open("")?)
    }

    fn measure(&self, load: &Load, env: &Env<'_>) -> Result<Measurement> {
        let measurement = measured(load, self, env)?;
        self.quiesce()?;
        Ok(measurement)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use bedplate::MemoryDevice;

    use super::super::client::Submission;
    use super::*;
    use crate::summary::tests::results;

    /// The servers' processor time is in the figure, or there is none: of one that is gone it is not
    /// known.
    #[test]
    fn s_582_the_processor_time_of_servers_is_in_the_figure() {
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        let stop = AtomicBool::new(false);
        let env = Env { warm_up: Duration::ZERO, time: Duration::from_millis(20), stop: &stop };
        let submission = Submission::Queue(2);
        let load = Load { size_bytes: 1 << 20, block_bytes: 8192, is_read: true, submission };
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(1 << 20);
        let measure = |processes: Vec<u32>| {
            let info = results(&[("a", &[1.0])]).workloads[0].targets[0].clone();
            let entrance = Entrance::Device { device: Arc::clone(&device), len: 1 << 20 };
            let target = WayTarget { info, entrance, processes, stat: None };
            target.measure(&load, &env).unwrap().cpu_us_per_op
        };
        assert!(measure(vec![]).is_some_and(|us| us > 0.0));
        assert_eq!(measure(vec![gone.id()]), None);
    }
}
