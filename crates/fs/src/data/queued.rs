//! What a queue needs to know of a file before an operation may go straight to the device.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bedplate_block::Segment;

use super::DataPath;
use super::fill::Filling;
use super::write::{Payload, WriteStrategy};
use crate::lock::Sharing;
use crate::{ErrorKind, InodeLockSetting, Reason, Result};
use bedplate_cache::DirectWrite;
use bedplate_store::Piece;

/// Device ranges in the form that requests want; the first without an allocation.
#[derive(Debug, Clone)]
pub(crate) struct Segments {
    pub(crate) first: Segment,
    pub(crate) rest: Vec<Segment>,
    /// Whether what is read there is compared with checksums.
    pub(crate) summed: bool,
}

impl Segments {
    fn one(at: u64, len: u64) -> Self {
        Self { first: segment(at, len), rest: Vec::new(), summed: false }
    }

    fn all(&self) -> impl Iterator<Item = &Segment> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Returns each with where it begins in the buffer.
    fn placed(&self) -> impl Iterator<Item = (usize, u64, usize)> {
        self.all().scan(0, |from, segment| {
            let (at, len) = (*from, segment.len as usize);
            *from += len;
            Some((at, segment.offset, len))
        })
    }
}

/// Where a queued operation is carried out.
#[derive(Debug)]
pub(crate) enum Planned {
    /// By the device; the flag says whether the byte range must be locked.
    Device(Segments, bool),
    /// By the device, into new blocks for these file blocks, which must be claimed first; the flag
    /// as above.
    Fill(Range<u64>, bool),
    /// By the submitting thread, with the locks released first.
    Here,
}

/// What a queued operation does not go straight to the device for.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

fn segment(offset: u64, len: u64) -> Segment {
    debug_assert!(
        len > 0 && offset.checked_add(len).is_some(),
        "a segment holds a byte: {len} at {offset}"
    );
    Segment { offset, len: u32::try_from(len).expect("at most 1 GiB") }
}

impl DataPath<'_> {
    /// Plans a read under the shared inode lock, which the caller holds.
    pub(crate) fn plan_queued_read(self, offset: u64, len: usize) -> Result<Planned> {
        let service = self.service();
        let end = offset.checked_add(len as u64);
        let within = end.is_some_and(|end| end <= self.inode.size.load(Ordering::Acquire));
        let held = self
            .state()
            .held_write
            .overlaps(&(offset..offset.saturating_add(len as u64)), self.fs.grid().sector)
            || self.meets_delayed(&(offset..offset.saturating_add(len as u64)));
        let served = service.is_mixed() || service.uses_library_cache();
        if served || !within || held || self.is_overwritten() {
            return Ok(Planned::Here);
        }
        let segments = self.plan_segments(offset, len as u64, false)?;
        let segments = segments.filter(|segments| !self.is_carried(segments));
        Ok(segments
            .map_or(Planned::Here, |segments| Planned::Device(segments, service.locks_ranges())))
    }

    /// Plans a write under the shared inode lock, which the caller holds; `told`: and the cache was
    /// told.
    pub(crate) fn plan_queued_write(self, offset: u64, buf: &[u8], told: bool) -> Result<Planned> {
        let service = self.service();
        let data = Payload::new(buf, offset)?;
        let within = data.end() <= self.inode.size.load(Ordering::Acquire);
        let cached = service.path().writes_behind() || (service.path().writes_through() && !told);
        if service.is_mixed()
            || cached
            || !within
            || self.state().held_write.overlaps(&data.range(), self.fs.grid().sector)
            || self.meets_delayed(&data.range())
            || self.meets_odd_writes()
            || self.is_overwritten()
        {
            return Ok(Planned::Here);
        }
        let locks = service.locks_ranges();
        if let Some(segments) = self.plan_segments(offset, buf.len() as u64, true)? {
            self.permit_all(&segments)?;
            return Ok(Planned::Device(segments, locks));
        }
        let len = data.bytes.len() as u64;
        if !data.is_aligned(self.fs.grid()) || len == 0 || len > SEGMENT_BYTES_MAX {
            return Ok(Planned::Here);
        }
        if let Some(at) = self.find_untorn(offset, len)? {
            let segments = Segments::one(at, len);
            self.permit_all(&segments)?;
            return Ok(Planned::Device(segments, locks));
        }
        match self.plan_write(&data)? {
            WriteStrategy::Fill(blocks) if data.end() <= self.state().logged_size() => {
                Ok(Planned::Fill(blocks, locks))
            }
            WriteStrategy::Fill(_) | WriteStrategy::InPlace(_) | WriteStrategy::Exclusive => {
                Ok(Planned::Here)
            }
        }
    }

    /// Returns whether the log has some of it that the device does not.
    fn is_carried(self, segments: &Segments) -> bool {
        segments.all().any(|one| self.fs.is_carried(&(one.offset..one.offset + u64::from(one.len))))
    }

    /// Makes sure that the device bytes of a request may be overwritten, and that no copy of them
    /// is held.
    fn permit_all(self, segments: &Segments) -> Result<()> {
        segments.all().try_for_each(|segment| {
            let range = segment.offset..segment.offset + u64::from(segment.len);
            self.state().held_sectors.forget(&range);
            self.state().read_windows.writes(&range);
            self.fs.permit_overwrite(&self.state().unsealed, &range)?;
            self.fs.settle(&range)
        })
    }

    /// Finds blocks for a queued write, under the inode lock, shared, and with its blocks claimed;
    /// all three stay until [`end_queued_fill`](Self::end_queued_fill). `None`: it is carried out
    /// by the submitting thread after all, which can wait for space, or take the lock exclusively.
    pub(crate) fn begin_queued_fill(
        self,
        offset: u64,
        buf: &[u8],
        blocks: Range<u64>,
    ) -> Result<Option<(Filling, Segments)>> {
        let data = Payload::new(buf, offset)?;
        let filling = match self.begin_fill(&data, blocks) {
            Err(error) if error.kind == ErrorKind::NoSpace => return Ok(None),
            begun => match begun? {
                Some(filling) => filling,
                None => return Ok(None),
            },
        };
        let mut runs = self
            .runs_of(&filling, &data)
            .into_iter()
            .map(|(part, at)| segment(at, part.end - part.start));
        let first = runs.next().expect("a write has at least one byte");
        let segments = Segments { first, rest: runs.collect(), summed: false };
        debug_assert_eq!(
            segments.all().map(|segment| u64::from(segment.len)).sum::<u64>(),
            buf.len() as u64,
            "the segments of a fill are all of its buffer"
        );
        match self.permit_all(&segments) {
            Ok(()) => Ok(Some((filling, segments))),
            Err(error) => self.end_queued(filling, data, Err(error)).map(|()| None),
        }
    }

    /// Publishes a queued write, or gives its blocks back, and gives up the claim.
    pub(crate) fn end_queued_fill(
        self,
        filling: Filling,
        offset: u64,
        buf: Option<&[u8]>,
        written: Result<()>,
    ) -> Result<()> {
        let blocks = filling.blocks.clone();
        let data = Payload { was_held: false, ..Payload::waited(buf.unwrap_or_default(), offset) };
        let ended = self.end_queued(filling, data, written);
        self.state().fill_claims.release(blocks, Sharing::Exclusive);
        ended
    }

    fn end_queued(self, filling: Filling, data: Payload<'_>, written: Result<()>) -> Result<()> {
        let exposing = self.begin_exposing(data.bytes.len() as u64);
        self.end_fill(filling, data, written, exposing)
    }

    /// Returns whether a write is announced to the cache and then goes past it.
    pub(crate) fn writes_through(self) -> bool {
        self.service().path().writes_through()
    }

    /// Announces such a write, under the shared order lock; `None` when the file is served another
    /// way by now.
    pub(crate) fn announce_write(self, offset: u64, len: usize) -> Result<Option<DirectWrite>> {
        if self.writes_through() {
            self.cached().begin_direct_write(offset, len as u64).map(Some)
        } else {
            Ok(None)
        }
    }

    /// What a queued operation on a `direct` file locks; it has been planned.
    pub(crate) fn queued_range(self, offset: u64, len: usize, sharing: Sharing) -> Range<u64> {
        match self.fs.options().inode_lock {
            InodeLockSetting::Whole if sharing == Sharing::Exclusive => 0..u64::MAX,
            InodeLockSetting::Range | InodeLockSetting::Whole => offset..offset + len as u64,
        }
    }

    /// Counts what the device did, and notes the time of a write.
    pub(crate) fn queued_done(self, write: bool, in_place: bool, bytes: usize) {
        if write {
            if in_place {
                self.wrote_in_place();
            }
            self.count_write(bytes);
        } else {
            self.count_read(bytes);
        }
    }

    /// The device ranges of an aligned range whose blocks are all written, and the file's own if
    /// they are to be written.
    fn plan_segments(self, offset: u64, len: u64, write: bool) -> Result<Option<Segments>> {
        let grid = self.fs.grid();
        if !grid.on_sector(offset) || !grid.on_sector(len) || len == 0 || len > SEGMENT_BYTES_MAX {
            return Ok(None);
        }
        if write {
            if let Some(at) = self.find_owned(offset, len)? {
                return Ok(Some(Segments::one(at, len)));
            }
        } else if let Some(found) = self.find_data(offset, len)? {
            let whole = grid.on_block(offset) && grid.on_block(len);
            let segments = Segments { summed: found.summed, ..Segments::one(found.at, len) };
            return Ok((whole || !found.summed).then_some(segments));
        }
        let range = offset..offset + len;
        let blocks = grid.blocks(&range);
        let map = self.map(blocks.clone())?;
        let pieces: Vec<Piece> =
            if write { self.pieces_to_write(&map, blocks).0 } else { map.pieces(blocks).collect() };
        drop(map);
        // All of it is compared, as whole blocks, or nothing.
        let summed = pieces.first().is_some_and(Piece::is_summed);
        if summed && (write || !grid.on_block(offset) || !grid.on_block(len)) {
            return Ok(None);
        }
        let mut segments = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let Some(start) = piece.written().filter(|_| piece.is_summed() == summed) else {
                return Ok(None);
            };
            let part = piece.bytes(grid, &range);
            segments.push(segment(
                grid.start_of(start.0) + (part.start - grid.start_of(piece.file_block)),
                part.end - part.start,
            ));
        }
        self.inode.counters.reason(Reason::Split);
        let first = segments.remove(0);
        Ok(Some(Segments { first, rest: segments, summed }))
    }

    /// Returns whether what a queued read brought has its checksums.
    pub(crate) fn is_queued_right(
        self,
        buf: &[u8],
        segments: &Segments,
        offset: u64,
    ) -> Result<bool> {
        for (from, at, len) in segments.placed() {
            if self.first_wrong(&buf[from..from + len], at, offset + from as u64)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fills what a queued read brought with what is right where it is wrong.
    pub(crate) fn make_queued_right(
        self,
        buf: &mut [u8],
        segments: &Segments,
        offset: u64,
    ) -> Result<()> {
        let mut parts = segments.placed();
        parts.try_for_each(|(from, at, len)| {
            self.make_right(&mut buf[from..from + len], at, offset + from as u64)
        })
    }
}
