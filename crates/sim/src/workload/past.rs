//! Directed workloads about what comes back, and about pages that do not tear.

use bedplate_fs::IoMode;

use super::directed::{A, B, write};
use super::{Back, Change, On, RenameKind, Step, fill};

/// S-53, S-54: checkpoints of one directory and of everything beside each other, written after,
/// deleted in both orders.
pub(super) fn named_files() -> Vec<Step> {
    let inside = On::Name(0, 1);
    let mut steps = vec![
        Step::Create(0, 0),
        write(A, 0, 9000, 1),
        Step::MakeDirectory(1),
        Step::Create(0, 1),
        write(inside, 0, 20_000, 2),
        Step::Sync,
    ];
    for round in 0..3u8 {
        let (first, second) = if round % 2 == 0 { (Some(1), None) } else { (None, Some(1)) };
        steps.extend([
            Step::Checkpoint(0, first),
            write(inside, 4096, 8192, 10 + round),
            write(A, 0, 4096, 20 + round),
            Step::Checkpoint(1, second),
            Step::Create(1, 1),
            write(On::Name(1, 1), 0, 5000, 30 + round),
            write(inside, 8192, 4096, 40 + round),
            Step::SyncData(inside),
            Step::Rename(1, 1, 2, 0, RenameKind::Replace),
            Step::DeleteCheckpoint(round % 2),
            Step::SetSize(inside, 15_000),
            write(inside, 16_384, 4096, 50 + round),
            if round == 1 { Step::Kill } else { Step::SyncDirectory(1) },
            Step::DeleteCheckpoint(1 - round % 2),
        ]);
    }
    // S-121
    steps.extend([
        Step::Checkpoint(2, Some(1)),
        write(inside, 0, 4096, 60),
        Step::Diff(2),
        Step::Unlink(0, 1),
        Step::Diff(2),
    ]);
    steps
}

/// S-54, I-CKP-1: what a deleted checkpoint kept goes to the next older one, and to no other.
pub(super) fn heirs() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 9000, 1), Step::Sync];
    for (round, order) in [[2, 1, 0], [1, 2, 0], [2, 0, 1]].into_iter().enumerate() {
        let fill = 40 * u8::try_from(round + 1).expect("three rounds");
        for slot in 0..3 {
            steps.extend([
                Step::Checkpoint(slot, None),
                write(A, u64::from(slot % 2) * 4096, 8192, fill + slot),
                Step::SetMode(0, 0, 0o600 + u32::from(slot)),
            ]);
        }
        steps.extend(
            order.into_iter().flat_map(|slot| [Step::DeleteCheckpoint(slot), Step::SyncAll(A)]),
        );
    }
    steps
}

/// S-484, S-485: the process dies early and late in the deletion of a checkpoint. What the next mounts do
/// comes between its steps, also a clone, a checkpoint of its name, and the end of an older one.
pub(super) fn cut_deletions() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0)];
    for (round, calls) in [3, 4, 6].into_iter().enumerate() {
        let fill = 60 * u8::try_from(round).expect("three rounds");
        let scattered = |fill: u8| {
            (0..12).map(move |page: u8| write(A, u64::from(page) * 8192, 4096, fill + page))
        };
        steps.extend(scattered(fill + 1));
        steps.extend([Step::Checkpoint(0, None), write(A, 8192, 20_000, fill + 20)]);
        steps.extend([Step::Checkpoint(1, None), Step::SetMode(0, 0, 0o600)]);
        steps.extend(scattered(fill + 30));
        steps.extend([
            Step::Sync,
            Step::Die(Box::new(Step::DeleteCheckpoint(1)), calls),
            write(A, 0, 9000, fill + 50),
            Step::Clone(None, 0, 0, 1),
            Step::Checkpoint(1, None),
            write(A, 4096, 20_000, fill + 51),
            Step::SyncData(A),
            if round == 1 { Step::Kill } else { Step::Remount },
            write(B, 0, 30_000, fill + 52),
            Step::DeleteCheckpoint(0),
            Step::SyncAll(B),
            Step::DeleteCheckpoint(1),
            Step::Unlink(1, 0),
        ]);
    }
    steps
}

/// S-56, S-57: one file, then one directory, go back while the rest stays; also under open files,
/// and back again after what was written since.
pub(super) fn rollbacks() -> Vec<Step> {
    let inside = On::Name(0, 1);
    let mut steps = vec![
        Step::Create(0, 0),
        write(A, 0, 30_000, 1),
        Step::Create(1, 0),
        write(B, 0, 9000, 2),
        Step::MakeDirectory(1),
        Step::Create(0, 1),
        write(inside, 0, 20_000, 3),
        Step::SetAttribute(0, 1, 0, 300),
        Step::Checkpoint(0, None),
        Step::Checkpoint(1, Some(1)),
    ];
    let file = |force| Step::Rollback(0, Back::File(0, 0), force);
    let directory = |slot, force| Step::Rollback(slot, Back::Directory(1), force);
    for round in 0..3u8 {
        steps.extend([
            write(A, 4096, 12_288, 10 + round),
            Step::SetSize(A, 20_000),
            write(B, 0, 4096, 20 + round),
            file(false),
            write(A, 8192, 4096, 30 + round),
            Step::SyncData(A),
            // The directory has something new, something else under an old name, and something
            // less.
            Step::Create(2, 1),
            write(On::Name(2, 1), 0, 8192, 40 + round),
            Step::Rename(2, 1, 0, 1, RenameKind::Replace),
            Step::Create(3, 1),
            Step::SetMode(0, 1, 0o600),
            directory(round % 2, false),
            write(inside, 0, 4096, 50 + round),
            Step::SyncAll(inside),
        ]);
        steps.extend(rollbacks_below_open_files(round));
    }
    steps.extend([
        Step::Rollback(0, Back::Everything, false),
        Step::DeleteCheckpoint(0),
        write(A, 0, 9000, 9),
        Step::DeleteCheckpoint(1),
        Step::Sync,
    ]);
    steps
}

fn rollbacks_below_open_files(round: u8) -> Vec<Step> {
    vec![
        // Open files stand in the way, unless forced; one that the checkpoint does not have
        // lives on without a name.
        Step::Hold(0, 0, 0, IoMode::ALL[usize::from(round)]),
        Step::Create(4, 1),
        Step::Hold(1, 4, 1, IoMode::Concurrent),
        write(On::Held(1), 0, 6000, 60 + round),
        write(On::Held(0), 0, 5000, 70 + round),
        Step::Rollback(0, Back::File(0, 0), false),
        Step::Rollback(0, Back::File(0, 0), true),
        write(On::Held(0), 4096, 4096, 80 + round),
        Step::Rollback(0, Back::Directory(1), true),
        write(On::Held(1), 4096, 4096, 90 + round),
        Step::SyncAll(On::Held(1)),
        if round == 1 { Step::Kill } else { Step::Release(0) },
        Step::Release(1),
        // Gone, and back.
        Step::Unlink(0, 0),
        Step::Rollback(0, Back::File(0, 0), false),
    ]
}

/// S-72, S-73: files whose blocks lie in the order in which they were written, moved together with
/// and without what checkpoints need, written over before and after, in every mode, with blocks
/// that become free used again at once.
pub(super) fn defragmentation() -> Vec<Step> {
    let scatter = |on, fill: u8| {
        (0..12u64).rev().map(move |at| {
            Step::Write(on, IoMode::Concurrent, at * 4096, 4096, fill + at as u8, false)
        })
    };
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0)];
    for (round, mode) in IoMode::ALL.into_iter().enumerate() {
        let (fill, unshare) = (60 * round as u8, round % 2 == 1);
        steps.extend(scatter(A, fill));
        steps.extend([
            Step::SyncData(A),
            Step::Defragment(A, false),
            Step::Write(A, mode, 8192, 9000, fill + 20, false),
            Step::Defragment(A, false),
            Step::SyncAll(A),
            Step::Checkpoint(0, None),
        ]);
        steps.extend(scatter(A, fill + 25));
        steps.extend([
            Step::Defragment(A, unshare),
            write(B, 0, 40_000, fill + 40),
            if round == 2 { Step::Kill } else { Step::SyncData(A) },
            Step::Write(A, mode, 0, 30_000, fill + 42, false),
            Step::Hold(0, 0, 0, mode),
            Step::Defragment(On::Held(0), true),
            Step::Rollback(0, Back::File(0, 0), true),
            Step::Defragment(A, true),
            Step::Release(0),
            Step::DeleteCheckpoint(0),
            Step::SetSize(B, 0),
            write(B, 0, 60_000, fill + 44),
            Step::SyncData(B),
        ]);
    }
    steps.push(Step::Sync);
    steps
}

/// S-617, S-619, S-623: files go from member to member with and without what checkpoints and clones
/// need, written over before and after, in every mode, with what they left used again at once.
pub(super) fn placement() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0)];
    for (round, mode) in IoMode::ALL.into_iter().enumerate() {
        let (fill, unshare) = (60 * round as u8, round % 2 == 1);
        steps.extend([
            Step::Write(A, mode, 0, 70_000, fill, false),
            Step::Allocate(A, Change::Preallocate, 80_000, 60_000),
            Step::SyncData(A),
            Step::Place(A, 1, false),
            Step::Write(A, mode, 8192, 9000, fill + 20, false),
            Step::Checkpoint(0, None),
            Step::Write(A, mode, 30_000, 20_000, fill + 25, false),
            Step::Place(A, 0, unshare),
            write(B, 0, 60_000, fill + 40),
            if round == 2 { Step::Kill } else { Step::SyncData(A) },
            Step::Hold(0, 0, 0, mode),
            Step::Place(On::Held(0), 1, true),
            Step::Write(On::Held(0), mode, 60_000, 40_000, fill + 42, false),
            Step::Rollback(0, Back::File(0, 0), true),
            Step::Place(A, 1, true),
            Step::Release(0),
            Step::DeleteCheckpoint(0),
            Step::SetSize(B, 0),
            write(B, 0, 60_000, fill + 44),
            if round == 1 { Step::Remount } else { Step::SyncAll(A) },
            Step::Place(A, 2, false),
        ]);
    }
    steps.push(Step::Sync);
    steps
}

/// S-82: the volume is full, files are written over and over under automatic checkpoints, in every
/// mode, and the oldest of them make room; those that a person made or keeps stay, and where only
/// they are left a write is refused.
pub(super) fn full_volume() -> Vec<Step> {
    let mut steps = vec![
        Step::Create(0, 0),
        write(A, 0, 120_000, 1),
        Step::Create(1, 0),
        write(B, 0, 9000, 2),
        Step::Sync,
    ];
    steps.extend(fill(On::Name(5, 0)));
    steps.extend([Step::Checkpoint(0, None), Step::Policy(true), Step::Automatic(0, true)]);
    for round in 0..8u8 {
        let mode = IoMode::ALL[usize::from(round % 4)];
        steps.extend([
            Step::Automatic(round + 1, false),
            Step::Write(A, mode, 0, 120_000, 10 + round, round % 3 == 2),
            Step::Create(2, 0),
            Step::Append(2, 0, mode, 9000, 20 + round, false),
        ]);
        steps.extend(match round {
            1 => vec![Step::Policy(false), write(B, 0, 120_000, 30), Step::Policy(true)],
            3 => vec![Step::Kill],
            4 => vec![Step::Unlink(2, 0), Step::SyncDirectory(0)],
            5 => vec![Step::Remount],
            6 => vec![
                Step::Allocate(B, Change::Preallocate, 0, 100_000),
                Step::Clone(None, 0, 0, 3),
                write(On::Name(3, 0), 0, 60_000, 31),
            ],
            _ => vec![Step::SyncData(A)],
        });
    }
    // More than all of them hold: none goes, not for the first blocks of it either.
    steps.extend([write(B, 0, 1_000_000, 40)]);
    for mode in IoMode::ALL {
        steps.extend([
            Step::Write(A, mode, 100, 1_000_000, 42, false),
            Step::Append(0, 0, mode, 2_000_000, 43, false),
        ]);
    }
    steps.extend([
        Step::Allocate(A, Change::Zero, 100, 1_000_000),
        Step::DeleteCheckpoint(0),
        write(A, 0, 60_000, 41),
        Step::Sync,
    ]);
    steps
}

/// S-76, I-CKP-2: on a full volume every block that is free is used at once: none may be that a
/// clone still needs, whichever side goes first.
pub(super) fn clones_of_full_volume() -> Vec<Step> {
    let grown = On::Name(2, 0);
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 60_000, 1), Step::Sync];
    steps.extend(fill(On::Name(5, 0)));
    for round in 0..3u8 {
        let (gone, stays) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        let read = Step::Read(On::Name(stays, 0), IoMode::Concurrent, 0, 60_000);
        steps.extend([
            Step::Clone(None, 0, 0, 1),
            write(A, 0, 8192, 10 + round),
            Step::Read(B, IoMode::Concurrent, 0, 60_000),
        ]);
        steps.extend([Step::Unlink(gone, 0), Step::Sync, Step::Create(2, 0)]);
        // What does not fit is refused.
        steps.extend((0..16).map(|part| write(grown, part * 30_000, 30_000, 20 + round)));
        steps.extend([
            Step::SyncData(grown),
            read,
            Step::Unlink(2, 0),
            Step::Rename(stays, 0, 0, 0, RenameKind::Replace),
            Step::Sync,
        ]);
    }
    steps
}

/// S-280 to S-286: blocks with checksums: whole and in part, over holes, over preallocated and
/// written blocks, before and after the file has them, under a checkpoint, in a clone, at ends that
/// lie within a block, moved together, and used again.
pub(super) fn summed() -> Vec<Step> {
    let mut steps = vec![
        Step::MakeDirectory(1),
        Step::SetIntegrity(None, 1, true),
        Step::Create(0, 1),
        Step::Create(0, 0),
        write(A, 0, 50_000, 1),
        Step::SetIntegrity(Some(0), 0, true),
        Step::Sync,
    ];
    let inside = On::Name(0, 1);
    for (round, mode) in
        [IoMode::Concurrent, IoMode::Direct, IoMode::ConcurrentCache, IoMode::Cached]
            .into_iter()
            .enumerate()
    {
        let fill = 50 * u8::try_from(round + 1).expect("four rounds");
        let at = 8192 * u64::try_from(round).expect("four rounds");
        steps.extend([
            Step::Write(inside, mode, at, 20_000, fill, false),
            Step::Write(inside, mode, at + 4096, 8192, fill + 1, round % 2 == 0),
            Step::Write(inside, mode, at + 100, 50, fill + 2, true),
            Step::Write(A, mode, at + 700, 9000, fill + 3, false),
            Step::SyncData(A),
            Step::Append(0, 1, mode, 777, fill + 4, round == 1),
            Step::SetSize(inside, 9_999),
            Step::SetSize(inside, 30_000),
            Step::Checkpoint(0, None),
            Step::Write(inside, mode, 12_288, 8192, fill + 5, true),
            Step::Allocate(inside, Change::Punch, 5000, 9000),
            Step::Allocate(inside, Change::Preallocate, 40_960, 16_384),
            Step::Write(inside, mode, 45_056, 4096, fill + 6, false),
            Step::SyncAll(inside),
            Step::Defragment(inside, true),
            Step::Clone(None, 0, 0, 2),
            Step::Write(On::Name(2, 0), mode, 3000, 6000, fill + 7, true),
            Step::Read(inside, mode, 0, 60_000),
            Step::DeleteCheckpoint(0),
            Step::Sync,
        ]);
        if round == 1 {
            steps.extend([Step::Kill, Step::SetIntegrity(Some(0), 0, false)]);
        }
        steps.push(if round == 2 { Step::Unlink(2, 0) } else { Step::Remount });
    }
    steps
}

/// S-58: whole units, larger writes of whole blocks and single blocks, over holes, over
/// preallocated and written blocks, under checkpoints, at the end of the file and behind an end
/// that lies within a block.
pub(super) fn untorn() -> Vec<Step> {
    let page = |on, mode, number: u64, pages: u64, fill| {
        Step::Write(
            on,
            mode,
            number * 8192,
            u32::try_from(pages * 8192).expect("small"),
            fill,
            false,
        )
    };
    let mut steps = vec![
        Step::MakeDirectory(1),
        Step::SetUntorn(None, 1, Some(8192)),
        Step::Create(0, 1),
        Step::Create(0, 0),
        write(A, 0, 65_536, 1),
        Step::SetUntorn(Some(0), 0, Some(8192)),
        Step::Sync,
    ];
    let inside = On::Name(0, 1);
    for (round, mode) in
        [IoMode::Concurrent, IoMode::Direct, IoMode::ConcurrentCache].into_iter().enumerate()
    {
        let fill = 40 * u8::try_from(round + 1).expect("three rounds");
        let at = u64::try_from(round).expect("three rounds");
        steps.extend([
            page(A, mode, at, 1, fill),
            page(A, mode, at + 1, 1, fill + 1),
            // Not where the device takes it as it is.
            page(A, mode, at + 2, 1, fill + 5 - fill % 5),
            page(A, mode, at + 1, 3, fill + 3),
            Step::Write(A, mode, at * 8192 + 4096, 4096, fill + 4, false),
            Step::SyncData(A),
            page(A, mode, at, 1, fill + 6),
            page(inside, mode, 0, 2, fill + 7),
            page(inside, mode, 0, 1, fill + 8),
            Step::Append(0, 1, mode, 8192, fill + 9, round == 1),
            page(inside, mode, 1, 1, fill + 11),
            Step::Allocate(inside, Change::Preallocate, 65_536, 32_768),
            Step::SyncData(inside),
            page(inside, mode, 8, 1, fill + 12),
            page(inside, mode, 8, 2, fill + 13),
            // The end of the file lies within a block; what is written over it makes the file
            // longer.
            Step::SetSize(A, 57_000),
            Step::SyncAll(A),
            page(A, mode, 6, 1, fill + 14),
            page(A, mode, 6, 2, fill + 16),
            Step::Checkpoint(0, None),
            page(A, mode, at, 2, fill + 17),
            page(A, mode, at, 1, fill + 18),
            Step::DeleteCheckpoint(0),
            page(A, mode, at, 1, fill + 19),
        ]);
    }
    steps
}

/// S-50, S-52, S-54, S-56: checkpoints made, written after, deleted, and rolled back to.
pub(super) fn checkpoints() -> Vec<Step> {
    let after = |fill: u8| {
        [
            write(A, 4096, 8192, fill),
            write(A, 5000, 100, fill),
            Step::SetSize(A, 9000),
            write(A, 20_000, 6000, fill),
        ]
    };
    let mut steps = vec![
        Step::Create(0, 0),
        write(A, 0, 50_000, 1),
        Step::Create(1, 0),
        write(B, 0, 8192, 9),
        Step::Checkpoint(0, None),
    ];
    steps.extend(after(2));
    steps.extend([
        Step::Diff(0),
        Step::Checkpoint(1, None),
        Step::Unlink(1, 0),
        Step::SyncData(A),
        Step::Diff(0),
    ]);
    steps.extend(after(3));
    steps.push(Step::Diff(1));
    steps.extend([
        Step::DeleteCheckpoint(0),
        Step::Checkpoint(2, Some(0)),
        write(A, 0, 16_384, 4),
        Step::SyncData(A),
        Step::DeleteCheckpoint(1),
    ]);
    steps.extend(after(5));
    steps.extend([
        Step::Kill,
        Step::DeleteCheckpoint(2),
        Step::Checkpoint(0, None),
        write(A, 0, 9000, 6),
        Step::Create(2, 0),
        Step::Rollback(0, Back::Everything, false),
    ]);
    steps.extend([
        write(A, 4096, 4096, 7),
        Step::Rollback(0, Back::Everything, false),
        write(A, 0, 4096, 8),
        Step::DeleteCheckpoint(0),
        Step::Sync,
    ]);
    steps.extend(growth_over_shared_tails());
    steps
}

/// The file grows over a tail that a checkpoint shares, in each of the ways in which it can grow.
fn growth_over_shared_tails() -> Vec<Step> {
    let mut steps = Vec::new();
    for (slot, growth) in [
        Step::Allocate(A, Change::Preallocate, 10_000, 40_000),
        Step::Allocate(A, Change::Zero, 70_000, 9000),
        Step::SetSize(A, 90_000),
        Step::Append(0, 0, IoMode::Concurrent, 5000, 8, false),
    ]
    .into_iter()
    .enumerate()
    {
        let slot = u8::try_from(slot % 2).expect("0 or 1");
        steps.extend([
            Step::SetSize(A, 0),
            write(A, 100, 20_011, 7),
            Step::Checkpoint(slot, None),
            growth,
            Step::Read(A, IoMode::Direct, 0, 100_000),
        ]);
        steps.extend([Step::SyncData(A), Step::DeleteCheckpoint(slot)]);
    }
    steps
}
