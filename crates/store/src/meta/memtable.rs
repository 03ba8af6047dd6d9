//! Rows that the metadata tree does not hold yet.

use std::collections::BTreeMap;

use crate::bytes::Bytes;
use crate::planted::{PlantedBug, planted};
use crate::row::{RowChange, Table};
use crate::sums::{Sums, take_over};

/// The images of one table's rows by key.
pub(super) type Images = BTreeMap<Bytes, Option<Bytes>>;

/// The newest image of every changed row, by table; `None` stands for a removed row.
#[derive(Debug, Default)]
pub(super) struct Memtable {
    tables: [Images; Table::ALL.len()],
    /// Checksums of blocks; of that table there are no images.
    sums: Sums,
    /// Rough size in bytes, for pacing.
    bytes: usize,
}

impl Memtable {
    /// Rough cost in bytes of an entry beside its key and value.
    const ENTRY_BYTES: usize = 64;
    /// By how much a checksum in memory, or alone in its row of the tree, is larger than in a record.
    const SUM_FACTOR: usize = 10;

    pub(super) fn apply(&mut self, row: RowChange) {
        if row.table == Table::Sum {
            self.bytes += row.value.as_deref().map_or(0, <[u8]>::len) * Self::SUM_FACTOR;
            return take_over(&mut self.sums, &row.key, row.value.as_deref());
        }
        self.bytes +=
            Self::ENTRY_BYTES + row.key.len() + row.value.as_deref().map_or(0, <[u8]>::len);
        if row.value.is_none() && planted(PlantedBug::DeletionForgotten) {
            self.tables[row.table.index()].remove(&row.key);
            return;
        }
        self.tables[row.table.index()].insert(row.key, row.value);
    }

    /// Takes over the rows of an older table, except those that this one has newer images of.
    pub(super) fn absorb_older(&mut self, older: &Self) {
        debug_assert!(
            self.bytes.checked_add(older.bytes).is_some(),
            "I-META-4: rows that are taken back are counted again"
        );
        for (images, old) in self.tables.iter_mut().zip(&older.tables) {
            for (key, value) in old {
                images.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        for (block, sum) in &older.sums {
            self.sums.entry(*block).or_insert(*sum);
        }
        self.bytes += older.bytes;
    }

    /// Returns `None` where this table knows nothing of the key.
    pub(super) fn get(&self, table: Table, key: &[u8]) -> Option<Option<Bytes>> {
        self.tables[table.index()].get(key).cloned()
    }

    pub(super) fn table(&self, table: Table) -> &Images {
        &self.tables[table.index()]
    }

    /// Returns the checksums of blocks.
    pub(super) fn sums(&self) -> &Sums {
        &self.sums
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
