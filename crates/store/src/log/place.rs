//! Where the log lives and from where it is replayed.

use std::sync::Arc;

use bedplate_block::BlockDevice;
use uuid::Uuid;

use super::batch::SECTOR;
use crate::decode::Reader;
use crate::{Error, Lsn, Result};

/// The ring's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPlace {
    /// On a device of its own; otherwise on the data device.
    pub separate: bool,
    /// First byte of the ring on that device, a multiple of the write unit.
    pub start_byte: u64,
    /// Length of the ring in bytes, a multiple of the write unit.
    pub len_bytes: u64,
}

/// The devices and the place: everything that finds the log again.
#[derive(Debug, Clone)]
pub struct LogParts {
    /// Holds the file data that records expose.
    pub data: Arc<dyn BlockDevice>,
    /// The log's own device; `Some` exactly when `place.separate`.
    pub log: Option<Arc<dyn BlockDevice>>,
    /// Identity of the volume.
    pub volume: Uuid,
    /// Where the ring lies.
    pub place: LogPlace,
}

impl LogParts {
    /// The device that carries the ring.
    pub(crate) fn ring_device(&self) -> &Arc<dyn BlockDevice> {
        self.log.as_ref().unwrap_or(&self.data)
    }

    /// Checks the place and returns the write unit in bytes: the device's physical block size, as
    /// far as the place is aligned to it.
    ///
    /// # Errors
    /// `Corrupt` for a place outside its device, not aligned to the device's blocks, or too small.
    pub(super) fn check(&self) -> Result<u64> {
        assert_eq!(
            self.place.separate,
            self.log.is_some(),
            "the log's place and its device disagree"
        );
        let device = self.ring_device();
        let LogPlace { start_byte, len_bytes, .. } = self.place;
        let (name, size) = (device.name(), device.size_bytes());
        if start_byte.checked_add(len_bytes).is_none_or(|end| end > size) {
            return Err(Error::corrupt(format!(
                "{name}: the log ({len_bytes} bytes at byte {start_byte}) lies outside the device \
                 of {size} bytes"
            )));
        }
        let geometry = device.geometry();
        let logical = u64::from(geometry.logical_block_size).max(SECTOR);
        let mut unit =
            u64::from(geometry.physical_block_size).clamp(logical, UNIT_BYTES_MAX.max(logical));
        while unit > logical && (start_byte % unit != 0 || len_bytes % unit != 0) {
            unit /= 2;
        }
        if !unit.is_power_of_two()
            || start_byte % unit != 0
            || len_bytes % unit != 0
            || len_bytes < UNITS_MIN * unit
        {
            let what = format!(
                "{name}: the log ({len_bytes} bytes at byte {start_byte}) does not suit a device \
                 with blocks of {logical} bytes"
            );
            return Err(Error::corrupt(what));
        }
        Ok(unit)
    }
}

/// No counter of the log gets here in the life of a machine, so adding to one never overflows.
const ORDINAL_MAX: u64 = 1 << 62;
const _: () = assert!(
    ORDINAL_MAX <= u64::MAX / 2,
    "no ordinal of a log that was decoded overflows while it counts on"
);

/// Larger physical blocks are written in parts.
const UNIT_BYTES_MAX: u64 = 64 << 10;
/// A smaller ring could not hold a batch and its successor.
const UNITS_MIN: u64 = 8;

/// From where to replay; a durable metadata commit holds it (setting row `log position`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition {
    /// Grows by one with each recovery, so that what an earlier life left in the ring is never
    /// taken for new.
    pub incarnation: u64,
    /// Sequence number of the log write to start with.
    pub sequence: u64,
    /// Its byte offset within the ring (or 0, when it did not fit there).
    pub offset: u64,
    /// Records up to this one are held by the metadata commit.
    pub applied: Lsn,
}

impl LogPosition {
    /// The position of an empty log.
    pub const START: Self = Self { incarnation: 1, sequence: 1, offset: 0, applied: Lsn(0) };

    /// Encodes the position.
    pub fn encode(&self) -> Vec<u8> {
        [self.incarnation, self.sequence, self.offset, self.applied.0]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    /// Decodes a position; `Corrupt` for what is none.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes, "the log position");
        let position = Self {
            incarnation: r.u64()?,
            sequence: r.u64()?,
            offset: r.u64()?,
            applied: Lsn(r.u64()?),
        };
        r.end()?;
        let possible = 1..ORDINAL_MAX;
        if !possible.contains(&position.incarnation)
            || !possible.contains(&position.sequence)
            || position.applied.0 >= ORDINAL_MAX
        {
            return Err(Error::corrupt(format!("the log position is impossible: {position:?}")));
        }
        Ok(position)
    }
}
