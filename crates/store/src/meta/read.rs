//! Reading rows: as they are, and as a checkpoint shows them.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use redb::{ReadOnlyTable, ReadableDatabase, ReadableTableMetadata, TableError};

use super::extents;
use super::guard::{Tree, guarded};
use super::memtable::Memtable;
use super::merge::{Walk, merge};
use super::space::SPACE;
use super::tree::{definition, tree_error};
use crate::bytes::Bytes;
use crate::images::{Checkpoint, CheckpointSet, before_key, decode_image, split_before_key};
use crate::planted::{PlantedBug, planted};
use crate::row::{Table, split_key};
use crate::{Epoch, Error, ErrorKind, Result};

const CONTEXT: &str = "the metadata tree cannot be read";

/// How many live rows of a view are held at once.
const VIEW_ROWS: usize = 1024;

/// The tree as of its last durable commit; `None` for a table that nothing was ever put into.
pub(super) struct Snapshot {
    tables: Vec<Option<ReadOnlyTable<&'static [u8], &'static [u8]>>>,
    /// The table of free space.
    space: Option<ReadOnlyTable<&'static [u8], &'static [u8]>>,
}

impl Snapshot {
    pub(super) fn take(db: &Tree) -> Result<Self> {
        guarded(|| {
            let txn = db.begin_read().map_err(|e| tree_error(CONTEXT, e))?;
            let open = |table| match txn.open_table(definition(table)) {
                Ok(table) => Ok(Some(table)),
                // A volume from before there were checkpoints.
                Err(TableError::TableDoesNotExist(_)) if table >= Table::Checkpoint => Ok(None),
                Err(e) => Err(tree_error(CONTEXT, e)),
            };
            let space = match txn.open_table(SPACE) {
                Ok(table) => Some(table),
                // A volume of format version 1 or 2.
                Err(TableError::TableDoesNotExist(_)) => None,
                Err(e) => return Err(tree_error(CONTEXT, e)),
            };
            Ok(Self { tables: Table::ALL.into_iter().map(open).collect::<Result<_>>()?, space })
        })
    }

    pub(super) fn space(&self) -> Option<&ReadOnlyTable<&'static [u8], &'static [u8]>> {
        self.space.as_ref()
    }

    /// Returns the table of checksums; `None` on a volume that never had one.
    pub(super) fn sums(&self) -> Option<&ReadOnlyTable<&'static [u8], &'static [u8]>> {
        self.tables[Table::Sum.index()].as_ref()
    }

    pub(super) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(rows) = &self.tables[table.index()] else { return Ok(None) };
        if table == Table::Extent {
            return extents::get(rows, key);
        }
        guarded(|| {
            Ok(rows
                .get(key)
                .map_err(|e| tree_error(CONTEXT, e))?
                .map(|guard| guard.value().to_vec()))
        })
    }

    /// Counts the extents of the tree, row by row.
    pub(super) fn count_extents(&self) -> Result<u64> {
        let rows = self.tables[Table::Extent.index()].as_ref();
        let all = (Bound::Unbounded, Bound::Unbounded);
        let (mut rows, mut count) = (extents::Rows::new(rows, Table::Extent, all, Walk::Up)?, 0);
        while rows.next()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    pub(super) fn len(&self, table: Table) -> Result<u64> {
        let Some(rows) = &self.tables[table.index()] else { return Ok(0) };
        guarded(|| rows.len().map_err(|e| tree_error(CONTEXT, e)))
    }
}

/// All rows of one moment, and what checkpoints know of them.
pub struct State {
    pub(super) active: Memtable,
    pub(super) frozen: Option<Arc<Memtable>>,
    pub(super) snapshot: Arc<Snapshot>,
    /// The checkpoints, and what they share with the present.
    pub checkpoint_set: CheckpointSet,
}

impl State {
    pub(super) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            active: Memtable::default(),
            frozen: None,
            snapshot,
            checkpoint_set: CheckpointSet::default(),
        }
    }

    /// Returns what the memtables know of a row.
    pub(super) fn above(&self, table: Table, key: &[u8]) -> Option<Option<Bytes>> {
        self.active
            .get(table, key)
            .or_else(|| self.frozen.as_ref().and_then(|frozen| frozen.get(table, key)))
    }

    /// Returns a row.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.above(table, key) {
            Some(row) => Ok(row.map(|bytes| bytes.to_vec())),
            None => self.snapshot.get(table, key),
        }
    }

    /// Visits rows in key order.
    pub fn scan(
        &self,
        table: Table,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.walk(Walk::Up, table, (from, to), visit)
    }

    /// Visits rows from the greatest key to the least.
    pub fn scan_back(
        &self,
        table: Table,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.walk(Walk::Down, table, (from, to), visit)
    }

    fn walk(
        &self,
        walk: Walk,
        table: Table,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let rows = self.snapshot.tables[table.index()].as_ref();
        let mut rows = extents::Rows::new(rows, table, (from, to), walk)?;
        let mut layers = Vec::with_capacity(2);
        for memtable in [Some(&self.active), self.frozen.as_deref()].into_iter().flatten() {
            let images = memtable.table(table).range::<[u8], _>((from, to));
            let iter: Box<dyn Iterator<Item = _>> = match walk {
                Walk::Up => Box::new(images),
                Walk::Down => Box::new(images.rev()),
            };
            layers.push(iter.peekable());
        }
        // Pages that name the same page twice would lead to its rows over and over, more often than
        // there is time: order is the end of it.
        let mut last: Option<Vec<u8>> = None;
        let below = || {
            let row = rows.next()?;
            if let Some((key, _)) = &row {
                match &mut last {
                    Some(last) if walk.compare(last, key).is_ge() => {
                        return Err(Error::corrupt(
                            "the metadata tree is damaged: its rows are not in order",
                        ));
                    }
                    Some(last) => last.clone_from(key),
                    None => last = Some(key.clone()),
                }
            }
            Ok(row)
        };
        merge(walk, layers, below, visit)
    }

    /// Visits the images that a checkpoint itself keeps of a table's rows.
    pub fn scan_images(
        &self,
        epoch: Epoch,
        table: Table,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        mut visit: impl FnMut(&[u8], Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let key = |key: &[u8]| before_key(epoch, table, key);
        let from = match from {
            Bound::Included(from) => Bound::Included(key(from)),
            Bound::Excluded(from) => Bound::Excluded(key(from)),
            Bound::Unbounded => Bound::Included(key(&[])),
        };
        let to = match to {
            Bound::Included(to) => Bound::Included(key(to)),
            Bound::Excluded(to) => Bound::Excluded(key(to)),
            Bound::Unbounded => {
                let mut end = key(&[]).to_vec();
                end[4] += 1;
                Bound::Excluded(end.into())
            }
        };
        self.scan(
            Table::Before,
            from.as_ref().map(Bytes::as_slice),
            to.as_ref().map(Bytes::as_slice),
            |key, image| {
                visit(split_before_key(key)?.2, decode_image(image)?)?;
                Ok(ControlFlow::Continue(()))
            },
        )
    }

    /// Returns a checkpoint and the newer ones, next first.
    fn chain(
        &self,
        epoch: Epoch,
    ) -> Result<(&Checkpoint, impl DoubleEndedIterator<Item = &Arc<Checkpoint>>)> {
        let at =
            self.checkpoint_set.checkpoints.partition_point(|checkpoint| checkpoint.epoch < epoch);
        match self.checkpoint_set.checkpoints[at..].split_first() {
            Some((checkpoint, newer)) if checkpoint.epoch == epoch && !checkpoint.row.deleting => {
                Ok((checkpoint, newer.iter()))
            }
            _ => {
                Err(Error::new(ErrorKind::NotFound, format!("checkpoint {} was deleted", epoch.0)))
            }
        }
    }

    /// Returns a row as a checkpoint shows it (I-CKP-1).
    pub fn get_at(&self, epoch: Epoch, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let (checkpoint, newer) = self.chain(epoch)?;
        let image = |epoch| self.get(Table::Before, &before_key(epoch, table, key));
        if let Some(image) = image(epoch)? {
            return Ok(decode_image(&image)?.map(<[u8]>::to_vec));
        }
        if !checkpoint.holds(split_key(key)?.0) {
            return Ok(None);
        }
        for checkpoint in newer.into_iter().filter(|_| !planted(PlantedBug::NewerImagesIgnored)) {
            if let Some(image) = image(checkpoint.epoch)? {
                return Ok(decode_image(&image)?.map(<[u8]>::to_vec));
            }
        }
        self.get(table, key)
    }

    /// Returns the last row of a range as a checkpoint shows it.
    pub fn last_at(
        &self,
        epoch: Epoch,
        table: Table,
        (from, to): (&[u8], Bound<&[u8]>),
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let (_, newer) = self.chain(epoch)?;
        let epochs: Vec<Epoch> =
            [epoch].into_iter().chain(newer.map(|checkpoint| checkpoint.epoch)).collect();
        let mut to = to.map(<[u8]>::to_vec);
        loop {
            // A row that the checkpoint shows is there now, or has an image since.
            let mut last: Option<Vec<u8>> = None;
            let mut found = |key: &[u8]| {
                if last.as_deref().is_none_or(|last| last < key) {
                    last = Some(key.to_vec());
                }
                Ok(ControlFlow::Break(()))
            };
            let upto = to.as_ref().map(Vec::as_slice);
            self.scan_back(table, Bound::Included(from), upto, |key, _| found(key))?;
            for epoch in &epochs {
                let key = |key: &[u8]| before_key(*epoch, table, key);
                let (from, upto) = (key(from), upto.map(key));
                let upto = upto.as_ref().map(Bytes::as_slice);
                self.scan_back(Table::Before, Bound::Included(from.as_slice()), upto, |key, _| {
                    found(split_before_key(key)?.2)
                })?;
            }
            let Some(key) = last else { return Ok(None) };
            if let Some(row) = self.get_at(epoch, table, &key)? {
                return Ok(Some((key, row)));
            }
            to = Bound::Excluded(key);
        }
    }

    /// Visits rows in key order as a checkpoint shows them (I-CKP-1).
    pub fn scan_at(
        &self,
        epoch: Epoch,
        table: Table,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut from: Bound<Vec<u8>> = from.map(<[u8]>::to_vec);
        loop {
            let start = from.as_ref().map(Vec::as_slice);
            let (mut rows, mut last) = (BTreeMap::new(), None);
            self.scan(table, start, to, |key, value| {
                rows.insert(key.to_vec(), value.to_vec());
                last = (rows.len() == VIEW_ROWS).then(|| key.to_vec());
                Ok(if last.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            let end = last.as_deref().map_or(to, Bound::Included);
            self.turn_back(epoch, table, (start, end), &mut rows)?;
            for (key, value) in &rows {
                if visit(key, value)?.is_break() {
                    return Ok(());
                }
            }
            let Some(last) = last else { return Ok(()) };
            from = Bound::Excluded(last);
        }
    }

    /// Makes live rows of a range what a checkpoint shows there.
    fn turn_back(
        &self,
        epoch: Epoch,
        table: Table,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        rows: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<()> {
        let (checkpoint, newer) = self.chain(epoch)?;
        let holds = |key: &[u8]| split_key(key).map(|(ino, _)| checkpoint.holds(ino));
        for key in rows.keys() {
            holds(key)?;
        }
        rows.retain(|key, _| holds(key).is_ok_and(|holds| holds));
        let mut set = |key: &[u8], row: Option<&[u8]>| match row {
            Some(row) => drop(rows.insert(key.to_vec(), row.to_vec())),
            None => drop(rows.remove(key)),
        };
        for checkpoint in newer.rev() {
            self.scan_images(checkpoint.epoch, table, range, |key, row| {
                if holds(key)? {
                    set(key, row);
                }
                Ok(())
            })?;
        }
        self.scan_images(epoch, table, range, |key, row| {
            set(key, row);
            Ok(())
        })
    }
}
