//! The ring: round and round, full, trimmed, skipped.

use super::*;
use crate::log::SyncOutcome;

const RING: u64 = 64 << 10;

#[test]
fn a_commit_of_one_is_one_write_and_one_flush() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    for n in 1..=5 {
        let lsn = log.append(&record(n, 100));
        assert_eq!(lsn, Lsn(n));
        assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
        let counters = parts.data.counters();
        assert_eq!((counters.writes, counters.flushes), (n, n));
        assert_eq!((log.last_lsn(), log.durable_lsn(), log.sealed_lsn()), (lsn, lsn, lsn));
    }
    assert_eq!(log.sync(Lsn(0)).unwrap(), SyncOutcome::Durable);
    assert_eq!(log.sync(Lsn(3)).unwrap(), SyncOutcome::Durable);
    let counters = parts.data.counters();
    assert_eq!(
        (counters.writes, counters.flushes),
        (5, 7),
        "a sync without news is a flush and nothing else"
    );
    let info = log.info();
    assert_eq!(
        (info.writes, info.records, info.flushes, info.syncs, info.used_bytes),
        (5, 5, 7, 7, 5 * 4096)
    );
}

/// I-LOG-1.
#[test]
fn what_was_synced_is_replayed_and_what_was_not_is_not() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    let records: Vec<_> = (1..=30).map(|n| record(n, 50 * n as usize)).collect();
    for record in &records[..20] {
        log.append(record);
    }
    assert_eq!(log.sync(Lsn(1)).unwrap(), SyncOutcome::Durable);
    for record in &records[20..] {
        log.append(record);
    }
    let (report, replayed) = collect(&parts, LogPosition::START).unwrap();
    let expected: Vec<_> = records[..20]
        .iter()
        .cloned()
        .enumerate()
        .map(|(at, record)| (Lsn(at as u64 + 1), record))
        .collect();
    assert_eq!(replayed, expected);
    assert_eq!(
        (report.last, report.next),
        (Lsn(20), LogPosition { incarnation: 2, applied: Lsn(20), ..LogPosition::START })
    );
    assert_eq!(report.damaged, None);
}

/// Syncs `count` records, trimming as a metadata commit would whenever the ring is full; returns
/// the last position.
fn go_round(
    log: &IntentLog,
    count: u64,
    bytes: impl Fn(u64) -> usize,
    mut check: impl FnMut(LogPosition),
) -> u64 {
    let mut commits = 0;
    let mut position = LogPosition::START;
    for n in 1..=count {
        let lsn = log.append(&record(n, bytes(n)));
        if log.sync(lsn).unwrap() == SyncOutcome::NeedsCommit {
            // The metadata holds all but the last ten; a second commit may be needed when that is
            // still too much.
            let upto = Lsn(lsn.0.saturating_sub(10).max(position.applied.0));
            assert!(upto <= log.durable_lsn());
            position = log.position_after(upto);
            log.trim(position);
            commits += 1;
            if log.sync(lsn).unwrap() == SyncOutcome::NeedsCommit {
                position = log.position_after(lsn);
                log.trim(position);
                log.skip_to(lsn);
            }
        }
        check(position);
    }
    commits
}

/// I-LOG-2: what replay needs is never written over.
#[test]
fn the_ring_goes_round() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    let sizes = |n: u64| (n * 7919 % 9000) as usize;
    let mut dice = Dice(1);
    let commits = go_round(&log, 600, sizes, |position| {
        if dice.one_in(10) {
            let (report, replayed) = collect(&parts, position).unwrap();
            assert_eq!(report.last, log.durable_lsn());
            assert!(replayed.iter().all(|(lsn, found)| *found == record(lsn.0, sizes(lsn.0))));
        }
    });
    assert!(commits > 30, "the ring was hardly ever full: {commits}");
}

#[test]
fn a_full_ring_asks_for_a_commit_and_goes_on_after_it() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    let full = loop {
        let lsn = log.append(&record(1, 3000));
        if log.sync(lsn).unwrap() == SyncOutcome::NeedsCommit {
            break lsn;
        }
    };
    assert_eq!(full, Lsn(17), "16 units fit");
    let writes = parts.data.counters().writes;
    assert_eq!(
        log.sync(full).unwrap(),
        SyncOutcome::NeedsCommit,
        "and again, as long as there is no commit"
    );
    assert_eq!(log.sync(Lsn(16)).unwrap(), SyncOutcome::Durable, "what was durable still is");
    assert_eq!(parts.data.counters().writes, writes);
    let (report, _) = collect(&parts, LogPosition::START).unwrap();
    assert_eq!(report.last, Lsn(16));

    let after = log.append(&record(2, 10));
    let position = log.position_after(full);
    log.trim(position);
    log.skip_to(full);
    assert_eq!((log.durable_lsn(), log.sealed_lsn(), log.info().used_bytes), (full, full, 0));
    assert_eq!(log.sync(full).unwrap(), SyncOutcome::Durable);
    assert_eq!(log.sync(after).unwrap(), SyncOutcome::Durable);
    let (report, replayed) = collect(&parts, position).unwrap();
    assert_eq!(replayed, [(after, record(2, 10))]);
    assert_eq!(report.last, after);
}

#[test]
fn a_record_no_ring_could_hold_needs_a_commit_and_those_after_it_do_not() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    log.append(&record(1, 10));
    let giant = log.append(&record(2, RING as usize / 4));
    let small = log.append(&record(3, 10));
    assert_eq!(log.sync(small).unwrap(), SyncOutcome::NeedsCommit);
    let position = log.position_after(giant);
    log.trim(position);
    log.skip_to(giant);
    assert_eq!(log.durable_lsn(), giant);
    assert_eq!(log.sync(small).unwrap(), SyncOutcome::Durable);
    assert_eq!(collect(&parts, position).unwrap().1, [(small, record(3, 10))]);
}

#[test]
fn buffered_records_that_nobody_waits_for_are_bounded() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    let mut most = 0;
    for n in 1..=1000 {
        log.append(&record(n, 1000));
        most = most.max(log.buffered_bytes());
    }
    assert!(most > RING / 4 && most <= RING / 2, "{most} bytes were buffered");
    assert_eq!(log.sync(Lsn(1000)).unwrap(), SyncOutcome::NeedsCommit);
    log.trim(log.position_after(Lsn(1000)));
    log.skip_to(Lsn(1000));
    assert_eq!(log.buffered_bytes(), 0);
    let lsn = log.append(&record(1, 1));
    assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
}

#[test]
fn a_commit_in_the_middle_of_a_batch_replays_the_rest_of_it() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    for n in 1..=10 {
        log.append(&record(n, 10));
    }
    assert_eq!(log.sync(Lsn(10)).unwrap(), SyncOutcome::Durable);
    let position = log.position_after(Lsn(4));
    log.trim(position);
    let (report, replayed) = collect(&parts, position).unwrap();
    assert_eq!(replayed.first().map(|(lsn, _)| *lsn), Some(Lsn(5)));
    assert_eq!((report.records, report.last), (6, Lsn(10)));
}

#[test]
fn a_batch_that_straddles_what_was_skipped_is_written_whole() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    for n in 1..=10 {
        log.append(&record(n, 10));
    }
    let position = log.position_after(Lsn(6));
    log.trim(position);
    log.skip_to(Lsn(6));
    assert_eq!(log.sync(Lsn(10)).unwrap(), SyncOutcome::Durable);
    let (report, replayed) = collect(&parts, position).unwrap();
    assert_eq!((replayed[0].0, report.last, report.records), (Lsn(7), Lsn(10), 4));
}

#[test]
fn many_buffers_are_written_in_one_round_and_one_flush() {
    let parts = memory_parts(16 << 20);
    let log = open(&parts);
    for n in 1..=1000 {
        log.append(&record(n, 1000));
    }
    let giant = log.append(&record(1001, 1 << 20));
    assert_eq!(log.sync(giant).unwrap(), SyncOutcome::Durable);
    let counters = parts.data.counters();
    assert_eq!((counters.writes, counters.flushes), (5, 1), "four ordinary batches and a long one");
    assert_eq!(collect(&parts, LogPosition::START).unwrap().0.last, giant);
}

#[test]
fn an_overwrite_is_permitted_for_nothing_or_for_one_seal() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    let exposing = |n| record(n, 10).exposing(Exposure::of(1 << 17, b"data"));
    parts
        .data
        .write_at(
            &bedplate_block::AlignedBuf::from_slice(&[b"data".as_slice(), &[0; 508]].concat()),
            1 << 17,
        )
        .unwrap();

    // Still buffered: the log write waits for the data, and seals itself.
    let first = log.append(&exposing(1));
    assert_eq!(log.permit_overwrite(first).unwrap(), SyncOutcome::Durable);
    assert_eq!(parts.data.counters().flushes, 0);
    assert_eq!(log.sync(first).unwrap(), SyncOutcome::Durable);
    assert_eq!((parts.data.counters().flushes, log.sealed_lsn()), (2, first));
    assert_eq!(log.permit_overwrite(first).unwrap(), SyncOutcome::Durable);

    // Durable and not sealed: one more write and flush, once for all.
    let (second, third) = (log.append(&exposing(2)), log.append(&exposing(3)));
    assert_eq!(log.sync(third).unwrap(), SyncOutcome::Durable);
    assert_eq!((log.durable_lsn(), log.sealed_lsn()), (third, first));
    assert_eq!(log.permit_overwrite(second).unwrap(), SyncOutcome::Durable);
    assert_eq!(log.permit_overwrite(third).unwrap(), SyncOutcome::Durable);
    let counters = parts.data.counters();
    assert_eq!((counters.writes, counters.flushes, log.sealed_lsn()), (4, 4, third));

    // Sealing what is still buffered takes a flush before the write and one after it.
    let fourth = log.append(&exposing(4));
    assert_eq!(log.seal(fourth).unwrap(), SyncOutcome::Durable);
    let counters = parts.data.counters();
    assert_eq!((counters.writes, counters.flushes, log.sealed_lsn()), (5, 6, fourth));
}

#[test]
fn a_flush_that_is_due_anyway_seals() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    let lsn = log.append(&record(1, 10).exposing(Exposure::of(1 << 17, &[0; 100])));
    assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
    assert_eq!(log.sealed_lsn(), Lsn(0));
    assert_eq!(log.sync(Lsn(0)).unwrap(), SyncOutcome::Durable);
    assert_eq!(log.sealed_lsn(), lsn);
    let counters = parts.data.counters();
    assert_eq!((counters.writes, counters.flushes), (2, 2));
    assert_eq!(log.sync(Lsn(0)).unwrap(), SyncOutcome::Durable);
    assert_eq!(parts.data.counters().writes, 2, "once is enough");
}

#[test]
fn a_seal_in_a_full_ring_asks_for_a_commit() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    for n in 1..=16 {
        let lsn = log.append(&record(n, 3000).exposing(Exposure::of(1 << 17, &[0; 100])));
        assert_eq!(log.sync(lsn).unwrap(), SyncOutcome::Durable);
    }
    assert_eq!(log.sealed_lsn(), Lsn(15));
    assert_eq!(log.sync(Lsn(0)).unwrap(), SyncOutcome::Durable, "a flush needs no room");
    assert_eq!(log.permit_overwrite(Lsn(16)).unwrap(), SyncOutcome::NeedsCommit);
    log.trim(log.position_after(Lsn(16)));
    log.skip_to(Lsn(16));
    assert_eq!(log.permit_overwrite(Lsn(16)).unwrap(), SyncOutcome::Durable);
}

#[test]
fn replay_ends_at_data_that_is_not_there() {
    let parts = memory_parts(RING);
    let log = open(&parts);
    log.append(&record(1, 10));
    log.append(&record(2, 10).exposing(Exposure::of(1 << 17, b"never written")));
    log.append(&record(3, 10));
    assert_eq!(log.sync(Lsn(3)).unwrap(), SyncOutcome::Durable);
    let (report, _) = collect(&parts, LogPosition::START).unwrap();
    assert_eq!((report.last, report.damaged), (Lsn(1), None));
    assert!(report.end.contains("record 2 exposes data"), "{}", report.end);
}
