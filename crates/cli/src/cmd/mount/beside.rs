//! `bedplate mount VOLUME:/PATH DIR` while the volume is mounted: its daemon mounts the directory
//! beside it.

use std::fmt;
use std::path::{Path, PathBuf};

use bedplate_serve::control::Request;
use bedplate_serve::fuse::MountedPart;
use serde::Serialize;

use super::{Arguments, OPTIONS, fstab};
use crate::device::{self, group};
use crate::failure::{Failure, Result};
use crate::mount::{self, Mount, live};
use crate::render::output::Output;
use crate::render::text;

/// What was mounted.
#[derive(Debug, Serialize)]
struct Beside {
    volume: PathBuf,
    /// The directory of the volume.
    path: PathBuf,
    dir: PathBuf,
    /// The mode that opens through it are in; `None`: each in its own.
    mode: Option<String>,
    read_only: bool,
    /// Where the volume is mounted already.
    beside: PathBuf,
}

/// Returns where a volume is mounted that is named as such, or by the directory that it is mounted
/// on.
pub fn mounted(volume: &Path) -> Result<Option<Mount>> {
    let volume = group::resolve(volume)?;
    if volume.is_dir() {
        return Ok(mount::at(&mount::canonical(&volume)?)?.filter(Mount::is_ours));
    }
    device::of_volume(&volume)
}

pub fn run(arguments: &Arguments, mount: &Mount, path: &Path, output: &Output) -> Result<()> {
    let options = options(arguments, mount)?;
    if arguments.fake {
        return Ok(());
    }
    let dir = super::mount_point(&arguments.dir)?;
    let request = Request::MountPart { path: path.to_owned(), dir, options };
    let part: MountedPart = match live::ask(mount, &request) {
        Err(failure) if failure.kind == "option" => return Err(Failure::usage(failure.message)),
        Err(failure) if failure.kind == "permission" => {
            return Err(Failure::new("not_permitted", failure.message));
        }
        told => told?,
    };
    let MountedPart { dir, path, mode, read_only } = part;
    let (volume, beside) = (mount.source.clone(), mount.dir.clone());
    output.show(&Beside { volume, path, dir, mode, read_only, beside })
}

/// Returns the options for the daemon; refuses those that are of the process that serves.
fn options(arguments: &Arguments, mount: &Mount) -> Result<String> {
    let given = arguments.options.join(",");
    let kept: Vec<&str> = given.split(',').filter(|option| !fstab::is_word(option)).collect();
    let own = |option: &&&str| {
        let name = option.split('=').next().unwrap_or(option);
        OPTIONS.iter().any(|own| own.name == name)
    };
    let of_process = kept
        .iter()
        .find(own)
        .map(|option| format!("mount option '{option}'"))
        .or_else(|| arguments.foreground.then(|| "--foreground".to_owned()))
        .or_else(|| arguments.on_event.as_ref().map(|_| "--on-event".to_owned()));
    match of_process {
        None => Ok(kept.join(",")),
        Some(option) => Err(Failure::usage(format!(
            "{option}: it is for the process that serves the volume, and one serves it on {} already",
            mount.dir.display()
        ))),
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.mode.as_ref().map_or(String::new(), |mode| format!(", mode {mode}"));
        let read_only = if self.read_only { ", read-only" } else { "" };
        write!(
            f,
            "{} of {} mounted on {}{mode}{read_only}, beside {}",
            text::name(&self.path),
            text::name(&self.volume),
            text::name(&self.dir),
            text::name(&self.beside)
        )
    }
}
