//! `bedplate mode [--recursive] FILE|DIR [MODE]`, `bedplate mode try …`, `bedplate mode database …`

mod condition;
mod database;
pub mod trial;
mod r#try;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bedplate::{FileKind, FileSystem, IoMode, OpenOptions};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::mark::{self, Mark};
use crate::address::PathArg;
use crate::device::Access;
use crate::failure::Result;
use crate::mount::live;
use crate::render::output::Output;
use crate::render::text::Name;
use crate::session::{Devices, Volume};

/// Show or set the I/O mode of a file, also while it is in use, or of what is created in a
/// directory
///
/// 'mode try' measures before it keeps another mode; 'mode database' finds the files of a database
/// and sets them. A file that is itself called 'try' or 'database' is named './try'.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// A file or directory on a mount, or VOLUME:/PATH inside a volume that is not mounted
    #[arg(required = true)]
    file: Option<PathBuf>,
    /// cached, direct, concurrent or concurrent+cache; 'inherit' takes away the file's own
    mode: Option<Wanted>,
    /// Set it on what is in the directory too, all the way down
    #[arg(short = 'R', long, requires = "mode")]
    recursive: bool,
    #[command(flatten)]
    devices: Devices,
}

/// How a mode is set on what is below a directory.
const MARK: Mark<IoMode, IoMode> = Mark {
    attribute: live::MODE,
    takes: "cached, direct, concurrent or concurrent+cache",
    set: |fs: &FileSystem, ino, mode| fs.set_io_mode(ino, mode),
    get: |fs: &FileSystem, ino| Ok(fs.attr(ino)?.io_mode),
    read: |text| text.parse().ok(),
};

#[derive(Debug, Subcommand)]
enum Action {
    Try(r#try::Arguments),
    Database(database::Arguments),
}

#[derive(Debug, Clone, Copy)]
struct Wanted(Option<IoMode>);

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "inherit" {
            Ok(Self(None))
        } else {
            text.parse()
                .map(|mode| Self(Some(mode)))
                .map_err(|error| format!("{error}, or inherit"))
        }
    }
}

#[derive(Serialize)]
struct Mode {
    path: Name,
    mode: Option<String>,
    effective_mode: Option<String>,
    /// How many files and directories below it were set too.
    below: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    match &arguments.action {
        Some(Action::Try(trial)) => return r#try::run(trial, output),
        Some(Action::Database(database)) => return database::run(database, output),
        None => {}
    }
    let file = arguments.file.clone().unwrap_or_default();
    let wanted = arguments.mode;
    let below = wanted.filter(|_| arguments.recursive).map(|Wanted(mode)| mark::Wanted(mode));
    let ((mode, effective_mode), below) = match PathArg::parse(&file) {
        PathArg::Live(path) => {
            let modes = of_live(&path, wanted)?;
            (modes, below.map_or(Ok(0), |wanted| MARK.below_live(&path, wanted))?)
        }
        PathArg::Inside { volume, path } => {
            let access = if wanted.is_some() { Access::ReadWrite } else { Access::ReadOnly };
            Volume::new(volume, &arguments.devices).with(access, output, |fs| {
                let modes = of_inside(fs, &path, wanted)?;
                let ino = fs.resolve(&path)?.ino;
                Ok((modes, below.map_or(Ok(0), |wanted| MARK.below_inside(fs, ino, wanted))?))
            })?
        }
    };
    output.show(&Mode { path: file.into(), mode, effective_mode, below })
}

type Modes = (Option<String>, Option<String>);

fn of_live(path: &Path, wanted: Option<Wanted>) -> Result<Modes> {
    live::require_mount(path)?;
    wanted.map_or(Ok(()), |Wanted(mode)| set_live(path, mode))?;
    let effective = if path.is_file() { live::get(path, live::EFFECTIVE_MODE)? } else { None };
    Ok((live::get(path, live::MODE)?.filter(|mode| !mode.is_empty()), effective))
}

/// Sets the mode of a file or directory of a mount, or takes away its own.
fn set_live(path: &Path, mode: Option<IoMode>) -> Result<()> {
    match mode {
        Some(mode) => live::set(path, live::MODE, mode.name()),
        None => live::remove(path, live::MODE),
    }
}

fn of_inside(fs: &FileSystem, path: &Path, wanted: Option<Wanted>) -> Result<Modes> {
    let ino = fs.resolve(path)?.ino;
    if let Some(Wanted(mode)) = wanted {
        fs.set_io_mode(ino, mode)?;
    }
    let attr = fs.attr(ino)?;
    let effective = match attr.kind {
        FileKind::File => {
            Some(fs.open_inode(ino, &OpenOptions::read_only())?.effective_mode().to_string())
        }
        _ => None,
    };
    Ok((attr.io_mode.map(|mode| mode.to_string()), effective))
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.mode.as_deref().unwrap_or("not set"))?;
        self.effective_mode
            .as_ref()
            .map_or(Ok(()), |effective| write!(f, ", served as {effective}"))?;
        match self.below {
            0 => Ok(()),
            below => write!(f, "; so are {below} files and directories in it"),
        }
    }
}
