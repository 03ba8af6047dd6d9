//! What a queue needs to know of a file before an operation may go straight to the device.

use std::ops::Range;
use std::sync::atomic::Ordering;

use block::Segment;

use super::Io;
use super::write::Payload;
use crate::extent::Piece;
use crate::stats::Counters;
use crate::{IoMode, Reason, Result};

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
        Ok(self.plan_segments(offset, len as u64)?.map_or(Planned::Here, |segments| Planned::Device(segments, service.path == IoMode::Direct)))
    }

    /// Plans a write under the shared inode lock, which the caller holds.
    pub(crate) fn plan_queued_write(self, offset: u64, buf: &[u8]) -> Result<Planned> {
        let service = self.service();
        let data = Payload::new(buf, offset)?;
        let within = data.end() <= self.inode.size.load(Ordering::Acquire);
        if service.mixed || service.path == IoMode::Cached || service.path == IoMode::ConcurrentCache || !within {
            return Ok(Planned::Here);
        }
        let Some(segments) = self.plan_segments(offset, buf.len() as u64)? else { return Ok(Planned::Here) };
        for segment in std::iter::once(&segments.first).chain(&segments.rest) {
            self.state().unsealed.permit(&(segment.offset..segment.offset + u64::from(segment.len)), &self.fs.meta)?;
        }
        Ok(Planned::Device(segments, service.path == IoMode::Direct))
    }

    /// What a queued `direct` writer locks.
    pub(crate) fn queued_write_range(self, offset: u64, len: usize) -> Range<u64> {
        match self.fs.options.inode_lock {
            crate::InodeLockSetting::Range => offset..offset + len as u64,
            crate::InodeLockSetting::Whole => 0..u64::MAX,
        }
    }

    /// Counts what the device did, and notes the time of a write.
    pub(crate) fn queued_done(self, write: bool, bytes: usize) {
        Counters::add(&self.inode.counters.direct, 1);
        if write {
            self.wrote_in_place();
            self.count_write(bytes);
        } else {
            self.count_read(bytes);
        }
    }

    /// The device ranges of an aligned range whose blocks are all written.
    fn plan_segments(self, offset: u64, len: u64) -> Result<Option<Segments>> {
        let grid = self.fs.grid();
        if !grid.on_sector(offset) || !grid.on_sector(len) || len == 0 || len > SEGMENT_BYTES_MAX {
            return Ok(None);
        }
        let map = self.map()?;
        let (first, skip) = (grid.block_of(offset), offset % grid.block);
        let segment = |offset: u64, len: u64| Segment { offset, len: u32::try_from(len).expect("at most 1 GiB") };
        if let Some(extent) = map.lookup(first).filter(|extent| u64::from(extent.blocks) * grid.block - skip >= len) {
            let written = extent.state == crate::extent::ExtentState::Written;
            return Ok(written.then(|| Segments { first: segment(extent.start.0 * grid.block + skip, len), rest: Vec::new() }));
        }
        let range = offset..offset + len;
        let pieces: Vec<Piece> = map.pieces(grid.blocks(&range)).collect();
        drop(map);
        let mut segments = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let Some(start) = piece.written() else { return Ok(None) };
            let from = (piece.file_block * grid.block).max(offset);
            let to = ((piece.file_block + piece.blocks) * grid.block).min(range.end);
            segments.push(segment(start.0 * grid.block + (from - piece.file_block * grid.block), to - from));
        }
        self.inode.counters.reason(Reason::Split);
        let first = segments.remove(0);
        Ok(Some(Segments { first, rest: segments }))
    }
}
