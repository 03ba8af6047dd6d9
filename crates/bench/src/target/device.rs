//! Devices by path.

use std::path::Path;
use std::sync::Arc;

use bedplate::BlockDevice;

use crate::{Error, Result};

/// Opens a device, an image file or a file on a mounted file system with the engine that serves raw devices.
pub(crate) fn open_device(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    Err(Error::target(format!("{}: cannot be opened", path.display())))
}
