//! What differs between two moments of which one is, or both are, checkpoints of named files.
//!
//! ```text
//!   named ── named       what both are of is compared; of the rest it is told which one is of it, at the topmost name
//!   named ── everything  what the one is of is compared, wherever it is now, with what came into its directories
//! ```

use std::collections::{BTreeMap, HashSet};

use super::changed::CheckpointRef;
use super::diff::{DifferenceKind, Found, Homes, visit};
use super::subtree::of_inode;
use crate::{Error, FileKind, InodeNo, Result};
use bedplate_store::{Checkpoint, DentryRow, State, Table, pair_key, split_key};

/// Names by their keys, each with what it leads to.
pub(super) type Names = BTreeMap<Vec<u8>, DentryRow>;

/// A moment, as far as it is compared.
#[derive(Default)]
struct Side<'a> {
    names: Names,
    homes: Homes,
    /// The inodes that it is of; `None`: all.
    of: Option<&'a HashSet<InodeNo>>,
}

impl<'a> Side<'a> {
    /// Everything that a checkpoint of named files is of.
    fn named(rows: &State, checkpoint: &'a Checkpoint, known: &Names) -> Result<Self> {
        let mut side = Self { of: checkpoint.members.as_ref(), ..Self::default() };
        visit(rows, Some(checkpoint.epoch), &mut |key, row| {
            side.sort_in(key, row, known)?;
            // The rest only leads there.
            if side.is_of(row.ino) {
                side.names.insert(key.to_vec(), row);
            }
            Ok(())
        })?;
        Ok(side)
    }

    /// What there is at a moment of what the other side is of, and what came into its directories.
    fn of_other(rows: &State, moment: CheckpointRef, other: &Side<'_>) -> Result<Self> {
        let mut side = Self::default();
        let mut fresh = Vec::new();
        visit(rows, moment, &mut |key, row| {
            if row.kind == FileKind::Directory || other.is_of(row.ino) {
                side.sort_in(key, row, &other.names)?;
            }
            if other.is_of(row.ino)
                || other.is_of(split_key(key)?.0)
                || other.names.contains_key(key)
            {
                fresh.extend(
                    Some(row.ino)
                        .filter(|ino| row.kind == FileKind::Directory && !other.is_of(*ino)),
                );
                side.names.insert(key.to_vec(), row);
            }
            Ok(())
        })?;
        while let Some(dir) = fresh.pop() {
            for (key, value) in of_inode(rows, moment, Table::Dentry, dir)? {
                let row = DentryRow::decode(&value)?;
                fresh.extend(
                    Some(row.ino)
                        .filter(|ino| row.kind == FileKind::Directory && !other.is_of(*ino)),
                );
                side.names.insert(key, row);
            }
        }
        Ok(side)
    }

    fn is_of(&self, ino: InodeNo) -> bool {
        self.of.is_none_or(|of| of.contains(&ino))
    }

    /// Notes where an inode is named; of several names one by which it is known on the other side.
    fn sort_in(&mut self, key: &[u8], row: DentryRow, known: &Names) -> Result<()> {
        if known.contains_key(key) || !self.homes.contains_key(&row.ino) {
            let (dir, name) = split_key(key)?;
            self.homes.insert(row.ino, (dir, name.to_vec()));
        }
        Ok(())
    }

    /// Returns the topmost name that leads to one of this side and that the other is not of;
    /// nothing where the other would have had it.
    fn left_out(&self, key: &[u8], other: &Side<'_>) -> Result<Option<Vec<u8>>> {
        let mut key = key.to_vec();
        for _ in 0..=self.homes.len() {
            let (dir, _) = split_key(&key)?;
            if self.of.is_none() || other.is_of(dir) || other.names.contains_key(&key) {
                return Ok(None);
            }
            match self.homes.get(&dir).filter(|_| self.is_of(dir)) {
                Some((parent, name)) => key = pair_key(*parent, name),
                None => return Ok(Some(key)),
            }
        }
        Err(Error::corrupt("a directory is reachable from itself only: run a check"))
    }
}

impl Found<'_> {
    /// Compares moments of which one at least is of named files.
    pub(super) fn collect_named(
        &mut self,
        first: Option<&Checkpoint>,
        second: Option<&Checkpoint>,
    ) -> Result<()> {
        let (then, now) = match (first, second) {
            (Some(first), Some(second)) => {
                let then = Side::named(self.rows, first, &Names::new())?;
                let now = Side::named(self.rows, second, &then.names)?;
                (then, now)
            }
            (Some(first), None) => {
                let then = Side::named(self.rows, first, &Names::new())?;
                let now = Side::of_other(self.rows, self.to, &then)?;
                (then, now)
            }
            (None, Some(second)) => {
                let now = Side::named(self.rows, second, &Names::new())?;
                (Side::of_other(self.rows, self.from, &now)?, now)
            }
            (None, None) => unreachable!("one of them is of named files"),
        };
        for key in
            then.names.keys().chain(now.names.keys().filter(|key| !then.names.contains_key(*key)))
        {
            self.compare(key, then.names.get(key).copied(), now.names.get(key).copied());
        }
        for (gone, came, _) in self.moves.values_mut() {
            // What has a name on both sides is on both.
            if gone.len() != 1 || came.len() != 1 {
                leave_out(gone, DifferenceKind::OnlyFirst, (&then, &now), &mut self.left)?;
                leave_out(came, DifferenceKind::OnlySecond, (&now, &then), &mut self.left)?;
            }
        }
        let both = |of: &HashSet<InodeNo>, other: &Side<'_>| {
            of.iter().copied().filter(|ino| other.is_of(*ino)).collect()
        };
        self.inodes = then
            .of
            .map(|of| both(of, &now))
            .or_else(|| now.of.map(|of| both(of, &then)))
            .unwrap_or_default();
        self.homes = (then.homes, now.homes);
        Ok(())
    }
}

/// Takes the names out that the other side is not of.
fn leave_out(
    keys: &mut Vec<Vec<u8>>,
    kind: DifferenceKind,
    (own, other): (&Side<'_>, &Side<'_>),
    left: &mut BTreeMap<(DifferenceKind, Vec<u8>), DentryRow>,
) -> Result<()> {
    for key in std::mem::take(keys) {
        match own.left_out(&key, other)? {
            Some(top) => left.extend(own.names.get(&top).map(|row| ((kind, top.clone()), *row))),
            None => keys.push(key),
        }
    }
    Ok(())
}
