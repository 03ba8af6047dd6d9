//! Workloads: what a seed makes the file system do.

use fs::{AllocateMode, IoMode, RenameMode};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

/// The volume a workload runs on.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Setup {
    /// Sector of the simulated device in bytes.
    pub sector: u32,
    /// Block size of the file system in bytes.
    pub block_size: u32,
    /// Whether the device has a volatile cache.
    pub volatile_cache: bool,
    /// Whether the library itself keeps a flush from the device: a planted bug, to see that the judge sees it.
    pub lose_flushes: bool,
}

/// One step. Files and directories are numbered slots, so that any subset of steps can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Makes file slot, in directory slot.
    Create(u8, u8),
    /// Makes a directory.
    MakeDirectory(u8),
    /// Removes a file's name.
    Unlink(u8, u8),
    /// Removes a directory.
    RemoveDirectory(u8),
    /// Renames file slot in directory to another file slot in another directory.
    Rename(u8, u8, u8, u8, RenameKind),
    /// Gives a file another name.
    Link(u8, u8, u8, u8),
    /// Sets permission bits.
    SetMode(u8, u8, u32),
    /// Sets an attribute of this many bytes.
    SetAttribute(u8, u8, u16),
    /// Writes in a mode: offset, length, fill; `O_DSYNC` when the last is set.
    Write(u8, u8, IoMode, u64, u32, u8, bool),
    /// Sets the size.
    SetSize(u8, u8, u64),
    /// `fallocate`.
    Allocate(u8, u8, Change, u64, u64),
    /// `sync_data`.
    SyncData(u8, u8),
    /// `sync_all`.
    SyncAll(u8, u8),
    /// Syncs a directory.
    SyncDirectory(u8),
    /// Makes checkpoint slot: of everything, or of a directory slot.
    Checkpoint(u8, Option<u8>),
    /// Deletes a checkpoint.
    DeleteCheckpoint(u8),
    /// Syncs everything.
    Sync,
    /// Unmounts and mounts.
    Remount,
}

/// What a rename does with its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameKind {
    /// Replaces it.
    Replace,
    /// Swaps with it.
    Exchange,
}

impl From<RenameKind> for RenameMode {
    fn from(kind: RenameKind) -> Self {
        match kind {
            RenameKind::Replace => Self::Replace,
            RenameKind::Exchange => Self::Exchange,
        }
    }
}

/// A change of allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Preallocates and extends.
    Preallocate,
    /// Preallocates behind the end.
    PreallocateKeep,
    /// Punches a hole.
    Punch,
    /// Zeroes.
    Zero,
    /// Removes a range.
    Collapse,
    /// Inserts a hole.
    Insert,
}

impl From<Change> for AllocateMode {
    fn from(change: Change) -> Self {
        match change {
            Change::Preallocate => Self::Preallocate { keep_size: false },
            Change::PreallocateKeep => Self::Preallocate { keep_size: true },
            Change::Punch => Self::PunchHole,
            Change::Zero => Self::ZeroRange { keep_size: false },
            Change::Collapse => Self::CollapseRange,
            Change::Insert => Self::InsertRange,
        }
    }
}

const FILES: u8 = 5;
const DIRECTORIES: u8 = 3;
const CHECKPOINTS: u8 = 3;
const OFFSET_MAX: u64 = 160 << 10;

/// Makes the setup and steps of a seed.
#[must_use]
pub fn generate(seed: u64, count: usize) -> (Setup, Vec<Step>) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let sector = pick(&mut rng, &[512, 512, 4096]);
    let block_size = pick(&mut rng, &[512, 1024, 4096, 4096, 4096, 16384]).max(sector);
    let setup = Setup { sector, block_size, volatile_cache: rng.random_range(0..8) != 0, lose_flushes: false };
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0)];
    while steps.len() < count {
        let step = step(&mut rng, u64::from(block_size));
        steps.push(step);
    }
    (setup, steps)
}

fn pick<T: Copy>(rng: &mut Xoshiro256PlusPlus, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

fn step(rng: &mut Xoshiro256PlusPlus, block: u64) -> Step {
    let file = if rng.random_range(0..3) == 0 { rng.random_range(0..FILES) } else { 0 };
    let other = rng.random_range(0..FILES);
    let dir = if rng.random_range(0..3) == 0 { rng.random_range(0..DIRECTORIES) } else { 0 };
    let to = rng.random_range(0..DIRECTORIES);
    match rng.random_range(0..100) {
        0..7 => Step::Create(other, dir),
        7..10 => Step::MakeDirectory(to),
        10..13 => Step::Unlink(other, dir),
        13..15 => Step::RemoveDirectory(to),
        15..22 => Step::Rename(file, dir, other, to, pick(rng, &[RenameKind::Replace, RenameKind::Replace, RenameKind::Exchange])),
        22..24 => Step::Link(file, dir, other, to),
        24..26 => Step::SetMode(file, dir, rng.random_range(0..0o1000)),
        26..29 => Step::SetAttribute(file, dir, pick(rng, &[3, 300, 60_000])),
        29..59 => write(rng, file, dir, block),
        59..62 => Step::Checkpoint(rng.random_range(0..CHECKPOINTS), (rng.random_range(0..3) == 0).then_some(to)),
        62..64 => Step::DeleteCheckpoint(rng.random_range(0..CHECKPOINTS)),
        64..69 => Step::SetSize(file, dir, offset(rng, block)),
        69..77 => allocate(rng, file, dir, block),
        77..86 => Step::SyncData(file, dir),
        86..90 => Step::SyncAll(file, dir),
        90..94 => Step::SyncDirectory(dir),
        94..98 => Step::Sync,
        _ => Step::Remount,
    }
}

/// An offset: mostly at the border of a block, of a sector, or anywhere.
fn offset(rng: &mut Xoshiro256PlusPlus, block: u64) -> u64 {
    let anywhere = rng.random_range(0..OFFSET_MAX);
    match rng.random_range(0..4) {
        0 => anywhere,
        1 => anywhere / 512 * 512,
        _ => anywhere / block * block,
    }
}

fn write(rng: &mut Xoshiro256PlusPlus, file: u8, dir: u8, block: u64) -> Step {
    let mode = pick(rng, &[IoMode::Concurrent, IoMode::Concurrent, IoMode::Direct, IoMode::Cached, IoMode::ConcurrentCache]);
    let at = offset(rng, block);
    let len = match rng.random_range(0..4) {
        0 => rng.random_range(1..3 * block),
        1 => 512,
        _ => block * rng.random_range(1..5),
    };
    Step::Write(file, dir, mode, at, u32::try_from(len).expect("a few blocks"), rng.random_range(1..=255), rng.random_range(0..5) == 0)
}

fn allocate(rng: &mut Xoshiro256PlusPlus, file: u8, dir: u8, block: u64) -> Step {
    let change = pick(rng, &[Change::Preallocate, Change::PreallocateKeep, Change::Punch, Change::Zero, Change::Collapse, Change::Insert]);
    let (mut at, mut len) = (offset(rng, block), offset(rng, block) / 3 + 1);
    if matches!(change, Change::Collapse | Change::Insert) {
        at = at / block * block;
        len = len.next_multiple_of(block);
    }
    Step::Allocate(file, dir, change, at, len)
}
