//! Long changes of a file of ten extents, on a volume where a record takes four of them, with
//! another operation in the middle; members of groups that vanish; processes that die in the middle
//! of a step.

use bedplate_fs::{IoMode, PlantedBug};
use bedplate_sim::{
    Back, Backend, Cuts, Effort, On, Setup, Step, pair, try_interleaved, try_pair, try_steps,
};

fn effort(steps: usize, cuts: usize) -> Effort {
    Effort { steps, cuts: Cuts::Around(cuts), second_cut_every: 4, second_life_every: 0 }
}

/// The number of the first pair whose change and whose other step are these.
pub(crate) fn number(change: &Step, other: &Step) -> usize {
    let is = |number: &usize| {
        pair(*number, &[1]).iter().any(|step| matches!(step, Step::During(first, second, _) if (&**first, &**second) == (change, other)))
    };
    (0..bedplate_sim::pair_count()).find(is).expect("there is such a pair")
}

/// S-11, S-50, S-56: checkpoints and rollbacks in the middle of truncations by path and of removals
/// show and leave one state or the other.
#[test]
fn s_11_s_50_s_56_nothing_shows_the_middle_of_a_long_change() {
    let everything = Step::Rollback(0, Back::Everything, true);
    for change in [
        Step::Truncate(0, 0, 3000),
        Step::Unlink(0, 0),
        Step::Allocate(On::Name(0, 0), bedplate_sim::Change::Punch, 512, 9000),
    ] {
        for other in [&Step::Checkpoint(1, None), &everything] {
            if let Err(violation) =
                try_pair(1, number(&change, other), &Setup::SMALL, 4, &effort(0, 2))
            {
                panic!("{violation}");
            }
        }
    }
}

/// S-4, S-5, S-6, S-9, S-11, S-16, S-50, S-54, S-61: random workloads of scattered files, also on
/// groups of devices.
#[test]
fn s_4_s_5_s_11_s_50_s_54_s_61_interleaved_workloads_survive_cuts() {
    for seed in 1..=3 {
        if let Err(violation) = try_interleaved(seed, &Backend::MIXED, &effort(40, 4)) {
            panic!("{violation}");
        }
    }
}

/// S-77: a checkpoint in the middle of a clone has rows of it and does not show it, so a comparison
/// with that checkpoint tells of all of the clone.
#[test]
fn s_77_a_clone_that_was_being_made_is_new_to_a_checkpoint_in_its_middle() {
    let steps = |clone: Step, turn: u16| {
        let during = Step::During(Box::new(clone), Box::new(Step::Checkpoint(1, None)), vec![turn]);
        let write = |at: u64| Step::Write(On::Name(0, 1), IoMode::Concurrent, at, 512, 10, false);
        let mut steps = vec![Step::MakeDirectory(1), Step::Create(0, 1)];
        steps.extend((0..5).map(|piece| write(piece * 1024)));
        steps.extend([Step::Checkpoint(0, None), during, Step::Diff(1)]);
        steps
    };
    let compared = |bug| {
        bedplate_fs::plant(bug);
        let clones = [Step::Clone(Some(0), 0, 1, 3), Step::CloneDirectory(Some(0), 1, 2)];
        clones.map(|clone| {
            let turned = (1..24).map(|turn| {
                let setup = Setup { per_record: 2, ..Setup::SMALL };
                try_steps(1, &setup, &steps(clone.clone(), turn), &effort(0, 2))
            });
            turned.filter_map(Result::err).next()
        })
    };
    for found in compared(Some(PlantedBug::UnfinishedCompared)) {
        let violation = found.expect("UnfinishedCompared went unnoticed");
        assert!(violation.what.contains("S-77"), "by another rule: {violation}");
    }
    if let Some(violation) = compared(None).into_iter().flatten().next() {
        panic!("{violation}");
    }
}

/// S-77: a truncation takes dirty pages away before its first record; a comparison in the middle of
/// it tells of what was written before, or of the truncation.
#[test]
fn s_77_a_comparison_in_the_middle_of_a_truncation_tells_of_the_file() {
    let write = |at| Step::Write(On::Name(0, 0), IoMode::Cached, at, 512, 7, false);
    for turn in 1..12 {
        let truncate = Box::new(Step::Truncate(0, 0, 3000));
        let during = Step::During(truncate, Box::new(Step::Diff(1)), vec![turn]);
        let steps =
            [Step::Create(0, 0), write(5000), Step::Checkpoint(1, None), write(20_000), during];
        if let Err(violation) = try_steps(1, &Setup::SMALL, &steps, &effort(0, 2)) {
            panic!("turn {turn}: {violation}");
        }
    }
}

/// S-75: a clone of the present is of a moment before its records, so a change behind that moment
/// may be there without the clone (seed 6000906).
#[test]
fn s_75_a_change_beside_a_clone_survives_without_it() {
    let setup = Setup { per_record: 4, backend: Backend::Mirror, ..Setup::SMALL };
    for turn in 7..12 {
        let clone = Box::new(Step::CloneDirectory(None, 1, 2));
        let change = Box::new(Step::SetUntorn(None, 1, Some(8192)));
        let steps =
            [Step::MakeDirectory(1), Step::Remount, Step::During(clone, change, vec![turn])];
        if let Err(violation) = try_steps(1, &setup, &steps, &effort(0, 60)) {
            panic!("turn {turn}: {violation}");
        }
    }
}

/// S-1, S-2: a truncation takes dirty pages away before its first record; a sync in the middle of
/// it promises what was written before, or the truncation (seed 7000550).
#[test]
fn s_1_a_sync_in_the_middle_of_a_truncation_waits_for_it() {
    let steps = |sync: &Step, turn: u16| {
        let write = |at| Step::Write(On::Name(0, 0), IoMode::Cached, at, 512, 7, false);
        let truncate = Box::new(Step::Truncate(0, 0, 0));
        let mut steps = vec![Step::Create(0, 0), Step::Hold(0, 0, 0, IoMode::Cached)];
        steps.extend((0..6).map(|piece| write(piece * 1024)));
        steps.push(Step::SyncAll(On::Name(0, 0)));
        steps.extend([write(6 * 1024), write(7 * 1024)]);
        steps.push(Step::During(truncate, Box::new(sync.clone()), vec![turn]));
        steps
    };
    let setup = Setup { per_record: 2, ..Setup::SMALL };
    let judged = |bug| {
        bedplate_fs::plant(bug);
        [Step::Sync, Step::SyncAll(On::Held(0)), Step::SyncData(On::Held(0))].map(|sync| {
            let turned =
                (1..16).map(|turn| try_steps(1, &setup, &steps(&sync, turn), &effort(0, 40)));
            turned.filter_map(Result::err).next()
        })
    };
    for (sync, found) in judged(Some(PlantedBug::SyncPassesTruncation)).into_iter().enumerate() {
        assert!(found.is_some(), "SyncPassesTruncation went unnoticed by sync {sync}");
    }
    if let Some(violation) = judged(None).into_iter().flatten().next() {
        panic!("{violation}");
    }
}

/// S-260: blocks whose removal is not durable are not discarded, so a crash that brings the file
/// back brings its bytes back.
#[test]
fn s_260_what_a_crash_brings_back_was_not_discarded() {
    let write = |at| Step::Write(On::Name(0, 0), IoMode::Concurrent, at, 512, 7, false);
    let mut steps = vec![Step::Create(0, 0), Step::Create(2, 0)];
    steps.extend((0..6).map(|piece| write(piece * 1024)));
    steps.extend([Step::Sync, Step::Unlink(0, 0), Step::Trim, Step::Create(1, 0), Step::Sync]);
    let judged = |bug| {
        bedplate_fs::plant(bug);
        let effort = Effort { cuts: Cuts::Every(3), ..effort(0, 0) };
        [Backend::One, Backend::Mirror]
            .map(|backend| try_steps(1, &Setup { backend, ..Setup::SMALL }, &steps, &effort).err())
    };
    for found in judged(Some(PlantedBug::DiscardBeforeSealed)) {
        assert!(found.is_some(), "DiscardBeforeSealed went unnoticed");
    }
    if let Some(violation) = judged(None).into_iter().flatten().next() {
        panic!("{violation}");
    }
}
