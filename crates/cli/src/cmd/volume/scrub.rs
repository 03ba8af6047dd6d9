//! `bedplate volume scrub GROUP [--repair] [--every TIME|off]`

use std::path::PathBuf;
use std::time::Duration;

use bedplate_serve::control::GroupRequest;
use clap::Args;

use super::change::tell;
use super::many;
use crate::daemon::control::{self, Reply};
use crate::device::group;
use crate::failure::{Exit, Failure, Result};
use crate::render::output::Output;
use crate::render::progress;

/// Compare all copies, mounted or not, and name what differs by file and offset
///
/// Which copy is right is known where the other cannot be read, and where a checksum says so: of
/// blocks of files and checkpoints ('bedplate integrity'), of superblocks, log and metadata, which
/// always have them, and of a database's own pages (PostgreSQL, InnoDB, SQLite with its checksum
/// VFS). What cannot be decided is told and left as it is, and ends the command with exit code 4.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any member, group:NAME, or where it is mounted
    group: PathBuf,
    /// Make copies good that are known to be wrong
    #[arg(long)]
    repair: bool,
    /// Compare at regular times instead, the first time at once, as long as the group is mounted:
    /// from a minute on, as in 12h or 7d, until 'off'. 'volume show' tells what came of it and when
    /// the next one begins
    #[arg(long, value_name = "TIME|off", value_parser = every)]
    every: Option<Every>,
}

/// How often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Every {
    Off,
    Each(Duration),
}

fn every(text: &str) -> std::result::Result<Every, String> {
    if text == "off" { Ok(Every::Off) } else { bedplate::parse_duration(text).map(Every::Each) }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    if let Some(found) = group::divided(&arguments.group)? {
        return match arguments.every {
            None => many::scrub(&found, arguments.repair, output),
            Some(_) => Err(found.name_a_volume()),
        };
    }
    let located = group::named(&arguments.group)?;
    if let Some(every) = arguments.every {
        let every_s = if let Every::Each(every) = every { Some(every.as_secs()) } else { None };
        tell(
            control::request(
                &located,
                &GroupRequest::ScrubEvery { every_s, repair: arguments.repair },
            )?,
            output,
        )?;
        return Ok(Exit::Done);
    }
    let reply = progress::during(output, "comparing copies", || {
        control::request(&located, &GroupRequest::Scrub { repair: arguments.repair })
    })?;
    let Reply::Scrubbed(scrubbed) = reply else {
        return Err(Failure::new("io", "the answer is not that of a scrub"));
    };
    output.show(&*scrubbed)?;
    Ok(if scrubbed.left() == 0 { Exit::Done } else { Exit::Broken })
}
