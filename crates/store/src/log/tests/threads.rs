//! Many threads: everything acknowledged is in the log, and flushes are shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, Fault, FaultRule, FlushFault, MemoryDevice,
    SimulatedDevice, Trigger,
};

use super::*;
use crate::log::SyncOutcome;

const THREADS: u64 = 8;

#[test]
fn committers_share_flushes_and_lose_nothing() {
    let device = SimulatedDevice::new(9 << 20, 7);
    // A flush that takes a while, so that callers meet.
    device.inject(FaultRule::new(
        Fault::Flush(FlushFault::Delay(Duration::from_micros(300))),
        Trigger::Always,
    ));
    let parts = parts_on(Arc::clone(&device) as _, 8 << 20);
    let log = open(&parts);
    let each = 100;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let log = &log;
            scope.spawn(move || {
                for n in 0..each {
                    let lsn = log.append(&record(thread << 32 | n, 60));
                    assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
                    assert!(log.durable_lsn() >= lsn && log.sealed_lsn() <= log.durable_lsn());
                }
            });
        }
    });
    let commits = THREADS * each;
    let (report, replayed) = collect(&parts, LogPosition::START).unwrap();
    assert_eq!((report.last, replayed.len() as u64), (Lsn(commits), commits));
    let info = log.info();
    assert_eq!((info.records, info.syncs), (commits, commits));
    assert!(info.flushes < commits, "{} flushes for {commits} commits", info.flushes);
}

#[test]
fn appenders_commits_and_seals_may_meet_in_any_way() {
    let device = MemoryDevice::new(2 << 20);
    let parts = parts_on(device, 256 << 10);
    let log = open(&parts);
    let committing = parking_lot::Mutex::new(LogPosition::START);
    let commit = || {
        let mut position = committing.lock();
        let lsn = log.last_lsn();
        assert_eq!(log.sync(Lsn(0)).unwrap(), SyncOutcome::Durable);
        *position = log.position_after(lsn);
        log.trim(*position);
        log.skip_to(lsn);
    };
    let commits = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (log, commit, commits) = (&log, &commit, &commits);
            scope.spawn(move || {
                let mut dice = Dice(thread);
                for n in 0..300 {
                    let bytes = dice.below(4000) as usize;
                    let lsn = log.append(&record(thread << 32 | n, bytes));
                    let outcome = match dice.below(8) {
                        0 => log.seal(lsn),
                        1 => log.permit_overwrite(lsn),
                        2 => log.sync(Lsn(0)),
                        3 => Ok(SyncOutcome::Durable),
                        _ => log.sync(lsn),
                    };
                    if outcome.unwrap() == SyncOutcome::NeedsCommit {
                        commits.fetch_add(1, Ordering::Relaxed);
                        commit();
                        assert!(log.durable_lsn() >= lsn && log.sealed_lsn() >= lsn);
                    }
                }
            });
        }
    });
    assert!(commits.load(Ordering::Relaxed) > 3, "the ring was never full");
    let last = log.last_lsn();
    if log.sync(last).unwrap() == SyncOutcome::NeedsCommit {
        commit();
    }
    let position = *committing.lock();
    let (report, replayed) = collect(&parts, position).unwrap();
    assert_eq!(report.last.max(position.applied), last);
    assert_eq!(replayed.len() as u64, last.0 - position.applied.0);
}

/// Threads append, overwrite and commit on a device that is cut at every moment afterwards; none
/// touches another's blocks.
#[test]
fn no_power_cut_loses_what_many_threads_committed() {
    let device = SimulatedDevice::new(2 << 20, 9);
    let parts = parts_on(Arc::clone(&device) as _, 1 << 20);
    let log = open(&parts);
    let base = RING_START + (1 << 20);
    let acknowledged = parking_lot::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (log, device, acknowledged) = (&log, &device, &acknowledged);
            scope.spawn(move || {
                let mut dice = Dice(thread);
                for n in 0..12 {
                    let at = base + (thread * 12 + n) * 1024;
                    let write = |fill: u8| {
                        let data = AlignedBuf::from_slice(&[fill; 1024]);
                        device.write_at(&data, at).unwrap();
                        data
                    };
                    let data = write(1);
                    let made = record(at, 20);
                    let made = if dice.one_in(3) {
                        made.after_barrier()
                    } else {
                        made.exposing(Exposure::of(at, &data[..700]))
                    };
                    let lsn = log.append(&made);
                    if dice.one_in(3) {
                        assert_eq!(log.permit_overwrite(lsn).unwrap(), SyncOutcome::Durable);
                        write(2);
                    }
                    if dice.one_in(2) {
                        assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
                        acknowledged.lock().push((device.operation_count(), lsn));
                    }
                }
            });
        }
    });
    let acknowledged = acknowledged.into_inner();
    for moment in 0..=device.operation_count() {
        for choice in [
            CrashChoice::LoseAll,
            CrashChoice::KeepAll,
            CrashChoice::Seeded(1),
            CrashChoice::Seeded(2),
            CrashChoice::Seeded(3),
        ] {
            let parts = parts_on(device.crash_image(moment, &choice), 1 << 20);
            let (report, replayed) = collect(&parts, LogPosition::START).unwrap();
            let promised = acknowledged
                .iter()
                .filter(|(at, _)| *at <= moment)
                .map(|(_, lsn)| *lsn)
                .max()
                .unwrap_or_default();
            assert!(
                report.last >= promised,
                "moment {moment}, {choice:?}: {promised:?} was acknowledged, {}",
                report.end
            );
            for (lsn, record) in replayed {
                let at = u64::from_be_bytes(record.rows[0].key.as_slice().try_into().unwrap());
                let mut shown = AlignedBuf::zeroed(1024);
                parts.data.read_at(&mut shown, at).unwrap();
                assert!(
                    shown[..700].iter().all(|byte| [1, 2].contains(byte)),
                    "moment {moment}, {choice:?}: {lsn:?} shows what was not written"
                );
            }
        }
    }
}

#[test]
fn a_failure_reaches_every_waiter() {
    let device = SimulatedDevice::new(2 << 20, 8);
    device.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Nth(20)));
    let log = open(&parts_on(Arc::clone(&device) as _, 1 << 20));
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (log, acknowledged) = (&log, &acknowledged);
            scope.spawn(move || {
                loop {
                    let lsn = log.append(&record(thread, 60));
                    match log.sync(lsn) {
                        Ok(outcome) => {
                            assert_eq!(outcome, SyncOutcome::Durable);
                            acknowledged.fetch_max(lsn.0, Ordering::Relaxed);
                        }
                        Err(_) => break,
                    }
                }
            });
        }
    });
    assert!(acknowledged.load(Ordering::Relaxed) <= log.durable_lsn().0, "I-LOG-6");
    assert_eq!(device.counters().flushes, 19);
}
