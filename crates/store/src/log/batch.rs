//! A batch: one log write, and its header.
//!
//! ```text
//! 0   magic "BEDPLOGW"                      8     64  sealed lsn                  u64
//! 8   CRC-32C of bytes 12..96 + payload    u32    72  durable sequence            u64
//! 12  length of the batch, padding too     u32    80  length of the payload       u32
//! 16  volume uuid                           16    84  number of records           u32
//! 32  incarnation                          u64    88  zero                          8
//! 40  sequence number                      u64    96  payload: the records
//! 48  offset within the ring               u64        zeros up to the length of the batch
//! 56  lsn of the first record              u64
//! ```

use uuid::Uuid;

use crate::Lsn;
use crate::checksum::crc32c;
use crate::decode::Reader;

const MAGIC: [u8; 8] = *b"BEDPLOGW";
/// Bytes before the payload.
pub(super) const HEADER_BYTES: usize = 96;
/// The checksum covers everything from here to the end of the payload.
const CHECKED_FROM: usize = 12;
/// No batch is longer, so that replay knows how much to read before it trusts a length.
pub(super) const BATCH_BYTES_MAX: u64 = 4 << 20;
/// Offsets and lengths are multiples of this on every device.
pub(super) const SECTOR: u64 = 512;
const _: () = assert!(
    HEADER_BYTES as u64 <= SECTOR && BATCH_BYTES_MAX.is_multiple_of(SECTOR),
    "I-LOG-2: the head of a log write lies in its first sector, and writes are whole sectors"
);

/// A record is never shorter: bounds the count before it is used.
const RECORD_BYTES_MIN: u32 = 12;

/// What the header of a batch says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) len: u32,
    pub(super) incarnation: u64,
    pub(super) sequence: u64,
    pub(super) offset: u64,
    /// The lsn of the first record; where there is none, the one that the next record will have at
    /// the earliest.
    pub(super) first: Lsn,
    /// The data that records up to this one expose was durable before this batch was written.
    pub(super) sealed: Lsn,
    /// Batches up to this one were durable before this one was written.
    pub(super) durable_sequence: u64,
    pub(super) payload_len: u32,
    pub(super) count: u32,
}

/// Why bytes are not the batch that was looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mismatch {
    /// Something else is there: nothing was written, or what an earlier round or life of the log
    /// left.
    Absent,
    /// The header is of this life of the log, but the content is not all there.
    Torn,
}

impl Header {
    /// The last record in or before this batch.
    pub(super) fn last(&self) -> Lsn {
        Lsn(self.first.0 + u64::from(self.count) - 1)
    }

    /// Writes the header in front of the payload in `batch` and zeroes what follows it.
    pub(super) fn write(&self, volume: Uuid, batch: &mut [u8]) {
        let end = HEADER_BYTES + self.payload_len as usize;
        assert!(
            self.len as usize == batch.len() && end <= batch.len(),
            "a log write's length disagrees with its buffer"
        );
        debug_assert!(
            self.sequence > 0 && self.first.0 > 0,
            "I-LOG-1: log writes and records count from one: {self:?}"
        );
        debug_assert!(
            self.durable_sequence < self.sequence,
            "I-LOG-3: a log write says of earlier ones that they are durable: {self:?}"
        );
        debug_assert!(
            u64::from(self.len).is_multiple_of(SECTOR) && u64::from(self.len) <= BATCH_BYTES_MAX,
            "a log write is whole sectors and not too long: {self:?}"
        );
        batch[end..].fill(0);
        let mut at = CHECKED_FROM;
        let mut put = |bytes: &[u8]| {
            batch[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&self.len.to_le_bytes());
        put(volume.as_bytes());
        for value in [
            self.incarnation,
            self.sequence,
            self.offset,
            self.first.0,
            self.sealed.0,
            self.durable_sequence,
        ] {
            put(&value.to_le_bytes());
        }
        put(&self.payload_len.to_le_bytes());
        put(&self.count.to_le_bytes());
        put(&[0; 8]);
        debug_assert_eq!(at, HEADER_BYTES, "the fields fill the header");
        batch[..8].copy_from_slice(&MAGIC);
        let crc = crc32c(&batch[CHECKED_FROM..end]);
        batch[8..12].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads a header that may be anything; `None` unless every field is possible for this volume
    /// at ring offset `offset`. The content is not checked yet: see [`intact`](Self::intact).
    pub(super) fn read(bytes: &[u8; HEADER_BYTES], volume: Uuid, offset: u64) -> Option<Self> {
        let mut r = Reader::new(bytes, "a log write");
        let magic = r.take(8).ok()?;
        let _crc = r.u32().ok()?;
        let len = r.u32().ok()?;
        let uuid = r.take(16).ok()?;
        if magic != MAGIC || uuid != volume.as_bytes() {
            return None;
        }
        let mut next = || r.u64().ok();
        let (incarnation, sequence, at, first) = (next()?, next()?, next()?, Lsn(next()?));
        let (sealed, durable_sequence) = (Lsn(next()?), next()?);
        let (payload_len, count) = (r.u32().ok()?, r.u32().ok()?);
        let header = Self {
            len,
            incarnation,
            sequence,
            offset: at,
            first,
            sealed,
            durable_sequence,
            payload_len,
            count,
        };
        (at == offset && header.is_possible()).then_some(header)
    }

    fn is_possible(&self) -> bool {
        let len = u64::from(self.len);
        len.is_multiple_of(SECTOR)
            && len <= BATCH_BYTES_MAX
            && HEADER_BYTES as u64 + u64::from(self.payload_len) <= len
            && self.count <= self.payload_len / RECORD_BYTES_MIN
            && self.first.0 > 0
            && self.first.0.checked_add(u64::from(self.count)).is_some()
            && self.sealed <= self.last()
            && self.durable_sequence < self.sequence
    }

    /// Whether the whole batch is what was written; `batch` starts with the header's own bytes and
    /// has at least its payload.
    pub(super) fn intact(&self, batch: &[u8]) -> bool {
        debug_assert!(
            HEADER_BYTES + self.payload_len as usize <= batch.len(),
            "a header was found possible before its payload is read: {self:?}"
        );
        let crc = batch[8..12].try_into().map(u32::from_le_bytes).expect("4 bytes");
        crc32c(&batch[CHECKED_FROM..HEADER_BYTES + self.payload_len as usize]) == crc
    }

    /// The records' bytes within the batch.
    pub(super) fn payload<'a>(&self, batch: &'a [u8]) -> &'a [u8] {
        &batch[HEADER_BYTES..HEADER_BYTES + self.payload_len as usize]
    }
}

/// Gives every log write that begins in `ring` and whose payload lies in it the checksum that its
/// bytes ask for; returns how many there are.
#[cfg(any(test, feature = "forge"))]
pub fn seal_batches(ring: &mut [u8]) -> usize {
    let step = usize::try_from(SECTOR).expect("a sector is small");
    let mut sealed = 0;
    for at in (0..ring.len()).step_by(step) {
        let Some(header) =
            ring.get(at..at + HEADER_BYTES).filter(|header| header.starts_with(&MAGIC))
        else {
            continue;
        };
        let payload_len = u32::from_le_bytes(header[80..84].try_into().expect("4 bytes")) as usize;
        if let Some(checked) = ring.get(at + CHECKED_FROM..at + HEADER_BYTES + payload_len) {
            let crc = crc32c(checked);
            ring[at + 8..at + 12].copy_from_slice(&crc.to_le_bytes());
            sealed += 1;
        }
    }
    sealed
}
