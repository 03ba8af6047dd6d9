//! `bedplate integrity [--recursive] FILE|DIR [on|off]`

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use bedplate::FileSystem;
use clap::Args;
use serde::Serialize;

use super::{Mark, Wanted};
use crate::failure::Result;
use crate::mount::live;
use crate::render::output::Output;
use crate::render::text::Name;
use crate::session::Devices;

/// Show or set whether what is written to a file, or to what is created in a directory, gets
/// checksums
///
/// Every block that is written then has a checksum, and every read of it is compared: what is not
/// what was written is read from another copy, where the volume has one, or fails. What was written
/// before has none until it is written again. Writes go to new blocks, as those of untorn files do.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file or directory on a mount, or VOLUME:/PATH inside a volume that is not mounted
    file: PathBuf,
    /// on, or off for what is written from then on
    integrity: Option<Choice>,
    /// Set it on what is in the directory too, all the way down
    #[arg(short = 'R', long, requires = "integrity")]
    recursive: bool,
    #[command(flatten)]
    devices: Devices,
}

/// That there are checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct On;

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("on")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Choice(Option<On>);

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "on" => Ok(Self(Some(On))),
            "off" => Ok(Self(None)),
            _ => Err(format!("'{text}' is neither on nor off")),
        }
    }
}

#[derive(Serialize)]
struct Summed {
    path: Name,
    integrity: bool,
    /// How many files and directories below it were set too.
    below: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let mark = Mark {
        attribute: live::INTEGRITY,
        takes: "'on', for a file or directory of a volume of format version 5, which 'bedplate \
                upgrade' makes of an older one",
        set: |fs: &FileSystem, ino, on: Option<On>| fs.set_integrity(ino, on.is_some()),
        get: |fs: &FileSystem, ino| Ok(fs.integrity(ino)?.then_some(On)),
        read: |text: &str| (text == "on").then_some(On),
    };
    let (on, below) = mark.apply(
        &arguments.file,
        arguments.integrity.map(|Choice(on)| Wanted(on)),
        arguments.recursive,
        &arguments.devices,
        output,
    )?;
    output.show(&Summed { path: arguments.file.clone().into(), integrity: on.is_some(), below })
}

impl fmt::Display for Summed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.integrity { "gets checksums" } else { "gets no checksums" };
        write!(f, "{}: what is written {what}", self.path)?;
        if self.below > 0 {
            write!(f, "; so it is for {} files and directories in it", self.below)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_and_others_refused() {
        assert_eq!("on".parse(), Ok(Choice(Some(On))));
        assert_eq!("off".parse(), Ok(Choice(None)));
        assert!("yes".parse::<Choice>().unwrap_err().contains("neither on nor off"));
    }
}
