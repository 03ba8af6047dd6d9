//! The metadata tree as it lies on the device: opening, first rows, and one commit of rows with
//! their log position.

use std::sync::Arc;

use redb::{Database, Durability, TableDefinition, WriteTransaction};

use super::guard::{Tree, guarded};
use super::packs::Packing;
use super::read::Snapshot;
use super::region::{Backend, Region};
use super::space::{self, BeforeChange, Keeping};
use super::sums;
use crate::log::LogPosition;
use crate::pack::EXTENTS_OF_PACK;
use crate::planted::{PlantedBug, planted};
use crate::row::{RowChange, Table};
use crate::space::SpaceChanges;
use crate::sums::Sums;
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
        Table::Sum => "sum",
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
        let why = "a read or write of it failed before, and it does not open again; check the \
                   device, then unmount and mount";
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

/// Cap of the tree's cache while its first rows are written.
const FORMAT_CACHE_BYTES: u64 = 64 << 20;

/// Writes the first rows of a new file system, with what they make of the free space, and closes the
/// tree.
pub fn format_tree(region: &Arc<Region>, position: &LogPosition, rows: &[RowChange]) -> Result<()> {
    let db = open_tree(region, FORMAT_CACHE_BYTES)?;
    let superblock = region.superblock();
    let keeping = match superblock.keeps_space {
        true => Keeping::Rebuilt(superblock.size_bytes / u64::from(superblock.block_size)),
        false => Keeping::Not,
    };
    let rows = rows.iter().map(|row| (row.table, row.key.as_slice(), row.value.as_deref()));
    write_frozen_rows(
        &db,
        position,
        rows,
        Writing {
            keeping,
            pack: superblock.packs.then_some(EXTENTS_OF_PACK),
            sums: &Sums::new(),
            before: &|_| {},
        },
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

/// Writes rows past the log, as damage would; `packs`: the format has packs of extents.
#[cfg(any(test, feature = "forge"))]
pub fn write_rows<'a>(
    db: &Tree,
    position: &LogPosition,
    rows: impl Iterator<Item = (Table, &'a [u8], Option<&'a [u8]>)> + Clone,
    packs: bool,
) -> Result<()> {
    let pack = packs.then_some(EXTENTS_OF_PACK);
    write_frozen_rows(
        db,
        position,
        rows,
        Writing { keeping: Keeping::Dropped, pack, sums: &Sums::new(), before: &|_| {} },
    )
}

/// What a commit does beside putting rows.
#[derive(Clone, Copy)]
pub(super) struct Writing<'a> {
    /// About the free space.
    pub(super) keeping: Keeping,
    /// The most extents of a pack; `None` where the format has none.
    pub(super) pack: Option<usize>,
    /// Checksums of blocks.
    pub(super) sums: &'a Sums,
    /// Is told before regions change.
    pub(super) before: BeforeChange<'a>,
}

/// Commits rows durably, with the log position that they are as of, and with what they make of the
/// free space.
pub(super) fn write_frozen_rows<'a>(
    db: &Tree,
    position: &LogPosition,
    rows: impl Iterator<Item = (Table, &'a [u8], Option<&'a [u8]>)> + Clone,
    writing: Writing<'_>,
) -> Result<()> {
    let Writing { keeping, before, .. } = writing;
    guarded(|| {
        if planted(PlantedBug::SpaceCommittedApart) && matches!(keeping, Keeping::Folded(_)) {
            let txn = begin(db)?;
            let changes = put_rows(&txn, position, rows.clone(), writing);
            txn.abort().map_err(|e| tree_error(CONTEXT, e))?;
            let txn = begin(db)?;
            space::fold(&txn, changes?, before)?;
            txn.commit().map_err(|e| tree_error(CONTEXT, e))?;
            let txn = begin(db)?;
            drop(put_rows(&txn, position, rows, writing)?);
            return txn.commit().map_err(|e| tree_error(CONTEXT, e));
        }
        let txn = begin(db)?;
        let changes = put_rows(&txn, position, rows, writing)?;
        match keeping {
            Keeping::Not => {}
            Keeping::Folded(_) => space::fold(&txn, changes, before)?,
            Keeping::Rebuilt(blocks) => space::rebuild(&txn, blocks)?,
            #[cfg(any(test, feature = "forge"))]
            Keeping::Dropped => space::drop_head(&txn)?,
        }
        txn.commit().map_err(|e| tree_error(CONTEXT, e))
    })
}

pub(super) const CONTEXT: &str = "a metadata commit failed";

pub(super) fn begin(db: &Database) -> Result<WriteTransaction> {
    let mut txn = db.begin_write().map_err(|e| tree_error(CONTEXT, e))?;
    let durability = if planted(PlantedBug::TailBeforeCommit) {
        Durability::None
    } else {
        Durability::Immediate
    };
    txn.set_durability(durability)
        .map_err(|e| Error::new(ErrorKind::Io, format!("{CONTEXT}: {e}")))?;
    txn.set_quick_repair(true);
    Ok(txn)
}

/// How many changes of extents are put in order and into packs at once.
const EXTENTS_AT_ONCE: usize = 1 << 16;

/// Puts rows into the tree; returns what they change of the free space, or why that cannot be told.
fn put_rows<'a>(
    txn: &WriteTransaction,
    position: &LogPosition,
    rows: impl Iterator<Item = (Table, &'a [u8], Option<&'a [u8]>)>,
    writing: Writing<'_>,
) -> Result<Result<SpaceChanges>> {
    let (folds, blocks) = match writing.keeping {
        Keeping::Folded(blocks) => (true, blocks),
        _ => (false, 0),
    };
    let mut changes = Ok(SpaceChanges::new(blocks));
    let mut tables = Vec::with_capacity(Table::ALL.len());
    // That of checksums comes into being with the first: older formats have none.
    for table in Table::ALL.into_iter().filter(|table| *table != Table::Sum) {
        tables.push(txn.open_table(definition(table)).map_err(|e| tree_error(CONTEXT, e))?);
    }
    let mut of_extents = Vec::new();
    let put_extents = |tables: &mut [_], changes: &mut _, of_extents| match writing.pack {
        Some(limit) => {
            let space = folds.then_some(changes);
            Packing { table: &mut tables[Table::Extent.index()], limit, space }.apply(of_extents)
        }
        None => Ok(()),
    };
    for (table, key, value) in rows {
        if table == Table::Extent && writing.pack.is_some() {
            of_extents.push((key, value));
            if of_extents.len() == EXTENTS_AT_ONCE {
                put_extents(&mut tables, &mut changes, std::mem::take(&mut of_extents))?;
            }
            continue;
        }
        if table == Table::Sum {
            sums::put_row(txn, key, value)?;
            continue;
        }
        let target = &mut tables[table.index()];
        let old = match value {
            Some(value) => target.insert(key, value),
            None => target.remove(key),
        }
        .map_err(|e| tree_error(CONTEXT, e))?;
        if folds && SpaceChanges::concern(table) {
            let old = old.as_ref().map(redb::AccessGuard::value);
            changes = changes.and_then(|mut changes| {
                changes.note(table, key, old, value)?;
                Ok(changes)
            });
        }
    }
    put_extents(&mut tables, &mut changes, of_extents)?;
    sums::put(txn, writing.sums)?;
    if position.sequence == 1 || !planted(PlantedBug::PositionNotCommitted) {
        tables[Table::Setting.index()]
            .insert(POSITION, position.encode().as_slice())
            .map_err(|e| tree_error(CONTEXT, e))?;
    }
    Ok(changes)
}
