//! Views: the inodes of checkpoints, beside those of the present.
//!
//! ```text
//!   inode number   | slot, 16 bits | number of the row, 48 bits |
//!                    0       the present (or, on a mount of one checkpoint, that checkpoint)
//!                    0xffff  the directory `.checkpoints` of the root
//!                    0xfff0  and up to there: of a front end, nothing to the file system
//!                    others  a checkpoint that was looked into, until the mount ends
//! ```
//!
//! Nothing of a view can be changed (I-CKP-5).

use std::collections::{BTreeSet, HashMap};
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, OnceLock};

use bedplate_block::sync::{Mutex, RwLock, rank};

use super::Engine;
use crate::{DirEntry, Epoch, Error, ErrorKind, FileKind, InodeNo, Result, Timestamp};
use bedplate_store::{DentryRow, InodeRow, Table, inode_key, pair_key, split_key};

/// The directory of checkpoints in the root; no listing shows it.
pub(crate) const CHECKPOINTS_NAME: &[u8] = b".checkpoints";
/// Its inode.
const CHECKPOINTS_DIR: InodeNo = InodeNo::CHECKPOINTS;

const SLOT_SHIFT: u32 = InodeNo::BITS;
/// The first one that no checkpoint gets.
const SLOTS_END: u64 = InodeNo::OF_FRONT_END.0 >> SLOT_SHIFT;

/// Which checkpoints have a slot.
#[derive(Debug, Default)]
pub(crate) struct Views {
    /// A leaf.
    slots: RwLock<Slots, { rank::VIEWS }>,
    /// The checkpoint that the whole mount shows.
    base: OnceLock<Epoch>,
    /// A leaf: how often each checkpoint is held ([`CheckpointHold`](crate::CheckpointHold)).
    holds: Mutex<HashMap<Epoch, usize>, { rank::HOLDS }>,
}

#[derive(Debug, Default)]
struct Slots {
    epochs: HashMap<u64, Epoch>,
    last: u64,
    /// The checkpoint that files were last compared with, and the inodes that it has rows of and
    /// does not show. Its rows do not change (I-CKP-5), and neither does this.
    hidden: Option<(Epoch, Arc<BTreeSet<InodeNo>>)>,
}

/// Where the rows of an inode are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowPlace {
    /// `None`: in the present.
    pub(crate) epoch: Option<Epoch>,
    /// The number of the row.
    pub(crate) ino: InodeNo,
    slot: u64,
}

impl RowPlace {
    /// Returns the inode that a row of the same place names.
    fn inode(self, row: InodeNo) -> InodeNo {
        InodeNo(self.slot << SLOT_SHIFT | row.0)
    }
}

impl Views {
    /// Makes the whole mount show a checkpoint.
    pub(crate) fn set_base(&self, epoch: Epoch) {
        assert!(self.base.set(epoch).is_ok(), "a mount shows one checkpoint");
    }

    pub(crate) fn hold(&self, epoch: Epoch) {
        *self.holds.lock().entry(epoch).or_default() += 1;
    }

    pub(crate) fn let_go(&self, epoch: Epoch) {
        let mut holds = self.holds.lock();
        let count = holds.get_mut(&epoch).expect("it was counted when it was held");
        *count -= 1;
        if *count == 0 {
            holds.remove(&epoch);
        }
    }

    /// Returns whether a checkpoint is held.
    pub(crate) fn is_held(&self, epoch: Epoch) -> bool {
        self.holds.lock().contains_key(&epoch)
    }

    /// Returns the slot of a checkpoint, giving it one where needed.
    fn slot(&self, epoch: Epoch) -> Result<u64> {
        if let Some((slot, _)) = self.slots.read().epochs.iter().find(|(_, known)| **known == epoch)
        {
            return Ok(*slot);
        }
        let mut slots = self.slots.write();
        if slots.last + 1 == SLOTS_END {
            return Err(Error::new(
                ErrorKind::Busy,
                "65,519 checkpoints were looked into since the mount: mount again to look into \
                 others",
            ));
        }
        slots.last += 1;
        let slot = slots.last;
        slots.epochs.insert(slot, epoch);
        Ok(slot)
    }

    fn epoch(&self, slot: u64) -> Option<Epoch> {
        self.slots.read().epochs.get(&slot).copied()
    }

    /// Returns the inodes that a checkpoint has rows of and does not show: as they were found for
    /// the file before, if that was compared with the same checkpoint, or as `find` finds them.
    pub(crate) fn hidden(
        &self,
        epoch: Epoch,
        find: impl FnOnce() -> Result<BTreeSet<InodeNo>>,
    ) -> Result<Arc<BTreeSet<InodeNo>>> {
        if let Some((known, hidden)) = &self.slots.read().hidden
            && *known == epoch
        {
            return Ok(hidden.clone());
        }
        let hidden = Arc::new(find()?);
        self.slots.write().hidden = Some((epoch, hidden.clone()));
        Ok(hidden)
    }

    /// Forgets a checkpoint that is deleted; its slots are never used again.
    pub(crate) fn forget(&self, epoch: Epoch) {
        let mut slots = self.slots.write();
        slots.epochs.retain(|_, known| *known != epoch);
        slots.hidden.take_if(|(known, _)| *known == epoch);
    }
}

impl Engine {
    /// Returns where an inode's rows are.
    pub(crate) fn place(&self, ino: InodeNo) -> Result<RowPlace> {
        let slot = ino.0 >> SLOT_SHIFT;
        let epoch = match slot {
            0 => self.views.base.get().copied(),
            _ => Some(self.views.epoch(slot).ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!("inode {} is of a checkpoint that was deleted", ino.0),
                )
            })?),
        };
        Ok(RowPlace { epoch, ino: InodeNo(ino.0 & ((1 << SLOT_SHIFT) - 1)), slot })
    }

    /// Refuses to change what belongs to a checkpoint.
    pub(crate) fn need_live(&self, ino: InodeNo) -> Result<()> {
        if self.is_past(ino) {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                "a checkpoint cannot be changed: copy what you need, or roll back",
            ));
        }
        Ok(())
    }

    /// Returns whether an inode is one of a checkpoint.
    pub(crate) fn is_past(&self, ino: InodeNo) -> bool {
        ino.0 >> SLOT_SHIFT != 0 || self.views.base.get().is_some()
    }

    /// Returns whether an inode is one of this checkpoint.
    pub(crate) fn is_of(&self, ino: InodeNo, epoch: Epoch) -> bool {
        self.views.epoch(ino.0 >> SLOT_SHIFT) == Some(epoch)
    }

    /// Returns the inode that a row number names in a checkpoint.
    pub(crate) fn inode_at(&self, epoch: Epoch, row: InodeNo) -> Result<InodeNo> {
        Ok(InodeNo(self.views.slot(epoch)? << SLOT_SHIFT | row.0))
    }

    /// Returns the row of an inode.
    pub(crate) fn inode_row(&self, ino: InodeNo) -> Result<InodeRow> {
        if ino == CHECKPOINTS_DIR {
            return self.checkpoints_row();
        }
        let place = self.place(ino)?;
        let bytes = if place.ino.is_possible() {
            self.row_at(place, Table::Inode, &inode_key(place.ino))?
        } else {
            None
        };
        let row = InodeRow::decode(&bytes.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("there is no inode {}", ino.0))
        })?)?;
        Ok(InodeRow { parent: self.parent_at(place, row.parent), ..row })
    }

    fn parent_at(&self, place: RowPlace, parent: InodeNo) -> InodeNo {
        match (place.slot, place.ino) {
            (0, _) => parent,
            (_, InodeNo::ROOT) => CHECKPOINTS_DIR,
            _ => place.inode(parent),
        }
    }

    fn checkpoints_row(&self) -> Result<InodeRow> {
        let root = self.inode_row(InodeNo::ROOT)?;
        let newest = self.meta.reading(|rows| {
            Ok(rows.checkpoint_set.listed().next_back().map(|checkpoint| checkpoint.row.created))
        })?;
        let time: Timestamp = newest.unwrap_or(root.btime);
        Ok(InodeRow {
            mode: 0o555,
            nlink: 2,
            io_mode: None,
            parent: InodeNo::ROOT,
            atime: time,
            mtime: time,
            ctime: time,
            ..root
        })
    }

    fn row_at(&self, place: RowPlace, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match place.epoch {
            None => self.meta.get(table, key),
            Some(epoch) => self.meta.reading(|rows| rows.get_at(epoch, table, key)),
        }
    }

    /// Returns a row of an inode's names or attributes.
    pub(crate) fn row_of(
        &self,
        table: Table,
        ino: InodeNo,
        rest: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        if ino == CHECKPOINTS_DIR {
            return Ok(None);
        }
        let place = self.place(ino)?;
        self.row_at(place, table, &pair_key(place.ino, rest))
    }

    /// Visits the rows of an inode's names, attributes or extents whose keys end in `from` and
    /// later ends.
    pub(crate) fn rows_of(
        &self,
        table: Table,
        ino: InodeNo,
        from: Bound<&[u8]>,
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        if ino == CHECKPOINTS_DIR {
            return Ok(());
        }
        let place = self.place(ino)?;
        let from = match from {
            Bound::Included(rest) => Bound::Included(pair_key(place.ino, rest)),
            Bound::Excluded(rest) => Bound::Excluded(pair_key(place.ino, rest)),
            Bound::Unbounded => Bound::Included(pair_key(place.ino, &[])),
        };
        let (from, end) = (from.as_ref().map(Vec::as_slice), (place.ino.0 + 1).to_be_bytes());
        let visit = |key: &[u8], value: &[u8]| visit(split_key(key)?.1, value);
        match place.epoch {
            None => self.meta.scan(table, from, Bound::Excluded(&end), visit),
            Some(epoch) => self
                .meta
                .reading(|rows| rows.scan_at(epoch, table, (from, Bound::Excluded(&end)), visit)),
        }
    }

    /// As [`rows_of`](Self::rows_of), from the last row whose key ends in `to` or below to the first
    /// that ends in `from` or above.
    pub(crate) fn rows_back_of(
        &self,
        table: Table,
        ino: InodeNo,
        (from, to): (&[u8], &[u8]),
        mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let place = self.place(ino)?;
        let (from, to) = (pair_key(place.ino, from), pair_key(place.ino, to));
        let mut visit = |key: &[u8], value: &[u8]| visit(split_key(key)?.1, value);
        let Some(epoch) = place.epoch else {
            let (from, to) = (Bound::Included(from.as_slice()), Bound::Included(to.as_slice()));
            return self.meta.reading(|rows| rows.scan_back(table, from, to, visit));
        };
        self.meta.reading(|rows| {
            let mut to = Bound::Included(to);
            loop {
                let upto = to.as_ref().map(Vec::as_slice);
                let Some((key, value)) = rows.last_at(epoch, table, (&from, upto))? else { break };
                if visit(&key, &value)?.is_break() {
                    break;
                }
                to = Bound::Excluded(key);
            }
            Ok(())
        })
    }

    /// Returns what a name in a directory leads to.
    pub(crate) fn find(&self, dir: InodeNo, name: &[u8]) -> Result<Option<DentryRow>> {
        let directory = |ino| Ok(Some(DentryRow { ino, kind: FileKind::Directory }));
        if dir == InodeNo::ROOT && name == CHECKPOINTS_NAME && self.views.base.get().is_none() {
            return directory(CHECKPOINTS_DIR);
        }
        if dir == CHECKPOINTS_DIR {
            let epoch = self.meta.reading(|rows| {
                Ok(rows.checkpoint_set.named(name).map(|checkpoint| checkpoint.epoch))
            })?;
            return epoch.map_or(Ok(None), |epoch| directory(self.inode_at(epoch, InodeNo::ROOT)?));
        }
        let Some(bytes) = self.row_of(Table::Dentry, dir, name)? else { return Ok(None) };
        let row = DentryRow::decode(&bytes)?;
        Ok(Some(DentryRow { ino: self.place(dir)?.inode(row.ino), ..row }))
    }

    /// Returns up to `limit` names of a directory after one.
    pub(crate) fn names_of(
        &self,
        dir: InodeNo,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        if limit == 0 {
            return Ok(entries);
        }
        if dir == CHECKPOINTS_DIR {
            return self.names_of_checkpoints(after, limit);
        }
        let place = self.place(dir)?;
        self.rows_of(
            Table::Dentry,
            dir,
            after.map_or(Bound::Unbounded, Bound::Excluded),
            |name, value| {
                let row = DentryRow::decode(value)?;
                entries.push(DirEntry {
                    name: name.to_vec(),
                    ino: place.inode(row.ino),
                    kind: row.kind,
                });
                Ok(if entries.len() >= limit {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            },
        )?;
        Ok(entries)
    }

    fn names_of_checkpoints(&self, after: Option<&[u8]>, limit: usize) -> Result<Vec<DirEntry>> {
        let mut found: Vec<(Vec<u8>, Epoch)> = self.meta.reading(|rows| {
            let all = rows
                .checkpoint_set
                .listed()
                .filter(|checkpoint| !checkpoint.row.is_passing())
                .map(|checkpoint| (checkpoint.row.name.clone(), checkpoint.epoch));
            Ok(all.filter(|(name, _)| after.is_none_or(|after| name.as_slice() > after)).collect())
        })?;
        found.sort_unstable();
        found.truncate(limit);
        found
            .into_iter()
            .map(|(name, epoch)| {
                Ok(DirEntry {
                    name,
                    ino: self.inode_at(epoch, InodeNo::ROOT)?,
                    kind: FileKind::Directory,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_checkpoint_hides_is_looked_for_once() {
        let (views, mut looks) = (Views::default(), 0);
        let mut hidden = |epoch| {
            let found = views.hidden(epoch, || {
                looks += 1;
                Ok(BTreeSet::from([InodeNo(u64::from(epoch.0))]))
            });
            assert_eq!(*found.unwrap(), BTreeSet::from([InodeNo(u64::from(epoch.0))]));
        };
        (0..3).for_each(|_| hidden(Epoch(7)));
        (0..2).for_each(|_| hidden(Epoch(8)));
        assert_eq!(looks, 2, "several files were compared with two checkpoints");
        views.forget(Epoch(8));
        assert!(views.slots.read().hidden.is_none(), "the checkpoint was deleted");
    }
}
