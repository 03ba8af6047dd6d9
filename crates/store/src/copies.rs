//! Reads of what has a checksum in itself: where a copy is not what was written, another is asked.

use std::sync::Arc;

use bedplate_block::{BlockDevice, Copies};

use crate::Result;
use crate::planted::{PlantedBug, planted};

/// Fills `buf` from `offset`, with a copy that is right if there is one; those that are not are
/// written over. Where none is the last one tried is in `buf`. `what` names it.
pub(crate) fn read_a_right_copy(
    device: &Arc<dyn BlockDevice>,
    buf: &mut [u8],
    offset: u64,
    what: &str,
    is_right: &dyn Fn(&[u8]) -> bool,
) -> Result<()> {
    device.read_at(buf, offset)?;
    if is_right(buf) || planted(PlantedBug::FirstSuperblockBelieved) {
        return Ok(());
    }
    if device.read_right(buf, offset, is_right)? != Copies::NoneRight {
        tracing::warn!(
            event = "metadata_healed",
            "{}: {what} at byte {offset} is not what was written; another copy is, and counts",
            device.name()
        );
    }
    Ok(())
}
