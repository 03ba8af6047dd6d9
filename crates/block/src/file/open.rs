//! Opening and making devices.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::fs::FallocateFlags;

use super::exclusive::{Claim, Extent};
use super::probe::{self, DeviceNo, Opened};
use super::target::Target;
use super::{FileDevice, exclusive};
use crate::check::error;
use crate::counters::LiveCounters;
use crate::descriptor::{Core, Kind, from_io, size_bytes};
use crate::{BlockDevice, Error, ErrorKind, Operation, Result};

/// Which engine serves the queues of a file or block device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring, or server threads where it is not allowed;
    /// [`EngineReport::fallback`](crate::EngineReport::fallback) says why.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// A bounded pool of server threads.
    Threads,
}

/// How to open a device.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// Opens for reading only; a shared claim, so other readers are welcome.
    pub read_only: bool,
    /// Claims the device with what it lies on, so that it has no other user; reading beside a
    /// writer takes `false`.
    pub exclusive: bool,
    /// Which engine serves queues.
    pub engine: Engine,
    /// How many server threads the thread engine may start; 1 to 1024. They start when they are
    /// first needed.
    pub server_threads: usize,
    /// Bypasses the kernel's page cache. Where the host's file system refuses, the device is
    /// buffered and [`EngineReport::fallback`](crate::EngineReport::fallback) says so.
    pub direct: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            exclusive: true,
            engine: Engine::Auto,
            server_threads: 32,
            direct: true,
        }
    }
}

/// Opens a block device or an image file, as [`open`](crate::open) says.
///
/// With `pieces` it is claimed for these bytes alone; that only they are used is the caller's to see
/// to.
pub(crate) fn open(
    path: &Path,
    options: &DeviceOptions,
    pieces: Option<&[Range<u64>]>,
) -> Result<Arc<dyn BlockDevice>> {
    let extent = Extent(pieces);
    let name = path.display().to_string();
    let failed = |error: io::Error| from_io(&name, Operation::Open, None, &error);
    let kind = kind_of(path, &name)?;
    let below = if options.exclusive {
        exclusive::claim_below(path, &name, options.read_only, extent)?
    } else {
        Claim::default()
    };
    let (file, buffered) = open_beside(path, &name, kind, options, extent)?;
    if options.exclusive {
        exclusive::claim(&file, path, &name, kind, options.read_only, extent, &below)?;
    }
    if kind == Kind::Block && !options.read_only && probe::is_read_only(&file).map_err(failed)? {
        return Err(read_only_device(&name, None));
    }
    let stat = probe::statx(&file).map_err(failed)?;
    let opened =
        Opened { kind, direct: options.direct && buffered.is_none(), read_only: options.read_only };
    let geometry = probe::geometry(&file, &stat, opened).map_err(failed)?;
    let size = size_bytes(&file).map_err(failed)?;
    let size_bytes = AtomicU64::new(size - size % u64::from(geometry.logical_block_size));
    let core = Core {
        name,
        file,
        kind,
        geometry,
        size_bytes,
        counters: LiveCounters::default(),
        _locks: below.into_locks(),
    };
    Ok(Arc::new(FileDevice::start(core, options, buffered)?))
}

/// Tells a block device from an image file before either is opened: opening other things can block
/// or have effects.
fn kind_of(path: &Path, name: &str) -> Result<Kind> {
    let metadata =
        fs::metadata(path).map_err(|error| from_io(name, Operation::Open, None, &error))?;
    let file_type = metadata.file_type();
    if file_type.is_block_device() {
        return Ok(Kind::Block);
    }
    if file_type.is_file() {
        return Ok(Kind::Image);
    }
    let what = if file_type.is_dir() {
        "a directory"
    } else {
        "neither a block device nor a regular file"
    };
    Err(error(
        name,
        ErrorKind::Unsupported,
        Operation::Open,
        None,
        format!("this is {what}; give a block device or an image file"),
    ))
}

/// As [`open_file`]. A part is opened beside users of other parts, of which the first has claimed the
/// whole device.
fn open_beside(
    path: &Path,
    name: &str,
    kind: Kind,
    options: &DeviceOptions,
    extent: Extent<'_>,
) -> Result<(File, Option<String>)> {
    let opened = open_file(path, name, kind, options);
    let is_busy = |error: &Error| error.kind == ErrorKind::Busy;
    if extent.0.is_none() || !opened.as_ref().is_err_and(is_busy) {
        return opened;
    }
    let options = DeviceOptions { exclusive: false, ..options.clone() };
    let beside = open_file(path, name, kind, &options)?;
    if exclusive::has_other_locks(&beside.0) { Ok(beside) } else { opened }
}

/// Opens the file, direct if that is wanted and possible; otherwise says why not.
fn open_file(
    path: &Path,
    name: &str,
    kind: Kind,
    options: &DeviceOptions,
) -> Result<(File, Option<String>)> {
    let exclusive = if kind == Kind::Block && options.exclusive && !options.read_only {
        libc::O_EXCL
    } else {
        0
    };
    let attempt = |flags| {
        OpenOptions::new()
            .read(true)
            .write(!options.read_only)
            .custom_flags(flags | exclusive)
            .open(path)
    };
    let open = |flags| {
        if exclusive == 0 { attempt(flags) } else { exclusive::patiently(|| attempt(flags)) }
    };
    if !options.direct {
        return open(0).map(|file| (file, None)).map_err(|error| refused(path, name, &error));
    }
    let file = match open(libc::O_DIRECT) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            return buffered(open(0), path, name);
        }
        Err(error) => return Err(refused(path, name, &error)),
    };
    let stat = probe::statx(&file).map_err(|error| from_io(name, Operation::Open, None, &error))?;
    if probe::refuses_direct(&stat) {
        // The claim of a block device lies with the descriptor, so it goes before the next open.
        drop(file);
        return buffered(open(0), path, name);
    }
    Ok((file, None))
}

fn buffered(opened: io::Result<File>, path: &Path, name: &str) -> Result<(File, Option<String>)> {
    let file = opened.map_err(|error| refused(path, name, &error))?;
    let reason = "the file system below refuses direct I/O (O_DIRECT), so every transfer passes \
                  through the kernel's page cache";
    tracing::warn!(device = name, reason, "buffered I/O");
    Ok((file, Some(reason.to_owned())))
}

/// Makes the error of a refused open; names the user in the way, and tells a read-only device from
/// a lack of permission.
#[cold]
fn refused(path: &Path, name: &str, error: &io::Error) -> Error {
    let target = Target::at(path).ok();
    match (error.raw_os_error(), target) {
        (Some(libc::EBUSY), Some(target)) => exclusive::busy(name, target, 0),
        (Some(libc::EACCES | libc::EPERM | libc::EROFS), _) if is_read_only_device(path) => {
            read_only_device(name, error.raw_os_error())
        }
        _ => from_io(name, Operation::Open, None, error),
    }
}

fn read_only_device(name: &str, errno: Option<i32>) -> Error {
    let detail = "the device is read-only; open it for reading only".to_owned();
    Error { errno, ..error(name, ErrorKind::ReadOnly, Operation::Open, None, detail) }
}

fn is_read_only_device(path: &Path) -> bool {
    let Ok(metadata) = fs::metadata(path) else { return false };
    let flag = || fs::read_to_string(DeviceNo::from_raw(metadata.rdev()).sysfs().join("ro"));
    metadata.file_type().is_block_device() && flag().is_ok_and(|flag| flag.trim() == "1")
}

/// Makes an image file of `size_bytes` bytes, durable with its name. With `preallocate` its blocks
/// are reserved, so that writing to it cannot run out of space; otherwise it is sparse.
///
/// # Errors
/// `Busy` when the path exists, `Unaligned` when the size is not a multiple of 512, `NoSpace`
/// (nothing is left behind), `Permission`, `NotFound` when there is no such directory, or `Io`.
pub fn create_image(path: impl AsRef<Path>, size_bytes: u64, preallocate: bool) -> Result<()> {
    let path = path.as_ref();
    let name = path.display().to_string();
    if size_bytes == 0 || !size_bytes.is_multiple_of(512) {
        let detail =
            format!("an image's size must be a multiple of 512 bytes and not {size_bytes}");
        return Err(error(&name, ErrorKind::Unaligned, Operation::Open, None, detail));
    }
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(
            |error| match error.kind() {
                io::ErrorKind::AlreadyExists => self::error(
                    &name,
                    ErrorKind::Busy,
                    Operation::Open,
                    None,
                    "the file exists already; it is left as it is".into(),
                ),
                _ => from_io(&name, Operation::Open, None, &error),
            },
        )?;
    let made = extend(&file, 0, size_bytes, preallocate)
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_directory(path));
    made.map_err(|error| {
        // The first error is the one to report; a file that cannot be removed either is in plain
        // sight.
        let _ = fs::remove_file(path);
        from_io(&name, Operation::Resize, None, &error)
    })
}

fn extend(file: &File, from: u64, to: u64, preallocate: bool) -> io::Result<()> {
    if preallocate {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), from, to - from) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => return super::zero_by_hand(file, from, to - from),
            Err(errno) => return Err(errno.into()),
        }
    }
    file.set_len(to)
}

/// Makes a new name durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}
