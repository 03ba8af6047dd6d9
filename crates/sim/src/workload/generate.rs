//! Random workloads: what a seed makes the file system do.

use bedplate_fs::IoMode;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Back, Backend, Change, On, RenameKind, Setup, Step, fill};

const FILES: u8 = 5;
/// What fills a volume; no step touches it.
const FILLER: On = On::Name(FILES, 0);
const AUTOMATIC: u8 = 12;
const DIRECTORIES: u8 = 3;
const HELD: u8 = 2;
const CHECKPOINTS: u8 = 3;
const OFFSET_MAX: u64 = 160 << 10;

/// Makes the setup and steps of a seed.
#[must_use]
pub fn generate(seed: u64, count: usize) -> (Setup, Vec<Step>) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let setup = setup(&mut rng);
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0)];
    if rng.random_range(0..4) == 0 {
        // All that is made gets checksums.
        steps.insert(0, Step::SetIntegrity(None, 0, true));
    }
    let full = rng.random_range(0..6) == 0;
    let count = if full {
        steps.extend(fill(FILLER));
        steps.push(Step::Policy(true));
        count + steps.len()
    } else {
        count
    };
    while steps.len() < count {
        let step = if full && rng.random_range(0..8) == 0 {
            space(&mut rng)
        } else {
            // Drawn apart: the other steps of a seed stay what they were.
            let copied = copied(&mut rng.clone(), u64::from(setup.block_size));
            let step = step(&mut rng, u64::from(setup.block_size));
            copied.unwrap_or(step)
        };
        steps.push(step);
    }
    (setup, if setup.leases { lent(steps) } else { steps })
}

/// The same steps so that leases are of use to them: in the mode in which files are leased, and with
/// the first file open all the time.
pub(super) fn lent(steps: Vec<Step>) -> Vec<Step> {
    let hold = || Step::Hold(0, 0, 0, IoMode::Concurrent);
    let mut all = Vec::with_capacity(steps.len() + 4);
    // What has checksums is not leased.
    for step in steps.into_iter().filter(|step| *step != Step::SetIntegrity(None, 0, true)) {
        let opens = matches!(
            step,
            Step::Create(0, 0) | Step::Kill | Step::Remount | Step::Die(..) | Step::Release(0)
        );
        all.push(in_leased_mode(step));
        if opens {
            all.push(hold());
        }
    }
    all
}

fn in_leased_mode(step: Step) -> Step {
    let mode = IoMode::Concurrent;
    match step {
        Step::Write(on, _, offset, len, fill, durable) => {
            Step::Write(on, mode, offset, len, fill, durable)
        }
        Step::Append(file, dir, _, len, fill, durable) => {
            Step::Append(file, dir, mode, len, fill, durable)
        }
        Step::Read(on, _, offset, len) => Step::Read(on, mode, offset, len),
        Step::CopyRange(from, to, _, at, into, len) => {
            Step::CopyRange(from, to, mode, at, into, len)
        }
        Step::Hold(slot, file, dir, _) => Step::Hold(slot, file, dir, mode),
        Step::SetIoMode(file, dir, _) => Step::SetIoMode(file, dir, Some(mode)),
        Step::During(first, second, turns) => {
            Step::During(Box::new(in_leased_mode(*first)), Box::new(in_leased_mode(*second)), turns)
        }
        Step::Die(step, calls) => Step::Die(Box::new(in_leased_mode(*step)), calls),
        other => other,
    }
}

/// The setup of a seed alone.
pub(crate) fn generate_setup(seed: u64) -> Setup {
    setup(&mut Xoshiro256PlusPlus::seed_from_u64(seed))
}

fn setup(rng: &mut Xoshiro256PlusPlus) -> Setup {
    let sector = pick(rng, &[512, 512, 4096]);
    let block_size = pick(rng, &[512, 1024, 4096, 4096, 4096, 16384]).max(sector);
    let untorn_unit = pick(rng, &[sector, sector, 16384]);
    let (volatile_cache, separate_log) = (rng.random_range(0..8) != 0, rng.random_range(0..3) == 0);
    Setup {
        sector,
        block_size,
        untorn_unit,
        volatile_cache,
        separate_log,
        per_record: 0,
        // Drawn apart: a seed means the same workload as before there was that.
        small_maps: rng.clone().random_range(0..2) == 0,
        leases: rng.clone().random_range(0..8) % 4 == 0,
        backend: Backend::One,
    }
}

pub(super) fn pick<T: Copy>(rng: &mut Xoshiro256PlusPlus, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

pub(super) fn step(rng: &mut Xoshiro256PlusPlus, block: u64) -> Step {
    let file = if rng.random_range(0..3) == 0 { rng.random_range(0..FILES) } else { 0 };
    let dir = if rng.random_range(0..3) == 0 { rng.random_range(0..DIRECTORIES) } else { 0 };
    let on = if rng.random_range(0..5) == 0 {
        On::Held(rng.random_range(0..HELD))
    } else {
        On::Name(file, dir)
    };
    match rng.random_range(0..100) {
        0..26 => name_step(rng, file, dir),
        26..52 => write(rng, on, block),
        52 if rng.random_range(0..2) == 0 => clone(rng, file, dir),
        52 => Step::Diff(rng.random_range(0..CHECKPOINTS)),
        53 if rng.random_range(0..4) == 0 => space(rng),
        53 => Step::Checkpoint(rng.random_range(0..CHECKPOINTS), Some(dir).filter(|_| file > 0)),
        54 if rng.random_range(0..2) == 0 => {
            Step::DeleteCheckpoint(rng.random_range(0..CHECKPOINTS))
        }
        54 => rollback(rng, file, dir),
        55 => mark(rng, Some(file).filter(|file| *file < 3), dir, block),
        56..59 => append(rng, file, dir, block),
        59..62 => Step::Read(on, mode(rng), offset(rng, block), 20_000),
        62..66 => Step::SetSize(on, offset(rng, block)),
        66 => match rng.random_range(0..2) == 0 {
            false if file == 2 => move_log(rng),
            false if file > 2 => Step::Trim,
            unshare => Step::Defragment(on, unshare),
        },
        67..75 => allocate(rng, on, block),
        75..84 => Step::SyncData(on),
        84..88 => Step::SyncAll(on),
        88..92 => Step::SyncDirectory(dir),
        92..95 => Step::Sync,
        95 => match rng.random_range(1..6) {
            mib @ 1..4 => Step::Grow(mib),
            mib => Step::Shrink(mib),
        },
        96..98 => Step::Remount,
        _ => Step::Kill,
    }
}

/// Where the log goes, or how large it becomes.
fn move_log(rng: &mut Xoshiro256PlusPlus) -> Step {
    match rng.random_range(0..4) {
        0 => Step::MoveLog(false, rng.random_range(1..4)),
        1 => Step::MoveLog(true, rng.random_range(1..3)),
        _ => Step::ResizeLog(rng.random_range(1..4)),
    }
}

/// What makes and takes room.
fn space(rng: &mut Xoshiro256PlusPlus) -> Step {
    match rng.random_range(0..12) {
        0 => Step::Policy(rng.random_range(0..3) > 0),
        _ => Step::Automatic(rng.random_range(0..AUTOMATIC), rng.random_range(0..8) == 0),
    }
}

fn name_step(rng: &mut Xoshiro256PlusPlus, file: u8, dir: u8) -> Step {
    let other = rng.random_range(0..FILES);
    let to = rng.random_range(0..DIRECTORIES);
    match rng.random_range(0..30) {
        0..7 => Step::Create(other, dir),
        7 => Step::Symlink(other, dir, rng.random_range(1..600)),
        8..11 => Step::MakeDirectory(to),
        11..14 => Step::Unlink(other, dir),
        14 => Step::RemoveDirectory(to),
        15..20 => Step::Rename(
            file,
            dir,
            other,
            to,
            pick(rng, &[RenameKind::Replace, RenameKind::Replace, RenameKind::Exchange]),
        ),
        20 => Step::RenameDirectory(to, rng.random_range(1..DIRECTORIES)),
        21..23 => Step::Link(file, dir, other, to),
        23 => Step::SetMode(file, dir, rng.random_range(0..0o1000)),
        24 => Step::SetIoMode(file, dir, Some(mode(rng)).filter(|_| other > 0)),
        25 => Step::SetAttribute(file, dir, to, pick(rng, &[3, 300, 60_000])),
        26 => Step::RemoveAttribute(file, dir, to),
        27..29 => Step::Hold(rng.random_range(0..HELD), file, dir, mode(rng)),
        _ => Step::Release(rng.random_range(0..HELD)),
    }
}

/// Now and then a copy of a range, mostly from and to the same place in a block.
fn copied(rng: &mut Xoshiro256PlusPlus, block: u64) -> Option<Step> {
    let _ = rng.random_range(0..u64::MAX);
    if rng.random_range(0..30) > 0 {
        return None;
    }
    let mut file = || match rng.random_range(0..6) {
        0 => On::Held(rng.random_range(0..HELD)),
        1 => On::Name(rng.random_range(0..FILES), rng.random_range(0..DIRECTORIES)),
        slot => On::Name(slot % 3, 0),
    };
    let (from, to) = (file(), file());
    let at = offset(rng, block);
    let into = match rng.random_range(0..4) {
        0 => offset(rng, block),
        1 => offset(rng, block) / block * block + at % block,
        _ => at,
    };
    let len = match rng.random_range(0..3) {
        0 => u32::try_from(OFFSET_MAX).expect("small files"),
        _ => len(rng, block),
    };
    Some(Step::CopyRange(from, to, mode(rng), at, into, len))
}

fn rollback(rng: &mut Xoshiro256PlusPlus, file: u8, dir: u8) -> Step {
    let back = pick(
        rng,
        &[Back::Everything, Back::File(file, dir), Back::File(file, dir), Back::Directory(dir)],
    );
    Step::Rollback(rng.random_range(0..CHECKPOINTS), back, rng.random_range(0..3) == 0)
}

/// What is set on a file or directory, and inherited.
fn mark(rng: &mut Xoshiro256PlusPlus, file: Option<u8>, dir: u8, block: u64) -> Step {
    if rng.random_range(0..2) == 0 {
        return Step::SetIntegrity(file, dir, rng.random_range(0..5) != 0);
    }
    let unit =
        pick(rng, &[4096, 8192, 8192, 16384]).max(u32::try_from(block).expect("64 KiB at most"));
    Step::SetUntorn(file, dir, Some(unit).filter(|_| rng.random_range(0..5) != 0))
}

fn clone(rng: &mut Xoshiro256PlusPlus, file: u8, dir: u8) -> Step {
    let of = Some(rng.random_range(0..CHECKPOINTS)).filter(|slot| *slot > 0);
    if dir == 0 {
        Step::Clone(of, file, dir, rng.random_range(0..FILES))
    } else {
        Step::CloneDirectory(of, dir, rng.random_range(1..DIRECTORIES))
    }
}

pub(super) fn mode(rng: &mut Xoshiro256PlusPlus) -> IoMode {
    pick(
        rng,
        &[
            IoMode::Concurrent,
            IoMode::Concurrent,
            IoMode::Direct,
            IoMode::Cached,
            IoMode::ConcurrentCache,
        ],
    )
}

/// An offset: mostly at the border of a block, of a sector, or anywhere.
pub(super) fn offset(rng: &mut Xoshiro256PlusPlus, block: u64) -> u64 {
    let anywhere = rng.random_range(0..OFFSET_MAX);
    match rng.random_range(0..4) {
        0 => anywhere,
        1 => anywhere / 512 * 512,
        _ => anywhere / block * block,
    }
}

/// A length of some sectors or blocks, or any; now and then more than a record vouches for with a
/// checksum.
fn len(rng: &mut Xoshiro256PlusPlus, block: u64) -> u32 {
    let len = match rng.random_range(0..40) {
        0..10 => rng.random_range(1..3 * block),
        10..20 => 512,
        20 => 1_300_000,
        _ => block * rng.random_range(1..5),
    };
    u32::try_from(len).expect("a megabyte")
}

fn write(rng: &mut Xoshiro256PlusPlus, on: On, block: u64) -> Step {
    let (mode, at, len) = (mode(rng), offset(rng, block), len(rng, block));
    Step::Write(on, mode, at, len, rng.random_range(1..=255), rng.random_range(0..5) == 0)
}

fn append(rng: &mut Xoshiro256PlusPlus, file: u8, dir: u8, block: u64) -> Step {
    let (mode, len) = (mode(rng), len(rng, block).min(100_000));
    Step::Append(file, dir, mode, len, rng.random_range(1..=255), rng.random_range(0..3) == 0)
}

fn allocate(rng: &mut Xoshiro256PlusPlus, on: On, block: u64) -> Step {
    let change = pick(
        rng,
        &[
            Change::Preallocate,
            Change::PreallocateKeep,
            Change::Punch,
            Change::Zero,
            Change::Collapse,
            Change::Insert,
        ],
    );
    let (mut at, mut len) = (offset(rng, block), offset(rng, block) / 3 + 1);
    if matches!(change, Change::Collapse | Change::Insert) {
        at = at / block * block;
        len = len.next_multiple_of(block);
    }
    Step::Allocate(on, change, at, len)
}
