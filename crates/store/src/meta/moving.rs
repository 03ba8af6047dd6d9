//! Metadata that moves on the volume, and records that say where blocks moved.

use super::region::{MovedRegion, PlaceRegion};
use super::store::{Committed, MetaStore};
use crate::Result;
use crate::images::Others;
use crate::log::Record;
use crate::superblock::ByteRun;

impl MetaStore {
    /// Moves what of the metadata lies beyond byte `limit` of the volume to where `place` says;
    /// `give_back` takes what is not used. Metadata commits wait, and what reads goes on.
    ///
    /// # Errors
    /// Those of `place` and of reads, and nothing has changed; others latch.
    pub fn move_region(
        &self,
        limit: u64,
        place: PlaceRegion<'_>,
        give_back: &dyn Fn(&[ByteRun]),
    ) -> Result<MovedRegion> {
        let superblock = self.region.superblock();
        let beyond = superblock.metadata_beyond(limit);
        if beyond == 0 {
            return Ok(MovedRegion::default());
        }
        self.prepare_blocks(2 * beyond.div_ceil(u64::from(superblock.block_size)));
        self.alone(|| self.region.move_chunks(limit, place, give_back))
    }

    /// Commits a record that says where blocks are from then on, for all rows that have them.
    ///
    /// # Errors
    /// `Corrupt` where the rows contradict each other, and nothing has changed.
    pub fn commit_moved(&self, record: Record) -> Result<Committed> {
        self.exclusively(|locked| locked.commit(record, Others::Moved))
    }
}
