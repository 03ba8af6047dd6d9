use proptest::prelude::*;

use super::super::tests::{allocate, check, packing, run, space, want};
use super::*;

fn within(space: &Allocator, want: AllocRequest, ranges: &[Run]) -> PlacedRuns {
    space.allocate_within(want, ranges, Elsewhere::Allowed, Lsn(0)).unwrap()
}

fn blocks(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.blocks).sum()
}

/// S-617, I-PLC-2: all that the ranges have comes first, and only then anything else.
#[test]
fn s_617_i_plc_2_blocks_come_from_the_ranges_until_these_are_full() {
    let space = space();
    let ranges = [run(100, 20), run(200, 10)];
    let first = within(&space, want(8), &ranges);
    assert_eq!((first.runs, first.elsewhere_blocks), (vec![run(100, 8)], 0));
    let next = within(&space, AllocRequest { goal: Some(BlockNo(108)), ..want(15) }, &ranges);
    assert_eq!((next.runs, next.elsewhere_blocks), (vec![run(108, 12), run(200, 3)], 0));
    let refused = space.allocate_within(want(8), &ranges, Elsewhere::Refused, Lsn(0)).unwrap_err();
    assert!(refused.kind == ErrorKind::NoSpace && refused.message.contains("placed on"));
    let free = space.totals().free;
    let last = within(&space, want(9), &ranges);
    assert_eq!((last.elsewhere_blocks, blocks(&last.runs)), (2, 9));
    assert_eq!(last.runs[0], run(203, 7));
    let none = within(&space, want(3), &ranges);
    assert_eq!(none.elsewhere_blocks, 3);
    assert_eq!(space.totals().free, free - 12, "what was refused took nothing");
    check(&space);
}

/// What others have kept for their appends, or in lots, is not missing in the ranges.
#[test]
fn s_617_kept_blocks_and_lots_are_given_up_before_anything_lies_elsewhere() {
    let space = space();
    let kept = AllocRequest { goal: Some(BlockNo(96)), ahead: Some((InodeNo(7), 16)), ..want(4) };
    let other = allocate(&space, AllocRequest { ahead: None, ..kept });
    allocate(&space, AllocRequest { goal: Some(BlockNo(other.end())), ..kept });
    allocate(&space, AllocRequest { part: Some(3), ..want(1) });
    let all = run(0, 256);
    let reserve = space.totals().reserve;
    let free = space.totals().free - reserve;
    let taken = within(&space, want(free), &[all]);
    assert_eq!((taken.elsewhere_blocks, blocks(&taken.runs)), (0, free));
    check(&space);
}

/// What a file keeps for its next append lies in its ranges, also where it was placed later.
#[test]
fn s_617_what_is_kept_for_appends_lies_in_the_ranges() {
    let space = space();
    let ahead = Some((InodeNo(7), 16));
    allocate(&space, AllocRequest { goal: Some(BlockNo(10)), ahead, ..want(4) });
    let ranges = [run(100, 20)];
    let goal = Some(BlockNo(14));
    let placed = within(&space, AllocRequest { goal, ahead, ..want(14) }, &ranges);
    assert_eq!(placed.runs, [run(100, 14)]);
    assert_eq!(space.inner.lock().ahead.get(&InodeNo(7)), Some(&run(114, 6)));
    let placed =
        within(&space, AllocRequest { goal: Some(BlockNo(114)), ahead, ..want(2) }, &ranges);
    assert_eq!(placed.runs, [run(114, 2)]);
    check(&space);
}

proptest! {
    /// I-PLC-2, S-617: against an array of blocks, with regions packed and not, and with
    /// reservations.
    #[test]
    fn i_plc_2_s_617_blocks_elsewhere_are_given_only_without_any_in_the_ranges(
        open in 1..64_usize,
        edges in proptest::collection::btree_set(0..256_u64, 2..7),
        steps in proptest::collection::vec(
            (0..4_u8, 0..256_u64, 1..40_u64, any::<bool>()), 1..60),
    ) {
        let (space, _source) = packing(open);
        let edges: Vec<u64> = edges.into_iter().collect();
        let ranges: Vec<Run> =
            edges.chunks_exact(2).map(|pair| run(pair[0], pair[1] - pair[0])).collect();
        let ranges: Vec<Run> = ranges.iter().enumerate()
            .filter(|(at, one)| *at == 0 || ranges[at - 1].end() < one.start.0)
            .map(|(_, one)| *one)
            .collect();
        let inside = |block: u64| ranges.iter().any(|run| (run.start.0..run.end()).contains(&block));
        let mut used = [false; 256];
        let mut held: Vec<Run> = Vec::new();
        for (what, goal, count, reserves) in steps {
            if what == 0 && let Some(gone) = held.pop() {
                space.free(&[gone], 0);
                used[gone.start.0 as usize..gone.end() as usize].fill(false);
                continue;
            }
            let reserved = if reserves && space.reserve_blocks(count).is_ok() { count } else { 0 };
            let ahead = (what == 2).then_some((InodeNo(goal % 3), count));
            let asked = AllocRequest { goal: Some(BlockNo(goal)), ahead, reserved, ..want(count) };
            let result = if what == 3 {
                space.allocate_all(asked).map(|runs| PlacedRuns { runs, elsewhere_blocks: 0 })
            } else {
                space.allocate_within(asked, &ranges, Elsewhere::Allowed, Lsn(0))
            };
            let Ok(placed) = result else {
                space.release_reserved(reserved);
                continue;
            };
            prop_assert_eq!(blocks(&placed.runs), count);
            let mut elsewhere = 0;
            for block in placed.runs.iter().flat_map(|run| run.start.0..run.end()) {
                prop_assert!(!used[block as usize], "block {} is given once", block);
                used[block as usize] = true;
                elsewhere += u64::from(!inside(block));
            }
            if what != 3 {
                prop_assert_eq!(elsewhere, placed.elsewhere_blocks);
                let left = (0..256).filter(|at| inside(*at) && !used[*at as usize]).count();
                prop_assert!(elsewhere == 0 || left == 0, "{} elsewhere, {} left", elsewhere, left);
            }
            held.extend(placed.runs);
            check(&space);
        }
    }
}
