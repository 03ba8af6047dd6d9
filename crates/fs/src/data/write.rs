//! Writing through the extent map.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::cached::is_behind;
use super::delayed::MayWait;
use super::{Alone, DataPath, Held};
use crate::lock::Sharing;
use crate::mode::{OpenClass, Service};
use crate::{Error, ErrorKind, InodeLockSetting, Reason, Result, Timestamp};
use bedplate_store::{ExtentMap, Grid, Piece};

/// Bytes on their way to a file.
#[derive(Clone, Copy)]
pub(super) struct Payload<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) offset: u64,
    /// The file does not grow beyond this, whatever is written: bytes beyond it are padding of the
    /// last sector.
    pub(super) size_max: u64,
    /// It waited in memory, and was counted when it came.
    pub(super) was_held: bool,
    /// It goes to new blocks, also where it could be written in place (`data/renew.rs`).
    pub(super) renews: bool,
    /// It is of a caller that caches.
    pub(super) is_cached: bool,
}

impl<'a> Payload<'a> {
    /// Checks that a write ends within the largest file.
    #[inline]
    pub(super) fn new(bytes: &'a [u8], offset: u64) -> Result<Self> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= Grid::FILE_BYTES_MAX);
        if end.is_none() {
            return Err(too_large(offset, bytes.len() as u64));
        }
        Ok(Self { was_held: false, ..Self::waited(bytes, offset) })
    }

    /// What was taken before and waited in memory.
    pub(super) fn waited(bytes: &'a [u8], offset: u64) -> Self {
        let size_max = u64::MAX;
        Self { bytes, offset, size_max, was_held: true, renews: false, is_cached: false }
    }

    /// Returns whether nothing but a sync says that it is on the device.
    pub(super) fn waits_for_sync(&self) -> bool {
        self.was_held || self.is_cached || is_behind()
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.end()
    }

    /// Returns the size of a file of `size` bytes after this write.
    pub(super) fn size_after(&self, size: u64) -> u64 {
        debug_assert!(
            self.end() <= Grid::FILE_BYTES_MAX,
            "a write ends before the largest file: {}",
            self.end()
        );
        size.max(self.end().min(self.size_max))
    }

    /// Returns the bytes that go to a part of the range.
    pub(super) fn part(&self, range: &Range<u64>) -> &'a [u8] {
        debug_assert!(
            self.offset <= range.start && range.start <= range.end && range.end <= self.end(),
            "a part of a write lies in it: {range:?} of {:?}",
            self.range()
        );
        &self.bytes[(range.start - self.offset) as usize..(range.end - self.offset) as usize]
    }

    /// Returns whether the device takes it as it is.
    pub(super) fn is_aligned(&self, grid: &Grid) -> bool {
        grid.takes_at(self.bytes, self.offset)
    }
}

pub(super) fn too_large(offset: u64, len: u64) -> Error {
    let max = Grid::FILE_BYTES_MAX;
    Error::new(
        ErrorKind::TooLarge,
        format!("{len} bytes from byte {offset} pass the largest file of {max} bytes"),
    )
}

/// How an aligned write is to be carried out.
pub(super) enum WriteStrategy {
    /// Every block is written: straight to these device ranges.
    InPlace(Vec<Piece>),
    /// Blocks of this range of file blocks must be filled, all of them wholly.
    Fill(Range<u64>),
    /// Needs the exclusive lock.
    Exclusive,
}

impl DataPath<'_> {
    /// Writes as the file is served, at `offset` or at the end of the file; returns where. Counts.
    /// Where the volume is full it fails with no lock held, so that the caller can make room and
    /// try again. `may_wait`: the write may wait in memory (`data/delayed.rs`).
    pub(crate) fn write(
        self,
        class: OpenClass,
        bytes: &[u8],
        offset: Option<u64>,
        may_wait: MayWait,
    ) -> Result<u64> {
        if bytes.is_empty() {
            return Ok(offset.unwrap_or_else(|| self.inode.seen_size()));
        }
        let at = match self.write_plainly(bytes, offset, may_wait)? {
            Some(at) => at,
            None => self.write_served(class, bytes, offset, may_wait)?,
        };
        self.count_write(bytes.len());
        Ok(at)
    }

    /// Writes whole sectors over one extent of the file's own where nothing else asks for anything
    /// (I-SLO-1); `None`, and nothing is written, elsewhere.
    #[inline]
    fn write_plainly(
        self,
        bytes: &[u8],
        offset: Option<u64>,
        may_wait: MayWait,
    ) -> Result<Option<u64>> {
        let steady = &self.state().steady;
        let Some(offset) = offset.filter(|_| steady.writes_plainly()) else { return Ok(None) };
        if matches!(may_wait, MayWait::Stream) || !self.fs.grid().takes_at(bytes, offset) {
            return Ok(None);
        }
        let Some(end) = offset.checked_add(bytes.len() as u64) else { return Ok(None) };
        if end > self.inode.size.load(Ordering::Acquire) {
            // It does not wait for the lock here: it may be written with others (`combined.rs`).
            return Ok(None);
        }
        let _held = self.state().lock.shared(self.fs);
        let Some(at) = self.find_owned(offset, bytes.len() as u64)? else { return Ok(None) };
        // Both after the lookup: it loads the size with the map, and a record that vouches for
        // bytes has set its bit before they can be found.
        if end > self.state().logged_size() || !steady.writes_plainly() {
            return Ok(None);
        }
        debug_assert!(self.service().is_plain(), "I-SLO-1: the service is one of the causes");
        self.need_writable();
        let written = self.fs.write_device(bytes, at);
        if steady.met_windows() {
            self.state().read_windows.wrote(&(at..at + bytes.len() as u64));
        }
        written?;
        self.wrote_in_place();
        Ok(Some(offset))
    }

    /// As [`write`](Self::write), the way that the file's service asks for.
    #[inline(never)]
    fn write_served(
        self,
        class: OpenClass,
        bytes: &[u8],
        offset: Option<u64>,
        may_wait: MayWait,
    ) -> Result<u64> {
        self.take_overwrites()?;
        loop {
            let way = if self.service().uses_library_cache() {
                self.write_cached(class, bytes, offset, may_wait)
            } else {
                self.write_direct(class, bytes, offset, may_wait)
            };
            match way {
                Ok(Some(at)) => return Ok(at),
                // The service changed in between.
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn write_direct(
        self,
        class: OpenClass,
        bytes: &[u8],
        offset: Option<u64>,
        may_wait: MayWait,
    ) -> Result<Option<u64>> {
        let mut joined = None;
        if let Some(offset) = offset {
            let data = Payload::new(bytes, offset)?;
            if !self.grows_in_a_block(&data, may_wait) {
                let held = self.state().lock.shared(self.fs);
                let service = self.service();
                if service.uses_library_cache() {
                    return Ok(None);
                }
                self.count_mixed(service, class);
                let _range = service.locks_ranges().then(|| {
                    let range = self.locked_range(&data);
                    self.state().ranges.lock(range, Sharing::Exclusive, self.fs)
                });
                if self.delay_or_write(&held, service, &data, may_wait)? {
                    return Ok(Some(offset));
                }
            }
            joined = self.join(&data, may_wait);
        }
        let held = self.state().lock.exclusive(self.fs);
        if joined.as_ref().is_some_and(|joined| joined.is_done(&held)) {
            return Ok(offset);
        }
        let service = self.service();
        if service.uses_library_cache() {
            return Ok(None);
        }
        if joined.is_some_and(|joined| self.write_combined(&held, &joined, service)) {
            return Ok(offset);
        }
        self.write_alone(&held, bytes, offset, service, may_wait).map(Some)
    }

    /// Writes a part of a block, or what moves the end, with the file alone; returns where.
    pub(super) fn write_alone(
        self,
        held: &Alone<'_>,
        bytes: &[u8],
        offset: Option<u64>,
        service: Service,
        may_wait: MayWait,
    ) -> Result<u64> {
        if !self.spares_appends(offset, bytes.len() as u64) {
            // Before the end of the file is looked at.
            self.end_tail(held)?;
        }
        let at = offset.unwrap_or_else(|| self.inode.size.load(Ordering::Acquire));
        if Payload::new(bytes, at)?.is_aligned(self.fs.grid()) {
            self.end_odd_writes(held);
        }
        self.hold_or_write(held, Payload::new(bytes, at)?, service, may_wait)?;
        Ok(at)
    }

    /// Delays a write under the shared inode lock where it may be, and writes it otherwise; `false`
    /// when that needs the exclusive one.
    #[inline]
    fn delay_or_write(
        self,
        held: &Held<'_>,
        service: Service,
        data: &Payload<'_>,
        may_wait: MayWait,
    ) -> Result<bool> {
        if !self.may_delay(may_wait, service, data) {
            return self.write_shared(held, data);
        }
        // What a write before could not write, this one tells before anything of it is taken.
        if self.owes_pieces() {
            return Ok(false);
        }
        if self.delay(data, may_wait)? {
            self.pass_full_pieces(held);
            return Ok(true);
        }
        self.write_shared(held, data)
    }

    /// Writes past the cache whatever the file's service is: for the cache itself.
    pub(super) fn write_uncached(self, data: Payload<'_>) -> Result<()> {
        if self.may_write_anew(&data) || !self.write_beside_others(&data)? {
            let held = self.state().lock.exclusive(self.fs);
            self.write_delayed(&held)?;
            self.write_exclusive(&held, data)?;
        }
        Ok(())
    }

    /// Writes under the shared inode lock; `false` when that needs the exclusive one, or spares it a
    /// seal.
    fn write_beside_others(self, data: &Payload<'_>) -> Result<bool> {
        let held = self.state().lock.shared(self.fs);
        if self.is_better_carried(data)? {
            return Ok(false);
        }
        self.write_shared(&held, data)
    }

    /// What a `direct` writer locks.
    pub(super) fn locked_range(self, data: &Payload<'_>) -> Range<u64> {
        match self.fs.options().inode_lock {
            InodeLockSetting::Range => data.range(),
            InodeLockSetting::Whole => 0..u64::MAX,
        }
    }

    #[inline]
    pub(crate) fn count_write(self, bytes: usize) {
        self.state().steady.io_counters.count_write(bytes);
    }

    /// Writes under the shared inode lock; `false` when that needs the exclusive one (nothing was
    /// written then).
    #[inline]
    pub(super) fn write_shared(self, held: &Held<'_>, data: &Payload<'_>) -> Result<bool> {
        let grid = self.fs.grid();
        if !data.is_aligned(grid)
            || self.state().held_write.overlaps(&data.range(), grid.sector)
            || self.meets_delayed(&data.range())
            || self.meets_odd_writes()
        {
            return Ok(false);
        }
        match self.find_owned(data.offset, data.bytes.len() as u64)? {
            // The size after the lookup, which loads it with the map.
            Some(at) if data.end().min(data.size_max) <= self.state().logged_size() => {
                self.overwrite(data.bytes, at)?;
                self.wrote_in_place();
                self.refresh_lease();
                Ok(true)
            }
            _ => self.write_elsewhere(held, *data),
        }
    }

    /// As [`write_shared`](Self::write_shared), of what is aligned and does not lie in one extent
    /// that may be written in place.
    #[inline(never)]
    fn write_elsewhere(self, held: &Held<'_>, data: Payload<'_>) -> Result<bool> {
        let logged = self.state().logged_size();
        if data.size_after(logged) > logged && (self.state().delayed.any() || self.has_tail()) {
            // The end that it moves is in memory, or another process moves it.
            return Ok(false);
        }
        if data.size_after(logged) == logged
            && let Some(at) = self.find_untorn(data.offset, data.bytes.len() as u64)?
        {
            self.overwrite(data.bytes, at)?;
            self.wrote_in_place();
            return Ok(true);
        }
        match self.plan_write(&data)? {
            WriteStrategy::InPlace(pieces) => {
                self.inode.counters.reason(Reason::Split);
                self.overwrite_pieces(&pieces, data)?;
                self.wrote_in_place();
            }
            WriteStrategy::Fill(blocks) => return self.fill(held, data, blocks),
            WriteStrategy::Exclusive => return Ok(false),
        }
        Ok(true)
    }

    /// Decides how a write that does not simply lie in one written extent is carried out.
    pub(super) fn plan_write(self, data: &Payload<'_>) -> Result<WriteStrategy> {
        let grid = self.fs.grid();
        if self.has_too_many_sums(&data.range()) {
            return Ok(WriteStrategy::Exclusive);
        }
        let blocks = grid.blocks(&data.range());
        let logged = self.state().logged_size();
        let map = self.map(self.with_end(&blocks, data.size_after(logged)))?;
        // It may have grown meanwhile; then the end lies among these blocks.
        let logged = self.state().logged_size();
        Ok(plan(self.pieces_to_write(&map, blocks).0, &map, grid, data, logged))
    }

    /// Writes bytes at a device offset where the file has data.
    #[inline]
    pub(super) fn overwrite(self, bytes: &[u8], at: u64) -> Result<()> {
        self.need_writable();
        let range = at..at + bytes.len() as u64;
        self.fs.permit_overwrite(&self.state().unsealed, &range)?;
        let state = self.state();
        state.held_sectors.forget(&range);
        let _write = state.read_windows.begin_write(range);
        self.fs.write_device(bytes, at)
    }

    /// States what holds when bytes of the file are written in place.
    #[inline]
    fn need_writable(self) {
        debug_assert!(
            self.state().lock.is_held(),
            "I-IO-1: the lock is held from the lookup to the end of the write"
        );
        debug_assert!(
            !self.fs.is_past(self.inode.ino),
            "I-CKP-5: nothing of a checkpoint is written"
        );
    }

    pub(super) fn overwrite_pieces(self, pieces: &[Piece], data: Payload<'_>) -> Result<()> {
        let grid = self.fs.grid();
        for piece in pieces {
            let start = piece.written().expect("the way in place was planned for written pieces");
            let part = piece.bytes(grid, &data.range());
            self.overwrite(
                data.part(&part),
                grid.start_of(start.0) + (part.start - grid.start_of(piece.file_block)),
            )?;
        }
        Ok(())
    }

    /// Notes the time of a write that changed no metadata; the row follows with the next sync of
    /// everything or of this file.
    #[expect(
        clippy::inline_always,
        reason = "a fifth of what it does for a write would be the call"
    )]
    #[inline(always)]
    pub(super) fn wrote_in_place(self) {
        if !is_behind() {
            self.inode.note_mtime(Timestamp::now());
            self.fs.list_lazy(self.inode);
        }
    }
}

/// Decides how an aligned write is carried out.
fn plan(
    pieces: Vec<Piece>,
    map: &ExtentMap,
    grid: &Grid,
    data: &Payload<'_>,
    logged: u64,
) -> WriteStrategy {
    let extends = data.size_after(logged) > logged;
    let unfilled = |piece: &&Piece| piece.written().is_none();
    let (Some(first), Some(last)) = (pieces.iter().find(unfilled), pieces.iter().rfind(unfilled))
    else {
        return if extends { WriteStrategy::Exclusive } else { WriteStrategy::InPlace(pieces) };
    };
    let blocks = first.file_block..last.file_block + last.blocks;
    let wholly =
        grid.start_of(blocks.start) >= data.offset && grid.start_of(blocks.end) <= data.end();
    if wholly && (!extends || extends_cleanly(map, grid, data, logged)) {
        WriteStrategy::Fill(blocks)
    } else {
        WriteStrategy::Exclusive
    }
}

/// I-IO-5: the new end lies on a block, and the old one in no written block.
fn extends_cleanly(map: &ExtentMap, grid: &Grid, data: &Payload<'_>, logged: u64) -> bool {
    let tail_written =
        || map.holding(grid.block_of(logged)).is_some_and(|(_, extent)| extent.state.has_data());
    grid.on_block(data.size_after(logged)) && (grid.on_block(logged) || !tail_written())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockNo, Epoch, FileBlock};
    use bedplate_store::{Extent, ExtentState};

    fn grid() -> Grid {
        Grid::new(4096, 512, 1)
    }

    /// Blocks 0 and 1 written, 2 and 3 unwritten.
    fn map() -> ExtentMap {
        let extent =
            |start, state| Extent { start: BlockNo(start), blocks: 2, state, birth: Epoch(1) };
        ExtentMap::from_rows([
            (FileBlock(0), extent(100, ExtentState::Written)),
            (FileBlock(2), extent(200, ExtentState::Unwritten)),
        ])
        .unwrap()
    }

    fn way(offset: u64, len: usize, logged: u64) -> &'static str {
        let bytes = vec![0; len];
        let data = Payload::new(&bytes, offset).unwrap();
        let pieces = map().pieces(grid().blocks(&data.range())).collect();
        match plan(pieces, &map(), &grid(), &data, logged) {
            WriteStrategy::InPlace(_) => "in place",
            WriteStrategy::Fill(_) => "fill",
            WriteStrategy::Exclusive => "exclusive",
        }
    }

    #[test]
    fn the_way_of_a_write_follows_from_the_map_and_the_size() {
        assert_eq!(way(512, 1024, 16384), "in place");
        assert_eq!(way(4096, 8192, 16384), "fill", "from a written into an unwritten block");
        assert_eq!(way(4096, 4608, 16384), "exclusive", "ends within an unwritten block");
        assert_eq!(way(8704, 3584, 16384), "exclusive", "begins within an unwritten block");
        assert_eq!(way(16384, 4096, 16384), "fill", "an append that begins and ends on a block");
        assert_eq!(way(16384, 512, 16384), "exclusive", "an append that leaves a written tail");
        assert_eq!(way(4096, 4096, 5000), "exclusive", "moves the end within a written block");
        assert_eq!(way(16384, 4096, 5000), "exclusive", "leaves a gap in a written tail");
        assert_eq!(way(16384, 4096, 9000), "fill", "the gap begins in an unwritten block");
        assert_eq!(way(0, 4096, 4096), "in place");
    }

    #[test]
    fn a_write_past_the_largest_file_is_refused() {
        for (offset, len) in [(Grid::FILE_BYTES_MAX, 1), (u64::MAX, 1), (u64::MAX - 1, 4)] {
            assert_eq!(
                Payload::new(&vec![0; len], offset).map(drop).unwrap_err().kind,
                ErrorKind::TooLarge
            );
        }
        assert!(Payload::new(&[1], Grid::FILE_BYTES_MAX - 1).is_ok());
    }
}
