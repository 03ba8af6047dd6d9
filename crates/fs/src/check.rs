//! Checking an unmounted volume.

use std::sync::Arc;

use block::BlockDevice;

use crate::{CheckReport, Result};

/// Checks; see [`FileSystem::check`](crate::FileSystem::check).
pub(crate) fn check(_device: &Arc<dyn BlockDevice>, _log: Option<&Arc<dyn BlockDevice>>, _repair: bool) -> Result<CheckReport> {
    todo!()
}
