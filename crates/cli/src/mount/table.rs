//! What is mounted where, from the system's own table.

use std::path::{Path, PathBuf};

use bedplate::IoMode;
use bedplate_block::{MountEntry, UserOptions, device_path};
use bedplate_serve::fuse::part_of;

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
    /// The directory of the volume that it shows.
    pub path: PathBuf,
    /// The mode that opens through it name, where it was mounted with one beside the volume.
    pub mode: Option<IoMode>,
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

    /// Orders places of one mount: that which shows most in the modes of the files comes first.
    fn rank(&self) -> (bool, usize) {
        (self.mode.is_some(), self.path.components().count())
    }

    /// Returns a path on the mount as the volume knows it: from its root. What does not lie on the
    /// mount is all of it.
    pub fn inside(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.dir).map_or_else(|_| self.path.clone(), |rest| self.path.join(rest))
    }

    /// Returns where a path from the volume's root lies; `None` where the mount does not show it.
    pub fn outside(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.path).ok().map(|rest| self.dir.join(rest))
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

/// Returns our mounts, each once: of one that has several places that which shows most.
pub fn ours() -> Result<Vec<Mount>> {
    let mut found: Vec<Mount> = Vec::new();
    for mount in table()?.into_iter().filter(Mount::is_ours) {
        match found.iter_mut().find(|other| other.device == mount.device) {
            Some(other) if mount.rank() < other.rank() => *other = mount,
            Some(_) => {}
            None => found.push(mount),
        }
    }
    Ok(found)
}

/// Returns all places of a mount, in the order in which they were made.
pub fn places(mount: &Mount) -> Result<Vec<Mount>> {
    let is_same = |other: &Mount| other.is_ours() && other.device == mount.device;
    Ok(table()?.into_iter().filter(is_same).collect())
}

impl From<MountEntry> for Mount {
    fn from(entry: MountEntry) -> Self {
        let MountEntry { device, root, dir, kind, source, flags, options } = entry;
        let (path, mode) = part_of(&root);
        let of_user = if kind == TYPE { UserOptions::of(&source, &dir).get() } else { Vec::new() };
        let of_kernel = flags.split(',').chain(options.split(',')).map(str::to_owned);
        Self {
            dir,
            source,
            path,
            mode,
            device,
            read_only: flags.split(',').any(|option| option == "ro"),
            options: of_kernel.chain(of_user).collect(),
            kind,
        }
    }
}

/// Returns `path` absolute and without links, also when it is a mount that cannot be looked at: its
/// daemon died, or it belongs to another user. The URI of an export is returned in its one spelling.
pub fn canonical(path: &Path) -> Result<PathBuf> {
    let refused = match device_path(path) {
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
        let line = b"42 29 0:53 /::direct/a /x rw - fuse.bedplate a.img rw,user_id=0";
        let part = Mount::from(MountEntry::parse(line).remove(0));
        assert_eq!(
            (part.mode, part.inside(Path::new("/x/b"))),
            (Some(IoMode::Direct), "/a/b".into())
        );
        assert_eq!(part.outside(Path::new("/a/b")), Some("/x/b".into()));
        assert!(part.outside(Path::new("/b")).is_none() && mount.rank() < part.rank());
        let line = b"41 29 8:1 / /mnt ro - ext4 /dev/sda1 rw";
        let mount = Mount::from(MountEntry::parse(line).remove(0));
        assert!(!mount.is_ours() && mount.read_only);
    }
}
