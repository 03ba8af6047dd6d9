//! The claim on a device: one writer, or many readers, and no other user. It ends with the process.
//!
//! A block device is claimed by `O_EXCL`, which keeps mounts and other claims out, and by a lock on
//! its node, which alone is able to tell readers from writers. An image file is claimed by the
//! lock. The lock belongs to the open file description (`F_OFD_SETLK`): it vanishes with the last
//! descriptor, however the process ends, and it holds against this process's other opens too.
//!
//! An image and the loop devices over it are one device. The claim of a loop device therefore locks
//! its file as well, just the bytes that it presents:
//!
//! ```text
//! claim_below   lowest first: lock the bytes in the file of each loop device that the device lies on
//! open          O_EXCL for a writer of a block device
//! claim         lock the device itself; what it lies on must be what was locked; no other loop device over any of it may be in use
//! ```
//!
//! A part of a device claims its own bytes alone, in the same way. `O_EXCL` is of a whole device: the
//! first user of a part takes it, and those beside it go by the locks, as long as there are any.
//!
//! All claims of one file meet in the lock on the file, which is taken first: of two that race one
//! wins. Where that lock is out of reach, because the file has lost its name, the last step stays:
//! each claims what is its own before it looks at the loop devices beside it, so at most one
//! passes. The lock needs no place of its own that a crash could leave behind, and holds across
//! namespaces.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::backing::{self, Layer, WHOLE};
use super::holders;
use super::loops::{self, Loop};
use super::target::Target;
use crate::check::error;
use crate::descriptor::{Kind, from_io};
use crate::{Error, ErrorKind, Operation, Result};

/// What is claimed of a device: all of it, or pieces that other users may have others beside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent<'a>(pub Option<&'a [Range<u64>]>);

impl<'a> Extent<'a> {
    fn ranges(self) -> &'a [Range<u64>] {
        const ALL: &[Range<u64>] = &[WHOLE];
        self.0.unwrap_or(ALL)
    }

    fn layers(self, path: &Path, target: Target) -> Vec<Vec<Layer>> {
        self.ranges().iter().map(|range| backing::layers(path, target, range)).collect()
    }
}

/// The locks on what a device lies on. They hold as long as the files are open.
#[derive(Debug, Default)]
pub(super) struct Claim {
    /// For each range that is claimed.
    layers: Vec<Vec<Layer>>,
    locks: Vec<File>,
}

impl Claim {
    pub fn into_locks(self) -> Vec<File> {
        self.locks
    }
}

/// Claims what the device at `path` lies on, before it is opened itself.
pub(super) fn claim_below(
    path: &Path,
    name: &str,
    read_only: bool,
    extent: Extent<'_>,
) -> Result<Claim> {
    let target = Target::at(path).map_err(|error| from_io(name, Operation::Open, None, &error))?;
    let layers = extent.layers(path, target);
    let mut locks = Vec::new();
    for layer in layers.iter().flat_map(|layers| layers.iter().rev()) {
        // A disk and its partitions keep each other out by `O_EXCL`.
        let Some(presented_by) = &layer.presented_by else { continue };
        let Some((file, writable)) = presented_by.open_backing(!read_only) else {
            tracing::debug!(device = name, below = %layer.path.display(),
                "cannot be opened, so only loop devices are checked for other users");
            continue;
        };
        lock_layer(&file, writable, layer, name, read_only)?;
        locks.push(file);
    }
    Ok(Claim { layers, locks })
}

/// Locks the bytes of a layer that belong to the device above.
fn lock_layer(
    file: &File,
    writable: bool,
    layer: &Layer,
    name: &str,
    read_only: bool,
) -> Result<()> {
    let attempt = || match (read_only, writable) {
        (true, _) => lock(file, libc::F_RDLCK, &layer.bytes),
        (false, true) => lock(file, libc::F_WRLCK, &layer.bytes),
        // A descriptor for reading takes no lock for writing. It takes the other and sees that it
        // is alone.
        (false, false) => lock(file, libc::F_RDLCK, &layer.bytes)
            .and_then(|()| refuse_locked(file, libc::F_WRLCK, &layer.bytes)),
    };
    match patiently(attempt) {
        Err(error) if is_locked(&error) => {
            let who = users(layer.target, 1).unwrap_or_else(|| UNKNOWN.to_owned());
            Err(busy_because(name, format!("it lies on {}: {who}", layer.path.display())))
        }
        Err(error) => {
            warn_of_no_locks(name, &error);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Makes the claim on a freshly opened device. A block device for writing comes here already opened
/// with `O_EXCL`.
pub(super) fn claim(
    file: &File,
    path: &Path,
    name: &str,
    kind: Kind,
    read_only: bool,
    extent: Extent<'_>,
    below: &Claim,
) -> Result<()> {
    let metadata = file.metadata().map_err(|error| from_io(name, Operation::Open, None, &error))?;
    let target = Target::of(&metadata);
    let beside_parts = extent.0.is_some() && has_other_locks(file);
    if kind == Kind::Block && read_only && claimed_elsewhere(path) && !beside_parts {
        return Err(busy(name, target, 1));
    }
    let lock_kind = lock_kind(read_only);
    let all = || extent.ranges().iter().try_for_each(|range| lock(file, lock_kind, range));
    match patiently(all) {
        Ok(()) => {}
        Err(error) if is_locked(&error) => {
            // The lock may be that of a loop device over this image, which says more than the
            // process alone.
            refuse_loops_in_use(name, &below.layers, read_only)?;
            return Err(busy(name, target, 1));
        }
        Err(error) => warn_of_no_locks(name, &error),
    }
    // A loop device may have got another file before it was open.
    if extent.layers(path, target) != below.layers {
        return Err(busy_because(
            name,
            "what it leads to, or lies on, changed while it was opened: try again".to_owned(),
        ));
    }
    refuse_loops_in_use(name, &below.layers, read_only)
}

/// Says whether another user of the device holds a lock on any byte of it, as users of parts do:
/// what claimed the device as a whole without one is no user of parts.
pub(super) fn has_other_locks(file: &File) -> bool {
    refuse_locked(file, libc::F_WRLCK, &WHOLE).is_err_and(|error| is_locked(&error))
}

fn lock_kind(read_only: bool) -> libc::c_int {
    if read_only { libc::F_RDLCK } else { libc::F_WRLCK }
}

fn is_locked(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

fn warn_of_no_locks(name: &str, error: &io::Error) {
    tracing::warn!(device = name, %error, "the file system below offers no locks; nothing keeps a \
                                           second user out");
}

const UNKNOWN: &str = "it is in use by a process that this user may not look at";

/// Makes the error of a device that is in use, and finds out by what; the caller has it open
/// `own_opens` times.
#[cold]
pub(super) fn busy(name: &str, target: Target, own_opens: usize) -> Error {
    busy_because(name, users(target, own_opens).unwrap_or_else(|| UNKNOWN.to_owned()))
}

fn busy_because(name: &str, detail: String) -> Error {
    Error {
        errno: Some(libc::EBUSY),
        ..error(name, ErrorKind::Busy, Operation::Open, None, detail)
    }
}

fn users(target: Target, own_opens: usize) -> Option<String> {
    match target {
        Target::Block(device) => holders::of_block(device, own_opens),
        Target::File { .. } => {
            holders::processes(target, own_opens).map(|who| format!("it is in use by {who}"))
        }
    }
}

/// Tries again for a moment while another user is in the way: one that looks at a new device
/// (udev), or is just letting go of it, is gone soon.
pub(super) fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..10 {
        match attempt() {
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EBUSY | libc::EAGAIN | libc::EACCES)
                ) =>
            {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            result => return result,
        }
    }
    attempt()
}

fn flock(kind: libc::c_int, bytes: &Range<u64>) -> libc::flock {
    // The kernel's offsets are signed, and a length of 0 means without an end.
    let start = libc::off_t::try_from(bytes.start).unwrap_or(libc::off_t::MAX);
    let end = libc::off_t::try_from(bytes.end).unwrap_or(libc::off_t::MAX);
    // SAFETY: `flock` is plain data, for which zeros are valid: no pid, as OFD locks demand.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = if end == libc::off_t::MAX { 0 } else { end - start };
    lock
}

/// Locks bytes for this open file description.
fn lock(file: &File, kind: libc::c_int, bytes: &Range<u64>) -> io::Result<()> {
    let lock = flock(kind, bytes);
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the third argument is
    // the `flock` that this command reads.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Fails as [`lock`] would for another open file description's lock, and takes none.
fn refuse_locked(file: &File, kind: libc::c_int, bytes: &Range<u64>) -> io::Result<()> {
    let mut lock = flock(kind, bytes);
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the third argument is
    // the `flock` that this command reads and writes.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 if libc::c_int::from(lock.l_type) == libc::F_UNLCK => Ok(()),
        0 => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a block device exclusively, to be closed at once.
fn open_exclusively(path: &Path) -> io::Result<File> {
    patiently(|| {
        OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK).open(path)
    })
}

/// Says whether a block device is claimed, by trying to claim it for a moment.
fn claimed_elsewhere(path: &Path) -> bool {
    open_exclusively(path).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// Refuses a device that lies on something that another loop device presents too, and that one is
/// in use: what is written past it would corrupt what is mounted there.
fn refuse_loops_in_use(name: &str, layers: &[Vec<Layer>], read_only: bool) -> Result<()> {
    layers.iter().try_for_each(|layers| refuse_loops_over(name, layers, read_only))
}

fn refuse_loops_over(name: &str, layers: &[Layer], read_only: bool) -> Result<()> {
    for (depth, layer) in layers.iter().enumerate() {
        let others = loops::loops_over(layer.target)
            .into_iter()
            .filter(|other| !layers.iter().any(|own| own.target == Target::Block(other.device)));
        for other in others.filter(|other| backing::overlap(&other.bytes, &layer.bytes)) {
            let Some(user) = used_by(&other, read_only, LOOPS_MAX) else { continue };
            let what = if depth == 0 {
                String::new()
            } else {
                format!("lies on {}, which ", layer.path.display())
            };
            return Err(busy_because(name, format!("it {what}backs {user}")));
        }
    }
    Ok(())
}

/// More loop devices than the kernel lets stand on each other.
const LOOPS_MAX: usize = 16;

/// Names a loop device that is in use, this one or one that stands on it, and its users.
fn used_by(used: &Loop, read_only: bool, depth: usize) -> Option<String> {
    let target = Target::Block(used.device);
    let node = used.device.node()?;
    let in_use = match open_exclusively(&node) {
        Ok(file) => patiently(|| refuse_locked(&file, lock_kind(read_only), &WHOLE))
            .is_err_and(|error| is_locked(&error)),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => true,
        // It may not be opened by this user: what the system tells to all has to do.
        Err(_) => users(target, 0).is_some(),
    };
    if in_use || !read_only && holders::has_writer(target) {
        return Some(format!(
            "{}: {}",
            node.display(),
            users(target, 0).unwrap_or_else(|| UNKNOWN.to_owned())
        ));
    }
    let above = if depth == 0 { Vec::new() } else { loops::loops_over(target) };
    above.iter().find_map(|above| used_by(above, read_only, depth - 1))
}
