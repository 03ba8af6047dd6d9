//! The lookup of the data path: where a byte range of a file lies on the device.

use super::DataPath;
use crate::Result;
use crate::{BlockNo, Epoch};
use bedplate_store::ExtentState;

impl DataPath<'_> {
    /// Returns the device offset of a byte range of the file if it lies in one written extent: the
    /// lookup of the data path. Under the inode lock. What has checksums is not found: it is read,
    /// and written, another way.
    #[inline]
    pub(super) fn find_written(self, offset: u64, len: u64) -> Result<Option<u64>> {
        Ok(self.find_born(offset, len)?.map(|(at, _)| at))
    }

    /// As [`find_written`](Self::find_written), if no other row needs what is there: it may be
    /// written in place.
    #[expect(clippy::inline_always, reason = "a call costs a write as much as the look-up does")]
    #[inline(always)]
    pub(super) fn find_owned(self, offset: u64, len: u64) -> Result<Option<u64>> {
        Ok(self
            .find_born(offset, len)?
            .filter(|(_, birth)| *birth > self.cow_epoch())
            .map(|(at, _)| at))
    }

    #[inline]
    pub(super) fn find_born(self, offset: u64, len: u64) -> Result<Option<(u64, Epoch)>> {
        let grid = self.fs.grid();
        let (block, skip) = (grid.block_of(offset), grid.in_block(offset));
        let at = |start: u64, blocks: u64, birth: Epoch| {
            (grid.start_of(blocks) - skip >= len).then(|| (grid.start_of(start) + skip, birth))
        };
        // What is remembered may have grown since.
        match self.state().recent.find(block).and_then(|(to, blocks, birth)| at(to, blocks, birth))
        {
            Some(found) => Ok(Some(found)),
            None => self.find_mapped(block, at),
        }
    }

    #[inline(never)]
    fn find_mapped(
        self,
        block: u64,
        at: impl Fn(u64, u64, Epoch) -> Option<(u64, Epoch)>,
    ) -> Result<Option<(u64, Epoch)>> {
        let known = self.state().map_if_loaded().and_then(|map| Some((map.look(block)?, map)));
        let (found, _map) = match known {
            Some(known) => known,
            None => {
                let map = self.map(block..block + 1)?;
                (map.holding(block), map)
            }
        };
        let Some((first, extent)) =
            found.filter(|(_, extent)| extent.state == ExtentState::Written)
        else {
            return Ok(None);
        };
        self.state().recent.note(block, (first, extent));
        let BlockNo(start) = extent.start;
        let skip = block - first.0;
        debug_assert!(
            skip < u64::from(extent.blocks),
            "I-EXT-1: block {block} lies in the extent that was found: {extent:?}"
        );
        Ok(at(start + skip, u64::from(extent.blocks) - skip, extent.birth))
    }
}
