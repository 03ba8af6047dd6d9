//! Writing parts of blocks under the exclusive inode lock: padding, read-modify-write, and the gap
//! behind a written tail.
//!
//! ```text
//!   file bytes     |···old end···gap···|====data====|···
//!   written block  [ keep | keep, zero | data | keep ]      sectors at the edges are read, changed and written back
//!   new block      [ zero ............ | data | zero ]      padded to the block's end, or to the end of the file
//! ```
//!
//! A sector is read only if bytes of it stay, and if no copy of it is held since the write before
//! (`inode/held_sectors.rs`, I-HLD-1). A write that goes on where one before ended, over bytes of
//! the file, reads some more than the sector in which it ends: the next ones will ask for it.

use std::ops::Range;

use bedplate_block::AlignedBuf;

use super::bounce::Bounce;
use super::commit_map::{Change, SizeChange};
use super::exposure::Exposing;
use super::fill::{Before, Target, place};
use super::write::Payload;
use super::{Alone, DataPath};
use crate::{Reason, Result};
use bedplate_store::{ExtentMap, Grid, Piece, PlantedBug, RecordKind, planted, within};

/// How much is read at once of what a sequence of odd writes is going over, in bytes.
const AHEAD_BYTES: u64 = 64 << 10;

/// A contiguous part of a write on the device. All ranges are file bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Span {
    /// What changes.
    bytes: Range<u64>,
    /// The whole sectors that are written.
    sectors: Range<u64>,
    /// Device offset of `sectors.start`.
    start: u64,
    /// What newly becomes readable.
    exposed: Range<u64>,
    /// From here on the file has no bytes that must stay.
    kept_end: u64,
    /// What surrounds `bytes` within `sectors`.
    around: Around,
    /// Whether `bytes` become zeros instead of the payload.
    zeros: bool,
}

impl Span {
    /// The device bytes that change in place.
    fn changed(&self) -> Range<u64> {
        let device = |file: u64| self.start + (file - self.sectors.start);
        device(self.bytes.start)..device(self.bytes.end)
    }

    /// Has the record expose whatever changes below the end of the file, to carry it.
    fn exposing_all(self, size: u64) -> Self {
        match self.around {
            Around::Kept => Self { exposed: within(&(0..size), &self.bytes), ..self },
            Around::Zeroed => self,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Around {
    /// Stays as it is.
    Kept,
    /// Becomes zeros.
    Zeroed,
}

/// The part of a written target that `bytes` touch; bytes at or after `old_size` become readable,
/// up to `new_size`.
fn span_in_place(
    grid: &Grid,
    target: &Target,
    bytes: &Range<u64>,
    sizes: (u64, u64),
    zeros: bool,
) -> Span {
    let blocks = target.bytes(grid);
    let bytes = within(bytes, &blocks);
    debug_assert!(
        blocks.start <= bytes.start && bytes.end <= blocks.end,
        "a span in place lies in its blocks: {bytes:?} of {blocks:?}"
    );
    let sectors = grid.sector_floor(bytes.start)..grid.sector_ceil(bytes.end);
    let start = grid.start_of(target.start.0) + (sectors.start - blocks.start);
    debug_assert!(
        blocks.start <= sectors.start && sectors.end <= blocks.end,
        "I-IO-4: whole sectors around it lie in the same blocks: {sectors:?} of {blocks:?}"
    );
    let exposed = within(&(sizes.0..sizes.1.max(sizes.0)), &bytes);
    Span { bytes, sectors, start, exposed, kept_end: sizes.0, around: Around::Kept, zeros }
}

/// The part of an unwritten or free target that `bytes` touch, padded so that nothing undefined
/// lies below the end of the file.
fn span_in_new(grid: &Grid, target: &Target, bytes: &Range<u64>, new_size: u64) -> Span {
    let blocks = target.bytes(grid);
    let bytes = within(bytes, &blocks);
    let padded = blocks.end.min(grid.sector_ceil(new_size)).max(grid.sector_ceil(bytes.end));
    let first = if planted(PlantedBug::NewBlockNotPadded) {
        grid.sector_floor(bytes.start)
    } else {
        blocks.start
    };
    let sectors = first..padded;
    debug_assert!(
        blocks.start <= sectors.start && sectors.end <= blocks.end,
        "I-IO-4: zeros around new data lie in its blocks: {sectors:?} of {blocks:?}"
    );
    let exposed = within(&(0..new_size), &sectors);
    let start = grid.start_of(target.start.0) + (first - blocks.start);
    Span { bytes, sectors, start, exposed, kept_end: 0, around: Around::Zeroed, zeros: false }
}

/// What lies between the old end, in a written block, and where a write or the new end begins
/// (I-IO-4).
fn tail_gap(map: &ExtentMap, grid: &Grid, old_size: u64, to: u64) -> Option<(Range<u64>, Target)> {
    let block = grid.block_of(old_size);
    let gap = old_size..to.min(grid.start_of(block + 1));
    debug_assert!(
        gap.end <= grid.start_of(block + 1),
        "I-IO-4: what is zeroed behind the end lies in the last block: {gap:?}"
    );
    if grid.on_block(old_size) || gap.is_empty() || planted(PlantedBug::TailNotZeroed) {
        return None;
    }
    let piece = map.pieces(block..block + 1).next().filter(Piece::takes_overwrites)?;
    place(&[piece], &[], crate::Epoch(0)).pop().map(|target| (gap, target))
}

impl DataPath<'_> {
    /// Writes whatever it is, wherever it goes.
    pub(super) fn write_exclusive(self, held: &Alone<'_>, data: Payload<'_>) -> Result<()> {
        if self.wrote_anew(held, &data)? {
            return Ok(());
        }
        if self.needs_whole_blocks(&data)? {
            return self.write_whole_blocks(held, data);
        }
        self.write_placed(held, data)?;
        self.keep_head(held, &data)
    }

    /// As [`write_exclusive`](Self::write_exclusive), of what changes no block in part that has a
    /// checksum, or gets one.
    pub(super) fn write_placed(self, held: &Alone<'_>, data: Payload<'_>) -> Result<()> {
        let grid = self.fs.grid();
        let logged = self.state().logged_size();
        let size = data.size_after(logged);
        let copied = self.unshare_edges(held, &data.range())?;
        if size > logged {
            self.unshare_tail(held, data.offset)?;
        }
        let blocks = grid.blocks(&data.range());
        let map = self.map(ExtentMap::around(&self.with_end(&blocks, size)))?;
        // Whole blocks are redirected here too: how a buffer lies, or where the file ends, must not
        // tear what is written untorn.
        let whole = grid.on_block(data.offset) && grid.on_block(data.end());
        let (pieces, redirects) = if data.renews {
            self.pieces_to_renew(&map, blocks)
        } else if whole {
            self.pieces_to_write(&map, blocks)
        } else {
            self.pieces_to_change(&map, blocks)
        };
        let gap = tail_gap(&map, grid, logged, data.offset).filter(|_| size > logged);
        self.count_exclusive(&pieces, data, size > logged, redirects || copied);
        let fresh = self.allocate_holes(map, &pieces, size > logged)?;
        let targets = self.place_to_write(&pieces, &fresh.runs);
        let gap = gap.map(|(gap, target)| span_in_place(grid, &target, &gap, (logged, size), true));
        let spans = gap.into_iter().chain(targets.iter().map(|target| match target.was {
            Before::Written => span_in_place(grid, target, &data.range(), (logged, size), false),
            Before::Summed => unreachable!("I-SUM-2: what has checksums is a hole to a writer"),
            Before::Unwritten | Before::Free => span_in_new(grid, target, &data.range(), size),
        }));
        // Looked up once: the setting may change meanwhile, and only whole blocks get checksums.
        let mut exposing = match whole {
            true => self.begin_exposing(data.bytes.len() as u64),
            false => Exposing::new(data.bytes.len() as u64),
        };
        // Nothing but what the record exposes changes. Of a part of a block within the file the rest
        // is written next, which would have to wait for a seal.
        let only_adds = data.offset >= logged || targets.iter().all(|it| it.was.is_filled());
        let adds = only_adds && (size > logged || whole);
        let spares_a_seal = || {
            let in_place = spans.clone().filter(|span| span.around == Around::Kept);
            let over: Vec<_> = in_place.map(|span| span.changed()).collect();
            self.spares_a_seal(&data, &over, size > logged)
        };
        if !redirects && !data.renews && (adds || !copied && spares_a_seal()?) {
            let sectors = spans.clone().map(|span| span.sectors.end - span.sectors.start).sum();
            self.log_if_small(&mut exposing, sectors);
        }
        let logs = exposing.is_logged();
        let spans = spans.map(|span| if logs { span.exposing_all(size) } else { span });
        let written = self.write_spans(held, spans, data, exposing).and_then(|exposing| {
            self.publish_exclusive(&targets, redirects, exposing, (size, logged), !data.was_held)
        });
        if written.is_err() {
            self.give_back(fresh);
        }
        written
    }

    /// `touches`: the modification time moves now, and did not when the write was held.
    fn publish_exclusive(
        self,
        targets: &[Target],
        redirects: bool,
        exposing: Exposing,
        (size, logged): (u64, u64),
        touches: bool,
    ) -> Result<()> {
        let mut filled = targets.iter().filter(|target| target.was.is_filled()).peekable();
        if size == logged && filled.peek().is_none() && !exposing.is_logged() {
            if touches {
                self.wrote_in_place();
            }
            return Ok(());
        }
        let range = targets.first().map_or(0, |t| t.file_block)
            ..targets.last().map_or(0, |t| t.file_block + t.blocks);
        let extents: Vec<_> =
            targets.iter().flat_map(|target| target.extents(exposing.sums())).collect();
        let (kind, change) = if size > logged {
            (RecordKind::Extend, SizeChange::AtLeast(size))
        } else {
            (RecordKind::Written, SizeChange::Keep)
        };
        let change =
            if redirects { Change::new(kind, change) } else { Change::adding(kind, change) };
        self.publish_extents(range, &extents, Change { touches, ..change.exposing(exposing) })
            .map(drop)
    }

    /// Makes sure that the written block in which the file ends is the file's own, or that zeros
    /// follow the end in one that has a checksum. What makes the file grow begins at `to`.
    pub(super) fn unshare_tail(self, held: &Alone<'_>, to: u64) -> Result<()> {
        let logged = self.state().logged_size();
        if self.fs.grid().on_block(logged) || self.zero_summed_tail(held, to)? {
            Ok(())
        } else if self.unshare(held, &(logged..logged + 1))? {
            // The copy has a checksum in a file with integrity, and what followed the end.
            self.zero_summed_tail(held, to).map(drop)
        } else {
            Ok(())
        }
    }

    /// Zeroes, in place, what of a byte range is written.
    pub(super) fn zero_written(self, held: &Alone<'_>, range: &Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        // Copies of the file's own first: in a file with integrity they have checksums.
        self.unshare(held, range)?;
        self.zero_summed(held, range)?;
        let grid = self.fs.grid();
        let logged = self.state().logged_size();
        let blocks = grid.blocks(range);
        let map = self.map(blocks.clone())?;
        let pieces: Vec<Piece> = map.pieces(blocks).filter(Piece::takes_overwrites).collect();
        drop(map);
        let targets = place(&pieces, &[], self.fs.epoch());
        let spans =
            targets.iter().map(|target| span_in_place(grid, target, range, (logged, logged), true));
        let data = Payload::new(&[], range.start)?;
        self.write_spans(held, spans, data, Exposing::new(0)).map(drop)
    }

    /// Zeroes the gap that a growth to `size` opens behind a written tail. Returns what it will
    /// expose.
    pub(super) fn zero_tail(self, held: &Alone<'_>, size: u64) -> Result<Exposing> {
        let grid = self.fs.grid();
        let logged = self.state().logged_size();
        if size > logged {
            self.unshare_tail(held, size)?;
        }
        let tail = grid.block_of(logged);
        let gap = tail_gap(&*self.map(tail..tail + 1)?, grid, logged, size);
        let span =
            gap.map(|(gap, target)| span_in_place(grid, &target, &gap, (logged, size), true));
        self.write_spans(held, span.into_iter(), Payload::new(&[], logged)?, Exposing::new(0))
    }

    /// Writes spans in order and adds what they expose.
    fn write_spans(
        self,
        held: &Alone<'_>,
        spans: impl Iterator<Item = Span>,
        data: Payload<'_>,
        mut exposing: Exposing,
    ) -> Result<Exposing> {
        let grid = self.fs.grid();
        for mut span in spans.filter(|span| !span.bytes.is_empty()) {
            if exposing.sums() && span.around == Around::Zeroed {
                // A checksum vouches for what lies behind the end too (I-SUM-3).
                span.exposed = span.sectors.clone();
            }
            let as_it_is =
                !span.zeros && span.bytes == span.sectors && grid.takes(data.part(&span.bytes));
            if as_it_is {
                if exposing.is_logged() {
                    self.log_overwrite(&mut exposing, data.part(&span.bytes), span.start)?;
                } else {
                    self.overwrite(data.part(&span.bytes), span.start)?;
                }
                if span.around == Around::Zeroed {
                    exposing.sum(span.start, data.part(&span.bytes));
                }
                exposing.push(
                    span.start + (span.exposed.start - span.sectors.start),
                    data.part(&span.exposed),
                );
            } else {
                self.write_bounced(held, &span, data, &mut exposing)?;
            }
        }
        Ok(exposing)
    }

    fn write_bounced(
        self,
        held: &Alone<'_>,
        span: &Span,
        data: Payload<'_>,
        exposing: &mut Exposing,
    ) -> Result<()> {
        let mut bounce = Bounce::take();
        let mut at = span.sectors.start;
        while at < span.sectors.end {
            let chunk = at..span.sectors.end.min(at + bounce.len() as u64);
            let buf = &mut bounce[..(chunk.end - chunk.start) as usize];
            let device = |file: u64| span.start + (file - span.sectors.start);
            let bytes = within(&span.bytes, &chunk);
            // Kept bytes do not change, so no checksum in the log minds them.
            let changed = match span.around {
                Around::Zeroed => {
                    buf.fill(0);
                    chunk.clone()
                }
                Around::Kept => bytes.start..self.read_edges(held, span, &chunk, buf)?,
            };
            let in_chunk = |part: &Range<u64>| {
                (part.start - chunk.start) as usize..(part.end - chunk.start) as usize
            };
            if span.zeros {
                buf[in_chunk(&bytes)].fill(0);
            } else {
                buf[in_chunk(&bytes)].copy_from_slice(data.part(&bytes));
            }
            let range = device(changed.start)..device(changed.end);
            self.permit(&range, exposing.is_logged())?;
            self.write_held(held, span, &chunk, buf, exposing)?;
            if span.around == Around::Zeroed {
                exposing.sum(device(chunk.start), buf);
            }
            let exposed = within(&span.exposed, &chunk);
            exposing.push(device(exposed.start), &buf[in_chunk(&exposed)]);
            at = chunk.end;
        }
        Ok(())
    }

    /// Fills the first and last sector of a chunk where the span changes only a part of them;
    /// returns up to where the chunk changes.
    fn read_edges(
        self,
        held: &Alone<'_>,
        span: &Span,
        chunk: &Range<u64>,
        buf: &mut [u8],
    ) -> Result<u64> {
        let sector = self.fs.grid().sector;
        let device = |file: u64| span.start + (file - span.sectors.start);
        let (first, last) = (chunk.start, chunk.end - sector);
        let cut_first = span.bytes.start > chunk.start;
        let cut_last = span.bytes.end < chunk.end;
        let mut follows = false;
        if cut_first {
            follows = self.read_edge(held, &mut buf[..sector as usize], device(first), sector)?;
        }
        if !cut_last || (cut_first && last == first) {
            return Ok(chunk.end.min(span.bytes.end));
        }
        let edge = &mut buf[(last - chunk.start) as usize..];
        if span.bytes.end >= span.kept_end {
            edge.fill(0);
            return Ok(chunk.end);
        }
        let ahead = if follows { self.behind(last, span.kept_end)? } else { sector };
        self.read_edge(held, edge, device(last), ahead)?;
        Ok(span.bytes.end)
    }

    /// Fills a sector with what the device holds there; returns whether that was held. What is read
    /// is, up to `ahead` bytes.
    fn read_edge(self, held: &Alone<'_>, edge: &mut [u8], at: u64, ahead: u64) -> Result<bool> {
        let copies = &self.state().held_sectors;
        if copies.read(edge, at) {
            return Ok(true);
        }
        if ahead <= edge.len() as u64 {
            self.fs.read_device(edge, at)?;
            return Ok(false);
        }
        let mut buf = AlignedBuf::zeroed(ahead as usize);
        self.fs.read_device(&mut buf, at)?;
        edge.copy_from_slice(&buf[..edge.len()]);
        copies.keep(held, &buf, at, self.fs.held_bytes());
        Ok(false)
    }

    /// Returns how many bytes from a sector of the file on are read together: those of the extent,
    /// up to the end of the file, and not too many.
    fn behind(self, sector: u64, end: u64) -> Result<u64> {
        let grid = self.fs.grid();
        let block = grid.block_of(sector);
        let extent_end = self
            .map(block..block + 1)?
            .holding(block)
            .map_or(0, |(first, extent)| grid.start_of(first.0 + u64::from(extent.blocks)));
        let end = extent_end.min(grid.sector_ceil(end)).min(sector + AHEAD_BYTES);
        Ok(end.saturating_sub(sector))
    }

    /// Writes a chunk, and holds the sector in which its change ends: the next write may begin
    /// there.
    fn write_held(
        self,
        held: &Alone<'_>,
        span: &Span,
        chunk: &Range<u64>,
        buf: &[u8],
        exposing: &mut Exposing,
    ) -> Result<()> {
        let copies = &self.state().held_sectors;
        let at = span.start + (chunk.start - span.sectors.start);
        let range = at..at + buf.len() as u64;
        let write = self.state().read_windows.begin_write(range.clone());
        let written = if exposing.is_logged() {
            exposing.log_write(at, buf);
            Ok(())
        } else {
            self.fs.write_device(buf, at)
        };
        drop(write);
        if let Err(error) = written {
            copies.forget(&range);
            return Err(error);
        }
        copies.refresh(buf, at);
        let edge = self.fs.grid().sector_floor(span.bytes.end);
        if edge < span.bytes.end && (chunk.start..chunk.end).contains(&edge) {
            let from = (edge - chunk.start) as usize;
            let sector = &buf[from..from + self.fs.grid().sector as usize];
            copies.keep(held, sector, at + from as u64, self.fs.held_bytes());
        }
        Ok(())
    }

    fn count_exclusive(self, pieces: &[Piece], data: Payload<'_>, extends: bool, redirects: bool) {
        if data.was_held {
            return;
        }
        let grid = self.fs.grid();
        if data.is_aligned(grid) {
            if !grid.on_block(data.offset) || !grid.on_block(data.end()) {
                self.inode.counters.reason(Reason::Tail);
            }
        } else {
            self.count_misaligned(data.bytes, data.offset, data.bytes.len());
        }
        self.count_fill(pieces, extends, redirects);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockNo, Epoch};

    fn grid() -> Grid {
        Grid::new(4096, 512, 1)
    }

    fn target(was: Before) -> Target {
        Target { file_block: 1, blocks: 2, start: BlockNo(100), birth: Epoch(1), was }
    }

    #[test]
    fn a_written_block_keeps_what_surrounds_the_change() {
        let span = span_in_place(
            &grid(),
            &target(Before::Written),
            &(5000..5100),
            (20_000, 20_000),
            false,
        );
        assert_eq!((span.sectors, span.start), (4608..5120, 100 * 4096 + 512));
        assert!(span.exposed.is_empty());
        let tail =
            span_in_place(&grid(), &target(Before::Written), &(5000..5100), (5040, 5100), false);
        assert_eq!(tail.exposed, 5040..5100);
    }

    #[test]
    fn a_new_block_is_padded_to_its_end_or_the_files() {
        let inside = span_in_new(&grid(), &target(Before::Free), &(5000..5100), 50_000);
        assert_eq!(
            (inside.sectors.clone(), inside.exposed.clone(), inside.start),
            (4096..12288, 4096..12288, 409_600)
        );
        let tail = span_in_new(&grid(), &target(Before::Free), &(5000..5100), 5100);
        assert_eq!((tail.sectors.clone(), tail.exposed.clone()), (4096..5120, 4096..5100));
    }
}
