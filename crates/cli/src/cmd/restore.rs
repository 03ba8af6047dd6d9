//! `bedplate restore`

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use bedplate::format_size;
use clap::Args;

use crate::backup::{self, Access, Repository, Restored};
use crate::failure::Result;
use crate::output::Output;
use crate::text;

/// Put a backup into an empty directory, of a mount or of anything else; every piece of data is compared with its hash
#[derive(Debug, Args)]
pub struct Arguments {
    /// The directory or bucket of backups
    repository: OsString,
    /// The backup
    name: String,
    /// Where to: an empty directory, or none yet
    dir: PathBuf,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let repository = Repository::open(&arguments.repository, Access::Read)?;
    let manifest = repository.backup(&arguments.name)?;
    output.show(&backup::restore(&repository, &manifest, &arguments.dir, output)?)
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} names, {} of data", text::name(&self.path), self.entries, format_size(self.bytes))?;
        self.left_out.iter().try_for_each(|what| writeln!(f, "not restored: {what}"))
    }
}
