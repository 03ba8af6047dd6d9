//! Carries steps out on a file system.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bedplate_block::AlignedBuf;
use bedplate_fs::{
    ChangedKind, CheckpointInfo, CheckpointOptions, CheckpointScope, CloneSource, ErrorKind, File,
    FileKind, FileSystem, InodeNo, NewFile, OpenOptions, Result, RollbackOptions, SetAttr,
    SpacePolicy,
};
use parking_lot::Mutex;

use crate::model::{attribute, target};
use crate::outcome::{Diff, Outcome, Promise, Wrote};
use crate::view::see_checkpoint;
use crate::workload::{AUTOMATIC_PREFIX, Change, On, Step, dir_path, file_path, pattern};

/// What is written: mostly where a device takes it as it is, and now and then not.
struct Bytes {
    buf: AlignedBuf,
    skip: usize,
}

impl Bytes {
    fn of(offset: u64, len: u32, fill: u8) -> Self {
        let bytes = pattern(offset, len, fill);
        let skip = if fill.is_multiple_of(5) { 8 } else { 0 };
        let mut buf = AlignedBuf::zeroed(bytes.len() + skip);
        buf[skip..].copy_from_slice(&bytes);
        Self { buf, skip }
    }

    /// What an append writes: where it goes is not known before.
    fn appended(len: u32, fill: u8) -> Self {
        Self::of(0, len, fill)
    }

    fn get(&self) -> &[u8] {
        &self.buf[self.skip..]
    }
}

/// What a clone is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slots {
    Files,
    Directories,
}

/// The mounted file system, and what is held open.
pub(crate) struct Stage {
    pub(crate) fs: FileSystem,
    held: Mutex<BTreeMap<u8, Arc<File>>>,
    /// What a kernel would remember.
    retained: Mutex<BTreeMap<u8, InodeNo>>,
}

impl Stage {
    pub(crate) fn new(fs: FileSystem) -> Self {
        Self { fs, held: Mutex::default(), retained: Mutex::default() }
    }

    /// Closes what is held open.
    pub(crate) fn close_held(&self) {
        drop(std::mem::take(&mut *self.held.lock()));
    }

    /// Returns which files are held open, by slot.
    pub(crate) fn held(&self) -> BTreeMap<u8, InodeNo> {
        self.held.lock().iter().map(|(slot, file)| (*slot, file.ino())).collect()
    }

    /// Closes what is held open, and unmounts.
    pub(crate) fn unmount(self) -> Result<()> {
        self.close_held();
        self.fs.unmount()
    }

    /// What a write promises of whole units (S-58): past the caches, from block to block.
    fn wrote(&self, file: &File, range: Range<u64>) -> Result<Option<Wrote>> {
        let block = u64::from(self.fs.statfs().block_size);
        let past_caches = !file.effective_mode().writes_behind();
        let unit = match self.fs.untorn(file.ino())? {
            Some(untorn)
                if past_caches
                    && range.start.is_multiple_of(block)
                    && range.end.is_multiple_of(block) =>
            {
                u64::from(untorn.bytes)
            }
            _ => 0,
        };
        Ok(Some(Wrote { ino: file.ino(), range, unit }))
    }

    fn ino(&self, path: &str) -> Result<InodeNo> {
        self.fs.resolve(path).map(|attr| attr.ino)
    }

    /// Runs `work` on a held file, or on one that is opened for it.
    fn on<T>(
        &self,
        on: On,
        options: &OpenOptions,
        work: impl FnOnce(&File) -> Result<T>,
    ) -> Result<T> {
        match on {
            On::Name(file, dir) => work(&self.fs.open(file_path(file, dir), options)?),
            On::Held(slot) => {
                let held = self.held.lock().get(&slot).cloned();
                let missing =
                    || bedplate_fs::Error::new(ErrorKind::NotFound, "nothing is held there");
                work(held.as_ref().ok_or_else(missing)?)
            }
        }
    }

    /// Carries a step out, but for those that mount.
    pub(crate) fn carry_out(&self, step: &Step) -> Result<Outcome> {
        match *step {
            Step::Create(..)
            | Step::MakeDirectory(..)
            | Step::Symlink(..)
            | Step::Unlink(..)
            | Step::RemoveDirectory(..)
            | Step::Rename(..)
            | Step::RenameDirectory(..)
            | Step::Link(..) => self.change_names(step),
            Step::SetMode(..)
            | Step::SetIoMode(..)
            | Step::SetAttribute(..)
            | Step::RemoveAttribute(..)
            | Step::SetUntorn(..) => self.change_attributes(step),
            Step::Hold(..) | Step::Release(..) | Step::Retain(..) | Step::Forget(..) => {
                self.hold(step)
            }
            Step::Write(..) | Step::Append(..) | Step::AppendHeld(..) | Step::Read(..) => {
                self.use_content(step)
            }
            Step::SetSize(..) | Step::Truncate(..) | Step::Allocate(..) | Step::Defragment(..) => {
                self.change_extents(step)
            }
            Step::SyncData(..) | Step::SyncAll(..) | Step::SyncDirectory(..) | Step::Sync => {
                self.sync(step)
            }
            Step::Checkpoint(..)
            | Step::Automatic(..)
            | Step::Policy(..)
            | Step::Diff(..)
            | Step::DeleteCheckpoint(..)
            | Step::Rollback(..)
            | Step::Clone(..)
            | Step::CloneDirectory(..) => self.use_checkpoints(step),
            Step::Grow(_) | Step::Remount | Step::Kill | Step::Die(..) | Step::During(..) => {
                unreachable!("these are the recorder's")
            }
            Step::Vanish(_) | Step::Return | Step::Overwrite(..) | Step::Ail(..) | Step::Scrub => {
                unreachable!("these are the recorder's")
            }
        }
    }

    /// Makes, moves and removes names.
    fn change_names(&self, step: &Step) -> Result<Outcome> {
        let fs = &self.fs;
        let new = NewFile { mode: 0o644, uid: 0, gid: 0 };
        match *step {
            Step::Create(file, dir) => self.make(dir, &format!("f{file}"), FileKind::File, new),
            Step::MakeDirectory(dir) => self.make(0, &format!("d{dir}"), FileKind::Directory, new),
            Step::Symlink(file, dir, len) => {
                let parent = self.ino(&dir_path(dir))?;
                let made = fs
                    .symlink(parent, format!("f{file}").as_bytes(), target(len).as_bytes(), new)?
                    .ino;
                Ok(Outcome { made: Some(made), ..Outcome::touching(vec![parent, made]) })
            }
            Step::Unlink(file, dir) => {
                let parent = self.ino(&dir_path(dir))?;
                let name = format!("f{file}");
                let ino = fs.lookup(parent, name.as_bytes())?.ino;
                fs.unlink(parent, name.as_bytes())?;
                Ok(Outcome::touching(vec![parent, ino]))
            }
            Step::RemoveDirectory(dir) => fs
                .rmdir(InodeNo::ROOT, format!("d{dir}").as_bytes())
                .map(|()| Outcome::touching(vec![InodeNo::ROOT])),
            Step::Rename(file, dir, to, to_dir, kind) => {
                let (from_dir, into_dir) =
                    (self.ino(&dir_path(dir))?, self.ino(&dir_path(to_dir))?);
                let (from, to) = (format!("f{file}"), format!("f{to}"));
                let mut touched =
                    vec![from_dir, into_dir, fs.lookup(from_dir, from.as_bytes())?.ino];
                touched.extend(fs.lookup(into_dir, to.as_bytes()).map(|attr| attr.ino));
                fs.rename(from_dir, from.as_bytes(), into_dir, to.as_bytes(), kind.into())?;
                Ok(Outcome::touching(touched))
            }
            Step::RenameDirectory(from, to) => {
                let moved = self.ino(&format!("/d{from}"))?;
                fs.rename_path(format!("/d{from}"), format!("/d{to}"))?;
                Ok(Outcome::touching(vec![InodeNo::ROOT, moved]))
            }
            Step::Link(file, dir, to, to_dir) => {
                let (target, parent) =
                    (self.ino(&file_path(file, dir))?, self.ino(&dir_path(to_dir))?);
                fs.link(target, parent, format!("f{to}").as_bytes())?;
                Ok(Outcome::touching(vec![target, parent]))
            }
            _ => unreachable!("it changes no names"),
        }
    }

    /// Changes what is known of a file besides its content.
    fn change_attributes(&self, step: &Step) -> Result<Outcome> {
        let fs = &self.fs;
        match *step {
            Step::SetMode(file, dir, mode) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.set_attr(
                    target,
                    &SetAttr { mode: Some(mode), uid: Some(mode % 7), ..SetAttr::default() },
                )?;
                Ok(Outcome::touching(vec![target]))
            }
            Step::SetIoMode(file, dir, mode) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.set_io_mode(target, mode).map(|()| Outcome::touching(vec![target]))
            }
            Step::SetAttribute(file, dir, which, len) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.set_xattr(
                    target,
                    attribute(which).as_bytes(),
                    &vec![b'x'; len.into()],
                    false,
                    false,
                )?;
                Ok(Outcome::touching(vec![target]))
            }
            Step::RemoveAttribute(file, dir, which) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.remove_xattr(target, attribute(which).as_bytes())
                    .map(|()| Outcome::touching(vec![target]))
            }
            Step::SetUntorn(file, dir, bytes) => {
                let target =
                    self.ino(&file.map_or_else(|| dir_path(dir), |file| file_path(file, dir)))?;
                fs.set_untorn(target, bytes).map(|()| Outcome::touching(vec![target]))
            }
            _ => unreachable!("it changes no attributes"),
        }
    }

    /// Holds files and lets go of them.
    fn hold(&self, step: &Step) -> Result<Outcome> {
        let fs = &self.fs;
        let plain = OpenOptions::read_write();
        match *step {
            Step::Hold(slot, file, dir, mode) => {
                let file =
                    fs.open(file_path(file, dir), &OpenOptions { mode: Some(mode), ..plain })?;
                let opened = Some(file.ino());
                let replaced = self.held.lock().insert(slot, Arc::new(file));
                drop(replaced);
                Ok(Outcome { opened, ..Outcome::default() })
            }
            Step::Release(slot) => {
                let held = self.held.lock().remove(&slot);
                held.map(|_| Outcome::default()).ok_or_else(|| {
                    bedplate_fs::Error::new(
                        bedplate_fs::ErrorKind::NotFound,
                        "nothing is held there",
                    )
                })
            }
            Step::Retain(slot, file, dir) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.retain(target)?;
                let before = self.retained.lock().insert(slot, target);
                before.into_iter().for_each(|ino| fs.forget(ino, 1));
                Ok(Outcome::default())
            }
            Step::Forget(slot) => {
                let retained = self.retained.lock().remove(&slot);
                let ino = retained.ok_or_else(|| {
                    bedplate_fs::Error::new(ErrorKind::NotFound, "nothing is remembered there")
                })?;
                fs.forget(ino, 1);
                Ok(Outcome::default())
            }
            _ => unreachable!("it holds no file"),
        }
    }

    /// Writes and reads.
    fn use_content(&self, step: &Step) -> Result<Outcome> {
        let plain = OpenOptions::read_write();
        match *step {
            Step::Write(on, mode, offset, len, fill, durable) => {
                // Every other one as the kernel behind a mount does, which caches by itself.
                let options = OpenOptions {
                    mode: Some(mode),
                    data_sync: durable,
                    caller_caches: fill % 2 == 1,
                    ..plain
                };
                self.on(on, &options, |file| {
                    let bytes = Bytes::of(offset, len, fill);
                    file.write_at(bytes.get(), offset)?;
                    let wrote = self.wrote(file, offset..offset + u64::from(len))?;
                    let written = Promise::Written(file.ino(), offset, offset + u64::from(len));
                    let promise =
                        if durable && matches!(on, On::Name(..)) { written } else { Promise::None };
                    Ok(Outcome { wrote, ..Outcome::promising(promise) })
                })
            }
            Step::Append(file, dir, mode, len, fill, durable) => {
                let options =
                    OpenOptions { mode: Some(mode), data_sync: durable, append: true, ..plain };
                self.on(On::Name(file, dir), &options, |file| {
                    let at = file.write_at(Bytes::appended(len, fill).get(), 0)?;
                    let wrote = self.wrote(file, at..at + u64::from(len))?;
                    let written = Promise::Written(file.ino(), at, at + u64::from(len));
                    Ok(Outcome {
                        at: Some(at),
                        wrote,
                        ..Outcome::promising(if durable { written } else { Promise::None })
                    })
                })
            }
            Step::AppendHeld(slot, len, fill) => self.on(On::Held(slot), &plain, |file| {
                let end = file.size();
                file.write_at(Bytes::appended(len, fill).get(), end)?;
                Ok(Outcome {
                    at: Some(end),
                    wrote: self.wrote(file, end..end + u64::from(len))?,
                    ..Outcome::default()
                })
            }),
            Step::Read(on, mode, offset, len) => {
                self.on(on, &OpenOptions { mode: Some(mode), ..plain }, |file| {
                    let mut buf = AlignedBuf::zeroed(usize::try_from(len).expect("small"));
                    let len = file.read_at(&mut buf, offset)?;
                    Ok(Outcome { read: Some(buf[..len].to_vec()), ..Outcome::default() })
                })
            }
            _ => unreachable!("it neither writes nor reads"),
        }
    }

    /// Changes sizes and where content lies.
    fn change_extents(&self, step: &Step) -> Result<Outcome> {
        let fs = &self.fs;
        let plain = OpenOptions::read_write();
        match *step {
            Step::SetSize(on, size) => self.on(on, &plain, |file| {
                file.set_size(size)?;
                Ok(Outcome { wrote: Some(Wrote::anything(file.ino())), ..Outcome::default() })
            }),
            Step::Truncate(file, dir, size) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.set_attr(target, &SetAttr { size: Some(size), ..SetAttr::default() })?;
                Ok(Outcome { wrote: Some(Wrote::anything(target)), ..Outcome::default() })
            }
            Step::Allocate(on, change, offset, len) => self.on(on, &plain, |file| {
                file.allocate(change.into(), offset, len)?;
                let moved = matches!(change, Change::Collapse | Change::Insert).then_some((
                    file.ino(),
                    change,
                    offset,
                    len,
                ));
                Ok(Outcome {
                    moved,
                    wrote: Some(Wrote::anything(file.ino())),
                    ..Outcome::default()
                })
            }),
            Step::Defragment(on, unshare) => self.on(on, &plain, |file| {
                let mut from = Some(0);
                while let Some(at) = from {
                    from = fs.defragment(file.ino(), at, unshare)?.next;
                }
                Ok(Outcome::default())
            }),
            _ => unreachable!("it changes no extents"),
        }
    }

    /// Makes durable.
    fn sync(&self, step: &Step) -> Result<Outcome> {
        let fs = &self.fs;
        let plain = OpenOptions::read_write();
        match *step {
            Step::SyncData(on) => self.on(on, &plain, |file| {
                file.sync_data().map(|()| Outcome::promising(Promise::Data(file.ino())))
            }),
            Step::SyncAll(on) => self.on(on, &plain, |file| {
                file.sync_all().map(|()| Outcome::promising(Promise::Inode(file.ino())))
            }),
            Step::SyncDirectory(dir) => {
                let target = self.ino(&dir_path(dir))?;
                fs.sync_inode(target).map(|()| Outcome::promising(Promise::Inode(target)))
            }
            Step::Sync => fs.sync().map(|()| Outcome::promising(Promise::All)),
            _ => unreachable!("it syncs nothing"),
        }
    }

    /// Makes, compares, goes back to and deletes checkpoints, and clones.
    fn use_checkpoints(&self, step: &Step) -> Result<Outcome> {
        let fs = &self.fs;
        match *step {
            Step::Checkpoint(..) | Step::Automatic(..) => {
                self.made_checkpoint(&self.make_checkpoint(step)?)
            }
            Step::Policy(delete) => {
                fs.set_space_policy(if delete {
                    SpacePolicy::DeleteOldest
                } else {
                    SpacePolicy::Refuse
                })?;
                Ok(Outcome::promising(Promise::Names))
            }
            Step::Diff(slot) => self
                .diff(&format!("c{slot}"))
                .map(|diff| Outcome { diff: Some(diff), ..Outcome::default() }),
            Step::DeleteCheckpoint(slot) => fs
                .delete_checkpoint(format!("c{slot}"))
                .map(|()| Outcome::promising(Promise::Names)),
            Step::Rollback(slot, back, force) => {
                let done = fs.rollback(
                    format!("c{slot}"),
                    &RollbackOptions { path: back.path().map(Into::into), force },
                )?;
                // Or there would be ever more of them. A full volume may have deleted it.
                match fs.delete_checkpoint(&done.undo) {
                    Err(error) if error.kind != ErrorKind::NotFound => Err(error),
                    _ => Ok(Outcome::promising(Promise::All)),
                }
            }
            Step::Clone(slot, file, dir, to) => {
                self.clone_files(Slots::Files, slot, &file_path(file, dir), &file_path(to, 0))
            }
            Step::CloneDirectory(slot, from, to) => {
                self.clone_files(Slots::Directories, slot, &dir_path(from), &format!("/d{to}"))
            }
            _ => unreachable!("it is about no checkpoint"),
        }
    }

    /// Makes the checkpoint of a step.
    pub(crate) fn make_checkpoint(&self, step: &Step) -> Result<CheckpointInfo> {
        let (name, scope, automatic, kept) = match *step {
            Step::Automatic(slot, kept) => (format!("{AUTOMATIC_PREFIX}{slot}"), None, true, kept),
            Step::Checkpoint(slot, dir) => (format!("c{slot}"), dir, false, false),
            _ => unreachable!("no other step makes one"),
        };
        let scope = scope.map_or(CheckpointScope::Everything, |dir| {
            CheckpointScope::Paths(vec![dir_path(dir).into()])
        });
        self.fs.create_checkpoint(name, &CheckpointOptions { scope, automatic, kept })
    }

    /// What comes of a checkpoint that was made.
    pub(crate) fn made_checkpoint(&self, made: &CheckpointInfo) -> Result<Outcome> {
        let (line, shown) = see_checkpoint(&self.fs, made)?;
        Ok(Outcome {
            checkpoint: Some((line, Arc::new(shown))),
            ..Outcome::promising(Promise::Names)
        })
    }

    /// The names of the automatic checkpoints that workloads made.
    pub(crate) fn automatic(&self) -> BTreeSet<String> {
        let names = self
            .fs
            .checkpoints()
            .into_iter()
            .map(|checkpoint| String::from_utf8_lossy(&checkpoint.name).into_owned());
        names.filter(|name| name.starts_with(AUTOMATIC_PREFIX)).collect()
    }

    /// What is told of the changes since a checkpoint, all of one moment: it is asked for by many
    /// calls, so it is asked again until what is under way beside it has changed nothing between.
    fn diff(&self, name: &str) -> Result<Diff> {
        let mut diff = self.diff_by_calls(name)?;
        loop {
            let again = self.diff_by_calls(name)?;
            if again == diff {
                return Ok(diff);
            }
            diff = again;
        }
    }

    fn diff_by_calls(&self, name: &str) -> Result<Diff> {
        let text = |path: Vec<u8>| String::from_utf8_lossy(&path).into_owned();
        let mut diff = Diff::default();
        for told in self.fs.checkpoint_diff(name, None)? {
            diff.inodes.insert(told.ino);
            diff.paths.extend([Some(told.path), told.from].into_iter().flatten().map(text));
        }
        let mut todo = vec![InodeNo::ROOT];
        while let Some(dir) = todo.pop() {
            for entry in self.fs.read_dir(dir, None, usize::MAX)? {
                match entry.kind {
                    FileKind::Directory => todo.push(entry.ino),
                    FileKind::File => {
                        let changed = match self.fs.changed_blocks(entry.ino, name, None) {
                            // It is not of a checkpoint of named files; the model knows which are.
                            Err(error) if error.kind == ErrorKind::Invalid => continue,
                            changed => changed?,
                        };
                        let range = |range: bedplate_fs::ChangedRange| {
                            (
                                range.offset..range.offset + range.len,
                                range.kind == ChangedKind::Hole,
                            )
                        };
                        diff.ranges.insert(entry.ino, changed.map(range).collect());
                    }
                    _ => {}
                }
            }
        }
        Ok(diff)
    }

    fn clone_files(
        &self,
        slots: Slots,
        slot: Option<u8>,
        path: &str,
        target: &str,
    ) -> Result<Outcome> {
        let source = match slot {
            Some(slot) => {
                CloneSource::Checkpoint { name: format!("c{slot}").into_bytes(), path: path.into() }
            }
            None => CloneSource::Present(path.into()),
        };
        // By its number: a step in the middle of this one may have removed its name since.
        let ino = self.fs.clone_files(&source, target)?.ino;
        let names = if slots == Slots::Directories {
            self.fs.read_dir(ino, None, usize::MAX)?
        } else {
            Vec::new()
        };
        let entries = names
            .into_iter()
            .map(|entry| (String::from_utf8_lossy(&entry.name).into_owned(), entry.ino))
            .collect();
        Ok(Outcome { made: Some(ino), entries, ..Outcome::promising(Promise::Cloned(ino)) })
    }

    fn make(&self, dir: u8, name: &str, kind: FileKind, new: NewFile) -> Result<Outcome> {
        let parent = self.ino(&dir_path(dir))?;
        let made = self.fs.make(parent, name.as_bytes(), kind, new, 0)?.ino;
        Ok(Outcome { made: Some(made), ..Outcome::touching(vec![parent, made]) })
    }
}
