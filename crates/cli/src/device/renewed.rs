//! Identities of file systems that were copied, or split off with the half of a mirror.

use std::sync::Arc;

use bedplate::{BlockDevice, FileSystem, Group, MountOptions, Role};

use crate::failure::Result;

/// Gives the file system on a group an identity of its own; nothing where there is none. Its log is
/// on the device that is given, else where it was.
pub fn inside(group: &Group, log: Option<Arc<dyn BlockDevice>>) -> Result<Option<String>> {
    let Some(data) = group.volume(Role::Data) else { return Ok(None) };
    let separate = match FileSystem::probe(&data) {
        Ok(volume) => volume.log_separate,
        Err(error) if error.kind == bedplate::ErrorKind::NotAVolume => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let log = log.or_else(|| group.volume(Role::Log).filter(|_| separate));
    volume(data, log).map(Some)
}

/// Gives the file system on a device an identity of its own; returns it.
pub fn volume(device: Arc<dyn BlockDevice>, log: Option<Arc<dyn BlockDevice>>) -> Result<String> {
    let fs = FileSystem::mount(device, log, MountOptions::default())?;
    let renewed = fs.renew_identity();
    let unmounted = fs.unmount();
    let uuid = renewed?;
    unmounted?;
    Ok(uuid)
}

/// Returns the identity of the file system on a group; nothing where there is none.
pub fn identity_of(group: &Group) -> Option<String> {
    FileSystem::probe(&group.volume(Role::Data)?).ok().map(|volume| volume.uuid)
}
