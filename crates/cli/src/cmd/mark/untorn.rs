//! `bedplate untorn [--recursive] FILE|DIR [SIZE|none]`

use std::fmt;
use std::path::PathBuf;

use bedplate::{FileSystem, IoMode, Untorn, format_size};
use clap::Args;
use serde::Serialize;

use super::{Mark, Wanted};
use crate::address::PathArg;
use crate::failure::Result;
use crate::mount::live;
use crate::render::output::Output;
use crate::render::text::{self, Name};
use crate::session::Devices;

/// Show or set how much of a file is written untorn, or of what is created in a directory
///
/// A page of that size is after a power cut what it was before a write or what the write made it.
/// That is what PostgreSQL's full_page_writes (8k) and InnoDB's doublewrite buffer (16k) make up
/// for elsewhere. It takes a mode that goes past the caches: concurrent or direct.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file or directory on a mount, or VOLUME:/PATH inside a volume that is not mounted
    file: PathBuf,
    /// 4k, 8k, 16k, 32k or 64k; 'none' ends it
    size: Option<Wanted<u32>>,
    /// Set it on what is in the directory too, all the way down
    #[arg(short = 'R', long, requires = "size")]
    recursive: bool,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Serialize)]
struct UntornUnit {
    path: Name,
    untorn_bytes: Option<u32>,
    /// `device`: by its own unit; `redirect`: to new blocks, with one record that remaps them.
    by: Option<&'static str>,
    /// How many files and directories below it were set too.
    below: u64,
    /// It is served as cached, where the unit has no effect.
    torn_all_the_same: bool,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let mark = Mark {
        attribute: live::UNTORN,
        takes: "a power of two from 4 KiB to 64 KiB, not less than a block",
        set: |fs: &FileSystem, ino, bytes| fs.set_untorn(ino, bytes),
        get: |fs: &FileSystem, ino| fs.untorn(ino),
        read,
    };
    let (untorn, below) = mark.apply(
        &arguments.file,
        arguments.size,
        arguments.recursive,
        &arguments.devices,
        output,
    )?;
    let by = untorn.map(|untorn| if untorn.by_device { "device" } else { "redirect" });
    let torn_all_the_same = match PathArg::parse(&arguments.file) {
        PathArg::Live(path) if untorn.is_some() && !path.is_dir() => {
            live::get(&path, live::EFFECTIVE_MODE)?
                .and_then(|mode| mode.parse().ok())
                .is_some_and(IoMode::writes_behind)
        }
        _ => false,
    };
    output.show(&UntornUnit {
        torn_all_the_same,
        path: arguments.file.clone().into(),
        untorn_bytes: untorn.map(|untorn| untorn.bytes),
        by,
        below,
    })
}

/// Reads what a mount answers: `8192 redirect`.
pub fn read(text: &str) -> Option<Untorn> {
    let (bytes, by) = text.split_once(' ')?;
    Some(Untorn { bytes: bytes.parse().ok()?, by_device: by == "device" })
}

impl fmt::Display for UntornUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.untorn_bytes, self.by) {
            (Some(bytes), Some(by)) => {
                write!(f, "{}: {} untorn, by {by}", self.path, format_size(bytes.into()))?;
            }
            _ => write!(f, "{}: what the device writes untorn by itself", self.path)?,
        }
        if self.torn_all_the_same {
            let path = text::quoted(&self.path.0);
            write!(
                f,
                "; but it is served as cached, where pages can tear all the same: bedplate mode \
                 {path} concurrent, which has a price on a mount"
            )?;
        }
        if self.below > 0 {
            write!(f, "; so are {} files and directories in it", self.below)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mount_answers_is_read() {
        assert_eq!(read("8192 redirect"), Some(Untorn { bytes: 8192, by_device: false }));
        assert_eq!(read("8192"), None);
    }
}
