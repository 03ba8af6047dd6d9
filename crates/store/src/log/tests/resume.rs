//! A log that goes on in its incarnation, behind what replay found.

use bedplate_block::AlignedBuf;

use super::*;
use crate::ErrorKind;
use crate::log::SyncOutcome;

/// Replays from the start and goes on behind what is found.
fn resume(parts: &LogParts) -> (IntentLog, Vec<(Lsn, Record)>) {
    let (report, records) = collect(parts, LogPosition::START).unwrap();
    (IntentLog::resume(parts.clone(), &report.kept).unwrap(), records)
}

fn lsns(records: &[(Lsn, Record)]) -> Vec<u64> {
    records.iter().map(|(lsn, _)| lsn.0).collect()
}

/// I-LOG-8: of five log writes of one round the second did not arrive. What is written in its place
/// leads to the fifth, by its length, its sequence number and its records, and the fifth must not
/// count.
#[test]
fn i_log_8_what_an_interrupted_round_left_does_not_follow_what_comes_after_it() {
    let parts = memory_parts(8 << 20);
    let log = open(&parts);
    // Each fills a batch.
    for id in 1..=5 {
        log.append(&record(id, 200 << 10));
    }
    assert_eq!(log.sync(Lsn(5)).unwrap(), SyncOutcome::Durable);
    drop(log);
    let (report, _) = collect(&parts, LogPosition::START).unwrap();
    let [first, second, .., fifth] = report.kept.batches[..] else {
        panic!("{:?}", report.kept.batches)
    };
    parts.data.write_at(&AlignedBuf::zeroed(4096), RING_START + second.offset).unwrap();

    let (log, found) = resume(&parts);
    assert_eq!(lsns(&found), [1]);
    let unit = log.used_bytes() - u64::from(first.len);
    // After the seal two more, with three records, which end where the fifth begins.
    let in_batch = |records: u64, bytes| {
        (96 + records * record(0, bytes).encoded_len() as u64).next_multiple_of(unit)
    };
    let long = fifth.offset - second.offset - unit - in_batch(2, 100 << 10) - in_batch(1, 0);
    log.append(&record(12, usize::try_from(long).unwrap()));
    log.append(&record(13, 100 << 10));
    log.append(&record(14, 100 << 10));
    assert_eq!(log.sync(Lsn(4)).unwrap(), SyncOutcome::Durable);
    let (report, found) = collect(&parts, LogPosition::START).unwrap();
    assert_eq!(lsns(&found), [1, 2, 3, 4], "{}", report.end);
    let last = report.kept.batches.last().unwrap();
    assert_eq!(
        (last.offset + u64::from(last.len), last.sequence + 1),
        (fifth.offset, fifth.sequence),
        "the test missed its aim"
    );
}

/// I-LOG-7, I-LOG-5: a log that ended within a log write keeps the records before the end, seals
/// them and all before them, and never takes the others.
#[test]
fn i_log_7_i_log_5_a_log_that_ended_within_a_write_keeps_what_counts_of_it() {
    let parts = memory_parts(1 << 20);
    let places = [0, 512, 1024].map(|at| RING_START + (1 << 20) + at);
    let write = |at: u64, fill: u8| {
        let mut data = AlignedBuf::zeroed(512);
        data.fill(fill);
        parts.data.write_at(&data, at).unwrap();
    };
    places[..2].iter().for_each(|at| write(*at, 7));
    let log = open(&parts);
    let first = log.append(&record(1, 10).exposing(Exposure::of(places[0], &[7; 512])));
    assert_eq!(log.sync(first).unwrap(), SyncOutcome::Durable);
    log.append(&record(2, 10).exposing(Exposure::of(places[1], &[7; 512])));
    log.append(&record(3, 10).exposing(Exposure::of(places[2], &[9; 512])));
    let last = log.append(&record(4, 10));
    assert_eq!(log.sync(last).unwrap(), SyncOutcome::Durable);
    drop(log);
    let (log, found) = resume(&parts);
    assert_eq!(lsns(&found), [1, 2]);
    assert_eq!((log.last_lsn(), log.sealed_lsn()), (Lsn(2), Lsn(2)));
    // The data may change now, and that of the record which does not count may turn up.
    places.iter().for_each(|at| write(*at, 9));
    let (_, found) = collect(&parts, LogPosition::START).unwrap();
    assert_eq!(lsns(&found), [1, 2]);
    let last = log.append(&record(33, 10));
    assert_eq!(log.sync(last).unwrap(), SyncOutcome::Durable);
    drop(log);
    for _ in 0..2 {
        let (log, found) = resume(&parts);
        assert_eq!(lsns(&found), [1, 2, 3]);
        assert_eq!(found[2].1, record(33, 10));
        drop(log);
    }
}

/// I-LOG-2: a ring that is full has no room for the seal, and stays as it is.
#[test]
fn i_log_2_a_full_ring_does_not_go_on_and_stays_as_it_is() {
    let parts = memory_parts(64 << 10);
    let log = open(&parts);
    let full = (1..).find(|id| {
        let lsn = log.append(&record(*id, 400));
        log.sync(lsn).unwrap() == SyncOutcome::NeedsCommit
    });
    let full = full.unwrap();
    drop(log);
    for _ in 0..2 {
        let (report, found) = collect(&parts, LogPosition::START).unwrap();
        assert_eq!(found.len() as u64, full - 1);
        assert_eq!(
            IntentLog::resume(parts.clone(), &report.kept).unwrap_err().kind,
            ErrorKind::NoSpace
        );
    }
}
