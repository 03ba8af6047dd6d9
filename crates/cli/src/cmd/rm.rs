//! `bedplate rm VOLUME PATH…`

use std::fmt;
use std::path::{Path, PathBuf};

use bedplate::{ErrorKind, FileKind, FileSystem, InodeNo};
use clap::Args;
use serde::Serialize;

use super::ls;
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::text;
use crate::session::Volume;

/// Remove files and directories from a volume that is not mounted
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    volume: Volume,
    /// The files and directories inside the volume
    #[arg(required = true)]
    path: Vec<PathBuf>,
    /// Remove directories with everything in them
    #[arg(short, long)]
    recursive: bool,
}

#[derive(Default, Serialize)]
struct Removed {
    files: u64,
    directories: u64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let removed = arguments.volume.with(Access::ReadWrite, output, |fs| {
        let mut removed = Removed::default();
        for path in &arguments.path {
            remove(fs, path, arguments.recursive, &mut removed)?;
        }
        Ok(removed)
    })?;
    output.show(&removed)
}

fn remove(fs: &FileSystem, path: &Path, recursive: bool, removed: &mut Removed) -> Result<()> {
    let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
        return Err(Failure::usage(format!(
            "{} names no file: the root directory stays",
            path.display()
        )));
    };
    let dir = fs.resolve(Path::new("/").join(parent))?;
    let name = std::os::unix::ffi::OsStrExt::as_bytes(name);
    let attr = fs.lookup(dir.ino, name).map_err(|error| match error.kind {
        ErrorKind::NotFound => {
            Failure::new("not_found", format!("{} does not exist", path.display()))
        }
        _ => error.into(),
    })?;
    if attr.kind != FileKind::Directory {
        fs.unlink(dir.ino, name)?;
        removed.files += 1;
        return Ok(());
    }
    if recursive {
        empty(fs, attr.ino, 0, removed)?;
    } else if !fs.read_dir(attr.ino, None, 1)?.is_empty() {
        let path = path.display();
        return Err(Failure::new(
            "not_empty",
            format!(
                "{path} is a directory that is not empty: add --recursive to remove it with \
                 everything in it"
            ),
        ));
    }
    fs.rmdir(dir.ino, name)?;
    removed.directories += 1;
    Ok(())
}

fn empty(fs: &FileSystem, dir: InodeNo, depth: usize, removed: &mut Removed) -> Result<()> {
    const PAGE: usize = 1024;
    if depth > ls::DEPTH_MAX {
        return Err(ls::too_deep());
    }
    loop {
        let page = fs.read_dir(dir, None, PAGE)?;
        if page.is_empty() {
            return Ok(());
        }
        for entry in page {
            if entry.kind == FileKind::Directory {
                empty(fs, entry.ino, depth + 1, removed)?;
                fs.rmdir(dir, &entry.name)?;
                removed.directories += 1;
            } else {
                fs.unlink(dir, &entry.name)?;
                removed.files += 1;
            }
        }
    }
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directories = if self.directories == 1 {
            "1 directory".to_owned()
        } else {
            format!("{} directories", self.directories)
        };
        write!(f, "removed {} and {directories}", text::count(self.files, "file"))
    }
}
