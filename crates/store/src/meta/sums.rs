//! Checksums of blocks: a commit puts them into the rows of their groups, and reads look through
//! memory first.

use std::ops::Range;
use std::sync::Arc;

use redb::{ReadableTable, WriteTransaction};

use super::guard::guarded;
use super::read::{Snapshot, State};
use super::store::MetaStore;
use super::tree::{CONTEXT, definition, tree_error};
use crate::row::Table;
use crate::sums::{GROUP_BLOCKS, SumGroup, Sums, group_key, groups};
use crate::{Error, Result};

/// Puts checksums into the tree. A row that cannot be read is replaced: what it had is lost, and
/// reads of those blocks fail, which they would with it.
pub(super) fn put(txn: &WriteTransaction, sums: &Sums) -> Result<()> {
    if sums.is_empty() {
        return Ok(());
    }
    let mut table = txn.open_table(definition(Table::Sum)).map_err(|e| tree_error(CONTEXT, e))?;
    let mut rest = sums.iter().peekable();
    while let Some((first, _)) = rest.peek() {
        let group = **first / GROUP_BLOCKS;
        let key = group_key(group);
        let old = table.get(key.as_slice()).map_err(|e| tree_error(CONTEXT, e))?;
        let mut row =
            old.and_then(|old| SumGroup::decode(&key, old.value()).ok()).unwrap_or_default();
        while let Some((block, sum)) = rest.next_if(|(block, _)| **block / GROUP_BLOCKS == group) {
            row.set(*block, *sum);
        }
        table
            .insert(key.as_slice(), row.encode(&key).as_slice())
            .map_err(|e| tree_error(CONTEXT, e))?;
    }
    Ok(())
}

/// Puts or removes the row of a group as it is.
pub(super) fn put_row(txn: &WriteTransaction, key: &[u8], value: Option<&[u8]>) -> Result<()> {
    let mut table = txn.open_table(definition(Table::Sum)).map_err(|e| tree_error(CONTEXT, e))?;
    match value {
        Some(value) => table.insert(key, value).map(drop),
        None => table.remove(key).map(drop),
    }
    .map_err(|e| tree_error(CONTEXT, e))
}

impl Snapshot {
    /// Fills in the checksums that are not known yet, of blocks from `first` on.
    fn fill_sums(&self, first: u64, sums: &mut [Option<u32>]) -> Result<()> {
        let Some(table) = self.sums() else { return Ok(()) };
        let end = first + sums.len() as u64;
        for group in groups(&(first..end)) {
            let from = (group * GROUP_BLOCKS).max(first);
            let to = (group + 1).saturating_mul(GROUP_BLOCKS).min(end);
            let part = &mut sums[(from - first) as usize..(to - first) as usize];
            if part.iter().all(Option::is_some) {
                continue;
            }
            let key = group_key(group);
            let row = guarded(|| {
                let row = table.get(key.as_slice()).map_err(|e| tree_error(READING, e))?;
                row.map(|row| SumGroup::decode(&key, row.value())).transpose()
            })?;
            let Some(row) = row else { continue };
            for (block, sum) in (from..to).zip(part) {
                *sum = sum.or_else(|| row.get(block));
            }
        }
        Ok(())
    }
}

const READING: &str = "the checksums of data cannot be read";

impl State {
    /// Returns what memory knows of the checksums of blocks.
    fn sums_in_memory(&self, blocks: &Range<u64>) -> Vec<Option<u32>> {
        let mut sums = vec![None; (blocks.end - blocks.start) as usize];
        for memtable in [self.frozen.as_deref(), Some(&self.active)].into_iter().flatten() {
            for (block, sum) in memtable.sums().range(blocks.clone()) {
                sums[(block - blocks.start) as usize] = Some(*sum);
            }
        }
        sums
    }

    /// Returns the checksum of a block that one of these rows says has one.
    ///
    /// # Errors
    /// `Corrupt` where it has none, or its row cannot be read.
    pub fn sum(&self, block: u64) -> Result<u32> {
        let mut sums = self.sums_in_memory(&(block..block + 1));
        self.snapshot.fill_sums(block, &mut sums)?;
        sums[0].ok_or_else(|| missing(block))
    }
}

fn missing(block: u64) -> Error {
    Error::corrupt(format!("block {block} should have a checksum and has none"))
}

impl MetaStore {
    /// Returns the checksums of blocks that are in use and summed; whether memory had all.
    ///
    /// # Errors
    /// `Corrupt` where a block has none, or its row cannot be read.
    pub fn sums(&self, blocks: Range<u64>) -> Result<(Vec<u32>, bool)> {
        self.revive();
        let (mut sums, snapshot) = {
            let state = self.state.read();
            (state.sums_in_memory(&blocks), Arc::clone(&state.snapshot))
        };
        let in_memory = sums.iter().all(Option::is_some);
        if !in_memory {
            snapshot.fill_sums(blocks.start, &mut sums)?;
        }
        let known = blocks.zip(sums).map(|(block, sum)| sum.ok_or_else(|| missing(block)));
        Ok((known.collect::<Result<_>>()?, in_memory))
    }
}
