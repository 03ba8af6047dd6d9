//! Failing devices and damaged media.

use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, Fault, FaultRule, FlushFault, MemoryDevice, ReadFault,
    SimulatedDevice, Trigger, WriteFault,
};

use super::*;
use crate::ErrorKind;
use crate::log::SyncOutcome;

const RING: u64 = 64 << 10;

fn simulated() -> (Arc<SimulatedDevice>, LogParts) {
    let device = SimulatedDevice::new(1 << 20, 3);
    (Arc::clone(&device), parts_on(device, RING))
}

fn assert_latched(device: &SimulatedDevice, log: &IntentLog, acknowledged: Lsn) {
    device.clear_faults();
    let error = log.failed().expect("the failure is kept");
    assert!(error.message.contains("nothing later can be made durable"), "{error}");
    let flushes = device.counters().flushes;
    for lsn in [Lsn(0), acknowledged, log.append(&record(9, 10))] {
        assert_eq!(log.sync(lsn).unwrap_err().message, error.message, "I-LOG-6");
        assert_eq!(log.seal(lsn).unwrap_err().message, error.message, "I-LOG-6");
        assert_eq!(log.permit_overwrite(lsn).unwrap_err().message, error.message, "I-LOG-6");
    }
    assert_eq!(log.durable_lsn(), acknowledged);
    assert_eq!(device.counters().flushes, flushes, "a failed device is left alone");
}

#[test]
fn a_failed_flush_latches_the_log_although_the_next_would_succeed() {
    let (device, parts) = simulated();
    let log = open(&parts);
    let first = log.append(&record(1, 10));
    assert_eq!(log.sync(first).unwrap(), SyncOutcome::Durable);
    device.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Next(1)));
    let second = log.append(&record(2, 10));
    let error = log.sync(second).unwrap_err();
    assert_eq!((error.kind, error.source.is_some()), (ErrorKind::Io, true));
    assert_latched(&device, &log, first);
}

#[test]
fn a_failed_flush_without_records_latches_too() {
    let (device, parts) = simulated();
    let log = open(&parts);
    device.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Next(1)));
    assert!(log.sync(Lsn(0)).is_err());
    assert_latched(&device, &log, Lsn(0));
}

#[test]
fn a_failed_write_latches_the_log() {
    for fault in [WriteFault::Fail, WriteFault::NoSpace] {
        let (device, parts) = simulated();
        let log = open(&parts);
        device.inject(FaultRule::new(Fault::Write(fault), Trigger::Next(1)));
        let lsn = log.append(&record(1, 10));
        assert!(log.sync(lsn).is_err());
        assert_latched(&device, &log, Lsn(0));
    }
}

#[test]
fn a_latched_log_buffers_no_more_than_a_healthy_one() {
    let (device, parts) = simulated();
    let log = open(&parts);
    device.die();
    assert!(log.sync(Lsn(0)).is_err());
    for n in 1..=2000 {
        log.append(&record(n, 1000));
        assert!(log.buffered_bytes() <= RING / 2);
    }
}

#[test]
fn a_failure_of_either_device_latches_a_log_on_its_own() {
    for fail_data in [true, false] {
        let (data, log_device) =
            (SimulatedDevice::new(1 << 20, 4), SimulatedDevice::new(1 << 20, 5));
        let place = LogPlace { separate: true, start_byte: RING_START, len_bytes: RING };
        let parts = LogParts {
            data: Arc::clone(&data) as _,
            log: Some(Arc::clone(&log_device) as _),
            volume: volume(),
            place,
        };
        let log = open(&parts);
        let first = log.append(&record(1, 10).exposing(Exposure::of(1 << 17, &[0; 10])));
        assert_eq!(log.sync(first).unwrap(), SyncOutcome::Durable);
        assert_eq!(log.sealed_lsn(), first, "data before log: sealed at once");
        assert_eq!(
            (data.counters().flushes, log_device.counters().flushes, log_device.counters().writes),
            (1, 1, 1)
        );
        assert_eq!(log.sync(Lsn(0)).unwrap(), SyncOutcome::Durable);
        assert_eq!(
            (data.counters().flushes, log_device.counters().flushes),
            (2, 1),
            "no news: the log device is left alone"
        );

        let broken = if fail_data { &data } else { &log_device };
        broken.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Next(1)));
        let second = log.append(&record(2, 10));
        assert!(log.sync(second).is_err());
        assert_latched(broken, &log, first);
    }
}

/// Five durable batches of one record each, a unit long.
fn five_batches() -> LogParts {
    let parts = memory_parts(RING);
    let log = open(&parts);
    for n in 1..=5 {
        let lsn = log.append(&record(n, 10));
        assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
    }
    parts
}

fn spoil(parts: &LogParts, ring_byte: u64) {
    let mut buf = AlignedBuf::zeroed(512);
    let offset = RING_START + ring_byte / 512 * 512;
    parts.data.read_at(&mut buf, offset).unwrap();
    buf[(ring_byte % 512) as usize] ^= 0x10;
    parts.data.write_at(&buf, offset).unwrap();
}

#[test]
fn damage_in_the_middle_is_told_from_a_torn_tail() {
    for (batch, byte, last) in [(0, 0, 0), (2, 0, 2), (2, 40, 2), (2, 100, 2), (3, 100, 3)] {
        let parts = five_batches();
        spoil(&parts, batch * 4096 + byte);
        let (report, _) = collect(&parts, LogPosition::START).unwrap();
        assert_eq!(report.last, Lsn(last), "batch {batch}, byte {byte}");
        let damaged = report.damaged.expect("a later batch proves that this one had been durable");
        assert!(damaged.contains(&format!("log write {} ", batch + 1)), "{damaged}");
    }
    let parts = five_batches();
    spoil(&parts, 4 * 4096 + 100);
    let (report, _) = collect(&parts, LogPosition::START).unwrap();
    assert_eq!((report.last, report.damaged), (Lsn(4), None));
    assert!(report.end.contains("is incomplete"), "{}", report.end);
}

#[test]
fn damage_before_the_end_of_the_ring_is_proved_by_a_batch_at_its_start() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    let mut position = LogPosition::START;
    for n in 1..=17 {
        let lsn = log.append(&record(n, 10));
        assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
        if n == 8 {
            position = log.position_after(lsn);
            log.trim(position);
        }
    }
    spoil(&parts, 15 * 4096 + 8);
    let (report, _) = collect(&parts, position).unwrap();
    assert_eq!(report.last, Lsn(15));
    assert!(report.damaged.is_some_and(|damaged| damaged.contains("write 17 (ring byte 0)")));
}

#[test]
fn exposed_data_that_cannot_be_read_ends_the_log_and_is_called_damage() {
    let (device, parts) = simulated();
    let log = open(&parts);
    log.append(&record(1, 10));
    log.append(&record(2, 10).exposing(Exposure::of(1 << 18, &[0; 10])));
    assert_eq!(log.sync(Lsn(2)).unwrap(), SyncOutcome::Durable);
    device.inject(
        FaultRule::new(Fault::Read(bedplate_block::ReadFault::Fail), Trigger::Always)
            .within(1 << 18..(1 << 18) + 512),
    );
    let (report, _) = collect(&parts, LogPosition::START).unwrap();
    assert_eq!(report.last, Lsn(1));
    assert!(report.damaged.is_some_and(|damaged| damaged.contains("cannot be read")));
}

#[test]
fn a_ring_that_cannot_be_read_is_an_error_and_not_an_empty_log() {
    let (device, parts) = simulated();
    device.inject(FaultRule::new(Fault::Read(bedplate_block::ReadFault::Fail), Trigger::Always));
    assert_eq!(collect(&parts, LogPosition::START).unwrap_err().kind, ErrorKind::Io);
}

#[test]
fn an_error_of_the_visitor_ends_the_replay() {
    let parts = five_batches();
    let mut seen = 0;
    let result = replay(&parts, LogPosition::START, |lsn, _| {
        seen += 1;
        if lsn == Lsn(3) { Err(crate::Error::corrupt("no")) } else { Ok(()) }
    });
    assert_eq!((result.unwrap_err().message.as_str(), seen), ("no", 3));
}

#[test]
fn an_exposure_past_the_end_of_the_device_ends_the_log() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    log.append(&record(1, 10).exposing(Exposure {
        segments: vec![(u64::MAX - 100, 50)],
        crc: 0,
        logged: None,
    }));
    assert_eq!(log.sync(Lsn(1)).unwrap(), SyncOutcome::Durable);
    assert_eq!(collect(&parts, LogPosition::START).unwrap().0.last, Lsn(0));
}

#[test]
fn what_an_earlier_life_left_is_not_replayed() {
    let device = MemoryDevice::new(1 << 20);
    let parts = parts_on(device, RING);
    for life in 1..=3 {
        let position =
            LogPosition { incarnation: life, applied: Lsn((life - 1) * 2), ..LogPosition::START };
        let log = IntentLog::open(parts.clone(), position).unwrap();
        for _ in 0..2 {
            let lsn = log.append(&record(life, 10));
            assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
            if life == 3 {
                break;
            }
        }
        let (report, replayed) = collect(&parts, position).unwrap();
        assert_eq!(
            replayed.len(),
            if life == 3 { 1 } else { 2 },
            "what was written in another life does not count"
        );
        assert!(replayed.iter().all(|(_, found)| *found == record(life, 10)));
        assert_eq!((report.next.incarnation, report.damaged), (life + 1, None));
    }
}

/// A log whose writes, the last one too, lie across the windows in which it is read; the data that
/// the last record exposes did not arrive.
struct Long {
    device: Arc<SimulatedDevice>,
    parts: LogParts,
    /// Where each log write begins on the device.
    batches: Vec<u64>,
    /// Where the data of the exposures begins.
    data: u64,
    records: u64,
}

fn long() -> Long {
    const LONG_RING: u64 = 2 << 20;
    let device = SimulatedDevice::new(RING_START + LONG_RING + (1 << 20), 8);
    let parts = parts_on(Arc::clone(&device) as _, LONG_RING);
    let log = open(&parts);
    let data = RING_START + LONG_RING;
    let mut batches = Vec::new();
    for n in 1..=5_u64 {
        let exposed = AlignedBuf::from_slice(&[n as u8; 4096]);
        // The last record's data is never written: it was not reported as durable, and it seals
        // nothing before it that would need it.
        if n < 5 {
            device.write_at(&exposed, data + n * 4096).unwrap();
        }
        batches.push(RING_START + log.position_after(Lsn(n - 1)).offset);
        let lsn = log.append(&record(n, 90_000).exposing(Exposure::of(data + n * 4096, &exposed)));
        assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
    }
    Long { device, parts, batches, data, records: 4 }
}

impl Long {
    /// Replays under a fault, and requires of what comes out that it is true: a prefix, with
    /// nothing in it that is not so.
    fn replayed(&self, fault: ReadFault, trigger: Trigger) -> Option<u64> {
        self.device.clear_faults();
        self.device.inject(FaultRule::new(Fault::Read(fault), trigger));
        match collect(&self.parts, LogPosition::START) {
            Ok((report, found)) => {
                assert!(
                    report.last.0 <= self.records,
                    "{fault:?} {trigger:?}: record {} exposes what is not there",
                    report.last.0
                );
                let expected = (1..).map(|n| (Lsn(n), n)).zip(&found);
                expected.for_each(|((lsn, n), (found, told))| {
                    assert!(
                        lsn == *found && told.rows == record(n, 90_000).rows,
                        "{fault:?} {trigger:?}"
                    );
                });
                Some(report.last.0)
            }
            Err(error) => {
                assert!(
                    matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Io),
                    "{fault:?} {trigger:?}: {error}"
                );
                assert!(error.message.len() > 10, "{error}");
                None
            }
        }
    }
}

/// Where the fields of a log write's header begin, docs/format.md.
const FIELDS: [u64; 12] = [0, 8, 12, 16, 32, 40, 48, 56, 64, 72, 80, 84];

/// A header that is read twice once counted as it came first, and the checksum as it came second: a
/// bit of the first that was wrong could seal records whose data is not there. And a single wrong
/// answer at the end of the log cost acknowledged records.
#[test]
fn a_device_that_changes_its_mind_between_two_reads_of_a_recovery() {
    let long = long();
    let reads = {
        long.device.clear_faults();
        let before = long.device.counters().reads;
        collect(&long.parts, LogPosition::START).unwrap();
        long.device.counters().reads - before
    };
    assert!(reads > 5, "the log is read in windows: {reads}");
    // Once: every field of every header, at every read of either pass, and the data of every
    // exposure.
    for nth in 1..=reads {
        for batch in &long.batches {
            for byte in FIELDS {
                let last =
                    long.replayed(ReadFault::Turn { at: batch + byte, mask: 1 }, Trigger::Nth(nth));
                assert_eq!(
                    last,
                    Some(long.records),
                    "one wrong answer, of read {nth} at byte {byte} of a header, costs nothing"
                );
            }
        }
        for n in [1, 4] {
            assert_eq!(
                long.replayed(
                    ReadFault::Turn { at: long.data + n * 4096, mask: 1 },
                    Trigger::Nth(nth)
                ),
                Some(long.records)
            );
        }
        assert_eq!(
            long.replayed(ReadFault::Misdirect { to: 0 }, Trigger::Nth(nth)),
            Some(long.records)
        );
        // From then on, so that all of the second pass differs from the first: never more than is
        // true.
        for batch in &long.batches {
            for byte in FIELDS.into_iter().chain([5000]) {
                long.replayed(ReadFault::Turn { at: batch + byte, mask: 4 }, Trigger::From(nth));
            }
        }
        long.replayed(ReadFault::Misdirect { to: 0 }, Trigger::From(nth));
        long.replayed(ReadFault::Fail, Trigger::From(nth));
    }
}
