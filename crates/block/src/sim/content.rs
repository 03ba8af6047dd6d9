//! Where the bytes of a device lie, when they lie elsewhere: runs of the device, each in a file or zeros. What no run covers is the base's.

use std::collections::BTreeMap;
use std::ops::Range;

/// Where a run of bytes lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Nowhere: they are zeros.
    Zeros,
    /// In one of a recording's files, from an offset in bytes on.
    File {
        /// Which file, counted from 0.
        file: u32,
        /// Offset in the file, in bytes.
        at: u64,
    },
}

impl Source {
    /// Returns where the bytes lie that come `bytes` later.
    pub(super) fn skip(self, bytes: u64) -> Self {
        match self {
            Self::Zeros => Self::Zeros,
            Self::File { file, at } => Self::File { file, at: at + bytes },
        }
    }
}

/// A map from device bytes to their places. Cloning takes time in proportion to the number of runs, not to their bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    /// Start of a run to its end and place. Runs do not overlap.
    runs: BTreeMap<u64, (u64, Source)>,
}

impl Content {
    /// Puts a run over whatever was there.
    pub fn put(&mut self, range: Range<u64>, source: Source) {
        if range.is_empty() {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        let covered: Vec<u64> = self.runs.range(range.clone()).map(|(start, _)| *start).collect();
        for start in covered {
            self.runs.remove(&start);
        }
        self.runs.insert(range.start, (range.end, source));
    }

    /// Makes a run that spans `at` two that meet there.
    fn cut(&mut self, at: u64) {
        let Some((&start, run)) = self.runs.range_mut(..at).next_back() else { return };
        let (end, source) = *run;
        if end > at {
            run.0 = at;
            self.runs.insert(at, (end, source.skip(at - start)));
        }
    }

    /// Returns the pieces of a range in order, each with its place; `None` is the base's.
    pub fn pieces(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<Source>)> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        let before = self.runs.range(..range.start).next_back().filter(|(_, (end, _))| *end > range.start);
        for (&start, &(end, source)) in before.into_iter().chain(self.runs.range(range.clone())) {
            if start > at {
                pieces.push((at..start, None));
            }
            let piece = start.max(at)..end.min(range.end);
            at = piece.end;
            pieces.push((piece.clone(), Some(source.skip(piece.start - start))));
        }
        if at < range.end {
            pieces.push((at..range.end, None));
        }
        pieces
    }

    /// Returns all runs in order.
    pub fn runs(&self) -> impl Iterator<Item = (Range<u64>, Source)> {
        self.runs.iter().map(|(start, (end, source))| (*start..*end, *source))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 64;

    proptest! {
        #[test]
        fn behaves_as_a_plain_array_of_places(changes in prop::collection::vec((0..SIZE, 0..20_u64, any::<bool>()), 0..40)) {
            let mut model = vec![None; SIZE as usize];
            let mut content = Content::default();
            let mut next = 1000;
            for (start, len, zeros) in changes {
                let range = start..(start + len).min(SIZE);
                let source = if zeros { Source::Zeros } else { Source::File { file: 0, at: next } };
                content.put(range.clone(), source);
                for at in range.clone() {
                    model[at as usize] = Some(source.skip(at - range.start));
                }
                next += len;
            }
            for (start, end) in [(0, SIZE), (7, 23), (SIZE / 2, SIZE), (5, 6), (9, 9)] {
                let mut at = start;
                for (piece, source) in content.pieces(start..end) {
                    prop_assert_eq!(piece.start, at);
                    for byte in piece.clone() {
                        prop_assert_eq!(source.map(|source| source.skip(byte - piece.start)), model[byte as usize]);
                    }
                    at = piece.end;
                }
                prop_assert_eq!(at, end);
            }
            prop_assert!(content.runs().zip(content.runs().skip(1)).all(|(first, second)| first.0.end <= second.0.start));
        }
    }
}
