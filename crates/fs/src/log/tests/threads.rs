//! Many threads: everything acknowledged is in the log, and flushes are shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::{BlockDevice, Fault, FaultRule, FlushFault, MemoryDevice, SimulatedDevice, Trigger};

use super::*;
use crate::log::SyncOutcome;

const THREADS: u64 = 8;

#[test]
fn committers_share_flushes_and_lose_nothing() {
    let device = SimulatedDevice::new(9 << 20, 7);
    // A flush that takes a while, so that callers meet.
    device.inject(FaultRule::new(Fault::Flush(FlushFault::Delay(Duration::from_micros(300))), Trigger::Always));
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
