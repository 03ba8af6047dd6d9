//! `bedplate untorn [--recursive] FILE|DIR [SIZE|none]`

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use bedplate::{FileKind, FileSystem, InodeNo, Untorn, format_size, parse_size};
use clap::Args;
use serde::Serialize;

use crate::address::Place;
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::live;
use crate::output::Output;
use crate::session::{Devices, Volume};

/// Show or set how much of a file is written untorn, or of what is created in a directory
///
/// A page of that size is after a power cut what it was before a write or what the write made it. That is what PostgreSQL's full_page_writes
/// (8k) and InnoDB's doublewrite buffer (16k) make up for elsewhere. It takes a mode that goes past the caches: concurrent or direct.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file or directory on a mount, or VOLUME:/PATH inside a volume that is not mounted
    file: String,
    /// 4k, 8k, 16k, 32k or 64k; 'none' ends it
    size: Option<Wanted>,
    /// Set it on what is in the directory too, all the way down
    #[arg(short = 'R', long, requires = "size")]
    recursive: bool,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Debug, Clone, Copy)]
struct Wanted(Option<u32>);

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let size = parse_size(text)?;
        u32::try_from(size).map(|size| Self(Some(size))).map_err(|_| format!("'{text}' is more than 64k"))
    }
}

#[derive(Serialize)]
struct Told {
    path: String,
    untorn_bytes: Option<u32>,
    /// `device`: by its own unit; `redirect`: to new blocks, with one record that remaps them.
    by: Option<&'static str>,
    /// How many files and directories below it were set too.
    below: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let below = arguments.size.filter(|_| arguments.recursive);
    let (untorn, below) = match Place::parse(&arguments.file) {
        Place::Live(path) => (of_live(&path, arguments.size)?, below.map(|wanted| below_live(&path, wanted)).transpose()?),
        Place::Inside { volume, path } => {
            let access = if arguments.size.is_some() { Access::ReadWrite } else { Access::ReadOnly };
            Volume::new(volume, &arguments.devices).with(access, output, |fs| {
                let ino = fs.resolve(&path)?.ino;
                Ok((of_inside(fs, ino, arguments.size)?, below.map(|wanted| below_inside(fs, ino, wanted)).transpose()?))
            })?
        }
    };
    let by = untorn.map(|untorn| if untorn.by_device { "device" } else { "redirect" });
    output.show(&Told { path: arguments.file.clone(), untorn_bytes: untorn.map(|untorn| untorn.bytes), by, below: below.unwrap_or(0) })
}

fn of_live(path: &Path, wanted: Option<Wanted>) -> Result<Option<Untorn>> {
    live::require_mount(path)?;
    if let Some(wanted) = wanted {
        set_live(path, wanted)?;
    }
    Ok(live::get(path, live::UNTORN)?.and_then(|text| read(&text)))
}

fn set_live(path: &Path, Wanted(bytes): Wanted) -> Result<()> {
    match bytes {
        Some(bytes) => live::set(path, live::UNTORN, &bytes.to_string()),
        None => live::remove(path, live::UNTORN),
    }
}

/// Sets what is below a directory; what is neither file nor directory has nothing to tear. Returns how many were set.
fn below_live(path: &Path, wanted: Wanted) -> Result<u64> {
    if !path.is_dir() {
        return Ok(0);
    }
    let unlisted = |error: std::io::Error| Failure::system("list", path, &error);
    let mut set = 0;
    for entry in std::fs::read_dir(path).map_err(unlisted)? {
        let entry = entry.map_err(unlisted)?;
        let (kind, path) = (entry.file_type().map_err(unlisted)?, entry.path());
        if kind.is_file() || kind.is_dir() {
            set_live(&path, wanted)?;
            set += 1;
        }
        if kind.is_dir() {
            set += below_live(&path, wanted)?;
        }
    }
    Ok(set)
}

/// Reads what a mount answers: `8192 redirect`.
pub fn read(text: &str) -> Option<Untorn> {
    let (bytes, by) = text.split_once(' ')?;
    Some(Untorn { bytes: bytes.parse().ok()?, by_device: by == "device" })
}

fn of_inside(fs: &FileSystem, ino: InodeNo, wanted: Option<Wanted>) -> Result<Option<Untorn>> {
    if let Some(Wanted(bytes)) = wanted {
        fs.set_untorn(ino, bytes)?;
    }
    Ok(fs.untorn(ino)?)
}

fn below_inside(fs: &FileSystem, ino: InodeNo, wanted: Wanted) -> Result<u64> {
    if fs.attr(ino)?.kind != FileKind::Directory {
        return Ok(0);
    }
    let mut set = 0;
    for entry in fs.read_dir(ino, None, usize::MAX)? {
        if matches!(entry.kind, FileKind::File | FileKind::Directory) {
            fs.set_untorn(entry.ino, wanted.0)?;
            set += 1 + below_inside(fs, entry.ino, wanted)?;
        }
    }
    Ok(set)
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.untorn_bytes, self.by) {
            (Some(bytes), Some(by)) => write!(f, "{}: {} untorn, by {by}", self.path, format_size(bytes.into()))?,
            _ => write!(f, "{}: what the device writes untorn by itself", self.path)?,
        }
        if self.below > 0 { write!(f, "; so are {} files and directories in it", self.below) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mount_answers_is_read() {
        assert_eq!(read("8192 redirect"), Some(Untorn { bytes: 8192, by_device: false }));
        assert_eq!(read("8192"), None);
        assert_eq!("none".parse::<Wanted>().unwrap().0, None);
        assert_eq!("16k".parse::<Wanted>().unwrap().0, Some(16_384));
    }
}
