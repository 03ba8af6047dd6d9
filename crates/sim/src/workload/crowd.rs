//! What one of many threads does: in a directory of its own, and on its own pages of a file that
//! all of them write.

use bedplate_fs::IoMode;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::generate::{mode, offset, pick};
use super::{Change, On, RenameKind, Step};

/// A page of the shared file, in bytes; smaller than some blocks.
pub(crate) const SHARED_PAGE_BYTES: u64 = 4096;
/// Pages of the shared file.
pub(crate) const SHARED_PAGES: u64 = 48;

const SHARED: On = On::Name(0, 0);
const FILES: u8 = 3;

/// Makes the steps of thread `own` (from 1) of so many.
pub(crate) fn generate_for_thread(seed: u64, own: u8, threads: u8, count: usize) -> Vec<Step> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(own),
    );
    // All open it in the same mode, or it would be served as `cached`.
    let shared_mode = IoMode::ALL[usize::try_from(seed % 4).expect("below 4")];
    let mut steps = vec![Step::Create(0, own)];
    while steps.len() < count {
        let step = if rng.random_range(0..3) == 0 {
            shared(&mut rng, shared_mode, own, threads)
        } else {
            alone(&mut rng, own)
        };
        steps.push(step);
    }
    steps
}

fn shared(rng: &mut Xoshiro256PlusPlus, mode: IoMode, own: u8, threads: u8) -> Step {
    let page = rng.random_range(0..SHARED_PAGES / u64::from(threads)) * u64::from(threads)
        + u64::from(own - 1);
    let at = page * SHARED_PAGE_BYTES;
    match rng.random_range(0..12) {
        0..3 => Step::SyncData(SHARED),
        // While others write.
        3 => Step::Defragment(SHARED, rng.random_range(0..2) == 0),
        4 => Step::Read(SHARED, mode, at, 4096),
        5 => Step::Write(SHARED, mode, at + 700, 1000, rng.random_range(1..=255), false),
        // The first and last sectors of pages lie beside those of other threads: they wait for the
        // file together, and are written so.
        6 => {
            let (skip, len) = pick(rng, &[(0, 512), (512, 1024), (3072, 1024), (3584, 512)]);
            Step::Write(SHARED, mode, at + skip, len, rng.random_range(1..=255), false)
        }
        _ => Step::Write(
            SHARED,
            mode,
            at,
            4096,
            rng.random_range(1..=255),
            rng.random_range(0..4) == 0,
        ),
    }
}

fn alone(rng: &mut Xoshiro256PlusPlus, own: u8) -> Step {
    let (file, other, fill) =
        (rng.random_range(0..FILES), rng.random_range(0..FILES), rng.random_range(1..=255));
    let on = On::Name(file, own);
    match rng.random_range(0..44) {
        0..4 => Step::Create(file, own),
        4 => Step::Unlink(file, own),
        5..8 => Step::Rename(
            file,
            own,
            other,
            own,
            pick(rng, &[RenameKind::Replace, RenameKind::Exchange]),
        ),
        8 => Step::Link(file, own, other, own),
        9 => Step::SetMode(file, own, rng.random_range(0..0o1000)),
        10 => Step::SetAttribute(file, own, other, pick(rng, &[3, 300, 60_000])),
        11..21 => Step::Write(
            on,
            mode(rng),
            offset(rng, 4096),
            pick(rng, &[512, 4096, 8192, 5000, 60_000]),
            fill,
            rng.random_range(0..5) == 0,
        ),
        21..25 => Step::Append(
            file,
            own,
            mode(rng),
            pick(rng, &[600, 4096, 10_000]),
            fill,
            rng.random_range(0..3) == 0,
        ),
        25 => Step::SetSize(on, offset(rng, 4096)),
        26 | 27 => {
            let change = pick(
                rng,
                &[Change::Preallocate, Change::PreallocateKeep, Change::Punch, Change::Zero],
            );
            Step::Allocate(on, change, offset(rng, 4096), offset(rng, 4096) / 3 + 1)
        }
        28..33 => Step::SyncData(on),
        33 | 34 => Step::SyncAll(on),
        35 | 36 => Step::SyncDirectory(own),
        37 => Step::Sync,
        38 => Step::Checkpoint(own, Some(own)),
        39 => Step::Checkpoint(own, None),
        40 => Step::Defragment(on, rng.random_range(0..2) == 0),
        41 | 42 => Step::SetAttribute(file, own, other, pick(rng, &[3, 300])),
        _ => Step::DeleteCheckpoint(own),
    }
}
