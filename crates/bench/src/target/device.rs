//! Devices by path, opened with the one engine that serves raw devices, files on a mounted file
//! system and volumes alike.

use std::path::Path;
use std::sync::Arc;

use bedplate::BlockDevice;
use bedplate_block::DeviceOptions;

use crate::{Error, Result};

/// Claims a device or an image file for this run: no other process has it open, nothing of it is
/// mounted.
pub(crate) fn claim_device(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    direct(path, bedplate_block::open(path, &DeviceOptions::default())?)
}

/// Opens a file of our own on a mounted file system, as often as it takes.
pub(crate) fn open_file(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    direct(
        path,
        bedplate_block::open(
            path,
            &DeviceOptions { exclusive: false, ..DeviceOptions::default() },
        )?,
    )
}

/// A buffered device would be measured against direct ones.
fn direct(path: &Path, device: Arc<dyn BlockDevice>) -> Result<Arc<dyn BlockDevice>> {
    match device.engine().fallback {
        Some(reason) if reason.contains("O_DIRECT") => Err(Error::target(format!(
            "{}: {reason}; put it elsewhere, or add ',buffered' to a path target",
            path.display()
        ))),
        _ => Ok(device),
    }
}
