//! A set of file blocks: those whose data is in the library cache and that have blocks of the
//! volume reserved.

use std::ops::Range;

use bedplate_block::IntervalMap;

/// A set of file blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockSet(IntervalMap<()>);

impl BlockSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many blocks are in it.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(range, ())| range.end - range.start).sum()
    }

    /// Takes a range out; returns what of it was in.
    pub(crate) fn remove(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.0.remove(range).into_iter().map(|(removed, ())| removed).collect()
    }

    /// Puts a range in; none of it is in yet.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        debug_assert!(range.start < range.end, "I-SPC-5: blocks are reserved: {range:?}");
        self.0.grow(range, || (), |(), ()| ());
    }

    /// Returns the parts of a range that are not in.
    pub(crate) fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.0.gaps(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_blocks_is_a_set_of_blocks() {
        let mut set = BlockSet::default();
        let mut model = std::collections::BTreeSet::new();
        let mut random = 7u64;
        for _ in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = random >> 33 & 31;
            let range = start..start + 1 + (random >> 40 & 7);
            let missing = set.missing(range.clone());
            let expected: Vec<u64> = range.clone().filter(|block| !model.contains(block)).collect();
            assert_eq!(missing.iter().cloned().flatten().collect::<Vec<_>>(), expected);
            if random >> 50 & 1 == 0 {
                missing.into_iter().for_each(|range| set.insert(range));
                model.extend(range);
            } else {
                let removed: Vec<u64> = set.remove(&range).into_iter().flatten().collect();
                assert_eq!(
                    removed,
                    range.clone().filter(|block| model.remove(block)).collect::<Vec<_>>()
                );
            }
            let ranges: Vec<Range<u64>> = set.0.iter().map(|(range, ())| range).collect();
            assert!(
                ranges.windows(2).all(|pair| pair[0].end < pair[1].start),
                "joined and in order: {ranges:?}"
            );
        }
    }
}
