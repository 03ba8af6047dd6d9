//! A directed workload of file systems that become smaller.

use bedplate_fs::IoMode;

use super::directed::{A, B, write};
use super::{Change, On, Step};

/// S-373, S-374: what lies behind on the volume, of a file, of a clone and of checkpoints, moves to
/// where another file was, is written before, between and behind, and the volume grows again.
pub(super) fn smaller() -> Vec<Step> {
    let c = On::Name(2, 0);
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0), Step::Create(2, 0), Step::Sync];
    // Most of what is behind the first files, so that the others lie at the end.
    steps.extend([
        Step::Allocate(A, Change::PreallocateKeep, 0, 30 << 20),
        Step::Sync,
        write(B, 0, 200_000, 1),
        write(c, 0, 50_000, 2),
        Step::Allocate(c, Change::PreallocateKeep, 100_000, 300_000),
        Step::SyncAll(B),
        // No checkpoint has it.
        Step::Allocate(A, Change::Punch, 0, 30 << 20),
        Step::Unlink(0, 0),
        Step::Sync,
        Step::Checkpoint(0, None),
        write(B, 30_000, 60_000, 3),
        Step::Clone(None, 1, 0, 3),
        Step::Checkpoint(1, None),
        write(B, 70_000, 40_000, 4),
        write(On::Name(3, 0), 10_000, 20_000, 5),
        Step::Sync,
        Step::DeleteCheckpoint(1),
        Step::Shrink(9),
        write(B, 0, 50_000, 6),
        Step::SyncData(B),
        Step::Shrink(7),
        Step::Kill,
    ]);
    for round in 0..4u8 {
        steps.extend([
            Step::Write(B, IoMode::Cached, u64::from(round) * 30_000, 20_000, 10 + round, true),
            Step::Checkpoint(2, None),
            Step::Grow(6),
            write(c, u64::from(round) * 9000, 30_000, 20 + round),
            Step::Allocate(c, Change::Preallocate, 400_000, 14 << 20),
            write(c, 13 << 20, 40_000, 30 + round),
            Step::SyncAll(c),
            Step::Allocate(c, Change::Punch, 500_000, 12 << 20),
            Step::DeleteCheckpoint(2),
            Step::Shrink(6),
        ]);
    }
    steps
}
