//! The table of free space in the tree: what a commit folds into it, and what a mount reads of it.
//!
//! ```text
//!   commit:  rows ─► old rows ─► changes ─► counts of their regions ─► summaries      one transaction (I-SPC-6)
//!   mount:   head, summaries, regions with shared blocks, regions that the log or the volume itself touches
//!   later:   the counts of a region, when blocks of it are asked for or change (I-SPC-7)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::{ReadableTable, WriteTransaction};

use super::extents::extents_of;
use super::guard::guarded;
use super::read::Snapshot;
use super::tree::{Definition, definition, tree_error};
use crate::allocator::RegionSource;
use crate::extent::Run;
use crate::planted::{PlantedBug, planted};
use crate::row::Table;
use crate::space::{
    Counts, Covers, GROUP_REGIONS, Group, Head, Key, SpaceChanges, SpaceMap, cloned_key,
    counts_key, decode_extents, encode_extents, extents_key, group_key, head_key,
};
use crate::{BlockNo, Error, ErrorKind, Result};

/// The table.
pub(super) const SPACE: Definition = Definition::new("space");

const CONTEXT: &str = "a metadata commit failed";

/// What a commit does about the free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeping {
    /// The format does not keep it.
    Not,
    /// What the rows change is folded in, on a volume of so many blocks.
    Folded(u64),
    /// It is made anew of all rows, on a volume of so many blocks.
    Rebuilt(u64),
    /// It does not count any more: the rows are put in as damage would.
    #[cfg(any(test, feature = "forge"))]
    Dropped,
}

/// Is told, before they change, which regions a commit changes; `None`: what is stored does not
/// count any more.
pub(super) type BeforeChange<'a> = &'a dyn Fn(Option<&BTreeSet<u64>>);

type Rows<'txn> = redb::Table<'txn, &'static [u8], &'static [u8]>;

fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: Key,
) -> Result<Option<Vec<u8>>> {
    let row = table.get(key.as_slice()).map_err(|e| tree_error(CONTEXT, e))?;
    Ok(row.map(|row| row.value().to_vec()))
}

fn put(table: &mut Rows<'_>, key: Key, row: Option<&[u8]>) -> Result<()> {
    match row {
        Some(row) => table.insert(key.as_slice(), row).map(drop),
        None => table.remove(key.as_slice()).map(drop),
    }
    .map_err(|e| tree_error(CONTEXT, e))
}

fn counts_of(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    head: Head,
    region: u64,
) -> Result<Counts> {
    let key = counts_key(region);
    match get(table, key)? {
        Some(row) => Counts::decode(&key, &row, head.region_blocks()),
        None => Ok(Counts::free(head.region_blocks())),
    }
}

/// Folds changes in that the same transaction makes. Where they contradict what is stored, that
/// does not count from then on, and the next mount makes it anew.
pub(super) fn fold(
    txn: &WriteTransaction,
    changes: Result<SpaceChanges>,
    before: BeforeChange<'_>,
) -> Result<()> {
    let mut table = txn.open_table(SPACE).map_err(|e| tree_error(CONTEXT, e))?;
    let Some(head) = get(&table, head_key())? else { return Ok(()) };
    let folded = Head::decode(&head).and_then(|head| {
        if head.given_up {
            return Ok(None);
        }
        let mut changes = changes?;
        changes.covers.sort();
        let mut regions = BTreeSet::new();
        changes.covers.by_region(head, |region, _| {
            regions.insert(region);
            Ok(())
        })?;
        before(Some(&regions));
        fold_regions(&mut table, head, &changes.covers)?;
        let extents = get(&table, extents_key())?.map(|row| decode_extents(&row)).transpose()?;
        let extents = extents.map(|count| count.saturating_add_signed(changes.extents));
        Ok(Some((changes.cloned, extents)))
    });
    match folded {
        Ok(None) => Ok(()),
        Ok(Some((cloned, extents))) => {
            if let Some(count) = extents {
                put(&mut table, extents_key(), Some(&encode_extents(count)))?;
            }
            let past = txn.open_table(definition(Table::Checkpoint));
            let past = past.map_err(|e| tree_error(CONTEXT, e))?;
            let any = past.first().map_err(|e| tree_error(CONTEXT, e))?.is_some();
            // What was removed may come back by a rollback.
            cloned.into_iter().filter(|(_, is)| *is || !any).try_for_each(|(ino, is)| {
                let key = cloned_key(ino.0);
                put(&mut table, key, is.then(|| cloned_row(key)).as_deref())
            })
        }
        Err(error) if error.kind == ErrorKind::Corrupt => {
            tracing::error!(
                "the free space in the metadata is given up until the next mount: {error}"
            );
            before(None);
            let head = Head::decode(&head).unwrap_or(Head::of(0));
            put(&mut table, head_key(), Some(&Head { given_up: true, ..head }.encode()))
        }
        Err(error) => Err(error),
    }
}

/// Folds changes into the counts of their regions, one after the other: all at once would take more
/// memory than everything else of a commit.
fn fold_regions(table: &mut Rows<'_>, head: Head, covers: &Covers) -> Result<()> {
    let mut group: Option<(u64, Group)> = None;
    covers.by_region(head, |region, changes| {
        let (key, first) = (counts_key(region), region << head.shift);
        let mut counts = counts_of(table, head, region)?;
        counts.change(changes, first)?;
        if planted(PlantedBug::SpaceFoldedTwice) {
            counts.change(changes, first)?;
        }
        put(table, key, counts.encode(&key).as_deref())?;
        let number = region / GROUP_REGIONS;
        if group.as_ref().is_none_or(|(at_hand, _)| *at_hand != number) {
            put_group(table, group.take())?;
            let key = group_key(number);
            let row = get(table, key)?;
            let found = row.map(|row| Group::decode(&key, &row, head)).transpose()?;
            group = Some((number, found.unwrap_or_else(|| Group::free(head))));
        }
        let index = usize::try_from(region % GROUP_REGIONS).expect("below 1024");
        if let Some((_, group)) = &mut group {
            group.0[index] = counts.summary();
        }
        Ok(())
    })?;
    put_group(table, group)
}

fn put_group(table: &mut Rows<'_>, group: Option<(u64, Group)>) -> Result<()> {
    let Some((number, group)) = group else { return Ok(()) };
    let key = group_key(number);
    put(table, key, Some(&group.encode(&key)))
}

/// A row that says nothing but that it is there.
fn cloned_row(key: Key) -> Vec<u8> {
    crate::space::sealed(&key, &[])
}

/// The groups of summaries of regions.
fn groups_of(map: &SpaceMap) -> BTreeMap<u64, Group> {
    let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
    for (region, counts) in &map.regions {
        let group = groups.entry(region / GROUP_REGIONS).or_insert_with(|| Group::free(map.head));
        let index = usize::try_from(region % GROUP_REGIONS).expect("below 1024");
        group.0[index] = counts.summary();
    }
    groups
}

fn write(table: &mut Rows<'_>, map: &SpaceMap, groups: &BTreeMap<u64, Group>) -> Result<()> {
    for (region, counts) in &map.regions {
        let key = counts_key(*region);
        put(table, key, counts.encode(&key).as_deref())?;
    }
    groups.iter().try_for_each(|(number, group)| {
        let key = group_key(*number);
        put(table, key, Some(&group.encode(&key)))
    })
}

/// Rows whose changes are held at once while everything is counted anew.
const ROWS_AT_ONCE: usize = 1 << 18;

/// Counts all rows of the transaction.
pub(super) fn rebuild(txn: &WriteTransaction, blocks: u64) -> Result<()> {
    txn.delete_table(SPACE).map_err(|e| tree_error(CONTEXT, e))?;
    let head = Head::of(blocks);
    let mut map = SpaceMap::new(head);
    let mut changes = SpaceChanges::new(blocks);
    let (mut cloned, mut extents) = (BTreeMap::new(), 0);
    let mut take = |mut changes: SpaceChanges| {
        extents += changes.extents;
        changes.covers.sort();
        map.apply(&changes.covers, |_| Ok(Counts::free(head.region_blocks())))?;
        cloned.extend(changes.cloned);
        Ok::<_, Error>(SpaceChanges::new(blocks))
    };
    for table in Table::ALL.into_iter().filter(|table| SpaceChanges::concern(*table)) {
        let rows = txn.open_table(definition(table)).map_err(|e| tree_error(CONTEXT, e))?;
        for (count, row) in rows.iter().map_err(|e| tree_error(CONTEXT, e))?.enumerate() {
            let (key, value) = row.map_err(|e| tree_error(CONTEXT, e))?;
            match table {
                Table::Extent => extents_of(key.value(), value.value(), |row| {
                    changes.note_extent(None, Some(row))
                })?,
                _ => changes.note(table, key.value(), None, Some(value.value()))?,
            }
            if count % ROWS_AT_ONCE == ROWS_AT_ONCE - 1 {
                changes = take(changes)?;
            }
        }
    }
    drop(take(changes)?);
    let groups = groups_of(&map);
    let mut table = txn.open_table(SPACE).map_err(|e| tree_error(CONTEXT, e))?;
    put(&mut table, head_key(), Some(&head.encode()))?;
    put(&mut table, extents_key(), Some(&encode_extents(extents.unsigned_abs())))?;
    write(&mut table, &map, &groups)?;
    cloned.into_iter().filter(|(_, is)| *is).try_for_each(|(ino, _)| {
        let key = cloned_key(ino.0);
        put(&mut table, key, Some(&cloned_row(key)))
    })
}

/// Takes away what says that the table counts.
#[cfg(any(test, feature = "forge"))]
pub(super) fn drop_head(txn: &WriteTransaction) -> Result<()> {
    let mut table = txn.open_table(SPACE).map_err(|e| tree_error(CONTEXT, e))?;
    put(&mut table, head_key(), None)
}

/// The regions as the last metadata commit left them, for the allocator.
pub(super) struct SpaceView {
    head: Head,
    /// Blocks of the volume at the mount.
    blocks: u64,
    /// A leaf. `None` once the tree is closed.
    snapshot: Mutex<Option<Arc<Snapshot>>>,
}

impl fmt::Debug for SpaceView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "free space of {} blocks", self.blocks)
    }
}

impl SpaceView {
    pub(super) fn new(head: Head, blocks: u64, snapshot: Arc<Snapshot>) -> Self {
        Self { head, blocks, snapshot: Mutex::new(Some(snapshot)) }
    }

    /// Looks at another commit from now on, or at none.
    pub(super) fn look_at(&self, snapshot: Option<Arc<Snapshot>>) {
        *self.snapshot.lock() = snapshot;
    }
}

impl RegionSource for SpaceView {
    fn free_runs(&self, region: u64) -> Result<Vec<Run>> {
        let snapshot = self.snapshot.lock().clone();
        let snapshot =
            snapshot.ok_or_else(|| Error::new(ErrorKind::Busy, "the volume was unmounted"))?;
        let counts = snapshot.counts(self.head, region)?;
        Ok(within(self.head, region, counts.free_runs(), self.blocks).collect())
    }
}

/// Runs of a region on the volume, up to its end.
pub(super) fn within(
    head: Head,
    region: u64,
    runs: impl Iterator<Item = Range<u32>>,
    blocks: u64,
) -> impl Iterator<Item = Run> {
    let first = region << head.shift;
    runs.filter_map(move |run| {
        let (start, end) = (first + u64::from(run.start), first + u64::from(run.end));
        let end = end.min(blocks);
        (start < end).then(|| Run { start: BlockNo(start), blocks: end - start })
    })
}

impl Snapshot {
    fn space_row(&self, key: Key) -> Result<Option<Vec<u8>>> {
        let Some(rows) = self.space() else { return Ok(None) };
        guarded(|| get(rows, key))
    }

    /// Returns the head of the table; `None` where there is none.
    pub(super) fn space_head(&self) -> Result<Option<Head>> {
        self.space_row(head_key())?.map(|row| Head::decode(&row)).transpose()
    }

    /// Returns how many extents there are; `None` where that is not kept.
    pub(super) fn extent_count(&self) -> Result<Option<u64>> {
        self.space_row(extents_key())?.map(|row| decode_extents(&row)).transpose()
    }

    /// Returns the counts of a region.
    pub(super) fn counts(&self, head: Head, region: u64) -> Result<Counts> {
        let Some(rows) = self.space() else { return Ok(Counts::free(head.region_blocks())) };
        guarded(|| counts_of(rows, head, region))
    }

    /// Visits the rows of one kind, by their numbers.
    pub(super) fn space_rows(
        &self,
        kind: fn(u64) -> Key,
        mut visit: impl FnMut(u64, &Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let Some(rows) = self.space() else { return Ok(()) };
        let (from, to) = (kind(0), kind(u64::MAX));
        guarded(|| {
            let range = rows.range::<&[u8]>(from.as_slice()..=to.as_slice());
            for row in range.map_err(|e| tree_error(CONTEXT, e))? {
                let (key, value) = row.map_err(|e| tree_error(CONTEXT, e))?;
                let found = key.value().try_into().map_err(|_| {
                    Error::corrupt("a key of the free space has another length than 9 bytes")
                })?;
                let number = crate::space::number_of(&found);
                visit(number, &found, value.value())?;
            }
            Ok(())
        })
    }
}
