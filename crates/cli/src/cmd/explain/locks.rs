//! Waits for a file's locks, where they are a share of the time of its reads and writes. Pure.

use bedplate::IoMode;

use super::findings::{FileFacts, Finding};
use crate::mount::waits::{Shares, shares};
use crate::mount::watch::short;

/// A smaller part of the time is no finding.
const SHARE_MIN: f64 = 0.05;

/// Returns what there is to say of the waits for locks of a file.
pub fn waited(told: &FileFacts) -> Option<Finding> {
    let (waits, latencies) = (&told.activity.waits, &told.activity.latencies);
    let Shares { locks, .. } = shares(waits, latencies).filter(|all| all.locks >= SHARE_MIN)?;
    let inode_ns = waits.inode_shared.ns + waits.inode_exclusive.ns;
    let lock = if inode_ns >= waits.byte_range.ns {
        "its inode lock"
    } else {
        "byte ranges of it that others had"
    };
    let longest = [waits.inode_shared, waits.inode_exclusive, waits.byte_range]
        .map(|time| time.ns_max)
        .into_iter()
        .max();
    Some(Finding {
        kind: "lock_waits",
        count: waits.lock_count(),
        what: format!(
            "its reads and writes waited {:.0} % of their time for {lock}",
            locks * 100.0
        ),
        cost: format!(
            "{} in all, {} at most for one",
            short(Some(waits.lock_ns())),
            short(longest)
        ),
        who: Vec::new(),
        change: change(told),
    })
}

/// `concurrent` locks no ranges and shares the inode lock among readers and writers.
fn change(told: &FileFacts) -> String {
    let is_concurrent = told
        .activity
        .effective_mode
        .is_some_and(|mode: IoMode| !mode.writes_behind() && !mode.locks_ranges());
    if is_concurrent {
        "its mode shares the lock already: look at what takes it alone, which is writes that are \
         not aligned, that end within a block, or that make the file grow, and truncations"
            .to_owned()
    } else {
        format!(
            "let reads and writes go on beside each other: bedplate mode {0} concurrent, where the \
             program orders overlapping ones itself; 'bedplate mode try {0} concurrent' measures it",
            told.path
        )
    }
}
