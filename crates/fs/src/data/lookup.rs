//! The lookup of the data path: where a byte range of a file lies on the device.

use super::DataPath;
use crate::Epoch;
use crate::Result;
use crate::inode::Place;
use bedplate_store::ExtentState;

/// Where a byte range lies that one extent with data holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Located {
    /// The offset on the device.
    pub(super) at: u64,
    /// The birth of its blocks.
    pub(super) birth: Epoch,
    /// Whether they have checksums: then it is read, and written, another way.
    pub(super) summed: bool,
}

impl DataPath<'_> {
    /// Returns the device offset of a byte range of the file if it lies in one extent of blocks that
    /// have data and no checksums. Under the inode lock.
    #[inline]
    pub(super) fn find_written(self, offset: u64, len: u64) -> Result<Option<u64>> {
        let Some(found) = self.find_data(offset, len)? else { return Ok(None) };
        Ok((!found.summed).then_some(found.at))
    }

    /// As [`find_written`](Self::find_written), if no other row needs what is there: it may be
    /// written in place.
    #[expect(clippy::inline_always, reason = "a call costs a write as much as the look-up does")]
    #[inline(always)]
    pub(super) fn find_owned(self, offset: u64, len: u64) -> Result<Option<u64>> {
        let Some(found) = self.find_data(offset, len)? else { return Ok(None) };
        let is_owned = found.birth > self.cow_epoch() && !found.summed;
        Ok(is_owned.then_some(found.at))
    }

    /// Returns where a byte range of the file lies if one extent with data holds it: the lookup of
    /// the data path. Under the inode lock.
    #[expect(clippy::inline_always, reason = "a call costs a read or write as much as the look-up")]
    #[inline(always)]
    pub(super) fn find_data(self, offset: u64, len: u64) -> Result<Option<Located>> {
        let grid = self.fs.grid();
        let (block, skip) = (grid.block_of(offset), grid.in_block(offset));
        let located = |Place { start, blocks, birth, summed }: Place| {
            let at = grid.start_of(start) + skip;
            (grid.start_of(blocks) - skip >= len).then_some(Located { at, birth, summed })
        };
        // What is remembered may have grown since.
        match self.state().recent.find(block).and_then(located) {
            Some(found) => Ok(Some(found)),
            None => Ok(self.find_mapped(block)?.and_then(located)),
        }
    }

    #[inline(never)]
    fn find_mapped(self, block: u64) -> Result<Option<Place>> {
        let known = self.state().map_if_loaded().and_then(|map| Some((map.look(block)?, map)));
        let (found, _map) = match known {
            Some(known) => known,
            None => {
                let map = self.map(block..block + 1)?;
                (map.holding(block), map)
            }
        };
        let Some((first, extent)) = found.filter(|(_, extent)| extent.state.has_data()) else {
            return Ok(None);
        };
        self.state().recent.note(block, (first, extent));
        let skip = block - first.0;
        debug_assert!(
            skip < u64::from(extent.blocks),
            "I-EXT-1: block {block} lies in the extent that was found: {extent:?}"
        );
        Ok(Some(Place {
            start: extent.start.0 + skip,
            blocks: u64::from(extent.blocks) - skip,
            birth: extent.birth,
            summed: extent.state == ExtentState::Summed,
        }))
    }
}
