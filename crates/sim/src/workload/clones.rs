//! Directed workloads of clones.

use bedplate_fs::IoMode;

use super::directed::{A, B, write};
use super::{Back, Change, On, RenameKind, Step};

/// S-75, S-76: clones of the present and of checkpoints; both sides are written, and they go in any
/// order.
pub(super) fn clones() -> Vec<Step> {
    let mut steps = vec![
        Step::Create(0, 0),
        write(A, 0, 40_000, 1),
        Step::Allocate(A, Change::PreallocateKeep, 60_000, 30_000),
        Step::Sync,
    ];
    for round in 0..4u8 {
        let fill = 20 * round;
        steps.extend([
            Step::Clone(None, 0, 0, 1),
            write(A, 4096, 8192, fill + 2),
            write(B, 8192, 8192, fill + 3),
            write(B, 100, 50, fill + 4),
            Step::SyncData(B),
            Step::Checkpoint(0, None),
            Step::Clone(Some(0), 1, 0, 2),
            write(On::Name(2, 0), 0, 12_288, fill + 5),
            write(B, 0, 4096, fill + 6),
            Step::Allocate(B, Change::Punch, 4096, 9000),
            Step::SyncData(A),
        ]);
        // In an order of its own each time; then what became free is used at once.
        let gone = [
            [Step::Unlink(0, 0), Step::Unlink(1, 0), Step::Unlink(2, 0)],
            [Step::Unlink(2, 0), Step::Unlink(1, 0), Step::Unlink(0, 0)],
        ];
        let [first, second, third] = gone[usize::from(round % 2)].clone();
        steps.extend([
            first,
            Step::SyncDirectory(0),
            if round < 2 {
                Step::DeleteCheckpoint(0)
            } else {
                Step::Rollback(0, Back::Everything, false)
            },
        ]);
        steps.extend([second, write(B, 20_000, 9000, fill + 7), third, Step::DeleteCheckpoint(0)]);
        steps.extend([
            Step::Unlink(0, 0),
            Step::Unlink(1, 0),
            Step::Unlink(2, 0),
            Step::Create(0, 0),
            write(A, 0, 40_000, fill + 8),
        ]);
        steps.push(if round % 2 == 0 { Step::SyncData(A) } else { Step::Kill });
    }
    steps.extend(clones_of_directories());
    steps
}

/// A directory is cloned from a checkpoint and as it is.
fn clones_of_directories() -> Vec<Step> {
    let inside = On::Name(0, 1);
    let mut steps = vec![
        Step::MakeDirectory(1),
        Step::Create(0, 1),
        write(inside, 0, 20_000, 90),
        Step::Link(0, 1, 3, 1),
        Step::Symlink(4, 1, 9),
    ];
    steps.extend([
        Step::Checkpoint(1, Some(1)),
        write(inside, 4096, 4096, 91),
        Step::CloneDirectory(Some(1), 1, 2),
        Step::DeleteCheckpoint(1),
    ]);
    steps.extend([
        write(On::Name(3, 2), 0, 8192, 92),
        Step::Unlink(0, 1),
        Step::SyncDirectory(2),
        Step::Unlink(0, 2),
        Step::Unlink(3, 2),
    ]);
    steps.extend([
        Step::Unlink(4, 2),
        Step::RemoveDirectory(2),
        Step::CloneDirectory(None, 1, 2),
        Step::Kill,
        Step::Sync,
    ]);
    steps
}

/// S-76: what a clone, or what it is of, no longer has is written in place by the other before
/// anything is synced: a crash brings both back.
pub(super) fn given_up() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 40_000, 1), Step::Sync];
    for fill in [10, 30] {
        steps.extend([
            Step::Clone(None, 0, 0, 1),
            Step::Unlink(1, 0),
            write(A, 0, 8192, fill),
            Step::Clone(None, 0, 0, 1),
            write(B, 8192, 8192, fill + 1),
            write(A, 8192, 8192, fill + 2),
            Step::Allocate(A, Change::Punch, 16_384, 8192),
            write(B, 16_384, 8192, fill + 3),
            Step::SetSize(B, 24_576),
            write(A, 24_576, 8192, fill + 4),
            Step::Unlink(0, 0),
            write(B, 0, 4096, fill + 5),
            Step::Clone(None, 1, 0, 0),
            Step::Unlink(1, 0),
            Step::SyncData(A),
        ]);
    }
    steps
}

/// S-76: what one of two gave up is the other's own, and what lies beside it in the same extent is
/// shared still. Writes begin and end within blocks of the one kind and go on into the other.
pub(super) fn shared_in_part() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 60_000, 1), Step::Sync];
    for (round, mode) in IoMode::ALL.into_iter().enumerate() {
        let fill = 10 * u8::try_from(round + 1).expect("few rounds");
        let odd = |on, offset, len, fill| Step::Write(on, mode, offset, len, fill, round % 2 == 0);
        steps.extend([
            Step::Clone(None, 0, 0, 1),
            write(A, 4096, 4096, fill),
            write(B, 20_480, 4096, fill + 1),
            Step::SyncData(A),
            odd(B, 5000, 8000, fill + 2),
            odd(A, 16_384, 5000, fill + 3),
            odd(B, 32_768, 9000, fill + 4),
            odd(A, 30_000, 9000, fill + 5),
            Step::SyncData(B),
            Step::Read(A, mode, 0, 60_000),
            Step::Read(B, mode, 0, 60_000),
            Step::Unlink(0, 0),
            Step::Clone(None, 1, 0, 0),
            Step::Unlink(1, 0),
        ]);
        steps.push(if round % 2 == 0 { Step::SyncAll(A) } else { Step::Remount });
    }
    steps
}

/// S-531 to S-534: ranges are copied between files that are written before and after, to where they
/// can be shared and to where they cannot.
pub(super) fn copied_ranges() -> Vec<Step> {
    let mut steps =
        vec![Step::Create(0, 0), Step::Create(1, 0), write(A, 0, 60_000, 1), Step::Sync];
    for (round, mode) in IoMode::ALL.into_iter().enumerate() {
        let fill = 20 * u8::try_from(round + 1).expect("few rounds");
        let put = |on, offset, len, fill| Step::Write(on, mode, offset, len, fill, false);
        let copy = |from, at, to, into, len| Step::CopyRange(from, to, mode, at, into, len);
        steps.extend([
            write(A, 0, 8192, fill),
            Step::SyncData(A),
            // In place, and not durable when it is shared.
            write(A, 0, 8192, fill + 1),
            copy(A, 0, B, 0, 60_000),
            Step::SyncData(B),
            put(A, 4096, 4096, fill + 2),
            put(B, 12_000, 9000, fill + 3),
            copy(A, 4096, B, 20_480, 8292),
            copy(B, 100, A, 5000, 6000),
            // The other one has these blocks already, elsewhere.
            copy(A, 32_768, B, 45_056, 12_288),
            Step::Allocate(A, Change::Punch, 16_384, 8192),
            copy(A, 8192, B, 8192, 20_480),
            Step::SyncData(A),
            copy(A, 0, B, 65_536, 60_000),
            put(B, 70_000, 5000, fill + 4),
        ]);
        steps.push(if round % 2 == 0 { Step::SyncAll(B) } else { Step::Kill });
        steps.extend([
            copy(A, 0, On::Name(2, 0), 0, 60_000),
            Step::Create(2, 0),
            copy(A, 0, On::Name(2, 0), 0, 60_000),
            Step::Checkpoint(0, None),
            write(A, 4096, 4096, fill + 5),
            copy(A, 0, On::Name(2, 0), 0, 20_000),
            Step::Unlink(0, 0),
            Step::DeleteCheckpoint(0),
            write(On::Name(2, 0), 30_000, 9000, fill + 6),
            Step::Rename(2, 0, 0, 0, RenameKind::Replace),
            Step::Unlink(1, 0),
            Step::SyncData(A),
            Step::Create(1, 0),
        ]);
    }
    steps
}
