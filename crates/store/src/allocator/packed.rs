//! The free blocks of one region in little memory: four bytes a run where there are few, else a bit
//! a block.
//!
//! ```text
//!   up to 512 free runs: (first, last) each, in order        more: a map of bits, 1 is free
//! ```
//!
//! A change costs the length of the runs around it, not that of the region.

use std::ops::Range;

/// More runs than these are bits: then these take less.
const RUNS_MAX: usize = 512;
const WORD: u32 = u64::BITS;

/// The free blocks of a region, by their distance from its first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Packed {
    /// First and last block of each run; no two touch.
    Runs(Vec<(u16, u16)>),
    Bits(Box<[u64]>),
}

fn short(block: u32) -> u16 {
    u16::try_from(block).expect("a region has 2^15 blocks at most")
}

impl Packed {
    /// Packs runs that are in order and apart, of a region of so many blocks.
    pub(super) fn of(runs: &[Range<u32>], blocks: u32) -> Self {
        if runs.len() <= RUNS_MAX {
            return Self::Runs(
                runs.iter().map(|run| (short(run.start), short(run.end - 1))).collect(),
            );
        }
        let mut bits = vec![0; blocks.div_ceil(WORD) as usize].into_boxed_slice();
        runs.iter().for_each(|run| fill(&mut bits, run, true));
        Self::Bits(bits)
    }

    /// Returns the free runs, in order and apart.
    pub(super) fn runs(&self) -> Vec<Range<u32>> {
        match self {
            Self::Runs(runs) => {
                runs.iter().map(|(first, last)| u32::from(*first)..u32::from(*last) + 1).collect()
            }
            Self::Bits(bits) => {
                let (mut runs, mut at) = (Vec::new(), 0);
                while let Some(start) = next(bits, at, true) {
                    let end = next(bits, start, false).unwrap_or(bits.len() as u32 * WORD);
                    runs.push(start..end);
                    at = end;
                }
                runs
            }
        }
    }

    /// The free run that has a block among its own.
    pub(super) fn run_at(&self, block: u32) -> Option<Range<u32>> {
        match self {
            Self::Runs(runs) => {
                let index = runs.partition_point(|(first, _)| u32::from(*first) <= block);
                let (first, last) = *runs.get(index.checked_sub(1)?)?;
                (u32::from(last) >= block).then(|| u32::from(first)..u32::from(last) + 1)
            }
            Self::Bits(bits) => {
                let is_free = bits.get((block / WORD) as usize)? >> (block % WORD) & 1 == 1;
                is_free.then(|| {
                    let end = next(bits, block, false).unwrap_or(bits.len() as u32 * WORD);
                    before(bits, block)..end
                })
            }
        }
    }

    /// Whether a block of a range is free.
    pub(super) fn meets(&self, range: &Range<u32>) -> bool {
        match self {
            Self::Runs(runs) => {
                let index = runs.partition_point(|(first, _)| u32::from(*first) < range.end);
                runs[..index].last().is_some_and(|(_, last)| u32::from(*last) >= range.start)
            }
            Self::Bits(bits) => next(bits, range.start, true).is_some_and(|at| at < range.end),
        }
    }

    /// Makes blocks free, none of which is; returns the run that they are part of then.
    pub(super) fn insert(&mut self, range: &Range<u32>, blocks: u32) -> Range<u32> {
        assert!(!self.meets(range), "blocks are freed once: {range:?} of a region");
        let left = range.start.checked_sub(1).and_then(|at| self.run_at(at));
        let right = self.run_at(range.end);
        let joined = left.as_ref().map_or(range.start, |run| run.start)
            ..right.as_ref().map_or(range.end, |run| run.end);
        match self {
            Self::Bits(bits) => fill(bits, range, true),
            Self::Runs(runs) => {
                let from = runs.partition_point(|(first, _)| u32::from(*first) < joined.start);
                let gone = usize::from(left.is_some()) + usize::from(right.is_some());
                let run = (short(joined.start), short(joined.end - 1));
                runs.splice(from..from + gone, [run]);
                if runs.len() > RUNS_MAX {
                    *self = Self::of(&self.runs(), blocks);
                }
            }
        }
        joined
    }

    /// Takes blocks of one free run.
    pub(super) fn remove(&mut self, range: &Range<u32>, blocks: u32) {
        let run = self.run_at(range.start).expect("what is taken is free");
        assert!(range.end <= run.end && range.start < range.end, "{range:?} is taken of {run:?}");
        match self {
            Self::Bits(bits) => fill(bits, range, false),
            Self::Runs(runs) => {
                let at = runs.partition_point(|(first, _)| u32::from(*first) < run.start);
                let rests = [run.start..range.start, range.end..run.end];
                let rests = rests.into_iter().filter(|rest| !rest.is_empty());
                runs.splice(at..=at, rests.map(|rest| (short(rest.start), short(rest.end - 1))));
                if runs.len() > RUNS_MAX {
                    *self = Self::of(&self.runs(), blocks);
                }
            }
        }
    }

    /// Memory that it takes, about.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Runs(runs) => runs.capacity() * size_of::<(u16, u16)>(),
            Self::Bits(bits) => size_of_val(&**bits),
        }
    }

    /// The length of the longest free run.
    pub(super) fn longest(&self) -> u32 {
        self.runs().iter().map(ExactSizeIterator::len).max().unwrap_or(0) as u32
    }
}

/// The bits of a word from one on, up to another.
fn mask(from: u32, to: u32) -> u64 {
    let upto = |bit: u32| if bit == WORD { u64::MAX } else { (1 << bit) - 1 };
    upto(to) & !upto(from)
}

fn fill(bits: &mut [u64], range: &Range<u32>, is_free: bool) {
    let mut at = range.start;
    while at < range.end {
        let to = range.end.min((at / WORD + 1) * WORD);
        let part = mask(at % WORD, to - at / WORD * WORD);
        let word = &mut bits[(at / WORD) as usize];
        *word = if is_free { *word | part } else { *word & !part };
        at = to;
    }
}

/// The first block from one on that is free, or is not.
fn next(bits: &[u64], from: u32, is_free: bool) -> Option<u32> {
    let mut below = mask(from % WORD, WORD);
    for (index, word) in bits.iter().enumerate().skip((from / WORD) as usize) {
        let found = (if is_free { *word } else { !word }) & below;
        if found != 0 {
            return Some(index as u32 * WORD + found.trailing_zeros());
        }
        below = u64::MAX;
    }
    None
}

/// Where the free run begins that has a block among its own.
fn before(bits: &[u64], block: u32) -> u32 {
    let mut below = mask(0, block % WORD);
    for index in (0..=(block / WORD) as usize).rev() {
        let used = !bits[index] & below;
        if used != 0 {
            return index as u32 * WORD + WORD - used.leading_zeros();
        }
        below = u64::MAX;
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u32 = 4096;

    fn runs_of(free: &[bool]) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for at in (0..BLOCKS).filter(|at| free[*at as usize]) {
            match runs.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn what_is_packed_is_what_an_array_says(
            every in 2..9_u32,
            steps in proptest::collection::vec((0..BLOCKS, 1..200_u32), 1..60),
        ) {
            // From lists to bits, and from bits.
            let mut free: Vec<bool> = (0..BLOCKS).map(|at| at % every == 0).collect();
            let mut packed = Packed::of(&runs_of(&free), BLOCKS);
            for (start, len) in steps {
                let end = (start + len).min(BLOCKS);
                let met = free[start as usize..end as usize].contains(&true);
                prop_assert_eq!(packed.meets(&(start..end)), met);
                let run = runs_of(&free).into_iter().find(|run| run.contains(&start));
                prop_assert_eq!(packed.run_at(start), run.clone());
                if let Some(run) = run {
                    let range = start..end.min(run.end);
                    packed.remove(&range, BLOCKS);
                    free[range.start as usize..range.end as usize].fill(false);
                } else if !met {
                    let joined = packed.insert(&(start..end), BLOCKS);
                    free[start as usize..end as usize].fill(true);
                    prop_assert!(runs_of(&free).contains(&joined));
                }
                let runs = runs_of(&free);
                prop_assert_eq!(packed.longest() as usize, runs.iter().map(ExactSizeIterator::len).max().unwrap_or(0));
                prop_assert_eq!(packed.runs(), runs);
            }
        }
    }
}
