//! Requests to a volume, mounted or not: to the daemon that serves it, or carried out here.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bedplate::FileSystem;
use bedplate_serve::control::{self, Answer, Request};
use clap::Args;
use serde::de::DeserializeOwned;

use crate::device::{self, Access};
use crate::failure::{Failure, Result};
use crate::mount::{self, Mount, live};
use crate::render::output::Output;
use crate::session::{Devices, Volume};

/// Whom to ask.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Where the volume is mounted, or the volume itself
    volume: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

/// How a volume is reached.
pub enum Reach {
    /// Through the daemon that serves it.
    Mounted(Mount),
    /// By opening it.
    Alone(Volume),
}

impl Target {
    /// Returns what the user named.
    pub fn named(&self) -> &Path {
        &self.volume
    }

    /// Finds out whether it is mounted.
    pub fn reach(&self) -> Result<Reach> {
        let mount = match device::of_volume(&self.volume)? {
            Some(mount) => Some(mount),
            None if self.volume.is_dir() || bedplate_serve::fuse::is_dead(&self.volume) => {
                Some(live::require_mount(&self.volume)?)
            }
            None => None,
        };
        Ok(mount
            .map_or_else(|| Reach::Alone(Volume::new(&self.volume, &self.devices)), Reach::Mounted))
    }
}

impl Reach {
    /// Returns whether a daemon serves it.
    pub fn is_mounted(&self) -> bool {
        matches!(self, Self::Mounted(_))
    }

    /// Returns a path from the volume's root.
    pub fn inside(&self, path: &Path) -> PathBuf {
        let Self::Mounted(mount) = self else { return path.to_owned() };
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let real = path.canonicalize().unwrap_or(whole);
        if real.starts_with(&mount.dir) { mount.inside(&real) } else { path.to_owned() }
    }

    /// As [`inside`](Self::inside), of a path that does not exist yet.
    pub fn inside_new(&self, path: &Path) -> PathBuf {
        match (path.parent().filter(|parent| !parent.as_os_str().is_empty()), path.file_name()) {
            (Some(parent), Some(name)) => self.inside(parent).join(name),
            _ => self.inside(path),
        }
    }

    /// Asks the daemon that serves the volume, or the volume itself.
    pub fn ask<T: DeserializeOwned>(
        &self,
        request: &Request,
        access: Access,
        output: &Output,
    ) -> Result<T> {
        match self {
            Self::Mounted(mount) => ask_mount(mount, request),
            Self::Alone(volume) => volume.with(access, output, |fs| ask_here(fs, request)),
        }
    }

    /// Adds which processes have files open, of all the mount or below a path from the volume's
    /// root.
    pub fn with_holders(&self, mut failure: Failure, inside: Option<&Path>) -> Failure {
        if let Self::Mounted(mount) = self
            && failure.kind == "busy"
        {
            let place = inside.and_then(|path| mount.outside(path));
            let holders = holders(place.as_ref().unwrap_or(&mount.dir));
            if !holders.is_empty() {
                failure.message = format!("{} (open in {})", failure.message, holders.join(", "));
            }
        }
        failure
    }

    /// Says how paths are taken, where one was not found.
    pub fn with_places(&self, mut failure: Failure) -> Failure {
        if let Self::Mounted(mount) = self
            && failure.kind == "not_found"
            && failure.message.contains("does not exist")
        {
            let dir = mount.dir.display();
            failure.message = format!(
                "{}; paths are those below {dir}, or from the root of the volume",
                failure.message
            );
        }
        failure
    }
}

/// Asks the daemon of a mount, after the kernel handed over what it holds of cached writes where
/// that counts.
pub fn ask_mount<T: DeserializeOwned>(mount: &Mount, request: &Request) -> Result<T> {
    let of_the_present = matches!(
        request,
        Request::Clone { .. } | Request::Diff { to: None, .. } | Request::Changes { to: None, .. }
    );
    if of_the_present
        || matches!(
            request,
            Request::Create { .. } | Request::Rollback { .. } | Request::RunSchedules
        )
    {
        let failed = |doing: &str, e: std::io::Error| {
            if mount::is_stale(&e) {
                live::stale(&mount.dir)
            } else {
                Failure::system(doing, &mount.dir, &e)
            }
        };
        let dir = std::fs::File::open(&mount.dir).map_err(|e| failed("open", e))?;
        bedplate_block::sync_file_system(&dir).map_err(|e| failed("sync", e))?;
    }
    live::ask(mount, request)
}

/// Carries a request out on a volume that this process has open.
pub fn ask_here<T: DeserializeOwned>(fs: &FileSystem, request: &Request) -> Result<T> {
    live::understood(Answer::of(control::answer(fs, request).map(|(value, _)| value)))
}

/// Returns the processes that have files below a directory, or the file itself, open or mapped, as
/// far as this user may see.
fn holders(dir: &Path) -> Vec<String> {
    let is_open = |process: &Path| {
        let Ok(files) = std::fs::read_dir(process.join("fd")) else { return false };
        let is_ours = |target: PathBuf| target.starts_with(dir) && !target.is_dir();
        files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(is_ours))
    };
    let is_mapped = |process: &Path| {
        let maps = std::fs::read(process.join("maps")).unwrap_or_default();
        let path_of = |line: &[u8]| {
            line.iter()
                .position(|byte| *byte == b'/')
                .map(|at| PathBuf::from(OsStr::from_bytes(&line[at..])))
        };
        maps.split(|byte| *byte == b'\n').filter_map(path_of).any(|path| path.starts_with(dir))
    };
    let mut found = Vec::new();
    let Ok(processes) = std::fs::read_dir("/proc") else { return found };
    for process in processes.flatten().filter(|entry| {
        entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())
    }) {
        if is_open(&process.path()) || is_mapped(&process.path()) {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            if name.trim() != "bedplate" {
                found.push(format!("{} ({})", name.trim(), process.file_name().to_string_lossy()));
            }
        }
    }
    found
}
