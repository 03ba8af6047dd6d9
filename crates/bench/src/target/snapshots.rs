//! Snapshots of a directory on btrfs, which is a subvolume of its own then: by the program `btrfs`,
//! whose start is part of what they take.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Result};

/// `BTRFS_SUPER_MAGIC` of statfs(2).
const BTRFS: rustix::fs::FsWord = 0x9123_683e;

/// Where the snapshots of one directory lie; they go away with the value.
pub(super) struct Snapshots {
    directory: PathBuf,
}

impl Snapshots {
    /// Makes `path` a subvolume where it lies on btrfs and the program is there; `None` elsewhere.
    pub(super) fn below(path: &Path) -> Result<Option<Self>> {
        let Some(parent) = path.parent() else { return Ok(None) };
        // Files of btrfs have another device number than its mount, so the table of mounts does not
        // tell.
        let is_btrfs = rustix::fs::statfs(parent).is_ok_and(|stat| stat.f_type == BTRFS);
        if !is_btrfs
            || path.exists()
            || btrfs(["subvolume".as_ref(), "create".as_ref(), path.as_os_str()]).is_err()
        {
            return Ok(None);
        }
        let mut directory = OsString::from(path);
        directory.push("-images");
        let directory = PathBuf::from(directory);
        fs::create_dir(&directory).map_err(|e| {
            Error::io(directory.display(), "cannot make the directory for snapshots", e)
        })?;
        Ok(Some(Self { directory }))
    }

    /// Makes a snapshot, durable as a checkpoint is when it is made.
    pub(super) fn make(&self, image: &str, of: &Path) -> Result<()> {
        let to = self.directory.join(image);
        btrfs([
            "subvolume".as_ref(),
            "snapshot".as_ref(),
            "-r".as_ref(),
            of.as_os_str(),
            to.as_os_str(),
        ])?;
        let open = File::open(&self.directory)
            .map_err(|e| Error::io(self.directory.display(), "cannot open", e))?;
        rustix::fs::syncfs(&open).map_err(|e| Error::io(self.directory.display(), "cannot sync", e))
    }

    /// Removes a snapshot; returns whether it was there.
    pub(super) fn remove(&self, image: &str) -> Result<bool> {
        let path = self.directory.join(image);
        if !path.exists() {
            return Ok(false);
        }
        btrfs(["subvolume".as_ref(), "delete".as_ref(), "-c".as_ref(), path.as_os_str()])
            .map(|_| true)
    }

    /// Lists them.
    pub(super) fn count(&self) -> Result<usize> {
        let listed = btrfs([
            "subvolume".as_ref(),
            "list".as_ref(),
            "-r".as_ref(),
            self.directory.as_os_str(),
        ])?;
        let name = self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(listed.lines().filter(|line| line.contains(&name)).count())
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        // What does not go away is in plain sight, and a drop cannot report it.
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let _ = btrfs(["subvolume".as_ref(), "delete".as_ref(), entry.path().as_os_str()]);
        }
        let _ = fs::remove_dir(&self.directory);
    }
}

fn btrfs<'a>(arguments: impl IntoIterator<Item = &'a std::ffi::OsStr>) -> Result<String> {
    let output = Command::new("btrfs")
        .args(arguments)
        .output()
        .map_err(|e| Error::io("btrfs", "cannot run", e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(Error::target(format!("btrfs failed: {}", why.lines().next().unwrap_or("without a word"))))
}
