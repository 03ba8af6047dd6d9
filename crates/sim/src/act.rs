//! Carries steps out on a file system.

mod checkpoints;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bedplate_block::AlignedBuf;
use bedplate_fs::{
    AclKind, ErrorKind, File, FileKind, FileSystem, InodeNo, IoMode, NewFile, OpenOptions, Result,
    SetAttr, SetGroupId, Tunable, TuneOptions,
};
use parking_lot::Mutex;

use crate::acl::acl;
use crate::leased::Program;
use crate::logs::LogDevice;
use crate::model::{attribute, target};
use crate::outcome::{Outcome, Promise, Wrote};
use crate::workload::{
    AttributeStep, Change, ContentStep, ExtentStep, NameStep, On, OpenStep, Step, StepKind,
    SyncStep, dir_path, file_path, pattern,
};

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

/// The mounted file system, and what is held open.
pub(crate) struct Stage {
    pub(crate) fs: FileSystem,
    held: Mutex<BTreeMap<u8, Arc<File>>>,
    /// What a kernel would remember.
    retained: Mutex<BTreeMap<u8, InodeNo>>,
    /// Whether the log may move, and its own device, if there is one.
    log: Option<LogDevice>,
    /// What reads, writes and syncs under leases, where it may.
    program: Option<Program>,
}

impl Stage {
    pub(crate) fn new(fs: FileSystem) -> Self {
        Self { fs, held: Mutex::default(), retained: Mutex::default(), log: None, program: None }
    }

    /// Lets the log move, onto its own device too if there is one.
    pub(crate) fn moving_log(self, log: Option<LogDevice>) -> Self {
        Self { log, ..self }
    }

    /// Has a process with leases beside the mount, where there is one.
    pub(crate) fn beside(self, program: Option<Program>) -> Self {
        Self { program, ..self }
    }

    /// Writes under a lease where that is permitted, and through the mount elsewhere.
    fn write(&self, file: &File, bytes: &[u8], offset: u64, durable: bool) -> Result<()> {
        if !self.program.as_ref().is_some_and(|program| program.write(file, bytes, offset)) {
            return file.write_at(bytes, offset).map(drop);
        }
        if durable { file.sync_range(offset, bytes.len() as u64) } else { Ok(()) }
    }

    /// Reads, the same way.
    fn read(&self, file: &File, offset: u64, len: u32) -> Result<Vec<u8>> {
        let leased = self.program.as_ref().and_then(|program| program.read(file, offset, len));
        if let Some(read) = leased {
            return Ok(read);
        }
        let mut buf = AlignedBuf::zeroed(usize::try_from(len).expect("small"));
        let len = file.read_at(&mut buf, offset)?;
        Ok(buf[..len].to_vec())
    }

    /// Closes what is held open.
    pub(crate) fn close_held(&self) {
        drop(std::mem::take(&mut *self.held.lock()));
    }

    /// Returns which files are held open, by slot, and what they hold.
    pub(crate) fn held(&self) -> Result<BTreeMap<u8, (InodeNo, Vec<u8>)>> {
        let held = self.held.lock();
        let whole = |(slot, file): (&u8, &Arc<File>)| {
            let mut bytes = vec![0; usize::try_from(file.size()).expect("small")];
            let len = file.read_at(&mut bytes, 0)?;
            bytes.truncate(len);
            Ok((*slot, (file.ino(), bytes)))
        };
        held.iter().map(whole).collect()
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

    /// Carries a step out; those of the recorder are refused.
    pub(crate) fn carry_out(&self, step: &Step) -> Result<Outcome> {
        match step.kind() {
            StepKind::Names(step) => self.change_names(step),
            StepKind::Attributes(step) => self.change_attributes(step),
            StepKind::Opens(step) => self.hold(step),
            StepKind::Content(step) => self.use_content(step),
            StepKind::Extents(step) => self.change_extents(step),
            StepKind::Syncs(step) => self.sync(step),
            StepKind::Captures(step) => self.made_checkpoint(&self.make_checkpoint(step)?),
            StepKind::Checkpoints(step) => self.use_checkpoints(step),
            StepKind::Recorders => Err(bedplate_fs::Error::new(
                ErrorKind::Invalid,
                format!("{step:?} is a step of the recorder, not of a file system"),
            )),
        }
    }

    /// Makes, moves and removes names.
    fn change_names(&self, step: NameStep) -> Result<Outcome> {
        let fs = &self.fs;
        let new = NewFile { mode: 0o644, uid: 0, gid: 0, umask: 0 };
        match step {
            NameStep::Create(file, dir) => self.make(dir, &format!("f{file}"), FileKind::File, new),
            NameStep::CreateTogether(file, dir, programs, len, fill) => {
                let outcome = self.make(dir, &format!("f{file}"), FileKind::File, new)?;
                self.append_in_turn(&file_path(file, dir), programs, len, fill)?;
                Ok(Outcome { wrote: outcome.made.map(Wrote::anything), ..outcome })
            }
            NameStep::MakeDirectory(dir) => {
                self.make(0, &format!("d{dir}"), FileKind::Directory, new)
            }
            NameStep::Symlink(file, dir, len) => {
                let parent = self.ino(&dir_path(dir))?;
                let made = fs
                    .symlink(parent, format!("f{file}").as_bytes(), target(len).as_bytes(), new)?
                    .ino;
                Ok(Outcome { made: Some(made), ..Outcome::touching(vec![parent, made]) })
            }
            NameStep::Unlink(file, dir) => {
                let parent = self.ino(&dir_path(dir))?;
                let name = format!("f{file}");
                let ino = fs.lookup(parent, name.as_bytes())?.ino;
                fs.unlink(parent, name.as_bytes())?;
                Ok(Outcome::touching(vec![parent, ino]))
            }
            NameStep::RemoveDirectory(dir) => fs
                .rmdir(InodeNo::ROOT, format!("d{dir}").as_bytes())
                .map(|()| Outcome::touching(vec![InodeNo::ROOT])),
            NameStep::Rename(file, dir, to, to_dir, kind) => {
                let (from_dir, into_dir) =
                    (self.ino(&dir_path(dir))?, self.ino(&dir_path(to_dir))?);
                let (from, to) = (format!("f{file}"), format!("f{to}"));
                let moved = fs.lookup(from_dir, from.as_bytes())?.ino;
                let replaced = fs.lookup(into_dir, to.as_bytes()).ok().map(|attr| attr.ino);
                fs.rename(from_dir, from.as_bytes(), into_dir, to.as_bytes(), kind.into())?;
                // Of two names of one file rename(2) changes nothing.
                if replaced == Some(moved) {
                    return Ok(Outcome::default());
                }
                let touched = [from_dir, into_dir, moved].into_iter().chain(replaced);
                Ok(Outcome::touching(touched.collect()))
            }
            NameStep::RenameDirectory(from, to) => {
                let moved = self.ino(&format!("/d{from}"))?;
                fs.rename_path(format!("/d{from}"), format!("/d{to}"))?;
                let touched = if from == to { Vec::new() } else { vec![InodeNo::ROOT, moved] };
                Ok(Outcome::touching(touched))
            }
            NameStep::Link(file, dir, to, to_dir) => {
                let (target, parent) =
                    (self.ino(&file_path(file, dir))?, self.ino(&dir_path(to_dir))?);
                fs.link(target, parent, format!("f{to}").as_bytes())?;
                Ok(Outcome::touching(vec![target, parent]))
            }
        }
    }

    /// Changes what is known of a file besides its content.
    fn change_attributes(&self, step: AttributeStep) -> Result<Outcome> {
        let fs = &self.fs;
        match step {
            AttributeStep::SetMode(file, dir, mode) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.set_attr(
                    target,
                    &SetAttr { mode: Some(mode), uid: Some(mode % 7), ..SetAttr::default() },
                )?;
                Ok(Outcome::touching(vec![target]))
            }
            AttributeStep::SetIoMode(file, dir, mode) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.set_io_mode(target, mode).map(|()| Outcome::touching(vec![target]))
            }
            AttributeStep::SetAttribute(file, dir, which, len) => {
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
            AttributeStep::RemoveAttribute(file, dir, which) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.remove_xattr(target, attribute(which).as_bytes())
                    .map(|()| Outcome::touching(vec![target]))
            }
            AttributeStep::SetAcl(file, dir, bits) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.set_acl(target, AclKind::Access, &acl(bits), SetGroupId::Keep)
                    .map(|()| Outcome::touching(vec![target]))
            }
            AttributeStep::SetUntorn(file, dir, bytes) => {
                let target =
                    self.ino(&file.map_or_else(|| dir_path(dir), |file| file_path(file, dir)))?;
                fs.set_untorn(target, bytes).map(|()| Outcome::touching(vec![target]))
            }
            AttributeStep::SetIntegrity(file, dir, on) => {
                let target =
                    self.ino(&file.map_or_else(|| dir_path(dir), |file| file_path(file, dir)))?;
                fs.set_integrity(target, on).map(|()| Outcome::touching(vec![target]))
            }
        }
    }

    /// Holds files and lets go of them.
    fn hold(&self, step: OpenStep) -> Result<Outcome> {
        let fs = &self.fs;
        let plain = OpenOptions::read_write();
        match step {
            OpenStep::Hold(slot, file, dir, mode) => {
                // Every other one as a mount opens files: a kernel caches them, their writes may wait,
                // and their reads are read ahead.
                let mounts = slot % 2 == 1;
                let options = OpenOptions {
                    mode: Some(mode),
                    delay_writes: mounts,
                    read_windows: mounts,
                    // What a kernel keeps pages of is not leased.
                    caller_caches: mounts && self.program.is_none(),
                    ..plain
                };
                let file = fs.open(file_path(file, dir), &options)?;
                let opened = Some(file.ino());
                let replaced = self.held.lock().insert(slot, Arc::new(file));
                drop(replaced);
                Ok(Outcome { opened, ..Outcome::default() })
            }
            OpenStep::Release(slot) => {
                let held = self.held.lock().remove(&slot);
                held.map(|_| Outcome::default()).ok_or_else(|| {
                    bedplate_fs::Error::new(
                        bedplate_fs::ErrorKind::NotFound,
                        "nothing is held there",
                    )
                })
            }
            OpenStep::Retain(slot, file, dir) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.retain(target)?;
                let before = self.retained.lock().insert(slot, target);
                before.into_iter().for_each(|ino| fs.forget(ino, 1));
                Ok(Outcome::default())
            }
            OpenStep::Forget(slot) => {
                let retained = self.retained.lock().remove(&slot);
                let ino = retained.ok_or_else(|| {
                    bedplate_fs::Error::new(ErrorKind::NotFound, "nothing is remembered there")
                })?;
                fs.forget(ino, 1);
                Ok(Outcome::default())
            }
        }
    }

    /// Writes and reads.
    fn use_content(&self, step: ContentStep) -> Result<Outcome> {
        let plain = OpenOptions::read_write();
        match step {
            ContentStep::Write(on, mode, offset, len, fill, durable) => {
                // Every other one as the kernel behind a mount does, which caches by itself.
                let options = OpenOptions {
                    mode: Some(mode),
                    data_sync: durable,
                    // What a kernel keeps pages of is not leased.
                    caller_caches: fill % 2 == 1 && self.program.is_none(),
                    ..plain
                };
                self.on(on, &options, |file| {
                    let bytes = Bytes::of(offset, len, fill);
                    self.write(file, bytes.get(), offset, durable)?;
                    let wrote = self.wrote(file, offset..offset + u64::from(len))?;
                    let written = Promise::Written(file.ino(), offset, offset + u64::from(len));
                    let promise =
                        if durable && matches!(on, On::Name(..)) { written } else { Promise::None };
                    Ok(Outcome { wrote, ..Outcome::promising(promise) })
                })
            }
            ContentStep::Append(file, dir, mode, len, fill, durable) => {
                let options = OpenOptions { mode: Some(mode), data_sync: durable, ..plain };
                self.append(On::Name(file, dir), &options, len, fill)
            }
            ContentStep::AppendHeld(slot, len, fill) => self.on(On::Held(slot), &plain, |file| {
                let end = file.size();
                file.write_at(Bytes::appended(len, fill).get(), end)?;
                Ok(Outcome {
                    at: Some(end),
                    wrote: self.wrote(file, end..end + u64::from(len))?,
                    ..Outcome::default()
                })
            }),
            ContentStep::Read(on, mode, offset, len) => {
                self.on(on, &OpenOptions { mode: Some(mode), ..plain }, |file| {
                    let read = Some(self.read(file, offset, len)?);
                    Ok(Outcome { read, ..Outcome::default() })
                })
            }
            ContentStep::CopyRange(from, to, mode, at, into, len) => {
                self.copy_range((from, at), (to, into), mode, len)
            }
            ContentStep::DirectAbove(kib) => {
                let changes = vec![(Tunable::DirectAbove, Some(u64::from(kib) << 10))];
                self.fs.tune(&TuneOptions { changes, live_only: true })?;
                Ok(Outcome::default())
            }
        }
    }

    /// Appends a length of a fill, through an open of its own.
    fn append(&self, on: On, options: &OpenOptions, len: u32, fill: u8) -> Result<Outcome> {
        let durable = options.data_sync;
        let options = OpenOptions { append: true, delay_writes: fill % 2 == 1, ..options.clone() };
        self.on(on, &options, |file| {
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

    /// Copies a range from one file to another.
    fn copy_range(
        &self,
        (from, at): (On, u64),
        (to, into): (On, u64),
        mode: IoMode,
        len: u32,
    ) -> Result<Outcome> {
        let options = OpenOptions { mode: Some(mode), ..OpenOptions::read_write() };
        self.on(from, &options, |source| {
            self.on(to, &options, |target| {
                source.copy_range(at, target, into, len.into())?;
                Ok(Outcome { wrote: Some(Wrote::anything(target.ino())), ..Outcome::default() })
            })
        })
    }

    /// Changes sizes and where content lies.
    fn change_extents(&self, step: ExtentStep) -> Result<Outcome> {
        let fs = &self.fs;
        let plain = OpenOptions::read_write();
        match step {
            ExtentStep::SetSize(on, size) => self.on(on, &plain, |file| {
                file.set_size(size)?;
                Ok(Outcome { wrote: Some(Wrote::anything(file.ino())), ..Outcome::default() })
            }),
            ExtentStep::Truncate(file, dir, size) => {
                let target = self.ino(&file_path(file, dir))?;
                fs.set_attr(target, &SetAttr { size: Some(size), ..SetAttr::default() })?;
                Ok(Outcome { wrote: Some(Wrote::anything(target)), ..Outcome::default() })
            }
            ExtentStep::Allocate(on, change, offset, len) => self.on(on, &plain, |file| {
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
            ExtentStep::Defragment(on, unshare) => self.on(on, &plain, |file| {
                let mut from = Some(0);
                while let Some(at) = from {
                    from = fs.defragment(file.ino(), at, unshare)?.next;
                }
                Ok(Outcome::default())
            }),
            ExtentStep::Place(on, member, unshare) => self.on(on, &plain, |file| {
                place(fs, file.ino(), member, unshare)?;
                Ok(Outcome::touching(vec![file.ino()]))
            }),
            ExtentStep::Trim => {
                let mut from = Some(0);
                while let Some(at) = from {
                    from = fs.trim(at, 0)?.next;
                }
                Ok(Outcome::default())
            }
            ExtentStep::MoveLog(..) | ExtentStep::ResizeLog(_) => {
                crate::logs::move_log(fs, self.log.as_ref(), step)
            }
        }
    }

    /// Makes durable.
    fn sync(&self, step: SyncStep) -> Result<Outcome> {
        let fs = &self.fs;
        let plain = OpenOptions::read_write();
        match step {
            SyncStep::SyncData(on) => self.on(on, &plain, |file| {
                let flushed = self.program.as_ref().is_some_and(|program| program.sync(file));
                if !flushed {
                    file.sync_data()?;
                }
                Ok(Outcome::promising(Promise::Data(file.ino())))
            }),
            SyncStep::SyncAll(on) => self.on(on, &plain, |file| {
                file.sync_all().map(|()| Outcome::promising(Promise::Inode(file.ino())))
            }),
            SyncStep::SyncDirectory(dir) => {
                let target = self.ino(&dir_path(dir))?;
                fs.sync_inode(target).map(|()| Outcome::promising(Promise::Inode(target)))
            }
            SyncStep::Sync => fs.sync().map(|()| Outcome::promising(Promise::All)),
        }
    }

    /// Appends to a file through so many opens, one after the other.
    fn append_in_turn(&self, path: &str, opens: u8, len: u32, fill: u8) -> Result<()> {
        let options = OpenOptions { append: true, write: true, ..OpenOptions::default() };
        for _ in 0..opens {
            self.fs.open(path, &options)?.write_at(Bytes::appended(len, fill).get(), 0)?;
        }
        Ok(())
    }

    fn make(&self, dir: u8, name: &str, kind: FileKind, new: NewFile) -> Result<Outcome> {
        let parent = self.ino(&dir_path(dir))?;
        let made = self.fs.make(parent, name.as_bytes(), kind, new, 0)?.ino;
        Ok(Outcome { made: Some(made), ..Outcome::touching(vec![parent, made]) })
    }
}

/// Places a file on a member, where the volume has any, or anywhere, and moves it there.
fn place(fs: &FileSystem, ino: InodeNo, member: u8, unshare: bool) -> Result<()> {
    let members = (member < 2).then(|| vec![format!("member{member}")]);
    match fs.set_placement(ino, members.as_deref()) {
        // Every part of a mirror or RAID-5 lies on all members.
        Err(error) if error.kind == ErrorKind::Invalid => return Ok(()),
        placed => placed?,
    }
    let (mut from, mut is_full) = (Some(0), false);
    while let Some(at) = from {
        let step = fs.move_placed(ino, at, unshare)?;
        (from, is_full) = (step.next, step.is_full);
    }
    let told = fs.placement(ino)?;
    if told.misplaced_bytes > told.shared_bytes && !is_full {
        let why = format!("{} bytes lie elsewhere after a move", told.misplaced_bytes);
        return Err(bedplate_fs::Error::new(ErrorKind::Corrupt, why));
    }
    Ok(())
}
