//! A directed workload of logs that move.

use bedplate_fs::IoMode;

use super::directed::{A, B, write};
use super::{On, Step};

/// S-394, S-395: the log goes home and away, becomes larger and smaller, between writes that were
/// synced and others that were not, and the process dies, or unmounts, behind it. What was removed
/// makes the room that it takes, and what it leaves is written to at once.
pub(super) fn logs() -> Vec<Step> {
    let c = On::Name(2, 0);
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0), Step::Create(2, 0), Step::Sync];
    for round in 0..3u8 {
        let fill = 20 * round;
        let at = u64::from(round) * 9000;
        steps.extend([
            write(A, at, 40_000, fill + 1),
            Step::SyncAll(A),
            Step::MoveLog(true, 1 + round % 2),
            write(B, at, 70_000, fill + 2),
            Step::Write(c, IoMode::Cached, at, 5000, fill + 3, true),
            Step::ResizeLog(3),
            write(A, 30_000, 20_000, fill + 4),
            Step::SyncData(A),
            Step::Create(3, 0),
            Step::SyncDirectory(0),
            Step::ResizeLog(1),
            write(c, 0, 30_000, fill + 5),
            Step::SyncAll(c),
            Step::MoveLog(false, 1),
            write(B, 10_000, 9000, fill + 6),
            Step::SyncData(B),
            Step::ResizeLog(2),
            Step::Unlink(3, 0),
            write(A, 0, 50_000, fill + 7),
            Step::SyncAll(A),
        ]);
        steps.extend(match round {
            0 => vec![Step::Kill],
            1 => vec![Step::Remount],
            _ => vec![Step::Checkpoint(0, None), Step::MoveLog(true, 1), Step::Sync],
        });
    }
    steps
}
