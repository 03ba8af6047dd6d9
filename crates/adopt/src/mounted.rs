//! The old file system, mounted where nothing else sees it, and the file that takes its free space.
//!
//! The mount is in a mount namespace of one thread, so it ends with the process however that ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bedplate_block::{FileExtent, file_extents};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{FallocateFlags, Timespec, Timestamps, XattrFlags, futimens};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};

use crate::error::{Error, ErrorKind, Result, system};
use crate::old::Old;

/// The file in the root directory of the old file system whose blocks the volume may write.
pub const FILE_NAME: &str = ".bedplate-convert";
/// The attribute by which the file is known to be ours.
const MARK: &str = "trusted.bedplate.convert";
/// Directories of which one is there on every system; what is mounted over it is seen by one thread.
const PLACES: [&str; 5] = ["/mnt", "/media", "/srv", "/var", "/tmp"];
const ZEROS_BYTES: usize = 1 << 20;

/// Does work on a thread of its own whose mounts nothing else sees.
pub(crate) fn in_private<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let run = || {
        unshare(CloneFlags::CLONE_NEWNS).map_err(|error| {
            Error::new(
                ErrorKind::NotPermitted,
                format!(
                    "the old file system cannot be mounted where nothing else sees it ({}): run it \
                     as root, outside of a container that forbids mounts",
                    error.desc()
                ),
            )
        })?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).map_err(system("keep mounts private below", Path::new("/")))?;
        work()
    };
    std::thread::scope(|scope| match scope.spawn(run).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// The old file system, mounted.
#[derive(Debug)]
pub(crate) struct Mounted {
    dir: PathBuf,
    device: PathBuf,
    is_mounted: bool,
}

impl Mounted {
    /// Mounts a device or an image; called within [`in_private`].
    pub fn mount(device: &Path, mount_type: &str, read_only: bool) -> Result<Self> {
        let dir = PLACES.iter().map(Path::new).find(|place| place.is_dir());
        let Some(dir) = dir else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("none of {} is a directory to mount it at", PLACES.join(", ")),
            ));
        };
        let is_image = device.metadata().is_ok_and(|is| is.is_file());
        let options = [
            if read_only { "ro" } else { "rw" },
            "noatime,nosuid,nodev,noexec",
            if mount_type == "xfs" { "nouuid" } else { "" },
            if is_image { "loop" } else { "" },
        ];
        let options: Vec<&str> = options.into_iter().filter(|option| !option.is_empty()).collect();
        let output = Command::new("mount")
            .args(["-n", "-t", mount_type, "-o", &options.join(",")])
            .arg(device)
            .arg(dir)
            .stdin(Stdio::null())
            .output()
            .map_err(system("run mount(8) for", device))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said =
                said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
            return Err(Error::new(
                ErrorKind::Io,
                format!("{} cannot be mounted as {mount_type}: {}", device.display(), said.trim()),
            ));
        }
        Ok(Self { dir: dir.to_owned(), device: device.to_owned(), is_mounted: true })
    }

    /// Returns where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the bytes that are free for root.
    pub fn free_bytes(&self) -> Result<u64> {
        let told = rustix::fs::statvfs(&self.dir).map_err(system("look at", &self.device))?;
        Ok(told.f_bfree.saturating_mul(told.f_frsize))
    }

    /// Unmounts it; what was written is durable then.
    pub fn unmount(mut self) -> Result<()> {
        self.is_mounted = false;
        unmount(&self.dir, UnmountFlags::empty()).map_err(system("unmount", &self.device))
    }

    fn file(&self) -> PathBuf {
        self.dir.join(FILE_NAME)
    }

    /// Returns whether the file of a conversion is there.
    ///
    /// # Errors
    /// `Exists` for a file of that name that no conversion made.
    pub fn has_file(&self) -> Result<bool> {
        let path = self.file();
        let file = match OpenOptions::new().read(true).custom_flags(libc_nofollow()).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Error::system("open", &path, &error)),
        };
        let is = file.metadata().map_err(system("look at", &path))?;
        let mut value = [0; 16];
        let is_marked = rustix::fs::fgetxattr(&file, MARK, &mut value[..]).is_ok();
        // One that was killed just made it.
        if is.is_file() && (is_marked || is.len() == 0) {
            return Ok(true);
        }
        Err(Error::new(
            ErrorKind::Exists,
            format!(
                "{} has a file {FILE_NAME} that no conversion made: give it another name",
                self.device.display()
            ),
        ))
    }

    /// Removes the file, if it is there; the times of the directory stay what they were.
    pub fn remove_file(&self) -> Result<bool> {
        if !self.has_file()? {
            return Ok(false);
        }
        self.keeping_times(|| {
            std::fs::remove_file(self.file()).map_err(system("remove", &self.file()))
        })?;
        Ok(true)
    }

    /// Makes the file, of so many bytes that have blocks.
    pub fn make_file(&self, len: u64) -> Result<File> {
        let path = self.file();
        let file = self.keeping_times(|| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            options.open(&path).map_err(system("make", &path))
        })?;
        rustix::fs::fsetxattr(&file, MARK, b"1", XattrFlags::empty())
            .map_err(system("mark", &path))?;
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
            Ok(()) => {}
            // ext2 and ext3 reserve nothing.
            Err(rustix::io::Errno::OPNOTSUPP) => fill(&file, len).map_err(system("fill", &path))?,
            Err(error) => return Err(Error::system("take free space for", &path, &error.into())),
        }
        file.sync_all().map_err(system("write", &path))?;
        Ok(file)
    }

    /// Returns where the file lies.
    pub fn file_extents(&self, file: &File) -> Result<Vec<FileExtent>> {
        file_extents(file).map_err(system("find out where the blocks are of", &self.file()))
    }

    fn keeping_times<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let root = File::open(&self.dir).map_err(system("open", &self.dir))?;
        let is = root.metadata().map_err(system("look at", &self.dir))?;
        let done = change()?;
        let time = |tv_sec: i64, nanos: i64| Timespec { tv_sec, tv_nsec: nanos as _ };
        let times = Timestamps {
            last_access: time(is.atime(), is.atime_nsec()),
            last_modification: time(is.mtime(), is.mtime_nsec()),
        };
        futimens(&root, &times).map_err(system("keep the times of", &self.dir))?;
        root.sync_all().map_err(system("write", &self.dir))?;
        Ok(done)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted {
            // Something failed; the namespace would end it too.
            let _ended = unmount(&self.dir, UnmountFlags::DETACH);
        }
    }
}

fn libc_nofollow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0)
}

fn fill(file: &File, len: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES];
    let mut at = 0;
    while at < len {
        let step = (zeros.len() as u64).min(len - at);
        file.write_all_at(&zeros[..step as usize], at)?;
        at += step;
    }
    Ok(())
}

/// Mounts the old file system once more and removes the file of a conversion; returns whether there
/// was one.
pub(crate) fn remove_file_of(device: &Path, mount_type: &'static str) -> Result<bool> {
    in_private(|| {
        let mounted = Mounted::mount(device, mount_type, false)?;
        let removed = mounted.remove_file()?;
        mounted.unmount()?;
        Ok(removed)
    })
}

/// As [`remove_file_of`], after a failure that is told instead of its own.
pub(crate) fn give_up(device: &Path, old: &Old) {
    let _removed = remove_file_of(device, old.mount_type());
}
