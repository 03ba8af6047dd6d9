//! What is mounted where, from the system's own table.

use std::path::{Path, PathBuf};

use bedplate_block::{MountEntry, UserOptions};

use crate::failure::{Failure, Result};

/// The file system type under which the kernel lists our mounts.
const TYPE: &str = "fuse.bedplate";

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// What is mounted: for our mounts the volume's path.
    pub source: PathBuf,
    /// `major:minor`, by which the system knows the mount wherever it is.
    pub device: String,
    /// Whether the mount refuses writes.
    pub read_only: bool,
    /// The options of the mount and of the file system, as the kernel tells them, and those of user
    /// space.
    pub options: Vec<String>,
    kind: String,
}

impl Mount {
    /// Returns whether it is one of ours.
    pub fn is_ours(&self) -> bool {
        self.kind == TYPE
    }
}

/// Returns the table; what is mounted last comes last.
fn table() -> Result<Vec<Mount>> {
    let entries = MountEntry::all()
        .map_err(|error| Failure::system("read", Path::new("/proc/self/mountinfo"), &error))?;
    Ok(entries.into_iter().map(Mount::from).collect())
}

/// Returns what is mounted exactly at `dir`, the topmost.
pub fn at(dir: &Path) -> Result<Option<Mount>> {
    Ok(table()?.into_iter().rfind(|mount| mount.dir == dir))
}

/// Returns our mount below which `path` lies.
pub fn above(path: &Path) -> Result<Option<Mount>> {
    let mounts = table()?.into_iter().filter(|mount| path.starts_with(&mount.dir));
    Ok(mounts.max_by_key(|mount| mount.dir.components().count()).filter(Mount::is_ours))
}

/// Returns all our mounts.
pub fn ours() -> Result<Vec<Mount>> {
    Ok(table()?.into_iter().filter(Mount::is_ours).collect())
}

impl From<MountEntry> for Mount {
    fn from(entry: MountEntry) -> Self {
        let MountEntry { device, dir, kind, source, flags, options } = entry;
        let of_user = if kind == TYPE { UserOptions::of(&source, &dir).get() } else { Vec::new() };
        let of_kernel = flags.split(',').chain(options.split(',')).map(str::to_owned);
        Self {
            dir,
            source,
            device,
            read_only: flags.split(',').any(|option| option == "ro"),
            options: of_kernel.chain(of_user).collect(),
            kind,
        }
    }
}

/// Returns `path` absolute and without links, also when it is a mount that cannot be looked at: its
/// daemon died, or it belongs to another user.
pub fn canonical(path: &Path) -> Result<PathBuf> {
    let refused = match path.canonicalize() {
        Ok(path) => return Ok(path),
        Err(error) => Failure::system("find", path, &error),
    };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(refused) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match parent.canonicalize().map(|parent| parent.join(name)) {
        Ok(path) if at(&path)?.is_some() => Ok(path),
        _ => Err(refused),
    }
}

/// Returns whether the system says that the daemon behind a mount is gone, or went while it was
/// asked.
pub fn is_stale(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED]
        .iter()
        .any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_told_with_all_its_options() {
        let line = b"41 29 0:53 / /mnt rw,nosuid shared:2 - fuse.bedplate a.img rw,user_id=0";
        let mount = Mount::from(MountEntry::parse(line).remove(0));
        assert!(mount.is_ours() && !mount.read_only);
        assert_eq!(mount.options, ["rw", "nosuid", "rw", "user_id=0"]);
        let line = b"41 29 8:1 / /mnt ro - ext4 /dev/sda1 rw";
        let mount = Mount::from(MountEntry::parse(line).remove(0));
        assert!(!mount.is_ours() && mount.read_only);
    }
}
