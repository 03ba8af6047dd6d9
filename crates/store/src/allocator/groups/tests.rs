use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::super::Claims;
use super::*;
use crate::planted::PlantedBug;
use crate::{ErrorKind, InodeNo};

const BLOCK_SIZE: u32 = 65_536;
/// Blocks of a volume of which one sixty-fourth, 1,024, is kept from data.
const BLOCKS: u64 = 1 << 16;
const RESERVE: u64 = BLOCKS / 64;

/// A volume with so many groups, whose lots may take one in `share` of what is free.
fn space_of(blocks: u64, groups: usize, share: u64) -> Allocator {
    let space = Claims::new(BLOCK_SIZE, blocks).into_allocator(|ino| ino).expect("all is free");
    space.limit_lots(Some((groups, share)));
    space
}

fn request(blocks: u64, part: u64) -> AllocRequest {
    let (class, part) = (SpaceClass::Data, Some(part));
    AllocRequest { goal: None, blocks, ahead: None, class, reserved: 0, part }
}

fn allocate(space: &Allocator, want: AllocRequest) -> Run {
    let runs = space.allocate_all(want).unwrap();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs[0]
}

fn granted(space: &Allocator) -> u64 {
    space.inner.lock().granted
}

/// A part of a file that belongs to another group than that one.
fn other_part(space: &Allocator, part: u64) -> u64 {
    let other = |candidate: &u64| space.groups.of(*candidate) != space.groups.of(part);
    (part + 1..).find(other).unwrap()
}

/// Redirected units of random files: what a turn of the mutex serves.
#[test]
fn a_turn_of_the_mutex_serves_many_redirected_writes() {
    let turns_of = |groups: (usize, u64)| {
        let space = space_of(BLOCKS, groups.0, groups.1);
        let before = space.turns();
        let mut held = VecDeque::new();
        for lsn in 0..10_000 {
            let want = request(2, lsn);
            held.push_back(space.allocate_after(want, Lsn(lsn / 2)).unwrap()[0]);
            if held.len() > 100 {
                space.release_after(Lsn(lsn), held.pop_front().unwrap());
            }
        }
        let turns = space.turns() - before;
        held.into_iter().for_each(|run| space.release_after(Lsn(10_000), run));
        space.release_sealed(Lsn(10_000));
        assert_eq!((space.totals().free, space.totals().runs), (BLOCKS, 1));
        turns
    };
    let (one_by_one, in_lots) = (turns_of((4, u64::MAX)), turns_of((4, 16)));
    assert!(one_by_one >= 10_000, "{one_by_one}");
    assert!(in_lots <= 300, "{in_lots} turns in place of {one_by_one}");
}

/// I-SPC-10, I-SPC-2: no block has two owners, and none is lost, whatever threads do at once.
#[test]
fn i_spc_10_threads_never_get_the_same_block() {
    let space = space_of(BLOCKS, 8, 4);
    let owned: Vec<AtomicBool> = (0..BLOCKS).map(|_| AtomicBool::new(false)).collect();
    let mark = |run: Run, is_owned: bool| {
        for block in run.start.0..run.end() {
            let was = owned[usize::try_from(block).unwrap()].swap(is_owned, Ordering::AcqRel);
            assert_ne!(was, is_owned, "I-SPC-10: block {block}");
        }
    };
    let lsn = AtomicU64::new(1);
    let work = |thread: u64| {
        let (mut held, mut last) = (VecDeque::new(), 0);
        for turn in 0..4_000 {
            let goal = (turn % 3 == 0).then_some(BlockNo(last));
            let want = AllocRequest { goal, ..request(1 + turn % 5, (turn % 7) << thread) };
            let sealed = Lsn(lsn.load(Ordering::Acquire) / 2);
            for run in space.allocate_after(want, sealed).unwrap() {
                mark(run, true);
                last = run.end();
                held.push_back(run);
            }
            if held.len() > 200 {
                let run = held.pop_front().unwrap();
                mark(run, false);
                space.release_after(Lsn(lsn.fetch_add(1, Ordering::AcqRel)), run);
            }
            match turn % 500 {
                0 => drop(space.totals()),
                1 => drop(space.waiting_for()),
                2 => drop(space.fence(BlockNo(BLOCKS - 64))),
                3 => space.lift_fence(),
                _ => {}
            }
        }
        for run in held {
            mark(run, false);
            space.free(&[run], 0);
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|thread| scope.spawn(move || work(thread))).collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    });
    space.lift_fence();
    space.release_sealed(Lsn(u64::MAX));
    assert_eq!((space.totals().free, space.totals().runs), (BLOCKS, 1), "none is lost");
    assert_eq!(granted(&space), 0);
}

/// I-SPC-2: what a group freed and keeps for its lot waits for its record as all else does.
#[test]
fn i_spc_2_a_lot_gets_no_block_before_its_record_is_sealed() {
    let comes_early = |bug| {
        let space = space_of(BLOCKS, 1, 4);
        let freed: Vec<Run> =
            (0..FREED_RUNS_MAX).map(|_| allocate(&space, request(2, 0))).collect();
        freed.iter().for_each(|run| space.release_after(Lsn(7), *run));
        crate::planted::plant(bug);
        let want = request(2, 0);
        let early: Vec<Run> =
            (0..300).flat_map(|_| space.allocate_after(want, Lsn(6)).unwrap()).collect();
        crate::planted::plant(None);
        let is_early = early.iter().any(|run| freed.contains(run));
        if !is_early {
            let then = space.allocate_after(want, Lsn(7)).unwrap();
            assert!(freed.contains(&then[0]), "it comes first once it is sealed");
        }
        is_early
    };
    assert!(!comes_early(None));
    assert!(comes_early(Some(PlantedBug::LotBeforeSealed)), "the mistake is found");
}

/// What groups hold back counts as about to become free, and is found once its records are sealed.
#[test]
fn s_501_sealed_blocks_of_a_full_group_are_found() {
    let space = space_of(BLOCKS, 4, 1);
    let all: Vec<Run> =
        (0..(BLOCKS - RESERVE) / 2).map(|part| allocate(&space, request(2, part))).collect();
    assert!(space.allocate_all(request(2, 0)).is_err());
    let freed = &all[..4 * FREED_RUNS_MAX + 3];
    freed.iter().for_each(|run| space.release_after(Lsn(5), *run));
    assert!(space.allocate_after(request(2, 0), Lsn(4)).is_err(), "I-SPC-2");
    for part in 0..freed.len() as u64 {
        let want = request(2, part);
        space.allocate_after(want, Lsn(5)).unwrap_or_else(|_| {
            assert!(space.would_fit(2));
            space.release_sealed(Lsn(5));
            space.allocate_after(want, Lsn(5)).expect("S-501")
        });
    }
    assert!(space.allocate_after(request(2, 0), Lsn(5)).is_err());
}

/// What is stored may name blocks twice that were damaged: a group takes them once.
#[test]
fn blocks_that_are_freed_twice_are_taken_once() {
    let space = space_of(BLOCKS, 1, 4);
    let run = allocate(&space, request(2, 0));
    let others: Vec<Run> = (1..FREED_RUNS_MAX).map(|_| allocate(&space, request(2, 0))).collect();
    for lsn in [1, 2] {
        space.release_after(Lsn(lsn), run);
        others.iter().for_each(|other| space.release_after(Lsn(lsn), *other));
    }
    space.release_sealed(Lsn(2));
    assert_eq!((space.totals().free, space.totals().runs), (BLOCKS, 1));
}

/// S-501: eight threads fill a volume to the last block that one would get.
#[test]
fn s_501_space_in_lots_is_found_before_a_write_is_refused() {
    let space = space_of(BLOCKS, 8, 1);
    let taken = AtomicU64::new(0);
    let fill = |thread: u64| {
        for part in 0.. {
            match space.allocate_all(request(1, thread << 32 | part)) {
                Ok(runs) => taken.fetch_add(runs[0].blocks, Ordering::Relaxed),
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::NoSpace);
                    return;
                }
            };
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|thread| scope.spawn(move || fill(thread))).collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    });
    assert_eq!(taken.into_inner(), BLOCKS - RESERVE);
    assert_eq!(space.totals().free, RESERVE);
}

/// Asks for what is free, of which there are so many blocks.
type Ask<'a> = &'a dyn Fn(&Allocator, u64);

/// S-501, I-SPC-5, I-SPC-11: metadata, one long run, and what cached writes were promised are found
/// also where lots hold the last of it.
#[test]
fn s_501_lots_keep_nothing_from_metadata_or_reservations() {
    let asks: [Ask<'_>; 4] = [
        &|space, free| {
            let class = SpaceClass::Metadata;
            let want = AllocRequest { class, part: None, ..request(free, 0) };
            space.allocate_all(want).expect("metadata takes the last block");
        },
        &|space, free| {
            let data = free - RESERVE;
            space.reserve_blocks(data).expect("I-SPC-5");
            let want = AllocRequest { reserved: data, part: None, ..request(data, 0) };
            space.allocate_all(want).expect("I-SPC-5");
        },
        &|space, free| assert!(space.would_fit(free - RESERVE) && !space.would_fit(free)),
        &|space, free| {
            let run = space.allocate_run(free - RESERVE - 3);
            assert_eq!(run.map(|run| run.blocks), Some(free - RESERVE - 3), "one run");
        },
    ];
    for ask in asks {
        let space = space_of(BLOCKS, 4, 1);
        for part in 0..16 {
            allocate(&space, request(1, part));
        }
        assert!(granted(&space) >= 256, "the lots hold something");
        ask(&space, BLOCKS - 16);
    }
}

/// I-SPC-5: lots are filled with nothing that is kept or promised.
#[test]
fn lots_leave_the_reserve_and_reservations_alone() {
    let space = space_of(BLOCKS, 4, 1);
    let promised = BLOCKS - RESERVE - 64;
    space.reserve_blocks(promised).unwrap();
    for part in 0..8 {
        allocate(&space, request(1, part));
    }
    assert!(granted(&space) <= 64);
    let want = AllocRequest { reserved: promised, part: None, ..request(promised, 0) };
    space.allocate_all(want).expect("I-SPC-5");
}

#[test]
fn requests_for_one_part_lie_side_by_side() {
    let space = space_of(BLOCKS, 4, 4);
    let (one, other) = (7, other_part(&space, 7));
    let mut runs = [Vec::new(), Vec::new()];
    for _ in 0..16 {
        runs[0].push(allocate(&space, request(2, one)));
        runs[1].push(allocate(&space, request(2, other)));
    }
    for runs in &runs {
        assert!(runs.windows(2).all(|pair| pair[0].end() == pair[1].start.0), "{runs:?}");
    }
}

#[test]
fn a_goal_is_continued_in_the_lot_of_another_part_and_behind_it() {
    let space = space_of(BLOCKS, 4, 4);
    let (part, other) = (7, other_part(&space, 7));
    let mut end = allocate(&space, request(2, part)).end();
    for _ in 0..3 * LOT_BLOCKS_MAX {
        let goal = Some(BlockNo(end));
        let run = allocate(&space, AllocRequest { goal, ..request(2, other) });
        assert_eq!(run.start.0, end);
        end = run.end();
    }
}

/// A lot is filled as the same requests would be served one by one: from the shortest holes.
#[test]
fn lots_spare_long_runs() {
    let taken = |share| {
        let space = space_of(BLOCKS, 1, share);
        let all = space.allocate_all(request(BLOCKS / 2, 0)).unwrap()[0];
        for hole in 0..200 {
            let start = BlockNo(all.start.0 + 8 * hole);
            space.free(&[Run { start, blocks: 1 + hole % 4 }], 0);
        }
        (0..300).map(|_| allocate(&space, request(2, 0))).collect::<Vec<_>>()
    };
    let (mut in_lots, mut one_by_one) = (taken(64), taken(u64::MAX));
    in_lots.sort_unstable();
    one_by_one.sort_unstable();
    assert_eq!(in_lots, one_by_one);
}

/// I-SPC-8: what lots hold beyond a fence is given up.
#[test]
fn s_372_i_spc_8_lots_have_nothing_beyond_a_fence() {
    let reaches_beyond = |bug| {
        let space = space_of(BLOCKS, 1, 4);
        let first = allocate(&space, request(2, 0));
        crate::planted::plant(bug);
        assert!(space.fence(BlockNo(first.end() + 2)));
        let runs: Vec<Run> =
            (0..8).flat_map(|_| space.allocate_all(request(2, 0))).flatten().collect();
        crate::planted::plant(None);
        runs.iter().any(|run| run.end() > first.end() + 2)
    };
    assert!(!reaches_beyond(None));
    assert!(reaches_beyond(Some(PlantedBug::LotsBeyondFence)), "the mistake is found");
}

#[derive(Debug, Clone)]
enum Step {
    Take { goal: Option<usize>, blocks: u64, part: u64 },
    Append { ino: u64, blocks: u64 },
    Own { blocks: u64 },
    Release { index: usize },
    Seal,
    Reserve { blocks: u64 },
    Fence { at: u64 },
    Lift,
    Totals,
    Fill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (prop::option::of(any::<usize>()), 1..6u64, 0..6u64)
            .prop_map(|(goal, blocks, part)| Step::Take { goal, blocks, part }),
        1 => (1..4u64, 1..20u64).prop_map(|(ino, blocks)| Step::Append { ino, blocks }),
        1 => (1..40u64).prop_map(|blocks| Step::Own { blocks }),
        5 => any::<usize>().prop_map(|index| Step::Release { index }),
        2 => Just(Step::Seal),
        1 => (1..60u64).prop_map(|blocks| Step::Reserve { blocks }),
        1 => (SMALL / 2..SMALL).prop_map(|at| Step::Fence { at }),
        1 => Just(Step::Lift),
        1 => Just(Step::Totals),
        1 => Just(Step::Fill),
    ]
}

/// Blocks of the volume of the model: 16 are kept from data.
const SMALL: u64 = 512;

proptest! {
    #[test]
    fn groups_do_as_one_free_list(
        (groups, share) in (0..3u32, 1..4u64),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let space = space_of(SMALL, 1 << groups, share);
        let (mut held, mut pending): (Vec<Run>, Vec<Run>) = (Vec::new(), Vec::new());
        let (mut lsn, mut limit) = (0, SMALL);
        for step in steps {
            let taken: u64 = held.iter().chain(&pending).map(|run| run.end().min(limit) - run.start.0.min(limit)).sum();
            let free = limit - taken;
            let runs = match step {
                Step::Take { goal, blocks, part } => {
                    let goal = goal.and_then(|at| held.get(at % held.len().max(1))).map(|run| BlockNo(run.end()));
                    let got = space.allocate_all(AllocRequest { goal, ..request(blocks, part) });
                    prop_assert_eq!(got.is_ok(), free >= blocks + 16, "I-SPC-11: {} are free", free);
                    got.unwrap_or_default()
                }
                Step::Append { ino, blocks } => {
                    let ahead = Some((InodeNo(ino), blocks));
                    space.allocate_all(AllocRequest { ahead, ..request(1, ino) }).unwrap_or_default()
                }
                Step::Own { blocks } => {
                    let want = AllocRequest { class: SpaceClass::Metadata, ..request(blocks, 0) };
                    let got = space.allocate_all(want);
                    prop_assert_eq!(got.is_ok(), free >= blocks, "I-SPC-11: {} are free", free);
                    got.unwrap_or_default()
                }
                Step::Release { index } => {
                    if !held.is_empty() {
                        lsn += 1;
                        let run = held.swap_remove(index % held.len());
                        space.release_after(Lsn(lsn), run);
                        pending.push(run);
                    }
                    vec![]
                }
                Step::Seal => {
                    prop_assert_eq!(space.waiting_for().is_some(), !pending.is_empty());
                    prop_assert_eq!(space.release_sealed(Lsn(lsn)), !pending.is_empty());
                    pending.clear();
                    vec![]
                }
                Step::Reserve { blocks } => {
                    let is_ok = space.reserve_blocks(blocks).is_ok();
                    prop_assert_eq!(is_ok, free >= blocks + 16, "I-SPC-5");
                    if is_ok { space.release_reserved(blocks); }
                    vec![]
                }
                Step::Fence { at } => { prop_assert!(space.fence(BlockNo(at))); limit = at; vec![] }
                Step::Lift => { space.lift_fence(); limit = SMALL; vec![] }
                Step::Totals => {
                    let pending: u64 = pending.iter().map(|run| run.blocks).sum();
                    let beyond = |run: &Run| run.end().max(limit) - run.start.0.max(limit);
                    let fenced = SMALL - limit - held.iter().map(beyond).sum::<u64>();
                    let held: u64 = held.iter().map(|run| run.blocks).sum();
                    let free = space.totals().free;
                    prop_assert!(free <= SMALL - held && free + fenced + pending >= SMALL - held);
                    vec![]
                }
                Step::Fill => {
                    let (mut all, mut part) = (Vec::new(), 0);
                    while let Ok(runs) = space.allocate_all(request(1, part)) {
                        all.extend(runs);
                        part += 1;
                    }
                    prop_assert_eq!(all.len() as u64, free.saturating_sub(16), "S-501");
                    space.free(&all, 0);
                    vec![]
                }
            };
            prop_assert!(runs.iter().all(|run| run.end() <= limit), "I-SPC-8: {:?}", runs);
            held.extend(runs);
            let mut all: Vec<Run> = held.iter().chain(&pending).copied().collect();
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start.0), "I-SPC-10: {:?}", all);
        }
        space.lift_fence();
        space.free(&held, 0);
        space.release_sealed(Lsn(lsn));
        for ino in 1..4 { space.drop_ahead(InodeNo(ino)); }
        prop_assert_eq!((space.totals().free, space.totals().runs), (SMALL, 1), "none is lost");
    }
}
