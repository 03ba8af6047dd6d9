//! Questions about the extent map.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use super::DataPath;
use crate::{ExtentInfo, Result};
use bedplate_store::ExtentState;

impl DataPath<'_> {
    /// Returns the first offset at or after `offset` that holds data.
    pub(crate) fn seek_data(self, offset: u64) -> Result<Option<u64>> {
        let known = self.flush_before_seek()?;
        let _held = self.state().lock.shared(self.fs);
        let size = self.inode.size.load(Ordering::Acquire);
        if known { self.seek(offset, size, true) } else { Ok((offset < size).then_some(offset)) }
    }

    /// Returns the first offset at or after `offset` inside a hole; the end of the file counts as
    /// one.
    pub(crate) fn seek_hole(self, offset: u64) -> Result<Option<u64>> {
        let known = self.flush_before_seek()?;
        let _held = self.state().lock.shared(self.fs);
        let size = self.inode.size.load(Ordering::Acquire);
        let hole = if known { self.seek(offset, size, false)? } else { None };
        Ok(hole.or_else(|| (offset < size).then_some(size)))
    }

    /// Data in the cache is in no extent yet (S-13). Returns whether the extents tell: where it can
    /// never be written any more, reads go on (S-33) and everything counts as data.
    fn flush_before_seek(self) -> Result<bool> {
        if self.fs.is_read_only() {
            return Ok(true);
        }
        match crate::data::write_inode(self.fs, self.inode) {
            Err(_) if self.fs.has_failed() => Ok(false),
            flushed => flushed.map(|()| true),
        }
    }

    fn seek(self, offset: u64, size: u64, data: bool) -> Result<Option<u64>> {
        if offset >= size {
            return Ok(None);
        }
        let grid = self.fs.grid();
        let found = self.walk(grid.blocks(&(offset..size)), |map, stretch| {
            let found = map.pieces(stretch).find(|piece| piece.written().is_some() == data);
            found.map_or(ControlFlow::Continue(()), ControlFlow::Break)
        })?;
        Ok(found.map(|piece| (piece.file_block * grid.block).max(offset)))
    }

    /// Returns in how many extents the file lies, with what was delayed.
    pub(crate) fn extent_count(self) -> Result<usize> {
        self.write_if_delayed()?;
        let mut count = 0;
        self.extents_of(0, |_, _| {
            count += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(count)
    }

    /// Returns extents in file order, with those of what was delayed.
    pub(crate) fn extents_from(self, offset: u64, limit: usize) -> Result<Vec<ExtentInfo>> {
        self.write_if_delayed()?;
        let mut extents = Vec::new();
        if limit > 0 {
            self.extents_of(offset.div_ceil(self.fs.grid().block), |at, extent| {
                extents.push(self.extent_info(at, extent));
                let is_full = extents.len() == limit;
                Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
        }
        Ok(extents)
    }

    /// Returns the extent that maps a byte, with what was delayed.
    pub(crate) fn extent_at(self, offset: u64) -> Result<Option<ExtentInfo>> {
        self.write_if_delayed()?;
        let block = offset / self.fs.grid().block;
        let held = self.map(block..block + 1)?.holding(block);
        Ok(held.map(|(at, extent)| self.extent_info(at, extent)))
    }

    fn extent_info(self, at: crate::FileBlock, extent: bedplate_store::Extent) -> ExtentInfo {
        let block = self.fs.grid().block;
        ExtentInfo {
            file_offset: at.0 * block,
            volume_offset: extent.start.0 * block,
            len: u64::from(extent.blocks) * block,
            unwritten: extent.state == ExtentState::Unwritten,
            birth: extent.birth,
        }
    }
}
