//! The stored free space as the rest of the file system sees it: read at mount, loaded later,
//! counted anew, compared with the rows.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::MetaStore;
use super::read::{Snapshot, State};
use super::room::GROWTH_MAX;
use super::space::{Keeping, SpaceView, within};
use crate::allocator::{Allocator, Closed, RegionSource, Unread};
use crate::extent::Run;
use crate::images::BlockRefs;
use crate::pack::EXTENTS_OF_PACK;
use crate::row::Table;
use crate::space::{
    Counts, GROUP_REGIONS, Group, Head, SpaceChanges, Summary, cloned_key, group_key, unseal,
};
use crate::{BlockNo, ErrorKind, InodeNo, Result};

/// What a mount reads instead of all extents.
pub struct StoredSpace {
    /// The free space.
    pub allocator: Arc<Allocator>,
    /// The blocks that several rows cover.
    pub block_refs: BlockRefs,
    /// The files that may share blocks with others.
    pub cloned: HashSet<InodeNo>,
}

impl Snapshot {
    /// Returns the summaries, by group.
    pub(super) fn groups(&self, head: Head) -> Result<BTreeMap<u64, Group>> {
        let mut groups = BTreeMap::new();
        self.space_rows(group_key, |number, key, row| {
            groups.insert(number, Group::decode(key, row, head)?);
            Ok(())
        })?;
        Ok(groups)
    }

    pub(super) fn cloned(&self) -> Result<HashSet<InodeNo>> {
        let mut cloned = HashSet::new();
        self.space_rows(cloned_key, |number, key, row| {
            unseal(key, row)?;
            cloned.insert(InodeNo(number));
            Ok(())
        })?;
        Ok(cloned)
    }
}

impl State {
    /// Returns what the rows above the tree change of what the tree has.
    pub(super) fn space_changes(&self, blocks: u64) -> Result<SpaceChanges> {
        debug_assert!(
            self.frozen.is_none(),
            "no metadata commit is under way while a volume is read"
        );
        let mut changes = SpaceChanges::new(blocks);
        for table in Table::ALL.into_iter().filter(|table| SpaceChanges::concern(*table)) {
            for (key, value) in self.active.table(table) {
                let old = self.snapshot.get(table, key.as_slice())?;
                changes.note(table, key.as_slice(), old.as_deref(), value.as_deref())?;
            }
        }
        Ok(changes)
    }
}

/// What the tree and the log say.
struct Read {
    head: Head,
    groups: BTreeMap<u64, Group>,
    /// The regions that had to be read: their summaries and free runs.
    regions: BTreeMap<u64, (Summary, Vec<Range<u32>>)>,
    block_refs: BlockRefs,
    cloned: HashSet<InodeNo>,
}

impl Read {
    fn summary(&self, region: u64) -> Summary {
        let group = self.groups.get(&(region / GROUP_REGIONS));
        let index = usize::try_from(region % GROUP_REGIONS).expect("below 1024");
        group.map_or(Summary::free(self.head.region_blocks()), |group| group.0[index])
    }
}

impl MetaStore {
    pub(super) fn volume_blocks(&self) -> u64 {
        let superblock = self.region.superblock();
        superblock.size_bytes / u64::from(superblock.block_size)
    }

    /// Returns the number of rows of a table as of the last metadata commit.
    pub fn row_count(&self, table: Table) -> Result<u64> {
        self.revive();
        let snapshot = Arc::clone(&self.state.read().snapshot);
        match table {
            Table::Extent if self.region.superblock().packs => {
                snapshot.extent_count()?.map_or_else(|| snapshot.len(table), Ok)
            }
            _ => snapshot.len(table),
        }
    }

    /// Sets how many extents a pack has at most, from the next metadata commit on; `None`: as many
    /// as serve best.
    pub fn limit_packs(&self, extents: Option<usize>) {
        self.pack_extents.store(extents.unwrap_or(EXTENTS_OF_PACK), Ordering::Relaxed);
    }

    /// Returns how many extents a pack has at most; `None` where the format has none.
    pub(super) fn pack_limit(&self) -> Option<usize> {
        self.region.superblock().packs.then(|| self.pack_extents.load(Ordering::Relaxed))
    }

    /// What the next metadata commit does about the free space.
    pub(super) fn keeping(&self) -> Keeping {
        let blocks = self.volume_blocks();
        match (self.region.superblock().keeps_space, self.recounts.load(Ordering::Relaxed)) {
            (_, true) => Keeping::Rebuilt(blocks),
            (true, false) => Keeping::Folded(blocks),
            (false, false) => Keeping::Not,
        }
    }

    /// Has the next metadata commit count the free space anew.
    pub fn recount_space(&self) {
        self.recounts.store(true, Ordering::Relaxed);
    }

    fn allocator(&self) -> Option<Arc<Allocator>> {
        self.space.get()?.1.upgrade()
    }

    /// Loads as much free space as the tree may ask for: while it does, nothing can be read of it.
    pub(super) fn prepare_allocator(&self, rows_bytes: u64) {
        let bytes = GROWTH_MAX * (self.region.metadata_len() + rows_bytes);
        self.prepare_blocks(bytes.div_ceil(u64::from(self.region.superblock().block_size)));
    }

    /// Loads so much free space.
    pub(super) fn prepare_blocks(&self, blocks: u64) {
        if let Some(allocator) = self.allocator() {
            allocator.load_blocks(blocks);
        }
    }

    /// Loads regions before a commit changes them (I-SPC-7).
    pub(super) fn before_change(&self, regions: Option<&BTreeSet<u64>>) {
        match (self.allocator(), regions) {
            (Some(allocator), Some(regions)) => allocator.load_regions(regions.iter().copied()),
            (Some(allocator), None) => allocator.forget_unread(),
            (None, _) => {}
        }
    }

    /// Has the allocator look at another commit.
    pub(super) fn look_at(&self, snapshot: Option<&Arc<Snapshot>>) {
        if let Some((view, _)) = self.space.get() {
            view.look_at(snapshot.cloned());
        }
    }

    /// Reads the free space as of the end of the log, without the `own` regions of the volume
    /// itself (sorted, apart). `None` where it is not kept, or does not count: then only all rows
    /// tell it.
    ///
    /// # Errors
    /// Those of the device.
    pub fn stored_space(&self, own: &[Run]) -> Result<Option<StoredSpace>> {
        if !self.region.superblock().keeps_space || self.recounts.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (blocks, state) = (self.volume_blocks(), self.state.read());
        let read = match read(&state, own, blocks) {
            Err(e) if e.kind == ErrorKind::Corrupt => {
                tracing::warn!(
                    "the free space is counted anew, because what is stored of it does not count: \
                     {e}"
                );
                return Ok(None);
            }
            other => other?,
        };
        let Some(mut read) = read else { return Ok(None) };
        let block_refs = std::mem::take(&mut read.block_refs);
        let view = Arc::new(SpaceView::new(read.head, blocks, Arc::clone(&state.snapshot)));
        drop(state);
        let cloned = if block_refs.is_empty() { HashSet::new() } else { read.cloned.clone() };
        let allocator = Arc::new(into_allocator(
            read,
            own,
            (self.region.superblock().block_size, blocks),
            Arc::downgrade(&view) as Weak<dyn RegionSource>,
        ));
        assert!(
            self.space.set((view, Arc::downgrade(&allocator))).is_ok(),
            "the free space is read once"
        );
        Ok(Some(StoredSpace { allocator, block_refs, cloned }))
    }
}

/// Reads what a mount needs; `None` where nothing is stored that counts.
fn read(state: &State, own: &[Run], blocks: u64) -> Result<Option<Read>> {
    let snapshot = &state.snapshot;
    let Some(head) = snapshot.space_head()?.filter(|head| !head.given_up) else { return Ok(None) };
    let changes = state.space_changes(blocks)?;
    let mut read = Read {
        head,
        groups: snapshot.groups(head)?,
        regions: BTreeMap::new(),
        block_refs: BlockRefs::default(),
        cloned: snapshot.cloned()?,
    };
    for (ino, is) in &changes.cloned {
        if *is {
            read.cloned.insert(*ino);
        }
    }
    let regions = blocks.div_ceil(u64::from(head.region_blocks()));
    let mut wanted: BTreeSet<u64> = own
        .iter()
        .flat_map(|run| run.start.0 >> head.shift..=(run.end() - 1) >> head.shift)
        .filter(|region| *region < regions)
        .collect();
    wanted.extend((0..regions).filter(|region| read.summary(*region).shared));
    // Where the volume may end within one, and grow.
    wanted.extend(regions.checked_sub(1));
    // One after the other: all counts at once would take more memory than what is kept of them.
    let mut shared = Vec::new();
    let mut take = |read: &mut Read, region: u64, counts: &Counts| {
        shared.extend(counts.shared(region << head.shift));
        read.regions.insert(region, (counts.summary(), counts.free_runs().collect()));
    };
    changes.covers.by_region(head, |region, changes| {
        let mut counts = snapshot.counts(head, region)?;
        counts.change(changes, region << head.shift)?;
        take(&mut read, region, &counts);
        Ok(())
    })?;
    for region in wanted {
        if !read.regions.contains_key(&region) {
            take(&mut read, region, &snapshot.counts(head, region)?);
        }
    }
    shared.sort_unstable_by_key(|(range, _)| range.start);
    read.block_refs = BlockRefs::from_counts(shared.into_iter());
    Ok(Some(read))
}

/// A region with fewer free runs is not worth packing.
const RUNS_WORTH: usize = 4;

/// Makes the free space of what was read.
fn into_allocator(
    mut read: Read,
    own: &[Run],
    (block_size, blocks): (u32, u64),
    source: Weak<dyn RegionSource>,
) -> Allocator {
    let head = read.head;
    let regions = blocks.div_ceil(u64::from(head.region_blocks()));
    let owns: BTreeSet<u64> = own
        .iter()
        .flat_map(|run| run.start.0 >> head.shift..=(run.end() - 1) >> head.shift)
        .collect();
    let (mut free, mut closed): (Vec<Run>, Vec<Closed>) = (Vec::new(), Vec::new());
    for region in 0..regions {
        let (summary, runs) = match read.regions.remove(&region) {
            Some((summary, runs)) => (summary, Some(runs)),
            None => (read.summary(region), None),
        };
        let one = Unread {
            region,
            free: summary.free.into(),
            longest: summary.longest.into(),
            runs: summary.runs.into(),
        };
        match runs {
            Some(runs)
                if runs.len() >= RUNS_WORTH && !owns.contains(&region) && region + 1 < regions =>
            {
                closed.push((one, Some(runs)));
            }
            Some(runs) => free.extend(within(head, region, runs.into_iter(), blocks)),
            None if summary.free == head.region_blocks() => {
                free.extend(within(head, region, std::iter::once(0..summary.free), blocks));
            }
            None if summary.free == 0 => {}
            None => closed.push((one, None)),
        }
    }
    let free = without(free, own).into_iter();
    Allocator::over(block_size, blocks, free, closed, head.shift, source, own)
}

/// Joins runs that touch, and leaves out what is the volume's own; all are in order.
fn without(runs: Vec<Run>, own: &[Run]) -> Vec<Run> {
    let mut left: Vec<Run> = Vec::with_capacity(runs.len());
    let mut own = own.iter().copied().peekable();
    let mut push = |start: u64, end: u64| match left.last_mut() {
        _ if start >= end => {}
        Some(last) if last.end() == start => last.blocks += end - start,
        _ => {
            left.push(Run { start: BlockNo(start), blocks: end - start });
        }
    };
    for run in runs {
        let mut at = run.start.0;
        while let Some(taken) = own.peek().copied().filter(|taken| taken.start.0 < run.end()) {
            if taken.end() > at {
                push(at, taken.start.0.max(at));
                at = taken.end().min(run.end());
            }
            if taken.end() > run.end() {
                break;
            }
            own.next();
        }
        push(at, run.end());
    }
    left
}
