//! A record: the atom of the log, and its encoding.
//!
//! ```text
//! 0  length of the record in bytes, this field included   u32
//! 4  kind u8 | flags u8 | zero u16
//! 8  number of rows                                        u32
//! 12 rows       table u8 | op u8 (0 delete, 1 put) | key length u16 | value length u32 | key | value
//!    exposure   CRC-32C u32 | number of segments u32 | (device byte u64, length u32) each     (flag 2 only)
//!    data       the bytes of the segments, one behind the other                               (flag 4, with 2)
//! ```

use super::home::LoggedData;
use crate::checksum::crc32c;
use crate::decode::Reader;
use crate::row::{RowChange, Table};
use crate::{Error, Result};

/// What an operation did; for people and statistics: replay only looks at the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// An object is made.
    Create = 1,
    /// A name is added.
    Link = 2,
    /// A name is removed.
    Unlink = 3,
    /// A name is changed.
    Rename = 4,
    /// Attributes are set.
    SetAttr = 5,
    /// A file grows.
    Extend = 6,
    /// Unwritten blocks are written.
    Written = 7,
    /// Blocks are mapped elsewhere.
    Remap = 8,
    /// The end of a file is moved.
    Truncate = 9,
    /// Blocks are allocated.
    Allocate = 10,
    /// A range becomes a hole.
    Punch = 11,
    /// Extended attributes are changed.
    Xattr = 12,
    /// A setting is changed.
    Setting = 13,
    /// An orphan is noted.
    Orphan = 14,
    /// An inode is removed.
    Remove = 15,
    /// The I/O mode of a file is set.
    Mode = 16,
    /// A checkpoint is made, changed or deleted.
    Checkpoint = 17,
    /// Files are put back to a checkpoint.
    Rollback = 18,
}

impl RecordKind {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Create,
        Self::Link,
        Self::Unlink,
        Self::Rename,
        Self::SetAttr,
        Self::Extend,
        Self::Written,
        Self::Remap,
        Self::Truncate,
        Self::Allocate,
        Self::Punch,
        Self::Xattr,
        Self::Setting,
        Self::Orphan,
        Self::Remove,
        Self::Mode,
        Self::Checkpoint,
        Self::Rollback,
    ];

    fn from_code(code: u8) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| *kind as u8 == code)
            .ok_or_else(|| Error::corrupt(format!("unknown log record kind {code}")))
    }
}

/// The data that a record newly makes readable, and what it must be.
///
/// The data write has completed, but need not be durable; or the record carries the data. The bytes
/// are exactly those that become readable: not the rest of their sectors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exposure {
    /// Byte ranges of the data device: offset, length (not 0).
    pub segments: Vec<(u64, u32)>,
    /// CRC-32C over all of them in this order.
    pub crc: u32,
    /// The data itself, where it is not written to its place before the record is.
    pub logged: Option<LoggedData>,
}

impl Exposure {
    /// No record carries more data than this, in bytes.
    pub const LOGGED_BYTES_MAX: u64 = 64 << 10;

    /// A larger exposure is written as a barrier instead: reading it all again at replay would cost
    /// more than a flush.
    pub const BYTES_MAX: u64 = 1 << 20;
    /// So is one of more pieces.
    pub const SEGMENTS_MAX: usize = 256;

    fn fits(&self) -> bool {
        self.segments.len() <= Self::SEGMENTS_MAX && self.len_bytes() <= Self::BYTES_MAX
    }

    fn len_bytes(&self) -> u64 {
        self.segments.iter().map(|(_, len)| u64::from(*len)).sum()
    }

    fn logged_bytes(&self) -> &[u8] {
        self.logged.as_ref().map_or(&[], |logged| &logged.bytes)
    }

    /// Returns each segment's offset, and the data that the record carries for it.
    pub(super) fn carried(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let bytes = self.logged_bytes();
        let all = self.segments.iter().filter(|_| self.logged.is_some());
        all.scan(0, move |from, (offset, len)| {
            let part = *from..*from + *len as usize;
            *from = part.end;
            Some((*offset, &bytes[part]))
        })
    }
}

/// One atomic change of metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What changed.
    pub kind: RecordKind,
    /// The full new images, applied in this order.
    pub rows: Vec<RowChange>,
    /// Data that becomes readable with this record and whose checksum lets one flush cover both.
    /// Too large a one turns into a barrier.
    pub exposes: Option<Exposure>,
    /// Data that completed before the record was appended must be durable before the record is
    /// written.
    pub barrier: bool,
}

impl Record {
    /// The exposure as it goes into the log: none where a barrier makes its checksum needless.
    pub(super) fn logged_exposure(&self) -> Option<&Exposure> {
        self.exposes
            .as_ref()
            .filter(|exposure| !self.barrier && exposure.fits() && !exposure.segments.is_empty())
    }

    /// Whether the data must be flushed before the record is written.
    pub(super) fn needs_barrier(&self) -> bool {
        self.barrier || self.exposes.as_ref().is_some_and(|exposure| !exposure.fits())
    }

    pub(super) fn encoded_len(&self) -> usize {
        let row = |row: &RowChange| {
            ROW_BYTES + row.key.len() + row.value.as_deref().map_or(0, <[u8]>::len)
        };
        let exposure = self.logged_exposure().map_or(0, |exposure| {
            EXPOSURE_BYTES + SEGMENT_BYTES * exposure.segments.len() + exposure.logged_bytes().len()
        });
        RECORD_BYTES + self.rows.iter().map(row).sum::<usize>() + exposure
    }

    /// Encodes into `out`, which has exactly [`encoded_len`](Self::encoded_len) bytes.
    pub(super) fn encode(&self, out: &mut [u8]) {
        let mut w = Writer { out, at: 0 };
        let exposure = self.logged_exposure();
        let carries = exposure.is_some_and(|exposure| exposure.logged.is_some());
        let flags = (u8::from(self.needs_barrier()) * FLAG_BARRIER)
            | (u8::from(exposure.is_some()) * FLAG_EXPOSES)
            | (u8::from(carries) * FLAG_CARRIES);
        w.u32(w.out.len());
        w.put(&[self.kind as u8, flags, 0, 0]);
        w.u32(self.rows.len());
        for row in &self.rows {
            w.put(&[row.table as u8, u8::from(row.value.is_some())]);
            w.put(
                &u16::try_from(row.key.len()).expect("a key is an inode and a name").to_le_bytes(),
            );
            w.u32(row.value.as_deref().map_or(0, <[u8]>::len));
            w.put(&row.key);
            w.put(row.value.as_deref().unwrap_or_default());
        }
        if let Some(exposure) = exposure {
            w.put(&exposure.crc.to_le_bytes());
            w.u32(exposure.segments.len());
            for (offset, len) in &exposure.segments {
                w.put(&offset.to_le_bytes());
                w.put(&len.to_le_bytes());
            }
            w.put(exposure.logged_bytes());
        }
        assert_eq!(w.at, w.out.len(), "a record was encoded to another length than announced");
    }

    /// Takes the first record off `payload` (hostile bytes); allocates no more than the payload's
    /// size times a small constant.
    pub fn decode(payload: &mut Reader<'_>) -> Result<Self> {
        let len = payload.u32()? as usize;
        let Some(body) = len.checked_sub(4) else {
            return Err(Error::corrupt(format!("a log record claims a length of {len} bytes")));
        };
        let mut r = Reader::new(payload.take(body)?, "a log record");
        let kind = RecordKind::from_code(r.u8()?)?;
        let flags = r.u8()?;
        let known = FLAG_BARRIER | FLAG_EXPOSES | FLAG_CARRIES;
        let carries = flags & FLAG_CARRIES != 0;
        if flags & !known != 0 || (carries && flags & FLAG_EXPOSES == 0) || r.u16()? != 0 {
            return Err(Error::corrupt(format!("a log record has unknown flags {flags:#x}")));
        }
        let count = r.u32()? as usize;
        if count > r.len() / ROW_BYTES {
            return Err(Error::corrupt(format!("a log record of {len} bytes claims {count} rows")));
        }
        let rows = (0..count).map(|_| decode_row(&mut r)).collect::<Result<Vec<_>>>()?;
        let exposes = match flags & FLAG_EXPOSES {
            0 => None,
            _ => Some(decode_exposure(&mut r, carries)?),
        };
        r.end()?;
        Ok(Self { kind, rows, exposes, barrier: flags & FLAG_BARRIER != 0 })
    }
}

const RECORD_BYTES: usize = 12;
const ROW_BYTES: usize = 8;
const EXPOSURE_BYTES: usize = 8;
const SEGMENT_BYTES: usize = 12;
const FLAG_BARRIER: u8 = 1;
const FLAG_EXPOSES: u8 = 2;
const FLAG_CARRIES: u8 = 4;
const _: () = assert!(
    FLAG_BARRIER | FLAG_EXPOSES | FLAG_CARRIES == 7,
    "each flag of a record has a bit of its own"
);

fn decode_row(r: &mut Reader<'_>) -> Result<RowChange> {
    let table = Table::from_code(r.u8()?)?;
    let op = r.u8()?;
    let key_len = r.u16()?;
    let value_len = r.u32()? as usize;
    let key = r.take(key_len.into())?.to_vec();
    let value = r.take(value_len)?;
    match op {
        0 if value_len == 0 => Ok(RowChange::delete(table, key)),
        1 => Ok(RowChange::put(table, key, value)),
        _ => Err(Error::corrupt(format!(
            "a log record has an unknown row operation {op} with {value_len} bytes"
        ))),
    }
}

fn decode_exposure(r: &mut Reader<'_>, carries: bool) -> Result<Exposure> {
    let crc = r.u32()?;
    let count = r.u32()? as usize;
    if count == 0 || count > Exposure::SEGMENTS_MAX {
        return Err(Error::corrupt(format!(
            "a log record exposes {count} ranges; 1 to {} are possible",
            Exposure::SEGMENTS_MAX
        )));
    }
    let segments = (0..count).map(|_| Ok((r.u64()?, r.u32()?))).collect::<Result<Vec<_>>>()?;
    let mut exposure = Exposure { segments, crc, logged: None };
    if !exposure.fits()
        || exposure
            .segments
            .iter()
            .any(|(offset, len)| *len == 0 || offset.checked_add(u64::from(*len)).is_none())
    {
        return Err(Error::corrupt("a log record exposes an impossible range of the data device"));
    }
    if carries {
        let len = exposure.len_bytes();
        let bytes = r.take(len.min(Exposure::LOGGED_BYTES_MAX + 1) as usize)?.to_vec();
        if bytes.len() as u64 > Exposure::LOGGED_BYTES_MAX || crc32c(&bytes) != crc {
            return Err(Error::corrupt(format!(
                "a log record carries {len} bytes of data that are not what it exposes"
            )));
        }
        exposure.logged = Some(LoggedData { bytes, writes: Vec::new() });
    }
    Ok(exposure)
}

/// Encodes one record.
#[cfg(any(test, feature = "forge"))]
pub fn encode_record(record: &Record) -> Vec<u8> {
    let mut out = vec![0; record.encoded_len()];
    record.encode(&mut out);
    out
}

/// Fills a slice front to back.
struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        debug_assert!(
            self.at + bytes.len() <= self.out.len(),
            "a record is no longer than announced: {} bytes at {} of {}",
            bytes.len(),
            self.at,
            self.out.len()
        );
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn u32(&mut self, value: usize) {
        self.put(
            &u32::try_from(value)
                .expect("lengths within a log write are below 4 GiB")
                .to_le_bytes(),
        );
    }
}
