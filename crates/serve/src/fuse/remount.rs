//! What `mount -o remount` changes without the serving process: the kernel's own flags of a mount.

use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use crate::{Error, ErrorKind, Result};

/// The flags by their words: what sets one, and what takes it away.
const FLAGS: [(&str, &str, MountFlags); 4] = [
    ("ro", "rw", MountFlags::RDONLY),
    ("nosuid", "suid", MountFlags::NOSUID),
    ("nodev", "dev", MountFlags::NODEV),
    ("noexec", "exec", MountFlags::NOEXEC),
];

/// The flags of access times, which stay what they are.
const TIMES: [(&str, MountFlags); 3] = [
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME),
];

/// Returns whether an option is a flag that the kernel changes on a live mount.
#[must_use]
pub fn is_remount_flag(option: &str) -> bool {
    FLAGS.iter().any(|(set, unset, _)| option == *set || option == *unset)
}

/// Changes flags of a live mount; those that are not named stay as they are. What the kernel holds
/// of writes is written before it refuses further ones.
///
/// # Errors
/// `Busy` where a file is open for writing, `Permission` for ordinary users, `MountPoint` where
/// nothing is mounted.
pub fn remount(mountpoint: &Path, options: &[&str]) -> Result<()> {
    let shown = mountpoint.display();
    let entry = bedplate_block::MountEntry::at(mountpoint)
        .map_err(|error| Error::io("cannot read the list of mounts", error))?
        .ok_or_else(|| {
            Error::new(ErrorKind::MountPoint, format!("nothing is mounted on {shown}"))
        })?;
    let mut flags = flags_of(entry.flags.split(',').chain(options.iter().copied()));
    // One of several places: without this the others would turn read-only too.
    flags.set(MountFlags::BIND, entry.root != Path::new("/"));
    if flags.contains(MountFlags::RDONLY) {
        let synced = std::fs::File::open(mountpoint)
            .and_then(|root| bedplate_block::sync_file_system(&root));
        synced
            .map_err(|error| Error::io(format!("cannot write what is dirty on {shown}"), error))?;
    }
    mount_remount(mountpoint, flags, "").map_err(|errno| match errno {
        Errno::BUSY => Error::new(
            ErrorKind::Busy,
            format!("a file on {shown} is open for writing: 'fuser -m {shown}' names the programs"),
        ),
        Errno::PERM | Errno::ACCESS => Error::new(
            ErrorKind::Permission,
            format!(
                "only root changes the flags of a mount: unmount {shown}, and mount it with them"
            ),
        ),
        errno => Error::io(format!("cannot change the flags of {shown}"), errno.into()),
    })
}

/// Returns the flags that words stand for; of two that contradict each other the later one counts.
pub(super) fn flags_of<'a>(words: impl Iterator<Item = &'a str>) -> MountFlags {
    let mut flags = MountFlags::empty();
    for word in words {
        for (set, unset, flag) in FLAGS {
            if word == set || word == unset {
                flags.set(flag, word == set);
            }
        }
        for (set, flag) in TIMES {
            flags.set(flag, flags.contains(flag) || word == set);
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_are_not_named_stay() {
        let flags = |words: &str| flags_of(words.split(','));
        assert_eq!(
            flags("rw,nosuid,nodev,relatime,ro,dev"),
            MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::RELATIME
        );
        assert_eq!(flags("ro,noexec,rw"), MountFlags::NOEXEC);
        assert!(is_remount_flag("rw") && is_remount_flag("nodev") && !is_remount_flag("noatime"));
    }
}
