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

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Weak;

use super::{AllocRequest, Allocator, Inner, SpaceClass};
use crate::extent::Run;
use crate::planted::{PlantedBug, planted};
use crate::{Error, ErrorKind, Result};

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

/// The regions that are not read.
#[derive(Debug, Default)]
pub(super) struct UnreadRegions {
    /// Blocks of a region, in powers of two.
    shift: u32,
    /// `None`: there are none, and never were.
    source: Option<Weak<dyn RegionSource>>,
    regions: BTreeMap<u64, Unread>,
    /// Those by the length of their longest run. Some may have been read since.
    by_longest: [Vec<u64>; CLASSES],
    /// Free blocks in `regions`.
    pub(super) free: u64,
    runs: u64,
    /// The volume's own blocks: the last by the first. They do not overlap.
    own: BTreeMap<u64, u64>,
}

fn class(blocks: u64) -> usize {
    (blocks.max(1).ilog2() as usize).min(CLASSES - 1)
}

impl UnreadRegions {
    fn new(shift: u32, source: Weak<dyn RegionSource>, unread: Vec<Unread>, own: &[Run]) -> Self {
        let mut by_longest: [Vec<u64>; CLASSES] = Default::default();
        unread.iter().rev().for_each(|one| by_longest[class(one.longest)].push(one.region));
        Self {
            shift,
            source: Some(source),
            free: unread.iter().map(|one| one.free).sum(),
            runs: unread.iter().map(|one| one.runs).sum(),
            by_longest,
            own: own.iter().map(|run| (run.start.0, run.end())).collect(),
            regions: unread.into_iter().map(|one| (one.region, one)).collect(),
        }
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

    fn remove(&mut self, region: u64) -> Option<Unread> {
        let unread = self.regions.remove(&region)?;
        self.free -= unread.free;
        self.runs -= unread.runs;
        Some(unread)
    }

    /// A region that has a run of so many blocks; one with a run that is hardly longer, if that is
    /// found soon.
    fn fitting(&mut self, blocks: u64) -> Option<u64> {
        for of_class in &mut self.by_longest[class(blocks)..] {
            while of_class.last().is_some_and(|region| !self.regions.contains_key(region)) {
                of_class.pop();
            }
            let fits = |region: &u64| {
                self.regions.get(region).is_some_and(|unread| unread.longest >= blocks)
            };
            if let Some(region) = of_class.iter().rev().take(LOOKS).copied().find(fits) {
                return Some(region);
            }
        }
        None
    }

    /// The region with a run about as long as the longest.
    pub(super) fn longest(&mut self) -> Option<Unread> {
        let regions = &self.regions;
        self.by_longest.iter_mut().rev().find_map(|of_class| {
            of_class.retain(|region| regions.contains_key(region));
            of_class.last().and_then(|region| regions.get(region)).copied()
        })
    }

    fn in_run(&self, run: Run) -> Vec<u64> {
        if run.blocks == 0 || self.regions.is_empty() {
            return Vec::new();
        }
        let last = (run.end() - 1) >> self.shift;
        self.regions.range(run.start.0 >> self.shift..=last).map(|(region, _)| *region).collect()
    }
}

impl Allocator {
    /// Makes the space of a volume in which `free` (sorted, apart) is free, and what is free in
    /// `unread` regions; `own` blocks (sorted, apart) are parts of the volume itself.
    pub(crate) fn over(
        block_size: u32,
        blocks: u64,
        free: impl Iterator<Item = Run>,
        unread: Vec<Unread>,
        shift: u32,
        source: Weak<dyn RegionSource>,
        own: &[Run],
    ) -> Self {
        let space = Self::new(block_size, blocks, free);
        space.inner.lock().unread = UnreadRegions::new(shift, source, unread, own);
        space
    }

    /// Returns whether an extent may lie there: within the volume, and not where its own parts lie.
    /// Where all extents were read at mount, that is known.
    pub fn may_hold_data(&self, run: Run) -> bool {
        let inner = self.inner.lock();
        inner.unread.may_be_of_file(run, inner.end)
    }

    /// Reads regions that are not read.
    pub(crate) fn load_regions(&self, regions: impl Iterator<Item = u64>) {
        let mut inner = self.inner.lock();
        if !planted(PlantedBug::ChangedRegionNotLoaded) {
            regions.for_each(|region| inner.load(region));
        }
    }

    /// Reads regions until so many blocks are free in memory, or all are read.
    pub(crate) fn load_blocks(&self, blocks: u64) {
        let mut inner = self.inner.lock();
        while inner.free + inner.kept < blocks
            && let Some(unread) = inner.unread.longest()
        {
            inner.load(unread.region);
        }
    }

    /// Reads all regions.
    #[cfg(any(test, feature = "forge"))]
    pub fn load_everything(&self) {
        self.load_blocks(u64::MAX);
    }

    /// Counts what is free in regions that are not read as used: what is stored of them does not
    /// hold any more.
    pub(crate) fn forget_unread(&self) {
        let mut inner = self.inner.lock();
        let regions: Vec<u64> = inner.unread.regions.keys().copied().collect();
        for region in regions {
            inner.unread.remove(region);
        }
    }
}

impl Inner {
    /// Reads a region, if it is not read. What cannot be read, or is not what was said of it,
    /// counts as used.
    fn load(&mut self, region: u64) {
        let Some(unread) = self.unread.remove(region) else { return };
        let source = self.unread.source.as_ref().and_then(Weak::upgrade);
        let runs = match source {
            Some(source) => source.free_runs(region),
            None => Err(Error::new(ErrorKind::Busy, "the volume was unmounted")),
        };
        match runs {
            Ok(runs) if runs.iter().map(|run| run.blocks).sum::<u64>() == unread.free => {
                runs.into_iter().for_each(|run| self.insert(run));
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
    }

    /// Reads the regions that a run lies in.
    pub(super) fn load_run(&mut self, run: Run) {
        for region in self.unread.in_run(run) {
            self.load(region);
        }
    }

    /// Where the free run begins that serves a request best.
    pub(super) fn place(&mut self, want: AllocRequest, blocks: u64) -> Option<u64> {
        let reads = want.class == SpaceClass::Data;
        if let Some(goal) = want.goal {
            if reads {
                self.load_run(Run { start: goal, blocks: 1 });
            }
            if let Some(at) = self.continuation(goal) {
                return Some(at);
            }
        }
        let ahead = want.ahead.map_or(0, |(_, ahead)| ahead);
        for asked in [blocks + ahead, blocks] {
            let tight = self.best(asked).filter(|at| self.by_start[at] <= 1 << self.unread.shift);
            if tight.is_none()
                && reads
                && let Some(region) = self.unread.fitting(asked)
            {
                self.load(region);
            }
            if let Some(at) = self.best(asked) {
                return Some(at);
            }
        }
        while reads
            && let Some(unread) = self.unread.longest()
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
            self.unread.in_run(run).is_empty(),
            "I-SPC-7: the regions of {run:?} were read when it left its file"
        );
        let is_free = self.last_free_in(run).is_some()
            || self.fence.as_ref().is_some_and(|fence| fence.meets(run));
        if !self.unread.is_stored() || !is_free {
            return self.insert(run);
        }
        tracing::error!(
            "blocks {} to {} leave a file and were free, at least in part: run a check",
            run.start.0,
            run.end() - 1
        );
    }
}
