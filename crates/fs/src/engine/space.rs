//! What the parts above ask of the free space.

use super::Engine;
use crate::{InodeNo, Lsn, Result};
use bedplate_store::{AllocRequest, Elsewhere, PlacedRuns, PlantedBug, Run, SpaceTotals, planted};

impl Engine {
    /// Returns how the space is used.
    pub(crate) fn space_totals(&self) -> SpaceTotals {
        let totals = self.allocator.totals();
        debug_assert!(
            totals.free <= totals.total,
            "{} blocks are free of {}",
            totals.free,
            totals.total
        );
        totals
    }

    /// Returns whether there is room for blocks of data, also counting what becomes free by itself.
    pub(crate) fn would_fit(&self, blocks: u64) -> bool {
        self.allocator.would_fit(blocks)
    }

    /// Returns how many of these blocks of data would lack.
    pub(crate) fn blocks_lacking(&self, blocks: u64) -> u64 {
        self.allocator.lacking(blocks)
    }

    /// Takes free blocks: all that are asked for, or none.
    pub(crate) fn allocate(&self, request: AllocRequest) -> Result<Vec<Run>> {
        self.allocator.allocate_after(request, self.sealed_to_reuse())
    }

    /// As [`allocate`](Self::allocate), from parts of the volume as long as these have some.
    pub(crate) fn allocate_within(
        &self,
        request: AllocRequest,
        ranges: &[Run],
        elsewhere: Elsewhere,
    ) -> Result<PlacedRuns> {
        self.allocator.allocate_within(request, ranges, elsewhere, self.sealed_to_reuse())
    }

    /// Gives back blocks that no record knows; `reserved` of them are reserved again.
    pub(crate) fn free_unused(&self, runs: &[Run], reserved: u64) {
        self.allocator.free(runs, reserved);
    }

    /// Takes so many free blocks in one run for the volume itself; `None` where no free run is so
    /// long.
    pub(crate) fn allocate_run(&self, blocks: u64) -> Option<Run> {
        self.allocator.allocate_run(blocks)
    }

    /// Keeps blocks for a write that comes later.
    pub(crate) fn reserve_blocks(&self, blocks: u64) -> Result<()> {
        self.allocator.reserve_blocks(blocks)
    }

    /// Gives up blocks that were reserved.
    pub(crate) fn release_reserved(&self, blocks: u64) {
        self.allocator.release_reserved(blocks);
    }

    /// Lets blocks become free once the record that freed them is sealed (I-SPC-2).
    pub(crate) fn release_after(&self, lsn: Lsn, run: Run) {
        self.allocator.release_after(lsn, run);
    }

    /// Makes blocks free whose record is sealed; returns whether there were any.
    pub(crate) fn release_sealed(&self) -> bool {
        self.allocator.release_sealed(self.sealed_to_reuse())
    }

    /// The last record whose freed blocks may be used again.
    fn sealed_to_reuse(&self) -> Lsn {
        if planted(PlantedBug::ReuseBeforeSealed) {
            self.meta.last_lsn()
        } else {
            self.meta.sealed_lsn()
        }
    }

    /// Returns the record that the last of the blocks wait for which are about to become free.
    pub(crate) fn release_waits_for(&self) -> Option<Lsn> {
        self.allocator.waiting_for()
    }

    /// Gives up the blocks that are kept ahead for a file.
    pub(crate) fn drop_ahead(&self, ino: InodeNo) {
        self.allocator.drop_ahead(ino);
    }

    /// Returns whether blocks are where data of files may lie.
    pub(crate) fn may_hold_data(&self, run: Run) -> bool {
        self.allocator.may_hold_data(run)
    }

    /// Adds the blocks by which the volume has grown; `blocks` is how many it has.
    pub(crate) fn grow_space(&self, blocks: u64) {
        self.allocator.grow(blocks);
    }

    /// Returns the allocator itself, for tests that go below the engine.
    #[cfg(test)]
    pub(crate) fn allocator(&self) -> &bedplate_store::Allocator {
        &self.allocator
    }
}
