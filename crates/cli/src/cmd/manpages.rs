//! `bedplate manpages DIR`

use std::fmt;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use serde::Serialize;

use crate::cmd::Cli;
use crate::failure::{Failure, Result};
use crate::render::output::Output;

/// Write the man pages, one for each subcommand, into a directory
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where to, as in /usr/local/share/man/man1; made where it is missing
    dir: PathBuf,
}

#[derive(Serialize)]
struct Written {
    dir: PathBuf,
    pages: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let dir = &arguments.dir;
    std::fs::create_dir_all(dir)
        .map_err(|error| Failure::system("make the directory", dir, &error))?;
    clap_mangen::generate_to(Cli::command(), dir)
        .map_err(|error| Failure::system("write man pages into", dir, &error))?;
    let mut pages: Vec<PathBuf> = std::fs::read_dir(dir)
        .map_err(|error| Failure::system("read", dir, &error))?
        .flatten()
        .map(|entry| PathBuf::from(entry.file_name()))
        .filter(|name| {
            name.to_str().is_some_and(|name| name.starts_with("bedplate") && name.ends_with(".1"))
        })
        .collect();
    pages.sort();
    output.show(&Written { dir: dir.clone(), pages })
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} man pages in {}", self.pages.len(), self.dir.display())
    }
}
