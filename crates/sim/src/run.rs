//! Runs a workload on the simulated device and writes down what the file system showed after every step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use block::{BlockDevice, Fault, FaultRule, FlushFault, Geometry, MemoryDevice, SimulatedDevice, SimulatedOptions, Trigger};
use fs::{
    CheckpointInfo, CheckpointOptions, CheckpointScope, DirEntry, File, FileKind, FileSystem, FormatOptions, InodeNo, MountOptions, NewFile,
    OpenOptions, Result, SetAttr,
};

use crate::workload::{Setup, Step};

const SIZE: u64 = 48 << 20;

/// What the file system shows: names with their attributes, and the content of every file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// One line for each name.
    pub names: Vec<String>,
    /// Content by inode.
    pub contents: BTreeMap<InodeNo, Arc<Vec<u8>>>,
    /// What each checkpoint shows, by its line among the names.
    pub checkpoints: BTreeMap<String, View>,
}

/// What a step promised once it returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Nothing.
    None,
    /// The bytes of one write with `O_DSYNC`, and a size that reaches over them: inode, offset, end.
    Written(InodeNo, u64, u64),
    /// The data of a file, and everything that happened to names before its last change of size or name.
    Data(InodeNo),
    /// Data, attributes and names of a file or directory.
    Inode(InodeNo),
    /// All that happened to names, and what checkpoints show.
    Names,
    /// Everything.
    All,
}

/// One step as it was carried out.
#[derive(Debug, Clone)]
pub struct Done {
    /// Device operations before it.
    pub first: usize,
    /// Device operations after it.
    pub end: usize,
    /// What was visible afterwards.
    pub view: View,
    /// What it promised.
    pub promise: Promise,
    /// Inodes whose names or attributes it changed.
    pub touched: Vec<InodeNo>,
}

/// A recorded workload.
#[derive(Debug)]
pub struct History {
    /// The device it ran on.
    pub device: Arc<SimulatedDevice>,
    /// What the volume was like before the first step.
    pub before: View,
    /// The steps.
    pub done: Vec<Done>,
    first: usize,
}

impl History {
    /// The first operation after which a cut is judged (the volume is formatted and mounted).
    #[must_use]
    pub fn first_operation(&self) -> usize {
        self.first
    }

    /// How many operations the device saw.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.device.operation_count()
    }
}

/// Mount options under which nothing happens by itself, so that a run repeats exactly.
pub(crate) fn quiet() -> MountOptions {
    MountOptions { sync_interval: Duration::from_secs(86_400), cache_bytes: 8 << 20, metadata_cache_bytes: 8 << 20, ..MountOptions::default() }
}

pub(crate) fn mount(device: &Arc<dyn BlockDevice>) -> Result<FileSystem> {
    FileSystem::mount(Arc::clone(device), None, quiet())
}

fn geometry(setup: &Setup) -> Geometry {
    Geometry {
        logical_block_size: setup.sector,
        physical_block_size: setup.sector,
        untorn_unit: setup.sector,
        volatile_cache: setup.volatile_cache,
        ..MemoryDevice::GEOMETRY
    }
}

/// Runs `steps` on a fresh volume.
///
/// # Panics
/// When the file system fails without a fault, which is a finding of its own.
#[must_use]
pub fn record(setup: &Setup, steps: &[Step]) -> History {
    let blank: Arc<dyn BlockDevice> = MemoryDevice::with_geometry(SIZE, geometry(setup));
    let options = FormatOptions { block_size: setup.block_size, log_bytes: Some(1 << 20), ..FormatOptions::default() };
    FileSystem::format(&blank, None, &options).expect("a blank device can be formatted");
    let base = snapshot_of(&blank);
    let device = SimulatedDevice::over(&base, &SimulatedOptions { geometry: geometry(setup), ..SimulatedOptions::default() });
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    let mut fs = mount(&shared).expect("a fresh volume mounts");
    let (first, before) = (device.operation_count(), view(&fs).expect("a fresh volume can be read"));
    if setup.lose_flushes {
        device.inject(FaultRule::new(Fault::Flush(FlushFault::Lose), Trigger::Always));
    }
    let mut done = Vec::with_capacity(steps.len());
    for step in steps {
        let start = device.operation_count();
        if *step == Step::Remount {
            fs.unmount().expect("nothing keeps a volume from being unmounted");
            fs = mount(&shared).expect("a volume that was unmounted mounts");
        }
        // A step that cannot be carried out (the name is taken …) changes nothing and promises nothing.
        let (promise, touched) = carry_out(&fs, step).unwrap_or((Promise::None, Vec::new()));
        let end = device.operation_count();
        let view = view(&fs).expect("a sound volume can be read");
        // What changed nothing (a rename onto itself) logs nothing, so a sync of what it touched promises nothing more.
        let changed = done.last().map_or(&before, |last: &Done| &last.view).names != view.names;
        let touched = if changed { touched } else { Vec::new() };
        done.push(Done { first: start, end, view, promise, touched });
    }
    drop(fs);
    History { device, before, done, first }
}

fn snapshot_of(device: &Arc<dyn BlockDevice>) -> block::Snapshot {
    let copy = MemoryDevice::with_geometry(device.size_bytes(), device.geometry());
    let mut buf = block::AlignedBuf::zeroed(1 << 20);
    for at in (0..device.size_bytes()).step_by(1 << 20) {
        device.read_at(&mut buf, at).expect("memory can be read");
        if buf.iter().any(|byte| *byte != 0) {
            copy.write_at(&buf, at).expect("memory can be written");
        }
    }
    copy.snapshot()
}

fn dir_name(dir: u8) -> String {
    if dir == 0 { "/".into() } else { format!("/d{dir}") }
}

fn name(file: u8, dir: u8) -> String {
    if dir == 0 { format!("/f{file}") } else { format!("/d{dir}/f{file}") }
}

fn carry_out(fs: &FileSystem, step: &Step) -> Result<(Promise, Vec<InodeNo>)> {
    let ino = |path: &str| fs.resolve(path).map(|attr| attr.ino);
    let open = |file, dir| fs.open(name(file, dir), &OpenOptions::read_write());
    let new = NewFile { mode: 0o644, uid: 0, gid: 0 };
    let quiet = |touched: Vec<InodeNo>| Ok((Promise::None, touched));
    match *step {
        Step::Create(file, dir) => {
            let parent = ino(&dir_name(dir))?;
            let attr = fs.make(parent, format!("f{file}").as_bytes(), FileKind::File, new, 0)?;
            quiet(vec![parent, attr.ino])
        }
        Step::MakeDirectory(dir) => {
            let attr = fs.make(InodeNo::ROOT, format!("d{dir}").as_bytes(), FileKind::Directory, new, 0)?;
            quiet(vec![InodeNo::ROOT, attr.ino])
        }
        Step::Unlink(file, dir) => {
            let touched = vec![ino(&name(file, dir))?, ino(&dir_name(dir))?];
            fs.remove(name(file, dir))?;
            quiet(touched)
        }
        Step::RemoveDirectory(dir) => {
            fs.rmdir(InodeNo::ROOT, format!("d{dir}").as_bytes())?;
            quiet(vec![InodeNo::ROOT])
        }
        Step::Rename(file, dir, to, to_dir, kind) => {
            let (from_dir, into_dir) = (ino(&dir_name(dir))?, ino(&dir_name(to_dir))?);
            let mut touched = vec![from_dir, into_dir, ino(&name(file, dir))?];
            touched.extend(ino(&name(to, to_dir)));
            fs.rename(from_dir, format!("f{file}").as_bytes(), into_dir, format!("f{to}").as_bytes(), kind.into())?;
            quiet(touched)
        }
        Step::Link(file, dir, to, to_dir) => {
            let (target, parent) = (ino(&name(file, dir))?, ino(&dir_name(to_dir))?);
            fs.link(target, parent, format!("f{to}").as_bytes())?;
            quiet(vec![target, parent])
        }
        Step::SetMode(file, dir, mode) => {
            let target = ino(&name(file, dir))?;
            fs.set_attr(target, &SetAttr { mode: Some(mode), ..SetAttr::default() })?;
            quiet(vec![target])
        }
        Step::SetAttribute(file, dir, len) => {
            let target = ino(&name(file, dir))?;
            fs.set_xattr(target, b"user.sim", &vec![b'x'; len.into()], false, false)?;
            quiet(vec![target])
        }
        Step::Write(file, dir, mode, offset, len, fill, durable) => {
            let options = OpenOptions { mode: Some(mode), data_sync: durable, ..OpenOptions::read_write() };
            let file = fs.open(name(file, dir), &options)?;
            file.write_at(&pattern(offset, len, fill), offset)?;
            let written = Promise::Written(file.ino(), offset, offset + u64::from(len));
            Ok((if durable { written } else { Promise::None }, Vec::new()))
        }
        Step::SetSize(file, dir, size) => open(file, dir)?.set_size(size).and_then(|()| quiet(Vec::new())),
        Step::Allocate(file, dir, change, offset, len) => open(file, dir)?.allocate(change.into(), offset, len).and_then(|()| quiet(Vec::new())),
        Step::SyncData(file, dir) => synced(&open(file, dir)?, File::sync_data, Promise::Data),
        Step::SyncAll(file, dir) => synced(&open(file, dir)?, File::sync_all, Promise::Inode),
        Step::SyncDirectory(dir) => {
            let target = ino(&dir_name(dir))?;
            fs.sync_inode(target)?;
            Ok((Promise::Inode(target), Vec::new()))
        }
        Step::Checkpoint(slot, dir) => {
            let scope = dir.map_or(CheckpointScope::Everything, |dir| CheckpointScope::Paths(vec![dir_name(dir).into()]));
            let made = fs.create_checkpoint(format!("c{slot}"), &CheckpointOptions { scope, ..CheckpointOptions::default() })?;
            prove_moment(fs, &made)?;
            Ok((Promise::Names, Vec::new()))
        }
        Step::DeleteCheckpoint(slot) => fs.delete_checkpoint(format!("c{slot}")).map(|()| (Promise::Names, Vec::new())),
        Step::Sync => fs.sync().map(|()| (Promise::All, Vec::new())),
        Step::Remount => Ok((Promise::All, Vec::new())),
    }
}

fn synced(file: &File, sync: impl Fn(&File) -> Result<()>, promise: fn(InodeNo) -> Promise) -> Result<(Promise, Vec<InodeNo>)> {
    sync(file)?;
    Ok((promise(file.ino()), Vec::new()))
}

/// Bytes that tell which write and which place they came from.
fn pattern(offset: u64, len: u32, fill: u8) -> Vec<u8> {
    let byte = |at: u64| fill.wrapping_add(u8::try_from((at / 512) % 251).expect("below 251")).max(1);
    (offset..offset + u64::from(len)).map(byte).collect()
}

/// Reads everything that a user could see.
pub(crate) fn view(fs: &FileSystem) -> Result<View> {
    let mut view = View::default();
    view_directory(fs, InodeNo::ROOT, "", &mut view)?;
    for checkpoint in fs.checkpoints() {
        let line = line(&checkpoint);
        view.names.push(line.clone());
        view.checkpoints.insert(line, view_checkpoint(fs, &checkpoint)?);
    }
    Ok(view)
}

fn line(checkpoint: &CheckpointInfo) -> String {
    format!("checkpoint {} epoch {} of {:?}", String::from_utf8_lossy(&checkpoint.name), checkpoint.epoch.0, checkpoint.paths)
}

fn view_checkpoint(fs: &FileSystem, checkpoint: &CheckpointInfo) -> Result<View> {
    let mut view = View::default();
    let root = fs.resolve(format!("/.checkpoints/{}", String::from_utf8_lossy(&checkpoint.name)))?;
    view_directory(fs, root.ino, "", &mut view)?;
    Ok(view)
}

/// A checkpoint that was just made shows what the file system shows.
fn prove_moment(fs: &FileSystem, made: &CheckpointInfo) -> Result<()> {
    let (mut present, past) = (View::default(), view_checkpoint(fs, made)?);
    view_directory(fs, InodeNo::ROOT, "", &mut present)?;
    if made.paths.is_empty() || made.paths == ["/"] {
        assert!(present == past, "{} shows something else than the present:\n{past:?}\n{present:?}", line(made));
    } else {
        assert!(past.names.iter().all(|name| present.names.contains(name)), "{} has other names than the present", line(made));
        assert!(past.contents.iter().all(|(ino, content)| present.contents.get(ino) == Some(content)), "{} has other contents", line(made));
    }
    Ok(())
}

/// The number of an inode, whichever checkpoint it is seen in.
fn number(ino: InodeNo) -> InodeNo {
    InodeNo(ino.0 & 0xffff_ffff_ffff)
}

fn view_directory(fs: &FileSystem, dir: InodeNo, path: &str, view: &mut View) -> Result<()> {
    for DirEntry { name, ino, .. } in fs.read_dir(dir, None, usize::MAX)? {
        let attr = fs.attr(ino)?;
        let path = format!("{path}/{}", String::from_utf8_lossy(&name));
        let attributes: Vec<_> = fs.list_xattr(ino)?.iter().map(|name| fs.get_xattr(ino, name).map(|value| value.len())).collect::<Result<_>>()?;
        view.names.push(format!(
            "{path} inode {} {:?} mode {:o} links {} attributes {attributes:?}",
            number(ino).0,
            attr.kind,
            attr.mode,
            attr.nlink
        ));
        match attr.kind {
            FileKind::Directory => view_directory(fs, ino, &path, view)?,
            FileKind::File if !view.contents.contains_key(&number(ino)) => {
                let file = fs.open_inode(ino, &OpenOptions::read_only())?;
                let mut content = vec![0; usize::try_from(attr.size).expect("workloads write small files")];
                let len = file.read_at(&mut content, 0)?;
                assert_eq!(len, content.len(), "a read of {path} ends before its size");
                view.contents.insert(number(ino), Arc::new(content));
            }
            _ => {}
        }
    }
    Ok(())
}
