//! A Bedplate volume through the library.
//!
//! Targets that name the same device share one volume and its files, so that two modes are measured
//! on the very same blocks. A target whose mount options differ from the present mount's (the inode
//! lock, the size of the cache) mounts anew when its turn comes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bedplate::{
    AllocateMode, BlockDevice, CheckpointOptions, CheckpointScope, CloneSource, File, FileSystem,
    FormatOptions, InodeLockSetting, IoMode, MountOptions, OpenOptions, Waits,
};
use parking_lot::Mutex;

use super::delayed::DelayedDevice;
use super::queue::VolumeQueue;
use super::raw::too_small;
use super::{
    FileSpec, FileState, PageCacheLimit, QueueSetup, Target, TargetFile, TargetInfo, TargetQueue,
    fill, scatter,
};
use crate::measure::{DeviceOps, DeviceStat, DeviceTime};
use crate::{Error, Result};

/// Where the files of a measurement lie on the volume.
const DIRECTORY: &str = "/bedplate-bench";

/// A device, where its operations are counted, and how to slow it down.
pub(crate) struct Counted {
    pub device: Arc<dyn BlockDevice>,
    pub stat: Option<DeviceStat>,
    pub delay: Option<Arc<DelayedDevice>>,
}

impl Counted {
    /// Makes every operation take so long; only memory is able to.
    pub(crate) fn set_latency(&self, latency: Duration) -> Result<()> {
        match &self.delay {
            Some(device) => {
                device.set_latency(latency);
                Ok(())
            }
            None => Err(Error::target(format!(
                "{}: a latency can be added to memory only; a real device has its own",
                self.device.name()
            ))),
        }
    }

    pub(crate) fn ops(&self) -> DeviceOps {
        self.stat.as_ref().map_or_else(|| self.device.counters().into(), DeviceStat::read)
    }

    /// Returns how busy the device was: the kernel's word of a block device, the harness's own of
    /// memory with a latency.
    pub(crate) fn time(&self) -> Option<DeviceTime> {
        self.stat
            .as_ref()
            .and_then(DeviceStat::time)
            .or_else(|| self.delay.as_ref().and_then(|delay| delay.time()))
    }
}

/// One volume, mounted with the options of the running workload.
pub(crate) struct SharedVolume {
    data: Counted,
    log: Option<Counted>,
    state: Mutex<State>,
}

struct State {
    mounted: Option<(FileSystem, Settings)>,
    /// Files filled already, with their sizes.
    filled: BTreeSet<(String, u64)>,
}

/// The mount options that targets differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Settings {
    inode_lock: InodeLockSetting,
    cache_bytes: u64,
}

impl SharedVolume {
    /// Takes over a volume; formats it first when `format` is given.
    pub(crate) fn new(
        data: Counted,
        log: Option<Counted>,
        format: Option<&FormatOptions>,
    ) -> Result<Arc<Self>> {
        if let Some(options) = format {
            FileSystem::format(&data.device, log.as_ref().map(|log| &log.device), options)?;
        }
        Ok(Arc::new(Self {
            data,
            log,
            state: Mutex::new(State { mounted: None, filled: BTreeSet::new() }),
        }))
    }

    pub(super) fn engine(&self) -> String {
        super::open::engine_of(&self.data.device)
    }

    pub(super) fn counted_by(&self) -> String {
        super::open::counted_by(self.data.stat.as_ref())
    }

    /// Returns the file system mounted with these settings.
    fn mounted(&self, settings: Settings) -> Result<FileSystem> {
        let mut state = self.state.lock();
        if let Some((fs, present)) = &state.mounted
            && *present == settings
        {
            return Ok(fs.clone());
        }
        unmount(&mut state)?;
        let options = MountOptions {
            inode_lock: settings.inode_lock,
            cache_bytes: settings.cache_bytes,
            ..MountOptions::default()
        };
        let fs = FileSystem::mount(
            Arc::clone(&self.data.device),
            self.log.as_ref().map(|log| Arc::clone(&log.device)),
            options,
        )?;
        fs.create_dir_all(DIRECTORY)?;
        state.mounted = Some((fs.clone(), settings));
        Ok(fs)
    }
}

fn unmount(state: &mut State) -> Result<()> {
    match state.mounted.take() {
        Some((fs, _)) => Ok(fs.unmount()?),
        None => Ok(()),
    }
}

impl Drop for SharedVolume {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        let names: Vec<String> = state.filled.iter().map(|(name, _)| path_of(name)).collect();
        if let Some((fs, _)) = &state.mounted {
            for name in names {
                // Leaving a file behind is harmless and a drop cannot report it.
                let _ = fs.remove(name);
            }
            let _ = fs.remove(DIRECTORY);
        }
        let _ = unmount(&mut state);
    }
}

/// The name of the file whose pieces lie between those of a scattered one while it is written.
pub(super) fn between(name: &str) -> String {
    format!("{name}-between")
}

fn path_of(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

/// A mode of a volume.
pub(crate) struct VolumeTarget {
    info: TargetInfo,
    volume: Arc<SharedVolume>,
    mode: IoMode,
    settings: Mutex<Settings>,
}

impl VolumeTarget {
    pub(crate) fn new(
        info: TargetInfo,
        volume: Arc<SharedVolume>,
        mode: IoMode,
        inode_lock: InodeLockSetting,
        cache_bytes: Option<u64>,
    ) -> Self {
        let cache_bytes = cache_bytes.unwrap_or(MountOptions::default().cache_bytes);
        Self { info, volume, mode, settings: Mutex::new(Settings { inode_lock, cache_bytes }) }
    }

    fn fs(&self) -> Result<FileSystem> {
        let settings = *self.settings.lock();
        self.volume.mounted(settings)
    }

    fn open_file(&self, name: &str, mode: IoMode) -> Result<File> {
        Ok(self
            .fs()?
            .open(path_of(name), &OpenOptions { mode: Some(mode), ..OpenOptions::create() })?)
    }
}

impl Target for VolumeTarget {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn capacity_bytes(&self) -> Result<u64> {
        Ok(self.fs()?.statfs().available_bytes)
    }

    fn create(&self, spec: &FileSpec) -> Result<()> {
        let key = (spec.name.clone(), spec.size_bytes);
        let written = matches!(spec.state, FileState::Written | FileState::Scattered);
        if written && self.volume.state.lock().filled.contains(&key) {
            return Ok(());
        }
        self.remove(&spec.name)?;
        let free = self.capacity_bytes()?;
        if free < spec.size_bytes {
            return Err(too_small(&self.info, free, spec.size_bytes));
        }
        // Filled past every cache, whatever mode is measured later.
        let file = self.open_file(&spec.name, IoMode::Concurrent)?;
        match spec.state {
            FileState::Empty => {}
            FileState::Unwritten => {
                file.allocate(AllocateMode::Preallocate { keep_size: false }, 0, spec.size_bytes)?;
            }
            FileState::Written => {
                file.allocate(AllocateMode::Preallocate { keep_size: true }, 0, spec.size_bytes)?;
                fill(&VolumeFile { file, align: 1 }, spec.size_bytes)?;
                self.volume.state.lock().filled.insert(key);
            }
            FileState::Scattered => {
                let name = between(&spec.name);
                let other = self.open_file(&name, IoMode::Concurrent)?;
                // A file that grows keeps blocks ahead; holes that are filled do not.
                [&file, &other].into_iter().try_for_each(|one| one.set_size(spec.size_bytes))?;
                let [file, other] = [file, other].map(|file| VolumeFile { file, align: 1 });
                scatter(&file, &other, spec.size_bytes)?;
                drop(other);
                self.remove(&name)?;
                self.volume.state.lock().filled.insert(key);
            }
        }
        Ok(self.fs()?.sync()?)
    }

    fn open(&self, name: &str) -> Result<Box<dyn TargetFile>> {
        let file = self.open_file(name, self.mode)?;
        let align = match self.mode {
            IoMode::Cached => 1,
            IoMode::Direct | IoMode::Concurrent | IoMode::ConcurrentCache => {
                u64::from(self.volume.data.device.geometry().logical_block_size)
            }
        };
        Ok(Box::new(VolumeFile { file, align }))
    }

    fn extents(&self, name: &str) -> Result<Option<usize>> {
        Ok(Some(self.open_file(name, self.mode)?.extent_count()?))
    }

    fn make_image(&self, image: &str, file: Option<&str>) -> Result<()> {
        let scope = file.map_or(CheckpointScope::Everything, |file| {
            CheckpointScope::Paths(vec![path_of(file).into()])
        });
        self.fs()?.create_checkpoint(
            image,
            &CheckpointOptions { scope, ..CheckpointOptions::default() },
        )?;
        Ok(())
    }

    fn has_images_of_everything(&self) -> bool {
        true
    }

    fn list_images(&self) -> Result<usize> {
        Ok(self.fs()?.checkpoints().len())
    }

    fn make_clone(&self, clone: &str, file: &str) -> Result<()> {
        self.fs()?.clone_files(&CloneSource::Present(path_of(file).into()), path_of(clone))?;
        Ok(())
    }

    fn remove_image(&self, image: &str) -> Result<()> {
        match self.fs()?.delete_checkpoint(image) {
            Err(e) if e.kind == bedplate::ErrorKind::NotFound => Ok(()),
            result => Ok(result?),
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.volume.state.lock().filled.retain(|(filled, _)| filled != name);
        match self.fs()?.remove(path_of(name)) {
            Err(e) if e.kind == bedplate::ErrorKind::NotFound => Ok(()),
            result => Ok(result?),
        }
    }

    fn queue(&self, files: &[String], setup: &QueueSetup) -> Result<Box<dyn TargetQueue>> {
        let open = |name: &String| Ok(Arc::new(self.open_file(name, self.mode)?));
        let files = files.iter().map(open).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(VolumeQueue::open(&self.fs()?, files, setup)?))
    }

    fn quiesce(&self) -> Result<()> {
        Ok(self.fs()?.sync()?)
    }

    fn make_cold(&self) -> Result<()> {
        unmount(&mut self.volume.state.lock())?;
        self.fs().map(drop)
    }

    fn set_cache_bytes(&self, bytes: u64) -> Result<Option<PageCacheLimit>> {
        self.settings.lock().cache_bytes = bytes;
        self.fs().map(|_| None)
    }

    fn count_requests(&self, on: bool) -> bool {
        let counted =
            |counted: &Counted| counted.stat.as_ref().is_some_and(|stat| stat.count_requests(on));
        counted(&self.volume.data) && self.volume.log.as_ref().is_none_or(counted)
    }

    fn set_latency(&self, latency: Duration) -> Result<()> {
        self.volume.data.set_latency(latency)
    }

    fn waits(&self) -> Option<Waits> {
        Some(self.fs().ok()?.info().waits)
    }

    fn device_times(&self) -> Vec<DeviceTime> {
        let log = self.volume.log.as_ref().and_then(Counted::time);
        self.volume.data.time().into_iter().chain(log).collect()
    }

    fn device_ops(&self) -> Option<DeviceOps> {
        let data = self.volume.data.ops();
        Some(self.volume.log.as_ref().map_or(data, |log| data.plus(&log.ops())))
    }
}

/// A file of a volume.
pub(crate) struct VolumeFile {
    pub file: File,
    /// What its mode asks offsets and lengths to be multiples of, in bytes.
    pub align: u64,
}

impl TargetFile for VolumeFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let n = self.file.read_at(buf, offset)?;
        if n == buf.len() {
            Ok(())
        } else {
            Err(Error::target(format!("a read at byte {offset} met the end of the file")))
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.file.write_at(buf, offset)?;
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        Ok(self.file.sync_data()?)
    }

    fn align_bytes(&self) -> u64 {
        self.align
    }
}
