//! Small writes that need the file alone and wait for it: the one that gets it writes what lies beside it
//! too (`inode/combining.rs`).

use std::sync::atomic::Ordering;

use super::delayed::MayWait;
use super::write::Payload;
use super::{Alone, DataPath};
use crate::Reason;
use crate::inode::{COMBINED_WRITE_BYTES_MAX, Joined, Together};
use crate::mode::Service;

impl<'a> DataPath<'a> {
    /// Returns whether a write would need the file alone in any case, because it moves the end of the
    /// file, from or to a place within a block, and may be written with others.
    pub(super) fn grows_in_a_block(self, data: &Payload<'_>, may_wait: MayWait) -> bool {
        let (grid, size) = (self.fs.grid(), self.inode.size.load(Ordering::Acquire));
        self.may_combine(data, may_wait)
            && data.end() > size
            && !(grid.on_block(size) && grid.on_block(data.end()))
            && !self.service().is_mixed()
    }

    /// Returns whether a write may be written with others: it is small, of whole sectors, and may not
    /// wait for longer than it takes.
    fn may_combine(self, data: &Payload<'_>, may_wait: MayWait) -> bool {
        let grid = self.fs.grid();
        may_wait == MayWait::No
            && data.bytes.len() <= COMBINED_WRITE_BYTES_MAX
            && grid.on_sector(data.offset | data.bytes.len() as u64)
    }

    /// Adds a write to those that wait for the file, where others may write it along.
    pub(super) fn join(self, data: &Payload<'_>, may_wait: MayWait) -> Option<Joined<'a>> {
        let joins = self.may_combine(data, may_wait);
        joins.then(|| self.state().combining.join(data.bytes, data.offset))
    }

    /// Writes what has joined together with what lies beside it; `false` where nothing does, or it
    /// cannot be written: then each writer finds out by itself.
    pub(super) fn write_combined(
        self,
        held: &Alone<'_>,
        joined: &Joined<'_>,
        service: Service,
    ) -> bool {
        if self.has_tail() {
            // Another process has bytes behind the end.
            return false;
        }
        let size = self.inode.size.load(Ordering::Acquire);
        let block = u64::from(self.fs.block_size());
        let Some(together) = joined.together(held, size, block) else { return false };
        let Together { offset, ref bytes, .. } = together;
        if self.write_alone(held, bytes, Some(offset), service, MayWait::No).is_err() {
            return false;
        }
        if self.state().logged_size() > size {
            (0..together.others()).for_each(|_| self.inode.counters.reason(Reason::Extend));
        }
        together.end(held);
        true
    }
}
