//! Where the log lives and from where it is replayed.

use std::sync::Arc;

use block::BlockDevice;
use uuid::Uuid;

use crate::decode::Reader;
use crate::{Error, Lsn, Result};

/// The ring's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogPlace {
    /// On a device of its own; otherwise on the data device.
    pub(crate) separate: bool,
    /// First byte of the ring on that device, a multiple of the write unit.
    pub(crate) start_byte: u64,
    /// Length of the ring in bytes, a multiple of the write unit.
    pub(crate) len_bytes: u64,
}

/// The devices and the place: everything that finds the log again.
#[derive(Debug, Clone)]
pub(crate) struct LogParts {
    /// Holds the file data that records expose.
    pub(crate) data: Arc<dyn BlockDevice>,
    /// The log's own device; `Some` exactly when `place.separate`.
    pub(crate) log: Option<Arc<dyn BlockDevice>>,
    pub(crate) volume: Uuid,
    pub(crate) place: LogPlace,
}

impl LogParts {
    /// The device that carries the ring.
    pub(crate) fn ring_device(&self) -> &Arc<dyn BlockDevice> {
        self.log.as_ref().unwrap_or(&self.data)
    }
}

/// From where to replay; a durable metadata commit holds it (setting row `log position`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogPosition {
    /// Grows by one with each recovery, so that what an earlier life left in the ring is never taken for new.
    pub(crate) incarnation: u64,
    /// Sequence number of the log write to start with.
    pub(crate) sequence: u64,
    /// Its byte offset within the ring (or 0, when it did not fit there).
    pub(crate) offset: u64,
    /// Records up to this one are held by the metadata commit.
    pub(crate) applied: Lsn,
}

impl LogPosition {
    /// The position of an empty log.
    pub(crate) const START: Self = Self { incarnation: 1, sequence: 1, offset: 0, applied: Lsn(0) };

    pub(crate) fn encode(&self) -> Vec<u8> {
        [self.incarnation, self.sequence, self.offset, self.applied.0].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes, "the log position");
        let position = Self { incarnation: r.u64()?, sequence: r.u64()?, offset: r.u64()?, applied: Lsn(r.u64()?) };
        r.end()?;
        if position.incarnation == 0 || position.sequence == 0 {
            return Err(Error::corrupt("the log position names incarnation or sequence 0, which no log has"));
        }
        Ok(position)
    }
}
