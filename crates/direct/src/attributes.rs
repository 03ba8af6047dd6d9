//! Owner, mode, extended attributes and times of what is copied.

use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::error::{Error, Result, system};
use crate::partial::MARK;

/// The longest value of an extended attribute, and the longest list of names, that Linux has.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// What could not be kept, each once: `owner`, or the name of an extended attribute.
pub(crate) type Left = std::collections::BTreeSet<String>;

/// Gives a file or directory that was made what its source has. What the system refuses is noted
/// in `left`: an ordinary user gives nothing away, and a file system may keep no extended
/// attributes. Times come last, since the others move them.
pub(crate) fn keep(
    source: &impl AsFd,
    is: &Metadata,
    target: &impl AsFd,
    path: &Path,
    left: &mut Left,
) -> Result<()> {
    let owner = (Uid::from_raw(is.uid()), Gid::from_raw(is.gid()));
    let mut mode = is.mode() & 0o7777;
    // The owner comes first: changing it takes capabilities and set-uid bits away.
    if rustix::fs::fchown(target, Some(owner.0), Some(owner.1)).is_err() {
        left.insert("owner".to_owned());
        // The rights of another owner are not given to this one.
        mode &= 0o1777;
    }
    keep_xattrs(source, target, path, left)?;
    rustix::fs::fchmod(target, Mode::from_raw_mode(mode))
        .map_err(system("set the mode of", path))?;
    rustix::fs::futimens(target, &times(is)).map_err(system("set the times of", path))
}

/// Gives a directory what its source has.
pub(crate) fn keep_of_directory(from: &Path, into: &Path, left: &mut Left) -> Result<()> {
    let source = File::open(from).map_err(system("open", from))?;
    let is = source.metadata().map_err(system("look at", from))?;
    let target = File::open(into).map_err(system("open", into))?;
    keep(&source, &is, &target, into, left)
}

/// As [`keep`], of a symbolic link.
pub(crate) fn keep_of_link(is: &Metadata, path: &Path, left: &mut Left) -> Result<()> {
    let owner = (Uid::from_raw(is.uid()), Gid::from_raw(is.gid()));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    if rustix::fs::chownat(CWD, path, Some(owner.0), Some(owner.1), flags).is_err() {
        left.insert("owner".to_owned());
    }
    rustix::fs::utimensat(CWD, path, &times(is), flags).map_err(system("set the times of", path))
}

fn times(is: &Metadata) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: is.atime(), tv_nsec: is.atime_nsec() as _ },
        last_modification: Timespec { tv_sec: is.mtime(), tv_nsec: is.mtime_nsec() as _ },
    }
}

fn keep_xattrs(source: &impl AsFd, target: &impl AsFd, path: &Path, left: &mut Left) -> Result<()> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let len = match rustix::fs::flistxattr(source, &mut names[..]) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => {
            return Err(Error::system("list what to keep for", path, &error.into()));
        }
    };
    let mut value = vec![0; XATTR_BYTES_MAX];
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if name == MARK.as_bytes() {
            continue;
        }
        let set = rustix::fs::fgetxattr(source, name, &mut value[..]).and_then(|len| {
            rustix::fs::fsetxattr(target, name, &value[..len], XattrFlags::empty())
        });
        match set {
            // Removed since it was listed.
            Ok(()) | Err(Errno::NODATA) => {}
            Err(Errno::NOSPC | Errno::DQUOT) => {
                let error = std::io::Error::from(Errno::NOSPC);
                return Err(Error::system("keep the extended attributes of", path, &error));
            }
            Err(_) => {
                left.insert(String::from_utf8_lossy(name).into_owned());
            }
        }
    }
    Ok(())
}

/// Takes extended attributes from a target that its source has no longer; those by which a Bedplate
/// mount is told how to keep a file stay, and so do those of the system.
pub(crate) fn take_others(source: &impl AsFd, target: &impl AsFd) {
    let names = |of: &dyn Fn(&mut [u8]) -> rustix::io::Result<usize>| {
        let mut names = vec![0; XATTR_BYTES_MAX];
        let len = of(&mut names).unwrap_or(0);
        names.truncate(len);
        names
    };
    let ours = names(&|buf| rustix::fs::flistxattr(source, &mut *buf));
    let theirs = names(&|buf| rustix::fs::flistxattr(target, &mut *buf));
    let has = |name: &[u8]| ours.split(|byte| *byte == 0).any(|other| other == name);
    for name in theirs.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if name.starts_with(b"user.") && !name.starts_with(b"user.bedplate.") && !has(name) {
            // One that stays harms nothing, and no file system refuses it.
            let _removed = rustix::fs::fremovexattr(target, name);
        }
    }
}
