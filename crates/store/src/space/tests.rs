//! Counts against an array, and rows that are not what was written.

use super::*;
use crate::extent::{ExtentState, Run};
use crate::images::{RefCount, Referrer};
use crate::{BlockNo, ErrorKind};

const HEAD: Head = Head { shift: SHIFT_MIN, given_up: false };
const BLOCKS: u64 = 1000;

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*seed >> 33) % below
}

/// I-SPC-6: rows come and go, and the counts are those of an array; each row of the table is read
/// as it was written, and its summary tells what it holds.
#[test]
fn i_spc_6_counts_are_those_of_the_rows() {
    let (mut seed, mut map) = (7, SpaceMap::new(HEAD));
    let mut rows: Vec<(Run, Referrer)> = Vec::new();
    for round in 0..400 {
        let mut deltas = Covers::default();
        for _ in 0..random(&mut seed, 4) {
            if !rows.is_empty() && random(&mut seed, 5) < 2 {
                let at = random(&mut seed, rows.len() as u64) as usize;
                let (run, row) = rows.swap_remove(at);
                deltas.remove(run, row);
            } else {
                let start = random(&mut seed, BLOCKS - 300);
                let run = Run { start: BlockNo(start), blocks: 1 + random(&mut seed, 300) };
                let row = match random(&mut seed, 3) {
                    0 => Referrer::Live(ExtentState::Written),
                    1 => Referrer::Image(ExtentState::Written),
                    _ => Referrer::Image(ExtentState::Unwritten),
                };
                deltas.insert(run, row);
                rows.push((run, row));
            }
        }
        map.apply(&deltas, |_| Ok(Counts::free(HEAD.region_blocks()))).unwrap();
        for (region, counts) in &map.regions {
            let first = region << HEAD.shift;
            for (run, count) in counts.runs() {
                for at in run {
                    let at = first + u64::from(at);
                    let over = |(run, _): &&(Run, Referrer)| (run.start.0..run.end()).contains(&at);
                    let needs = |(_, row): &&(Run, Referrer)| {
                        *row != Referrer::Image(ExtentState::Unwritten)
                    };
                    let real = RefCount {
                        rows: rows.iter().filter(over).count() as u32,
                        needing: rows.iter().filter(over).filter(needs).count() as u32,
                    };
                    assert_eq!(count, real, "round {round}, block {at}");
                }
            }
            let key = counts_key(*region);
            let row = counts.encode(&key);
            let again = row.as_ref().map_or(Ok(Counts::free(HEAD.region_blocks())), |row| {
                Counts::decode(&key, row, HEAD.region_blocks())
            });
            assert_eq!(again.unwrap(), *counts, "round {round}");
            let free: u32 = counts.free_runs().map(|run| run.end - run.start).sum();
            assert_eq!(counts.summary().free, free);
        }
    }
}

/// Rows that leave blocks which nothing covers change nothing, and are told.
#[test]
fn counts_below_none_are_corruption() {
    let mut map = SpaceMap::new(HEAD);
    let mut deltas = Covers::default();
    let run = Run { start: BlockNo(300), blocks: 5 };
    deltas.remove(run, Referrer::Live(ExtentState::Written));
    let error = map.apply(&deltas, |_| Ok(Counts::free(256))).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert_eq!(map.regions[&1], Counts::free(256));
}

/// A row under another key, cut short, or with a bit turned is refused.
#[test]
fn hostile_rows_are_refused() {
    let mut counts = Counts::free(256);
    counts.apply(&[(3..9, 1, 1), (20..30, 2, 1)]).unwrap();
    let key = counts_key(5);
    let row = counts.encode(&key).unwrap();
    assert!(Counts::decode(&key, &row, 256).is_ok() && Counts::decode(&key, &row, 512).is_err());
    assert!(Counts::decode(&counts_key(6), &row, 256).is_err());
    for bit in 0..row.len() * 8 {
        let mut turned = row.clone();
        turned[bit / 8] ^= 1 << (bit % 8);
        assert!(Counts::decode(&key, &turned, 256).is_err(), "bit {bit}");
    }
    // With the right checksum: no run, a run too long, rows that need more than there are.
    for body in [&[][..], &[0xff; 12], &[8, 2 | 4, 1, 2], &[3, 3], &[4]] {
        assert!(Counts::decode(&key, &sealed(&key, body), 256).is_err(), "{body:?}");
    }
    let group = Group::free(HEAD);
    let row = group.encode(&group_key(0));
    assert_eq!(Group::decode(&group_key(0), &row, HEAD).unwrap(), group);
    assert!(Group::decode(&group_key(1), &row, HEAD).is_err());
    let wrong = Group(vec![Summary { longest: 9, ..Summary::default() }; 1024]);
    assert!(Group::decode(&group_key(0), &wrong.encode(&group_key(0)), HEAD).is_err());
    assert_eq!(Head::decode(&HEAD.encode()).unwrap(), HEAD);
    for body in [[7, 0, 0, 0], [16, 0, 0, 0], [8, 2, 0, 0], [8, 0, 1, 0]] {
        assert!(Head::decode(&sealed(&head_key(), &body)).is_err(), "{body:?}");
    }
    for blocks in [1, 8192, 1 << 20, u64::MAX >> 12] {
        let head = Head::of(blocks);
        assert_eq!(Head::decode(&head.encode()).unwrap(), head);
    }
}
