//! Renaming: one record, so that a crash leaves the old names or the new ones.

use std::sync::Arc;

use super::make::Making;
use super::remove::drop_name;
use super::{delete_name, put_name, touch_directory};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::lock::Names;
use crate::{Error, ErrorKind, FileKind, InodeNo, NewFile, RenameMode, Result, Timestamp};
use bedplate_store::{DentryRow, PlantedBug, RecordKind, RowChange, check_name, planted};

/// No directory lies deeper. A path to it would have far more bytes than the system takes; only
/// damage leads through more parents.
const DEPTH_MAX: u32 = 1 << 20;

/// A name in its directory.
struct Place<'a> {
    dir: Arc<Inode>,
    name: &'a [u8],
}

impl Place<'_> {
    fn put(&self, target: DentryRow) -> RowChange {
        put_name(self.dir.ino, self.name, target.ino, target.kind)
    }
}

impl Engine {
    pub(crate) fn rename(
        &self,
        from_dir: InodeNo,
        from: &[u8],
        to_dir: InodeNo,
        to: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        // A file that is replaced is removed.
        let replaces = mode == RenameMode::Replace && self.find(to_dir, to)?.is_some();
        if replaces { self.begin_removal() } else { self.begin_change() }?;
        self.need_live(from_dir).and_then(|()| self.need_live(to_dir))?;
        if replaces {
            self.write_absorbed_data(from_dir, from)?;
        }
        let replaced = {
            let _names = self.lock_names_to_rename(from_dir, from, to_dir, to)?;
            let from = Place { dir: self.directory(from_dir)?, name: from };
            let to = Place { dir: self.directory(to_dir)?, name: to };
            let source = self.need(from_dir, from.name)?;
            let target = self.find(to_dir, to.name)?;
            [Some(source), target]
                .into_iter()
                .flatten()
                .try_for_each(|row| self.need_live(row.ino))?;
            if target.is_some_and(|target| target.ino == source.ino)
                && mode != RenameMode::NoReplace
            {
                return Ok(());
            }
            self.refuse_loop(source, &to)?;
            match mode {
                RenameMode::Exchange => {
                    let target = self.need(to_dir, to.name)?;
                    self.refuse_loop(target, &from)?;
                    self.exchange(&from, source, &to, target)?;
                    None
                }
                _ => self.replace(&from, source, &to, target, mode)?,
            }
        };
        if let Some(inode) = replaced {
            self.reclaim_if_dead(&inode);
        }
        Ok(())
    }

    /// Locks the two directories of a rename; all names where a directory moves or is replaced, whose
    /// parents are looked at.
    fn lock_names_to_rename(
        &self,
        from_dir: InodeNo,
        from: &[u8],
        to_dir: InodeNo,
        to: &[u8],
    ) -> Result<Names<'_>> {
        let names = self.lock_names_in_both(from_dir, to_dir);
        let rows = [self.find(from_dir, from)?, self.find(to_dir, to)?];
        if rows.into_iter().flatten().any(|row| row.kind == FileKind::Directory) {
            drop(names);
            return Ok(self.lock_names());
        }
        Ok(names)
    }

    /// Writes what the cache has absorbed, and what is delayed, of a file that is about to replace another, so that a
    /// crash leaves the old content or the new one also where a program does without a sync. Called
    /// with no lock held.
    fn write_absorbed_data(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        let source = self.find(dir, name)?.filter(|source| source.kind == FileKind::File);
        let loaded = source.and_then(|source| self.loaded_inode(source.ino));
        loaded.map_or(Ok(()), |inode| crate::data::write_absorbed(self, &inode))
    }

    /// Refuses to move a directory below itself.
    fn refuse_loop(&self, moved: DentryRow, to: &Place<'_>) -> Result<()> {
        if moved.kind != FileKind::Directory {
            return Ok(());
        }
        let mut dir = to.dir.ino;
        for _ in 0..DEPTH_MAX {
            if dir == moved.ino {
                return Err(Error::new(ErrorKind::Invalid, "a directory cannot move below itself"));
            }
            if dir == InodeNo::ROOT {
                return Ok(());
            }
            dir = self.parent(dir)?;
        }
        Err(Error::corrupt(format!(
            "directory {} lies more than {DEPTH_MAX} directories deep or in a circle: run a check",
            to.dir.ino.0
        )))
    }

    fn replace(
        &self,
        from: &Place<'_>,
        source: DentryRow,
        to: &Place<'_>,
        target: Option<DentryRow>,
        mode: RenameMode,
    ) -> Result<Option<Arc<Inode>>> {
        let replaced =
            target.map(|target| self.replaceable(source, target, to, mode)).transpose()?;
        let moved = self.named(from.dir.ino, source)?;
        debug_assert!(
            replaced.as_ref().is_none_or(|replaced| replaced.ino != moved.ino),
            "two names of inode {} are one file: nothing is replaced",
            moved.ino.0
        );
        let is_dir = i32::from(source.kind == FileKind::Directory);
        let replaced_dir =
            i32::from(replaced.as_ref().is_some_and(|inode| inode.kind == FileKind::Directory));
        let mut rows = vec![delete_name(from.dir.ino, from.name), to.put(source)];
        if mode == RenameMode::Whiteout {
            let whiteout = self.make_whiteout(&mut rows, &from.dir);
            rows.push(from.put(whiteout));
        }
        let mut locks = Vec::with_capacity(4);
        if from.dir.ino == to.dir.ino {
            locks.push(touch_directory(&from.dir, -replaced_dir, &mut rows));
        } else {
            locks.push(touch_directory(&from.dir, -is_dir, &mut rows));
            locks.push(touch_directory(&to.dir, is_dir - replaced_dir, &mut rows));
        }
        // By rising numbers: other directories may have names of the same two files.
        match replaced.as_ref() {
            Some(replaced) if replaced.ino < moved.ino => {
                locks.push(drop_name(replaced, &mut rows));
                locks.push(move_inode(&moved, to.dir.ino, &mut rows));
            }
            replaced => {
                locks.push(move_inode(&moved, to.dir.ino, &mut rows));
                locks.extend(replaced.map(|inode| drop_name(inode, &mut rows)));
            }
        }
        let lsn = self.commit(RecordKind::Rename, rows);
        drop(locks);
        if planted(PlantedBug::RenameNotNoted) {
            return Ok(replaced);
        }
        // The replaced one too: where it has other names, its link count is an attribute that a
        // sync of it makes durable (S-2).
        for inode in [&moved, &from.dir, &to.dir].into_iter().chain(&replaced) {
            inode.note_lsn(lsn, false);
        }
        moved.note_lsn(lsn, true);
        Ok(replaced)
    }

    fn replaceable(
        &self,
        source: DentryRow,
        target: DentryRow,
        to: &Place<'_>,
        mode: RenameMode,
    ) -> Result<Arc<Inode>> {
        let name_text = bedplate_store::told_name(to.name);
        if mode == RenameMode::NoReplace {
            return Err(Error::new(ErrorKind::Exists, format!("'{name_text}' exists")));
        }
        match (source.kind == FileKind::Directory, target.kind == FileKind::Directory) {
            (true, false) => {
                return Err(Error::new(
                    ErrorKind::NotDirectory,
                    format!("'{name_text}' is not a directory"),
                ));
            }
            (false, true) => {
                return Err(Error::new(
                    ErrorKind::IsDirectory,
                    format!("'{name_text}' is a directory"),
                ));
            }
            (true, true) => self.need_empty(target.ino, to.name)?,
            (false, false) => {}
        }
        self.named(to.dir.ino, target)
    }

    fn exchange(
        &self,
        from: &Place<'_>,
        source: DentryRow,
        to: &Place<'_>,
        target: DentryRow,
    ) -> Result<()> {
        let (moved, other) = (self.named(from.dir.ino, source)?, self.named(to.dir.ino, target)?);
        debug_assert_ne!(moved.ino, other.ino, "two names of one file are not exchanged");
        let mut rows = vec![from.put(target), to.put(source)];
        let mut locks = Vec::with_capacity(4);
        if from.dir.ino == to.dir.ino {
            locks.push(touch_directory(&from.dir, 0, &mut rows));
        } else {
            let balance = i32::from(target.kind == FileKind::Directory)
                - i32::from(source.kind == FileKind::Directory);
            locks.push(touch_directory(&from.dir, balance, &mut rows));
            locks.push(touch_directory(&to.dir, -balance, &mut rows));
        }
        let mut files = [(&moved, to.dir.ino), (&other, from.dir.ino)];
        files.sort_unstable_by_key(|(inode, _)| inode.ino);
        locks.extend(files.map(|(inode, dir)| move_inode(inode, dir, &mut rows)));
        let lsn = self.commit(RecordKind::Rename, rows);
        drop(locks);
        for inode in [&moved, &other, &from.dir, &to.dir] {
            inode.note_lsn(lsn, true);
        }
        Ok(())
    }

    /// Adds the rows of a whiteout, a character device 0/0.
    fn make_whiteout(&self, rows: &mut Vec<RowChange>, dir: &Inode) -> DentryRow {
        let making =
            Making { kind: FileKind::CharDevice, new: NewFile::default(), rdev: 0, target: &[] };
        let ino = self.new_inode_in(dir, &making, rows).ino;
        DentryRow { ino, kind: FileKind::CharDevice }
    }
}

/// Sets the parent of a moved directory and the change time of whatever moved; the lock is to be
/// held until the rows are committed.
fn move_inode<'a>(
    inode: &'a Inode,
    parent: InodeNo,
    rows: &mut Vec<RowChange>,
) -> crate::inode::AttrGuard<'a> {
    debug_assert_ne!(inode.ino, parent, "a directory is not in itself");
    let mut attr = inode.attr_lock();
    if inode.kind == FileKind::Directory {
        attr.row.parent = parent;
    }
    attr.row.ctime = Timestamp::now();
    rows.push(attr.change());
    attr
}
