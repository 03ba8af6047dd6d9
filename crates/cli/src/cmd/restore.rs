//! `bedplate restore`

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use bedplate::format_size;
use bedplate_backup::{Access, Repository, Restored, Target};
use clap::Args;

use crate::failure::{Failure, Result};
use crate::render::output::{Output, Shown};
use crate::render::{progress, text};
use crate::{mount, passphrase};

/// Put a backup into an empty directory, of a mount or of anything else; every piece of data is
/// compared with its hash
#[derive(Debug, Args)]
pub struct Arguments {
    /// The directory or bucket of backups
    repository: OsString,
    /// The backup
    name: String,
    /// Where to: an empty directory, or none yet
    dir: PathBuf,
    /// Restore this path of the volume alone: of a directory what is in it, of a file the file
    #[arg(long, value_name = "PATH")]
    path: Option<PathBuf>,
    /// Read the passphrase of an encrypted repository from this file; without it, the variable
    /// BEDPLATE_BACKUP_PASSPHRASE has it, or it is asked for
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let unlock = passphrase::unlock(arguments.key_file.as_deref())?;
    let repository = Repository::open(&arguments.repository, &unlock, Access::Read)?;
    let mut manifest = repository.backup(&arguments.name)?;
    if let Some(path) = &arguments.path {
        manifest = manifest.only(path)?;
    }
    let target =
        Target::prepare(&arguments.dir, |dir| Ok::<_, Failure>(mount::above(dir)?.is_some()))?;
    let mut progress = progress::Bytes::new(output, format!("restoring {}", arguments.name), 0);
    let restored = bedplate_backup::restore(&repository, &manifest, target, |done, total| {
        progress.reach(done, total);
    })?;
    drop(progress);
    output.show(&Shown(restored))
}

impl fmt::Display for Shown<Restored> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Restored { path, entries, bytes, left_out, warnings } = &self.0;
        writeln!(f, "{}: {entries} names, {} of data", text::name(path), format_size(*bytes))?;
        let one_line = |what: &String| text::one_line(what);
        left_out.iter().map(one_line).try_for_each(|what| writeln!(f, "not restored: {what}"))?;
        warnings.iter().map(one_line).try_for_each(|what| writeln!(f, "NOT SAFE: {what}"))
    }
}
