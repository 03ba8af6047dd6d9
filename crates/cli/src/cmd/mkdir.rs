//! `bedplate mkdir VOLUME PATH…`

use std::fmt;
use std::path::PathBuf;

use bedplate::{IoMode, SetAttr};
use clap::Args;
use serde::Serialize;

use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::text;
use crate::session::Volume;

/// Make directories, with those missing above them, in a volume that is not mounted
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    volume: Volume,
    /// The directories inside the volume
    #[arg(required = true)]
    path: Vec<PathBuf>,
    /// The I/O mode that files created in them inherit
    #[arg(long)]
    mode: Option<IoMode>,
}

#[derive(Serialize)]
struct Made {
    directories: Vec<PathBuf>,
    mode: Option<IoMode>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    arguments.volume.with(Access::ReadWrite, output, |fs| {
        for path in &arguments.path {
            if fs.resolve(path).is_ok() {
                return Err(Failure::new(
                    "exists",
                    format!(
                        "{} exists in {} already",
                        path.display(),
                        arguments.volume.volume.display()
                    ),
                ));
            }
            let made = fs.create_dir_all(path)?;
            let owner = SetAttr {
                uid: Some(rustix::process::getuid().as_raw()),
                gid: Some(rustix::process::getgid().as_raw()),
                ..SetAttr::default()
            };
            fs.set_attr(made.ino, &owner)?;
            if arguments.mode.is_some() {
                fs.set_io_mode(made.ino, arguments.mode)?;
            }
        }
        Ok(())
    })?;
    output.show(&Made { directories: arguments.path.clone(), mode: arguments.mode })
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.mode.map(|mode| format!(" (mode {mode})")).unwrap_or_default();
        self.directories.iter().try_for_each(|path| writeln!(f, "made {}{mode}", text::name(path)))
    }
}
