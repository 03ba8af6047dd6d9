//! The same language through the kernel: a real mount of a volume on simulated devices, so that the
//! kernel's own caches of pages, sizes and names are in the run. What a program was told while it
//! ran is held against the model, what a power cut leaves is judged as ever.
//!
//! Device operations of the mount come from its own threads, and some after the call that caused
//! them: a run repeats in what is asked, not to the operation.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Seek;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bedplate_fs::{ErrorKind, FileSystem, InodeNo, IoMode, Result};
use bedplate_serve::control::{Answer, Request};
use bedplate_serve::fuse::{Mount, MountSettings};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::ReadWriteFlags;

use crate::act::Stage;
use crate::bed::{fresh_bed, quiet};
use crate::history::{Done, History};
use crate::live::hold_against;
use crate::model::{Model, attribute};
use crate::node::Kind;
use crate::outcome::{Outcome, Promise, Wrote};
use crate::view::see;
use crate::workload::{
    AttributeStep, CaptureStep, Change, CheckpointStep, ContentStep, ExtentStep, NameStep, On,
    OpenStep, RenameKind, Setup, Step, StepKind, SyncStep, dir_path, file_path, pattern,
};

/// Says why nothing can be mounted here, if so.
#[must_use]
pub fn why_no_mount() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        Some("there is no /dev/fuse")
    } else if !rustix::process::geteuid().is_root() {
        Some("the judge mounts as root only")
    } else {
        None
    }
}

/// Runs steps on a mount of a fresh volume.
///
/// # Errors
/// What the mount did that the model does not: one sentence, and the number of the step.
pub(crate) fn record_mounted(
    setup: &Setup,
    seed: u64,
    steps: &[Step],
) -> std::result::Result<History, String> {
    let bed = fresh_bed(setup, seed);
    let wires = bed.connect();
    let fs = wires.mount(quiet()).map_err(|e| format!("a fresh volume does not mount: {e}"))?;
    let seen = see(&fs).map_err(|e| format!("a fresh volume cannot be read: {e}"))?;
    let mut history =
        History::new(bed, Model::recovered(setup.block_size, seen, Default::default()));
    let program = Program::start(fs)?;
    for (number, step) in steps.iter().enumerate() {
        let begun = |what: String| format!("step {number}, {step:?}, on a mount: {what}");
        let result = program.carry_out_told(&history.model, step);
        hold_against(&mut history.model, step, &result).map_err(begun)?;
        let Outcome { promise, touched, moved, wrote, .. } = result.unwrap_or_default();
        let (end, view) = (history.operations(), history.model.view());
        history.push(Done { end, view, promise, touched, moved, wrote, ..Done::default() });
        program.compare(&history.model).map_err(begun)?;
    }
    program.end()?;
    Ok(history)
}

/// The kernel has told of a close within this time.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

/// A program that uses a mount.
struct Program {
    mount: Mount,
    /// The same file system, past the kernel: for what only looks.
    stage: Stage,
    dir: tempfile::TempDir,
    held: Mutex<BTreeMap<u8, Held>>,
}

/// What is held open: to write anywhere, and to append.
struct Held {
    anywhere: File,
    appends: File,
}

fn refused(error: &std::io::Error) -> bedplate_fs::Error {
    let kind = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOSPC) => ErrorKind::NoSpace,
        Some(rustix::io::Errno::NOENT) => ErrorKind::NotFound,
        _ => ErrorKind::Io,
    };
    bedplate_fs::Error::new(kind, error.to_string())
}

fn system(error: rustix::io::Errno) -> bedplate_fs::Error {
    refused(&error.into())
}

fn missing() -> bedplate_fs::Error {
    bedplate_fs::Error::new(ErrorKind::NotFound, "nothing is held there")
}

/// Refuses a step that no workload for mounts has: the model does not, so the run fails.
fn not_asked(step: impl std::fmt::Debug) -> Result<Outcome> {
    let message = format!("a program on a mount is not asked for {step:?}");
    Err(bedplate_fs::Error::new(ErrorKind::Invalid, message))
}

impl Program {
    fn start(fs: FileSystem) -> std::result::Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let stage = Stage::new(fs.clone());
        let mount = Mount::start(fs, dir.path(), &MountSettings::default())
            .map_err(|e| format!("it cannot be mounted on a directory: {e}"))?;
        Ok(Self { mount, stage, dir, held: Mutex::default() })
    }

    fn end(self) -> std::result::Result<(), String> {
        drop(std::mem::take(&mut *self.held.lock()));
        let Self { mount, stage, .. } = &self;
        stage.close_held();
        mount.unmount().map_err(|e| format!("nothing keeps it from being unmounted: {e}"))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    fn file(&self, file: u8, dir: u8) -> PathBuf {
        self.path(&file_path(file, dir))
    }

    fn open(&self, file: u8, dir: u8, mode: Option<IoMode>, flags: OFlags) -> Result<File> {
        let suffix = mode.map(|mode| format!("::{}", mode.name())).unwrap_or_default();
        let mut path = self.file(file, dir).into_os_string();
        path.push(suffix);
        let flags = i32::try_from(flags.bits()).expect("flags of an open are small");
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path)
            .map_err(|e| refused(&e))
    }

    fn on<T>(
        &self,
        on: On,
        mode: Option<IoMode>,
        flags: OFlags,
        work: impl FnOnce(&File) -> Result<T>,
    ) -> Result<T> {
        match on {
            On::Name(file, dir) => work(&self.open(file, dir, mode, flags)?),
            On::Held(slot) => work(&self.held.lock().get(&slot).ok_or_else(missing)?.anywhere),
        }
    }

    /// Carries a step out once the kernel told of every close before it, which it does some time
    /// after the program closed.
    fn carry_out_told(&self, model: &Model, step: &Step) -> Result<Outcome> {
        let started = Instant::now();
        loop {
            let result = self.carry_out(step);
            let in_the_way = matches!(
                (step, &result),
                (Step::Rollback(..), Err(error)) if error.kind == ErrorKind::Busy
            );
            if !in_the_way
                || started.elapsed() > TOLD_WITHIN
                || model.clone().apply(step, &Outcome::default()).is_err()
            {
                return result;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn carry_out(&self, step: &Step) -> Result<Outcome> {
        match step.kind() {
            StepKind::Names(step) => self.change_names(step),
            StepKind::Attributes(AttributeStep::SetAttribute(file, dir, which, len)) => {
                self.set_attribute(&self.file(file, dir), which, len)
            }
            StepKind::Opens(step) => self.hold(step),
            StepKind::Content(step) => self.use_content(step),
            StepKind::Extents(step) => self.change_extents(step),
            StepKind::Syncs(step) => self.sync(step),
            StepKind::Captures(CaptureStep::Checkpoint(slot, None)) => self.capture(slot),
            StepKind::Checkpoints(step) => self.use_checkpoints(step),
            StepKind::Attributes(_) | StepKind::Captures(_) | StepKind::Recorders => {
                not_asked(step)
            }
        }
    }

    /// Makes, moves and removes names.
    fn change_names(&self, step: NameStep) -> Result<Outcome> {
        match step {
            NameStep::Create(file, dir) => {
                let path = self.file(file, dir);
                let made = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o644)
                    .open(&path)
                    .map_err(|e| refused(&e))?;
                let made = InodeNo(made.metadata().map_err(|e| refused(&e))?.ino());
                Ok(Outcome {
                    made: Some(made),
                    touched: vec![ino_at(&self.path(&dir_path(dir)))?, made],
                    ..Outcome::default()
                })
            }
            NameStep::CreateTogether(file, dir, programs, len, fill) => {
                self.create_together(&self.file(file, dir), dir, programs, &pattern(0, len, fill))
            }
            NameStep::Unlink(file, dir) => {
                let (path, parent) = (self.file(file, dir), ino_at(&self.path(&dir_path(dir)))?);
                let touched = vec![parent, ino_at(&path)?];
                std::fs::remove_file(&path).map_err(|e| refused(&e))?;
                Ok(Outcome { touched, ..Outcome::default() })
            }
            NameStep::Rename(file, dir, to, to_dir, kind) => {
                let (from, into) = (self.file(file, dir), self.file(to, to_dir));
                let mut touched = vec![
                    ino_at(&self.path(&dir_path(dir)))?,
                    ino_at(&self.path(&dir_path(to_dir)))?,
                    ino_at(&from)?,
                ];
                touched.extend(ino_at(&into));
                let flags = if kind == RenameKind::Exchange {
                    RenameFlags::EXCHANGE
                } else {
                    RenameFlags::empty()
                };
                rustix::fs::renameat_with(rustix::fs::CWD, &from, rustix::fs::CWD, &into, flags)
                    .map_err(system)?;
                Ok(Outcome { touched, ..Outcome::default() })
            }
            _ => not_asked(step),
        }
    }

    /// Makes a file by several programs at once, each of which appends to it.
    fn create_together(&self, path: &Path, dir: u8, programs: u8, each: &[u8]) -> Result<Outcome> {
        let parent = ino_at(&self.path(&dir_path(dir)))?;
        if path.symlink_metadata().is_ok() {
            return Err(bedplate_fs::Error::new(ErrorKind::Exists, "the file is there"));
        }
        let create = || {
            OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o644)
                .open(path)
                .and_then(|mut file| std::io::Write::write_all(&mut file, each))
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..programs).map(|_| scope.spawn(create)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("it only writes"))
        })
        .map_err(|e| refused(&e))?;
        let made = ino_at(path)?;
        Ok(Outcome {
            made: Some(made),
            wrote: Some(Wrote::anything(made)),
            ..Outcome::touching(vec![parent, made])
        })
    }

    fn set_attribute(&self, path: &Path, which: u8, len: u16) -> Result<Outcome> {
        let value = vec![b'x'; len.into()];
        rustix::fs::setxattr(path, attribute(which), &value, XattrFlags::empty())
            .map_err(system)?;
        Ok(Outcome { touched: vec![ino_at(path)?], ..Outcome::default() })
    }

    /// Holds files and lets go of them.
    fn hold(&self, step: OpenStep) -> Result<Outcome> {
        match step {
            OpenStep::Hold(slot, file, dir, mode) => {
                let held = Held {
                    anywhere: self.open(file, dir, Some(mode), OFlags::empty())?,
                    appends: self.open(file, dir, Some(mode), OFlags::APPEND)?,
                };
                drop(self.held.lock().insert(slot, held));
                Ok(Outcome::default())
            }
            OpenStep::Release(slot) => {
                self.held.lock().remove(&slot).map(|_| Outcome::default()).ok_or_else(missing)
            }
            OpenStep::Retain(..) | OpenStep::Forget(_) => not_asked(step),
        }
    }

    /// Writes and reads.
    fn use_content(&self, step: ContentStep) -> Result<Outcome> {
        let none = OFlags::empty();
        match step {
            ContentStep::Write(on, mode, offset, len, fill, durable) => {
                let flags = if durable { OFlags::DSYNC } else { none };
                self.on(on, Some(mode), flags, |file| {
                    write(file, on, &pattern(offset, len, fill), offset, durable)
                })
            }
            ContentStep::Append(file, dir, mode, len, fill, durable) => {
                let flags = if durable { OFlags::APPEND | OFlags::DSYNC } else { OFlags::APPEND };
                append(&self.open(file, dir, Some(mode), flags)?, len, fill, durable)
            }
            ContentStep::AppendHeld(slot, len, fill) => {
                append(&self.held.lock().get(&slot).ok_or_else(missing)?.appends, len, fill, false)
            }
            ContentStep::Read(on, mode, offset, len) => self.on(on, Some(mode), none, |file| {
                let mut bytes = vec![0; usize::try_from(len).expect("small")];
                let len = read(file, &mut bytes, offset).map_err(|e| refused(&e))?;
                bytes.truncate(len);
                Ok(Outcome { read: Some(bytes), ..Outcome::default() })
            }),
            ContentStep::CopyRange(..) | ContentStep::DirectAbove(_) => not_asked(step),
        }
    }

    /// Changes sizes and ranges.
    fn change_extents(&self, step: ExtentStep) -> Result<Outcome> {
        let none = OFlags::empty();
        match step {
            ExtentStep::SetSize(on, size) => self.on(on, None, none, |file| {
                file.set_len(size).map_err(|e| refused(&e))?;
                changed(file)
            }),
            ExtentStep::Truncate(file, dir, size) => {
                let path = self.file(file, dir);
                let target = ino_at(&path)?;
                // By path: `truncate(2)` opens nothing.
                let status = std::process::Command::new("truncate")
                    .arg(format!("--size={size}"))
                    .arg("--no-create")
                    .arg(&path)
                    .status();
                match status {
                    Ok(status) if status.success() => {
                        Ok(Outcome { wrote: Some(Wrote::anything(target)), ..Outcome::default() })
                    }
                    _ => Err(bedplate_fs::Error::new(ErrorKind::Io, "truncate failed")),
                }
            }
            ExtentStep::Allocate(on, change, offset, len) => self.on(on, None, none, |file| {
                rustix::fs::fallocate(file, flags_of(change), offset, len).map_err(system)?;
                let moved = matches!(change, Change::Collapse | Change::Insert);
                let done = changed(file)?;
                let ino = done.wrote.as_ref().map(|wrote| wrote.ino);
                Ok(Outcome {
                    moved: ino.filter(|_| moved).map(|ino| (ino, change, offset, len)),
                    ..done
                })
            }),
            ExtentStep::Defragment(..)
            | ExtentStep::Place(..)
            | ExtentStep::Trim
            | ExtentStep::MoveLog(..)
            | ExtentStep::ResizeLog(_) => not_asked(step),
        }
    }

    /// Makes durable.
    fn sync(&self, step: SyncStep) -> Result<Outcome> {
        let none = OFlags::empty();
        match step {
            SyncStep::SyncData(on) => self.on(on, None, none, |file| {
                file.sync_data().map_err(|e| refused(&e))?;
                promising(file, Promise::Data)
            }),
            SyncStep::SyncAll(on) => self.on(on, None, none, |file| {
                file.sync_all().map_err(|e| refused(&e))?;
                promising(file, Promise::Inode)
            }),
            SyncStep::SyncDirectory(dir) => {
                let dir = File::open(self.path(&dir_path(dir))).map_err(|e| refused(&e))?;
                dir.sync_all().map_err(|e| refused(&e))?;
                promising(&dir, Promise::Inode)
            }
            SyncStep::Sync => not_asked(step),
        }
    }

    /// Makes a checkpoint of everything.
    fn capture(&self, slot: u8) -> Result<Outcome> {
        self.ask(&Request::Create {
            name: format!("c{slot}").into_bytes(),
            paths: Vec::new(),
            keep: false,
            automatic: false,
        })?;
        let made = self
            .stage
            .fs
            .checkpoints()
            .into_iter()
            .find(|made| made.name == format!("c{slot}").as_bytes());
        self.stage.made_checkpoint(&made.ok_or_else(|| {
            bedplate_fs::Error::new(
                ErrorKind::NotFound,
                "the checkpoint that was made is not there",
            )
        })?)
    }

    /// Goes back to and deletes checkpoints.
    fn use_checkpoints(&self, step: CheckpointStep) -> Result<Outcome> {
        match step {
            CheckpointStep::DeleteCheckpoint(slot) => {
                self.ask(&Request::Delete { name: format!("c{slot}").into_bytes() })?;
                Ok(Outcome { promise: Promise::Names, ..Outcome::default() })
            }
            CheckpointStep::Rollback(slot, back, force) => {
                let path = back.path().map(String::into_bytes);
                self.ask(&Request::Rollback {
                    name: format!("c{slot}").into_bytes(),
                    path,
                    force,
                })?;
                let undo = self.stage.fs.checkpoints().into_iter().filter(|other| other.automatic);
                undo.for_each(|undo| drop(self.stage.fs.delete_checkpoint(&undo.name)));
                Ok(Outcome { promise: Promise::All, ..Outcome::default() })
            }
            _ => not_asked(step),
        }
    }

    /// Asks the mount for something, after the kernel handed over what it holds of cached writes,
    /// as the commands do.
    fn ask(&self, request: &Request) -> Result<()> {
        let root = self.dir.path();
        let dir = File::open(root).map_err(|e| refused(&e))?;
        rustix::fs::syncfs(&dir).map_err(system)?;
        match bedplate_serve::control::ask(root, request) {
            Ok(Answer::Done(_)) => Ok(()),
            Ok(Answer::Failed(kind, message)) => {
                let known = if kind == "busy" { ErrorKind::Busy } else { ErrorKind::Io };
                Err(bedplate_fs::Error::new(known, format!("{kind}: {message}")))
            }
            Err(e) => Err(bedplate_fs::Error::new(ErrorKind::Io, e.to_string())),
        }
    }

    /// What programs are told of every file, by name and by what they hold open, is what the model
    /// has (S-20, S-32, S-57).
    fn compare(&self, model: &Model) -> std::result::Result<(), String> {
        for (file, content) in model.root_files() {
            let path = self.path(&file);
            let there = File::open(&path).map_err(|e| format!("{file} cannot be opened: {e}"))?;
            same(&there, content, &file)?;
        }
        for (slot, held) in &*self.held.lock() {
            let Some(content) = model.held_content(*slot) else { continue };
            same(&held.anywhere, content, &format!("what slot {slot} holds open"))?;
            let size = held.appends.metadata().map_err(|e| e.to_string())?.len();
            if size != content.len() as u64 {
                return Err(format!(
                    "S-57: the size told of what slot {slot} holds open is {size} of {}",
                    content.len()
                ));
            }
        }
        Ok(())
    }
}

/// Holds what a program reads of a file, and the size it is told, against a content.
fn same(file: &File, content: &[u8], what: &str) -> std::result::Result<(), String> {
    let size = file.metadata().map_err(|e| format!("{what}: {e}"))?.len();
    if size != content.len() as u64 {
        return Err(format!(
            "S-20: a program is told that {what} has {size} bytes, it has {}",
            content.len()
        ));
    }
    let mut read_of = vec![0; content.len()];
    let len = read(file, &mut read_of, 0).map_err(|e| format!("{what} cannot be read: {e}"))?;
    match read_of.iter().zip(content).position(|(found, due)| found != due) {
        _ if len < content.len() => {
            Err(format!("S-20: a read of {what} ends at byte {len} of {}", content.len()))
        }
        Some(at) => Err(format!(
            "S-20: a program reads {:#04x} at byte {at} of {what}, due is {:#04x}",
            read_of[at], content[at]
        )),
        None => Ok(()),
    }
}

fn read(file: &File, bytes: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64)? {
            0 => break,
            len => done += len,
        }
    }
    Ok(done)
}

fn ino_of(file: &File) -> Result<InodeNo> {
    file.metadata().map(|meta| InodeNo(meta.ino())).map_err(|e| refused(&e))
}

fn changed(file: &File) -> Result<Outcome> {
    Ok(Outcome { wrote: Some(Wrote::anything(ino_of(file)?)), ..Outcome::default() })
}

fn promising(file: &File, promise: impl FnOnce(InodeNo) -> Promise) -> Result<Outcome> {
    Ok(Outcome { promise: promise(ino_of(file)?), ..Outcome::default() })
}

/// Writes; what is held open durably by a flag of this one call (S-6).
fn write(file: &File, on: On, bytes: &[u8], offset: u64, durable: bool) -> Result<Outcome> {
    let by_flag = durable && matches!(on, On::Held(_));
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        let len = if by_flag {
            rustix::io::pwritev2(
                file,
                &[std::io::IoSlice::new(&bytes[done..])],
                at,
                ReadWriteFlags::DSYNC,
            )
            .map_err(system)?
        } else {
            file.write_at(&bytes[done..], at).map_err(|e| refused(&e))?
        };
        done += len;
    }
    let ino = ino_of(file)?;
    let end = offset + bytes.len() as u64;
    Ok(Outcome {
        promise: if durable { Promise::Written(ino, offset, end) } else { Promise::None },
        ..changed(file)?
    })
}

fn append(file: &File, len: u32, fill: u8, durable: bool) -> Result<Outcome> {
    use std::io::Write;
    let mut writer = file;
    writer.write_all(&pattern(0, len, fill)).map_err(|e| refused(&e))?;
    let after = writer.stream_position().map_err(|e| refused(&e))?;
    let at = after.saturating_sub(len.into());
    let promise = if durable { Promise::Written(ino_of(file)?, at, after) } else { Promise::None };
    Ok(Outcome { at: Some(at), promise, ..changed(file)? })
}

fn flags_of(change: Change) -> FallocateFlags {
    match change {
        Change::Preallocate => FallocateFlags::empty(),
        Change::PreallocateKeep => FallocateFlags::KEEP_SIZE,
        Change::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Change::Zero => FallocateFlags::ZERO_RANGE,
        Change::Collapse => FallocateFlags::COLLAPSE_RANGE,
        Change::Insert => FallocateFlags::INSERT_RANGE,
    }
}

impl Model {
    /// The files of the root by name.
    fn root_files(&self) -> Vec<(String, &[u8])> {
        let content = |ino: &InodeNo| match &self.nodes.get(ino)?.kind {
            Kind::File(content) => Some(content.as_slice()),
            _ => None,
        };
        let Some(Kind::Directory(entries)) = self.nodes.get(&InodeNo::ROOT).map(|node| &node.kind)
        else {
            return Vec::new();
        };
        entries.iter().filter_map(|(name, ino)| Some((name.clone(), content(ino)?))).collect()
    }
}

/// Returns the number of what lies at a path.
fn ino_at(path: &Path) -> Result<InodeNo> {
    std::fs::symlink_metadata(path).map(|meta| InodeNo(meta.ino())).map_err(|e| refused(&e))
}
