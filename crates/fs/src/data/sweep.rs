//! What gives memory of extent maps back.
//!
//! ```text
//!   a lookup finds its part absent ─► more than the cap is in memory? ─ yes ─► a sweep ─┐
//!                                    └ no ──────────────────────────────────────────────┴► the part is read from the rows
//!   sweep    over the files in turn, under the map's lock where that is free, three times at most:
//!            used since the last time ─► not used ─► packed ─► absent
//! ```
//!
//! - I-MAP-1: what a part has is what the rows answer for its range, memtables included: a change
//!   reaches both under the map's write lock. So any part may leave memory whenever that lock is
//!   free; a debug build compares it with the rows then. There is no sweep beside a freeze, because
//!   a rollback changes rows below the maps, nor after a failure, when rows may be missing.

use std::ops::Range;
use std::sync::Arc;

use crate::FileKind;
use crate::engine::Engine;
use crate::inode::Inode;
use bedplate_store::{PlantedBug, Swept, planted};

use super::DataPath;

/// How often a sweep passes over all files at most: a part takes three passes to leave memory.
const PASSES_MAX: usize = 3;

/// How many parts a map is locked for at once: readers of it wait meanwhile.
const PARTS_AT_ONCE: usize = 128;

/// Returns whether a mistake is planted that is to show in what is read, not here.
fn is_to_show() -> bool {
    planted(PlantedBug::ChangedPartEvicted)
        || planted(PlantedBug::PartBeginsLate)
        || planted(PlantedBug::PartTooLong)
}

impl Engine {
    /// Gives memory of extent maps back where they take more than the cap. No map's lock is held.
    #[inline]
    pub(crate) fn trim_maps(&self) {
        if self.maps().are_over() {
            self.sweep_maps();
        }
    }

    #[cold]
    fn sweep_maps(&self) {
        let Some(sweeping) = self.maps().begin_sweep() else { return };
        let Some(_changing) = self.change_if_unfrozen() else { return };
        let mut files = self.loaded_inodes(|inode| inode.kind == FileKind::File);
        let first = sweeping.turn as usize % files.len().max(1);
        files.rotate_left(first);
        for _ in 0..PASSES_MAX {
            let mut done = Swept::default();
            for inode in &files {
                let swept = self.sweep_map(inode);
                done.evicted += swept.evicted;
                done.changed += swept.changed;
            }
            sweeping.count(done.evicted);
            if done == Swept::default() || !self.maps().are_many() {
                return;
            }
        }
    }

    /// Lets one pass go over the map of a file, as far as that is needed; the lock is let go of after
    /// some parts.
    fn sweep_map(&self, inode: &Arc<Inode>) -> Swept {
        let (mut done, mut left) = (Swept::default(), None);
        let more = || self.maps().are_many() && !self.has_failed();
        while more() && left != Some(0) {
            let Some(mut place) = inode.data.map_place_if_free() else { break };
            let Some(map) = place.as_mut() else { break };
            let parts = left.unwrap_or(map.part_count());
            let swept = map.sweep(PARTS_AT_ONCE, more, |range: Range<u64>, extents: &[_]| {
                debug_assert!(
                    DataPath::new(self, inode).is_as_rows(&range, extents)
                        || self.has_failed()
                        || is_to_show(),
                    "I-MAP-1: what leaves memory is what the rows say of blocks {range:?} of inode \
                     {}: {extents:?}",
                    inode.ino.0
                );
            });
            done.evicted += swept.evicted;
            done.changed += swept.changed;
            left = Some(parts.saturating_sub(PARTS_AT_ONCE));
        }
        done
    }
}
