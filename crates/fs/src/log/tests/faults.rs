//! Failing devices and damaged media.

use std::sync::Arc;

use block::{AlignedBuf, BlockDevice, Fault, FaultRule, FlushFault, MemoryDevice, SimulatedDevice, Trigger, WriteFault};

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
        let (data, log_device) = (SimulatedDevice::new(1 << 20, 4), SimulatedDevice::new(1 << 20, 5));
        let place = LogPlace { separate: true, start_byte: RING_START, len_bytes: RING };
        let parts = LogParts { data: Arc::clone(&data) as _, log: Some(Arc::clone(&log_device) as _), volume: volume(), place };
        let log = open(&parts);
        let first = log.append(&record(1, 10).exposing(Exposure::of(1 << 17, &[0; 10])));
        assert_eq!(log.sync(first).unwrap(), SyncOutcome::Durable);
        assert_eq!(log.sealed_lsn(), first, "data before log: sealed at once");
        assert_eq!((data.counters().flushes, log_device.counters().flushes, log_device.counters().writes), (1, 1, 1));
        assert_eq!(log.sync(Lsn(0)).unwrap(), SyncOutcome::Durable);
        assert_eq!((data.counters().flushes, log_device.counters().flushes), (2, 1), "no news: the log device is left alone");

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
    device.inject(FaultRule::new(Fault::Read(block::ReadFault::Fail), Trigger::Always).within(1 << 18..(1 << 18) + 512));
    let (report, _) = collect(&parts, LogPosition::START).unwrap();
    assert_eq!(report.last, Lsn(1));
    assert!(report.damaged.is_some_and(|damaged| damaged.contains("cannot be read")));
}

#[test]
fn a_ring_that_cannot_be_read_is_an_error_and_not_an_empty_log() {
    let (device, parts) = simulated();
    device.inject(FaultRule::new(Fault::Read(block::ReadFault::Fail), Trigger::Always));
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
    log.append(&record(1, 10).exposing(Exposure { segments: vec![(u64::MAX - 100, 50)], crc: 0 }));
    assert_eq!(log.sync(Lsn(1)).unwrap(), SyncOutcome::Durable);
    assert_eq!(collect(&parts, LogPosition::START).unwrap().0.last, Lsn(0));
}

#[test]
fn what_an_earlier_life_left_is_not_replayed() {
    let device = MemoryDevice::new(1 << 20);
    let parts = parts_on(device, RING);
    for life in 1..=3 {
        let position = LogPosition { incarnation: life, applied: Lsn((life - 1) * 2), ..LogPosition::START };
        let log = IntentLog::open(parts.clone(), position).unwrap();
        for _ in 0..2 {
            let lsn = log.append(&record(life, 10));
            assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
            if life == 3 {
                break;
            }
        }
        let (report, replayed) = collect(&parts, position).unwrap();
        assert_eq!(replayed.len(), if life == 3 { 1 } else { 2 }, "what was written in another life does not count");
        assert!(replayed.iter().all(|(_, found)| *found == record(life, 10)));
        assert_eq!((report.next.incarnation, report.damaged), (life + 1, None));
    }
}
