//! The place a volume is mounted on: what it must be, what may be left over there, and its users.

use std::io;
use std::path::{Path, PathBuf};

use bedplate_block::MountEntry;
use rustix::process::geteuid;

use super::attach::{self, Detach};
use super::settings::MountSettings;
use crate::mountinfo;
use crate::{Error, ErrorKind, Result};

/// The file system type of our mounts.
pub(crate) const FS_TYPE: &str = "fuse.bedplate";

/// Checks a mount point and returns its real path. A dead mount of our own that lies on it is taken
/// away.
pub(crate) fn prepare(path: &Path, settings: &MountSettings) -> Result<PathBuf> {
    let real = real_path(path)?;
    let lies_there =
        MountEntry::at(&real).map_err(|e| Error::io("cannot read the list of mounts", e))?;
    if is_dead(&real) {
        clear_dead(&real, lies_there.as_ref())?;
    } else if lies_there.is_some_and(|entry| entry.kind == FS_TYPE) {
        let message = format!(
            "{} already has a Bedplate volume mounted on it: unmount that first, or use another \
             directory",
            real.display()
        );
        return Err(Error::new(ErrorKind::MountPoint, message));
    }
    check_directory(&real, settings)?;
    Ok(real)
}

/// Resolves a path without touching what may be a dead mount at its end.
fn real_path(path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(real) => Ok(real),
        Err(error) if is_not_connected(&error) => {
            let parent = match path.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            let parent = parent.canonicalize().map_err(|e| missing(path, e))?;
            Ok(path.file_name().map_or(parent.clone(), |name| parent.join(name)))
        }
        Err(error) => Err(missing(path, error)),
    }
}

fn missing(path: &Path, error: io::Error) -> Error {
    let message = match error.kind() {
        io::ErrorKind::NotFound => {
            format!("the mount point {} does not exist: make the directory first", path.display())
        }
        _ => format!("the mount point {} cannot be reached: {error}", path.display()),
    };
    Error { kind: ErrorKind::MountPoint, message, source: Some(std::sync::Arc::new(error)) }
}

fn check_directory(real: &Path, settings: &MountSettings) -> Result<()> {
    let refuse = |what: &str| {
        Err(Error::new(ErrorKind::MountPoint, format!("the mount point {} {what}", real.display())))
    };
    let metadata = real.metadata().map_err(|e| missing(real, e))?;
    if !metadata.is_dir() {
        return refuse("is not a directory");
    }
    let mut entries = real.read_dir().map_err(|e| missing(real, e))?;
    if !settings.nonempty && entries.next().is_some() {
        return refuse(
            "is not empty: what is in it would be hidden while the volume is mounted; use an empty \
             directory or the option nonempty",
        );
    }
    Ok(())
}

/// Requests that waited when the process died fail with an abort, or over io_uring as canceled,
/// later ones because there is no connection.
fn is_not_connected(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED))
}

/// Tells whether a mount lies at `path` whose serving process has died. The kernel answers for
/// attributes that it still knows, also when the process is gone; the space of a file system it has
/// to ask for each time.
#[must_use]
pub fn is_dead(path: &Path) -> bool {
    let attributes = path.metadata().is_err_and(|error| is_not_connected(&error));
    attributes || rustix::fs::statfs(path).is_err_and(|errno| is_not_connected(&errno.into()))
}

/// Takes a dead mount away where it is one of ours, and otherwise says how that is done.
fn clear_dead(path: &Path, entry: Option<&MountEntry>) -> Result<()> {
    let uid = geteuid().as_raw();
    let ours = entry.is_some_and(|entry| {
        entry.kind == FS_TYPE && (uid == 0 || mountinfo::owner(entry) == Some(uid))
    });
    if !ours {
        let message = format!(
            "{0} still has a mount whose serving process has died ('transport endpoint is not \
             connected'): clear it with 'fusermount3 -u {0}' as its owner or 'umount {0}' as root, \
             then mount again",
            path.display()
        );
        return Err(Error::new(ErrorKind::Stale, message));
    }
    tracing::warn!(
        "{} still had a mount whose serving process has died; it is taken away",
        path.display()
    );
    attach::detach(path, Detach::Lazily)
}

/// Returns a directory where a mount can be reached: the first one, or another that a part of it is
/// mounted on.
pub(super) fn reached_at(first: &Path, device: Option<&str>) -> Option<PathBuf> {
    let Some(device) = device else { return Some(first.to_owned()) };
    let entries = MountEntry::all().ok()?;
    let own = |entry: &&MountEntry| entry.device == device;
    let at_first = entries.iter().rfind(|entry| entry.dir == first).filter(own);
    at_first.or_else(|| entries.iter().rfind(own)).map(|entry| entry.dir.clone())
}

/// Names processes that keep a mount busy, as `name (pid)`; only those that this user may look at.
pub(super) fn users_of(mountpoint: &Path) -> Vec<String> {
    processes(|process| uses(process, mountpoint))
}

/// Names processes that still have a mount of the device `major:minor` in their mount namespace
/// (containers, `unshare -m`), as `name (pid)`.
#[must_use]
pub fn holders_of(device: &str) -> Vec<String> {
    processes(|process| mountinfo::has_device(process, device))
}

/// Names the processes whose directory below `/proc` is wanted.
fn processes(wanted: impl Fn(&Path) -> bool) -> Vec<String> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        if wanted(&process.path()) {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("{} ({pid})", name.trim_end()));
        }
    }
    found
}

/// Tells whether a process stands in the mount or has something of it open, from the names of its
/// links alone.
fn uses(process: &Path, mountpoint: &Path) -> bool {
    let leads_in =
        |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(mountpoint));
    if leads_in(process.join("cwd"))
        || leads_in(process.join("root"))
        || leads_in(process.join("exe"))
    {
        return true;
    }
    let Ok(files) = std::fs::read_dir(process.join("fd")) else { return false };
    files.flatten().any(|file| leads_in(file.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path, settings: &MountSettings) -> Error {
        let error = prepare(path, settings).unwrap_err();
        assert_eq!(error.kind, ErrorKind::MountPoint, "{error}");
        error
    }

    #[test]
    fn a_mount_point_is_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        let settings = MountSettings::default();
        assert_eq!(prepare(dir.path(), &settings).unwrap(), dir.path().canonicalize().unwrap());
        assert!(refused(&dir.path().join("none"), &settings).message.contains("does not exist"));
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(refused(&file, &settings).message.contains("not a directory"));
        assert!(refused(dir.path(), &settings).message.contains("not empty"));
        assert!(prepare(dir.path(), &MountSettings { nonempty: true, ..settings }).is_ok());
    }

    #[test]
    fn who_has_a_file_open_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let _open = std::fs::File::create(dir.path().join("file")).unwrap();
        let me = format!("({})", std::process::id());
        assert!(
            users_of(&dir.path().canonicalize().unwrap()).iter().any(|user| user.ends_with(&me))
        );
    }
}
