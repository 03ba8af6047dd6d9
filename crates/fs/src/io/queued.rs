//! What a queue needs to know of a file before an operation may go straight to the device.

use std::ops::Range;
use std::sync::atomic::Ordering;

use block::Segment;

use super::Io;
use super::write::Payload;
use crate::cache::DirectWrite;
use crate::extent::Piece;
use crate::lock::Sharing;
use crate::{InodeLockSetting, IoMode, Reason, Result};

/// Device ranges in the form that requests want; the first without an allocation.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) first: Segment,
    pub(crate) rest: Vec<Segment>,
}

/// Where a queued operation is carried out.
#[derive(Debug)]
pub(crate) enum Planned {
    /// By the device; the flag says whether the byte range must be locked.
    Device(Segments, bool),
    /// By the submitting thread, with the locks released first.
    Here,
}

/// What a queued operation does not go straight to the device for.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

impl Io<'_> {
    /// Plans a read under the shared inode lock, which the caller holds.
    pub(crate) fn plan_queued_read(self, offset: u64, len: usize) -> Result<Planned> {
        let service = self.service();
        let end = offset.checked_add(len as u64);
        let within = end.is_some_and(|end| end <= self.inode.size.load(Ordering::Acquire));
        if service.mixed || service.path == IoMode::Cached || service.path == IoMode::ConcurrentCache || !within {
            return Ok(Planned::Here);
        }
        Ok(self.plan_segments(offset, len as u64, false)?.map_or(Planned::Here, |segments| Planned::Device(segments, service.path == IoMode::Direct)))
    }

    /// Plans a write under the shared inode lock, which the caller holds; `told`: and the cache was told.
    pub(crate) fn plan_queued_write(self, offset: u64, buf: &[u8], told: bool) -> Result<Planned> {
        let service = self.service();
        let data = Payload::new(buf, offset)?;
        let within = data.end() <= self.inode.size.load(Ordering::Acquire);
        let cached = service.path == IoMode::Cached || (service.path == IoMode::ConcurrentCache && !told);
        if service.mixed || cached || !within {
            return Ok(Planned::Here);
        }
        let Some(segments) = self.plan_segments(offset, buf.len() as u64, true)? else { return Ok(Planned::Here) };
        for segment in std::iter::once(&segments.first).chain(&segments.rest) {
            self.state().unsealed.permit(&(segment.offset..segment.offset + u64::from(segment.len)), &self.fs.meta)?;
        }
        Ok(Planned::Device(segments, service.path == IoMode::Direct))
    }

    /// Returns whether a write is announced to the cache and then goes past it.
    pub(crate) fn writes_through(self) -> bool {
        self.service().path == IoMode::ConcurrentCache
    }

    /// Announces such a write, under the shared order lock; `None` when the file is served another way by now.
    pub(crate) fn announce_write(self, offset: u64, len: usize) -> Result<Option<DirectWrite>> {
        if self.writes_through() { self.cached().begin_direct_write(offset, len as u64).map(Some) } else { Ok(None) }
    }

    /// What a queued operation on a `direct` file locks; it has been planned.
    pub(crate) fn queued_range(self, offset: u64, len: usize, sharing: Sharing) -> Range<u64> {
        match self.fs.options.inode_lock {
            InodeLockSetting::Whole if sharing == Sharing::Exclusive => 0..u64::MAX,
            InodeLockSetting::Range | InodeLockSetting::Whole => offset..offset + len as u64,
        }
    }

    /// Counts what the device did, and notes the time of a write.
    pub(crate) fn queued_done(self, write: bool, bytes: usize) {
        if write {
            self.wrote_in_place();
            self.count_write(bytes);
        } else {
            self.count_read(bytes);
        }
    }

    /// The device ranges of an aligned range whose blocks are all written, and nobody else's if they are to be written.
    fn plan_segments(self, offset: u64, len: u64, write: bool) -> Result<Option<Segments>> {
        let grid = &self.fs.grid;
        if !grid.on_sector(offset) || !grid.on_sector(len) || len == 0 || len > SEGMENT_BYTES_MAX {
            return Ok(None);
        }
        let segment = |offset: u64, len: u64| Segment { offset, len: u32::try_from(len).expect("at most 1 GiB") };
        if let Some(at) = if write { self.find_owned(offset, len)? } else { self.find_written(offset, len)? } {
            return Ok(Some(Segments { first: segment(at, len), rest: Vec::new() }));
        }
        let range = offset..offset + len;
        let map = self.map()?;
        let pieces: Vec<Piece> = if write { self.pieces_to_write(&map, grid.blocks(&range)).0 } else { map.pieces(grid.blocks(&range)).collect() };
        drop(map);
        let mut segments = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let Some(start) = piece.written() else { return Ok(None) };
            let part = piece.bytes(grid, &range);
            segments.push(segment(grid.start_of(start.0) + (part.start - grid.start_of(piece.file_block)), part.end - part.start));
        }
        self.inode.counters.reason(Reason::Split);
        let first = segments.remove(0);
        Ok(Some(Segments { first, rest: segments }))
    }
}
