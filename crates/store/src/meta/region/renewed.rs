//! A volume that gets another identity. The lists of its chunks name it, so they are written again
//! beside the old ones, and the superblock names both at once.

use super::moving::PlaceRegion;
use super::{Region, usize_from};
use crate::Result;
use crate::superblock::{ByteRun, Superblock};

impl Region {
    /// Changes the superblock, its identity too, and makes both copies durable; `place` finds room
    /// for lists. Returns the runs that the lists leave. No metadata commit is under way.
    ///
    /// # Errors
    /// Those of `place`, and nothing has changed; others latch.
    pub(in crate::meta) fn renew_superblock(
        &self,
        place: PlaceRegion<'_>,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<Vec<ByteRun>> {
        let mut next = self.superblock();
        let before = next.uuid;
        change(&mut next);
        let mut left = Vec::new();
        if next.uuid != before && next.list_runs().next().is_some() {
            left.extend(next.list_runs());
            let chunks = next.chunks.clone();
            next.forget_chunks();
            let block = u64::from(next.block_size);
            let lists = place(next.lists_for(&chunks) * block)?;
            let step = usize_from(block)?;
            let places: Vec<u64> =
                lists.iter().flat_map(|run| (run.start..run.end()).step_by(step)).collect();
            let written = next.extend(&chunks, places.into_iter());
            self.latch(
                written.iter().try_for_each(|list| list.write(&self.device, next.block_size)),
            )?;
            self.latch(self.device.flush().map_err(crate::Error::from))?;
        }
        self.update_superblock(|superblock| {
            *superblock = Superblock { generation: superblock.generation, ..next };
        })?;
        Ok(left)
    }
}
