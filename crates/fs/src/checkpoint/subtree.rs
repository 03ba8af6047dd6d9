//! A file, or a directory with what is below it, as it is and as it was in a checkpoint: which rows
//! a rollback of it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::rollback::{Changes, keep_nameless};
use crate::engine::Engine;
use crate::{Epoch, Error, ErrorKind, FileKind, InodeNo, Result, Timestamp};
use bedplate_store::{Checkpoint, DentryRow, InodeRow, State, Table, inode_key, pair_key};

/// Inodes by number, each with its kind and how many names it has within.
type Inside = BTreeMap<InodeNo, (FileKind, u32)>;

/// What is rolled back.
#[derive(Debug)]
pub(super) struct Subtree {
    /// The directory and the name that lead to it.
    dir: InodeNo,
    name: Vec<u8>,
    /// What the name led to.
    root: DentryRow,
    then: Inside,
    now: Inside,
}

impl Subtree {
    /// Finds what a path named in a checkpoint and what it names now.
    pub(super) fn find(fs: &Engine, checkpoint: &Checkpoint, path: &Path) -> Result<Self> {
        let shown = path.display();
        let relative = path.strip_prefix("/").unwrap_or(path);
        let mut past =
            Path::new("/.checkpoints").join(std::ffi::OsStr::from_bytes(&checkpoint.row.name));
        past.push(relative);
        let then = fs.resolve(&past).map_err(|error| match error.kind {
            ErrorKind::NotFound => {
                let name = bedplate_store::told_name(&checkpoint.row.name);
                Error::new(ErrorKind::NotFound, format!(
                    "{shown} was not there when checkpoint '{name}' was made, or not under this \
                     name"))
            }
            _ => error,
        })?;
        if !fs.is_of(then.ino, checkpoint.epoch)
            || !matches!(then.kind, FileKind::File | FileKind::Directory)
        {
            let message = format!(
                "{shown} was neither a file nor a directory then: roll back what it leads to, or \
                 all of it"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        // A link of today is what stands in the way of what had the name then, and goes: only a
        // link of then is followed.
        let was_link = {
            let leaf = fs.walk(&past, false)?;
            fs.find(leaf.dir, &leaf.name)?.is_some_and(|row| row.kind == FileKind::Symlink)
        };
        let leaf = fs.walk(path, was_link).map_err(|error| match error.kind {
            ErrorKind::NotFound => Error::new(
                ErrorKind::NotFound,
                format!(
                    "the directory of {shown} is not there now ({}): roll that back instead",
                    error.message
                ),
            ),
            _ => error,
        })?;
        fs.need_live(leaf.dir)?;
        let now = fs.find(leaf.dir, &leaf.name)?;
        let root = DentryRow { ino: fs.place(then.ino)?.ino, kind: then.kind };
        fs.reading(|rows| {
            if !checkpoint.holds(root.ino) {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("{shown} does not belong to the checkpoint"),
                ));
            }
            Ok(Self {
                dir: leaf.dir,
                name: leaf.name,
                root,
                then: inside(rows, Some(checkpoint.epoch), root)?,
                now: now.map_or(Ok(Inside::new()), |now| inside(rows, None, now))?,
            })
        })
    }

    /// Returns whether there is something now.
    pub(super) fn exists(&self) -> bool {
        !self.now.is_empty()
    }

    /// Returns whether a live inode is within, now or then.
    pub(super) fn holds(&self, ino: InodeNo) -> bool {
        self.now.contains_key(&ino) || self.then.contains_key(&ino)
    }

    /// The rows that a rollback changes; `elsewhere` becomes an inode that has a name outside by
    /// now, where it fails because of that.
    pub(super) fn changes(
        &self,
        rows: &State,
        checkpoint: &Checkpoint,
        open: &BTreeSet<InodeNo>,
        elsewhere: &mut Option<InodeNo>,
    ) -> Result<Changes> {
        let mut changes = Changes::new();
        for (ino, (kind, names)) in &self.then {
            if self.is_elsewhere(rows, *ino, *kind)? {
                *elsewhere = Some(*ino);
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("inode {} has a name outside of what is rolled back by now", ino.0),
                ));
            }
            self.turn_back(rows, checkpoint.epoch, (*ino, *kind, *names), &mut changes)?;
        }
        for (ino, (kind, names)) in self.now.iter().filter(|(ino, _)| !self.then.contains_key(*ino))
        {
            remove(rows, (*ino, *kind, *names), open, &mut changes)?;
        }
        self.lead_here(rows, &mut changes)?;
        Ok(changes)
    }

    /// Returns whether an inode has a name outside.
    fn is_elsewhere(&self, rows: &State, ino: InodeNo, kind: FileKind) -> Result<bool> {
        let live = rows
            .get(Table::Inode, &inode_key(ino))?
            .map(|row| InodeRow::decode(&row))
            .transpose()?;
        let here = self.now.get(&ino).map_or(0, |(_, names)| *names);
        Ok(match live {
            Some(row) if kind == FileKind::Directory => here == 0 && row.nlink > 0,
            Some(row) => row.nlink > here,
            None => false,
        })
    }

    /// Makes the rows of one inode what they were.
    fn turn_back(
        &self,
        rows: &State,
        epoch: Epoch,
        (ino, kind, names): (InodeNo, FileKind, u32),
        changes: &mut Changes,
    ) -> Result<()> {
        let live = rows
            .get(Table::Inode, &inode_key(ino))?
            .map(|row| InodeRow::decode(&row))
            .transpose()?;
        for table in [Table::Dentry, Table::Extent, Table::Xattr] {
            let (now, then) =
                (of_inode(rows, None, table, ino)?, of_inode(rows, Some(epoch), table, ino)?);
            for key in now.keys().filter(|key| !then.contains_key(*key)) {
                changes.insert((table, key.clone()), None);
            }
            changes.extend(
                then.into_iter()
                    .filter(|(key, row)| now.get(key) != Some(row))
                    .map(|(key, row)| ((table, key), Some(row))),
            );
        }
        let then = rows.get_at(epoch, Table::Inode, &inode_key(ino))?;
        let then = InodeRow::decode(&then.ok_or_else(|| {
            Error::corrupt(format!(
                "the checkpoint has a name of inode {}, which it does not hold",
                ino.0
            ))
        })?)?;
        let nlink = if kind == FileKind::Directory { then.nlink } else { names };
        let parent = if ino == self.root.ino && kind == FileKind::Directory {
            self.dir
        } else {
            then.parent
        };
        let row = InodeRow { nlink, parent, ..then };
        if live.as_ref() != Some(&row) {
            changes.insert((Table::Inode, inode_key(ino)), Some(row.encode()));
        }
        if rows.get(Table::Orphan, &inode_key(ino))?.is_some() {
            changes.insert((Table::Orphan, inode_key(ino)), None);
        }
        Ok(())
    }

    /// Makes the name lead to the old inode, and the directory that holds it count right.
    fn lead_here(&self, rows: &State, changes: &mut Changes) -> Result<()> {
        let key = pair_key(self.dir, &self.name);
        let now = rows.get(Table::Dentry, &key)?.map(|row| DentryRow::decode(&row)).transpose()?;
        if now == Some(self.root) {
            return Ok(());
        }
        changes.insert((Table::Dentry, key), Some(self.root.encode()));
        let directory = |row: Option<DentryRow>| {
            u32::from(row.is_some_and(|row| row.kind == FileKind::Directory))
        };
        let row = rows
            .get(Table::Inode, &inode_key(self.dir))?
            .ok_or_else(|| Error::corrupt(format!("directory {} has no row", self.dir.0)))?;
        let mut row = InodeRow::decode(&row)?;
        row.nlink = row.nlink + directory(Some(self.root)) - directory(now);
        (row.mtime, row.ctime) = (Timestamp::now(), Timestamp::now());
        changes.insert((Table::Inode, inode_key(self.dir)), Some(row.encode()));
        Ok(())
    }
}

/// Takes away what came later: the names within, and with the last name the inode.
fn remove(
    rows: &State,
    (ino, kind, names): (InodeNo, FileKind, u32),
    open: &BTreeSet<InodeNo>,
    changes: &mut Changes,
) -> Result<()> {
    let live = rows.get(Table::Inode, &inode_key(ino))?.ok_or_else(|| {
        Error::corrupt(format!("a name leads to inode {}, which does not exist", ino.0))
    })?;
    let live = InodeRow::decode(&live)?;
    if kind != FileKind::Directory && live.nlink > names {
        let row = InodeRow { nlink: live.nlink - names, ..live };
        changes.insert((Table::Inode, inode_key(ino)), Some(row.encode()));
        return Ok(());
    }
    changes.insert((Table::Inode, inode_key(ino)), None);
    for table in [Table::Dentry, Table::Extent, Table::Xattr, Table::Orphan] {
        changes
            .extend(of_inode(rows, None, table, ino)?.into_keys().map(|key| ((table, key), None)));
    }
    if open.contains(&ino) { keep_nameless(rows, ino, changes) } else { Ok(()) }
}

/// The rows of a table that belong to an inode, now or in a checkpoint.
pub(super) fn of_inode(
    rows: &State,
    epoch: Option<Epoch>,
    table: Table,
    ino: InodeNo,
) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let (from, to) = (inode_key(ino), inode_key(InodeNo(ino.0 + 1)));
    let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
    let mut found = BTreeMap::new();
    let visit = |key: &[u8], value: &[u8]| {
        found.insert(key.to_vec(), value.to_vec());
        Ok(ControlFlow::Continue(()))
    };
    match epoch {
        None => rows.scan(table, range.0, range.1, visit)?,
        Some(epoch) => rows.scan_at(epoch, table, range, visit)?,
    }
    Ok(found)
}

/// The inodes that a name leads to.
pub(super) fn inside(rows: &State, epoch: Option<Epoch>, root: DentryRow) -> Result<Inside> {
    let mut inside = Inside::new();
    let mut todo = vec![root];
    while let Some(row) = todo.pop() {
        let (_, names) = inside.entry(row.ino).or_insert((row.kind, 0));
        *names += 1;
        if row.kind == FileKind::Directory {
            if *names > 1 {
                return Err(Error::corrupt(format!(
                    "directory {} has two names; run a check",
                    row.ino.0
                )));
            }
            for value in of_inode(rows, epoch, Table::Dentry, row.ino)?.into_values() {
                todo.push(DentryRow::decode(&value)?);
            }
        }
    }
    Ok(inside)
}
