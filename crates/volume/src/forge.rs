//! Members that lie: gives what stands on a member the checksums that its bytes ask for, so that
//! fuzzers reach what lies behind them.
//!
//! Only built for fuzzers (`forge`): damage that a checksum finds is harmless, so what has to be
//! tried is damage that none finds.

use bedplate_block::{AlignedBuf, BlockDevice};

use crate::Result;
use crate::group::{self, COPIES, SLOT_BYTES};
use crate::io::raid5;
use crate::redundancy;

/// Makes the checksums of labels, dirty region logs and parity logs right, whatever they say.
///
/// # Errors
/// Those of the device.
pub fn reseal(device: &dyn BlockDevice) -> Result<()> {
    for at in COPIES {
        change(device, at, SLOT_BYTES, group::reseal)?;
    }
    for volume in 0..2 {
        let (at, len) = redundancy::area(volume);
        change(device, at, len as usize, redundancy::reseal)?;
        let (at, len) = raid5::log_area(volume);
        change(device, at, len as usize, raid5::reseal_log)?;
    }
    Ok(())
}

fn change(device: &dyn BlockDevice, at: u64, len: usize, change: fn(&mut [u8])) -> Result<()> {
    let mut bytes = AlignedBuf::zeroed(len);
    device.read_at(&mut bytes, at)?;
    change(&mut bytes);
    Ok(device.write_at(&bytes, at)?)
}
