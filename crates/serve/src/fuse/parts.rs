//! Directories of a mounted volume, mounted once more beside it: on a directory of their own, and in
//! an I/O mode of their own.
//!
//! Such a mount is no session: it is a second place of the one that there is, made with `mount --bind`
//! of the directory itself or, where a mode is asked for, of the directory in the [tree](super::trees)
//! of this mode. So the kernel has one page cache for both, one set of locks, and one end: that of the
//! last of them.
//!
//! ```text
//!   path in the list of mounts        shows
//!   /data                             the directory /data
//!   /::concurrent/data                /data, in the tree of `concurrent`
//!   /data/::concurrent                the same, from a mount of /data alone
//! ```

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use bedplate_block::MountEntry;
use bedplate_fs::{FileKind, FileSystem, InodeNo, IoMode};
use parking_lot::Mutex;
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_bind, mount_remount, move_mount,
    open_tree, unmount,
};
use serde::{Deserialize, Serialize};

use super::mountpoint;
use super::names::Caller;
use super::part_options::PartOptions;
use super::remount::flags_of;
use super::settings::MountSettings;
use super::shared::Shared;
use super::trees::{Node, root_name};
use crate::{Error, ErrorKind, Result};

/// A directory that was mounted beside the volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MountedPart {
    /// Where, its real path.
    pub dir: PathBuf,
    /// The path from the root of the volume.
    pub path: PathBuf,
    /// The mode that opens through it name; `None`: they name none.
    pub mode: Option<String>,
    /// Whether it refuses writes.
    pub read_only: bool,
}

/// Takes apart what the list of mounts shows of a file system as mounted: the directory of the
/// volume, and the mode that opens through it name.
#[must_use]
pub fn part_of(root: &Path) -> (PathBuf, Option<IoMode>) {
    const REMOVED: &[u8] = b"//deleted";
    let bytes = root.as_os_str().as_bytes();
    let root = Path::new(OsStr::from_bytes(bytes.strip_suffix(REMOVED).unwrap_or(bytes)));
    let mut mode = None;
    let kept = root.components().filter(|component| {
        let tree = tree_named(component.as_os_str());
        mode = mode.or(tree);
        tree.is_none()
    });
    (kept.collect(), mode)
}

fn tree_named(name: &OsStr) -> Option<IoMode> {
    name.to_str()?.strip_prefix("::")?.parse().ok()
}

/// What is mounted beside the volume.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The directories, of the volume. The lock is a leaf.
    roots: Mutex<HashSet<InodeNo>>,
    /// The thread that asks for a tree, and the lock under which it does. A leaf too.
    asking: Mutex<Option<u32>>,
    pub(super) one_at_a_time: Mutex<()>,
}

impl Parts {
    /// Returns the mode of the tree whose root a name is in a directory, for the thread that mounts:
    /// no other is shown a tree by name.
    pub(super) fn asked(&self, caller: Caller, dir: Node, name: &OsStr) -> Option<IoMode> {
        let mode = tree_named(name)?;
        let asks = dir.tree.is_none() && *self.asking.lock() == Some(caller.thread);
        asks.then_some(mode)
    }
}

impl Shared {
    /// Returns whether `info` and `pid` are asked of an inode: of what is mounted.
    pub(super) fn is_shown_as_root(&self, ino: InodeNo) -> bool {
        ino == InodeNo::ROOT || self.parts.roots.lock().contains(&ino)
    }

    /// Returns where the mount can be reached: the directory that it was mounted on first, or else
    /// one on which a part of it is mounted.
    pub(super) fn reached_at(&self) -> Option<PathBuf> {
        mountpoint::reached_at(self.mountpoint.get()?, self.device.get().map(String::as_str))
    }

    /// Mounts a directory of the volume on another directory.
    pub(super) fn mount_part(&self, path: &Path, dir: &Path, options: &str) -> Result<MountedPart> {
        let options = PartOptions::parse(options, &self.source)?;
        self.require_parts(&options)?;
        let (root, inside) = directory_at(&self.fs, &self.source, path)?;
        let _turn = self.parts.one_at_a_time.lock();
        let settings = MountSettings { nonempty: options.nonempty, ..MountSettings::default() };
        let dir = mountpoint::prepare(dir, &settings)?;
        let entries =
            MountEntry::all().map_err(|e| Error::io("cannot read the list of mounts", e))?;
        let own = self.device.get();
        if MountEntry::above(&entries, &dir).is_some_and(|entry| Some(&entry.device) == own) {
            return Err(Error::new(
                ErrorKind::MountPoint,
                format!(
                    "the mount point {} lies on the volume itself, whose mount could not be \
                     unmounted then: use a directory outside of it",
                    dir.display()
                ),
            ));
        }
        let (from, flags) = self.way_to(&entries, &inside, options.mode)?;
        let words = flags.split(',').chain(options.flags.iter().map(String::as_str));
        self.bind(&from, &dir, flags_of(words), (&inside, options.mode))?;
        self.parts.roots.lock().insert(root);
        let read_only = flags_of(flags.split(',').chain(options.flags.iter().map(String::as_str)))
            .contains(MountFlags::RDONLY);
        let mode = options.mode.map(|mode| mode.name().to_owned());
        Ok(MountedPart { dir, path: inside, mode, read_only })
    }

    /// Has the mount show one directory of the volume, instead of all.
    pub(super) fn show_part(&self, path: &Path) -> Result<()> {
        self.require_parts(&PartOptions::default())?;
        let (root, inside) = directory_at(&self.fs, &self.source, path)?;
        let Some(dir) = self.mountpoint.get() else { return Ok(()) };
        if inside == Path::new("/") {
            return Ok(());
        }
        let from = dir.join(inside.strip_prefix("/").unwrap_or(&inside));
        let failed = |errno: rustix::io::Errno| {
            let what = format!("cannot mount {} alone on {}", inside.display(), dir.display());
            Error::io(what, errno.into())
        };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, &from, flags).map_err(failed)?;
        unmount(dir, UnmountFlags::DETACH).map_err(failed)?;
        move_mount(&tree, "", CWD, dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(failed)?;
        self.parts.roots.lock().insert(root);
        Ok(())
    }

    /// Refuses what cannot be mounted beside at all.
    fn require_parts(&self, options: &PartOptions) -> Result<()> {
        require_root()?;
        if self.settings.is_read_only() && options.flags.iter().any(|flag| flag == "rw") {
            return Err(Error::new(
                ErrorKind::Option,
                format!("mount option 'rw': {} is mounted with ro", self.source),
            ));
        }
        Ok(())
    }

    /// Returns a path by which the kernel reaches a directory of the volume in a tree, and the flags
    /// of the mount that it lies on.
    fn way_to(
        &self,
        entries: &[MountEntry],
        inside: &Path,
        mode: Option<IoMode>,
    ) -> Result<(PathBuf, String)> {
        let own = self.device.get();
        let is_on_top = |entry: &&MountEntry| {
            entries.iter().rfind(|other| other.dir == entry.dir) == Some(*entry)
        };
        let mounts = || entries.iter().filter(|entry| Some(&entry.device) == own).filter(is_on_top);
        let found = mounts().find_map(|entry| {
            let (path, tree) = part_of(&entry.root);
            let rest = inside.strip_prefix(&path).ok()?;
            let way = match mode {
                _ if tree == mode => entry.dir.join(rest),
                Some(mode) if tree.is_none() => entry.dir.join(root_name(mode)).join(rest),
                _ => return None,
            };
            Some((way, entry.flags.clone()))
        });
        if let Some((_, Some(mode))) = found.as_ref().map(|found| (found, mode)) {
            self.require_no_name(inside, mode)?;
        }
        found.ok_or_else(|| {
            let dirs: Vec<String> = mounts().map(|entry| entry.dir.display().to_string()).collect();
            Error::new(
                ErrorKind::Part,
                format!(
                    "{} of {} is not below what is mounted ({}): unmount that, and mount the whole \
                     volume first",
                    inside.display(),
                    self.source,
                    dirs.join(", ")
                ),
            )
        })
    }

    /// Refuses a mode whose tree an object of the volume hides, on the way to a directory.
    fn require_no_name(&self, inside: &Path, mode: IoMode) -> Result<()> {
        let name = root_name(mode);
        let mut dir = InodeNo::ROOT;
        let names = inside.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        for next in names.map(Some).chain([None]) {
            if self.fs.lookup(dir, name.as_bytes()).is_ok() {
                let name = name.display();
                return Err(Error::new(
                    ErrorKind::Part,
                    format!(
                        "{}: an object with the name {name} lies on the way, in {}: give it \
                         another name",
                        inside.display(),
                        self.source
                    ),
                ));
            }
            if let Some(next) = next {
                dir = self.fs.lookup(dir, next.as_bytes())?.ino;
            }
        }
        Ok(())
    }

    /// Binds a directory, and gives the new mount its flags.
    fn bind(
        &self,
        from: &Path,
        dir: &Path,
        flags: MountFlags,
        wanted: (&Path, Option<IoMode>),
    ) -> Result<()> {
        let failed = |errno: rustix::io::Errno| {
            Error::io(format!("cannot mount on {}", dir.display()), errno.into())
        };
        // Known from now on, so that it keeps no name from now on.
        if wanted.1.is_some() && self.trees.note_one() {
            self.expire_names().inspect_err(|_| self.trees.forgotten(1))?;
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        *self.parts.asking.lock() = Some(thread);
        let bound = mount_bind(from, dir);
        *self.parts.asking.lock() = None;
        if wanted.1.is_some() {
            self.trees.forgotten(1);
        }
        bound.map_err(failed)?;
        let settled = mount_remount(dir, MountFlags::BIND | flags, "").map_err(failed);
        let settled = settled.and_then(|()| {
            let entry = MountEntry::at(dir)
                .map_err(|e| Error::io("cannot read the list of mounts", e))?
                .filter(|entry| Some(&entry.device) == self.device.get());
            let (path, mode) = entry.map(|entry| part_of(&entry.root)).unwrap_or_default();
            if (path.as_path(), mode) == wanted {
                return Ok(());
            }
            let shown = wanted.0.display();
            let what = format!("{shown} was moved while it was mounted: mount it again");
            Err(Error::new(ErrorKind::Part, what))
        });
        if settled.is_err() {
            unmount(dir, UnmountFlags::DETACH).map_err(failed)?;
        }
        settled
    }
}

/// Refuses a directory of a volume that cannot be mounted, before anything is.
///
/// # Errors
/// `Part`: there is no such directory; `Permission`: this user may mount none.
pub fn check_part(fs: &FileSystem, volume: &str, path: &Path) -> Result<()> {
    require_root()?;
    directory_at(fs, volume, path).map(drop)
}

fn require_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Permission,
        "a directory of a volume is mounted by root alone, because the system lets no other user bind \
         one: mount the whole volume, or mount it as root",
    ))
}

/// Finds a directory of the volume by its path, which leads through directories alone.
fn directory_at(fs: &FileSystem, volume: &str, path: &Path) -> Result<(InodeNo, PathBuf)> {
    let shown = path.display();
    let refuse =
        |why: String| Err(Error::new(ErrorKind::Part, format!("{shown} of {volume}: {why}")));
    let (mut ino, mut inside) = (InodeNo::ROOT, PathBuf::from("/"));
    for component in path.components() {
        let name = match component {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => name,
            Component::ParentDir | Component::Prefix(_) => {
                return refuse("the path is written without '..'".into());
            }
        };
        inside.push(name);
        let so_far = inside.display();
        if tree_named(name).is_some() {
            return refuse(format!("{so_far} has the name of a mode, and is not mounted"));
        }
        let attr = match fs.lookup(ino, name.as_bytes()) {
            Ok(attr) => attr,
            Err(error) if error.kind == bedplate_fs::ErrorKind::NotFound => {
                return refuse(format!("{so_far} does not exist: make the directory first"));
            }
            Err(error) => return Err(error.into()),
        };
        match attr.kind {
            FileKind::Directory if attr.ino.is_possible() => ino = attr.ino,
            FileKind::Directory => {
                return refuse("a checkpoint is mounted by 'bedplate checkpoint mount'".into());
            }
            FileKind::Symlink => {
                return refuse(format!(
                    "{so_far} is a symbolic link, which may lead out of the volume: name the \
                     directory that it leads to"
                ));
            }
            _ => return refuse(format!("{so_far} is no directory: only these are mounted")),
        }
    }
    Ok((ino, inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_510_the_list_of_mounts_tells_directory_and_mode() {
        for (root, path, mode) in [
            ("/", "/", None),
            ("/data", "/data", None),
            ("/::concurrent", "/", Some(IoMode::Concurrent)),
            ("/::concurrent+cache/a/b", "/a/b", Some(IoMode::ConcurrentCache)),
            ("/a/::cached/b", "/a/b", Some(IoMode::Cached)),
            ("/::direct/a//deleted", "/a", Some(IoMode::Direct)),
            ("/a::direct", "/a::direct", None),
            ("/::fast", "/::fast", None),
        ] {
            assert_eq!(part_of(Path::new(root)), (PathBuf::from(path), mode), "S-510: {root}");
        }
    }
}
