//! Makes a file equal to another one of which it is an older copy, or compares the two.
//!
//! ```text
//! data of the source ─┐
//!                     ├─ pieces ─ source only: written │ both: compared, what differs written │
//! data of the target ─┘           target only: a hole is made
//! ```
//!
//! The source may be in use. What changes under a read is found by the next update, because the
//! state of the source that [`Updated::source`] tells is of the time before the first read.

use std::fs::Metadata;
use std::ops::Range;
use std::path::Path;

use bedplate_block::AlignedBuf;
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::attributes::{self, Left};
use crate::copy::reserve;
use crate::error::{Error, Result};
use crate::file::DirectFile;
use crate::rate::Rate;
use crate::span::{self, Span};
use crate::{Progress, WINDOW_BYTES};

/// How files are updated and compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort<'a> {
    /// Requests that are under way at once, at least one.
    pub(crate) workers: usize,
    /// A limit of bytes a second that is read of the source.
    pub(crate) rate: Option<&'a Rate>,
}

/// What an update did.
#[derive(Debug)]
pub(crate) struct Updated {
    /// The source as it was before anything was read.
    pub(crate) source: Metadata,
    /// Bytes that were read of the source.
    pub(crate) read: u64,
    /// Bytes that differed and were written, or that became a hole.
    pub(crate) written: u64,
    /// What of the source's attributes could not be kept.
    pub(crate) left: Left,
}

/// A part of both files that is looked at in one go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    at: u64,
    len: u64,
    in_source: bool,
    in_target: bool,
}

/// Makes `target` equal to `source`: data, holes, size and attributes. Looks only at `parts` of the
/// files where they are given, ascending; a target that is missing is made.
///
/// # Errors
/// When a file cannot be opened, read or written.
pub(crate) fn update(
    source: &Path,
    target: &Path,
    parts: Option<&[Range<u64>]>,
    effort: Effort<'_>,
    progress: Progress<'_>,
) -> Result<Updated> {
    let from = DirectFile::open_itself(source)?;
    let is = from.metadata()?;
    let into = DirectFile::create_itself(target)?;
    let (size, was) = (is.len(), into.size()?);
    if was != size {
        into.set_size(size)?;
    }
    let grid = from.grid().max(into.grid());
    let (data, there) = (span::data(&from, size, grid)?, span::data(&into, size, grid)?);
    if was == 0 && there.is_empty() {
        reserve(&into, &data, target)?;
    }
    let pieces = pieces(&data, &there, parts, grid);
    let work = Work { from: &from, into: &into, size, grid, effort, progress };
    let (read, written) = work.on_all(pieces, Work::write_differences)?;
    // The last block was written whole.
    into.set_size(size)?;
    let mut left = Left::new();
    attributes::keep(from.system(), &is, into.system(), target, &mut left)?;
    attributes::take_others(from.system(), into.system());
    Ok(Updated { source: is, read, written, left })
}

/// Returns the first byte in which two files differ, if one does.
///
/// # Errors
/// When a file cannot be opened or read.
pub(crate) fn first_difference(
    source: &Path,
    target: &Path,
    effort: Effort<'_>,
    progress: Progress<'_>,
) -> Result<Option<u64>> {
    let (from, into) = (DirectFile::open_itself(source)?, DirectFile::open_itself(target)?);
    let size = from.size()?;
    if into.size()? != size {
        return Ok(Some(size.min(into.size()?)));
    }
    let grid = from.grid().max(into.grid());
    let (data, there) = (span::data(&from, size, grid)?, span::data(&into, size, grid)?);
    let first = Mutex::new(None);
    let work = Work { from: &from, into: &into, size, grid, effort, progress };
    work.on_all(pieces(&data, &there, None, grid), |work, piece, ours, theirs| {
        work.read_both(piece, ours, theirs)?;
        let differs = ours.iter().zip(theirs.iter()).position(|(our, their)| our != their);
        if let Some(at) = differs {
            let mut first = first.lock();
            let at = piece.at + at as u64;
            *first = Some(first.map_or(at, |first: u64| first.min(at)));
        }
        Ok(0)
    })?;
    Ok(first.into_inner())
}

/// Cuts the data of both files into pieces of at most a window.
fn pieces(data: &[Span], there: &[Span], parts: Option<&[Range<u64>]>, grid: u64) -> Vec<Piece> {
    let mut edges: Vec<u64> = data
        .iter()
        .chain(there)
        .flat_map(|span| [span.target, (span.target + span.len).next_multiple_of(grid)])
        .chain(parts.into_iter().flatten().flat_map(|part| {
            let part = span::around(part, grid);
            [part.start, part.end]
        }))
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let (mut data, mut there) = (Cursor::new(data), Cursor::new(there));
    let parts: Option<Vec<Span>> = parts.map(|parts| {
        let span = |part: &Range<u64>| {
            let part = span::around(part, grid);
            Span { source: part.start, target: part.start, len: part.end - part.start }
        };
        parts.iter().map(span).collect()
    });
    let mut wanted = parts.as_deref().map(Cursor::new);
    let mut pieces = Vec::new();
    for pair in edges.windows(2) {
        let (mut at, end) = (pair[0], pair[1]);
        let (in_source, in_target) = (data.holds(at), there.holds(at));
        let is_wanted = wanted.as_mut().is_none_or(|wanted| wanted.holds(at));
        while is_wanted && (in_source || in_target) && at < end {
            let len = (end - at).min(WINDOW_BYTES as u64);
            pieces.push(Piece { at, len, in_source, in_target });
            at += len;
        }
    }
    pieces
}

/// Walks along spans with bytes that ascend.
struct Cursor<'a> {
    spans: &'a [Span],
}

impl<'a> Cursor<'a> {
    fn new(spans: &'a [Span]) -> Self {
        Self { spans }
    }

    fn holds(&mut self, at: u64) -> bool {
        while let Some(first) = self.spans.first()
            && first.target + first.len <= at
        {
            self.spans = &self.spans[1..];
        }
        self.spans.first().is_some_and(|first| first.target <= at)
    }
}

/// Two files whose pieces are looked at.
struct Work<'a> {
    from: &'a DirectFile,
    into: &'a DirectFile,
    size: u64,
    grid: u64,
    effort: Effort<'a>,
    progress: Progress<'a>,
}

impl Work<'_> {
    /// Does `step` on all pieces, with memory for the bytes of both files; returns the bytes that
    /// were read of the source, and the sum of what the steps return.
    fn on_all(
        &self,
        pieces: Vec<Piece>,
        step: impl Fn(&Self, &Piece, &mut [u8], &mut [u8]) -> Result<u64> + Sync,
    ) -> Result<(u64, u64)> {
        let largest = pieces.iter().map(|piece| piece.len).max().unwrap_or(0);
        let workers = self.effort.workers.clamp(1, pieces.len().max(1));
        let state = Mutex::new((pieces.into_iter(), None, (0, 0)));
        let worker = || {
            let len = largest.next_multiple_of(self.grid) as usize;
            let (mut ours, mut theirs) = (AlignedBuf::zeroed(len), AlignedBuf::zeroed(len));
            loop {
                let next = {
                    let mut state = state.lock();
                    if state.1.is_some() { None } else { state.0.next() }
                };
                let Some(piece) = next else { break };
                let len = piece.len.next_multiple_of(self.grid) as usize;
                if let Some(rate) = self.effort.rate {
                    rate.take(piece.len);
                }
                let done = step(self, &piece, &mut ours[..len], &mut theirs[..len]);
                let read = if piece.in_source { piece.len } else { 0 };
                (self.progress)(read.min(self.size.saturating_sub(piece.at)));
                let mut state = state.lock();
                match done {
                    Ok(written) => state.2 = (state.2.0 + read, state.2.1 + written),
                    Err(error) => state.1 = Some(error),
                }
            }
        };
        if workers == 1 {
            worker();
        } else {
            std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(worker))));
        }
        let (_, failure, done): (_, Option<Error>, _) = state.into_inner();
        failure.map_or(Ok(done), Err)
    }

    fn read_both(&self, piece: &Piece, ours: &mut [u8], theirs: &mut [u8]) -> Result<()> {
        read_filled(self.from, ours, piece.at)?;
        read_filled(self.into, theirs, piece.at)
    }

    /// Writes what differs in a piece, in runs of whole blocks.
    fn write_differences(&self, piece: &Piece, ours: &mut [u8], theirs: &mut [u8]) -> Result<u64> {
        if !piece.in_source {
            self.make_hole(piece, ours)?;
            return Ok(piece.len);
        }
        read_filled(self.from, ours, piece.at)?;
        if !piece.in_target {
            self.into.write(ours, piece.at)?;
            return Ok(ours.len() as u64);
        }
        read_filled(self.into, theirs, piece.at)?;
        let grid = self.grid as usize;
        let mut written = 0;
        let mut from = None;
        for at in (0..=ours.len()).step_by(grid) {
            let differs = at < ours.len() && ours[at..at + grid] != theirs[at..at + grid];
            match (from, differs) {
                (None, true) => from = Some(at),
                (Some(start), false) => {
                    self.into.write(&ours[start..at], piece.at + start as u64)?;
                    written += (at - start) as u64;
                    from = None;
                }
                _ => {}
            }
        }
        Ok(written)
    }

    fn make_hole(&self, piece: &Piece, zeros: &mut [u8]) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(self.into.system(), flags, piece.at, piece.len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                zeros.fill(0);
                self.into.write(zeros, piece.at)
            }
            Err(error) => Err(Error::system("make a hole in", self.into.path(), &error.into())),
        }
    }
}

/// Reads whole blocks; what lies behind the end of the file is zero.
fn read_filled(file: &DirectFile, buf: &mut [u8], at: u64) -> Result<()> {
    let read = file.read(buf, at)?;
    buf[read..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    const EFFORT: Effort<'static> = Effort { workers: 3, rate: None };

    fn none(_: u64) {}

    #[test]
    fn pieces_tell_on_which_side_there_is_data() {
        let span = |at, len| Span { source: at, target: at, len };
        let piece = |at, len, in_source, in_target| Piece { at, len, in_source, in_target };
        let (data, there) = ([span(0, 8), span(16, 5)], [span(4, 8)]);
        let all = pieces(&data, &there, None, 4);
        let expected = [
            piece(0, 4, true, false),
            piece(4, 4, true, true),
            piece(8, 4, false, true),
            piece(16, 8, true, false),
        ];
        assert_eq!(all, expected);
        let parts = [5..6, 17..30];
        assert_eq!(
            pieces(&data, &there, Some(&parts), 4),
            [piece(4, 4, true, true), piece(16, 8, true, false)]
        );
    }

    #[test]
    fn only_what_differs_is_written_and_holes_are_made() {
        let scratch = tempfile::tempdir().unwrap();
        let (source, target) = (scratch.path().join("a"), scratch.path().join("b"));
        let file = std::fs::File::create(&source).unwrap();
        let bytes: Vec<u8> = (0..9_000_001_u32).map(|at| (at % 251) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"far", (1 << 40) - 9).unwrap();
        let first = update(&source, &target, None, EFFORT, &none).unwrap();
        assert!(first.written >= bytes.len() as u64, "{first:?}");
        assert_eq!(first_difference(&source, &target, EFFORT, &none).unwrap(), None);

        file.write_all_at(b"changed", 5_000_000).unwrap();
        let at = first_difference(&source, &target, EFFORT, &none).unwrap();
        assert_eq!(at, Some(5_000_000));
        let second = update(&source, &target, None, EFFORT, &none).unwrap();
        assert!((4096..=8192).contains(&second.written), "{second:?}");
        let part = std::slice::from_ref(&(6_000_000..6_000_001));
        file.write_all_at(b"!", 6_000_000).unwrap();
        let third = update(&source, &target, Some(part), EFFORT, &none).unwrap();
        assert_eq!((third.read, third.written), (4096, 4096), "one block is looked at");
        assert_eq!(first_difference(&source, &target, EFFORT, &none).unwrap(), None);

        file.set_len(0).unwrap();
        file.set_len(8_000_001).unwrap();
        file.write_all_at(b"new", 100).unwrap();
        update(&source, &target, None, EFFORT, &none).unwrap();
        assert_eq!(first_difference(&source, &target, EFFORT, &none).unwrap(), None);
        let (ours, theirs) = (file.metadata().unwrap(), target.metadata().unwrap());
        assert_eq!((ours.len(), ours.mtime_nsec()), (theirs.len(), theirs.mtime_nsec()));
        assert!(theirs.blocks() <= ours.blocks() + 8, "{} blocks of 512 bytes", theirs.blocks());
    }
}
