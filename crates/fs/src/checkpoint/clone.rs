//! Writable clones: files and directories under new inodes that share the blocks of what a
//! checkpoint shows.
//!
//! ```text
//!   present ─► a passing checkpoint ─┐                                                    ┌─► named: one record
//!                                    ├─► an orphan, and below it names, then extents ─────┤
//!   checkpoint ──────────────────────┘     (records of bounded size)                      └─► failed, or a crash: removed, all of it
//! ```
//!
//! No data is copied. Writers of a file that shares blocks look whether those they want to write
//! are among them (`data/cow.rs`); blocks become free when the last row that covers them goes
//! (I-CKP-2). What was preallocated and not written is a hole in the clone: two files cannot both
//! be promised the same blocks.
//!
//! - I-CKP-6: files share blocks only with files of their family: those that were cloned, directly
//!   or not, from the same one.

use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::report::{CheckpointOptions, CheckpointScope, CloneReport, CloneSource};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Epoch, Error, ErrorKind, FileBlock, FileKind, InodeNo, Lsn, Result, Timestamp};
use bedplate_store::{
    Checkpoint, CheckpointRow, DentryRow, ExtentRow, InodeRow, Locked, Others, PlantedBug, Record,
    RecordKind, RowChange, Table, check_name, extent_key, inode_key, pair_key, planted,
    split_extent_key, split_key,
};

/// The value of the orphan row of a directory that goes with all that is in it.
pub(crate) const UNFINISHED: &[u8] = &[1];

/// A file or directory of the clone, and what it is a clone of.
#[derive(Debug, Clone)]
struct Copied {
    of: InodeNo,
    ino: InodeNo,
    /// The row of the clone as it stands.
    row: InodeRow,
}

/// Extended attributes: name and value.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// A clone under construction.
struct Builder<'a> {
    fs: &'a Engine,
    epoch: Epoch,
    /// Directories still to fill.
    todo: Vec<Copied>,
    /// Files with several names, by what they are clones of.
    linked: HashMap<InodeNo, Copied>,
    report: CloneReport,
}

impl Engine {
    /// Clones under a new name; durable when it returns.
    pub(crate) fn clone_files(&self, source: &CloneSource, target: &Path) -> Result<CloneReport> {
        let _one = self.lock_clones();
        self.begin_change()?;
        let room = || {
            self.free_place(target)?;
            self.need_space()
        };
        match source {
            CloneSource::Checkpoint { name, path } => {
                let (checkpoint, _held) = self.looking_into(name)?;
                let root = self.root_of(&checkpoint, path)?;
                self.with_room(room)?;
                self.clone_of(checkpoint.epoch, root, target)
            }
            CloneSource::Present(path) => {
                self.with_room(room)?;
                self.clone_present(path, target)
            }
        }
    }

    fn clone_present(&self, path: &Path, target: &Path) -> Result<CloneReport> {
        let root = self.resolve(path)?;
        self.need_live(root.ino)?;
        let scope = if root.ino == InodeNo::ROOT {
            CheckpointScope::Everything
        } else {
            CheckpointScope::Paths(vec![path.to_owned()])
        };
        self.remove_left_passing()?;
        let name = [CheckpointRow::PASSING, self.epoch().0.to_string().as_bytes()].concat();
        let passing = self
            .create_checkpoint(&name, &CheckpointOptions { scope, automatic: true, kept: true })?;
        // A deletion by hand would leave the clone to copy what the present has become.
        let held = self.looking_into(&name)?;
        // What the path names there: another file may have taken its place since it was looked up. A
        // link that leads out of the checkpoint was followed in the present.
        let root = self.root_of(&held.0, path).unwrap_or(root.ino);
        let cloned = self.clone_of(passing.epoch, root, target);
        drop(held);
        let deleted = if planted(PlantedBug::PassingCheckpointStays) {
            Ok(())
        } else {
            self.delete_passing(&name)
        };
        let report = cloned?;
        match deleted {
            // The clone is made, and durable: the next clone or mount deletes what it was made of.
            Err(e) if e.kind == ErrorKind::NoSpace => {
                tracing::warn!("what a clone was made of is left to the next clone or mount: {e}");
                Ok(report)
            }
            Err(e) => {
                let message = format!(
                    "{} is made, and durable, but what it was made of is not deleted: {}",
                    target.display(),
                    e.message
                );
                Err(Error { message, ..e })
            }
            Ok(()) => Ok(report),
        }
    }

    /// Deletes the passing checkpoints that earlier clones could not, if there is room for it now. No
    /// clone is being made.
    fn remove_left_passing(&self) -> Result<()> {
        for left in self.all_checkpoints().iter().filter(|one| one.row.is_passing()) {
            match self.delete_passing(&left.row.name) {
                Err(e) if e.kind == ErrorKind::NoSpace => return Ok(()),
                other => other?,
            }
        }
        Ok(())
    }

    /// Deletes a passing checkpoint. Behind an older one that is being deleted its turn may come
    /// late, and no clone waits for that.
    fn delete_passing(&self, name: &[u8]) -> Result<()> {
        if self.is_deleting() { self.delete_behind(name) } else { self.delete_checkpoint(name) }
    }

    /// Finds what a path names in a checkpoint.
    fn root_of(&self, checkpoint: &Checkpoint, path: &Path) -> Result<InodeNo> {
        let mut past =
            Path::new("/.checkpoints").join(std::ffi::OsStr::from_bytes(&checkpoint.row.name));
        past.push(path.strip_prefix("/").unwrap_or(path));
        let found = self.resolve(&past)?;
        if !self.is_of(found.ino, checkpoint.epoch) {
            let message =
                format!("{} led out of the checkpoint: clone what it leads to", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(self.place(found.ino)?.ino)
    }

    /// Refuses a target that exists, or whose directory does not.
    fn free_place(&self, target: &Path) -> Result<(InodeNo, Vec<u8>)> {
        let leaf = self.walk(target, false)?;
        if leaf.name.is_empty() {
            return Err(Error::new(ErrorKind::Exists, format!("{} exists", target.display())));
        }
        check_name(&leaf.name)?;
        self.need_live(leaf.dir)?;
        self.directory(leaf.dir)?;
        self.need_free(leaf.dir, &leaf.name)?;
        Ok((leaf.dir, leaf.name))
    }

    fn clone_of(&self, epoch: Epoch, root: InodeNo, target: &Path) -> Result<CloneReport> {
        let report = CloneReport {
            inodes: 0,
            extents: 0,
            shared_bytes: 0,
            ino: root,
            name: (InodeNo::ROOT, Vec::new()),
        };
        debug_assert!(
            epoch < self.epoch(),
            "I-CKP-1: a clone is made of a checkpoint, which is older than the present: {epoch:?}"
        );
        let mut builder =
            Builder { fs: self, epoch, todo: Vec::new(), linked: HashMap::new(), report };
        let top = builder.begin(root)?;
        let done = builder.fill(&top).and_then(|nlink| builder.finish(&top, nlink, target));
        match done {
            Ok(lsn) => {
                self.epochs_changed();
                if !planted(PlantedBug::CloneNotSynced) {
                    self.sync_to(lsn)?;
                }
                Ok(builder.report)
            }
            Err(error) => {
                // What fails here is left to the next mount.
                if let Err(e) = self.inode(top.ino).and_then(|inode| self.remove_unfinished(&inode))
                {
                    tracing::warn!(
                        "an unfinished clone could not be removed now and is left to the next \
                         mount: {e}"
                    );
                }
                Err(error)
            }
        }
    }

    /// Removes an inode without a name and all that is below it: a clone that was not finished.
    pub(crate) fn remove_unfinished(&self, top: &Arc<Inode>) -> Result<()> {
        if !top.is_dying() {
            return Ok(());
        }
        let mut directories = vec![top.ino];
        let mut at = 0;
        while top.kind == FileKind::Directory && at < directories.len() {
            let dir = directories[at];
            self.each_name(dir, |_, row| {
                if row.kind == FileKind::Directory {
                    directories.push(row.ino);
                }
                Ok(())
            })?;
            at += 1;
        }
        for dir in directories.into_iter().rev().filter(|_| top.kind == FileKind::Directory) {
            let dir = self.inode(dir)?;
            self.each_name(dir.ino, |name, row| {
                self.begin_change()?;
                let child = self.named(dir.ino, row)?;
                if child.kind == FileKind::Directory && child.attr_lock().row.parent != dir.ino {
                    let message = format!(
                        "directory {} says it is not in the unfinished clone that names it: run a \
                         check",
                        child.ino.0
                    );
                    return Err(Error::corrupt(message));
                }
                self.drop_child(&dir, name, &child, dir.ino != top.ino);
                Ok(())
            })?;
        }
        let changing = self.change();
        if top.lost_name() { self.reclaim(&changing, top) } else { Ok(()) }
    }

    /// Visits the names of a directory; they may be removed meanwhile.
    fn each_name(
        &self,
        dir: InodeNo,
        mut visit: impl FnMut(&[u8], DentryRow) -> Result<()>,
    ) -> Result<()> {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let entries = self.names_of(dir, after.as_deref(), self.limits().names_per_record)?;
            let Some(last) = entries.last() else { return Ok(()) };
            after = Some(last.name.clone());
            for entry in &entries {
                visit(&entry.name, DentryRow { ino: entry.ino, kind: entry.kind })?;
            }
        }
    }
}

/// Deletes the checkpoints that clones of the present were made from when the machine stopped. What
/// they had becomes free behind the mount.
pub(crate) fn remove_passing(fs: &Engine) -> Result<()> {
    for passing in fs
        .all_checkpoints()
        .iter()
        .map(|checkpoint| &checkpoint.row)
        .filter(|row| row.automatic && row.name.starts_with(CheckpointRow::PASSING))
    {
        match fs.delete_behind(&passing.name) {
            Err(e) if e.kind == ErrorKind::NoSpace => tracing::warn!(
                "a checkpoint of an interrupted clone is left to the next mount: {e}"
            ),
            other => other?,
        }
    }
    Ok(())
}

impl Builder<'_> {
    /// Makes the clone's first inode: an orphan.
    fn begin(&mut self, root: InodeNo) -> Result<Copied> {
        let (then, attributes) = self.past(root)?;
        let _names = self.fs.lock_names();
        let mut rows = Vec::new();
        let top = self.copy(root, InodeRow { nlink: 0, ..then }, InodeNo(0));
        self.put(&top, attributes, &mut rows);
        let value =
            if top.row.kind == FileKind::Directory { UNFINISHED.to_vec() } else { Vec::new() };
        rows.push(RowChange::put(Table::Orphan, inode_key(top.ino), value));
        self.fs.commit(RecordKind::Create, rows);
        Ok(top)
    }

    /// Fills what was begun; returns how many links it is to have.
    fn fill(&mut self, top: &Copied) -> Result<u32> {
        if top.row.kind != FileKind::Directory {
            self.share_extents(top)?;
            return Ok(1);
        }
        let subdirectories = self.fill_directory(top.clone(), false)?;
        while let Some(directory) = self.todo.pop() {
            self.fill_directory(directory, true)?;
        }
        Ok(2 + subdirectories)
    }

    /// Fills one directory; with `counts` its row counts those in it. Returns how many there are.
    fn fill_directory(&mut self, mut directory: Copied, counts: bool) -> Result<u32> {
        let (mut after, mut subdirectories) = (Bound::Included(pair_key(directory.of, &[])), 0);
        loop {
            let names = self.names_after(directory.of, &after)?;
            let Some((last, _)) = names.last() else { return Ok(subdirectories) };
            after = Bound::Excluded(last.clone());
            self.fs.begin_change()?;
            self.fs.with_room(|| self.fs.need_space())?;
            let (files, more) = self.make_names(&mut directory, &names, counts)?;
            subdirectories += more;
            for file in files {
                let file = self.share_extents(&file)?;
                self.linked.entry(file.of).and_modify(|known| known.row = file.row);
            }
            self.fs.limits().between_records("clone");
        }
    }

    /// The next names of a directory: key and row.
    fn names_after(
        &self,
        dir: InodeNo,
        after: &Bound<Vec<u8>>,
    ) -> Result<Vec<(Vec<u8>, DentryRow)>> {
        let mut names = Vec::new();
        let count = self.fs.limits().names_per_record;
        let range = (after.as_ref().map(Vec::as_slice), inode_key(InodeNo(dir.0 + 1)));
        self.fs.reading(|rows| {
            rows.scan_at(
                self.epoch,
                Table::Dentry,
                (range.0, Bound::Excluded(&range.1)),
                |key, value| {
                    names.push((key.to_vec(), DentryRow::decode(value)?));
                    Ok(if names.len() == count {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    })
                },
            )
        })?;
        Ok(names)
    }

    /// Makes names and their inodes, in one record; returns the files to fill, and how many
    /// directories there were.
    fn make_names(
        &mut self,
        directory: &mut Copied,
        names: &[(Vec<u8>, DentryRow)],
        counts: bool,
    ) -> Result<(Vec<Copied>, u32)> {
        let past = names.iter().map(|(_, row)| self.past(row.ino)).collect::<Result<Vec<_>>>()?;
        let _names = self.fs.lock_names();
        let (mut rows, mut files, mut subdirectories) = (Vec::new(), Vec::new(), 0);
        for ((key, dentry), (then, attributes)) in names.iter().zip(past) {
            let ino = match self.linked.get_mut(&dentry.ino) {
                Some(known) => {
                    known.row.nlink += 1;
                    rows.push(RowChange::put(
                        Table::Inode,
                        inode_key(known.ino),
                        known.row.encode(),
                    ));
                    // Filled after this record, with the links it has now.
                    let linked = known.clone();
                    files
                        .iter_mut()
                        .filter(|file: &&mut Copied| file.of == linked.of)
                        .for_each(|file| file.row.nlink = linked.row.nlink);
                    linked.ino
                }
                None => {
                    self.make_inode(dentry, then, attributes, directory.ino, &mut rows, &mut files)
                }
            };
            subdirectories += u32::from(dentry.kind == FileKind::Directory);
            let name = split_key(key)?.1;
            rows.push(RowChange::put(
                Table::Dentry,
                pair_key(directory.ino, name),
                DentryRow { ino, kind: dentry.kind }.encode(),
            ));
        }
        if counts && subdirectories > 0 {
            directory.row.nlink += subdirectories;
            rows.push(RowChange::put(
                Table::Inode,
                inode_key(directory.ino),
                directory.row.encode(),
            ));
        }
        self.fs.commit(RecordKind::Create, rows);
        Ok((files, subdirectories))
    }

    fn make_inode(
        &mut self,
        dentry: &DentryRow,
        then: InodeRow,
        attributes: Attributes,
        parent: InodeNo,
        rows: &mut Vec<RowChange>,
        files: &mut Vec<Copied>,
    ) -> InodeNo {
        let (several, directory) = (then.nlink > 1, then.kind == FileKind::Directory);
        let copied = self.copy(
            dentry.ino,
            InodeRow { nlink: if directory { 2 } else { 1 }, ..then },
            parent,
        );
        self.put(&copied, attributes, rows);
        let ino = copied.ino;
        match copied.row.kind {
            FileKind::Directory => self.todo.push(copied),
            kind => {
                if several {
                    self.linked.insert(copied.of, copied.clone());
                }
                files.extend(Some(copied).filter(|_| kind == FileKind::File));
            }
        }
        ino
    }

    /// Returns the row of an inode as the checkpoint shows it, and its attributes.
    fn past(&self, ino: InodeNo) -> Result<(InodeRow, Attributes)> {
        self.fs.reading(|rows| {
            let row = rows.get_at(self.epoch, Table::Inode, &inode_key(ino))?;
            let row = row.ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!("the checkpoint does not hold inode {}", ino.0),
                )
            })?;
            let mut attributes = Vec::new();
            let range = (inode_key(ino), inode_key(InodeNo(ino.0 + 1)));
            rows.scan_at(
                self.epoch,
                Table::Xattr,
                (Bound::Included(&range.0), Bound::Excluded(&range.1)),
                |key, value| {
                    attributes.push((split_key(key)?.1.to_vec(), value.to_vec()));
                    Ok(ControlFlow::Continue(()))
                },
            )?;
            Ok((InodeRow::decode(&row)?, attributes))
        })
    }

    /// Plans a new inode; `then` has the links that it begins with.
    fn copy(&mut self, of: InodeNo, then: InodeRow, parent: InodeNo) -> Copied {
        let ino = self.fs.new_ino();
        let parent = match then.kind {
            FileKind::Directory => parent,
            // I-CKP-6.
            FileKind::File => then.family(of),
            _ => InodeNo(0),
        };
        let now = Timestamp::now();
        let row = InodeRow { blocks: 0, parent, ctime: now, btime: now, ..then };
        self.fs.count_inodes(1);
        self.report.inodes += 1;
        Copied { of, ino, row }
    }

    fn put(&self, copied: &Copied, attributes: Attributes, rows: &mut Vec<RowChange>) {
        rows.push(RowChange::put(Table::Inode, inode_key(copied.ino), copied.row.encode()));
        rows.extend(
            attributes.into_iter().map(|(name, value)| {
                RowChange::put(Table::Xattr, pair_key(copied.ino, &name), value)
            }),
        );
    }

    /// Gives a file of the clone the blocks of what it is a clone of, in bounded records; returns
    /// it as it is then.
    fn share_extents(&mut self, file: &Copied) -> Result<Copied> {
        let mut file = file.clone();
        let mut from = Bound::Included(inode_key(file.of));
        loop {
            self.fs.begin_change()?;
            let (fs, epoch, report) = (self.fs, self.epoch, &mut self.report);
            let changing = fs.change();
            let last = fs.exclusively(|locked| {
                share_some(fs, locked, epoch, &mut file, from.as_ref().map(Vec::as_slice), report)
            })?;
            drop(changing);
            match last {
                Some(last) => from = Bound::Excluded(last),
                None => return Ok(file),
            }
            fs.limits().between_records("clone");
        }
    }

    /// Gives the clone its name.
    fn finish(&mut self, top: &Copied, nlink: u32, target: &Path) -> Result<Lsn> {
        let _names = self.fs.lock_names();
        let (dir, name) = self.fs.free_place(target)?;
        let (parent, inode) = (self.fs.directory(dir)?, self.fs.inode(top.ino)?);
        let lsn = self.fs.name_orphan(&parent, &name, &inode, nlink);
        (self.report.ino, self.report.name) = (top.ino, (dir, name));
        Ok(lsn)
    }
}

/// Shares the next extents of a file, in one record; returns the key of the last, if there may be
/// more.
fn share_some(
    fs: &Engine,
    locked: &mut Locked<'_>,
    epoch: Epoch,
    file: &mut Copied,
    from: Bound<&[u8]>,
    report: &mut CloneReport,
) -> Result<Option<Vec<u8>>> {
    let end = fs.grid().block_after(file.row.size);
    let (mut rows, mut seen, mut last) = (Vec::new(), 0, None);
    let to = inode_key(InodeNo(file.of.0 + 1));
    locked.state().scan_at(epoch, Table::Extent, (from, Bound::Excluded(&to)), |key, value| {
        let (at, extent) = (split_extent_key(key)?.1, ExtentRow::decode(value)?);
        if at.0 >= end {
            return Ok(ControlFlow::Break(()));
        }
        if extent.state.has_data() {
            let len = u64::from(extent.len).min(end - at.0);
            let extent =
                ExtentRow { len: u32::try_from(len).expect("not longer than it was"), ..extent };
            rows.push(RowChange::put(
                Table::Extent,
                extent_key(file.ino, FileBlock(at.0)),
                extent.encode(),
            ));
            file.row.blocks += len;
            report.shared_bytes += len * u64::from(fs.block_size());
        }
        seen += 1;
        last = (seen == fs.limits().extents_per_record).then(|| key.to_vec());
        if last.is_some() && planted(PlantedBug::CloneEndsEarly) {
            last = None;
            return Ok(ControlFlow::Break(()));
        }
        Ok(if last.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if rows.is_empty() {
        return Ok(last);
    }
    report.extents += rows.len() as u64;
    rows.push(RowChange::put(Table::Inode, inode_key(file.ino), file.row.encode()));
    let _lsn = locked.commit(
        Record { kind: RecordKind::Checkpoint, rows, exposes: None, barrier: false },
        if planted(PlantedBug::CloneUncounted) { Others::Free } else { Others::Covered },
    )?;
    // Before one of the two may be written in place.
    let checkpoint_set = locked.checkpoint_set();
    if !planted(PlantedBug::CloneWrittenInPlace) {
        checkpoint_set.cloned.extend([file.of, file.ino]);
    }
    if !planted(PlantedBug::ClonedUptoStays) {
        checkpoint_set.cloned_upto = checkpoint_set.cloned_upto.max(epoch);
    }
    Ok(last)
}

impl CloneSource {
    /// Names everything that a checkpoint shows.
    #[must_use]
    pub fn checkpoint(name: impl AsRef<[u8]>) -> Self {
        Self::Checkpoint { name: name.as_ref().to_vec(), path: PathBuf::from("/") }
    }
}
