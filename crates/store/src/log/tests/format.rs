//! Encoding: what goes in comes out, and hostile bytes are refused without harm.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice, SimulatedDevice};
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::batch::{HEADER_BYTES, Header};
use super::*;
use crate::ErrorKind;
use crate::decode::Reader;
use crate::log::{LogDeviceHead, SyncOutcome};

fn any_row() -> impl Strategy<Value = RowChange> {
    (0..Table::ALL.len(), vec(any::<u8>(), 0..300), proptest::option::of(vec(any::<u8>(), 0..600)))
        .prop_map(|(table, key, value)| RowChange {
            table: Table::ALL[table],
            key: key.into(),
            value: value.map(Into::into),
        })
}

fn any_exposure() -> impl Strategy<Value = Exposure> {
    (vec((0..1_u64 << 40, 1..2000_u32), 1..20), any::<u32>()).prop_map(|(segments, crc)| Exposure {
        segments,
        crc,
        logged: None,
    })
}

fn any_record() -> impl Strategy<Value = Record> {
    (0..RecordKind::ALL.len(), vec(any_row(), 0..12), proptest::option::of(any_exposure()))
        .prop_map(|(kind, rows, exposes)| Record {
            kind: RecordKind::ALL[kind],
            rows,
            barrier: exposes.is_none(),
            exposes,
        })
}

fn encoded(record: &Record) -> Vec<u8> {
    let mut bytes = vec![0xee; record.encoded_len()];
    record.encode(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn a_record_comes_back_as_it_went(record in any_record(), next in any_record()) {
        let bytes = [encoded(&record), encoded(&next)].concat();
        let mut reader = Reader::new(&bytes, "records");
        prop_assert_eq!(Record::decode(&mut reader).unwrap(), record);
        prop_assert_eq!(Record::decode(&mut reader).unwrap(), next);
        reader.end().unwrap();
    }

    #[test]
    fn any_bytes_decode_or_are_refused(bytes in vec(any::<u8>(), 0..400)) {
        let mut reader = Reader::new(&bytes, "records");
        while let Ok(record) = Record::decode(&mut reader) {
            prop_assert!(record.encoded_len() <= bytes.len());
        }
    }

    #[test]
    fn a_damaged_record_decodes_to_no_more_than_its_bytes(record in any_record(), at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut bytes = encoded(&record);
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(other) = Record::decode(&mut Reader::new(&bytes, "records")) {
            prop_assert!(other.encoded_len() <= bytes.len());
        }
    }

    #[test]
    fn any_header_is_refused_or_within_bounds(bytes in vec(any::<u8>(), HEADER_BYTES), len in 0..6_000_000_u32, payload in 0..6_000_000_u32) {
        let mut bytes: [u8; HEADER_BYTES] = bytes.try_into().unwrap();
        bytes[..8].copy_from_slice(b"BEDPLOGW");
        bytes[12..16].copy_from_slice(&(len / 512 * 512).to_le_bytes());
        bytes[16..32].copy_from_slice(volume().as_bytes());
        bytes[80..84].copy_from_slice(&payload.to_le_bytes());
        let offset = u64::from_le_bytes(bytes[48..56].try_into().unwrap());
        if let Some(header) = Header::read(&bytes, volume(), offset) {
            prop_assert!(HEADER_BYTES as u32 + header.payload_len <= header.len && header.len <= 4 << 20);
            let _ = header.last();
        }
    }

    /// A valid checksum proves nothing about what it covers: whatever an intact batch holds is
    /// decoded with the same suspicion.
    #[test]
    fn an_intact_batch_of_nonsense_is_refused_without_a_panic(payload in vec(any::<u8>(), 0..400), count in 0..40_u32) {
        let parts = memory_parts(64 << 10);
        write_batch(&parts, 0, 1, &payload, count.min(payload.len() as u32 / 12));
        match collect(&parts, LogPosition::START) {
            Ok((report, _)) => prop_assert!(report.last.0 <= 40),
            Err(error) => prop_assert_eq!(error.kind, ErrorKind::Corrupt),
        }
    }

    #[test]
    fn a_ring_of_nonsense_is_an_empty_log(bytes in vec(any::<u8>(), 4096), offset in 0..16_u64, sequence in 1..100_u64) {
        let parts = memory_parts(64 << 10);
        let position = LogPosition { incarnation: 1, sequence, offset: offset * 4096, applied: Lsn(7) };
        parts.data.write_at(&AlignedBuf::from_slice(&bytes), RING_START + offset * 4096).unwrap();
        let (report, records) = collect(&parts, position).unwrap();
        prop_assert_eq!((report.last, records.len()), (Lsn(7), 0));
    }

    #[test]
    fn any_position_is_refused_or_replayed(bytes in vec(any::<u8>(), 32)) {
        if let Ok(position) = LogPosition::decode(&bytes) {
            prop_assert_eq!(position.encode(), bytes);
            let _ = collect(&memory_parts(64 << 10), position);
        }
    }
}

/// Writes a batch with a right checksum over any payload.
fn write_batch(parts: &LogParts, offset: u64, sequence: u64, payload: &[u8], count: u32) {
    let mut buf = AlignedBuf::zeroed(4096);
    buf[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(payload);
    let header = Header {
        len: 4096,
        incarnation: 1,
        sequence,
        offset,
        first: Lsn(1),
        sealed: Lsn(0),
        durable_sequence: 0,
        payload_len: payload.len() as u32,
        count,
    };
    header.write(parts.volume, &mut buf);
    parts.data.write_at(&buf, RING_START + offset).unwrap();
}

#[test]
fn a_batch_is_taken_only_where_it_was_written_and_by_its_own_volume() {
    let parts = memory_parts(64 << 10);
    write_batch(&parts, 0, 1, &encoded(&record(1, 10)), 1);
    assert_eq!(collect(&parts, LogPosition::START).unwrap().1.len(), 1);
    let other = LogParts { volume: Uuid::from_u128(1), ..parts.clone() };
    assert_eq!(collect(&other, LogPosition::START).unwrap().1.len(), 0);
    let mut copy = AlignedBuf::zeroed(4096);
    parts.data.read_at(&mut copy, RING_START).unwrap();
    parts.data.write_at(&copy, RING_START + 8192).unwrap();
    let elsewhere = LogPosition { offset: 8192, sequence: 2, ..LogPosition::START };
    assert_eq!(collect(&parts, elsewhere).unwrap().1.len(), 0);
}

#[test]
fn a_large_exposure_becomes_a_barrier() {
    let segments = vec![(0, 1 << 20), (1 << 20, 1)];
    let large = record(1, 1).exposing(Exposure { segments, crc: 0, logged: None });
    let many = record(1, 1).exposing(Exposure {
        segments: vec![(0, 1); Exposure::SEGMENTS_MAX + 1],
        crc: 0,
        logged: None,
    });
    for record in [large, many] {
        let decoded = Record::decode(&mut Reader::new(&encoded(&record), "a record")).unwrap();
        assert!(decoded.barrier && decoded.exposes.is_none());
        assert_eq!(decoded.rows, record.rows);
    }
}

#[test]
fn a_log_device_says_whose_it_is() {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(10 << 20);
    assert_eq!(LogDeviceHead::read(&device).unwrap(), None);
    let head = LogDeviceHead::plan(volume(), device.size_bytes(), 1 << 30, 1 << 20).unwrap();
    assert!(
        head.place.separate && head.place.start_byte + head.place.len_bytes == device.size_bytes()
    );
    head.write(&device).unwrap();
    assert_eq!(LogDeviceHead::read(&device).unwrap(), Some(head));
    assert_eq!(LogDeviceHead::plan(volume(), 1 << 20, 1 << 30, 1 << 20), None);

    let mut buf = AlignedBuf::zeroed(4096);
    device.read_at(&mut buf, 0).unwrap();
    buf[33] ^= 1;
    device.write_at(&buf, 0).unwrap();
    assert_eq!(LogDeviceHead::read(&device).unwrap_err().kind, ErrorKind::Corrupt);
}

#[test]
fn a_log_device_that_shrank_is_refused() {
    let large: Arc<dyn BlockDevice> = SimulatedDevice::new(10 << 20, 1);
    LogDeviceHead::plan(volume(), large.size_bytes(), 1 << 30, 1 << 20)
        .unwrap()
        .write(&large)
        .unwrap();
    let mut head = AlignedBuf::zeroed(4096);
    large.read_at(&mut head, 0).unwrap();
    let small: Arc<dyn BlockDevice> = MemoryDevice::new(5 << 20);
    small.write_at(&head, 0).unwrap();
    assert_eq!(LogDeviceHead::read(&small).unwrap_err().kind, ErrorKind::Corrupt);
}

#[test]
fn a_place_that_does_not_suit_the_device_is_refused() {
    let parts = memory_parts(64 << 10);
    for (start_byte, len_bytes) in [
        (RING_START, 1 << 40),
        (u64::MAX, 4096),
        (100, 64 << 10),
        (RING_START, 1000),
        (RING_START, 2048),
    ] {
        let wrong = LogParts {
            place: LogPlace { separate: false, start_byte, len_bytes },
            ..parts.clone()
        };
        assert_eq!(
            IntentLog::open(wrong, LogPosition::START).unwrap_err().kind,
            ErrorKind::Corrupt,
            "{start_byte} {len_bytes}"
        );
    }
    let odd = LogPosition { offset: 512, ..LogPosition::START };
    assert_eq!(IntentLog::open(parts, odd).unwrap_err().kind, ErrorKind::Corrupt);
}

#[test]
fn a_ring_aligned_to_sectors_only_is_written_in_sectors() {
    let mut parts = memory_parts(64 << 10);
    parts.place.start_byte += 512;
    let log = open(&parts);
    log.append(&record(1, 10));
    log.append(&record(2, 1000));
    assert_eq!(log.sync(Lsn(1)).unwrap(), SyncOutcome::Durable);
    assert_eq!((parts.data.counters().written_bytes, log.info().used_bytes), (1536, 1536));
    assert_eq!(collect(&parts, LogPosition::START).unwrap().1.len(), 2);
}
