//! Compares the stored free space with all rows, a slice of the volume at a time, so that it takes
//! little memory however many extents there are.

use std::collections::{BTreeMap, HashSet};
use std::ops::{Bound, ControlFlow, Range};

use super::MetaStore;
use super::read::{Snapshot, State};
use crate::allocator::Claims;
use crate::extent::Run;
use crate::images::{Referrer, before_key, decode_image, split_checkpoint_key};
use crate::planted::{PlantedBug, planted};
use crate::row::{Table, inode_key};
use crate::space::{Counts, Covers, GROUP_REGIONS, Group, Head, Summary, counts_key};
use crate::{BlockNo, InodeNo, Result};

/// The counts of regions, of rows in the order of their blocks.
struct Real<I: Iterator<Item = (Run, Referrer)>> {
    head: Head,
    rows: std::iter::Peekable<I>,
    /// Those that reach into the region at hand or beyond.
    active: Vec<(Run, Referrer)>,
}

impl<I: Iterator<Item = (Run, Referrer)>> Real<I> {
    /// Returns the counts of a region; they are asked for in order.
    fn region(&mut self, region: u64) -> Result<Counts> {
        let (from, to) = (region << self.head.shift, (region + 1) << self.head.shift);
        self.active.retain(|(run, _)| run.end() > from);
        while let Some(row) = self.rows.next_if(|(run, _)| run.start.0 < to) {
            if row.0.end() > from {
                self.active.push(row);
            }
        }
        let mut covers = Covers::default();
        for (run, referrer) in &self.active {
            let (start, end) = (run.start.0.max(from), run.end().min(to));
            covers.insert(Run { start: BlockNo(start), blocks: end - start }, *referrer);
        }
        covers.sort();
        let mut counts = Counts::free(self.head.region_blocks());
        covers.by_region(self.head, |_, changes| counts.change(changes, from))?;
        Ok(counts)
    }
}

impl Snapshot {
    /// The regions of a slice; of the last one of a volume also what is stored behind its end.
    fn regions_of(
        &self,
        slice: &Range<u64>,
        blocks: u64,
        (head, groups): (Head, &BTreeMap<u64, Group>),
    ) -> Result<Range<u64>> {
        let mut end = slice.end.div_ceil(u64::from(head.region_blocks()));
        if slice.end == blocks {
            end =
                end.max(groups.last_key_value().map_or(0, |(last, _)| (last + 1) * GROUP_REGIONS));
            self.space_rows(counts_key, |region, _, _| {
                end = end.max(region + 1);
                Ok(())
            })?;
        }
        Ok(slice.start >> head.shift..end)
    }
}

impl State {
    /// Returns the files that share blocks and are not among `noted`.
    ///
    /// A checkpoint that is being deleted may have images of extents still of a file that is in no
    /// moment any more. They will be dropped, and what shares blocks with them alone may write
    /// these in place: nothing is noted for their sake.
    fn not_noted(&self, noted: &HashSet<InodeNo>, claims: &mut Claims) -> Result<Vec<InodeNo>> {
        let mut gone = HashSet::new();
        let mut among = |gone: &HashSet<InodeNo>| {
            let files = claims.sharing(gone).0.files;
            files.into_iter().filter(|ino| !noted.contains(ino)).collect::<Vec<_>>()
        };
        let found = among(&gone);
        if found.is_empty() {
            return Ok(found);
        }
        for ino in &found {
            if !self.is_in_a_moment(*ino)? && !planted(PlantedBug::GoneFilesCompared) {
                gone.insert(*ino);
            }
        }
        let mut found = if gone.is_empty() { found } else { among(&gone) };
        found.sort_unstable();
        Ok(found)
    }

    /// Returns whether there is an inode, or was in a checkpoint.
    fn is_in_a_moment(&self, ino: InodeNo) -> Result<bool> {
        let key = inode_key(ino);
        if self.get(Table::Inode, &key)?.is_some() {
            return Ok(true);
        }
        let mut epochs = Vec::new();
        self.scan(Table::Checkpoint, Bound::Unbounded, Bound::Unbounded, |key, _| {
            epochs.push(split_checkpoint_key(key)?);
            Ok(ControlFlow::Continue(()))
        })?;
        for epoch in epochs {
            let image = self.get(Table::Before, &before_key(epoch, Table::Inode, &key))?;
            if image.as_deref().map(decode_image).transpose()?.flatten().is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl MetaStore {
    /// Divides a volume into slices, of about so many extents and images each.
    ///
    /// # Errors
    /// Those of the device; `Corrupt` for what does not decode.
    pub fn slices(&self, rows_at_once: u64) -> Result<Vec<Range<u64>>> {
        let blocks = self.volume_blocks();
        let rows = self.row_count(Table::Extent)? + self.row_count(Table::Before)?;
        let count = rows.div_ceil(rows_at_once.max(1)).max(1);
        let snapshot = std::sync::Arc::clone(&self.state.read().snapshot);
        let kept = self.region.superblock().keeps_space;
        let Some(head) = snapshot.space_head()?.filter(|_| kept && count > 1) else {
            return Ok(std::iter::once(0..blocks).collect());
        };
        let groups = snapshot.groups(head)?;
        let of_region = |one: &Summary| u64::from(head.region_blocks() - one.free);
        let all: u64 = groups.values().flat_map(|group| &group.0).map(of_region).sum();
        let (share, mut slices, mut from, mut sum) = (all.div_ceil(count), Vec::new(), 0, 0);
        for (number, group) in &groups {
            for (index, one) in group.0.iter().enumerate() {
                sum += of_region(one);
                let to = (number * GROUP_REGIONS + index as u64 + 1) << head.shift;
                if sum >= share.max(1) && to < blocks {
                    slices.push(from..to);
                    (from, sum) = (to, 0);
                }
            }
        }
        slices.push(from..blocks);
        Ok(slices)
    }

    /// Compares what is stored with the rows, of which `claims` are all of a slice of the volume;
    /// returns what differs, one sentence each. `None` where nothing is stored that counts.
    ///
    /// # Errors
    /// Those of the device; `Corrupt` for what does not decode.
    pub fn compare_space(&self, claims: &mut Claims) -> Result<Option<Vec<String>>> {
        let state = self.state.read();
        let kept = self.region.superblock().keeps_space;
        let Some(head) = state.snapshot.space_head()?.filter(|_| kept) else { return Ok(None) };
        if head.given_up {
            return Ok(Some(vec!["it was given up because rows contradicted it".to_owned()]));
        }
        let blocks = self.volume_blocks();
        let mut differences = Vec::new();
        if claims.slice().start == 0 {
            differences.extend(self.compare_count(&state)?);
        }
        let mut changes = state.space_changes(blocks)?;
        changes.covers.sort();
        compare_regions(&state.snapshot, head, blocks, claims, &changes.covers, &mut differences)?;
        let mut cloned = state.snapshot.cloned()?;
        cloned.extend(changes.cloned.iter().filter(|(_, is)| **is).map(|(ino, _)| *ino));
        for ino in state.not_noted(&cloned, claims)? {
            differences.push(format!("inode {} shares blocks and is not noted", ino.0));
        }
        Ok(Some(differences))
    }

    fn compare_count(&self, state: &State) -> Result<Option<String>> {
        let packs = self.region.superblock().packs;
        let Some(noted) = state.snapshot.extent_count()?.filter(|_| packs) else { return Ok(None) };
        let found = state.snapshot.count_extents()?;
        Ok((noted != found).then(|| format!("it says {noted} extents, and there are {found}")))
    }
}

/// Compares the counts of the regions of a slice, one after the other, and their summaries.
fn compare_regions(
    snapshot: &Snapshot,
    head: Head,
    blocks: u64,
    claims: &mut Claims,
    covers: &Covers,
    differences: &mut Vec<String>,
) -> Result<()> {
    let groups = snapshot.groups(head)?;
    let none = Group::free(head);
    let regions = snapshot.regions_of(&claims.slice(), blocks, (head, &groups))?;
    let mut real = Real { head, rows: claims.rows().peekable(), active: Vec::new() };
    let mut compare = |region: u64, changes: &[crate::space::Change]| {
        let (mut stored, first) = (snapshot.counts(head, region)?, region << head.shift);
        let group = groups.get(&(region / GROUP_REGIONS)).unwrap_or(&none);
        let index = usize::try_from(region % GROUP_REGIONS).expect("below 1024");
        if group.0[index] != stored.summary() {
            differences.push(format!("the summary of the blocks from {first} is not of them"));
        }
        stored.change(changes, first)?;
        differences.extend(stored.difference(&real.region(region)?, first));
        Ok(())
    };
    let mut next = regions.start;
    covers.by_region(head, |region, changes| {
        if !regions.contains(&region) {
            return Ok(());
        }
        (next..region).try_for_each(|region| compare(region, &[]))?;
        next = region + 1;
        compare(region, changes)
    })?;
    (next..regions.end).try_for_each(|region| compare(region, &[]))
}
