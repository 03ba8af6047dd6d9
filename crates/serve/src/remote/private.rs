//! Mounts that only this process and what it starts see.

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, mount_change};

use crate::{Error, Result};

/// Has what the calling thread mounts from now on be seen by it, by threads and processes that it
/// starts, and by no other; it is gone with the last of them. What others mount is seen as before.
/// Returns whether this user may do so.
///
/// # Errors
/// `Io` when the system refuses it otherwise.
pub fn hide_mounts() -> Result<bool> {
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => {}
        Err(nix::errno::Errno::EPERM) => return Ok(false),
        Err(errno) => {
            return Err(Error::io("cannot make a mount namespace", errno.into()));
        }
    }
    let inward = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", inward)
        .map_err(|errno| Error::io("cannot keep mounts from others", errno.into()))?;
    Ok(true)
}
