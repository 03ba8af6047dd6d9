//! Metadata of many extents, made without the history that would lead to them: rows and packs go
//! into the tree in the order of their keys, the free space and the checksums in the order of the
//! volume, in one transaction. Nothing is counted and nothing is kept in memory, so a hundred
//! million extents take minutes.

use redb::WriteTransaction;

use super::guard::{Tree, guarded};
use super::space::SPACE;
use super::tree::{CONTEXT, begin, definition, tree_error};
use crate::extent::Run;
use crate::pack::{self, EXTENTS_OF_PACK, Placed};
use crate::row::{RowChange, Table, extent_key};
use crate::space::{
    Change, Counts, GROUP_REGIONS, Group, Head, counts_key, encode_extents, extents_key, group_key,
    head_key,
};
use crate::sums::{GROUP_BLOCKS, SumGroup, group_key as sums_key};
use crate::{ExtentRow, FileBlock, InodeNo, Result};

/// So many extents a pack has that was cut off a longer one: each has room for more.
const EXTENTS_OF_PART: usize = EXTENTS_OF_PACK - EXTENTS_OF_PACK / 4;

/// What a volume is to hold besides what its format gave it.
pub struct Bulk<'a> {
    /// Rows of all tables but those of extents and of checksums.
    pub rows: &'a mut dyn Iterator<Item = RowChange>,
    /// Extents, by inode and file block.
    pub extents: &'a mut dyn Iterator<Item = (InodeNo, FileBlock, ExtentRow)>,
    /// What they cover, in the order of the volume, apart.
    pub covered: &'a mut dyn Iterator<Item = Run>,
    /// The checksum of each block that they cover; `None` where they have none.
    pub sum: Option<u32>,
}

type Rows<'txn> = redb::Table<'txn, &'static [u8], &'static [u8]>;

fn put(table: &mut Rows<'_>, key: &[u8], value: &[u8]) -> Result<()> {
    table.insert(key, value).map(drop).map_err(|e| tree_error(CONTEXT, e))
}

/// Commits all of it, on a volume of so many blocks that has no extent yet.
pub fn write_bulk(db: &Tree, blocks: u64, bulk: &mut Bulk<'_>) -> Result<()> {
    guarded(|| {
        let txn = begin(db)?;
        put_rows(&txn, bulk.rows)?;
        let extents = put_extents(&txn, bulk.extents)?;
        put_covered(&txn, Head::of(blocks), bulk.covered, bulk.sum)?;
        let mut space = txn.open_table(SPACE).map_err(|e| tree_error(CONTEXT, e))?;
        put(&mut space, &extents_key(), &encode_extents(extents))?;
        drop(space);
        txn.commit().map_err(|e| tree_error(CONTEXT, e))
    })
}

fn put_rows(txn: &WriteTransaction, rows: &mut dyn Iterator<Item = RowChange>) -> Result<()> {
    let mut tables = Vec::with_capacity(Table::ALL.len());
    for table in Table::ALL.into_iter().filter(|table| *table != Table::Sum) {
        tables.push(txn.open_table(definition(table)).map_err(|e| tree_error(CONTEXT, e))?);
    }
    for row in rows {
        put(&mut tables[row.table.index()], &row.key, row.value.as_deref().unwrap_or_default())?;
    }
    Ok(())
}

/// Puts extents into packs; returns how many there were.
fn put_extents(
    txn: &WriteTransaction,
    extents: &mut dyn Iterator<Item = (InodeNo, FileBlock, ExtentRow)>,
) -> Result<u64> {
    let mut table =
        txn.open_table(definition(Table::Extent)).map_err(|e| tree_error(CONTEXT, e))?;
    let (mut of, mut part, mut count) = (InodeNo(0), Vec::<Placed>::new(), 0);
    for (ino, at, row) in extents {
        if ino != of || part.len() == EXTENTS_OF_PART {
            put_part(&mut table, of, &part)?;
            part.clear();
        }
        of = ino;
        part.push((at, row));
        count += 1;
    }
    put_part(&mut table, of, &part)?;
    Ok(count)
}

fn put_part(table: &mut Rows<'_>, ino: InodeNo, part: &[Placed]) -> Result<()> {
    match part {
        [] => Ok(()),
        [(at, row)] => put(table, &extent_key(ino, *at), &row.encode()),
        [(first, _), ..] => put(table, &pack::pack_key(ino, *first), &pack::encode(ino, part)),
    }
}

/// What is noted of covered blocks: the counts of the region at hand, the summaries of its group,
/// the checksums of the group of blocks at hand.
struct Noting<'t, 'txn> {
    space: &'t mut Rows<'txn>,
    head: Head,
    region: u64,
    changes: Vec<Change>,
    group: Group,
    sums: Option<(Rows<'txn>, u32)>,
    summed: (u64, SumGroup),
}

fn put_covered(
    txn: &WriteTransaction,
    head: Head,
    covered: &mut dyn Iterator<Item = Run>,
    sum: Option<u32>,
) -> Result<()> {
    let mut space = txn.open_table(SPACE).map_err(|e| tree_error(CONTEXT, e))?;
    let sums = sum.map(|sum| txn.open_table(definition(Table::Sum)).map(|table| (table, sum)));
    let mut noting = Noting {
        space: &mut space,
        head,
        region: 0,
        changes: Vec::new(),
        group: Group::free(head),
        sums: sums.transpose().map_err(|e| tree_error(CONTEXT, e))?,
        summed: (0, SumGroup::default()),
    };
    for run in covered {
        let mut at = run.start.0;
        while at < run.end() {
            let region = at >> head.shift;
            let end = run.end().min((region + 1) << head.shift);
            noting.cover(region, at, end)?;
            at = end;
        }
        noting.sum(run)?;
    }
    noting.end_region()?;
    noting.end_group()?;
    noting.end_sums()?;
    put(&mut space, &head_key(), &head.encode())
}

impl Noting<'_, '_> {
    fn cover(&mut self, region: u64, from: u64, to: u64) -> Result<()> {
        if region != self.region {
            self.end_region()?;
            if region / GROUP_REGIONS != self.region / GROUP_REGIONS {
                self.end_group()?;
            }
            self.region = region;
        }
        let first = region << self.head.shift;
        let within = |at: u64| u32::try_from(at - first).expect("a region is small");
        self.changes.push((within(from)..within(to), 1, 1));
        Ok(())
    }

    fn end_region(&mut self) -> Result<()> {
        let mut counts = Counts::free(self.head.region_blocks());
        counts.apply(&self.changes)?;
        self.changes.clear();
        let index = usize::try_from(self.region % GROUP_REGIONS).expect("below 1024");
        self.group.0[index] = counts.summary();
        let key = counts_key(self.region);
        counts.encode(&key).map_or(Ok(()), |row| put(self.space, &key, &row))
    }

    fn end_group(&mut self) -> Result<()> {
        let key = group_key(self.region / GROUP_REGIONS);
        let group = std::mem::replace(&mut self.group, Group::free(self.head));
        put(self.space, &key, &group.encode(&key))
    }

    fn sum(&mut self, run: Run) -> Result<()> {
        let Some((_, sum)) = self.sums else { return Ok(()) };
        for block in run.start.0..run.end() {
            if block / GROUP_BLOCKS != self.summed.0 {
                self.end_sums()?;
                self.summed = (block / GROUP_BLOCKS, SumGroup::default());
            }
            self.summed.1.set(block, sum);
        }
        Ok(())
    }

    fn end_sums(&mut self) -> Result<()> {
        let (group, sums) = &self.summed;
        let key = sums_key(*group);
        match &mut self.sums {
            Some((table, _)) if sums.count() > 0 => put(table, &key, &sums.encode(&key)),
            _ => Ok(()),
        }
    }
}
