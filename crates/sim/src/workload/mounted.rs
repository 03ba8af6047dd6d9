//! What a program does on a mount.

use bedplate_fs::IoMode;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::generate::{mode, offset, pick};
use super::{Back, Change, On, RenameKind, Setup, Step};

const FILES: u8 = 3;
const HELD: u8 = 2;
/// How often programs make one file together in a workload about that.
const CROWDS: usize = 40;

/// Makes the setup and steps of a seed for a program on a mount: few files, opens that last,
/// rollbacks under them.
#[must_use]
pub fn generate_mounted(seed: u64, count: usize) -> (Setup, Vec<Step>) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0xbb67_ae85_84ca_a73b);
    let setup = Setup { separate_log: rng.random_range(0..3) == 0, ..Setup::DISK };
    let mut steps = vec![
        Step::Create(0, 0),
        Step::Hold(0, 0, 0, mode(&mut rng)),
        Step::AppendHeld(0, 10_000, 1),
        Step::Checkpoint(0, None),
    ];
    if rng.random_range(0..4) == 0 {
        // The kernel's look-up of one program passes the close of another in some of them.
        (0..CROWDS).for_each(|_| steps.extend([crowd(1, &mut rng), Step::Unlink(1, 0)]));
    }
    let end = steps.len() + count;
    while steps.len() < end {
        steps.push(step(&mut rng));
    }
    (setup, steps)
}

/// Makes a file by programs that append to it at once.
fn crowd(file: u8, rng: &mut Xoshiro256PlusPlus) -> Step {
    Step::CreateTogether(file, 0, 16, pick(rng, &[100, 700]), rng.random_range(1..=255))
}

fn step(rng: &mut Xoshiro256PlusPlus) -> Step {
    let (file, slot, fill) =
        (rng.random_range(0..FILES), rng.random_range(0..HELD), rng.random_range(1..=255));
    let on = if rng.random_range(0..2) == 0 { On::Held(slot) } else { On::Name(file, 0) };
    let (at, len) = (offset(rng, 4096) / 4, pick(rng, &[512, 4096, 5000, 12_288]));
    let back = pick(rng, &[Back::Everything, Back::File(file, 0)]);
    match rng.random_range(0..34) {
        0 | 1 => Step::Create(file, 0),
        32 | 33 => crowd(file, rng),
        2 => Step::Unlink(file, 0),
        3 => Step::Rename(
            file,
            0,
            rng.random_range(0..FILES),
            0,
            pick(rng, &[RenameKind::Replace, RenameKind::Exchange]),
        ),
        4 => Step::SetAttribute(file, 0, slot, pick(rng, &[3, 300])),
        5 | 6 => Step::Hold(slot, file, 0, mode(rng)),
        7 => Step::Release(slot),
        8..14 => Step::Write(on, mode(rng), at, len, fill, rng.random_range(0..3) == 0),
        14 | 15 => Step::Append(file, 0, mode(rng), len, fill, rng.random_range(0..3) == 0),
        16..19 => Step::AppendHeld(slot, len, fill),
        19 => Step::Read(on, IoMode::Cached, at, 20_000),
        20 => Step::SetSize(on, at),
        21 => Step::Truncate(file, 0, at),
        22 => Step::Allocate(
            on,
            pick(rng, &[Change::Preallocate, Change::PreallocateKeep, Change::Punch, Change::Zero]),
            at,
            at / 2 + 1,
        ),
        23..25 => Step::SyncData(on),
        25 => Step::SyncAll(on),
        26 => Step::SyncDirectory(0),
        27 => Step::Checkpoint(slot, None),
        28 => Step::DeleteCheckpoint(slot),
        _ => Step::Rollback(slot, back, rng.random_range(0..4) > 0),
    }
}
