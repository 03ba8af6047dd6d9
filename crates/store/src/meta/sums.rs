//! Checksums of blocks: a commit puts them into the rows of their groups, and reads look through
//! memory first.

use std::ops::Range;
use std::sync::Arc;

use redb::{ReadableTable, WriteTransaction};

use super::guard::guarded;
use super::read::{Snapshot, State};
use super::store::MetaStore;
use super::sum_cache::OfGroup;
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
        let end = first.saturating_add(sums.len() as u64);
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
    /// Fills in what memory knows of the checksums of blocks from `first` on.
    fn sums_in_memory(&self, first: u64, sums: &mut [Option<u32>]) {
        let blocks = first..first.saturating_add(sums.len() as u64);
        for memtable in [self.frozen.as_deref(), Some(&self.active)].into_iter().flatten() {
            for (block, sum) in memtable.sums().range(blocks.clone()) {
                sums[(block - first) as usize] = Some(*sum);
            }
        }
    }

    /// Returns the checksum of a block that one of these rows says has one.
    ///
    /// # Errors
    /// `Corrupt` where it has none, or its row cannot be read.
    pub fn sum(&self, block: u64) -> Result<u32> {
        let mut sums = [None];
        self.sums_in_memory(block, &mut sums);
        self.snapshot.fill_sums(block, &mut sums)?;
        sums[0].ok_or_else(|| missing(block))
    }
}

fn missing(block: u64) -> Error {
    Error::corrupt(format!("block {block} should have a checksum and has none"))
}

impl MetaStore {
    /// Fills `out` with the checksums of blocks from `first` on that are in use and summed; whether
    /// memory had all.
    ///
    /// # Errors
    /// `Corrupt` where a block has none, or its row cannot be read.
    #[inline]
    pub fn sums(&self, first: u64, out: &mut [u32]) -> Result<bool> {
        let (mut at, mut rest, mut in_memory) = (first, out, true);
        while !rest.is_empty() {
            let len = (GROUP_BLOCKS - at % GROUP_BLOCKS).min(rest.len() as u64);
            let (part, behind) = rest.split_at_mut(len as usize);
            if !self.sum_cache.find(at, part) {
                in_memory &= self.sums_of_rows(at, part)?;
            }
            (at, rest) = (at + len, behind);
        }
        Ok(in_memory)
    }

    /// Visits the blocks of a range that have a checksum, also one of what they held before, in
    /// order. What cannot be read is passed over.
    pub fn each_sum(&self, blocks: Range<u64>, mut visit: impl FnMut(u64, u32)) {
        for group in groups(&blocks) {
            let mut known: OfGroup = [None; GROUP_BLOCKS as usize];
            let first = group * GROUP_BLOCKS;
            let snapshot = {
                let state = self.state.read();
                state.sums_in_memory(first, &mut known);
                Arc::clone(&state.snapshot)
            };
            if let Err(error) = snapshot.fill_sums(first, &mut known) {
                tracing::debug!(%error, "checksums of blocks from {first} on are passed over");
            }
            for (block, sum) in (first..).zip(known) {
                if let Some(sum) = sum.filter(|_| blocks.contains(&block)) {
                    visit(block, sum);
                }
            }
        }
    }

    /// As [`sums`](Self::sums), of blocks of one group whose checksums are not remembered; those of
    /// the group are from then on.
    #[inline(never)]
    fn sums_of_rows(&self, first: u64, out: &mut [u32]) -> Result<bool> {
        self.revive();
        let (group, skip) = (first / GROUP_BLOCKS, (first % GROUP_BLOCKS) as usize);
        let wanted = skip..skip + out.len();
        let begun = self.sum_cache.begin(group);
        let mut known: OfGroup = [None; GROUP_BLOCKS as usize];
        let snapshot = {
            let state = self.state.read();
            state.sums_in_memory(group * GROUP_BLOCKS, &mut known);
            Arc::clone(&state.snapshot)
        };
        let in_memory = known[wanted.clone()].iter().all(Option::is_some);
        let filled = snapshot.fill_sums(group * GROUP_BLOCKS, &mut known);
        if !in_memory {
            filled?;
        }
        for (index, (out, sum)) in out.iter_mut().zip(&known[wanted]).enumerate() {
            *out = sum.ok_or_else(|| missing(first + index as u64))?;
        }
        let _unchanging = self.state.read();
        self.sum_cache.keep(group, begun, &known);
        Ok(in_memory)
    }
}
