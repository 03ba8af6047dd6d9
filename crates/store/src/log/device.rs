//! The head of a separate log device.
//!
//! ```text
//! 0   magic "BEDPLOGD"            8     16  volume uuid               16
//! 8   format version             u32    32  length of the ring        u64
//! 12  CRC-32C of bytes 0..64,    u32    40  uuid that the volume gets 16
//!     this field taken as 0             56  zero                      8
//!                                       64  zero to 4 KiB; the ring starts at 64 KiB
//! ```

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice};
use uuid::Uuid;

use super::LogPlace;
use crate::checksum::crc32c;
use crate::copies::read_a_right_copy;
use crate::decode::Reader;
use crate::{Error, ErrorKind, Result};

const MAGIC: [u8; 8] = *b"BEDPLOGD";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 64;
/// Where the ring starts: a multiple of every write unit.
const RING_START: u64 = 64 << 10;

const _: () = assert!(
    RING_START >= HEAD_BYTES as u64 && RING_START.is_multiple_of(4096),
    "the ring begins on a page behind the head"
);

/// Bytes to move for the head: a page, or a whole sector where that is larger.
fn head_len(device: &Arc<dyn BlockDevice>) -> usize {
    AlignedBuf::ALIGN.max(device.geometry().logical_block_size as usize)
}

/// Says whether a head is as it was written.
fn is_whole(bytes: &[u8]) -> bool {
    let mut head = [0; HEAD_BYTES];
    head.copy_from_slice(&bytes[..HEAD_BYTES]);
    let crc = head[12..16].try_into().map(u32::from_le_bytes).expect("4 bytes");
    head[12..16].fill(0);
    head[..8] == MAGIC && crc32c(&head) == crc
}

/// What the head of a separate log device says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogDeviceHead {
    /// The volume whose log this is.
    pub volume: Uuid,
    /// The identity that the volume is about to get, or has since; `None`: it keeps its own.
    pub next: Option<Uuid>,
    /// Where the ring lies.
    pub place: LogPlace,
}

impl LogDeviceHead {
    /// Plans a log of `len_bytes` at most on a device of `device_bytes`; `None` when less than
    /// `len_min` is left for the ring.
    pub fn plan(
        volume: Uuid,
        device_bytes: u64,
        len_bytes_max: u64,
        len_bytes_min: u64,
    ) -> Option<Self> {
        let len_bytes =
            device_bytes.saturating_sub(RING_START).min(len_bytes_max) / RING_START * RING_START;
        (len_bytes >= len_bytes_min).then_some(Self {
            volume,
            next: None,
            place: LogPlace { separate: true, start_byte: RING_START, len_bytes },
        })
    }

    /// Writes the head and makes it durable.
    ///
    /// # Errors
    /// Those of the device.
    pub fn write(&self, device: &Arc<dyn BlockDevice>) -> Result<()> {
        debug_assert!(
            self.place.separate
                && self.place.start_byte == RING_START
                && self.place.len_bytes.is_multiple_of(RING_START),
            "the head of a log device names the ring behind it: {:?}",
            self.place
        );
        debug_assert!(
            self.place.start_byte + self.place.len_bytes <= device.size_bytes(),
            "the ring ends within its device: {:?}",
            self.place
        );
        let mut buf = AlignedBuf::zeroed(head_len(device));
        buf[0..8].copy_from_slice(&MAGIC);
        buf[8..12].copy_from_slice(&VERSION.to_le_bytes());
        buf[16..32].copy_from_slice(self.volume.as_bytes());
        buf[32..40].copy_from_slice(&self.place.len_bytes.to_le_bytes());
        buf[40..56].copy_from_slice(self.next.unwrap_or_default().as_bytes());
        let crc = crc32c(&buf[..HEAD_BYTES]);
        buf[12..16].copy_from_slice(&crc.to_le_bytes());
        device.write_at(&buf, 0)?;
        Ok(device.flush()?)
    }

    /// Reads the head; `None` when the device holds none.
    ///
    /// # Errors
    /// `NewerFormat`, `Corrupt` for a damaged head or a device that is too small for the ring it
    /// names, device errors.
    pub fn read(device: &Arc<dyn BlockDevice>) -> Result<Option<Self>> {
        let mut buf = AlignedBuf::zeroed(head_len(device));
        if device.size_bytes() < buf.len() as u64 {
            return Ok(None);
        }
        read_a_right_copy(device, &mut buf, 0, "the head of the log device", &is_whole)?;
        let mut head = [0; HEAD_BYTES];
        head.copy_from_slice(&buf[..HEAD_BYTES]);
        if head[..8] != MAGIC {
            return Ok(None);
        }
        Self::decode(head, device).map(Some)
    }

    fn decode(mut head: [u8; HEAD_BYTES], device: &Arc<dyn BlockDevice>) -> Result<Self> {
        let name = device.name();
        let mut r = Reader::new(&head[8..], "the head of the log device");
        let (version, crc) = (r.u32()?, r.u32()?);
        let volume = Uuid::from_slice(r.take(16)?).expect("16 bytes were taken");
        let len_bytes = r.u64()?;
        let next = Uuid::from_slice(r.take(16)?).expect("16 bytes were taken");
        head[12..16].fill(0);
        if crc32c(&head) != crc {
            return Err(Error::corrupt(format!(
                "{name}: the head of the log device (byte 0) is damaged: its checksum is wrong"
            )));
        }
        if version != VERSION {
            let message = format!(
                "{name}: the log device has format version {version}; this software knows \
                 {VERSION}: use a newer one"
            );
            return Err(Error::new(ErrorKind::NewerFormat, message));
        }
        if len_bytes % RING_START != 0
            || len_bytes.checked_add(RING_START).is_none_or(|end| end > device.size_bytes())
        {
            let size = device.size_bytes();
            return Err(Error::corrupt(format!(
                "{name}: the log device has {size} bytes, too few for its ring of {len_bytes} bytes"
            )));
        }
        let place = LogPlace { separate: true, start_byte: RING_START, len_bytes };
        Ok(Self { volume, next: (!next.is_nil()).then_some(next), place })
    }

    /// Says whether the bytes of a log device begin with a head that is whole and of a volume's log.
    pub(crate) fn is_at_start_of(bytes: &[u8], volume: Uuid) -> bool {
        let uuid = bytes.get(16..32).and_then(|uuid| Uuid::from_slice(uuid).ok());
        let rest = bytes.get(HEAD_BYTES..AlignedBuf::ALIGN);
        rest.is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
            && is_whole(bytes)
            && uuid == Some(volume)
    }

    /// Returns whether it is of a volume's log.
    #[must_use]
    pub fn is_of(&self, volume: Uuid) -> bool {
        self.volume == volume || self.next == Some(volume)
    }
}
