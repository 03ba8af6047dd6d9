//! When rows in memory go into the tree.
//!
//! ```text
//!   rows in memory   0 ──────────── due ──────────────── most          operations wait
//!   log              0 ──────────── 3/4 ──────────────── full          syncs wait
//!                                    the sync daemon begins a metadata commit
//! ```
//!
//! A metadata commit writes every page of the tree that has a changed row. Where the tree is large
//! and its rows change at random that is all of it, however few there are of them: so more rows are
//! gathered for a larger tree.

use std::sync::atomic::Ordering;

use super::store::MetaStore;

/// Bytes in the active memtable from which a metadata commit is due, of a small tree.
pub(super) const ACTIVE_BYTES_DUE: usize = 16 << 20;
/// The same of a large one.
const ACTIVE_BYTES_DUE_MAX: usize = 64 << 20;
/// Bytes in the active memtable from which operations wait for a metadata commit.
pub(super) const ACTIVE_BYTES_MAX: usize = 128 << 20;
/// What is gathered of rows is no less than this part of the tree's file.
const TREE_SHARE: u64 = 4;
const _: () = assert!(
    ACTIVE_BYTES_DUE < ACTIVE_BYTES_DUE_MAX && 2 * ACTIVE_BYTES_DUE_MAX <= ACTIVE_BYTES_MAX,
    "while the sync daemon commits metadata as many rows come again before operations wait"
);

/// Returns how many bytes in the active memtable are due, above a tree in a file of so many bytes.
pub(super) fn due_above(tree_bytes: u64) -> usize {
    let share = usize::try_from(tree_bytes / TREE_SHARE).unwrap_or(usize::MAX);
    share.clamp(ACTIVE_BYTES_DUE, ACTIVE_BYTES_DUE_MAX)
}

impl MetaStore {
    /// Returns whether the sync daemon should start a metadata commit. Cheap: called for every
    /// record.
    #[inline]
    pub fn commit_due(&self) -> bool {
        let active = self.active_bytes.load(Ordering::Relaxed);
        (active > ACTIVE_BYTES_DUE && active > self.due_bytes.load(Ordering::Relaxed))
            || self.log_is_filling()
    }

    /// Returns whether the log is so full that a sync might soon have to wait for a metadata
    /// commit.
    #[inline]
    fn log_is_filling(&self) -> bool {
        self.log.get().is_some_and(|log| log.used_bytes() > log.size_bytes() / 4 * 3)
    }

    /// Returns whether the log is more than half full.
    pub fn log_half_full(&self) -> bool {
        let log = self.log_info();
        log.used_bytes > log.size_bytes / 2
    }

    /// Takes note of how large the tree's file is.
    pub(super) fn note_tree_size(&self) {
        self.due_bytes.store(due_above(self.region.metadata_len()), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_413_more_rows_are_gathered_for_a_larger_tree() {
        let mib = |mib: u64| mib << 20;
        assert_eq!(due_above(0), 16 << 20);
        assert_eq!(due_above(mib(64)), 16 << 20);
        assert_eq!(due_above(mib(128)), 32 << 20);
        assert_eq!(due_above(mib(1 << 20)), 64 << 20);
    }
}
