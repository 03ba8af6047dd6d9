//! The claim on a device: one writer, or many readers, and nobody else. It ends with the process.
//!
//! A block device is claimed by `O_EXCL`, which keeps mounts and other claims out, and by a lock on its node, which alone is able to tell
//! readers from writers. An image file is claimed by the lock. The lock belongs to the open file description (`F_OFD_SETLK`): it
//! vanishes with the last descriptor, however the process ends, and it holds against this process's other opens too.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::core::Kind;
use super::errno::from_io;
use super::holders::{self, Target};
use crate::check::error;
use crate::{Error, ErrorKind, Operation, Result};

/// Makes the claim on a freshly opened device. A block device for writing comes here already opened with `O_EXCL`.
pub(super) fn claim(file: &File, path: &Path, name: &str, kind: Kind, read_only: bool) -> Result<()> {
    let metadata = file.metadata().map_err(|error| from_io(name, Operation::Open, None, &error))?;
    let target = Target::of(&metadata);
    if kind == Kind::Block && read_only && claimed_elsewhere(path) {
        return Err(busy(name, target, 1));
    }
    match patiently(|| lock(file, if read_only { libc::F_RDLCK } else { libc::F_WRLCK })) {
        Ok(()) => {}
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => return Err(busy(name, target, 1)),
        Err(error) => tracing::warn!(device = name, %error, "the file system below offers no locks; nothing keeps a second user out"),
    }
    if kind == Kind::Image { refuse_busy_loops(name, target) } else { Ok(()) }
}

/// Makes the error of a device that somebody else uses, and finds out who; the caller has it open `own_opens` times.
#[cold]
pub(super) fn busy(name: &str, target: Target, own_opens: usize) -> Error {
    let who = match target {
        Target::Block(device) => holders::of_block(device, own_opens),
        Target::File { .. } => holders::processes(target, own_opens).map(|who| format!("it is in use by {who}")),
    };
    let who = who.unwrap_or_else(|| "it is in use by a process that this user may not look at".to_owned());
    Error { errno: Some(libc::EBUSY), ..error(name, ErrorKind::Busy, Operation::Open, None, who) }
}

/// Tries again for a moment while somebody is in the way: who looks at a new device (udev) or has just let go of it is gone soon.
pub(super) fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..10 {
        match attempt() {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN | libc::EACCES)) => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            result => return result,
        }
    }
    attempt()
}

/// Finds the path's target without opening it.
pub(super) fn target_of(path: &Path) -> io::Result<Target> {
    Ok(Target::of(&fs::metadata(path)?))
}

fn lock(file: &File, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: `flock` is plain data, for which zeros are valid: the whole file, from its start, no pid (as OFD locks demand).
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the third argument is the `flock` that this command reads.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Says whether somebody holds a block device exclusively, by trying to for a moment.
fn claimed_elsewhere(path: &Path) -> bool {
    let attempt = || OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK).open(path);
    patiently(attempt).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// Refuses an image whose loop device is in use: what is written past it would corrupt what is mounted there.
fn refuse_busy_loops(name: &str, image: Target) -> Result<()> {
    for attached in holders::loops_over(image) {
        let who = holders::of_block(attached.device, 0);
        if who.is_some() || claimed_elsewhere(Path::new(&attached.path)) {
            let who = who.unwrap_or_else(|| "it is in use".to_owned());
            let detail = format!("the image backs {}: {who}", attached.path);
            return Err(Error { errno: Some(libc::EBUSY), ..error(name, ErrorKind::Busy, Operation::Open, None, detail) });
        }
    }
    Ok(())
}
