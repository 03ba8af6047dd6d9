//! The parity log's bytes: what is about to be written into rows, on every member its own part.
//!
//! ```text
//!   2.5 MiB + 512 KiB × ordinal of the volume
//!     0        head, slot 0 ┐ epoch, generation, first ordinal that counts; written in turn, the larger generation counts
//!     4 KiB    head, slot 1 ┘
//!     8 KiB    records: a page that says what, then the bytes; one after the other until the log is full, then a new head and from the start
//! ```
//! A record counts when its epoch is the head's, its ordinal is not below the head's, and *every
//! member that is up to date and takes part* holds its own part whole. The epoch is drawn at random
//! at every import, so nothing that a user writes can pass for a record.

use bedplate_block::{AlignedBuf, Segment};

use crate::Id;
use crate::wire::{Reader, crc32c};

/// Where the log of the first volume begins on a member.
const AREA_START: u64 = (2 << 20) + (512 << 10);
/// Bytes that a volume's log takes on a member.
pub(crate) const AREA_BYTES: u64 = 512 << 10;
/// The unit of everything in it: no device has larger sectors.
pub(crate) const PAGE: usize = 4096;
/// Where records begin.
const RECORDS: u64 = 2 * PAGE as u64;
/// The most bytes of a member in one record.
pub(crate) const BATCH_BYTES: u64 = 128 << 10;
/// The most places in one record.
pub(crate) const BATCH_PLACES: usize = 64;

/// The largest generation and ordinal that is believed.
const COUNTED_MAX: u64 = 1 << 48;
const _: () = assert!(
    AREA_START + crate::group::VOLUMES_MAX as u64 * AREA_BYTES <= crate::layout::SCRATCH_START,
    "the parity logs of all volumes end before the scratch area"
);
const _: () = assert!(
    PAGE as u64 + BATCH_BYTES <= AREA_BYTES - RECORDS && BATCH_BYTES.is_multiple_of(PAGE as u64),
    "a log holds a record of the largest size, in whole pages"
);

const HEAD_MAGIC: &[u8; 4] = b"PLHD";
const RECORD_MAGIC: &[u8; 4] = b"PLRC";

/// Returns where the log of a volume begins on every member.
pub(crate) fn area(volume: usize) -> u64 {
    AREA_START + volume as u64 * AREA_BYTES
}

/// Says which records count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub generation: u64,
    pub incarnation: u64,
    pub first: u64,
}

impl Head {
    /// Returns its page and where in the area that belongs.
    pub fn encode(&self, group: Id) -> (AlignedBuf, u64) {
        let mut page = start(*HEAD_MAGIC, group);
        page[24..32].copy_from_slice(&self.incarnation.to_le_bytes());
        page[32..40].copy_from_slice(&self.generation.to_le_bytes());
        page[40..48].copy_from_slice(&self.first.to_le_bytes());
        seal(&mut page);
        (page, self.generation % 2 * PAGE as u64)
    }

    /// Finds the head that counts in a member's area; the zero head where there is none.
    pub fn find(area: &[u8], group: Id) -> Self {
        let heads = area.chunks_exact(PAGE).take(2).filter_map(|page| decode_head(page, group));
        heads.max_by_key(|head| head.generation).unwrap_or_default()
    }
}

fn decode_head(page: &[u8], group: Id) -> Option<Head> {
    let mut reader = open(page, *HEAD_MAGIC, group)?;
    let head = Head {
        incarnation: reader.u64("epoch").ok()?,
        generation: reader.u64("generation").ok()?,
        first: reader.u64("first").ok()?,
    };
    // Both are counted, so none that is further away ever was, and there is always a next one.
    (head.generation <= COUNTED_MAX && head.first <= COUNTED_MAX).then_some(head)
}

/// One member's part of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordPart {
    pub incarnation: u64,
    pub ordinal: u64,
    pub column: u16,
    /// The columns that take part.
    pub columns: u128,
    /// Where on the member the bytes belong, one behind the other.
    pub places: Vec<Segment>,
    pub bytes: Vec<u8>,
}

impl RecordPart {
    /// Returns the bytes that go to the log.
    pub fn encode(&self, group: Id) -> AlignedBuf {
        assert!(
            self.places.len() <= BATCH_PLACES && self.bytes.len() as u64 <= BATCH_BYTES,
            "a record is no larger than a batch"
        );
        let mut page = start(*RECORD_MAGIC, group);
        page[24..32].copy_from_slice(&self.incarnation.to_le_bytes());
        page[32..40].copy_from_slice(&self.ordinal.to_le_bytes());
        page[40..56].copy_from_slice(&self.columns.to_le_bytes());
        page[56..58].copy_from_slice(&self.column.to_le_bytes());
        page[58..60].copy_from_slice(&(self.places.len() as u16).to_le_bytes());
        page[60..64].copy_from_slice(&(self.bytes.len() as u32).to_le_bytes());
        page[64..68].copy_from_slice(&crc32c(&self.bytes).to_le_bytes());
        for (place, out) in self.places.iter().zip(page[72..].chunks_exact_mut(12)) {
            out[..8].copy_from_slice(&place.offset.to_le_bytes());
            out[8..].copy_from_slice(&place.len.to_le_bytes());
        }
        seal(&mut page);
        let mut out = AlignedBuf::zeroed(PAGE + self.bytes.len().next_multiple_of(PAGE));
        out[..PAGE].copy_from_slice(&page);
        out[PAGE..PAGE + self.bytes.len()].copy_from_slice(&self.bytes);
        out
    }

    /// Returns the parts that stand whole in a member's area and that the head lets count.
    pub fn find(area: &[u8], group: Id, head: Head) -> Vec<Self> {
        let starts = (RECORDS as usize..area.len()).step_by(PAGE);
        let parts = starts.filter_map(|at| decode_part(&area[at..], group));
        parts
            .filter(|part| part.incarnation == head.incarnation && part.ordinal >= head.first)
            .collect()
    }
}

fn decode_part(from: &[u8], group: Id) -> Option<RecordPart> {
    let mut reader = open(from.get(..PAGE)?, *RECORD_MAGIC, group)?;
    let (incarnation, ordinal) = (reader.u64("epoch").ok()?, reader.u64("ordinal").ok()?);
    let (low, high) = (reader.u64("columns").ok()?, reader.u64("columns").ok()?);
    let (column, count) = (reader.u16("column").ok()?, reader.u16("places").ok()?);
    let (len, crc) = (reader.u32("length").ok()? as usize, reader.u32("checksum").ok()?);
    reader.u32("zero").ok()?;
    let places: Option<Vec<Segment>> = (0..count)
        .map(|_| {
            Some(Segment { offset: reader.u64("offset").ok()?, len: reader.u32("length").ok()? })
        })
        .collect();
    let places = places?;
    let bytes = from.get(PAGE..)?.get(..len)?;
    let whole =
        crc32c(bytes) == crc && places.iter().map(|place| place.len as usize).sum::<usize>() == len;
    whole.then(|| RecordPart {
        incarnation,
        ordinal,
        column,
        columns: u128::from(high) << 64 | u128::from(low),
        places,
        bytes: bytes.to_vec(),
    })
}

/// Makes the checksums of heads and records right.
#[cfg(feature = "forge")]
pub(crate) fn reseal(area: &mut [u8]) {
    for at in (0..area.len()).step_by(PAGE) {
        let (page, rest) = area[at..].split_at_mut(PAGE);
        if page[4..8] == *RECORD_MAGIC {
            let len = u32::from_le_bytes(page[60..64].try_into().expect("four bytes")) as usize;
            let crc = crc32c(&rest[..len.min(rest.len())]);
            page[64..68].copy_from_slice(&crc.to_le_bytes());
        }
        if page[4..8] == *RECORD_MAGIC || page[4..8] == *HEAD_MAGIC {
            seal(page);
        }
    }
}

fn start(magic: [u8; 4], group: Id) -> AlignedBuf {
    let mut page = AlignedBuf::zeroed(PAGE);
    page[4..8].copy_from_slice(&magic);
    page[8..24].copy_from_slice(&group.0);
    page
}

fn seal(page: &mut [u8]) {
    let crc = crc32c(&page[4..]);
    page[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Checks a page and returns a reader that stands behind what all pages have.
fn open(page: &[u8], magic: [u8; 4], group: Id) -> Option<Reader<'_>> {
    let good = page[4..8] == magic
        && page[8..24] == group.0
        && page[..4] == crc32c(&page[4..]).to_le_bytes();
    let mut reader = Reader::new(page);
    reader.take(24, "the start").ok().filter(|_| good)?;
    Some(reader)
}

/// Where the next record goes, and which rows a crash would write again.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    pub head: Head,
    pub next: u64,
    at: u64,
    pub rows: std::collections::HashSet<u64>,
}

impl Tail {
    /// Starts over behind a head.
    pub fn restart(&mut self, head: Head) {
        *self =
            Self { head, next: head.first, at: RECORDS, rows: std::collections::HashSet::new() };
    }

    /// Returns the head that lets no record so far count.
    pub fn next_head(&self) -> Head {
        Head { generation: self.head.generation + 1, first: self.next, ..self.head }
    }

    /// Takes room for a record: its place in the area and its ordinal. `None` when the log is full.
    pub fn take(&mut self, bytes: usize) -> Option<(u64, u64)> {
        let len = (PAGE + bytes.next_multiple_of(PAGE)) as u64;
        let at = self.at;
        if at == 0 || at + len > AREA_BYTES {
            return None;
        }
        self.at += len;
        self.next += 1;
        Some((at, self.next - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Id = Id([3; 16]);

    fn part(ordinal: u64, fill: u8) -> RecordPart {
        let places =
            vec![Segment { offset: 5 << 20, len: 512 }, Segment { offset: 6 << 20, len: 4096 }];
        RecordPart {
            incarnation: 77,
            ordinal,
            column: 2,
            columns: 0b110 | 1 << 100,
            places,
            bytes: vec![fill; 4608],
        }
    }

    #[test]
    fn a_part_counts_only_whole_and_from_the_head_on() {
        let mut area = vec![0; AREA_BYTES as usize];
        let head = Head { generation: 5, incarnation: 77, first: 9 };
        let mut tail = Tail::default();
        assert_eq!(tail.take(512), None, "a log that was not started takes nothing");
        tail.restart(head);
        for fill in [1, 2] {
            let (at, ordinal) = tail.take(4608).unwrap();
            let bytes = part(ordinal, fill).encode(GROUP);
            area[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        for head in [Head { generation: 4, ..head }, head] {
            let (page, at) = head.encode(GROUP);
            area[at as usize..at as usize + PAGE].copy_from_slice(&page);
        }
        assert_eq!(Head::find(&area, GROUP), head);
        assert_eq!(RecordPart::find(&area, GROUP, head), vec![part(9, 1), part(10, 2)]);
        assert_eq!(RecordPart::find(&area, GROUP, tail.next_head()), vec![]);
        assert_eq!(RecordPart::find(&area, GROUP, Head { incarnation: 78, ..head }), vec![]);
        assert_eq!(Head::find(&area, Id([4; 16])), Head::default());
        // A counter without a next value would overflow with the next head.
        let mut wild = area.clone();
        let (page, at) = Head { generation: u64::MAX - 1, ..head }.encode(GROUP);
        wild[at as usize..at as usize + PAGE].copy_from_slice(&page);
        assert_eq!(Head::find(&wild, GROUP), head);
        // Torn: the last byte of the second did not arrive.
        area[RECORDS as usize + 3 * PAGE + PAGE + 4607] = 0;
        assert_eq!(RecordPart::find(&area, GROUP, head), vec![part(9, 1)]);
    }

    #[test]
    fn a_full_log_takes_nothing_until_it_starts_over() {
        let mut tail = Tail::default();
        tail.restart(Head { generation: 1, incarnation: 1, first: 0 });
        let mut taken = 0;
        while tail.take(16_384).is_some() {
            taken += 1;
        }
        assert_eq!(taken, (AREA_BYTES - RECORDS) / 20_480);
        tail.restart(tail.next_head());
        assert_eq!(tail.take(16_384), Some((RECORDS, taken)));
    }
}
