//! Moving the end of a file, and freeing what lies beyond it.
//!
//! Blocks are freed from the end in bounded records. The first record shrinks the size; while
//! blocks beyond the new end remain, an orphan row says so, and recovery goes on from there.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::commit_map::{Change, Mark, SizeChange};
use super::write::too_large;
use super::{Alone, DataPath};
use crate::Result;
use crate::engine::{Engine, Listed};
use crate::inode::Inode;
use crate::lock::Changing;
use bedplate_store::{ExtentMap, Grid, PlantedBug, RecordKind, Table, file_block, planted};

/// A truncation of a file with dirty pages: those beyond the new end are gone before its
/// first record is there, so a sync that finds nothing to write waits for the end of it (S-1, S-2).
struct TruncationUnderWay<'a> {
    fs: &'a Engine,
    inode: &'a Arc<Inode>,
}

impl<'a> TruncationUnderWay<'a> {
    fn begin(fs: &'a Engine, inode: &'a Arc<Inode>) -> Self {
        inode.data.truncating.store(true, Ordering::SeqCst);
        fs.list(Listed::Truncated, inode);
        Self { fs, inode }
    }
}

impl Drop for TruncationUnderWay<'_> {
    fn drop(&mut self) {
        debug_assert!(
            self.inode.data.truncating.load(Ordering::SeqCst),
            "what ends has begun: one truncation of inode {} at a time",
            self.inode.ino.0
        );
        self.fs.unlist(Listed::Truncated, self.inode.ino, &Arc::downgrade(self.inode));
        self.inode.data.truncating.store(false, Ordering::SeqCst);
    }
}

/// Begins a change of a file's size: one that frees blocks goes on where the metadata has no room
/// to grow.
pub(crate) fn begin_set_size(fs: &Engine, inode: &Inode, size: u64) -> Result<()> {
    if size < inode.size.load(Ordering::Acquire) { fs.begin_removal() } else { fs.begin_change() }
}

/// Cuts or extends (with a hole).
pub(crate) fn set_size(
    _changing: &Changing<'_>,
    fs: &Engine,
    inode: &Arc<Inode>,
    size: u64,
) -> Result<()> {
    if size > Grid::FILE_BYTES_MAX {
        return Err(too_large(0, size));
    }
    let io = DataPath::new(fs, inode);
    let _order = io.state().order.exclusive(fs);
    // Read before the cache forgets what lies beyond: it may fail.
    io.read_map_beyond(size)?;
    let before = inode.size.load(Ordering::Acquire);
    let cached = io.cached_if_any();
    // The order lock keeps more from becoming dirty.
    let _under_way = cached
        .filter(|cached| cached.dirty_bytes() > 0)
        .map(|_| TruncationUnderWay::begin(fs, inode));
    let _change = cached.map(|cached| cached.begin_truncate(size));
    let held = io.state().lock.exclusive(fs);
    let moved = io.write_held_write(&held).and_then(|()| {
        if size < io.state().logged_size() { io.shrink(&held, size) } else { io.grow(&held, size) }
    });
    if moved.is_err() && size > before {
        // The cache has announced an end that the log will never hear of; it did hear of a tail's.
        let size = before.max(io.state().logged_size());
        inode.size.store(size, Ordering::Release);
        if let Some(cached) = cached {
            cached.end_moved_back(size);
        }
    }
    moved
}

/// Frees every extent of an inode without names and pins, in bounded records; drops its cached
/// pages.
pub(crate) fn free_all(_changing: &Changing<'_>, fs: &Engine, inode: &Arc<Inode>) -> Result<()> {
    let io = DataPath::new(fs, inode);
    if let Some(cached) = io.cached_if_any() {
        cached.drop_all();
    }
    let held = io.state().lock.exclusive(fs);
    io.drop_held_write(&held);
    fs.drop_ahead(inode.ino);
    io.forget_reserved(&(0..u64::MAX));
    drop(io.map(0..0)?);
    if !io.has_extents()? {
        return Ok(());
    }
    io.free_beyond(&held, 0, Mark::None)
}

/// Goes on with a truncation that a crash interrupted (the inode has an orphan row and still a
/// name); removes the orphan row at the end.
pub(crate) fn resume_truncate(
    _changing: &Changing<'_>,
    fs: &Engine,
    inode: &Arc<Inode>,
) -> Result<()> {
    let io = DataPath::new(fs, inode);
    let held = io.state().lock.exclusive(fs);
    drop(io.map(0..0)?);
    let floor = fs.grid().block_after(io.state().logged_size());
    io.free_beyond(&held, floor, Mark::End)
}

/// Returns where the last `count` extents of a range of file blocks begin, as many as one record
/// frees, and whether others remain before them.
fn tail_of(map: &ExtentMap, range: &Range<u64>, count: usize) -> (u64, bool) {
    let from = map.tail_start(range, count);
    let remains = map.before(from).is_some_and(|(at, extent)| {
        from > range.start && at.0 + u64::from(extent.blocks) > range.start
    });
    debug_assert!(
        from >= range.start,
        "I-CHG-2: a part of a truncation lies in it: {from} in {range:?}"
    );
    (from, remains)
}

impl DataPath<'_> {
    /// Waits for a truncation that has taken dirty pages out of the cache; called once the rest of
    /// them is written, and with no lock of the file held.
    pub(super) fn wait_for_truncation(self) {
        if self.state().truncating.load(Ordering::SeqCst)
            && !planted(PlantedBug::SyncPassesTruncation)
        {
            drop(self.state().order.shared(self.fs));
        }
    }

    pub(super) fn grow(self, held: &Alone<'_>, size: u64) -> Result<()> {
        debug_assert!(
            size >= self.state().logged_size(),
            "a file grows from {} to {size}",
            self.state().logged_size()
        );
        let exposing = self.zero_tail(held, size)?;
        let change = Change::new(RecordKind::Truncate, SizeChange::Set(size)).exposing(exposing);
        self.commit_map(change, 0..0, |_| Vec::new()).map(drop)
    }

    fn shrink(self, held: &Alone<'_>, size: u64) -> Result<()> {
        debug_assert!(
            size < self.state().logged_size(),
            "a file shrinks from {} to {size}",
            self.state().logged_size()
        );
        self.fs.drop_ahead(self.inode.ino);
        let floor = self.fs.grid().block_after(size);
        self.forget_reserved(&(floor..u64::MAX));
        let (from, remains) = self.tail(&(floor..u64::MAX))?;
        let mark = if remains { Mark::Begin } else { Mark::None };
        let change = Change::new(RecordKind::Truncate, SizeChange::Set(size)).marked(mark);
        self.commit_map(change, from..u64::MAX, |map| map.plan_remove(from..u64::MAX))?;
        if !remains {
            return Ok(());
        }
        self.between_records(Mark::End)?;
        self.free_beyond(held, floor, Mark::End)
    }

    /// The part of a range that the next record frees, as [`tail_of`] says.
    pub(super) fn tail(self, range: &Range<u64>) -> Result<(u64, bool)> {
        let count = self.fs.limits().extents_per_record;
        let map = self.map(range.start..range.start.saturating_add(1))?;
        if map.has(range) {
            return Ok(tail_of(&map, range, count));
        }
        let begins_before = map.holding(range.start).is_some_and(|(at, _)| at.0 < range.start);
        drop(map);
        let (mut from, mut found) = (range.start, 0);
        let keys = (range.start.to_be_bytes(), (range.end - 1).to_be_bytes());
        self.fs.rows_back_of(Table::Extent, self.inode.ino, (&keys.0, &keys.1), |at, _| {
            found += 1;
            if found == count {
                from = file_block(self.inode.ino, at)?.0;
            }
            Ok(if found > count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok((from, found > count || (from > range.start && begins_before)))
    }

    /// Returns whether the file has an extent, as its rows say.
    fn has_extents(self) -> Result<bool> {
        let mut any = false;
        self.extents_of(0, |_, _| {
            any = true;
            Ok(ControlFlow::Break(()))
        })?;
        Ok(any)
    }

    /// Reads what the first record of a truncation to `size` looks at.
    fn read_map_beyond(self, size: u64) -> Result<()> {
        let grid = self.fs.grid();
        drop(self.map(grid.blocks(&(size..size + 1)))?);
        if size < self.state().logged_size() {
            let (from, _) = self.tail(&(grid.block_after(size)..u64::MAX))?;
            drop(self.map(ExtentMap::around(&(from..u64::MAX)))?);
        }
        Ok(())
    }

    /// Frees what is mapped from file block `floor` on; `last_mark` goes with the last record.
    fn free_beyond(self, _held: &Alone<'_>, floor: u64, last_mark: Mark) -> Result<()> {
        loop {
            let (from, remains) = self.tail(&(floor..u64::MAX))?;
            let mark = if remains { Mark::None } else { last_mark };
            let change = Change {
                touches: false,
                ..Change::new(RecordKind::Truncate, SizeChange::Keep).marked(mark)
            };
            self.commit_map(change, from..u64::MAX, |map| map.plan_remove(from..u64::MAX))?;
            if !remains {
                return Ok(());
            }
            self.between_records(last_mark)?;
        }
    }

    /// Stands between two records of a truncation or, with no mark to come, of a reclaim. The
    /// metadata may outgrow its bounds here; the locks that are held do not stand in the way of a
    /// metadata commit.
    fn between_records(self, last_mark: Mark) -> Result<()> {
        let what = if last_mark == Mark::None { "reclaim" } else { "truncate" };
        assert!(
            last_mark == Mark::End || self.inode.names() == 0,
            "I-CHG-2: inode {} has a name and loses its blocks",
            self.inode.ino.0
        );
        self.fs.limits().between_records(what);
        self.fs.begin_removal()
    }
}

impl Engine {
    /// Waits for the truncations that have taken dirty pages out of the cache.
    pub(crate) fn wait_for_truncations(&self) {
        for inode in self.listed(Listed::Truncated) {
            DataPath::new(self, &inode).wait_for_truncation();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockNo, Epoch, FileBlock};
    use bedplate_store::freed_by;
    use bedplate_store::{Extent, ExtentState};

    #[test]
    fn a_long_tail_is_freed_in_bounded_parts() {
        let extent = |i: u64| Extent {
            start: BlockNo(10_000 - i * 3),
            blocks: 1,
            state: ExtentState::Written,
            birth: Epoch(1),
        };
        let mut map = ExtentMap::from_rows((0..2500).map(|i| (FileBlock(i), extent(i)))).unwrap();
        let mut parts = Vec::new();
        loop {
            let (from, remains) = tail_of(&map, &(100..u64::MAX), 1024);
            let plan = map.plan_remove(from..u64::MAX);
            let old = map.apply(&plan);
            parts.push(freed_by(&plan, &old).len());
            if !remains {
                break;
            }
        }
        assert_eq!(parts, [1024, 1024, 352]);
        assert_eq!(map.end(), 100);
    }
}
