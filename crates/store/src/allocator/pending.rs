//! Blocks that left a file, until the record that freed them is sealed (I-SPC-2).

use super::{Allocator, Inner};
use crate::extent::Run;
use crate::{BlockNo, Lsn};

impl Allocator {
    /// Gives blocks back once the record that freed them is sealed (I-SPC-2).
    pub fn release_after(&self, lsn: Lsn, run: Run) {
        self.note_pending(lsn, run);
    }

    /// As [`release_after`](Self::release_after), of many.
    pub fn release_all_after(&self, freed: &[(Lsn, Run)]) {
        freed.iter().for_each(|(lsn, run)| self.note_pending(*lsn, *run));
    }

    /// Makes the blocks free that records up to `sealed` freed. Returns whether there were any.
    pub fn release_sealed(&self, sealed: Lsn) -> bool {
        let in_groups = self.release_in_groups(sealed);
        self.turn().release_sealed(sealed) || in_groups
    }

    /// As [`release_sealed`](Self::release_sealed), for a commit of the tree, in the middle of which no
    /// region can be read: without blocks that left files since it began.
    pub fn release_sealed_in_memory(&self, sealed: Lsn) {
        self.recycle_in_groups(sealed);
        self.turn().release_sealed(sealed);
    }

    /// Returns the last record that must be sealed before every released block is free; `None` when
    /// none is waiting.
    pub fn waiting_for(&self) -> Option<Lsn> {
        let in_groups = self.groups_wait_for();
        let here = self.turn().pending_free.last().map(|(lsn, ..)| *lsn);
        here.max(in_groups)
    }
}

impl Inner {
    /// Looks at blocks that a record freed; `false`: they stay where they are.
    pub(super) fn may_leave(&mut self, lsn: Lsn, run: Run) -> bool {
        if !self.unread.may_be_of_file(run, self.end) {
            return false;
        }
        assert!(
            run.blocks > 0 && run.end() <= self.end,
            "blocks of the volume leave a file: {run:?}"
        );
        self.keep_run(run);
        debug_assert!(
            self.unread.is_stored() || self.last_free_in(run).is_none(),
            "I-SPC-2: {run:?} is out of reach until record {lsn:?} is sealed"
        );
        true
    }

    /// Keeps blocks out of reach until the record that freed them is sealed.
    pub(super) fn keep_pending(&mut self, lsn: Lsn, run: Run) {
        self.left += run.blocks;
        assert!(
            self.pending_free.insert((lsn, run.start.0, run.blocks)),
            "blocks leave a file once"
        );
    }

    /// Makes the blocks free that records up to `sealed` freed. Returns whether there were any.
    pub(super) fn release_sealed(&mut self, sealed: Lsn) -> bool {
        let before = self.left;
        while let Some(&(lsn, start, blocks)) =
            self.pending_free.first().filter(|(lsn, ..)| *lsn <= sealed)
        {
            self.pending_free.remove(&(lsn, start, blocks));
            self.left -= blocks;
            let run = Run { start: BlockNo(start), blocks };
            self.insert_released(run);
            self.note_freed(run);
        }
        debug_assert!(
            self.pending_free.first().is_none_or(|(lsn, ..)| *lsn > sealed),
            "I-SPC-2: what waits, waits for a record behind {sealed:?}"
        );
        self.check_totals();
        self.left != before
    }
}
