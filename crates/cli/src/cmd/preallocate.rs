//! `bedplate preallocate FILE SIZE`

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bedplate::{AllocateMode, FileSystem, OpenOptions, format_size, parse_size};
use clap::Args;
use rustix::fs::{FallocateFlags, fallocate};
use serde::Serialize;

use crate::address::PathArg;
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::mount::live;
use crate::render::output::Output;
use crate::render::text::{self, Name};
use crate::session::{Devices, Volume};

/// Give a file its blocks before they are written, contiguous where the volume allows it
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file on a mount, or VOLUME:/PATH inside a volume that is not mounted; made where it is
    /// missing
    file: PathBuf,
    /// How many bytes, from the offset on
    #[arg(value_parser = parse_size)]
    size: u64,
    /// Where in the file to begin
    #[arg(long, default_value = "0", value_parser = parse_size)]
    offset: u64,
    /// Leave the size of the file alone
    #[arg(long)]
    keep_size: bool,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Serialize)]
struct Allocated {
    path: Name,
    size_bytes: u64,
    allocated_bytes: u64,
    extents: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let allocated = match PathArg::parse(&arguments.file) {
        PathArg::Live(path) => of_live(&path, arguments)?,
        PathArg::Inside { volume, path } => {
            Volume::new(volume, &arguments.devices)
                .with(Access::ReadWrite, output, |fs| of_inside(fs, &path, arguments))?
        }
    };
    output.show(&allocated)
}

fn of_inside(fs: &FileSystem, path: &Path, arguments: &Arguments) -> Result<Allocated> {
    let file = fs.open(path, &OpenOptions::create())?;
    file.allocate(
        AllocateMode::Preallocate { keep_size: arguments.keep_size },
        arguments.offset,
        arguments.size,
    )?;
    file.sync_all()?;
    let attr = file.attr()?;
    Ok(Allocated {
        path: arguments.file.clone().into(),
        size_bytes: attr.size,
        allocated_bytes: attr.allocated_bytes,
        extents: file.extents()?.len() as u64,
    })
}

fn of_live(path: &Path, arguments: &Arguments) -> Result<Allocated> {
    let above =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    live::require_mount(if path.exists() { path } else { above })?;
    let explain = |error: std::io::Error| Failure::system("preallocate", path, &error);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(explain)?;
    let flags =
        if arguments.keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
    fallocate(&file, flags, arguments.offset, arguments.size)
        .map_err(|error| explain(error.into()))?;
    file.sync_all().map_err(explain)?;
    let meta = file.metadata().map_err(explain)?;
    let extents = live::extent_count(path)?;
    Ok(Allocated {
        path: arguments.file.clone().into(),
        size_bytes: meta.size(),
        allocated_bytes: meta.blocks() * 512,
        extents: extents as u64,
    })
}

impl fmt::Display for Allocated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (allocated, size, extents) = (
            format_size(self.allocated_bytes),
            format_size(self.size_bytes),
            text::count(self.extents, "extent"),
        );
        write!(f, "{}: {allocated} allocated in {extents}, size {size}", self.path)
    }
}
