//! `bedplate extent-size [--recursive] FILE|DIR [SIZE|none]`

use std::fmt;
use std::path::PathBuf;

use bedplate::{FileSystem, format_size};
use clap::Args;
use serde::Serialize;

use super::{Mark, Wanted};
use crate::failure::Result;
use crate::mount::live;
use crate::render::output::Output;
use crate::render::text::Name;
use crate::session::Devices;

/// Show or set how much of a file is wanted in one run of the volume, or of what is created in a
/// directory
///
/// A hint for files that grow in turns with others, or are written over after checkpoints: behind
/// what such a file gets, room is kept for it, also while it is not open. It takes no space and
/// fails no write: where there is no such run, the file gets what there is. XFS calls it the same.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file or directory on a mount, or VOLUME:/PATH inside a volume that is not mounted
    file: PathBuf,
    /// A multiple of the block size up to 1G, as in 16m; 'none' ends it
    size: Option<Wanted<u64>>,
    /// Set it on what is in the directory too, all the way down
    #[arg(short = 'R', long, requires = "size")]
    recursive: bool,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Serialize)]
struct ExtentSize {
    path: Name,
    extent_bytes: Option<u64>,
    /// How many files and directories below it were set too.
    below: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let mark = Mark {
        attribute: live::EXTENT_SIZE,
        takes: "a multiple of the block size, at most 1 GiB",
        set: |fs: &FileSystem, ino, bytes| fs.set_extent_size(ino, bytes),
        get: |fs: &FileSystem, ino| fs.extent_size(ino),
        read: |text: &str| text.parse::<u64>().ok(),
    };
    let (extent_bytes, below) = mark.apply(
        &arguments.file,
        arguments.size,
        arguments.recursive,
        &arguments.devices,
        output,
    )?;
    output.show(&ExtentSize { path: arguments.file.clone().into(), extent_bytes, below })
}

impl fmt::Display for ExtentSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.extent_bytes {
            Some(bytes) => write!(f, "{}: extents of {}", self.path, format_size(bytes))?,
            None => write!(f, "{}: no size of extents: its volume's (bedplate tune)", self.path)?,
        }
        if self.below > 0 {
            write!(f, "; so are {} files and directories in it", self.below)
        } else {
            Ok(())
        }
    }
}
