//! What only tests and measurements do to the tree.

use redb::{Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableError};

use super::guard::{Tree, guarded};
use super::space::SPACE;
use super::tree::{Definition, definition, tree_error};
use crate::pack::{decode, split_pack_key};
use crate::row::{Table, extent_key};
use crate::{FileBlock, InodeNo, Result};

const CONTEXT: &str = "the metadata tree cannot be forged";

/// What a table takes in the tree, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableBytes {
    /// Keys and values.
    pub stored: u64,
    /// Its pages, all of them.
    pub pages: u64,
    /// Its rows.
    pub rows: u64,
}

/// Measures a table.
pub fn table_bytes(db: &Tree, table: Table) -> Result<TableBytes> {
    bytes_of(db, definition(table))
}

/// Measures the table of free space.
pub fn space_bytes(db: &Tree) -> Result<TableBytes> {
    bytes_of(db, SPACE)
}

fn bytes_of(db: &Tree, table: Definition) -> Result<TableBytes> {
    guarded(|| {
        let txn = db.begin_read().map_err(|e| tree_error(CONTEXT, e))?;
        let rows = match txn.open_table(table) {
            // That of checksums comes with the first.
            Err(TableError::TableDoesNotExist(_)) => {
                return Ok(TableBytes { stored: 0, pages: 0, rows: 0 });
            }
            rows => rows.map_err(|e| tree_error(CONTEXT, e))?,
        };
        let stats = rows.stats().map_err(|e| tree_error(CONTEXT, e))?;
        let pages = stats.stored_bytes() + stats.metadata_bytes() + stats.fragmented_bytes();
        let rows = rows.len().map_err(|e| tree_error(CONTEXT, e))?;
        Ok(TableBytes { stored: stats.stored_bytes(), pages, rows })
    })
}

/// Takes all packs apart, as formats without them have it.
pub fn unpack_rows(db: &Tree) -> Result<()> {
    guarded(|| {
        let mut txn = db.begin_write().map_err(|e| tree_error(CONTEXT, e))?;
        txn.set_durability(Durability::Immediate).map_err(|e| tree_error(CONTEXT, e))?;
        {
            let mut rows =
                txn.open_table(definition(Table::Extent)).map_err(|e| tree_error(CONTEXT, e))?;
            let mut packs = Vec::new();
            for row in rows.iter().map_err(|e| tree_error(CONTEXT, e))? {
                let (key, value) = row.map_err(|e| tree_error(CONTEXT, e))?;
                if split_pack_key(key.value()).is_some() {
                    packs.push((key.value().to_vec(), decode(key.value(), value.value())?));
                }
            }
            for (key, extents) in packs {
                let ino = crate::row::split_key(&key)?.0;
                rows.remove(key.as_slice()).map_err(|e| tree_error(CONTEXT, e))?;
                for (at, row) in extents {
                    rows.insert(extent_key(ino, at).as_slice(), row.encode().as_slice())
                        .map_err(|e| tree_error(CONTEXT, e))?;
                }
            }
        }
        txn.commit().map_err(|e| tree_error(CONTEXT, e))
    })
}

/// Turns a bit of the first pack of an inode, as a device does; returns the block that it begins
/// with, and how many extents it has. `None` where there is no pack.
pub fn spoil_pack(db: &Tree, ino: InodeNo) -> Result<Option<(FileBlock, usize)>> {
    guarded(|| {
        let txn = db.begin_write().map_err(|e| tree_error(CONTEXT, e))?;
        let mut spoilt = None;
        {
            let mut rows =
                txn.open_table(definition(Table::Extent)).map_err(|e| tree_error(CONTEXT, e))?;
            let mut pack = None;
            for row in rows.iter().map_err(|e| tree_error(CONTEXT, e))? {
                let (key, value) = row.map_err(|e| tree_error(CONTEXT, e))?;
                if split_pack_key(key.value()).is_some_and(|(of, _)| of == ino) {
                    pack = Some((key.value().to_vec(), value.value().to_vec()));
                    break;
                }
            }
            if let Some((key, mut value)) = pack {
                let extents = decode(&key, &value)?;
                spoilt = extents.first().map(|(first, _)| (*first, extents.len()));
                value[7] ^= 1;
                rows.insert(key.as_slice(), value.as_slice())
                    .map_err(|e| tree_error(CONTEXT, e))?;
            }
        }
        txn.commit().map_err(|e| tree_error(CONTEXT, e))?;
        Ok(spoilt)
    })
}
