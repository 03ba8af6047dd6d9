//! Replay: reads the ring from the last durable metadata commit on and hands over what was
//! acknowledged, and perhaps a little more.
//!
//! Two passes. The first follows the chain of intact batches to its end and learns what the last of
//! them seals; the second hands the records over, up to the first one that is not sealed and whose
//! data is not there. Both read the ring only, a window at a time, each byte at most once a pass;
//! data is read for records that are not sealed, 1 MiB a record at most.
//!
//! A batch that is not intact is what a power cut leaves of a log write that was not acknowledged.
//! It is *damage* when a later batch says that it had been durable (`durable sequence` in the
//! header).
//!
//! What one copy of a mirror, or of a RAID-5, does not hold another may: whatever has a checksum is
//! looked for in all of them before the log is said to end there (`window`, S-408).
//!
//! A device may answer two reads of one place differently. What a checksum covers is taken from the
//! bytes that it was computed of, never from an earlier read; and what looks as if it had not
//! arrived is read once more before the log is said to end there.

use super::batch::{BATCH_BYTES_MAX, HEADER_BYTES, Header, Mismatch, SECTOR};
use super::window::Window;
use super::{Exposure, LogParts, LogPosition, Record};
use crate::decode::Reader;
use crate::planted::{PlantedBug, planted};
use crate::{Error, Lsn, Result};

/// What a replay found.
#[derive(Debug, Clone)]
pub struct ReplayReport {
    /// Records handed to the visitor.
    pub records: u64,
    /// The last record of the log: every one up to it is in the metadata or was visited.
    pub last: Lsn,
    /// Why the log ends there, one sentence.
    pub end: String,
    /// Says which part is damaged although it had once been durable: acknowledged records are lost.
    pub damaged: Option<String>,
    /// Bytes of the data device, offset and length, that decided whether a record counts. As long
    /// as this log may be replayed again, they must stay.
    pub checked: Vec<(u64, u32)>,
    /// What records carry that the data device may not have: offset in bytes, and the bytes, to be
    /// written there in this order before the volume is. What is among `checked`, too.
    pub homes: Vec<(u64, Vec<u8>)>,
    /// The position of the next incarnation; open the log there once a durable metadata commit
    /// holds it.
    pub next: LogPosition,
    /// How often a copy was not what was written and another was, which counted.
    pub healed: u64,
    /// What the log goes on behind where there can be no such commit.
    pub kept: Kept,
}

impl ReplayReport {
    /// Takes note of what a record exposes that is not sealed.
    fn note(&mut self, exposure: &Exposure) {
        self.checked.extend(&exposure.segments);
        if !planted(PlantedBug::HomeNotReplayed) {
            self.homes.extend(exposure.carried().map(|(at, bytes)| (at, bytes.to_vec())));
        }
    }
}

/// A log as replay found it.
#[derive(Debug, Clone)]
pub struct Kept {
    /// From where it was replayed.
    pub(super) position: LogPosition,
    /// The log writes that count in whole, in order.
    pub(super) batches: Vec<Header>,
    /// Records that count of the log write behind them, which does not count in whole.
    pub(super) rest: Vec<Record>,
    pub(super) sealed: Lsn,
}

/// Hands every record of the log after `position` to `visitor`, in order. Changes nothing on any
/// device.
///
/// What is read may sit in volatile caches (the process was killed, the machine not): a mount that
/// goes on to write flushes both devices, then commits the metadata durably together with
/// [`ReplayReport::next`], and only then opens the log there.
///
/// # Errors
/// `Corrupt` when an intact log write holds what this software does not write; errors of the
/// devices and of the visitor.
pub fn replay(
    parts: &LogParts,
    position: LogPosition,
    mut visitor: impl FnMut(Lsn, Record) -> Result<()>,
) -> Result<ReplayReport> {
    parts.check()?;
    if position.offset > parts.place.len_bytes {
        return Err(Error::corrupt(format!(
            "the log position names byte {} of a ring of {} bytes",
            position.offset, parts.place.len_bytes
        )));
    }
    let mut ring = Window::new(parts.ring_device(), parts.place.start_byte, parts.place.len_bytes);
    let chain = follow(parts, &mut ring, position)?;
    let mut report = ReplayReport {
        records: 0,
        last: position.applied,
        end: chain.end.clone(),
        damaged: chain.damaged.clone(),
        checked: Vec::new(),
        homes: Vec::new(),
        next: LogPosition {
            incarnation: position.incarnation + u64::from(!planted(PlantedBug::SameIncarnation)),
            ..LogPosition::START
        },
        healed: 0,
        kept: Kept { position, batches: Vec::new(), rest: Vec::new(), sealed: chain.sealed },
    };
    let mut data = Window::new(&parts.data, 0, parts.data.size_bytes());
    let mut cursor = Cursor::new(position);
    while cursor.sequence < chain.sequence {
        let Ok(header) = cursor.find(parts, &mut ring)? else {
            let message = format!(
                "{}: log write {} was intact and is no longer: the device is failing",
                ring.device.name(),
                cursor.sequence
            );
            return Err(Error::corrupt(message));
        };
        let before = report.last;
        if !visit_batch(&mut ring, &mut data, &header, chain.sealed, &mut report, &mut visitor)? {
            report.kept.rest = records_between(&mut ring, &header, before, report.last)?;
            break;
        }
        report.kept.batches.push(header);
        cursor.pass(&header);
    }
    debug_assert!(
        report.last >= position.applied,
        "I-LOG-7: replay ends at {:?}, not before the last commit at {:?}",
        report.last,
        position.applied
    );
    report.next.applied = report.last;
    report.healed = ring.healed + data.healed;
    Ok(report)
}

/// What the first pass learned.
#[derive(Debug)]
struct Chain {
    /// The first sequence number that is not in the chain.
    sequence: u64,
    sealed: Lsn,
    end: String,
    damaged: Option<String>,
}

fn follow(parts: &LogParts, ring: &mut Window<'_>, position: LogPosition) -> Result<Chain> {
    let mut cursor = Cursor::new(position);
    let mut sealed = position.applied;
    loop {
        match cursor.find(parts, ring)? {
            Ok(header) => {
                if header.first.0 > cursor.expected.0 {
                    let message = format!(
                        "{}: log write {} at ring byte {} starts with record {} where {} should \
                         follow",
                        ring.device.name(),
                        header.sequence,
                        header.offset,
                        header.first.0,
                        cursor.expected.0
                    );
                    return Err(Error::corrupt(message));
                }
                sealed = sealed.max(header.sealed);
                cursor.pass(&header);
            }
            Err(mismatch) => {
                let what = match mismatch {
                    Mismatch::Absent => "does not exist",
                    Mismatch::Torn => "is incomplete",
                };
                let end =
                    format!("log write {} (ring byte {}) {what}", cursor.sequence, cursor.offset);
                let damaged = look_beyond(parts, ring, &cursor)?;
                return Ok(Chain { sequence: cursor.sequence, sealed, end, damaged });
            }
        }
    }
}

/// Where the next batch should be.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    incarnation: u64,
    sequence: u64,
    offset: u64,
    /// The lsn that comes next: a batch may start before it (its first records are held by the
    /// metadata), never after it.
    expected: Lsn,
}

impl Cursor {
    fn new(position: LogPosition) -> Self {
        let LogPosition { incarnation, sequence, offset, applied } = position;
        Self { incarnation, sequence, offset, expected: Lsn(applied.0.saturating_add(1)) }
    }

    /// Finds the batch behind the one before, or at the start of the ring when it did not fit
    /// there.
    fn find(
        &self,
        parts: &LogParts,
        ring: &mut Window<'_>,
    ) -> Result<std::result::Result<Header, Mismatch>> {
        let found = self.look(parts, ring)?;
        if found.is_ok() {
            return Ok(found);
        }
        ring.forget();
        self.look(parts, ring)
    }

    fn look(
        &self,
        parts: &LogParts,
        ring: &mut Window<'_>,
    ) -> Result<std::result::Result<Header, Mismatch>> {
        let here = self.find_at(parts, ring, self.offset)?;
        if here.is_ok() || self.offset == 0 || planted(PlantedBug::WrapNotFollowed) {
            return Ok(here);
        }
        let at_start = self.find_at(parts, ring, 0)?;
        Ok(if at_start == Err(Mismatch::Absent) { here } else { at_start })
    }

    fn find_at(
        &self,
        parts: &LogParts,
        ring: &mut Window<'_>,
        offset: u64,
    ) -> Result<std::result::Result<Header, Mismatch>> {
        let mut found = Err(Mismatch::Absent);
        for header in read_headers(parts, ring, offset)? {
            if header.incarnation != self.incarnation || header.sequence != self.sequence {
                continue;
            }
            if has_whole(parts, ring, &header)? {
                return Ok(Ok(header));
            }
            found = Err(Mismatch::Torn);
        }
        Ok(found)
    }

    fn pass(&mut self, header: &Header) {
        debug_assert_eq!(
            (header.incarnation, header.sequence),
            (self.incarnation, self.sequence),
            "I-LOG-7: the cursor passes the log write that it looked for"
        );
        self.sequence += 1;
        self.offset = header.offset + u64::from(header.len);
        self.expected = self.expected.max(Lsn(header.first.0 + u64::from(header.count)));
    }
}

/// Reads the header that each copy has at an offset, as far as it is possible and its batch lies
/// within the ring.
fn read_headers(parts: &LogParts, ring: &mut Window<'_>, offset: u64) -> Result<Vec<Header>> {
    if !offset.is_multiple_of(SECTOR) || offset.saturating_add(HEADER_BYTES as u64) > ring.len {
        return Ok(Vec::new());
    }
    let len = ring.len;
    let versions = ring.versions(offset, HEADER_BYTES)?.into_iter();
    let headers = versions.filter_map(|bytes| {
        let header = Header::read(bytes.first_chunk()?, parts.volume, offset)?;
        (offset + u64::from(header.len) <= len).then_some(header)
    });
    Ok(headers.collect())
}

/// Says whether a copy of the batch that a header is of is what was written.
fn has_whole(parts: &LogParts, ring: &mut Window<'_>, header: &Header) -> Result<bool> {
    let len = header.len as usize;
    ring.is_right(header.offset, len, &|batch| is_whole(parts, header, batch))
}

/// Says whether a batch is what was written, and its header the one that was read: the window may
/// have been read again in between.
fn is_whole(parts: &LogParts, header: &Header, batch: &[u8]) -> bool {
    let again =
        batch.first_chunk().and_then(|bytes| Header::read(bytes, parts.volume, header.offset));
    again.as_ref() == Some(header) && (header.intact(batch) || planted(PlantedBug::TornBatchTaken))
}

/// A medium full of headers without content must not keep a mount busy.
const CANDIDATES_MAX: u32 = 64;

/// Looks for proof that the batch at the cursor had been durable: a later one that says so. No
/// batch is longer than [`BATCH_BYTES_MAX`], so the next one is within that distance, and the one
/// that was written after it was durable hardly further.
fn look_beyond(parts: &LogParts, ring: &mut Window<'_>, cursor: &Cursor) -> Result<Option<String>> {
    let reach = (2 * BATCH_BYTES_MAX).min(ring.len);
    let start = cursor.offset.next_multiple_of(SECTOR).min(ring.len);
    let end = (start + reach).min(ring.len);
    let wrapped = reach - (end - start);
    let step = usize::try_from(SECTOR).expect("a sector is small");
    let mut patience = CANDIDATES_MAX;
    for offset in (start..end).step_by(step).chain((0..wrapped).step_by(step)) {
        for header in read_headers(parts, ring, offset)? {
            if header.incarnation != cursor.incarnation
                || header.sequence <= cursor.sequence
                || header.durable_sequence < cursor.sequence
            {
                continue;
            }
            if has_whole(parts, ring, &header)? {
                return Ok(Some(format!(
                    "log write {} (ring byte {}) is damaged: write {} (ring byte {offset}) says \
                     that it was durable; acknowledged records from {} on are lost",
                    cursor.sequence, cursor.offset, header.sequence, cursor.expected.0
                )));
            }
            patience -= 1;
            if patience == 0 {
                return Ok(None);
            }
        }
    }
    Ok(None)
}

/// Looks once more whether the data of a record arrived: the first answer may have been the wrong
/// one.
fn has_arrived_after_all(data: &mut Window<'_>, exposure: &Exposure) -> Result<bool> {
    data.forget();
    has_arrived(data, exposure)
}

/// Notes that the log ends before a record whose data did not arrive, or cannot be read.
fn end_before(lsn: Lsn, arrived: Result<bool>, report: &mut ReplayReport) {
    match arrived {
        Ok(_) => {
            report.end = format!("record {} exposes data that did not reach the device", lsn.0);
        }
        Err(error) => {
            // Unreadable is not the same as unwritten: whether the record had been acknowledged
            // cannot be told.
            report.end = format!(
                "record {} exposes data that cannot be read ({error}); records from it on are lost",
                lsn.0
            );
            report.damaged.get_or_insert_with(|| report.end.clone());
        }
    }
}

/// Hands over a record, the next after the last (I-LOG-7).
fn deliver(
    lsn: Lsn,
    record: Record,
    report: &mut ReplayReport,
    visitor: &mut impl FnMut(Lsn, Record) -> Result<()>,
) -> Result<()> {
    debug_assert!(
        lsn.0 == report.last.0 + 1,
        "I-LOG-7: replay hands records over one after the other: {lsn:?} after {:?}",
        report.last
    );
    visitor(lsn, record)?;
    report.records += 1;
    report.last = lsn;
    Ok(())
}

/// Hands over the records of an intact batch; `false` when the log ends within it.
fn visit_batch(
    ring: &mut Window<'_>,
    data: &mut Window<'_>,
    header: &Header,
    sealed: Lsn,
    report: &mut ReplayReport,
    visitor: &mut impl FnMut(Lsn, Record) -> Result<()>,
) -> Result<bool> {
    let name = ring.device.name();
    let place = |error: Error| {
        let message = format!(
            "{name}: log write {} at ring byte {}: {}",
            header.sequence, header.offset, error.message
        );
        Error { message, ..error }
    };
    let mut payload = Reader::new(
        header.payload(ring.bytes(header.offset, header.len as usize)?),
        "the payload of a log write",
    );
    for index in 0..u64::from(header.count) {
        let lsn = Lsn(header.first.0 + index);
        let record = Record::decode(&mut payload).map_err(place)?;
        if lsn <= report.last {
            continue;
        }
        if lsn.0 != report.last.0 + 1 {
            // I-LOG-7. The first pass saw to it; a device that answers differently the second time
            // is failing.
            return Err(place(Error::corrupt(format!(
                "record {} follows record {}: the device is failing",
                lsn.0, report.last.0
            ))));
        }
        if (lsn > sealed || planted(PlantedBug::SealNotBelieved))
            && !planted(PlantedBug::ExposureNotChecked)
            && let Some(exposure) = record.exposes.as_ref().filter(|it| it.logged.is_none())
            && !has_arrived(data, exposure).unwrap_or(false)
        {
            let arrived = has_arrived_after_all(data, exposure);
            if matches!(arrived, Ok(false)) && planted(PlantedBug::GapInReplay) {
                report.last = lsn;
                continue;
            }
            if !matches!(arrived, Ok(true)) {
                end_before(lsn, arrived, report);
                return Ok(false);
            }
        }
        if let Some(exposure) = record.exposes.as_ref().filter(|_| lsn > sealed) {
            report.note(exposure);
        }
        deliver(lsn, record, report, visitor)?;
    }
    payload.end().map_err(place)?;
    Ok(true)
}

/// Reads the records of an intact batch that come after one and not after another; all their data
/// is there.
fn records_between(
    ring: &mut Window<'_>,
    header: &Header,
    after: Lsn,
    upto: Lsn,
) -> Result<Vec<Record>> {
    let mut payload = Reader::new(
        header.payload(ring.bytes(header.offset, header.len as usize)?),
        "the payload of a log write",
    );
    let mut records = Vec::new();
    for lsn in (header.first.0..=upto.0).map(Lsn) {
        let record = Record::decode(&mut payload)?;
        if lsn > after {
            records.push(Record { exposes: None, barrier: false, ..record });
        }
    }
    Ok(records)
}

/// Says whether the data that a record exposes is there.
fn has_arrived(data: &mut Window<'_>, exposure: &Exposure) -> Result<bool> {
    data.hold(&exposure.segments, exposure.crc)
}
