//! The extent map's way into memory, and its changes as row changes.

use std::ops::{Bound, ControlFlow, Range};
use std::sync::Arc;

use bedplate_block::sync::{
    MappedRwLockReadGuard, MappedRwLockWriteGuard, RwLockReadGuard, RwLockWriteGuard,
};

use super::DataPath;
use crate::{Error, FileBlock, Result};
use bedplate_store::{
    Extent, ExtentChange, ExtentMap, ExtentRow, Grid, PlantedBug, RowChange, Run, Table,
    extent_key, file_block, planted,
};

/// A closed file's map stays in memory up to this many parts.
const PARTS_KEPT: usize = 16;

/// How many extents before a block are read with it, of a part of four times as many at least.
const EXTENTS_BEFORE: usize = 32;

impl<'a> DataPath<'a> {
    /// Locks the extent map to read it; a range of file blocks is in memory.
    #[inline]
    pub(crate) fn map(self, range: Range<u64>) -> Result<MappedRwLockReadGuard<'a, ExtentMap>> {
        match self.state().map_if_loaded() {
            Some(map) if map.has(&range) => Ok(map),
            map => {
                drop(map);
                self.map_once_read(range)
            }
        }
    }

    #[cold]
    fn map_once_read(self, range: Range<u64>) -> Result<MappedRwLockReadGuard<'a, ExtentMap>> {
        let place = self.place_of_map(range)?;
        // Not let go of in between: nothing of the range leaves memory.
        let place = RwLockWriteGuard::map(place, parking_lot::RwLockWriteGuard::downgrade);
        Ok(RwLockReadGuard::map(place, |map| {
            parking_lot::RwLockReadGuard::map(map, |map| map.as_ref().expect("it was just begun"))
        }))
    }

    /// Locks the extent map to change it; a range of file blocks is in memory.
    pub(super) fn map_mut(
        self,
        range: Range<u64>,
    ) -> Result<MappedRwLockWriteGuard<'a, ExtentMap>> {
        Ok(RwLockWriteGuard::map(self.place_of_map(range)?, |map| {
            parking_lot::RwLockWriteGuard::map(map, |map| map.as_mut().expect("it was just begun"))
        }))
    }

    /// Locks the place of the map alone, with a range of file blocks in memory.
    fn place_of_map(self, range: Range<u64>) -> Result<RwLockWriteGuard<'a, Option<ExtentMap>>> {
        self.fs.trim_maps();
        let mut place = self.state().map_place();
        if place.is_none() {
            *place = Some(self.begin_map()?);
            self.begin_imaged();
            self.state().set_logged_size(self.inode.attr_lock().row.size);
        }
        let map = place.as_mut().expect("it was just begun");
        while let Some(block) = map.first_absent(&range) {
            self.read_part(map, block)?;
        }
        Ok(place)
    }

    /// The mistake of a map that lets go of a part that has changed and reads it again while the rows
    /// have not (I-MAP-1).
    #[cold]
    pub(super) fn read_again_too_early(
        self,
        map: &mut ExtentMap,
        range: &Range<u64>,
    ) -> Result<()> {
        // A part takes three passes to leave memory.
        for _ in 0..3 {
            map.sweep(usize::MAX, || true, |_, _| ());
        }
        while let Some(block) = map.first_absent(range) {
            self.read_part(map, block)?;
        }
        Ok(())
    }

    fn begin_map(self) -> Result<ExtentMap> {
        let attr = self.inode.attr_lock();
        let (size, blocks) = (attr.row.size, attr.row.blocks);
        if size > Grid::FILE_BYTES_MAX {
            return Err(self.too_far(size, 0));
        }
        Ok(self.fs.maps().begin(ExtentMap::absent(blocks)))
    }

    fn too_far(self, size: u64, end: u64) -> Error {
        let ino = self.inode.ino.0;
        Error::corrupt(format!(
            "inode {ino} has {size} bytes and extents up to file block {end}, more than any file \
             can have; run a check"
        ))
    }

    /// Reads the part around a block that is absent from the rows (I-EXT-3): from an extent that
    /// begins at the block or before it, or from what is in memory before it, up to the beginning of
    /// another or to what is in memory behind it.
    fn read_part(self, map: &mut ExtentMap, block: u64) -> Result<()> {
        let gap = map.gap(block);
        let extents_max = self.fs.maps().extents_of_part();
        let start = self.part_start(&gap, block, EXTENTS_BEFORE.min(extents_max / 4).max(1))?;
        let (rows, end) = self.rows_within(start..gap.end, extents_max)?;
        debug_assert!(
            start <= block && block < end,
            "I-EXT-3: a part that is read has the block that was asked for: {block}, {start}..{end}"
        );
        let end = if planted(PlantedBug::PartTooLong) { gap.end } else { end };
        let reach = rows.last().map_or(0, |(at, it)| at.0.saturating_add(it.blocks.into()));
        if reach > self.fs.grid().block_of(Grid::FILE_BYTES_MAX) {
            return Err(self.too_far(self.inode.attr_lock().row.size, reach));
        }
        self.fs.maps().count_miss();
        map.learn(start..end, rows).map_err(|at| {
            Error::corrupt(format!(
                "the extent of inode {} at file block {} overlaps another or passes the end; run a \
                 check",
                self.inode.ino.0, at.0
            ))
        })
    }

    /// Returns where a part begins that has a block of a gap, and up to `count` extents that begin
    /// there or before.
    fn part_start(self, gap: &Range<u64>, block: u64, count: usize) -> Result<u64> {
        if planted(PlantedBug::PartBeginsLate) {
            return Ok(block);
        }
        let (mut start, mut found) = (gap.start, 0);
        let keys = (gap.start.to_be_bytes(), block.to_be_bytes());
        let ino = self.inode.ino;
        self.fs.rows_back_of(Table::Extent, ino, (&keys.0, &keys.1), |at, _| {
            found += 1;
            if found < count {
                return Ok(ControlFlow::Continue(()));
            }
            start = file_block(ino, at)?.0;
            Ok(ControlFlow::Break(()))
        })?;
        Ok(start)
    }

    /// Reads the first extents that begin in a range, `count` at most; returns also where the next
    /// one begins, or the range's end.
    fn rows_within(
        self,
        range: Range<u64>,
        count: usize,
    ) -> Result<(Vec<(FileBlock, Extent)>, u64)> {
        let (mut rows, mut end) = (Vec::new(), range.end);
        self.extents_of(range.start, |at, extent| {
            if at.0 >= range.end {
                return Ok(ControlFlow::Break(()));
            }
            if rows.len() == count {
                end = at.0;
                return Ok(ControlFlow::Break(()));
            }
            rows.push((at, extent));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok((rows, end))
    }

    /// Returns whether extents are what the rows have of a range, or these cannot be read.
    pub(super) fn is_as_rows(self, range: &Range<u64>, extents: &[(u64, Extent)]) -> bool {
        let loaded = self.fs.loaded_inode(self.inode.ino);
        let is_same = |rows: Vec<(FileBlock, Extent)>| {
            rows.into_iter().map(|(at, it)| (at.0, it)).eq(extents.iter().copied())
        };
        // One that was removed by a rollback has no rows any more, and no use.
        !loaded.is_some_and(|loaded| Arc::ptr_eq(&loaded, self.inode))
            || self.rows_within(range.clone(), usize::MAX).map_or(true, |(rows, _)| is_same(rows))
    }

    /// Visits the extents that begin at a block or behind it, as the rows have them.
    pub(super) fn extents_of(
        self,
        from: u64,
        mut visit: impl FnMut(FileBlock, Extent) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let ino = self.inode.ino;
        let from = from.to_be_bytes();
        self.fs.rows_of(Table::Extent, ino, Bound::Included(&from), |at, value| {
            let (at, extent) = (file_block(ino, at)?, decode(ExtentRow::decode(value)?));
            let run = Run { start: extent.start, blocks: extent.blocks.into() };
            if !self.fs.may_hold_data(run) {
                return Err(Error::corrupt(format!(
                    "the extent of inode {} at file block {} lies in blocks {}+{}, outside the \
                     volume or in a region of the volume itself; run a check",
                    ino.0, at.0, run.start.0, run.blocks
                )));
            }
            visit(at, extent)
        })
    }

    /// Returns blocks with the one in which the file ends, where the end moves to `size`: what moves
    /// it looks at both.
    pub(super) fn with_end(self, blocks: &Range<u64>, size: u64) -> Range<u64> {
        let logged = self.state().logged_size();
        if size <= logged {
            return blocks.clone();
        }
        let tail = self.fs.grid().block_of(logged);
        if blocks.is_empty() {
            return tail..tail + 1;
        }
        blocks.start.min(tail)..blocks.end.max(tail + 1)
    }

    /// Visits the map over a range, one stretch after another, each of which is in memory while it
    /// is visited. No extent passes the bounds of a stretch.
    pub(super) fn walk<T>(
        self,
        range: Range<u64>,
        mut visit: impl FnMut(&ExtentMap, Range<u64>) -> ControlFlow<T>,
    ) -> Result<Option<T>> {
        let mut at = range.start;
        while at < range.end {
            let map = self.map(at..at + 1)?;
            let end = map.first_absent(&(at..range.end)).unwrap_or(range.end);
            if let ControlFlow::Break(found) = visit(&map, at..end) {
                return Ok(Some(found));
            }
            at = end;
        }
        Ok(None)
    }

    /// Takes the map of a file that is not open out of memory where it is large; the rows hold the
    /// same.
    pub(super) fn unload_map(self) {
        let mut map = self.state().map_place();
        if map.as_ref().is_some_and(|map| map.part_count() > PARTS_KEPT) {
            *map = None;
        }
    }

    /// Returns extent changes as row changes.
    pub(super) fn rows(self, changes: &[ExtentChange]) -> Vec<RowChange> {
        let key = |at: FileBlock| extent_key(self.inode.ino, at);
        let row = |change: &ExtentChange| match *change {
            ExtentChange::Put(at, extent) => {
                RowChange::put(Table::Extent, key(at), encode(extent).encode())
            }
            ExtentChange::Delete(at) => RowChange::delete(Table::Extent, key(at)),
        };
        // Room for the inode's row.
        let mut rows = Vec::with_capacity(changes.len() + 1);
        rows.extend(changes.iter().map(row));
        rows
    }
}

fn decode(row: ExtentRow) -> Extent {
    Extent { start: row.start, blocks: row.len, state: row.state, birth: row.birth }
}

pub(super) fn encode(extent: Extent) -> ExtentRow {
    debug_assert!(extent.blocks > 0, "I-EXT-1: the row of an extent covers a block: {extent:?}");
    ExtentRow { start: extent.start, len: extent.blocks, state: extent.state, birth: extent.birth }
}
