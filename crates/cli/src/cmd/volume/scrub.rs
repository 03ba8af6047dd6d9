//! `bedplate volume scrub GROUP [--repair]`

use std::path::PathBuf;

use clap::Args;

use crate::control::{self, Reply, Request};
use crate::failure::{Exit, Failure, Result};
use crate::group;
use crate::output::Output;
use crate::progress;

/// Compare all copies, mounted or not, and name what differs by file and offset
///
/// Which copy is right is known where the other cannot be read, and where a database's own page checksum says so (PostgreSQL,
/// InnoDB, SQLite with its checksum VFS). What nobody knows is told and left as it is, and ends the command with exit code 4.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Any member, or group:NAME
    group: PathBuf,
    /// Make copies good that are known to be wrong
    #[arg(long)]
    repair: bool,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let located = group::named(&arguments.group)?;
    let reply = progress::during(output, "comparing copies", || control::request(&located, &Request::Scrub { repair: arguments.repair }))?;
    let Reply::Scrubbed(scrubbed) = reply else { return Err(Failure::new("io", "the answer is not that of a scrub")) };
    output.show(&*scrubbed)?;
    Ok(if scrubbed.left() == 0 { Exit::Done } else { Exit::Broken })
}
