//! A directed workload of file systems that become smaller.

use bedplate_fs::IoMode;

use super::directed::{A, B, write};
use super::{Change, On, Step};

/// S-373, S-374: what lies behind on the volume, of a file, of a clone and of checkpoints, moves to
/// where another file was, is written before, between and behind, and the volume grows again.
pub(super) fn smaller() -> Vec<Step> {
    let c = On::Name(2, 0);
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0), Step::Create(2, 0), Step::Sync];
    // All but the end of the volume, so that the others lie there: the longest run, then the shorter
    // ones.
    let mut at = 0;
    for kib in [32 << 10, 4 << 10, 1 << 10, 512, 256, 128, 64, 32, 16] {
        steps.push(Step::Allocate(A, Change::PreallocateKeep, at, kib << 10));
        at += kib << 10;
    }
    steps.extend([
        Step::Sync,
        write(B, 0, 200_000, 1),
        write(c, 0, 50_000, 2),
        Step::Allocate(c, Change::PreallocateKeep, 100_000, 300_000),
        Step::SyncAll(B),
        // No checkpoint has it.
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
    for round in 0..2u8 {
        steps.extend([
            Step::Write(B, IoMode::Cached, u64::from(round) * 30_000, 20_000, 10 + round, true),
            Step::Checkpoint(2, None),
            Step::Create(0, 0),
        ]);
        // All there is, so that what comes then lies in what the volume grows by.
        for shift in (0..12).rev() {
            let len = 16 << (10 + shift);
            steps.push(Step::Allocate(A, Change::PreallocateKeep, len, len));
        }
        steps.extend([
            Step::Grow(6),
            write(c, u64::from(round) * 9000, 60_000, 20 + round),
            write(B, u64::from(round) * 20_000, 70_000, 30 + round),
            Step::SyncAll(c),
            Step::Unlink(0, 0),
            Step::Sync,
            Step::Shrink(6),
            Step::DeleteCheckpoint(2),
        ]);
    }
    steps
}

#[cfg(test)]
mod tests {
    use bedplate_block::Recorded;

    use super::smaller;
    use crate::run::record;
    use crate::workload::Setup;

    /// Only what was written beyond a later end has to move. The first shrink meets that; the device
    /// keeps its length, so what comes later lies before.
    #[test]
    fn what_lies_beyond_the_new_end_was_written_there() {
        let history = record(&Setup::DISK, &smaller()).unwrap_or_else(|what| panic!("{what}"));
        let (mut sizes, mut furthest, mut beyond) = (Vec::new(), 0, 0);
        for operation in history.bed.data().operations() {
            let Recorded::Write { offset, data } = operation else { continue };
            if offset > 0 {
                furthest = furthest.max(offset + data.len() as u64);
                continue;
            }
            let size = u64::from_le_bytes(data[48..56].try_into().expect("eight bytes"));
            if sizes.last().is_some_and(|last| size < *last) {
                beyond += u32::from(furthest > size);
                furthest = 0;
            }
            sizes.push(size);
        }
        assert!(beyond >= 1, "{beyond} times of {sizes:?}");
    }
}
