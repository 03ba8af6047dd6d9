//! `bedplate release-behind [--recursive] FILE|DIR [off|read|write|both|inherit]`

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use bedplate::{FileSystem, ReleaseBehind};
use clap::Args;
use serde::Serialize;

use super::{Mark, Wanted};
use crate::failure::Result;
use crate::mount::live;
use crate::render::output::Output;
use crate::render::text::Name;
use crate::session::Devices;

/// Show or set which pages of a file leave the caches behind a sequential read or write, or of what
/// is created in a directory
///
/// For files that are read or written once and are larger than memory, as backups and loads are:
/// their pages leave the library's cache, and on a mount the kernel's, as soon as they are used or
/// written, and other files keep theirs. Pages that are used again and again stay. AIX calls it
/// rbr, rbw and rbrw.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A file or directory on a mount, or VOLUME:/PATH inside a volume that is not mounted
    file: PathBuf,
    /// off, read, write or both; 'inherit': as the volume says (bedplate tune release-behind=)
    release: Option<Choice>,
    /// Set it on what is in the directory too, all the way down
    #[arg(short = 'R', long, requires = "release")]
    recursive: bool,
    #[command(flatten)]
    devices: Devices,
}

/// What is to be set, or `inherit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Choice(Option<ReleaseBehind>);

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "inherit" {
            return Ok(Self(None));
        }
        text.parse()
            .map(|release| Self(Some(release)))
            .map_err(|_| format!("'{text}' is none of off, read, write, both and inherit"))
    }
}

#[derive(Serialize)]
struct Released {
    path: Name,
    release_behind: Option<ReleaseBehind>,
    /// How many files and directories below it were set too.
    below: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let mark = Mark {
        attribute: live::RELEASE_BEHIND,
        takes: "off, read, write or both",
        set: |fs: &FileSystem, ino, release| fs.set_release_behind(ino, release),
        get: |fs: &FileSystem, ino| fs.release_behind(ino),
        read: |text: &str| text.parse::<ReleaseBehind>().ok(),
    };
    let (release_behind, below) = mark.apply(
        &arguments.file,
        arguments.release.map(|Choice(release)| Wanted(release)),
        arguments.recursive,
        &arguments.devices,
        output,
    )?;
    output.show(&Released { path: arguments.file.clone().into(), release_behind, below })
}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.release_behind {
            None => "not set: its volume's (bedplate tune)",
            Some(ReleaseBehind::Off) => "no pages leave behind a sequential read or write",
            Some(ReleaseBehind::Read) => "pages leave behind a sequential read",
            Some(ReleaseBehind::Write) => "pages leave behind a sequential write",
            Some(ReleaseBehind::Both) => "pages leave behind a sequential read or write",
        };
        write!(f, "{}: {what}", self.path)?;
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
        assert_eq!("inherit".parse(), Ok(Choice(None)));
        assert_eq!("both".parse(), Ok(Choice(Some(ReleaseBehind::Both))));
        assert!("rbr".parse::<Choice>().unwrap_err().contains("'rbr' is none of off, read"));
    }
}
