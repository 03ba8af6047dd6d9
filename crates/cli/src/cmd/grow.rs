//! `bedplate grow VOLUME|DIR [SIZE]`

use std::fmt;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use bedplate::{format_size, parse_size};
use bedplate_serve::control::Request;
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::device::{self, Access, group, place};
use crate::failure::{Failure, Result};
use crate::mount::{Mount, live};
use crate::render::output::Output;
use crate::render::text;
use crate::session::{Devices, Volume};

/// Let a volume take over the size its device has grown to, mounted or not
#[derive(Debug, Args)]
pub struct Arguments {
    /// An image file or a block device, or where it is mounted
    path: PathBuf,
    /// First make the image file this large
    #[arg(value_parser = parse_size)]
    size: Option<u64>,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Serialize)]
struct Grown {
    volume: PathBuf,
    before_bytes: u64,
    size_bytes: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let mount = match device::of_volume(&arguments.path)? {
        Some(mount) => Some(mount),
        None if arguments.path.is_dir() || bedplate_serve::fuse::is_dead(&arguments.path) => {
            Some(live::require_mount(&arguments.path)?)
        }
        None => None,
    };
    let grown = match mount {
        Some(mount) => live_volume(&mount, arguments.size)?,
        None => unmounted(arguments, output)?,
    };
    output.show(&grown)
}

fn unmounted(arguments: &Arguments, output: &Output) -> Result<Grown> {
    Volume::new(&arguments.path, &arguments.devices).with(Access::ReadWrite, output, |fs| {
        let before_bytes = fs.info().size_bytes;
        extend(&arguments.path, arguments.size)?;
        Ok(Grown { volume: arguments.path.clone(), before_bytes, size_bytes: fs.grow()? })
    })
}

fn live_volume(mount: &Mount, size: Option<u64>) -> Result<Grown> {
    let before_bytes = live::info(mount)?.get("size_bytes").and_then(Value::as_u64).unwrap_or(0);
    extend(&group::volume_of(mount), size)?;
    Ok(Grown {
        volume: mount.source.clone(),
        before_bytes,
        size_bytes: live::ask(mount, &Request::Grow)?,
    })
}

/// Makes an image file larger. The new part is a hole until it is written.
fn extend(image: &Path, size: Option<u64>) -> Result<()> {
    let Some(size) = size else { return Ok(()) };
    let shown = image.display();
    if group::label_of(image).is_ok_and(|label| label.is_some()) {
        return Err(Failure::usage(format!(
            "{shown} is a member of a group, whose volume does not grow with one member"
        )));
    }
    if place::is_remote(image) {
        return Err(Failure::usage(format!(
            "{shown} is an export of another machine: make it larger there, mount the volume anew, \
             then run 'bedplate grow' without a size"
        )));
    }
    let file = OpenOptions::new()
        .write(true)
        .open(image)
        .map_err(|error| Failure::system("open", image, &error))?;
    let meta = file.metadata().map_err(|error| Failure::system("look at", image, &error))?;
    if !meta.is_file() {
        return Err(Failure::usage(format!(
            "{shown} is no image file: make the device larger with its own tools, then run \
             'bedplate grow' without a size"
        )));
    }
    if size < meta.len() {
        let (size, present) = (format_size(size), format_size(meta.len()));
        return Err(Failure::new(
            "invalid",
            format!("{shown} has {present}, more than {size}: see 'bedplate shrink'"),
        ));
    }
    file.set_len(size).map_err(|error| {
        Failure::system(&format!("make {} the size of", format_size(size)), image, &error)
    })
}

impl fmt::Display for Grown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (volume, before, after) = (
            text::name(&self.volume),
            format_size(self.before_bytes),
            format_size(self.size_bytes),
        );
        if self.before_bytes == self.size_bytes {
            return write!(f, "{volume}: {after}, its device did not grow");
        }
        write!(f, "{volume}: grown from {before} to {after}")
    }
}
