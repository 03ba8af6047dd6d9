use proptest::prelude::*;

use super::*;
use crate::{Epoch, ErrorKind, FileBlock};

const BLOCK_SIZE: u32 = 65_536;
/// The smallest volume whose reserve (1 MiB = 16 blocks) leaves room to play.
const BLOCKS: u64 = 256;

pub(super) fn space() -> Allocator {
    Claims::new(BLOCK_SIZE, BLOCKS).into_allocator(|ino| ino).expect("nothing is claimed")
}

/// What reads no region: all are free from the start.
#[derive(Debug)]
struct NoSource;

impl RegionSource for NoSource {
    fn free_runs(&self, region: u64) -> Result<Vec<Run>> {
        unreachable!("region {region} was never unread")
    }
}

/// As [`space`], in which regions of 16 blocks are packed once there are more runs than `open`.
pub(super) fn packing(open: usize) -> (Allocator, std::sync::Arc<dyn RegionSource>) {
    let source: std::sync::Arc<dyn RegionSource> = std::sync::Arc::new(NoSource);
    let all = [run(0, BLOCKS)].into_iter();
    let weak = std::sync::Arc::downgrade(&source);
    let space = Allocator::over(BLOCK_SIZE, BLOCKS, all, Vec::new(), 4, weak, &[]);
    space.limit_runs(Some(open));
    (space, source)
}

pub(super) fn want(blocks: u64) -> AllocRequest {
    AllocRequest {
        goal: None,
        blocks,
        ahead: None,
        class: SpaceClass::Data,
        reserved: 0,
        part: None,
    }
}

pub(super) fn run(start: u64, blocks: u64) -> Run {
    Run { start: BlockNo(start), blocks }
}

/// Allocates what is known to fit in one run.
pub(super) fn allocate(space: &Allocator, want: AllocRequest) -> Run {
    let runs = space.allocate_all(want).unwrap();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs[0]
}

pub(super) fn check(space: &Allocator) {
    let inner = space.inner.lock();
    let mut last_end = None;
    for (start, len) in &inner.by_start {
        assert!(*len > 0 && last_end < Some(*start) && start + len <= inner.end, "I-SPC-1");
        assert!(inner.by_len.contains(&(*len, *start)), "I-SPC-1");
        last_end = Some(start + len);
    }
    for (start, len) in &inner.by_start {
        assert!(!inner.unread.packed_meets(run(*start, *len)), "I-SPC-9");
        assert!(inner.unread.first_packed(*start..start + len).is_none(), "I-SPC-9");
    }
    inner.unread.check();
    assert_eq!(inner.by_len.len(), inner.by_start.len());
    assert_eq!(inner.free, inner.by_start.values().sum::<u64>());
    assert_eq!(inner.kept, inner.ahead.values().map(|run| run.blocks).sum::<u64>());
    assert_eq!(inner.left, inner.pending_free.iter().map(|(_, _, blocks)| blocks).sum::<u64>());
}

#[derive(Debug, Clone)]
enum Step {
    One {
        goal: Option<u64>,
        blocks: u64,
        ahead: Option<(u64, u64)>,
        class: SpaceClass,
    },
    All {
        blocks: u64,
        ahead: Option<(u64, u64)>,
    },
    /// Frees the n-th run that is held.
    Free {
        index: usize,
    },
    Release {
        index: usize,
    },
    Settle,
    DropAhead {
        ino: u64,
    },
    Grow {
        by: u64,
    },
    Fence {
        at: u64,
    },
    Lift,
    End,
}

fn step() -> impl Strategy<Value = Step> {
    let ahead = || prop::option::of((1..4u64, 0..20u64));
    let class = prop_oneof![Just(SpaceClass::Data), Just(SpaceClass::Metadata)];
    prop_oneof![
        4 => (prop::option::of(0..BLOCKS), 1..40u64, ahead(), class).prop_map(|(goal, blocks, ahead, class)| Step::One { goal, blocks, ahead, class }),
        2 => (1..100u64, ahead()).prop_map(|(blocks, ahead)| Step::All { blocks, ahead }),
        3 => any::<usize>().prop_map(|index| Step::Free { index }),
        2 => any::<usize>().prop_map(|index| Step::Release { index }),
        1 => Just(Step::Settle),
        1 => (1..4u64).prop_map(|ino| Step::DropAhead { ino }),
        1 => (0..10u64).prop_map(|by| Step::Grow { by }),
        1 => (BLOCKS / 2..BLOCKS).prop_map(|at| Step::Fence { at }),
        1 => Just(Step::Lift),
        1 => Just(Step::End),
    ]
}

proptest! {
    #[test]
    fn no_block_is_ever_given_out_twice(
        open in prop::option::of(0..6_usize),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let (space, _source) = open.map_or_else(|| (space(), None), |open| {
            let (space, source) = packing(open);
            (space, Some(source))
        });
        let (mut blocks_total, mut lsn, mut fence) = (BLOCKS, 0, None);
        let mut held: Vec<Run> = Vec::new();
        let mut pending_free: Vec<Run> = Vec::new();
        for step in steps {
            let before = space.totals();
            let runs = match step {
                Step::One { goal, blocks, ahead, class } => {
                    let want = AllocRequest { goal: goal.map(BlockNo), blocks, ahead: ahead.map(|(ino, n)| (InodeNo(ino), n)), class, reserved: 0, part: None };
                    space.allocate_all(want).unwrap_or_default()
                }
                Step::All { blocks, ahead } => {
                    let want = AllocRequest { ahead: ahead.map(|(ino, n)| (InodeNo(ino), n)), ..want(blocks) };
                    let left = pending_free.iter().map(|run| run.blocks).sum::<u64>();
                    match space.allocate_all(want) {
                        Ok(runs) => {
                            prop_assert_eq!(runs.iter().map(|run| run.blocks).sum::<u64>(), blocks);
                            prop_assert!(before.free - left >= blocks + before.reserve, "I-SPC-3");
                            runs
                        }
                        Err(error) => {
                            prop_assert_eq!(error.kind, ErrorKind::NoSpace);
                            prop_assert!(before.free - left < blocks + before.reserve,
                                "refused although it fits");
                            prop_assert_eq!(space.totals().free, before.free,
                                "a refusal takes nothing");
                            vec![]
                        }
                    }
                }
                Step::Free { index } => {
                    if !held.is_empty() { space.free(&[held.swap_remove(index % held.len())], 0); }
                    vec![]
                }
                Step::Release { index } => {
                    lsn += 1;
                    // What metadata took no record of a file frees.
                    if !held.is_empty() && space.may_hold_data(held[index % held.len()]) {
                        let run = held.swap_remove(index % held.len());
                        space.release_after(Lsn(lsn), run);
                        pending_free.push(run);
                    }
                    vec![]
                }
                Step::Settle => {
                    prop_assert_eq!(space.release_sealed(Lsn(lsn)), !pending_free.is_empty());
                    pending_free.clear();
                    vec![]
                }
                Step::DropAhead { ino } => { space.drop_ahead(InodeNo(ino)); vec![] }
                Step::Grow { by } => {
                    if fence.is_none() { blocks_total += by; space.grow(blocks_total); }
                    vec![]
                }
                Step::Fence { at } => {
                    if at <= blocks_total { prop_assert!(space.fence(BlockNo(at))); fence = Some(at); }
                    vec![]
                }
                Step::Lift => { space.lift_fence(); fence = None; vec![] }
                Step::End => {
                    let used = |limit: &u64| held.iter().chain(&pending_free).any(|run| run.end() > *limit);
                    let free = fence.filter(|limit| !used(limit));
                    prop_assert_eq!(space.end_at_fence().is_ok(), free.is_some(), "I-SPC-8");
                    if let Some(limit) = free { (blocks_total, fence) = (limit, None); }
                    vec![]
                }
            };
            prop_assert!(runs.iter().all(|run| run.end() <= fence.unwrap_or(blocks_total)), "I-SPC-8: {:?}", runs);
            held.extend(runs);
            check(&space);
            let mut taken: Vec<Run> = held.iter().chain(&pending_free).copied().collect();
            taken.sort_unstable();
            prop_assert!(taken.windows(2).all(|pair| pair[0].end() <= pair[1].start.0),
                "two owners: {:?}", taken);
            let beyond = |run: &Run| run.end() - run.start.0.max(fence.unwrap_or(run.end())).min(run.end());
            let used_beyond: u64 = held.iter().chain(&pending_free).map(beyond).sum();
            let fenced = fence.map_or(0, |limit| blocks_total - limit - used_beyond);
            prop_assert_eq!(space.totals().free, blocks_total - fenced - held.iter().map(|run| run.blocks).sum::<u64>());
            if let Some(limit) = fence {
                prop_assert_eq!(space.left_beyond_fence(), used_beyond);
                let totals = space.fence_totals(BlockNo(limit));
                let pending_beyond: u64 = pending_free.iter().map(beyond).sum();
                prop_assert_eq!(totals.used_beyond, used_beyond - pending_beyond);
            }
        }
    }
}

/// I-SPC-8: once all beyond a fence is free nothing takes it, and the volume may end there.
#[test]
fn s_372_i_spc_8_nothing_beyond_a_fence_is_given_out() {
    let ends = |bug| {
        crate::planted::plant(bug);
        let space = space();
        let all = space.allocate_all(want(BLOCKS - 16)).unwrap();
        assert!(space.fence(BlockNo(BLOCKS / 2)));
        assert!(space.end_at_fence().is_err(), "all is in use");
        space.free(&all, 0);
        let goal = Some(BlockNo(BLOCKS / 2));
        let taken = space.allocate_all(AllocRequest { goal, ..want(8) }).unwrap();
        let beyond = taken.iter().any(|run| run.end() > BLOCKS / 2);
        space.free(&taken, 0);
        crate::planted::plant(None);
        beyond
    };
    assert!(!ends(None));
    assert!(ends(Some(crate::PlantedBug::FenceLetsThrough)), "the mistake is found");
}

/// I-SPC-5: what cached writes were promised is found, also where a volume is to end.
#[test]
fn s_375_a_fence_leaves_what_is_reserved() {
    let space = space();
    let all = space.allocate_all(want(BLOCKS / 2)).unwrap();
    space.reserve_blocks(20).unwrap();
    let free = space.totals().free;
    assert!(!space.fence(BlockNo(BLOCKS / 2 + 30)), "16 are kept, and 20 reserved");
    assert_eq!((space.totals().free, space.left_beyond_fence()), (free, 0));
    assert!(space.fence(BlockNo(BLOCKS / 2 + 36)));
    space.allocate_all(AllocRequest { reserved: 20, ..want(20) }).expect("I-SPC-5");
    space.free(&all, 0);
}

#[test]
fn an_allocation_continues_its_goal_first() {
    let space = space();
    let first = allocate(&space, want(8));
    let other = allocate(&space, want(8));
    assert_eq!(other.start.0, first.end());
    let next = allocate(&space, AllocRequest { goal: Some(BlockNo(other.end())), ..want(4) });
    assert_eq!(next.start.0, other.end());
}

#[test]
fn without_a_goal_the_tightest_run_is_taken_and_long_ones_are_spared() {
    let mut claims = Claims::new(BLOCK_SIZE, BLOCKS);
    claims.mark_used(Claim::new(BlockNo(10), 5, Owner::Region("log"))).unwrap();
    claims.mark_used(Claim::new(BlockNo(20), 5, Owner::Region("metadata"))).unwrap();
    let space = claims.into_allocator(|ino| ino).unwrap();
    assert_eq!(space.totals().runs, 3);
    assert_eq!(allocate(&space, want(4)), run(15, 4));
    assert_eq!(allocate(&space, want(7)), run(0, 7));
    assert_eq!(space.allocate_all(want(200)).unwrap(), [run(25, 200)]);
}

#[test]
fn two_files_that_append_in_turn_stay_contiguous() {
    let space = space();
    let mut runs = [Vec::new(), Vec::new()];
    for _ in 0..8 {
        for (ino, runs) in (1..).zip(&mut runs) {
            let goal = runs.last().map(|run: &Run| BlockNo(run.end()));
            runs.push(allocate(
                &space,
                AllocRequest { goal, ahead: Some((InodeNo(ino), 15)), ..want(1) },
            ));
        }
    }
    for runs in runs {
        assert!(runs.windows(2).all(|pair| pair[0].end() == pair[1].start.0), "{runs:?}");
    }
    space.drop_ahead(InodeNo(1));
    space.drop_ahead(InodeNo(2));
    assert_eq!(space.totals().runs, 2);
}

/// I-SPC-4
#[test]
fn appends_of_one_file_that_overtake_each_other_stay_contiguous() {
    let space = space();
    let ahead = Some((InodeNo(1), 20));
    let first = allocate(&space, AllocRequest { ahead, ..want(2) });
    let goal = |distance: u64| Some(BlockNo(first.start.0 + distance));
    let third = allocate(&space, AllocRequest { goal: goal(4), ahead, ..want(2) });
    let second = allocate(&space, AllocRequest { goal: goal(2), ahead, ..want(2) });
    let fourth = allocate(&space, AllocRequest { goal: goal(6), ahead, ..want(2) });
    assert_eq!(
        [second.start, third.start, fourth.start],
        [goal(2), goal(4), goal(6)].map(Option::unwrap)
    );
    check(&space);
}

#[test]
fn what_is_kept_ahead_is_taken_back_when_space_runs_out() {
    let space = space();
    allocate(&space, AllocRequest { ahead: Some((InodeNo(1), 100)), ..want(1) });
    let all = space.allocate_all(want(BLOCKS - 1 - 16)).unwrap();
    assert_eq!(all.iter().map(|run| run.blocks).sum::<u64>(), BLOCKS - 17);
    assert_eq!(space.allocate_all(want(1)).unwrap_err().kind, ErrorKind::NoSpace);
}

#[test]
fn the_reserve_is_kept_for_metadata() {
    let space = space();
    space.allocate_all(want(BLOCKS - 16)).unwrap();
    assert_eq!(space.allocate_all(want(1)).unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(
        allocate(&space, AllocRequest { class: SpaceClass::Metadata, ..want(16) }).blocks,
        16
    );
}

#[test]
fn the_reserve_follows_the_metadata_up_to_an_eighth() {
    let space = space();
    let before = space.totals();
    space.keep_for_metadata(before.reserve + 5);
    assert_eq!(space.totals().reserve, before.reserve + 5);
    space.keep_for_metadata(1);
    assert_eq!(space.totals().reserve, before.reserve + 5, "it never shrinks");
    space.keep_for_metadata(u64::MAX);
    assert_eq!(space.totals().reserve, before.total / 8);
}

#[test]
fn promised_blocks_are_found_on_a_full_volume() {
    let space = space();
    space.reserve_blocks(10).unwrap();
    space.allocate_all(want(BLOCKS - 16 - 10)).unwrap();
    assert_eq!(space.allocate_all(want(1)).unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(space.reserve_blocks(1).unwrap_err().kind, ErrorKind::NoSpace);
    let runs = space.allocate_all(AllocRequest { reserved: 4, ..want(4) }).expect("I-SPC-5");
    space.free(&runs, 4);
    assert_eq!(space.allocate_all(want(1)).unwrap_err().kind, ErrorKind::NoSpace, "reserved again");
    space.release_reserved(10);
    space.allocate_all(want(10)).unwrap();
}

#[test]
fn freed_blocks_wait_for_their_record() {
    let space = space();
    let all = space.allocate_all(want(BLOCKS - 16)).unwrap();
    space.release_after(Lsn(7), all[0]);
    assert!(!space.release_sealed(Lsn(6)));
    assert!(space.allocate_all(want(1)).is_err(), "I-SPC-2");
    assert_eq!(space.waiting_for(), Some(Lsn(7)));
    assert!(space.would_fit(1));
    assert!(space.release_sealed(Lsn(7)));
    assert!(space.allocate_all(want(1)).is_ok());
}

#[test]
fn hostile_claims_are_refused_by_name() {
    let mut claims = Claims::new(BLOCK_SIZE, BLOCKS);
    let owner = Owner::Extent(InodeNo(5), FileBlock(3), Epoch(1));
    for (start, blocks) in [(BLOCKS, 1), (0, BLOCKS + 1), (u64::MAX, 2), (3, u64::MAX), (3, 0)] {
        let error = claims.mark_used(Claim::new(BlockNo(start), blocks, owner)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.message.contains("inode 5 at file block 3"), "{error}");
    }
    claims.mark_used(Claim::new(BlockNo(0), 10, Owner::Region("the log"))).unwrap();
    claims.mark_used(Claim::new(BlockNo(9), 1, owner)).unwrap();
    let error = claims.into_allocator(|ino| ino).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(error.message.contains("the log") && error.message.contains("inode 5"), "{error}");
}

#[test]
fn every_overlap_is_found_also_below_a_long_claim() {
    let mut claims = Claims::new(BLOCK_SIZE, BLOCKS);
    for (at, (start, blocks)) in
        [(0, 100), (10, 5), (50, 5), (90, 20), (105, 2)].into_iter().enumerate()
    {
        claims
            .mark_used(Claim::new(
                BlockNo(start),
                blocks,
                Owner::Extent(InodeNo(1), FileBlock(at as u64), Epoch(1)),
            ))
            .unwrap();
    }
    let mut shared = Vec::new();
    claims.overlaps(|ino| ino, |_, _, run| shared.push(run));
    assert_eq!(shared, [run(10, 5), run(50, 5), run(90, 10), run(105, 2)]);
}

/// Frees every second block of a volume, under a limit of runs; returns how many blocks are free
/// then, and checks what they take in memory.
fn free_every_second(bug: Option<crate::PlantedBug>) -> u64 {
    const MANY: u64 = 1 << 15;
    const OPEN: usize = 100;
    let source: std::sync::Arc<dyn RegionSource> = std::sync::Arc::new(NoSource);
    let (all, weak) = ([run(0, MANY)].into_iter(), std::sync::Arc::downgrade(&source));
    let space = Allocator::over(4096, MANY, all, Vec::new(), 11, weak, &[]);
    space.limit_runs(Some(OPEN));
    let reserve = space.totals().reserve;
    let taken = allocate(&space, want(MANY - reserve));
    crate::planted::plant(bug);
    let half = taken.blocks / 2;
    for (lsn, at) in (0..half).map(|nth| taken.start.0 + 2 * nth).enumerate() {
        space.release_after(Lsn(lsn as u64), run(at, 1));
    }
    assert!(space.release_sealed(Lsn(half)));
    while space.inner.lock().pack_some() {}
    crate::planted::plant(None);
    let free = space.totals().free - reserve;
    {
        let inner = space.inner.lock();
        assert!(inner.by_start.len() <= OPEN, "{} runs are open", inner.by_start.len());
        let bytes = inner.unread.packed_bytes() as u64;
        assert!(bytes <= MANY / 8 + MANY / 64, "{bytes} bytes for {MANY} blocks");
    }
    if bug.is_none() {
        check(&space);
        assert_eq!(space.totals().runs, half + 1);
        let again: u64 = (0..half)
            .map(|_| space.allocate_all(want(1)).unwrap().iter().map(|run| run.blocks).sum::<u64>())
            .sum();
        assert_eq!(again, half, "each of them is found");
        check(&space);
    }
    free
}

/// I-SPC-9: free runs beyond a limit are packed, take little, and are found when they are needed.
#[test]
fn s_415_i_spc_9_many_free_runs_take_little_memory_and_none_is_lost() {
    let free = free_every_second(None);
    let forgotten = free_every_second(Some(crate::PlantedBug::PackedRunForgotten));
    assert!(forgotten < free, "a mistake is noticed");
}

/// Every second block of each region of 16 is free; region 3 cannot be read.
#[derive(Debug)]
struct EverySecond;

impl RegionSource for EverySecond {
    fn free_runs(&self, region: u64) -> Result<Vec<Run>> {
        if region == 3 {
            return Err(crate::Error::corrupt("its counts do not match"));
        }
        Ok((0..8).map(|nth| run(16 * region + 2 * nth, 1)).collect())
    }
}

/// What a commit of the tree may take is read before it; the indexes get what it takes.
#[test]
fn free_space_for_a_commit_is_read_and_stays_packed() {
    let source: std::sync::Arc<dyn RegionSource> = std::sync::Arc::new(EverySecond);
    let weak = std::sync::Arc::downgrade(&source);
    let unread = |region| Unread { region, free: 8, longest: 1, runs: 8 };
    let closed = (0..16).map(|region| (unread(region), None)).collect();
    let space = Allocator::over(BLOCK_SIZE, BLOCKS, [].into_iter(), closed, 4, weak, &[]);
    let for_tree = |blocks| AllocRequest { class: SpaceClass::Metadata, ..want(blocks) };
    assert_eq!(space.allocate_all(for_tree(1)).unwrap_err().kind, ErrorKind::NoSpace);
    space.load_blocks(60);
    check(&space);
    {
        let inner = space.inner.lock();
        assert!(inner.by_start.is_empty(), "{:?} is open", inner.by_start);
        assert_eq!(inner.unread.packed_free, 64, "no more is read than is asked for");
        assert_eq!(inner.unread.free, 15 * 8, "what cannot be read counts as used");
    }
    assert_eq!(space.allocate_all(for_tree(60)).unwrap().len(), 60);
    check(&space);
    space.load_blocks(BLOCKS);
    assert_eq!(space.inner.lock().available(SpaceClass::Metadata), 15 * 8 - 60);
}
