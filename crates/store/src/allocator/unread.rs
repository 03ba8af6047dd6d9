//! The regions whose free runs are not in memory yet.
//!
//! A mount knows of each how much is free, and the longest run. What allocates in one, or gives
//! blocks back to it, reads its free runs first; so does a metadata commit that changes what is
//! stored of it (I-SPC-7). Metadata takes what is in memory only: it asks in the middle of a commit
//! of the tree, which then cannot be read.
//!
//! ```text
//!   asked for n blocks: the run behind the goal ─► the tightest run in memory, if it is no longer than a region
//!                       ─► an unread region that has a run of n ─► the tightest run in memory ─► the longest of all
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Weak};

use super::filter::Filter;
use super::groups::tell_double;
use super::packed::Packed;
use super::{AllocRequest, Allocator, Inner, SpaceClass};
use crate::extent::Run;
use crate::planted::{PlantedBug, planted};
use crate::{BlockNo, Error, ErrorKind, Result};

/// Reads the free runs of regions as the last metadata commit left them. Called with the
/// allocator's mutex held: it takes none but leaves.
pub(crate) trait RegionSource: fmt::Debug + Send + Sync {
    /// Returns those of one region, in order, without the volume's own blocks.
    fn free_runs(&self, region: u64) -> Result<Vec<Run>>;
}

/// A region that is not read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unread {
    /// Its number.
    pub(crate) region: u64,
    /// Free blocks.
    pub(crate) free: u64,
    /// The longest free run.
    pub(crate) longest: u64,
    /// Number of free runs.
    pub(crate) runs: u64,
}

/// Lengths of runs, in powers of two of blocks.
const CLASSES: usize = 16;
/// How many regions of one class are looked at for one that has a long enough run.
const LOOKS: usize = 64;
/// Bits of the table of regions that are not in the indexes.
const FILTER_BITS_MAX: u32 = 16;

/// The regions whose free runs are not in the indexes: they are not read, or packed.
#[derive(Debug, Default)]
pub(super) struct UnreadRegions {
    /// Blocks of a region, in powers of two.
    shift: u32,
    /// As `regions`, for what has no lock.
    filter: Arc<Filter>,
    /// `None`: there are none, and never were.
    source: Option<Weak<dyn RegionSource>>,
    regions: BTreeMap<u64, Unread>,
    /// Those of them that are in memory.
    packed: BTreeMap<u64, Packed>,
    /// All of them, by the length of their longest run.
    by_longest: [BTreeSet<u64>; CLASSES],
    /// Free blocks in `regions`.
    pub(super) free: u64,
    /// Free blocks in `packed`.
    pub(super) packed_free: u64,
    runs: u64,
    /// The volume's own blocks: the last by the first. They do not overlap.
    own: BTreeMap<u64, u64>,
}

/// A region that a mount does not put into the indexes; with its free runs, by their distance from
/// its first block, where it was read.
pub(crate) type Closed = (Unread, Option<Vec<Range<u32>>>);

fn class(blocks: u64) -> usize {
    (blocks.max(1).ilog2() as usize).min(CLASSES - 1)
}

impl UnreadRegions {
    fn new(
        (shift, regions): (u32, u64),
        source: Weak<dyn RegionSource>,
        closed: Vec<Closed>,
        own: &[Run],
    ) -> Self {
        let mut by_longest: [Vec<u64>; CLASSES] = Default::default();
        closed.iter().for_each(|(one, _)| by_longest[class(one.longest)].push(one.region));
        let packed: BTreeMap<u64, Packed> = closed
            .iter()
            .filter_map(|(one, runs)| Some((one.region, Packed::of(runs.as_ref()?, 1 << shift))))
            .collect();
        let packed_free =
            closed.iter().filter(|(_, runs)| runs.is_some()).map(|(one, _)| one.free).sum();
        let filter = Arc::new(Filter::of(regions, FILTER_BITS_MAX));
        closed.iter().for_each(|(one, _)| filter.add(one.region));
        Self {
            shift,
            filter,
            source: Some(source),
            free: closed.iter().map(|(one, _)| one.free).sum(),
            runs: closed.iter().map(|(one, _)| one.runs).sum(),
            packed,
            packed_free,
            by_longest: by_longest.map(|of_class| of_class.into_iter().collect()),
            own: own.iter().map(|run| (run.start.0, run.end())).collect(),
            regions: closed.into_iter().map(|(one, _)| (one.region, one)).collect(),
        }
    }

    /// Which regions are not in the indexes, for what has no lock.
    pub(super) fn filter(&self) -> Arc<Filter> {
        Arc::clone(&self.filter)
    }

    /// Takes a region among those that are not in the indexes.
    pub(super) fn add(&mut self, one: Unread, packed: Option<Packed>) {
        self.filter.add(one.region);
        self.free += one.free;
        self.runs += one.runs;
        self.by_longest[class(one.longest)].insert(one.region);
        if let Some(packed) = packed {
            self.packed_free += one.free;
            self.packed.insert(one.region, packed);
        }
        let before = self.regions.insert(one.region, one);
        debug_assert!(before.is_none(), "I-SPC-9: region {} is packed once", one.region);
    }

    /// Has blocks of a packed region free, or not any more.
    pub(super) fn change(&mut self, region: u64, range: Range<u64>, is_free: bool) {
        let Some((mut one, Some(mut packed))) = self.remove(region) else {
            unreachable!("I-SPC-9: region {region} is packed")
        };
        let (first, blocks) = (region << self.shift, range.end - range.start);
        let within = |at: u64| u32::try_from(at - first).expect("a region is small");
        let range = within(range.start)..within(range.end);
        if is_free {
            let run = packed.insert(&range, self.region_blocks());
            one.free += blocks;
            one.runs += 1;
            one.runs -= u64::from(run.start < range.start) + u64::from(run.end > range.end);
            one.longest = one.longest.max(u64::from(run.end - run.start));
        } else {
            let run = packed.run_at(range.start).expect("what is taken is free");
            packed.remove(&range, self.region_blocks());
            one.free -= blocks;
            one.runs += u64::from(run.start < range.start) + u64::from(run.end > range.end);
            one.runs -= 1;
            if u64::from(run.end - run.start) == one.longest {
                one.longest = u64::from(packed.longest());
            }
        }
        self.add(one, Some(packed));
    }

    pub(super) fn region_blocks(&self) -> u32 {
        1 << self.shift
    }

    pub(super) fn region_of(&self, block: u64) -> u64 {
        block >> self.shift
    }

    /// The blocks of a region.
    pub(super) fn bounds(&self, region: u64) -> Range<u64> {
        region << self.shift..(region + 1) << self.shift
    }

    pub(super) fn is_closed(&self, region: u64) -> bool {
        self.regions.contains_key(&region)
    }

    pub(super) fn is_packed(&self, region: u64) -> bool {
        self.packed.contains_key(&region)
    }

    /// The first packed region of a range of blocks.
    pub(super) fn first_packed(&self, range: Range<u64>) -> Option<u64> {
        if self.packed.is_empty() || range.is_empty() {
            return None;
        }
        let (first, last) = (range.start >> self.shift, (range.end - 1) >> self.shift);
        self.packed.range(first..=last).next().map(|(region, _)| *region)
    }

    /// The free run of a packed region that has a block among its own.
    pub(super) fn packed_run_at(&self, block: u64) -> Option<Range<u64>> {
        let first = block >> self.shift << self.shift;
        let packed = self.packed.get(&(block >> self.shift))?;
        let run = packed.run_at(u32::try_from(block - first).expect("a region is small"))?;
        Some(first + u64::from(run.start)..first + u64::from(run.end))
    }

    /// Whether a block of a run is free in a packed region.
    pub(super) fn packed_meets(&self, run: Run) -> bool {
        let mut at = run.start.0;
        while let Some(region) = self.first_packed(at..run.end()) {
            let bounds = self.bounds(region);
            let within = |at: u64| u32::try_from(at - bounds.start).expect("a region is small");
            let range = within(at.max(bounds.start))..within(run.end().min(bounds.end));
            if self.packed.get(&region).is_some_and(|packed| packed.meets(&range)) {
                return true;
            }
            at = bounds.end;
        }
        false
    }

    /// Reads the free runs of a region. What cannot be read, or is not what was said of it, counts
    /// as used.
    pub(super) fn read(&self, unread: &Unread) -> Option<Vec<Run>> {
        let (region, source) = (unread.region, self.source.as_ref().and_then(Weak::upgrade));
        let runs = match source {
            Some(source) => source.free_runs(region),
            None => Err(Error::new(ErrorKind::Busy, "the volume was unmounted")),
        };
        match runs {
            Ok(runs) if runs.iter().map(|run| run.blocks).sum::<u64>() == unread.free => {
                return Some(runs);
            }
            Ok(_) => tracing::error!(
                "{} blocks of region {region} are not used until a check mends the free space: its \
                 summary is not of them",
                unread.free
            ),
            Err(error) => tracing::error!(
                "{} blocks of region {region} are not used until the next mount: {error}",
                unread.free
            ),
        }
        None
    }

    /// Whether the free space was read from what is stored.
    pub(super) fn is_stored(&self) -> bool {
        self.source.is_some()
    }

    pub(super) fn runs(&self) -> u64 {
        self.runs
    }

    /// Takes note of blocks that the volume keeps for itself.
    pub(super) fn note_own(&mut self, run: Run) {
        if self.is_stored() {
            self.own.insert(run.start.0, run.end());
        }
    }

    /// The volume gave blocks of its own back.
    pub(super) fn forget_own(&mut self, run: Run) {
        while let Some((&start, &end)) =
            self.own.range(..run.end()).next_back().filter(|(_, end)| **end > run.start.0)
        {
            self.own.remove(&start);
            for part in [start..run.start.0, run.end()..end] {
                if part.start < part.end {
                    self.own.insert(part.start, part.end);
                }
            }
        }
    }

    /// Whether blocks can be of a file. Where no extent was read at mount, a damaged
    /// one may have said anything.
    pub(super) fn may_be_of_file(&self, run: Run, end: u64) -> bool {
        let may = !self.is_stored()
            || (run.start.0.checked_add(run.blocks).is_some_and(|last| last <= end)
                && !self.owns(run));
        if !may {
            tracing::error!(
                "{} blocks from block {} are said to be of a file, and cannot be: run a check",
                run.blocks,
                run.start.0
            );
        }
        may
    }

    fn owns(&self, run: Run) -> bool {
        self.own.range(..run.end()).next_back().is_some_and(|(_, end)| *end > run.start.0)
    }

    pub(super) fn remove(&mut self, region: u64) -> Option<(Unread, Option<Packed>)> {
        let one = self.regions.remove(&region)?;
        self.filter.remove(region);
        self.free -= one.free;
        self.runs -= one.runs;
        self.by_longest[class(one.longest)].remove(&region);
        let packed = self.packed.remove(&region);
        if packed.is_some() {
            self.packed_free -= one.free;
        }
        Some((one, packed))
    }

    /// A region that has a run of so many blocks; one with a run that is hardly longer, if that is
    /// found soon. `reads`: it need not be in memory.
    fn fitting(&self, blocks: u64, reads: bool) -> Option<u64> {
        let may = |region: &&u64| reads || self.packed.contains_key(region);
        let fits = |region: &&u64| self.regions[region].longest >= blocks;
        self.by_longest[class(blocks)..]
            .iter()
            .find_map(|of_class| of_class.iter().take(LOOKS).filter(may).find(fits))
            .copied()
    }

    /// A region of some, in memory or not, that has a run of so many blocks.
    pub(super) fn with_run(&self, blocks: u64, regions: RangeInclusive<u64>) -> Option<u64> {
        let fits = |region: &&u64| self.regions[region].longest >= blocks;
        let classes = self.by_longest[class(blocks)..].iter();
        classes.filter_map(|of_class| of_class.range(regions.clone()).find(fits)).next().copied()
    }

    /// The region with a run about as long as the longest. `reads`: it need not be in memory.
    pub(super) fn longest(&self, reads: bool) -> Option<Unread> {
        let may = |region: &&u64| reads || self.packed.contains_key(region);
        let region = self.by_longest.iter().rev().find_map(|of_class| of_class.iter().find(may))?;
        self.regions.get(region).copied()
    }

    /// Regions that are not in memory and have so many free blocks together, those with the longest
    /// runs first; all of them where that is too few.
    fn longest_unread(&self, blocks: u64) -> Vec<u64> {
        let mut found = 0;
        let all = self.by_longest.iter().rev().flatten();
        all.filter(|region| !self.packed.contains_key(region))
            .take_while(|region| {
                let goes_on = found < blocks;
                found += self.regions[region].free;
                goes_on
            })
            .copied()
            .collect()
    }

    /// Memory that packed regions take, about.
    #[cfg(test)]
    pub(super) fn packed_bytes(&self) -> usize {
        self.packed.values().map(Packed::bytes).sum()
    }

    /// Checks that what is told of regions is of their packed runs (I-SPC-9).
    #[cfg(test)]
    pub(super) fn check(&self) {
        let sum = |of: fn(&Unread) -> u64| self.regions.values().map(of).sum::<u64>();
        assert_eq!((self.free, self.runs), (sum(|one| one.free), sum(|one| one.runs)));
        let mut packed_free = 0;
        for (region, packed) in &self.packed {
            let lengths: Vec<u64> =
                packed.runs().iter().map(|run| u64::from(run.end - run.start)).collect();
            let one = self.regions[region];
            assert_eq!(one.free, lengths.iter().sum::<u64>(), "I-SPC-9");
            assert_eq!(one.longest, lengths.iter().copied().max().unwrap_or(0), "I-SPC-9");
            assert_eq!(one.runs, lengths.len() as u64, "I-SPC-9");
            assert!(self.by_longest[class(one.longest)].contains(region), "I-SPC-9");
            packed_free += one.free;
        }
        assert_eq!(self.packed_free, packed_free);
    }

    pub(super) fn in_run(&self, run: Run) -> Vec<u64> {
        if run.blocks == 0 || self.regions.is_empty() {
            return Vec::new();
        }
        let last = (run.end() - 1) >> self.shift;
        self.regions.range(run.start.0 >> self.shift..=last).map(|(region, _)| *region).collect()
    }
}

impl Allocator {
    /// Makes the space of a volume in which `free` (sorted, apart) is free, and what is free in
    /// `closed` regions; `own` blocks (sorted, apart) are parts of the volume itself.
    pub(crate) fn over(
        block_size: u32,
        blocks: u64,
        free: impl Iterator<Item = Run>,
        closed: Vec<Closed>,
        shift: u32,
        source: Weak<dyn RegionSource>,
        own: &[Run],
    ) -> Self {
        let mut space = Self::new(block_size, blocks, free);
        let unread = UnreadRegions::new((shift, (blocks >> shift) + 1), source, closed, own);
        (space.closed, space.region_shift) = (unread.filter(), shift);
        space.turn().unread = unread;
        space
    }

    /// Returns whether an extent may lie there: within the volume, and not where its own parts lie.
    /// Where all extents were read at mount, that is known.
    pub fn may_hold_data(&self, run: Run) -> bool {
        let inner = self.turn();
        inner.unread.may_be_of_file(run, inner.end)
    }

    /// Has regions in memory that are not.
    pub(crate) fn load_regions(&self, regions: impl Iterator<Item = u64>) {
        let mut inner = self.turn();
        if !planted(PlantedBug::ChangedRegionNotLoaded) {
            regions.for_each(|region| inner.keep(region));
        }
    }

    /// Reads regions until so many blocks are free in memory, or all are read. They are packed: a
    /// commit of the tree opens those that it needs. Blocks that left files are looked at, for the same
    /// reason.
    pub(crate) fn load_blocks(&self, blocks: u64) {
        let mut inner = self.give_up_lots();
        loop {
            let lacking = blocks.saturating_sub(inner.available(SpaceClass::Metadata));
            // What cannot be read does not count: then more are looked for.
            let regions = inner.unread.longest_unread(lacking);
            if regions.is_empty() {
                return;
            }
            regions.into_iter().for_each(|region| inner.keep(region));
        }
    }

    /// Reads all regions.
    #[cfg(any(test, feature = "forge"))]
    pub fn load_everything(&self) {
        self.open_everything();
    }

    /// Has the free runs of all regions in the indexes, also those that reach over borders.
    pub(super) fn open_everything(&self) {
        let mut inner = self.turn();
        while let Some(one) = inner.unread.longest(true) {
            inner.load(one.region);
        }
    }

    /// Counts what is free in regions that are not read as used: what is stored of them does not
    /// hold any more.
    pub(crate) fn forget_unread(&self) {
        let mut inner = self.turn();
        let regions: Vec<u64> = inner.unread.regions.keys().copied().collect();
        for region in regions {
            if !inner.unread.is_packed(region) {
                inner.unread.remove(region);
            }
        }
    }
}

impl Inner {
    /// Puts the free runs of a region into the indexes, if they are not there.
    pub(super) fn load(&mut self, region: u64) {
        let Some((unread, packed)) = self.unread.remove(region) else { return };
        let first = self.unread.bounds(region).start;
        let runs = match packed {
            Some(packed) => packed
                .runs()
                .into_iter()
                .map(|run| Run {
                    start: BlockNo(first + u64::from(run.start)),
                    blocks: u64::from(run.end - run.start),
                })
                .collect(),
            None => self.unread.read(&unread).unwrap_or_default(),
        };
        runs.into_iter().for_each(|run| self.insert(run));
    }

    /// Puts the free runs of the regions that a run lies in into the indexes.
    pub(super) fn load_run(&mut self, run: Run) {
        for region in self.unread.in_run(run) {
            self.load(region);
        }
    }

    /// Where the free run begins that serves a request best.
    pub(super) fn place(&mut self, want: AllocRequest, blocks: u64) -> Option<u64> {
        let reads = want.class == SpaceClass::Data;
        if let Some(at) = want.goal.and_then(|goal| self.continuation(goal)) {
            return Some(at);
        }
        let ahead = want.ahead.map_or(0, |(_, ahead)| ahead);
        for asked in [blocks + ahead, blocks] {
            let tight = self.best(asked).filter(|at| self.by_start[at] <= 1 << self.unread.shift);
            if tight.is_none()
                && let Some(region) = self.unread.fitting(asked, reads)
            {
                self.load(region);
            }
            if let Some(at) = self.best(asked) {
                return Some(at);
            }
        }
        while let Some(unread) = self.unread.longest(reads)
            && self.by_len.last().is_none_or(|(len, _)| *len < unread.longest)
        {
            self.load(unread.region);
        }
        self.by_len.last().map(|(_, start)| *start)
    }

    /// Gives blocks back that a record freed. What is stored may name blocks twice that were
    /// damaged: those that are free are not freed again.
    pub(super) fn insert_released(&mut self, run: Run) {
        debug_assert!(
            self.unread.in_run(run).iter().all(|region| self.unread.is_packed(*region)),
            "I-SPC-7: the regions of {run:?} were read when it left its file"
        );
        let is_free =
            self.is_free_in(run) || self.fence.as_ref().is_some_and(|fence| fence.meets(run));
        if !self.unread.is_stored() || !is_free {
            return self.insert(run);
        }
        tell_double(run);
    }
}
