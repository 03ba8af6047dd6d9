//! Reading through the extent map.

use std::sync::atomic::Ordering;

use super::bounce::Bounce;
use super::lookup::Located;
use super::windows::Ahead;
use super::{DataPath, Held};
use crate::lock::Sharing;
use crate::mode::{OpenClass, Service};
use crate::statistics::Counters;
use crate::{BlockNo, Reason, Result, Timestamp};
use bedplate_store::Piece;

/// How long an access time may be old, in nanoseconds: a day.
const ATIME_NANOS: i64 = 86_400_000_000_000;

impl DataPath<'_> {
    /// Reads as the file is served; counts.
    pub(crate) fn read(
        self,
        class: OpenClass,
        buf: &mut [u8],
        offset: u64,
        ahead: Ahead<'_>,
    ) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if let Some(len) = self.read_plainly(buf, offset, ahead)? {
            return Ok(len);
        }
        self.read_served(class, buf, offset, ahead)
    }

    /// Reads whole sectors of one extent with data where nothing else asks for anything (I-SLO-1);
    /// `None` elsewhere.
    #[inline]
    fn read_plainly(self, buf: &mut [u8], offset: u64, ahead: Ahead<'_>) -> Result<Option<usize>> {
        let (steady, len) = (&self.state().steady, buf.len());
        if !steady.reads_plainly() || !ahead.is_off() || !self.fs.grid().takes_at(buf, offset) {
            return Ok(None);
        }
        let held = self.state().lock.shared(self.fs);
        let size = self.inode.size.load(Ordering::Acquire);
        // After the size: whatever it counts is in the map by now, or its bit is set. Before the
        // lookup: what has its bit cleared is in the map.
        if !steady.reads_plainly() || len as u64 > size.saturating_sub(offset) {
            return Ok(None);
        }
        let Some(found) = self.find_data(offset, len as u64)? else { return Ok(None) };
        debug_assert!(self.service().is_plain(), "I-SLO-1: the service is one of the causes");
        self.read_located(buf, &found, offset)?;
        // Counted after it: letting go waits for all stores before.
        drop(held);
        self.count_read(len);
        Ok(Some(len))
    }

    /// As [`read`](Self::read), the way that the file's service asks for.
    #[inline(never)]
    fn read_served(
        self,
        class: OpenClass,
        buf: &mut [u8],
        offset: u64,
        ahead: Ahead<'_>,
    ) -> Result<usize> {
        let service = self.service();
        if service.uses_library_cache()
            && !service.is_mixed()
            && !self.is_large(buf.len())
            && let Some(len) = self.read_hit(buf, offset)
        {
            return Ok(len);
        }
        let len = loop {
            let way = if self.service().uses_library_cache() {
                self.read_cached(class, buf, offset, ahead)
            } else {
                self.read_uncached(class, buf, offset, ahead)
            };
            // `None`: the service changed in between.
            if let Some(len) = way? {
                break len;
            }
        };
        Ok(len)
    }

    fn read_uncached(
        self,
        class: OpenClass,
        buf: &mut [u8],
        offset: u64,
        ahead: Ahead<'_>,
    ) -> Result<Option<usize>> {
        if self.has_tail() {
            self.collect_tail_before(offset.saturating_add(buf.len() as u64))?;
        }
        let held = self.state().lock.shared(self.fs);
        let service = self.service();
        if service.uses_library_cache() {
            return Ok(None);
        }
        self.count_mixed(service, class);
        let locked = if service.locks_ranges() {
            let range = offset..offset.saturating_add(buf.len() as u64);
            (!range.is_empty()).then(|| self.state().ranges.lock(range, Sharing::Shared, self.fs))
        } else {
            None
        };
        let size = self.inode.size.load(Ordering::Acquire);
        // After the size: whatever it counts is in the map by now, or still delayed.
        let len = if self.state().waits_in_memory() {
            self.read_beside_waiting(&held, buf, offset, size, ahead)?
        } else {
            self.read_mapped(&held, buf, offset, size, ahead)?
        };
        self.refresh_lease();
        // Counted after it: letting go waits for all stores before.
        drop((locked, held));
        self.count_read(len);
        Ok(Some(len))
    }

    /// Counts a read that went past the cache.
    #[inline]
    pub(crate) fn count_read(self, bytes: usize) {
        self.state().steady.io_counters.count_read(bytes);
    }

    /// Counts I/O that asked for something else than the cache and is served as `cached` because of
    /// other opens.
    #[inline]
    pub(super) fn count_mixed(self, service: Service, class: OpenClass) {
        if service.is_mixed() {
            self.count_mixed_open(class);
        }
    }

    #[cold]
    fn count_mixed_open(self, class: OpenClass) {
        let asked = class.requested(self.fs.file_mode(self.inode), self.fs.tuning().mode());
        if !asked.writes_behind() {
            self.inode.counters.reason(Reason::MixedOpen);
        }
    }

    /// Moves the access time where a change came after it or it is a day old.
    pub(crate) fn note_access(self) {
        if !self.fs.options().relatime || self.fs.is_read_only() || self.fs.is_past(self.inode.ino)
        {
            return;
        }
        let attr = self.inode.stat(self.fs.block_size());
        let now = Timestamp::now();
        if attr.atime <= attr.mtime
            || attr.atime <= attr.ctime
            || now.0.saturating_sub(attr.atime.0) > ATIME_NANOS
        {
            self.inode.note_atime(now);
            self.fs.list_lazy(self.inode);
        }
    }

    /// Reads up to the end of the file at `size`: straight into an aligned buffer, through the
    /// bounce buffer otherwise.
    #[inline]
    pub(super) fn read_mapped(
        self,
        _held: &Held<'_>,
        buf: &mut [u8],
        offset: u64,
        size: u64,
        ahead: Ahead<'_>,
    ) -> Result<usize> {
        let len = buf.len();
        if len as u64 <= size.saturating_sub(offset) && self.fs.grid().takes_at(buf, offset) {
            if !ahead.is_off() && self.read_ahead(buf, offset, size, ahead)? {
                return Ok(len);
            }
            return self.read_aligned(buf, offset).map(|()| len);
        }
        self.read_in_part(buf, offset, size)
    }

    /// Reads what is not aligned, or passes the end.
    #[inline(never)]
    fn read_in_part(self, buf: &mut [u8], offset: u64, size: u64) -> Result<usize> {
        let grid = self.fs.grid();
        let Some(len) =
            size.checked_sub(offset).map(|left| left.min(buf.len() as u64)).filter(|len| *len > 0)
        else {
            return Ok(0);
        };
        let whole = grid.sector_ceil(len);
        // Below 2^32 or so: it was clipped to a slice's length.
        debug_assert!(
            len <= buf.len() as u64,
            "no more is read than was asked for: {len} of {}",
            buf.len()
        );
        let (len, whole) = (len as usize, whole as usize);
        if !grid.on_sector(offset) || whole > buf.len() || !grid.takes(buf) {
            self.count_misaligned(buf, offset, len);
            return self.read_bounced(&mut buf[..len], offset).map(|()| len);
        }
        self.read_aligned(&mut buf[..whole], offset)?;
        if whole > len {
            // What lies beyond the end is undefined (I-IO-4).
            buf[len..whole].fill(0);
            self.inode.counters.reason(Reason::Tail);
        }
        Ok(len)
    }

    /// Fills a buffer that the device takes from an offset that the device takes.
    #[inline]
    pub(super) fn read_aligned(self, buf: &mut [u8], offset: u64) -> Result<()> {
        debug_assert!(
            self.fs.grid().on_sector(offset) && self.fs.grid().on_sector(buf.len() as u64),
            "what is read as it lies is whole sectors: {} bytes at {offset}",
            buf.len()
        );
        match self.find_data(offset, buf.len() as u64)? {
            Some(found) => self.read_located(buf, &found, offset),
            None => self.read_pieces(buf, offset),
        }
    }

    /// Fills a buffer from where the lookup found it.
    #[inline]
    fn read_located(self, buf: &mut [u8], found: &Located, offset: u64) -> Result<()> {
        if found.summed {
            self.read_summed(buf, found.at, offset)
        } else {
            self.fs.read_device(buf, found.at)
        }
    }

    /// As [`read_aligned`](Self::read_aligned), of what does not lie in one extent with data.
    #[inline(never)]
    fn read_pieces(self, buf: &mut [u8], offset: u64) -> Result<()> {
        let grid = self.fs.grid();
        let range = offset..offset + buf.len() as u64;
        let blocks = grid.blocks(&range);
        let pieces: Vec<Piece> = self.map(blocks.clone())?.pieces(blocks).collect();
        if pieces.len() > 1 {
            self.inode.counters.reason(Reason::Split);
        }
        for piece in pieces {
            let part = piece.bytes(grid, &range);
            let into = &mut buf[(part.start - offset) as usize..(part.end - offset) as usize];
            let at = |start: BlockNo| {
                grid.start_of(start.0) + (part.start - grid.start_of(piece.file_block))
            };
            match piece.written().map(at) {
                Some(at) if piece.is_summed() => self.read_summed(into, at, part.start)?,
                Some(at) => self.fs.read_device(into, at)?,
                None => into.fill(0),
            }
        }
        Ok(())
    }

    /// As [`read_aligned`](Self::read_aligned), from what is held where that is all of it.
    pub(super) fn read_sectors(self, buf: &mut [u8], offset: u64) -> Result<()> {
        let held = self
            .find_written(offset, buf.len() as u64)?
            .is_some_and(|at| self.state().held_sectors.read(buf, at));
        if held { Ok(()) } else { self.read_aligned(buf, offset) }
    }

    /// Reads whole sectors around a range into aligned memory and copies what was asked for.
    pub(super) fn read_bounced(self, buf: &mut [u8], offset: u64) -> Result<()> {
        let grid = self.fs.grid();
        let mut bounce = Bounce::take();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let start = grid.sector_floor(at);
            let skip = (at - start) as usize;
            let len = (buf.len() - done).min(bounce.len() - skip);
            let whole = grid.sector_ceil((skip + len) as u64) as usize;
            debug_assert!(
                len > 0 && whole <= bounce.len(),
                "a part of a bounced read fits its buffer: {len} of {whole}"
            );
            self.read_sectors(&mut bounce[..whole], start)?;
            buf[done..done + len].copy_from_slice(&bounce[skip..skip + len]);
            done += len;
        }
        Ok(())
    }

    /// Counts why an I/O needs the bounce buffer.
    pub(super) fn count_misaligned(self, buf: &[u8], offset: u64, len: usize) {
        let (grid, counters) = (self.fs.grid(), &self.inode.counters);
        Counters::add(&counters.misaligned, 1);
        self.state().steady.io_counters.count_indirect();
        if !grid.on_sector(offset) {
            counters.reason(Reason::UnalignedOffset);
        }
        if !grid.on_sector(len as u64) {
            counters.reason(Reason::UnalignedLength);
        }
        if !grid.takes(buf) {
            counters.reason(Reason::UnalignedBuffer);
        }
    }
}
