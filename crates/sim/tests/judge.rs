//! The judge over random workloads, over directed ones, and over a device that lies.
#![forbid(unsafe_code)]

use block::CrashChoice;
use fs::IoMode;
use sim::{Change, Cut, Effort, RenameKind, Setup, Step, generate, judge, record, try_seed, try_steps};

fn passes(seed: u64, setup: &Setup, steps: &[Step], cuts: usize) {
    let effort = Effort { cuts, ..Effort::default() };
    if let Err(violation) = try_steps(seed, setup, steps, &effort) {
        panic!("{violation}");
    }
}

/// Judges a cut after every device operation, with all, none and some of what was not flushed.
fn every_cut(setup: &Setup, steps: &[Step]) -> usize {
    let history = record(setup, steps);
    let mut states = 0;
    for after in history.first_operation()..=history.operations() {
        for choice in [CrashChoice::LoseAll, CrashChoice::KeepAll, CrashChoice::Seeded(after as u64), CrashChoice::Seeded(!(after as u64))] {
            let again = after.is_multiple_of(5).then_some(after as u64);
            if let Err(what) = judge(&history, &Cut { after, choice, again }) {
                panic!("{what}\n{steps:#?}");
            }
            states += 1;
        }
    }
    states
}

const DISK: Setup = Setup { sector: 512, block_size: 4096, volatile_cache: true, lose_flushes: false };

fn write(file: u8, offset: u64, len: u32, fill: u8) -> Step {
    Step::Write(file, 0, IoMode::Concurrent, offset, len, fill, false)
}

/// S-4, S-5, S-6, S-7, S-9, S-16, S-37: random workloads in all modes, cut anywhere, also during recovery.
#[test]
fn s_4_s_5_s_7_s_9_s_16_s_37_random_workloads_survive_every_cut() {
    let effort = Effort { steps: 30, cuts: 25, ..Effort::default() };
    for seed in 1..=60 {
        if let Err(violation) = try_seed(seed, &effort) {
            panic!("{violation}");
        }
    }
}

/// S-11: what was removed does not come back when the file grows over it again.
#[test]
fn s_11_removed_bytes_stay_removed() {
    let grow = Step::SetSize(0, 0, 60_000);
    let removals = [Step::SetSize(0, 0, 5000), Step::Allocate(0, 0, Change::Punch, 4096, 20_000), Step::Allocate(0, 0, Change::Zero, 1000, 30_000)];
    for (seed, removal) in removals.into_iter().enumerate() {
        let steps = [
            Step::Create(0, 0),
            write(0, 0, 50_000, 7),
            Step::Sync,
            removal,
            Step::SyncData(0, 0),
            grow.clone(),
            write(0, 45_000, 100, 9),
            Step::Sync,
        ];
        passes(seed as u64, &DISK, &steps, 150);
    }
}

/// S-15: the classic way to replace a file leaves the old one or the new one.
#[test]
fn s_15_write_sync_rename_leaves_one_whole_file() {
    let mut steps = vec![Step::Create(0, 0), write(0, 0, 20_000, 1), Step::Sync];
    for round in 0..4 {
        steps.extend([Step::Create(1, 0), write(1, 0, 10_000, 50 + round), Step::SyncData(1, 0), Step::Rename(1, 0, 0, 0, RenameKind::Replace)]);
    }
    passes(1, &DISK, &steps, 300);
}

/// An append after a truncation, a punch below a hole fill, and an overwrite of what was just exposed.
#[test]
fn directed_workloads_that_have_broken_file_systems_before() {
    let append_after_truncate =
        [Step::Create(0, 0), write(0, 0, 9000, 1), Step::SyncData(0, 0), Step::SetSize(0, 0, 100), write(0, 100, 9000, 2), Step::SyncData(0, 0)];
    let punch_under_fill = [
        Step::Create(0, 0),
        Step::Allocate(0, 0, Change::Preallocate, 0, 40_960),
        write(0, 8192, 8192, 1),
        Step::Allocate(0, 0, Change::Punch, 4096, 8192),
        write(0, 4096, 8192, 2),
        Step::SyncAll(0, 0),
        write(0, 4096, 4096, 3),
    ];
    let overwrite_exposed = [
        Step::Create(0, 0),
        write(0, 0, 8192, 1),
        Step::SyncData(0, 0),
        write(0, 0, 4096, 2),
        write(0, 8192, 4096, 3),
        Step::SyncData(0, 0),
        write(0, 8192, 512, 4),
        Step::Sync,
    ];
    for (seed, steps) in [&append_after_truncate[..], &punch_under_fill, &overwrite_exposed].into_iter().enumerate() {
        for volatile_cache in [true, false] {
            passes(seed as u64, &Setup { volatile_cache, ..DISK }, steps, 200);
        }
    }
}

/// Attributes large enough to fill the log again and again: metadata commits at any moment.
#[test]
fn a_full_log_loses_nothing() {
    let mut steps = vec![Step::Create(0, 0)];
    for round in 0..24 {
        steps.extend([Step::SetAttribute(0, 0, 60_000), write(0, u64::from(round) * 4096, 4096, round + 1), Step::SyncAll(0, 0)]);
    }
    passes(1, &DISK, &steps, 150);
}

/// S-50, S-52, S-54, I-CKP-1, I-CKP-3, I-CKP-5: checkpoints made, written after, and deleted, cut at every device operation.
#[test]
fn s_50_s_52_s_54_i_ckp_1_checkpoints_survive_every_cut() {
    let after = |fill: u8| [write(0, 4096, 8192, fill), write(0, 5000, 100, fill), Step::SetSize(0, 0, 9000), write(0, 20_000, 6000, fill)];
    let mut steps = vec![Step::Create(0, 0), write(0, 0, 50_000, 1), Step::Create(1, 0), write(1, 0, 8192, 9), Step::Checkpoint(0, None)];
    steps.extend(after(2));
    steps.extend([Step::Checkpoint(1, None), Step::Unlink(1, 0), Step::SyncData(0, 0)]);
    steps.extend(after(3));
    steps.extend([Step::DeleteCheckpoint(0), Step::Checkpoint(2, Some(0)), write(0, 0, 16_384, 4), Step::SyncData(0, 0), Step::DeleteCheckpoint(1)]);
    steps.extend(after(5));
    steps.extend([Step::DeleteCheckpoint(2), Step::Sync]);
    let tally = every_cut(&DISK, &steps);
    println!("{tally:?}");
}

/// A judge that finds nothing is not believed: a device that acknowledges flushes and loses them must be found out.
#[test]
fn the_judge_sees_lost_flushes() {
    let found = (1..=20).any(|seed| {
        let (setup, steps) = generate(seed, 30);
        let setup = Setup { lose_flushes: true, volatile_cache: true, ..setup };
        try_steps(seed, &setup, &steps, &Effort { cuts: 40, ..Effort::default() }).is_err()
    });
    assert!(found, "twenty seeds over a device that flushes nothing, and the judge saw no loss");
}
