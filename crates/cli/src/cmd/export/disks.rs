//! What is served as a disk: files of volumes that are opened for it, files and devices of the
//! system.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate::{IoMode, OpenOptions};
use bedplate_export::{DeviceDisk, Disk, FileDisk};
use clap::Args;

use crate::address::PathArg;
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::session::{Devices, Mounted, Volume};

/// How the files that are served are opened.
#[derive(Debug, Args)]
pub struct Disks {
    /// Serve the files of volumes as a checkpoint shows them, read-only
    #[arg(long, value_name = "NAME")]
    checkpoint: Option<String>,
    /// How the files of volumes are read and written: past all caches unless it says otherwise
    #[arg(long, value_name = "MODE")]
    mode: Option<IoMode>,
    #[command(flatten)]
    devices: Devices,
}

/// Volumes that are open for files of them.
pub struct OpenDisks<'a> {
    arguments: &'a Disks,
    read_only: bool,
    output: &'a Output,
    volumes: BTreeMap<PathBuf, Mounted>,
}

impl Disks {
    /// Prepares to open files.
    pub fn open<'a>(&'a self, read_only: bool, output: &'a Output) -> OpenDisks<'a> {
        OpenDisks { arguments: self, read_only, output, volumes: BTreeMap::new() }
    }
}

impl OpenDisks<'_> {
    /// Opens a file, and the volume that it lies in.
    pub fn disk(&mut self, file: &PathArg) -> Result<Arc<dyn Disk>> {
        let checkpoint = &self.arguments.checkpoint;
        let (volume, path) = match file {
            PathArg::Inside { volume, path } => (volume, path),
            PathArg::Live(path) if checkpoint.is_some() => {
                return Err(Failure::usage(format!(
                    "--checkpoint is for files of volumes that are not mounted: on a mount, serve \
                     the file below .checkpoints in its root in the place of {}",
                    path.display()
                )));
            }
            PathArg::Live(path) if self.arguments.mode.is_some() => {
                return Err(Failure::usage(format!(
                    "--mode is for files of volumes that are not mounted: {} is read and written as \
                     its own file system has it",
                    path.display()
                )));
            }
            PathArg::Live(path) => return Ok(Arc::new(DeviceDisk::open(path, self.read_only)?)),
        };
        let read_only = self.read_only || checkpoint.is_some();
        // Two spellings of one volume open it once.
        let known = volume.canonicalize().unwrap_or_else(|_| volume.clone());
        let mounted = match self.volumes.entry(known) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
                new.insert(Volume::new(volume, &self.arguments.devices).open(access, self.output)?)
            }
        };
        let path = match checkpoint {
            Some(name) => Path::new("/.checkpoints").join(name).join(relative(path)),
            None => path.clone(),
        };
        let options = OpenOptions {
            mode: Some(self.arguments.mode.unwrap_or(IoMode::Concurrent)),
            write: !read_only,
            ..OpenOptions::read_only()
        };
        let file = mounted.fs.open(&path, &options)?;
        Ok(Arc::new(FileDisk::new(&mounted.fs, file, read_only)?))
    }

    /// Closes the volumes, once no file of them is served.
    pub fn close(self) -> Result<()> {
        let mut closed = Ok(());
        for volume in self.volumes.into_values() {
            closed = volume.close(self.output).and(closed);
        }
        closed
    }
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}
