//! Long changes, and what comes in the middle of each: a file of ten extents on a volume where a
//! record takes a few of them.

use bedplate_fs::IoMode;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::directed::{A, B, write};
use super::generate::{lent, mode, pick, step};
use super::{Ailment, Back, Backend, Change, On, RenameKind, Setup, Step};

/// Extents of a scattered file.
const EXTENTS: u64 = 10;
/// The file that ranges are copied to.
const COPY: On = On::Name(4, 0);
/// From one extent of a scattered file to the next, in bytes: a block of 512 and a hole.
const STRIDE: u64 = 1024;

/// A long change with what comes before it.
struct Long {
    before: Vec<Step>,
    change: Step,
}

/// Writes every other block of a file, so that each is an extent of its own.
fn scatter(on: On, fill: u8) -> impl Iterator<Item = Step> {
    (0..EXTENTS).map(move |number| {
        write(on, number * STRIDE, 512, fill + u8::try_from(number).expect("ten"))
    })
}

/// A scattered file, others beside it, and a checkpoint that shares most of its extents.
fn prelude() -> Vec<Step> {
    let inside = On::Name(0, 1);
    let mut steps = vec![Step::Create(0, 0)];
    steps.extend(scatter(A, 10));
    steps.extend([
        Step::Create(1, 0),
        write(B, 0, 2000, 30),
        Step::MakeDirectory(1),
        Step::Create(0, 1),
    ]);
    steps.extend(scatter(inside, 40));
    steps.extend([
        Step::Sync,
        Step::Checkpoint(0, None),
        write(A, 2 * STRIDE, 512, 60),
        write(A, 7 * STRIDE, 512, 61),
        Step::Create(4, 0),
        write(COPY, 0, 700, 62),
        Step::Sync,
    ]);
    steps
}

/// Copies what one record shares of a scattered file, so that it happens at one moment: two extents, to
/// a file that no checkpoint has.
fn copy() -> Step {
    let (at, extents) = (2 * STRIDE, 2 * STRIDE as u32);
    Step::CopyRange(A, COPY, IoMode::Concurrent, at, at, extents)
}

/// Blocks that became free are used, removed bytes are looked for, and both checkpoints come back
/// and go.
fn epilogue() -> Vec<Step> {
    let fresh = On::Name(4, 1);
    vec![
        // What a copy may have in common with another file.
        write(A, 2 * STRIDE, 512, 199),
        Step::SetSize(A, 12_000),
        Step::Create(4, 1),
        write(fresh, 0, 9000, 200),
        Step::SyncData(fresh),
        Step::Read(A, IoMode::Concurrent, 0, 12_000),
        Step::Sync,
        Step::Rollback(1, Back::Everything, true),
        Step::SetSize(A, 11_000),
        write(A, 3 * STRIDE, 512, 210),
        Step::Rollback(0, Back::Everything, true),
        Step::SyncAll(A),
        Step::DeleteCheckpoint(0),
        Step::DeleteCheckpoint(1),
        Step::Unlink(0, 0),
        Step::Sync,
    ]
}

/// Every change that takes several records, or many.
fn long() -> Vec<Long> {
    let alone = |change: Step| Long { before: Vec::new(), change };
    let mut all: Vec<Long> = [
        Step::Truncate(0, 0, 3000),
        Step::Truncate(0, 0, 0),
        Step::SetSize(A, 1500),
        Step::Unlink(0, 0),
        Step::Rename(1, 0, 0, 0, RenameKind::Replace),
        Step::Allocate(A, Change::Punch, 512, 9000),
        Step::Allocate(A, Change::Zero, 0, 10_000),
        Step::Allocate(A, Change::Preallocate, 0, 14_000),
        Step::Clone(None, 0, 0, 3),
        Step::Clone(Some(0), 0, 0, 3),
        Step::CloneDirectory(None, 1, 2),
        Step::DeleteCheckpoint(0),
        Step::Checkpoint(1, None),
        Step::Checkpoint(1, Some(1)),
        Step::Rollback(0, Back::Everything, true),
        Step::Rollback(0, Back::File(0, 0), true),
        Step::Defragment(A, true),
        copy(),
        Step::SyncAll(A),
        Step::MoveLog(true, 1),
        Step::MoveLog(false, 2),
        Step::ResizeLog(2),
    ]
    .into_iter()
    .map(alone)
    .collect();
    let held = vec![Step::Hold(0, 0, 0, IoMode::Concurrent), Step::Unlink(0, 0)];
    let retained = vec![Step::Retain(0, 0, 0), Step::Unlink(0, 0)];
    all.push(Long { before: held.clone(), change: Step::SetSize(On::Held(0), 1500) });
    all.push(Long { before: held, change: Step::Release(0) });
    all.push(Long { before: retained, change: Step::Forget(0) });
    all
}

/// What comes in the middle.
fn short() -> Vec<Step> {
    vec![
        Step::Checkpoint(1, None),
        Step::Checkpoint(1, Some(1)),
        Step::Rollback(0, Back::Everything, true),
        Step::Rollback(0, Back::File(0, 0), true),
        Step::DeleteCheckpoint(0),
        Step::Truncate(0, 0, 2000),
        Step::Truncate(0, 0, 20_000),
        Step::Unlink(0, 0),
        write(A, 4 * STRIDE, 512, 70),
        Step::Append(0, 0, IoMode::Concurrent, 512, 71, true),
        Step::Allocate(A, Change::Punch, 0, 5000),
        Step::Clone(None, 0, 0, 3),
        Step::Clone(Some(0), 0, 0, 3),
        copy(),
        write(COPY, 2 * STRIDE, 512, 72),
        write(A, 2 * STRIDE, 512, 73),
        Step::Defragment(A, true),
        Step::Rename(0, 0, 2, 0, RenameKind::Replace),
        Step::SetMode(0, 0, 0o600),
        Step::SyncAll(A),
        Step::Sync,
        Step::ResizeLog(2),
    ]
}

/// How many pairs there are.
#[must_use]
pub fn pair_count() -> usize {
    long().len() * short().len()
}

/// The steps of a pair, of which the second comes after so many pauses of the first.
#[must_use]
pub fn pair(number: usize, turns: &[u16]) -> Vec<Step> {
    let (mut all, second) = (long(), short());
    let Long { before, change } = all.swap_remove(number / second.len() % all.len());
    let second = second[number % second.len()].clone();
    let mut steps = prelude();
    steps.extend(before);
    steps.push(Step::During(Box::new(change), Box::new(second), turns.to_vec()));
    steps.extend(epilogue());
    steps
}

/// Makes the setup and steps of a seed: scattered files, long changes, and others in the middle of
/// them; on one of these backends.
#[must_use]
pub fn generate_interleaved(seed: u64, count: usize, backends: &[Backend]) -> (Setup, Vec<Step>) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x6a09_e667_f3bc_c908);
    let setup = Setup {
        per_record: pick(&mut rng, &[2, 3, 4]),
        volatile_cache: rng.random_range(0..8) != 0,
        separate_log: rng.random_range(0..3) == 0,
        backend: pick(&mut rng, backends),
        small_maps: rng.clone().random_range(0..2) == 0,
        leases: rng.clone().random_range(0..8) % 4 == 0,
        ..Setup::SMALL
    };
    let setup = Setup { leases: setup.leases && setup.backend == Backend::One, ..setup };
    // What ails members is drawn apart: a seed means the same workload as before there was that.
    let mut ills = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0xbb67_ae85_84ca_a73b);
    let mut rots = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x3c6e_f372_fe94_f82b);
    let mut steps = prelude();
    while steps.len() < count + prelude().len() {
        steps.extend(befall(setup.backend, &mut ills, &mut rots));
        match rng.random_range(0..12) {
            0 => steps.extend(scatter(
                pick(&mut rng, &[A, A, B, On::Name(0, 1)]),
                rng.random_range(1..=200),
            )),
            1..4 => {
                let first = change(&mut rng);
                let turns = (0..rng.random_range(1..4)).map(|_| rng.random_range(1..24)).collect();
                let second = std::iter::repeat_with(|| beside(&mut rng))
                    .find(|second| {
                        !is_within_clone(&first, second) && !deletes_made(&first, second)
                    })
                    .expect("there are others");
                steps.push(Step::During(Box::new(first), Box::new(second), turns));
            }
            4 if setup.backend != Backend::One && rng.random_range(0..2) == 0 => {
                let member = rng.random_range(0..3);
                steps.push(match rng.random_range(0..6) {
                    0 | 1 => Step::Return,
                    2 if !backends.contains(&Backend::One) => {
                        Step::Overwrite(member, rng.random_range(0..2) == 0)
                    }
                    _ => Step::Vanish(member),
                });
            }
            4 => steps.push(retained(&mut rng)),
            5 => steps.push(match change(&mut rng) {
                change if change.makes() || rng.random_range(0..2) == 0 => change,
                change => Step::Die(Box::new(change), rng.random_range(0..16)),
            }),
            6 if rng.random_range(0..3) == 0 => {
                steps.push(Step::Die(Box::new(Step::Sync), rng.random_range(0..8)));
            }
            _ => steps.push(step(&mut rng, u64::from(setup.block_size))),
        }
    }
    (setup, if setup.leases { lent(steps) } else { steps })
}

/// What befalls members of a group before a step, if anything does.
fn befall(
    backend: Backend,
    ills: &mut Xoshiro256PlusPlus,
    rots: &mut Xoshiro256PlusPlus,
) -> Vec<Step> {
    let mut steps = Vec::new();
    if backend == Backend::Mirror && rots.random_range(0..12) == 0 {
        steps.extend(decay(rots));
    }
    if backend != Backend::One && ills.random_range(0..6) == 0 {
        steps.extend(ail(ills));
    }
    steps
}

/// What happens to members of a group.
fn ail(rng: &mut Xoshiro256PlusPlus) -> Vec<Step> {
    let (member, number) = (rng.random_range(0..3), rng.random_range(0..1000));
    let one = |ailment| vec![Step::Ail(member, ailment)];
    match rng.random_range(0..20) {
        0..4 => one(Ailment::Dies(number % 50)),
        4..8 => one(Ailment::Unreadable(number, 1 + rng.random_range(0..8))),
        8 => one(Ailment::LabelRots(rng.random_range(0..2))),
        9 => one(Ailment::RegionLogRots(number)),
        10 | 11 => one(Ailment::Rots(number)),
        12 | 13 => one(Ailment::Exchanged(rng.random_range(0..2) == 0)),
        14 | 15 => vec![Step::Scrub],
        _ => vec![Step::Return, Step::Remount],
    }
}

/// A block of a file, or of the volume's own.
fn what_decays(number: u16) -> Ailment {
    if number.is_multiple_of(3) { Ailment::OwnDecays(number / 3) } else { Ailment::Decays(number) }
}

/// One copy of a file with checksums rots, or of metadata, and what comes upon it.
fn decay(rng: &mut Xoshiro256PlusPlus) -> Vec<Step> {
    let (member, at) = (rng.random_range(0..2), 512 * rng.random_range(0..100));
    let (mode, len) = (mode(rng), 512 * rng.random_range(1..60));
    let mut steps = vec![
        Step::SetIntegrity(Some(0), 0, true),
        Step::Write(A, mode, at, len, rng.random_range(1..=255), rng.random_range(0..2) == 0),
        Step::Ail(member, what_decays(rng.random_range(0..1000))),
    ];
    steps.extend(match rng.random_range(0..6) {
        0 => Some(Step::Kill),
        1 => Some(Step::Remount),
        2 => Some(Step::Checkpoint(0, None)),
        3 => Some(Step::Write(A, mode, at + 512, 700, 9, true)),
        4 => Some(Step::Read(A, mode, 0, 100_000)),
        _ => None,
    });
    steps
}

/// Whether a step changes names in the directory that another one makes as a clone: what numbers
/// the clone's files have is only known by looking.
fn is_within_clone(clone: &Step, step: &Step) -> bool {
    let Step::CloneDirectory(_, _, made) = clone else { return false };
    match step {
        Step::Create(_, dir)
        | Step::Symlink(_, dir, _)
        | Step::Unlink(_, dir)
        | Step::RemoveDirectory(dir) => dir == made,
        Step::Rename(_, dir, _, to, _) => dir == made || to == made,
        Step::Link(.., to) => to == made,
        Step::RenameDirectory(from, to) => from == made || to == made,
        Step::Rollback(..) => true,
        _ => false,
    }
}

/// Whether a step deletes the checkpoint that another one makes and then looks at.
fn deletes_made(one: &Step, other: &Step) -> bool {
    match (one, other) {
        (Step::Checkpoint(made, _), Step::DeleteCheckpoint(deleted))
        | (Step::DeleteCheckpoint(deleted), Step::Checkpoint(made, _)) => made == deleted,
        _ => false,
    }
}

fn change(rng: &mut Xoshiro256PlusPlus) -> Step {
    let mut all = long();
    all.swap_remove(rng.random_range(0..all.len())).change
}

/// A step that neither mounts nor moves bytes, of those that come in the middle or of any.
fn beside(rng: &mut Xoshiro256PlusPlus) -> Step {
    if rng.random_range(0..2) == 0 {
        let mut all = short();
        return all.swap_remove(rng.random_range(0..all.len()));
    }
    loop {
        let step = step(rng, 512);
        let moves = matches!(step, Step::Allocate(_, Change::Collapse | Change::Insert, ..));
        if !moves && !step.is_recorders() && !matches!(step, Step::Automatic(..) | Step::Policy(_))
        {
            return step;
        }
    }
}

fn retained(rng: &mut Xoshiro256PlusPlus) -> Step {
    let slot = rng.random_range(0..2);
    match rng.random_range(0..4) {
        0 | 1 => Step::Retain(slot, rng.random_range(0..2), 0),
        2 => Step::Forget(slot),
        _ => Step::Hold(slot, 0, 0, mode(rng)),
    }
}
