//! A directory on a mounted file system: the kernel's, or a Bedplate mount.
//!
//! A direct file whose size stays is opened as a device, so that the very engine that serves raw
//! devices and volumes serves it too. Buffered files, and files that grow, go through `pread` and
//! `pwrite`.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Advice, FallocateFlags};
use rustix::io::Errno;

use super::device::open_file;
use super::queue::{Region, RegionQueue};
use super::raw::{RegionFile, too_small};
use super::snapshots::Snapshots;
use super::volume::between;
use super::{
    Caching, FileSpec, FileState, PageCacheLimit, QueueSetup, Target, TargetFile, TargetInfo,
    TargetQueue, fill, scatter,
};
use crate::measure::{DeviceOps, DeviceStat, DeviceTime};
use crate::{Error, Result};

/// Direct I/O on a mounted file system is aligned to this when the file system does not say better.
const DIRECT_ALIGN: u64 = 512;

/// A directory of our own below the one that was named; removed with everything in it when the run
/// ends. Targets of one kind of caching share it. Buffered and direct ones do not: a direct write
/// to a file that has cached pages must first throw them out.
pub(crate) struct Directory {
    path: PathBuf,
    files: Mutex<BTreeMap<String, FileSpec>>,
    /// Where the directory is a subvolume of its own.
    snapshots: Option<Snapshots>,
}

impl Directory {
    /// Makes it below `parent`.
    pub(crate) fn new(parent: &Path, caching: Caching) -> Result<Arc<Self>> {
        let kind = if caching == Caching::Direct { "direct" } else { "buffered" };
        let path = parent.join(format!("bedplate-bench-{}-{kind}", std::process::id()));
        let snapshots = Snapshots::below(&path)?;
        fs::create_dir_all(&path)
            .map_err(|e| Error::io(path.display(), "cannot make the working directory", e))?;
        Ok(Arc::new(Self { path, files: Mutex::default(), snapshots }))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A failure is not reported; the name says what made it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// One way to use a directory.
pub(crate) struct PathTarget {
    info: TargetInfo,
    directory: Arc<Directory>,
    caching: Caching,
    /// What a Bedplate mount is asked for, by what is appended to a file's name.
    mode: Option<bedplate::IoMode>,
    /// Where operations are counted.
    stat: Option<DeviceStat>,
    /// The devices below it.
    disks: Vec<DeviceStat>,
}

impl PathTarget {
    pub(crate) fn new(
        info: TargetInfo,
        directory: Arc<Directory>,
        caching: Caching,
        mode: Option<bedplate::IoMode>,
        stat: Option<DeviceStat>,
        disks: Vec<DeviceStat>,
    ) -> Self {
        Self { info, directory, caching, mode, stat, disks }
    }

    fn plain_path(&self, name: &str) -> PathBuf {
        self.directory.path.join(name)
    }

    fn path(&self, name: &str) -> PathBuf {
        let suffix = self.mode.map_or_else(String::new, |mode| format!("::{mode}"));
        self.directory.path.join(format!("{name}{suffix}"))
    }

    fn spec(&self, name: &str) -> Result<FileSpec> {
        let found = self.directory.files.lock().get(name).cloned();
        found
            .ok_or_else(|| Error::target(format!("{}: there is no file '{name}'", self.info.label)))
    }

    fn open_plain(&self, name: &str, create: bool) -> Result<PlainFile> {
        let path = if create { self.plain_path(name) } else { self.path(name) };
        PlainFile::open(path, self.caching, create)
    }
}

impl PathTarget {
    fn reflink(&self, to: &str, file: &str) -> Result<()> {
        let (from, to) = (self.plain_path(file), self.plain_path(to));
        let source = File::open(&from).map_err(|e| Error::io(from.display(), "cannot open", e))?;
        let target = File::create(&to).map_err(|e| Error::io(to.display(), "cannot create", e))?;
        rustix::fs::ioctl_ficlone(&target, &source).map_err(|e| match e {
            Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV => Error::target(format!(
                "{}: this file system has no reflinks: leave out the target {}",
                from.display(),
                self.info.label
            )),
            e => Error::io(from.display(), "cannot reflink", e),
        })?;
        // Durable, as a checkpoint is when it is made.
        target.sync_all().map_err(|e| Error::io(to.display(), "cannot sync", e))
    }
}

/// Sets the mode of what is created in a directory. Any file system may store the attribute; only
/// on a Bedplate mount do files follow it.
fn ask_for(mode: bedplate::IoMode, directory: &Path) -> std::io::Result<()> {
    rustix::fs::setxattr(
        directory,
        "user.bedplate.mode",
        mode.to_string().as_bytes(),
        rustix::fs::XattrFlags::empty(),
    )?;
    let probe = directory.join("probe");
    File::create(&probe)?;
    let answered = rustix::fs::getxattr(&probe, "user.bedplate.effective_mode", &mut [0u8; 64]);
    fs::remove_file(&probe)?;
    Ok(answered.map(drop)?)
}

impl Target for PathTarget {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn capacity_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(&self.directory.path).map_err(|e| {
            Error::io(self.directory.path.display(), "cannot ask for free space", e)
        })?;
        Ok(stat.f_bavail * stat.f_frsize)
    }

    fn files_grow(&self) -> bool {
        self.caching == Caching::Buffered
    }

    fn create(&self, spec: &FileSpec) -> Result<()> {
        let known = self.directory.files.lock().get(&spec.name).cloned();
        let written = matches!(spec.state, FileState::Written | FileState::Scattered);
        if written && known.as_ref() == Some(spec) {
            return Ok(());
        }
        self.remove(&spec.name)?;
        let free = self.capacity_bytes()?;
        if free < spec.size_bytes {
            return Err(too_small(&self.info, free, spec.size_bytes));
        }
        let plain = self.open_plain(&spec.name, true)?;
        match spec.state {
            FileState::Empty => {}
            FileState::Unwritten => {
                rustix::fs::fallocate(&plain.file, FallocateFlags::empty(), 0, spec.size_bytes)
                    .map_err(|e| Error::io(plain.path.display(), "cannot preallocate", e))?;
            }
            FileState::Written => fill(&plain, spec.size_bytes)?,
            FileState::Scattered => {
                let name = between(&spec.name);
                let other = self.open_plain(&name, true)?;
                // Past its end a file may be given blocks ahead; holes are not.
                for one in [&plain, &other] {
                    one.file.set_len(spec.size_bytes).map_err(|e| one.failed("extend", e))?;
                }
                scatter(&plain, &other, spec.size_bytes)?;
                self.remove(&name)?;
            }
        }
        plain.file.sync_all().map_err(|e| Error::io(plain.path.display(), "cannot sync", e))?;
        self.directory.files.lock().insert(spec.name.clone(), spec.clone());
        Ok(())
    }

    fn open(&self, name: &str) -> Result<Box<dyn TargetFile>> {
        let spec = self.spec(name)?;
        // Locks belong to the open file, which only a plain one has.
        let grows = !matches!(spec.state, FileState::Written | FileState::Scattered);
        if self.caching == Caching::Buffered || grows {
            return Ok(Box::new(self.open_plain(name, false)?));
        }
        let device = open_file(&self.path(name))?;
        Ok(Box::new(RegionFile { device, start: 0, len: spec.size_bytes }))
    }

    fn extents(&self, name: &str) -> Result<Option<usize>> {
        let path = self.plain_path(name);
        let file = File::open(&path).map_err(|e| Error::io(path.display(), "cannot open", e))?;
        Ok(bedplate_block::extents(&file).ok().map(|extents| extents as usize))
    }

    fn open_lockable(&self, name: &str) -> Result<Box<dyn TargetFile>> {
        self.spec(name)?;
        Ok(Box::new(self.open_plain(name, false)?))
    }

    fn make_image(&self, image: &str, file: Option<&str>) -> Result<()> {
        match (file, &self.directory.snapshots) {
            (Some(file), _) => self.reflink(image, file),
            (None, Some(snapshots)) => snapshots.make(image, &self.directory.path),
            (None, None) => Err(Error::target(format!(
                "{}: only a directory on btrfs has snapshots",
                self.info.label
            ))),
        }
    }

    fn has_images_of_everything(&self) -> bool {
        self.directory.snapshots.is_some()
    }

    fn list_images(&self) -> Result<usize> {
        if let Some(snapshots) = &self.directory.snapshots {
            return snapshots.count();
        }
        let unlisted = |e| Error::io(self.directory.path.display(), "cannot list", e);
        let names = fs::read_dir(&self.directory.path)
            .map_err(unlisted)?
            .collect::<std::io::Result<Vec<_>>>()
            .map_err(unlisted)?;
        // What is not a file that a workload made is an image of one.
        let files = self.directory.files.lock();
        Ok(names
            .iter()
            .filter(|name| name.file_name().to_str().is_none_or(|name| !files.contains_key(name)))
            .count())
    }

    fn make_clone(&self, clone: &str, file: &str) -> Result<()> {
        self.reflink(clone, file)
    }

    fn remove_image(&self, image: &str) -> Result<()> {
        if let Some(snapshots) = &self.directory.snapshots
            && snapshots.remove(image)?
        {
            return Ok(());
        }
        let path = self.plain_path(image);
        match fs::remove_file(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(Error::io(path.display(), "cannot remove", e)),
            // Durable, as the deletion of a checkpoint is.
            Ok(()) => {
                let directory = &self.directory.path;
                File::open(directory)
                    .and_then(|open| open.sync_all())
                    .map_err(|e| Error::io(directory.display(), "cannot sync", e))
            }
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.directory.files.lock().remove(name);
        let path = self.plain_path(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(path.display(), "cannot remove", e))
            }
            _ => Ok(()),
        }
    }

    fn directory(&self, name: &str) -> Result<Option<PathBuf>> {
        // Targets share the directory, and a label may hold anything.
        let label: String = self
            .info
            .label
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let path = self.directory.path.join(format!("{name}-{label}"));
        if path.exists() {
            return Ok(Some(path));
        }
        fs::create_dir(&path)
            .map_err(|e| Error::io(path.display(), "cannot make the directory", e))?;
        if let Some(mode) = self.mode {
            ask_for(mode, &path).map_err(|e| {
                Error::io(path.display(), "this is no Bedplate mount: leave out mode=", e)
            })?;
        }
        Ok(Some(path))
    }

    fn queue(&self, files: &[String], setup: &QueueSetup) -> Result<Box<dyn TargetQueue>> {
        if self.caching == Caching::Buffered {
            return Err(Error::target(format!(
                "{}: a queue needs direct I/O: leave out --depth or the buffered target",
                self.info.label
            )));
        }
        let region = |name: &String| Ok(Region { device: open_file(&self.path(name))?, start: 0 });
        let regions = files.iter().map(region).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(RegionQueue::open(&regions, setup)?))
    }

    fn quiesce(&self) -> Result<()> {
        for name in self.directory.files.lock().keys() {
            let path = self.plain_path(name);
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(|e| Error::io(path.display(), "cannot sync", e))?;
        }
        Ok(())
    }

    fn make_cold(&self) -> Result<()> {
        self.quiesce()?;
        for name in self.directory.files.lock().keys() {
            let path = self.plain_path(name);
            let file =
                File::open(&path).map_err(|e| Error::io(path.display(), "cannot open", e))?;
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)
                .map_err(|e| Error::io(path.display(), "cannot drop its cached pages", e))?;
        }
        Ok(())
    }

    fn set_cache_bytes(&self, bytes: u64) -> Result<Option<PageCacheLimit>> {
        if self.caching == Caching::Direct {
            Ok(None)
        } else {
            PageCacheLimit::set(bytes).map(Some)
        }
    }

    fn count_requests(&self, on: bool) -> bool {
        self.stat.as_ref().is_some_and(|stat| stat.count_requests(on))
    }

    fn device_ops(&self) -> Option<DeviceOps> {
        self.stat.as_ref().map(DeviceStat::read)
    }

    fn device_times(&self) -> Vec<DeviceTime> {
        self.disks.iter().filter_map(DeviceStat::time).collect()
    }
}

/// A file through the kernel's ordinary calls.
pub(crate) struct PlainFile {
    file: File,
    path: PathBuf,
    align: u64,
}

impl PlainFile {
    /// Opens a file to read and write it.
    pub(crate) fn open(path: PathBuf, caching: Caching, create: bool) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create);
        if caching == Caching::Direct {
            options.custom_flags(libc::O_DIRECT);
        }
        let file = options.open(&path).map_err(|e| match (e.raw_os_error(), caching) {
            (Some(libc::EINVAL), Caching::Direct) => Error::target(format!(
                "{}: this file system takes no direct I/O: add ',buffered' to the target",
                path.display()
            )),
            _ => Error::io(path.display(), "cannot open", e),
        })?;
        let align = if caching == Caching::Direct { DIRECT_ALIGN } else { 1 };
        Ok(Self { file, path, align })
    }

    fn failed(&self, action: &str, e: std::io::Error) -> Error {
        Error::io(self.path.display(), action, e)
    }
}

impl TargetFile for PlainFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(buf, offset).map_err(|e| self.failed("read", e))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(buf, offset).map_err(|e| self.failed("write", e))
    }

    fn sync_data(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| self.failed("sync", e))
    }

    fn sync_all(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| self.failed("sync", e))
    }

    fn begin_writing(&self, offset: u64, len: u64) -> Result<()> {
        bedplate_block::begin_writing(&self.file, offset, len)
            .map_err(|e| self.failed("begin to write", e))
    }

    fn align_bytes(&self) -> u64 {
        self.align
    }

    fn lock(&self, exclusive: bool) -> Result<()> {
        let locked = if exclusive { self.file.lock() } else { self.file.lock_shared() };
        locked.map_err(|e| self.failed("lock", e))
    }

    fn unlock(&self) -> Result<()> {
        self.file.unlock().map_err(|e| self.failed("unlock", e))
    }

    fn lock_range(&self, offset: u64, len: u64, exclusive: bool) -> Result<()> {
        bedplate_block::lock_record(&self.file, offset..offset + len, exclusive)
            .map_err(|e| self.failed("lock a record", e))
    }

    fn unlock_range(&self, offset: u64, len: u64) -> Result<()> {
        bedplate_block::unlock_record(&self.file, offset..offset + len)
            .map_err(|e| self.failed("unlock a record", e))
    }
}
