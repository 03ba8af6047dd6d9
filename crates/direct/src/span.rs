//! Which parts of a file are data, and the windows in which they are copied.

use std::collections::BTreeSet;
use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::error::{Result, system};
use crate::file::DirectFile;

/// Bytes that go from one place of the source to one of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) source: u64,
    pub(crate) target: u64,
    pub(crate) len: u64,
}

/// Lists the data of a file before `size`, whole blocks of both grids; holes are left out. A file
/// system that tells no holes has one span.
pub(crate) fn data(file: &DirectFile, size: u64, grid: u64) -> Result<Vec<Span>> {
    let explain = system("look for holes in", file.path());
    let mut spans: Vec<Span> = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file.system(), SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(error) => return Err(explain(error)),
        };
        let end = match rustix::fs::seek(file.system(), SeekFrom::Hole(start)) {
            Ok(end) => end.min(size),
            // The file became shorter, which is told when all is read.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => size,
            Err(error) => return Err(explain(error)),
        };
        let start =
            (start / grid * grid).max(spans.last().map_or(0, |last| last.source + last.len));
        let end = end.next_multiple_of(grid).min(size);
        if start < end {
            spans.push(Span { source: start, target: start, len: end - start });
        }
        at = end.max(at + 1);
    }
    debug_assert!(
        spans.windows(2).all(|pair| pair[0].source + pair[0].len <= pair[1].source)
            && spans.last().is_none_or(|last| last.source + last.len <= size),
        "parts of a file follow each other and end with it: {spans:?} of {size}"
    );
    Ok(spans)
}

/// Hands out the windows of spans in order, and knows up to where all before is done.
#[derive(Debug)]
pub(crate) struct Windows {
    spans: std::vec::IntoIter<Span>,
    /// What of the present span is left.
    rest: Option<Span>,
    window: u64,
    under_way: BTreeSet<u64>,
    /// The end of what was handed out last.
    end: u64,
}

impl Windows {
    /// Cuts spans at multiples of `window` in the target.
    pub(crate) fn new(spans: Vec<Span>, window: u64) -> Self {
        Self { spans: spans.into_iter(), rest: None, window, under_way: BTreeSet::new(), end: 0 }
    }

    /// Hands out the next window.
    pub(crate) fn next(&mut self) -> Option<Span> {
        let span = match self.rest.take() {
            Some(rest) => rest,
            None => self.spans.find(|span| span.len > 0)?,
        };
        let boundary = (span.target / self.window + 1).saturating_mul(self.window);
        let len = span.len.min(boundary - span.target);
        if len < span.len {
            self.rest = Some(Span {
                source: span.source + len,
                target: span.target + len,
                len: span.len - len,
            });
        }
        debug_assert!(
            len > 0 && span.target >= self.end && span.target % self.window + len <= self.window,
            "windows go up, and none passes a boundary: {len} at {}",
            span.target
        );
        self.under_way.insert(span.target);
        self.end = span.target + len;
        Some(Span { len, ..span })
    }

    /// Notes that a window is written.
    pub(crate) fn finish(&mut self, window: &Span) {
        let was_under_way = self.under_way.remove(&window.target);
        assert!(was_under_way, "a window is finished once: {window:?}");
    }

    /// Returns up to where everything is written.
    pub(crate) fn written_up_to(&self) -> u64 {
        self.under_way.first().copied().unwrap_or(self.end)
    }
}

/// Leaves out what lies before a byte.
pub(crate) fn from(spans: Vec<Span>, at: u64) -> Vec<Span> {
    let cut = |span: Span| {
        let passed = at.saturating_sub(span.source).min(span.len);
        Span { source: span.source + passed, target: span.target + passed, len: span.len - passed }
    };
    debug_assert!(
        spans.is_sorted_by_key(|span| span.source),
        "parts that are gone on with are in order"
    );
    spans.into_iter().map(cut).filter(|span| span.len > 0).collect()
}

/// Returns the whole blocks of a grid around a range.
pub(crate) fn around(range: &Range<u64>, grid: u64) -> Range<u64> {
    range.start / grid * grid..range.end.next_multiple_of(grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(at: u64, len: u64) -> Span {
        Span { source: at, target: at, len }
    }

    #[test]
    fn windows_end_at_boundaries_and_tell_what_is_done() {
        let mut windows = Windows::new(vec![span(2, 7), span(12, 1)], 4);
        let handed: Vec<_> = std::iter::from_fn(|| windows.next()).collect();
        assert_eq!(handed, [span(2, 2), span(4, 4), span(8, 1), span(12, 1)]);
        assert_eq!(windows.written_up_to(), 2);
        windows.finish(&span(4, 4));
        assert_eq!(windows.written_up_to(), 2, "the first is under way");
        windows.finish(&span(2, 2));
        assert_eq!(windows.written_up_to(), 8);
        windows.finish(&span(8, 1));
        windows.finish(&span(12, 1));
        assert_eq!(windows.written_up_to(), 13);
    }

    #[test]
    fn a_copy_goes_on_within_a_span() {
        assert_eq!(from(vec![span(0, 4), span(8, 8), span(20, 4)], 10), [span(10, 6), span(20, 4)]);
    }
}
