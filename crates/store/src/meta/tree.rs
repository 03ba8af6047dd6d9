//! The metadata tree as it lies on the device: opening, first rows, and one commit of rows with their
//! log position.

use std::sync::Arc;

use redb::{Database, Durability, TableDefinition};

use super::guard::{Tree, guarded};
use super::read::Snapshot;
use super::region::{Backend, Region};
use crate::log::LogPosition;
use crate::planted::{PlantedBug, planted};
use crate::row::{RowChange, Table};
use crate::{Error, ErrorKind, Result};

pub(super) type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

pub(super) const fn definition(table: Table) -> Definition {
    TableDefinition::new(table_name(table))
}

/// Returns the name of a table in the tree.
pub const fn table_name(table: Table) -> &'static str {
    match table {
        Table::Inode => "inode",
        Table::Dentry => "dentry",
        Table::Extent => "extent",
        Table::Xattr => "xattr",
        Table::Orphan => "orphan",
        Table::Setting => "setting",
        Table::Checkpoint => "checkpoint",
        Table::Before => "before",
        Table::Scope => "scope",
    }
}

/// Name of the setting that holds the log position of the last metadata commit.
pub const POSITION: &[u8] = b"log_position";

pub(super) fn tree_error(context: &str, error: impl Into<redb::Error>) -> Error {
    let error = error.into();
    if let redb::Error::Io(io) = &error
        && let Some(inner) = io.get_ref().and_then(|e| e.downcast_ref::<Error>())
    {
        return inner.clone();
    }
    if matches!(error, redb::Error::PreviousIo) {
        let why = "a read or write of it failed before, and it does not open again; check the device, then unmount and mount";
        return Error::new(ErrorKind::Io, format!("{context}: {why}"));
    }
    let kind =
        if matches!(error, redb::Error::Corrupted(_)) { ErrorKind::Corrupt } else { ErrorKind::Io };
    Error::new(kind, format!("{context}: {error}"))
}

/// Opens the tree, making an empty one in an empty region.
pub fn open_tree(region: &Arc<Region>, cache_bytes: u64) -> Result<Tree> {
    let cache = usize::try_from(cache_bytes).unwrap_or(usize::MAX);
    let open = || {
        redb::Builder::new().set_cache_size(cache).create_with_backend(Backend(Arc::clone(region)))
    };
    guarded(|| {
        open()
            .map(|database| Tree::new(database, cache_bytes))
            .map_err(|e| tree_error("the metadata tree does not open", e))
    })
}

/// Writes the first rows of a new file system and closes the tree.
pub fn format_tree(region: &Arc<Region>, position: &LogPosition, rows: &[RowChange]) -> Result<()> {
    let db = open_tree(region, 16 << 20)?;
    write_rows(
        &db,
        position,
        rows.iter().map(|row| (row.table, row.key.as_slice(), row.value.as_deref())),
    )
}

/// Reads the log position that the tree's last commit holds.
pub fn stored_position(db: &Tree) -> Result<LogPosition> {
    let snapshot = Snapshot::take(db)?;
    let row = snapshot.get(Table::Setting, POSITION)?;
    LogPosition::decode(
        &row.ok_or_else(|| Error::corrupt("the metadata tree holds no log position"))?,
    )
}

/// Writes rows past the log, as damage would.
pub fn write_rows<'a>(
    db: &Tree,
    position: &LogPosition,
    rows: impl Iterator<Item = (Table, &'a [u8], Option<&'a [u8]>)>,
) -> Result<()> {
    guarded(|| write_rows_unguarded(db, position, rows))
}

fn write_rows_unguarded<'a>(
    db: &Database,
    position: &LogPosition,
    rows: impl Iterator<Item = (Table, &'a [u8], Option<&'a [u8]>)>,
) -> Result<()> {
    let context = "a metadata commit failed";
    let mut txn = db.begin_write().map_err(|e| tree_error(context, e))?;
    let durability = if planted(PlantedBug::TailBeforeCommit) {
        Durability::None
    } else {
        Durability::Immediate
    };
    txn.set_durability(durability)
        .map_err(|e| Error::new(ErrorKind::Io, format!("{context}: {e}")))?;
    txn.set_quick_repair(true);
    {
        let mut tables = Vec::with_capacity(Table::ALL.len());
        for table in Table::ALL {
            tables.push(txn.open_table(definition(table)).map_err(|e| tree_error(context, e))?);
        }
        for (table, key, value) in rows {
            let target = &mut tables[table.index()];
            match value {
                Some(value) => target.insert(key, value).map(drop),
                None => target.remove(key).map(drop),
            }
            .map_err(|e| tree_error(context, e))?;
        }
        if position.sequence == 1 || !planted(PlantedBug::PositionNotCommitted) {
            tables[Table::Setting.index()]
                .insert(POSITION, position.encode().as_slice())
                .map_err(|e| tree_error(context, e))?;
        }
    }
    txn.commit().map_err(|e| tree_error(context, e))
}
