//! Workloads of access control lists.

use bedplate_fs::IoMode;

use super::{On, Step};

/// Lists and modes of one file follow each other, over crashes and mounts: the first list of the
/// volume too, which later mounts have to know of.
pub(super) fn lists() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0), Step::Sync];
    for round in 0..6_u8 {
        let (file, bits) = (round % 2, 0o600 + u32::from(round) * 0o11);
        steps.extend([
            Step::SetAcl(file, 0, bits),
            Step::SyncAll(On::Name(file, 0)),
            Step::SetMode(file, 0, 0o751 - u32::from(round)),
            Step::Write(On::Name(1 - file, 0), IoMode::Concurrent, 0, 5000, round + 1, false),
            Step::SetAcl(file, 0, bits + 0o10),
        ]);
        steps.push(match round {
            1 => Step::Remount,
            2 | 4 => Step::Kill,
            _ => Step::Sync,
        });
        steps.push(Step::SetMode(file, 0, 0o700));
    }
    steps.push(Step::Sync);
    steps
}
