//! Moves of the intent log, as steps ask for them.

use std::sync::Arc;

use bedplate_block::BlockDevice;
use bedplate_fs::{ErrorKind, FileSystem, LogMoveOptions, Result};

use crate::outcome::Outcome;
use crate::workload::ExtentStep;

/// The log's own device, if there is one.
pub(crate) type LogDevice = Option<Arc<dyn BlockDevice>>;

/// Has the log move, if it may; what cannot be is no matter.
pub(crate) fn move_log(
    fs: &FileSystem,
    log: Option<&LogDevice>,
    step: ExtentStep,
) -> Result<Outcome> {
    let Some(device) = log else { return Ok(Outcome::default()) };
    let sized = |mib: u8| LogMoveOptions {
        size_bytes: Some(u64::from(mib) << 20),
        ..LogMoveOptions::default()
    };
    let moved = match (step, device) {
        (ExtentStep::MoveLog(true, mib), _) => fs.move_log(None, &sized(mib)),
        // What it held before is of this volume, or of none.
        (ExtentStep::MoveLog(false, mib), Some(device)) if !fs.info().log.separate => {
            fs.move_log(Some(Arc::clone(device)), &LogMoveOptions { force: true, ..sized(mib) })
        }
        (ExtentStep::ResizeLog(mib), _) => fs.resize_log(u64::from(mib) << 20, false),
        _ => return Ok(Outcome::default()),
    };
    let is_refusal =
        |kind| matches!(kind, ErrorKind::Invalid | ErrorKind::NoSpace | ErrorKind::Busy);
    match moved {
        Err(error) if !is_refusal(error.kind) => Err(error),
        _ => Ok(Outcome::default()),
    }
}
