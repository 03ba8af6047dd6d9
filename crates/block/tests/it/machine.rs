//! What tests need of the machine, given back when the test ends, however it ends. Loop devices and mounts need root.

use std::path::{Path, PathBuf};
use std::process::Command;

use bedplate_block::create_image;
use tempfile::TempDir;

/// A directory with an image in it.
pub struct Image {
    _dir: TempDir,
    pub path: PathBuf,
}

impl Image {
    pub fn new(size_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        create_image(&path, size_bytes, false).unwrap();
        Self { _dir: dir, path }
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device over an image; `None` where this user or machine cannot have one.
pub struct Loop {
    pub path: PathBuf,
}

impl Loop {
    pub fn attach(image: &Path) -> Option<Self> {
        Self::attach_with(&[], image)
    }

    pub fn attach_read_only(image: &Path) -> Option<Self> {
        Self::attach_with(&["--read-only"], image)
    }

    fn attach_with(options: &[&str], image: &Path) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let path = run("losetup", &[options, &["--find", "--show", image.to_str()?]].concat())?;
        Some(Self { path: path.into() })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.path.to_string_lossy()]);
    }
}

/// A mounted file system; `None` where this user or machine cannot have one.
pub struct Mount {
    pub dir: TempDir,
}

impl Mount {
    pub fn new(kind: &str, options: &str, source: &str) -> Option<Self> {
        if !is_root() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        run("mount", &["-t", kind, "-o", options, source, dir.path().to_str()?])?;
        Some(Self { dir })
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().to_owned()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &[&self.dir.path().to_string_lossy()]);
    }
}
