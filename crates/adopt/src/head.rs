//! The first 4 KiB of the device: how the old superblock becomes the volume's by one write of one
//! sector.
//!
//! ```text
//!            sector  0      1      2      3      4 … 7
//!   XFS              flip   kept   kept   kept   unused      superblock · groups' heads of XFS
//!   ext4             boot   boot   flip   kept   unused      superblock: sectors 2 and 3
//!
//!   1  all but flip and kept is written       the old file system does not use it
//!   2  flip is written: one sector            now the volume's superblock verifies: `kept` counts in its checksum
//!   3  the second copy, at 8 MiB, is written
//!   4  all is written                         nothing of the old one is left
//! ```
//!
//! What a superblock says stands before what is kept, so both can be there.

use std::ops::Range;

use bedplate_block::{AlignedBuf, BlockDevice, OldKind};
use bedplate_fs::superblock_over;

use crate::error::{Error, ErrorKind, Result};
use crate::old::{HEAD_BYTES, read};

const SECTOR: usize = 512;

/// The old first 4 KiB, the volume's, and one that is both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    old: Vec<u8>,
    /// The volume's superblock.
    pub new: Vec<u8>,
    /// The volume's superblock over the bytes that are kept.
    mixed: Vec<u8>,
    /// What is written at once, in whole blocks of the device.
    flip: Range<usize>,
    /// What the old file system needs as long as the flip is not written.
    kept: Range<usize>,
}

/// Where the first 4 KiB of a device stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The old superblock is there.
    Old,
    /// The volume's, over bytes that are kept.
    Mixed,
    /// The volume's.
    New,
    /// Neither: one of the two was written to since.
    Other,
}

impl Head {
    /// Prepares the steps on a device of which `logical` bytes are written at once.
    pub fn new(kind: OldKind, old: &[u8], new: &[u8], logical: usize) -> Result<Self> {
        let (flip, kept) = match kind {
            // With sectors of 4 KiB the heads of the first group lie behind.
            OldKind::Xfs if old[102..104] == [0x10, 0] => (0..SECTOR, SECTOR..SECTOR),
            OldKind::Xfs => (0..SECTOR, SECTOR..4 * SECTOR),
            OldKind::Ext4 => (2 * SECTOR..3 * SECTOR, 3 * SECTOR..4 * SECTOR),
        };
        if logical > HEAD_BYTES {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the device has sectors of {logical} bytes, and up to 4 KiB can be converted"
                ),
            ));
        }
        let flip = flip.start / logical * logical..flip.end.next_multiple_of(logical);
        let kept = kept.start.max(flip.end)..kept.end.max(flip.end);
        let mixed = superblock_over(new, old, kept.clone())?;
        Ok(Self { old: old.to_vec(), new: new.to_vec(), mixed, flip, kept })
    }

    /// Says what a device begins with.
    pub fn found(&self, device: &dyn BlockDevice) -> Result<Found> {
        let now = read(device, 0, HEAD_BYTES)?;
        let needed = [self.flip.clone(), self.kept.clone()];
        Ok(match () {
            () if now[..] == self.new[..] => Found::New,
            () if now[..] == self.mixed[..] => Found::Mixed,
            () if needed.iter().all(|part| now[part.clone()] == self.old[part.clone()]) => {
                Found::Old
            }
            () => Found::Other,
        })
    }

    /// Step 1: what the old file system does not use gets what the volume needs there.
    pub fn prepare(&self, device: &dyn BlockDevice) -> Result<()> {
        let mut bytes = self.mixed.clone();
        for part in [self.flip.clone(), self.kept.clone()] {
            bytes[part.clone()].copy_from_slice(&self.old[part]);
        }
        write(device, &bytes, 0)
    }

    /// Step 2: one sector makes a volume of it.
    pub fn flip(&self, device: &dyn BlockDevice) -> Result<()> {
        debug_assert!(
            self.flip.len() <= device.geometry().logical_block_size.max(512) as usize
                || self.kept.is_empty(),
            "I-ADO-3: what makes the volume is written at once: {:?}",
            self.flip
        );
        write(device, &self.mixed[self.flip.clone()], self.flip.start as u64)
    }

    /// Undoes step 1; what the old file system uses stays as it is now.
    pub fn take_back(&self, device: &dyn BlockDevice) -> Result<()> {
        let now = read(device, 0, HEAD_BYTES)?;
        let mut bytes = self.old.clone();
        for part in [self.flip.clone(), self.kept.clone()] {
            bytes[part.clone()].copy_from_slice(&now[part]);
        }
        write(device, &bytes, 0)
    }
}

/// Writes bytes and makes them durable.
pub(crate) fn write(device: &dyn BlockDevice, bytes: &[u8], at: u64) -> Result<()> {
    device.write_at(&AlignedBuf::from_slice(bytes), at)?;
    Ok(device.flush()?)
}
