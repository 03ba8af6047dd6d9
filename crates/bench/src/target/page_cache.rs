//! A limit on the kernel's page cache, so that it has as much memory as the cache it is compared
//! with: a memory control group of our own.
//!
//! A control group counts what its processes bring into memory from the moment they are in it:
//! pages of files, and pages of their own. So the files are made cold before a limit is set, and
//! the limit leaves [`OWN_BYTES`] for what the threads of a measurement need themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::{Error, Result};

/// What the threads of a measurement need for stacks, buffers and histograms, and the kernel for
/// them.
const OWN_BYTES: u64 = 16 << 20;

/// This process in a control group of its own; dropped, it is back in its old one.
#[derive(Debug)]
pub(crate) struct PageCacheLimit {
    group: PathBuf,
    home: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl PageCacheLimit {
    /// Limits what is brought into memory from now on to `bytes` of files.
    pub(crate) fn set(bytes: u64) -> Result<Self> {
        let tables =
            (read(Path::new("/proc/self/cgroup"))?, read(Path::new("/proc/self/mountinfo"))?);
        let place = place(&tables.0, &tables.1);
        let place = place.ok_or_else(|| Error::target(
            "the kernel's page cache cannot be limited here: no memory control group is mounted"))?;
        let group = place.parent.join(format!(
            "bedplate-bench-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Relaxed)
        ));
        fs::create_dir(&group).map_err(|e| {
            Error::io(
                group.display(),
                "cannot limit the kernel's page cache: no control group can be made",
                e,
            )
        })?;
        let limit = Self { group, home: place.home };
        write(&limit.group.join(place.limit), &(bytes + OWN_BYTES).to_string())?;
        write(&limit.group.join(PROCESSES), &std::process::id().to_string())?;
        Ok(limit)
    }

    /// Says why no limit can be set; `None` where one can. Tried once.
    pub(crate) fn why_not() -> Option<String> {
        static TRIED: OnceLock<Option<String>> = OnceLock::new();
        TRIED.get_or_init(|| Self::set(1 << 40).err().map(|e| e.to_string())).clone()
    }
}

impl Drop for PageCacheLimit {
    fn drop(&mut self) {
        // What stays behind is an empty group with our name; it is not reported.
        let _ = write(&self.home.join(PROCESSES), &std::process::id().to_string());
        let _ = fs::remove_dir(&self.group);
    }
}

const PROCESSES: &str = "cgroup.procs";

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| Error::io(path.display(), "cannot read", e))
}

fn write(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).map_err(|e| {
        Error::io(
            path.display(),
            "cannot limit the kernel's page cache: a control group refuses",
            e,
        )
    })
}

/// Where a group of our own can be, where we are now, and what its limit is called.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    parent: PathBuf,
    home: PathBuf,
    limit: &'static str,
}

/// Finds it in `/proc/self/cgroup` and the table of mounts. Groups of version 2 that have processes
/// have no groups below, so ours is made beside them.
fn place(groups: &str, mounts: &str) -> Option<Place> {
    let path = |wanted: &str| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let is_wanted = fields.next()?.split(',').any(|controller| controller == wanted);
            fields.next().filter(|_| is_wanted).map(|path| path.trim_start_matches('/').to_owned())
        })
    };
    let mounted = |wanted: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let (kind, options) = (after.split(' ').next()?, after.split(' ').next_back()?);
            let found = kind == wanted
                && (option.is_empty() || options.split(',').any(|other| other == option));
            before.split(' ').nth(4).filter(|_| found).map(PathBuf::from)
        })
    };
    if let (Some(path), Some(at)) = (path("memory"), mounted("cgroup", "memory")) {
        let home = at.join(path);
        return Some(Place { parent: home.clone(), home, limit: "memory.limit_in_bytes" });
    }
    let home = mounted("cgroup2", "")?.join(path("")?);
    Some(Place { parent: home.parent()?.to_owned(), home, limit: "memory.max" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_found() {
        let one = "33 32 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n34 32 \
                   0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = place("4:memory:/user/1\n1:cpu,cpuacct:/\n0::/\n", one).unwrap();
        assert_eq!(found.parent, Path::new("/sys/fs/cgroup/memory/user/1"));
        assert_eq!((found.home, found.limit), (found.parent, "memory.limit_in_bytes"));
        let two = "34 32 0:29 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = place("0::/user.slice/session-1.scope\n", two).unwrap();
        assert_eq!(found.parent, Path::new("/sys/fs/cgroup/user.slice"));
        assert_eq!(
            (found.home, found.limit),
            (PathBuf::from("/sys/fs/cgroup/user.slice/session-1.scope"), "memory.max")
        );
        assert_eq!(place("0::/\n", "1 1 0:1 / / rw - ext4 /dev/vda rw\n"), None);
    }
}
