use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::images::freed_by;

/// What one block of the file maps to, the naive way.
type Cell = (u64, ExtentState, Epoch);
/// The naive map: one entry a block.
type Model = BTreeMap<u64, Cell>;

const FILE_BLOCKS: u64 = 40;

#[derive(Debug, Clone)]
enum Step {
    /// Maps a range to fresh volume blocks that begin `gap` blocks after the last ones given out.
    Fill {
        at: u64,
        blocks: u64,
        gap: u64,
        state: ExtentState,
        birth: u32,
    },
    Remove {
        at: u64,
        blocks: u64,
    },
    Convert {
        at: u64,
        blocks: u64,
        state: ExtentState,
    },
    Collapse {
        at: u64,
        blocks: u64,
    },
    Insert {
        at: u64,
        blocks: u64,
    },
}

fn state() -> impl Strategy<Value = ExtentState> {
    prop_oneof![Just(ExtentState::Written), Just(ExtentState::Unwritten)]
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..FILE_BLOCKS, 1..12u64);
    prop_oneof![
        4 => (place(), prop_oneof![3 => Just(0u64), 1 => 1..3u64], state(), 1..3u32)
            .prop_map(|((at, blocks), gap, state, birth)| Step::Fill { at, blocks, gap, state, birth }),
        2 => place().prop_map(|(at, blocks)| Step::Remove { at, blocks }),
        2 => (place(), state()).prop_map(|((at, blocks), state)| Step::Convert { at, blocks, state }),
        1 => place().prop_map(|(at, blocks)| Step::Collapse { at, blocks }),
        1 => place().prop_map(|(at, blocks)| Step::Insert { at, blocks }),
    ]
}

fn model_of(map: &ExtentMap) -> Model {
    map.from(0)
        .flat_map(|(at, extent)| {
            (0..u64::from(extent.blocks))
                .map(move |i| (at.0 + i, (extent.start.0 + i, extent.state, extent.birth)))
        })
        .collect()
}

fn volume_blocks(runs: &[Run]) -> Vec<u64> {
    let mut blocks: Vec<u64> = runs.iter().flat_map(|run| run.start.0..run.end()).collect();
    blocks.sort_unstable();
    blocks
}

fn step_model(model: &mut Model, step: &Step, next: &mut u64) -> Vec<u64> {
    let mut freed = Vec::new();
    match *step {
        Step::Fill { at, blocks, gap, state, birth } => {
            *next += gap;
            for i in 0..blocks {
                freed.extend(
                    model.insert(at + i, (*next + i, state, Epoch(birth))).map(|cell| cell.0),
                );
            }
            *next += blocks;
        }
        Step::Remove { at, blocks } => {
            freed.extend((at..at + blocks).filter_map(|b| model.remove(&b)).map(|cell| cell.0));
        }
        Step::Convert { at, blocks, state } => {
            model.range_mut(at..at + blocks).for_each(|(_, cell)| cell.1 = state);
        }
        Step::Collapse { at, blocks } => {
            freed.extend((at..at + blocks).filter_map(|b| model.remove(&b)).map(|cell| cell.0));
            *model = model
                .iter()
                .map(|(b, cell)| (if *b < at { *b } else { b - blocks }, *cell))
                .collect();
        }
        Step::Insert { at, blocks } => {
            *model = model
                .iter()
                .map(|(b, cell)| (if *b < at { *b } else { b + blocks }, *cell))
                .collect();
        }
    }
    freed.sort_unstable();
    freed
}

fn plan(map: &ExtentMap, step: &Step, next: u64) -> Vec<ExtentChange> {
    match *step {
        Step::Fill { at, blocks, gap, state, birth } => {
            let extent = Extent {
                start: BlockNo(next + gap),
                blocks: narrow(blocks),
                state,
                birth: Epoch(birth),
            };
            map.plan_set(at..at + blocks, &[(FileBlock(at), extent)])
        }
        Step::Remove { at, blocks } => map.plan_remove(at..at + blocks),
        Step::Convert { at, blocks, state } => {
            let converted: Vec<_> = map
                .parts(at..at + blocks)
                .map(|(at, extent)| (FileBlock(at), Extent { state, ..extent }))
                .collect();
            map.plan_set(at..at + blocks, &converted)
        }
        Step::Collapse { at, blocks } => map.plan_collapse(at..at + blocks),
        Step::Insert { at, blocks } => map.plan_insert(at, blocks),
    }
}

fn check_shape(map: &ExtentMap) {
    let extents: Vec<_> = map.from(0).collect();
    for pair in extents.windows(2) {
        let ((a, first), (b, second)) = (pair[0], pair[1]);
        let end = a.0 + u64::from(first.blocks);
        assert!(end <= b.0, "I-EXT-1");
        assert!(end != b.0 || first.joined(second).is_none(), "I-EXT-2: {first:?} {second:?}");
    }
    assert_eq!(
        map.blocks(),
        extents.iter().map(|(_, extent)| u64::from(extent.blocks)).sum::<u64>()
    );
    assert_eq!(map.end(), extents.last().map_or(0, |(at, extent)| at.0 + u64::from(extent.blocks)));
}

fn check_views(map: &ExtentMap, model: &Model) {
    for block in 0..FILE_BLOCKS * 2 {
        let found = map
            .holding(block)
            .map(|(at, extent)| (extent.start.0 + (block - at.0), extent.state, extent.birth));
        assert_eq!(found, model.get(&block).copied(), "block {block}");
    }
    for (from, to) in [(0, FILE_BLOCKS * 2), (3, 17), (9, 10), (5, 5)] {
        let mut at = from;
        for piece in map.pieces(from..to) {
            assert_eq!(piece.file_block, at, "pieces leave no gap");
            assert!(piece.blocks > 0);
            for i in 0..piece.blocks {
                let cell =
                    piece.mapped.map(|mapped| (mapped.start.0 + i, mapped.state, mapped.birth));
                assert_eq!(cell, model.get(&(at + i)).copied());
            }
            at += piece.blocks;
        }
        assert_eq!(at, to, "pieces cover the range");
    }
}

proptest! {
    #[test]
    fn plans_do_what_a_map_of_single_blocks_does(steps in prop::collection::vec(step(), 1..60)) {
        let (mut map, mut model, mut next) = (ExtentMap::default(), Model::new(), 1000);
        let mut rows: BTreeMap<u64, Extent> = BTreeMap::new();
        for step in &steps {
            let plan = plan(&map, step, next);
            let freed = step_model(&mut model, step, &mut next);
            for change in &plan {
                match change {
                    ExtentChange::Put(at, extent) => prop_assert_ne!(rows.insert(at.0, *extent), Some(*extent),
                        "a put that changes nothing"),
                    ExtentChange::Delete(at) => prop_assert!(rows.remove(&at.0).is_some(),
                        "a delete of no row"),
                }
            }
            let old = map.apply(&plan);
            prop_assert_eq!(volume_blocks(&freed_by(&plan, &old)), freed);
            check_shape(&map);
            prop_assert_eq!(&model_of(&map), &model);
            check_views(&map, &model);
            let reread = ExtentMap::from_rows(rows.iter().map(|(at, extent)| (FileBlock(*at), *extent))).expect(
                "own rows are sound");
            prop_assert_eq!(&reread, &map, "rows and memory agree");
        }
    }
}

/// Reads what is absent of a range from rows, two extents at a time.
fn read(map: &mut ExtentMap, rows: &BTreeMap<u64, Extent>, range: &Range<u64>) {
    while let Some(block) = map.first_absent(range) {
        let gap = map.gap(block);
        let before = rows.range(gap.start..=block).next_back();
        let start = before.map_or(gap.start, |(at, _)| *at);
        let all = || rows.range(start..gap.end).map(|(at, extent)| (FileBlock(*at), *extent));
        let end = all().nth(2).map_or(gap.end, |(at, _)| at.0);
        map.learn(start..end, all().take(2)).expect("own rows are sound");
    }
}

/// The blocks that a step looks at.
fn looks_at(step: &Step) -> Range<u64> {
    match *step {
        Step::Fill { at, blocks, .. }
        | Step::Remove { at, blocks }
        | Step::Convert { at, blocks, .. } => at..at + blocks,
        Step::Collapse { at, .. } | Step::Insert { at, .. } => at..u64::MAX,
    }
}

proptest! {
    // I-EXT-3: whatever leaves memory and is read again, a map answers what the rows say.
    #[test]
    fn i_ext_3_a_map_in_parts_is_as_a_whole_one(
        steps in prop::collection::vec((step(), 0..4_usize, 0..4_usize), 1..60),
        extents_of_part in 1..4_usize,
    ) {
        let memory = Arc::new(MapMemory::default());
        let mut map = ExtentMap::default();
        map.set_bounds(Arc::clone(&memory), extents_of_part);
        let (mut model, mut next) = (Model::new(), 1000);
        let mut rows: BTreeMap<u64, Extent> = BTreeMap::new();
        for (step, passes, leave) in &steps {
            let range = looks_at(step);
            read(&mut map, &rows, &ExtentMap::around(&range));
            let changes = plan(&map, step, next);
            step_model(&mut model, step, &mut next);
            for change in &changes {
                match change {
                    ExtentChange::Put(at, extent) => drop(rows.insert(at.0, *extent)),
                    ExtentChange::Delete(at) => drop(rows.remove(&at.0)),
                }
            }
            map.apply(&changes);
            prop_assert_eq!(map.blocks(), model.len() as u64);
            for _ in 0..*passes {
                let mut left = map.part_count() / (leave + 1) + 2;
                let more = || {
                    left = left.saturating_sub(1);
                    left > 0
                };
                let evicting = |part: Range<u64>, extents: &[(u64, Extent)]| {
                    let of_rows = rows.range(part).map(|(at, extent)| (*at, *extent));
                    assert!(of_rows.eq(extents.iter().copied()), "what leaves is what the rows say");
                };
                map.sweep(usize::MAX, more, evicting);
            }
            read(&mut map, &rows, &range);
            if range.end <= FILE_BLOCKS * 2 {
                for piece in map.pieces(range) {
                    for i in 0..piece.blocks {
                        let cell = piece.mapped.map(|it| (it.start.0 + i, it.state, it.birth));
                        prop_assert_eq!(cell, model.get(&(piece.file_block + i)).copied());
                    }
                }
            }
        }
        read(&mut map, &rows, &(0..u64::MAX));
        check_shape(&map);
        check_views(&map, &model);
        prop_assert_eq!(&model_of(&map), &model);
        for count in 1..5 {
            let first = rows.keys().rev().nth(count - 1).copied().unwrap_or(0);
            prop_assert_eq!(map.tail_start(&(0..u64::MAX), count), first);
        }
        // A part that nothing uses leaves memory after three passes.
        prop_assert!(memory.bytes() > 0);
        for _ in 0..3 {
            map.sweep(usize::MAX, || true, |_, _| ());
        }
        prop_assert!(map.is_absent() && memory.bytes() == 0);
        read(&mut map, &rows, &(0..1));
        prop_assert!(memory.bytes() > 0);
        drop(map);
        prop_assert_eq!(memory.bytes(), 0);
    }
}

#[test]
fn a_packed_part_takes_the_bytes_that_its_values_need() {
    // Units of two blocks, in random places of a large volume.
    let rows = (0..256).map(|i| (FileBlock(i * 2), extent(((i * 7919) % 256) << 16, 2)));
    let memory = Arc::new(MapMemory::default());
    let mut map = ExtentMap::from_rows(rows.clone()).unwrap();
    map.set_bounds(Arc::clone(&memory), 256);
    assert_eq!(map.part_count(), 1);
    let packed = memory.bytes();
    assert!(packed <= 256 * 5 + 256, "two bytes for the block, three for the place: {packed}");
    // Another place of an extent that is there is put where the old one stood.
    map.apply(&[ExtentChange::Put(FileBlock(20), extent(77, 2))]);
    assert_eq!((memory.bytes(), map.holding(21).unwrap().1.start.0), (packed, 77));
    map.apply(&[ExtentChange::Put(FileBlock(20), extent(u64::MAX >> 8, 2))]);
    assert_eq!(memory.bytes(), packed + 256 * 4, "its places take seven bytes instead of three");
    map.apply(&[ExtentChange::Put(FileBlock(20), rows.clone().nth(10).unwrap().1)]);
    assert!(map.from(0).eq(rows));
}

/// S-414: extents of a packed part come, go, grow and shrink, and it takes no more memory for it
/// than what they need in columns; opened it would take 32 bytes an extent.
#[test]
fn s_414_a_packed_part_stays_packed_while_its_extents_change() {
    let rows = (0..256).map(|i| (FileBlock(i * 2), extent(((i * 7919) % 256) << 16, 2)));
    let memory = Arc::new(MapMemory::default());
    let mut map = ExtentMap::from_rows(rows).unwrap();
    map.set_bounds(Arc::clone(&memory), 256);
    let mut model: BTreeMap<u64, Extent> = map.from(0).map(|(at, it)| (at.0, it)).collect();
    let mut seed = 5_u64;
    for round in 0..4000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let unit = (seed >> 33) % 256;
        // Two units become one extent, or it becomes two, or one of them moves.
        let changes = match (seed >> 50) % 3 {
            0 => vec![
                ExtentChange::Put(FileBlock(unit / 2 * 4), extent(seed >> 40 << 2, 4)),
                ExtentChange::Delete(FileBlock(unit / 2 * 4 + 2)),
            ],
            _ => vec![
                ExtentChange::Put(FileBlock(unit / 2 * 4), extent(seed >> 40 << 2, 2)),
                ExtentChange::Put(FileBlock(unit / 2 * 4 + 2), extent(seed >> 41 << 2, 2)),
            ],
        };
        for change in &changes {
            match *change {
                ExtentChange::Put(at, extent) => drop(model.insert(at.0, extent)),
                ExtentChange::Delete(at) => drop(model.remove(&at.0)),
            }
        }
        map.apply(&changes);
        assert!(
            map.from(0).eq(model.iter().map(|(at, it)| (FileBlock(*at), *it))),
            "S-414, {round}"
        );
        assert!(memory.bytes() < 256 * 8 + 256, "S-414: {} bytes, round {round}", memory.bytes());
    }
}

#[test]
#[should_panic(expected = "I-EXT-3")]
fn i_ext_3_what_is_absent_is_not_taken_for_a_hole() {
    let map = ExtentMap::absent(8);
    drop(map.pieces(0..8));
}

fn extent(start: u64, blocks: u32) -> Extent {
    Extent { start: BlockNo(start), blocks, state: ExtentState::Written, birth: Epoch(1) }
}

#[test]
fn an_append_to_a_contiguous_file_changes_one_row() {
    let mut map = ExtentMap::default();
    map.apply(&map.plan_set(0..8, &[(FileBlock(0), extent(100, 8))]));
    let plan = map.plan_set(8..9, &[(FileBlock(8), extent(108, 1))]);
    assert_eq!(plan, [ExtentChange::Put(FileBlock(0), extent(100, 9))]);
}

#[test]
fn extents_stop_growing_at_their_bound() {
    let mut map = ExtentMap::default();
    map.apply(&map.plan_set(0..u64::from(u32::MAX), &[(FileBlock(0), extent(0, u32::MAX))]));
    let end = u64::from(u32::MAX);
    map.apply(&map.plan_set(end..end + 1, &[(FileBlock(end), extent(end, 1))]));
    assert_eq!(map.len(), 2);
    assert_eq!(
        map.holding(end).map(|(at, extent)| (at.0, extent.start)),
        Some((end, BlockNo(end)))
    );
}

#[test]
fn rows_that_overlap_are_refused() {
    let rows = [(FileBlock(0), extent(10, 4)), (FileBlock(3), extent(50, 1))];
    assert_eq!(ExtentMap::from_rows(rows), Err(FileBlock(3)));
    assert_eq!(ExtentMap::from_rows([(FileBlock(0), extent(10, 0))]), Err(FileBlock(0)));
    assert_eq!(
        ExtentMap::from_rows([(FileBlock(u64::MAX), extent(10, 2))]),
        Err(FileBlock(u64::MAX))
    );
    assert_eq!(ExtentMap::from_rows([(FileBlock(1), extent(u64::MAX, 2))]), Err(FileBlock(1)));
}

#[test]
fn a_tail_is_cut_in_bounded_steps() {
    let mut map = ExtentMap::default();
    let scattered: Vec<_> = (0..10).map(|i| (FileBlock(i * 2), extent(1000 - i * 10, 1))).collect();
    map.apply(&map.plan_set(0..20, &scattered));
    let mut steps = Vec::new();
    while map.end() > 3 {
        let from = map.tail_start(&(3..u64::MAX), 3);
        map.apply(&map.plan_remove(from..u64::MAX));
        steps.push(from);
    }
    assert_eq!(steps, [14, 8, 3]);
    assert_eq!(map.len(), 2);
}
