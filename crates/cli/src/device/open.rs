//! Opens volumes by path: an image file, a block device, or the group that one is a member of.

use std::path::Path;
use std::sync::Arc;

use bedplate::{BlockDevice, DeviceOptions, FileSystem, Group, Role, Volume, VolumeOptions};

use crate::device::access::Access;
use crate::device::group;
use crate::device::mounted::explain_busy;
use crate::failure::{Failure, Result};

/// A volume and what belongs to it.
#[derive(Debug)]
pub struct Opened {
    /// Where the file system lies.
    pub device: Arc<dyn BlockDevice>,
    /// Where its intent log lies, if on a device of its own.
    pub log: Option<Arc<dyn BlockDevice>>,
    /// The group, where the volume is one.
    pub group: Option<Group>,
}

/// Closes a group that is written to no more, so that it leaves nothing in doubt even if a thread
/// that is ending still holds a part of it.
pub fn close(group: Option<Group>) -> Result<()> {
    group.map_or(Ok(()), |group| Ok(group.close()?))
}

/// Opens a volume for this process alone, with the device of the intent log that was named or that
/// its group has.
pub fn open_with_log(path: &Path, log: Option<&Path>, access: Access) -> Result<Opened> {
    open_parts(path, log, access, false)
}

/// As [`open_with_log`], and where `degraded` says so without members of its group that are
/// missing.
pub fn open_parts(
    path: &Path,
    log: Option<&Path>,
    access: Access,
    degraded: bool,
) -> Result<Opened> {
    let path = &group::resolve(path)?;
    let mut opened = match group::of_member(path)? {
        Some(located) => {
            let group = group::open(&located, access, degraded)?;
            let device = group.volume(Role::Data).ok_or_else(|| {
                Failure::new("not_a_volume", format!("group {} has no data", located.config.name))
            })?;
            // A log that went home, or elsewhere, is not on the group's own.
            let is_home = FileSystem::probe(&device).is_ok_and(|volume| !volume.log_separate);
            let own = group.volume(Role::Log).filter(|_| !is_home);
            Opened { device, log: own, group: Some(group) }
        }
        None => Opened { device: open_plain(path, access)?, log: None, group: None },
    };
    if let Some(log) = log {
        opened.log = Some(open(log, access)?);
    }
    Ok(opened)
}

/// Opens a volume for this process alone.
pub fn open(path: &Path, access: Access) -> Result<Arc<dyn BlockDevice>> {
    Ok(open_with_log(path, None, access)?.device)
}

/// Opens an image file or a block device for this process alone, whatever lies on it.
pub fn open_plain(path: &Path, access: Access) -> Result<Arc<dyn BlockDevice>> {
    let options =
        DeviceOptions { read_only: access == Access::ReadOnly, ..DeviceOptions::default() };
    let device =
        bedplate_block::open(path, &options).map_err(|error| explain_busy(path, error.into()))?;
    if access == Access::ReadWrite && device.geometry().read_only {
        let path = path.display();
        return Err(Failure::new(
            "read_only",
            format!("{path} is read-only: make it writable, or mount it with -o ro"),
        ));
    }
    Ok(device)
}

/// Opens an image file or a block device that is only looked at, through the page cache of the
/// kernel: many readers share what one has read.
///
/// # Errors
/// Those of the device, with what to do about one that is mounted.
pub fn open_to_look(path: &Path) -> bedplate::Result<Arc<dyn BlockDevice>> {
    let options = VolumeOptions {
        device: DeviceOptions { read_only: true, direct: false, ..DeviceOptions::default() },
    };
    let opened = Volume::open(path, &options).map_err(|error| {
        let mut error = bedplate::Error::from(error);
        error.message = explain_busy(path, error.clone().into()).message;
        error
    });
    Ok(opened?.device())
}
