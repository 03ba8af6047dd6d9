//! What differs between two moments, by name.
//!
//! What changed is told by the images that checkpoints keep; the paths by one look at all names, of
//! which only directories and what changed are kept.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, ControlFlow};

use serde::{Deserialize, Serialize};

use super::changed::{
    CheckpointRef, between, changed, get, hidden_at, row_at, shown_at, with_old_end,
};
use super::subtree::of_inode;
use crate::engine::Engine;
use crate::{Error, ErrorKind, FileKind, InodeNo, Result};
use bedplate_store::{Checkpoint, DentryRow, InodeRow, State, Table, split_key};

/// How something differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The name is new.
    Added,
    /// The name is gone.
    Removed,
    /// The name leads to what another one led to.
    Renamed,
    /// What the name leads to changed: content or attributes.
    Changed,
    /// Not compared, with all below it: only the first moment is of it, and the second is of other
    /// named files.
    OnlyFirst,
    /// Not compared, with all below it: only the second moment is of it.
    OnlySecond,
}

/// A difference between two moments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointDifference {
    /// The path from the root.
    pub path: Vec<u8>,
    /// How it differs.
    pub kind: DifferenceKind,
    /// What it is.
    pub file: FileKind,
    /// Its inode.
    pub ino: InodeNo,
    /// The path it had, where it was renamed.
    pub from: Option<Vec<u8>>,
    /// Bytes of it that changed, or that came.
    pub changed_bytes: u64,
    /// Whether its size did.
    pub resized: bool,
    /// Whether owner, permissions, I/O mode or extended attributes did.
    pub attributes: bool,
}

/// Names of one inode that went and came, as keys, and its kind.
type Moves = (Vec<Vec<u8>>, Vec<Vec<u8>>, FileKind);
/// Where inodes are named: directory and name.
pub(super) type Homes = HashMap<InodeNo, (InodeNo, Vec<u8>)>;

impl Engine {
    /// Compares two moments.
    pub(crate) fn checkpoint_diff(
        &self,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<Vec<CheckpointDifference>> {
        let (from, to) = (self.moment(Some(from))?, self.moment(to)?);
        if to.is_none() && !self.is_read_only() {
            self.flush_all_alone()?;
        }
        if to.is_some_and(|to| Some(to) < from) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the second checkpoint is older than the first: name the older one first",
            ));
        }
        self.reading(|rows| {
            let block = self.block_size().into();
            let (moves, inodes, left) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
            let mut found = Found {
                rows,
                from,
                to,
                hidden: hidden_at(rows, from)?,
                block,
                moves,
                inodes,
                left,
                homes: (Homes::new(), Homes::new()),
            };
            match (named(rows, from), named(rows, to)) {
                (None, None) => found.collect()?,
                (first, second) => found.collect_named(first, second)?,
            }
            found.tell()
        })
    }
}

/// Returns the checkpoint of a moment, where that is of named files.
fn named(rows: &State, moment: CheckpointRef) -> Option<&Checkpoint> {
    let mut checkpoints = rows.checkpoint_set.checkpoints.iter().map(AsRef::as_ref);
    checkpoints.find(|checkpoint| Some(checkpoint.epoch) == moment && checkpoint.members.is_some())
}

/// What changed, by number.
pub(super) struct Found<'a> {
    pub(super) rows: &'a State,
    pub(super) from: CheckpointRef,
    pub(super) to: CheckpointRef,
    /// What the first moment does not show although rows of it existed.
    hidden: BTreeSet<InodeNo>,
    block: u64,
    pub(super) moves: BTreeMap<InodeNo, Moves>,
    /// What is looked at that has a name at both moments.
    pub(super) inodes: BTreeSet<InodeNo>,
    /// Names that only one of the moments is of, as keys.
    pub(super) left: BTreeMap<(DifferenceKind, Vec<u8>), DentryRow>,
    /// Where directories and what changed are named at both moments.
    pub(super) homes: (Homes, Homes),
}

impl Found<'_> {
    /// Reads the images between the two moments.
    fn collect(&mut self) -> Result<()> {
        let mut names = BTreeSet::new();
        for checkpoint in between(&self.rows.checkpoint_set, self.from, self.to) {
            for table in [Table::Inode, Table::Extent, Table::Xattr, Table::Dentry] {
                self.rows.scan_images(
                    checkpoint.epoch,
                    table,
                    (Bound::Unbounded, Bound::Unbounded),
                    |key, _| {
                        if table == Table::Dentry {
                            names.insert(key.to_vec());
                        } else {
                            self.inodes.insert(split_key(key)?.0);
                        }
                        Ok(())
                    },
                )?;
            }
        }
        let mut fresh = Vec::new();
        for key in names {
            let (then, now) = (self.name(self.from, &key)?, self.name(self.to, &key)?);
            if self.compare(&key, then, now) {
                fresh.extend(now.filter(|row| row.kind == FileKind::Directory).map(|row| row.ino));
            }
        }
        // No image says what came into a directory that itself came later.
        while let Some(dir) = fresh.pop() {
            if self.shown_first(dir)?.is_some() {
                continue;
            }
            for (key, value) in of_inode(self.rows, self.to, Table::Dentry, dir)? {
                let row = DentryRow::decode(&value)?;
                self.moved(row).1.push(key);
                fresh.extend(Some(row.ino).filter(|_| row.kind == FileKind::Directory));
            }
        }
        self.moves.values_mut().for_each(|(_, came, _)| {
            came.sort_unstable();
            came.dedup();
        });
        self.homes = (self.homes_at(self.from)?, self.homes_at(self.to)?);
        Ok(())
    }

    /// Notes what a name led to and leads to; returns whether that differs.
    pub(super) fn compare(
        &mut self,
        key: &[u8],
        then: Option<DentryRow>,
        now: Option<DentryRow>,
    ) -> bool {
        if then != now {
            then.into_iter().for_each(|row| self.moved(row).0.push(key.to_vec()));
            now.into_iter().for_each(|row| self.moved(row).1.push(key.to_vec()));
        }
        then != now
    }

    fn name(&self, moment: CheckpointRef, key: &[u8]) -> Result<Option<DentryRow>> {
        get(self.rows, moment, Table::Dentry, key)?.map(|row| DentryRow::decode(&row)).transpose()
    }

    fn moved(&mut self, row: DentryRow) -> &mut Moves {
        self.moves.entry(row.ino).or_insert_with(|| (Vec::new(), Vec::new(), row.kind))
    }

    /// Puts it into words.
    fn tell(&self) -> Result<Vec<CheckpointDifference>> {
        let (then, now) = &self.homes;
        let mut told = Vec::new();
        for (ino, (gone, came, file)) in &self.moves {
            let plain = |path: Vec<u8>, kind| CheckpointDifference {
                path,
                kind,
                file: *file,
                ino: *ino,
                from: None,
                changed_bytes: 0,
                resized: false,
                attributes: false,
            };
            if let ([gone], [came]) = (gone.as_slice(), came.as_slice()) {
                told.push(CheckpointDifference {
                    from: Some(path(then, gone)?),
                    ..plain(path(now, came)?, DifferenceKind::Renamed)
                });
                continue;
            }
            for key in gone {
                told.push(plain(path(then, key)?, DifferenceKind::Removed));
            }
            for key in came {
                let row = row_at(self.rows, self.to, *ino)?;
                let size = row.filter(|_| *file == FileKind::File).map_or(0, |row| row.size);
                told.push(CheckpointDifference {
                    changed_bytes: size,
                    ..plain(path(now, key)?, DifferenceKind::Added)
                });
            }
        }
        for ino in &self.inodes {
            told.extend(self.change(*ino, now)?);
        }
        for ((kind, key), row) in &self.left {
            let path = path(if *kind == DifferenceKind::OnlyFirst { then } else { now }, key)?;
            let (file, ino) = (row.kind, row.ino);
            told.push(CheckpointDifference {
                path,
                kind: *kind,
                file,
                ino,
                from: None,
                changed_bytes: 0,
                resized: false,
                attributes: false,
            });
        }
        // What went from a path comes before what came there.
        let rank =
            |found: &CheckpointDifference| (found.kind != DifferenceKind::Removed, found.kind);
        told.sort_unstable_by(|a, b| a.path.cmp(&b.path).then_with(|| rank(a).cmp(&rank(b))));
        Ok(told)
    }

    /// The row of an inode at the first moment, where that showed it.
    fn shown_first(&self, ino: InodeNo) -> Result<Option<InodeRow>> {
        shown_at(self.rows, self.from, &self.hidden, ino)
    }

    /// How an inode that was there and is there differs, if it does.
    fn change(&self, ino: InodeNo, now: &Homes) -> Result<Option<CheckpointDifference>> {
        let (Some(old), Some(new)) = (self.shown_first(ino)?, row_at(self.rows, self.to, ino)?)
        else {
            return Ok(None);
        };
        let path = match now.get(&ino) {
            Some((dir, name)) => path(now, &bedplate_store::pair_key(*dir, name))?,
            None if ino == InodeNo::ROOT => b"/".to_vec(),
            // It has lost its last name and lives until it is closed.
            None => return Ok(None),
        };
        let end = new.size.div_ceil(self.block);
        let ranges = if new.kind == FileKind::File {
            let ranges = changed(self.rows, ino, self.from, self.to)?;
            with_old_end(ranges, old.size, new.size, self.block)
        } else {
            Vec::new()
        };
        let blocks: u64 =
            ranges.iter().map(|(from, to, _)| (*to).min(end).saturating_sub(*from)).sum();
        let resized = new.kind == FileKind::File && old.size != new.size;
        let attributes = marks(&old) != marks(&new)
            || self.attributes(self.from, ino)? != self.attributes(self.to, ino)?;
        if blocks == 0 && !resized && !attributes {
            return Ok(None);
        }
        let changed_bytes = blocks * self.block;
        Ok(Some(CheckpointDifference {
            path,
            kind: DifferenceKind::Changed,
            file: new.kind,
            ino,
            from: None,
            changed_bytes,
            resized,
            attributes,
        }))
    }

    fn attributes(
        &self,
        moment: CheckpointRef,
        ino: InodeNo,
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        of_inode(self.rows, moment, Table::Xattr, ino)
    }

    /// Where directories and what changed are named at a moment.
    fn homes_at(&self, moment: CheckpointRef) -> Result<Homes> {
        let mut homes = Homes::new();
        visit(self.rows, moment, &mut |key, row| {
            if row.kind == FileKind::Directory || self.inodes.contains(&row.ino) {
                // Of several names one by which it was known before.
                let is_new = self
                    .moves
                    .get(&row.ino)
                    .is_some_and(|(_, came, _)| came.iter().any(|came| came == key));
                if !is_new || !homes.contains_key(&row.ino) {
                    let (dir, name) = split_key(key)?;
                    homes.insert(row.ino, (dir, name.to_vec()));
                }
            }
            Ok(())
        })?;
        Ok(homes)
    }
}

/// Visits all names of a moment.
pub(super) fn visit(
    rows: &State,
    moment: CheckpointRef,
    to: &mut dyn FnMut(&[u8], DentryRow) -> Result<()>,
) -> Result<()> {
    let each =
        |key: &[u8], value: &[u8]| to(key, DentryRow::decode(value)?).map(ControlFlow::Continue);
    match moment {
        None => rows.scan(Table::Dentry, Bound::Unbounded, Bound::Unbounded, each),
        Some(epoch) => {
            rows.scan_at(epoch, Table::Dentry, (Bound::Unbounded, Bound::Unbounded), each)
        }
    }
}

/// What of a row is attributes.
fn marks(row: &InodeRow) -> (u32, u32, u32, u32, Option<crate::IoMode>) {
    (row.mode, row.uid, row.gid, row.rdev, row.io_mode)
}

/// The path of a name.
fn path(homes: &Homes, key: &[u8]) -> Result<Vec<u8>> {
    let (mut dir, name) = split_key(key)?;
    let mut parts = vec![name.to_vec()];
    while dir != InodeNo::ROOT {
        let damaged = || {
            Error::corrupt(format!(
                "directory {} is reachable from itself only, or not at all: run a check",
                dir.0
            ))
        };
        let (parent, name) =
            homes.get(&dir).filter(|_| parts.len() <= homes.len()).ok_or_else(damaged)?;
        parts.push(name.clone());
        dir = *parent;
    }
    Ok(parts
        .iter()
        .rev()
        .flat_map(|part| std::iter::once(b'/').chain(part.iter().copied()))
        .collect())
}
