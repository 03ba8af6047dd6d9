//! What tests need of the machine, given back when the test ends, however it ends. Loop devices and
//! mounts need root.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn run(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device; `None` where this user or machine cannot have one.
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

    pub fn attach_with(options: &[&str], image: &Path) -> Option<Self> {
        // Others on this machine look for a free device at the same time, and `losetup` gives up at
        // the first that was taken meanwhile.
        let attach = || run("losetup", &[options, &["--find", "--show", image.to_str()?]].concat());
        let path = if is_root() { (0..10).find_map(|_| attach()) } else { None };
        if path.is_none() {
            println!("skipped: losetup may not make a loop device here");
        }
        Some(Self { path: path?.into() })
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
        let dir = tempfile::tempdir().unwrap();
        let mounted = is_root()
            && run("mount", &["-t", kind, "-o", options, source, dir.path().to_str()?]).is_some();
        if !mounted {
            println!("skipped: {kind} cannot be mounted here");
        }
        mounted.then_some(Self { dir })
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
