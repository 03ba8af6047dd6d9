//! Images with a file system of the kernel.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Result;
use crate::mounted::{Mounted, in_private};

/// A program that is being started holds a copy of every claim for a moment: tests with devices come
/// one after the other.
static ALONE: Mutex<()> = Mutex::new(());

/// Keeps other tests with devices waiting; `None` where this system cannot run one, which is told.
pub fn alone(kind: &str) -> Option<MutexGuard<'static, ()>> {
    let reason = if !rustix::process::geteuid().is_root() {
        "only root mounts file systems".to_owned()
    } else if Command::new(mkfs(kind)).arg("-V").output().is_err() {
        format!("{} is not installed", mkfs(kind))
    } else if !std::fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains(kind)) {
        format!("the kernel has no {kind}")
    } else if in_private(|| Ok(())).is_err() {
        "this system allows no mounts of one process".to_owned()
    } else {
        return Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    };
    println!("skipped: {reason}");
    None
}

fn mkfs(kind: &str) -> String {
    format!("mkfs.{kind}")
}

/// An image file with an old file system; it goes when it is dropped.
pub struct Image {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
    pub kind: &'static str,
}

impl Image {
    /// Makes one of so many MiB.
    pub fn new(kind: &'static str, mib: u64, options: &[&str]) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("old.img");
        std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
        // Where it is not told, small ones get shorter blocks.
        let usual: &[&str] = if kind == "xfs" { &["-q"] } else { &["-qF", "-b", "4096"] };
        let made = Command::new(mkfs(kind)).args(usual).args(options).arg(&path).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self { _dir: dir, path, kind }
    }

    /// Does work on the mounted old file system, by its directory.
    pub fn mounted<T: Send>(&self, read_only: bool, work: impl FnOnce(&Path) -> T + Send) -> T {
        let done: Result<T> = crate::device::when_free(&self.path, || Ok(())).and_then(|()| {
            in_private(|| {
                let mounted = Mounted::mount(&self.path, self.kind, read_only)?;
                let done = work(mounted.dir());
                mounted.unmount()?;
                Ok(done)
            })
        });
        self.wait_until_free();
        done.unwrap()
    }

    /// A loop device lets go of its image a moment after it was unmounted.
    fn wait_until_free(&self) {
        let opened = crate::device::when_free(&self.path, || crate::device::open(&self.path));
        drop(opened.unwrap());
    }

    /// Has the old file system's own tools look at it.
    pub fn check_old(&self) {
        check_old(self.kind, &self.path);
    }
}

/// Has an old file system's own tools look at an image.
pub fn check_old(kind: &str, path: &Path) {
    let mut command = if kind == "xfs" {
        let mut command = Command::new("xfs_repair");
        command.arg("-n");
        command
    } else {
        let mut command = Command::new("e2fsck");
        command.arg("-fn");
        command
    };
    let checked = command.arg(path).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{said}\n{}", String::from_utf8_lossy(&checked.stderr));
}
