//! A volume that is not mounted, used through the library for the length of one command.

use std::path::PathBuf;

use bedplate::{FileSystem, Group, MountOptions};
use clap::Args;

use crate::daemon::control::{Naming, lend_names};
use crate::device::{self, Access, Opened};
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::progress;

/// Names a volume on the command line.
#[derive(Debug, Clone, Args)]
pub struct Volume {
    /// The volume: an image file or a block device, not mounted
    pub volume: PathBuf,
    #[command(flatten)]
    pub devices: Devices,
}

/// Where else a volume has parts.
#[derive(Debug, Clone, Default, Args)]
pub struct Devices {
    /// The device that holds the intent log, where format was given one
    #[arg(long, value_name = "PATH")]
    pub log: Option<PathBuf>,
}

impl Volume {
    /// Names a volume whose parts are given with other arguments.
    pub fn new(volume: impl Into<PathBuf>, devices: &Devices) -> Self {
        Self { volume: volume.into(), devices: devices.clone() }
    }

    /// Mounts the volume in this process.
    pub fn open(&self, access: Access, output: &Output) -> Result<Mounted> {
        let Opened { device, log, group } =
            device::open_with_log(&self.volume, self.devices.log.as_deref(), access)?;
        let options =
            MountOptions { read_only: access == Access::ReadOnly, ..MountOptions::default() };
        let fs = progress::during(output, "mounting", || FileSystem::mount(device, log, options))?;
        let naming = group.as_ref().map(|group| lend_names(group, &fs)).transpose()?;
        Ok(Mounted { fs, group, naming })
    }

    /// Mounts the volume in this process, does `work`, and unmounts whatever the outcome. The first
    /// failure counts.
    pub fn with<T>(
        &self,
        access: Access,
        output: &Output,
        work: impl FnOnce(&FileSystem) -> Result<T>,
    ) -> Result<T> {
        let mounted = self.open(access, output)?;
        let worked = work(&mounted.fs);
        let unmounted = mounted.close(output);
        let result = worked?;
        unmounted?;
        Ok(result)
    }
}

/// A volume that this process has mounted.
pub struct Mounted {
    /// Its file system.
    pub fs: FileSystem,
    group: Option<Group>,
    naming: Option<Naming>,
}

impl Mounted {
    /// Unmounts it.
    pub fn close(mut self, output: &Output) -> Result<()> {
        drop(self.naming.take());
        progress::during(output, "making everything durable", || {
            self.fs.unmount().map_err(Failure::from).and(device::close(self.group))
        })
    }
}
