//! Opens devices by path.

use std::path::Path;
use std::sync::Arc;

use bedplate::{BlockDevice, DeviceOptions, Volume, VolumeOptions};

use crate::failure::{Failure, Result};
use crate::mounts;

/// What a command wants to do with a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only look.
    ReadOnly,
    /// Change it.
    ReadWrite,
}

/// Opens an image file or a block device for this process alone.
pub fn open(path: &Path, access: Access) -> Result<Arc<dyn BlockDevice>> {
    let options = VolumeOptions { device: DeviceOptions { read_only: access == Access::ReadOnly, ..DeviceOptions::default() } };
    let device = Volume::open(path, &options).map_err(|error| explain_busy(path, error.into()))?.device();
    if access == Access::ReadWrite && device.geometry().read_only {
        let path = path.display();
        return Err(Failure::new("read_only", format!("{path} is read-only: make it writable, or mount it with -o ro")));
    }
    Ok(device)
}

/// Opens an image file or a block device that is only looked at, through the page cache of the kernel: many readers share what one has read.
pub fn open_to_look(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    let options = VolumeOptions { device: DeviceOptions { read_only: true, direct: false, ..DeviceOptions::default() } };
    Ok(Volume::open(path, &options).map_err(|error| explain_busy(path, error.into()))?.device())
}

/// Says what to do about a volume that is busy because it is mounted.
fn explain_busy(path: &Path, failure: Failure) -> Failure {
    if failure.kind != "busy" {
        return failure;
    }
    match mounts::of_volume(path) {
        Ok(Some(mount)) => {
            let (path, dir) = (path.display(), mount.dir.display());
            Failure::new("busy", format!("{path} is mounted at {dir}: use its files there, or run 'bedplate unmount {dir}' first"))
        }
        _ => failure,
    }
}
