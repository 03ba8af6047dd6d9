//! Volumes of today, one for each thing that the format can say, with the same files on all.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bedplate::{
    AlignedBuf, AllocateMode, Arrangement, BlockDevice, CheckpointOptions, CloneSource, FileKind,
    FileSystem, FormatOptions, Group, ImportOptions, InodeNo, IoMode, MemoryDevice, MountOptions,
    NewDivided, NewFile, NewGroup, NewVolume, OpenOptions, Role, Schedule, Shape, Target, Tunable,
    TuneOptions, VolumeTable, Which, create_divided, create_group,
};

use bedplate_block::{Window, WindowPiece};

use crate::packing::{Named, copies};

/// How a volume is made.
type Making = fn() -> Vec<Named>;

/// Every kind of volume that is kept.
pub const KINDS: [(&str, Making); 15] = [
    ("unmounted", unmounted),
    ("crashed", crashed),
    ("log-device", log_device),
    ("lists", lists),
    ("pieces", pieces),
    ("sums", sums),
    ("mirror", || group(Shape::Mirror, 2, |_| {})),
    ("raid5", || group(Shape::Raid5, 3, |_| {})),
    ("relayout", relayout),
    ("cycles", cycles),
    ("reserve", reserve),
    ("scrubbed", scrubbed),
    ("degraded", degraded),
    ("split", split),
    ("divided", divided),
];

const VOLUME_BYTES: u64 = 32 << 20;
const MEMBER_BYTES: u64 = 38 << 20;
const BLOCK: usize = 4096;

fn memory(bytes: u64) -> Arc<dyn BlockDevice> {
    MemoryDevice::new(bytes)
}

/// Options of a mount that does nothing by itself.
pub fn quiet() -> MountOptions {
    MountOptions {
        schedules: false,
        sync_interval: Duration::from_secs(3600),
        ..MountOptions::default()
    }
}

fn format(device: &Arc<dyn BlockDevice>, log: Option<&Arc<dyn BlockDevice>>) {
    FileSystem::format(device, log, &FormatOptions::default()).unwrap();
}

fn mount(device: &Arc<dyn BlockDevice>, log: Option<&Arc<dyn BlockDevice>>) -> FileSystem {
    FileSystem::mount(Arc::clone(device), log.cloned(), quiet()).unwrap()
}

fn unmounted() -> Vec<Named> {
    let device = memory(VOLUME_BYTES);
    format(&device, None);
    let fs = mount(&device, None);
    fill(&fs);
    fs.unmount().unwrap();
    vec![("volume".into(), device)]
}

/// What a power cut leaves: records in the log that the metadata does not hold.
fn crashed() -> Vec<Named> {
    let device = memory(VOLUME_BYTES);
    format(&device, None);
    let fs = mount(&device, None);
    fill(&fs);
    fs.unmount().unwrap();
    let fs = mount(&device, None);
    write(&fs, "/late", 0, &pattern(9, 3 * BLOCK + 5), None);
    fs.open("/late", &OpenOptions::read_write()).unwrap().sync_data().unwrap();
    // Of all but the first the log alone has the data.
    let concurrent = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() };
    let file = fs.open("/appended", &concurrent).unwrap();
    for at in 0..4_u64 {
        let bytes = AlignedBuf::from_slice(&pattern(20 + at, 512));
        file.write_at(&bytes, at * 512).unwrap();
        file.sync_data().unwrap();
    }
    drop(file);
    let left = copies(&[("volume".into(), device)]);
    fs.unmount().unwrap();
    left
}

fn log_device() -> Vec<Named> {
    let (device, log) = (memory(VOLUME_BYTES), memory(2 << 20));
    format(&device, Some(&log));
    let fs = mount(&device, Some(&log));
    fill(&fs);
    fs.sync().unwrap();
    let left = copies(&[("volume".into(), device), ("log".into(), log)]);
    fs.unmount().unwrap();
    left
}

/// A volume in whose free space the metadata found single blocks only: chunk lists.
fn lists() -> Vec<Named> {
    let device = memory(VOLUME_BYTES);
    format(&device, None);
    let fs = mount(&device, None);
    fill(&fs);
    let holes = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() };
    let file = fs.open("/holes", &holes).unwrap();
    let part = AlignedBuf::zeroed(1 << 16);
    let full = (0..).step_by(part.len()).find(|at| file.write_at(&part, *at).is_err()).unwrap();
    for at in (0..full).step_by(2 * BLOCK) {
        file.allocate(AllocateMode::PunchHole, at, BLOCK as u64).unwrap();
    }
    drop(file);
    fs.sync().unwrap();
    for number in 0..40 {
        let name = format!("user.{number}");
        let value = vec![number as u8; 40_000];
        if fs.set_xattr(InodeNo::ROOT, name.as_bytes(), &value, false, false).is_err() {
            break;
        }
        fs.sync().unwrap();
    }
    fs.unmount().unwrap();
    vec![("volume".into(), device)]
}

/// A file of many extents, which the metadata of format version 4 have in packs.
fn pieces() -> Vec<Named> {
    let device = memory(VOLUME_BYTES);
    format(&device, None);
    let fs = mount(&device, None);
    fill(&fs);
    let options = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() };
    let file = fs.open("/pieces", &options).unwrap();
    fs.set_untorn(fs.resolve("/pieces").unwrap().ino, Some(8192)).unwrap();
    let (units, mut unit) = (700, AlignedBuf::zeroed(8192));
    for (round, stride) in [(0, 1), (1, 149), (2, 331)] {
        for number in (0..units).map(|number| number * stride % units) {
            unit.fill((number % 250) as u8 + round);
            file.write_at(&unit, number * 8192).unwrap();
        }
        fs.sync().unwrap();
    }
    for hole in (100..200).step_by(7) {
        file.allocate(AllocateMode::PunchHole, hole * 8192, 8192).unwrap();
    }
    fs.create_checkpoint("pieces", &CheckpointOptions::default()).unwrap();
    for number in (0..units).step_by(9) {
        file.write_at(&unit, number * 8192).unwrap();
    }
    drop(file);
    fs.unmount().unwrap();
    vec![("volume".into(), device)]
}

/// A file whose blocks have checksums, in the metadata and in the log.
fn sums() -> Vec<Named> {
    let device = memory(VOLUME_BYTES);
    format(&device, None);
    let fs = mount(&device, None);
    fill(&fs);
    let options = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() };
    let file = fs.open("/summed", &options).unwrap();
    file.write_at(&pattern(3, 2 * BLOCK), 0).unwrap();
    fs.set_integrity(file.ino(), true).unwrap();
    file.write_at(&pattern(4, 20 * BLOCK), BLOCK as u64).unwrap();
    fs.create_checkpoint("summed", &CheckpointOptions::default()).unwrap();
    file.write_at(&pattern(5, 700), 3 * BLOCK as u64 + 100).unwrap();
    drop(file);
    fs.unmount().unwrap();
    let fs = mount(&device, None);
    let file = fs.open("/summed", &options).unwrap();
    file.write_at(&pattern(6, 5 * BLOCK), 8 * BLOCK as u64).unwrap();
    file.sync_data().unwrap();
    let left = copies(&[("volume".into(), device)]);
    drop(file);
    fs.unmount().unwrap();
    left
}

fn members(count: u64) -> Vec<Arc<dyn BlockDevice>> {
    (0..count).map(|_| memory(MEMBER_BYTES)).collect()
}

fn new_group(shape: Shape, members: &[Arc<dyn BlockDevice>]) -> NewGroup {
    NewGroup {
        name: "kept".into(),
        data: Arrangement { shape, unit_bytes: 64 << 10, plexes: 2 },
        members: members.to_vec(),
        log_members: Vec::new(),
        spares: Vec::new(),
        region_bytes: None,
        reserve_bytes: 0,
        force: false,
    }
}

/// Options that let a group do nothing by itself.
pub const IDLE: ImportOptions =
    ImportOptions { read_only: false, degraded: false, background: false };

/// Makes a group with files on it, changes it, closes it, and names its members.
fn made(new: &NewGroup, change: impl FnOnce(&Group)) -> Vec<Named> {
    create_group(new).unwrap();
    let group = Group::import(&new.members, &IDLE).unwrap();
    let device = group.volume(Role::Data).unwrap();
    format(&device, None);
    let fs = mount(&device, None);
    fill(&fs);
    fs.unmount().unwrap();
    drop(device);
    change(&group);
    group.close().unwrap();
    let named =
        |(at, device): (usize, &Arc<dyn BlockDevice>)| (format!("member{at}"), Arc::clone(device));
    new.members.iter().enumerate().map(named).collect()
}

fn group(shape: Shape, count: u64, change: impl FnOnce(&Group)) -> Vec<Named> {
    made(&new_group(shape, &members(count)), change)
}

/// Begins a relayout, takes some steps of it and leaves it there.
fn half_way(group: &Group, target: &Target) {
    let size = group.volume(Role::Data).unwrap().size_bytes();
    let target = Target { step_bytes_max: Some(256 << 10), ..*target };
    group.relayout(Role::Data, &target, size).unwrap();
    let mut steps = 0;
    group
        .run_relayout(&mut |_| {
            steps += 1;
            steps < 20
        })
        .unwrap();
    assert!(group.relayout_progress().is_some(), "it is not over");
}

/// A group that is closed in the middle of a relayout.
fn relayout() -> Vec<Named> {
    let target = Target {
        shape: Some(Shape::Stripe),
        columns: Some(2),
        plexes: Some(1),
        ..Target::default()
    };
    group(Shape::Mirror, 2, |group| half_way(group, &target))
}

/// As [`relayout`], of one in which nearly every piece goes where another still lies.
fn cycles() -> Vec<Named> {
    let target = Target { shape: Some(Shape::Concat), ..Target::default() };
    group(Shape::Stripe, 3, |group| half_way(group, &target))
}

fn reserve() -> Vec<Named> {
    let new = new_group(Shape::Mirror, &members(2));
    made(&NewGroup { reserve_bytes: 1 << 20, ..new }, |_| {})
}

fn scrubbed() -> Vec<Named> {
    group(Shape::Mirror, 2, |group| {
        group.schedule_scrub(Some(Duration::from_secs(7 * 86_400)), true).unwrap();
    })
}

/// A mirror that goes on without one of its members.
fn degraded() -> Vec<Named> {
    let left = group(Shape::Mirror, 2, |_| {}).split_off(1);
    let options = ImportOptions { degraded: true, ..IDLE };
    let group = Group::import(&[Arc::clone(&left[0].1)], &options).unwrap();
    group.close().unwrap();
    left
}

/// What stays of a mirror that was split.
fn split() -> Vec<Named> {
    let mut halves = group(Shape::Mirror, 2, |_| {});
    let devices: Vec<_> = halves.iter().map(|(_, device)| Arc::clone(device)).collect();
    let group = Group::import(&devices, &IDLE).unwrap();
    drop(group.split(&[Which::At(1)], "half").unwrap());
    group.close().unwrap();
    halves.truncate(1);
    halves
}

/// A group with many volumes: files on a mirror, and a stripe beside it.
fn divided() -> Vec<Named> {
    let devices: Vec<_> = (0..2).map(|_| memory(64 << 20)).collect();
    let volume = |name: &str, shape, size_bytes| NewVolume {
        name: name.into(),
        arrangement: Arrangement { shape, unit_bytes: 64 << 10, plexes: 2 },
        size_bytes,
        members: Vec::new(),
    };
    let volumes =
        vec![volume("files", Shape::Mirror, Some(33 << 20)), volume("rest", Shape::Stripe, None)];
    let members = devices.clone();
    create_divided(&NewDivided { name: "kept".into(), members, volumes, force: false }).unwrap();
    let named = |(at, device)| (format!("member{at}"), device);
    let named: Vec<Named> = devices.into_iter().enumerate().map(named).collect();
    let group = Group::import(&members_of(&named), &IDLE).unwrap();
    let device = group.volume(Role::Data).unwrap();
    format(&device, None);
    let fs = mount(&device, None);
    fill(&fs);
    fs.unmount().unwrap();
    drop(device);
    group.close().unwrap();
    named
}

/// Returns what the members of a group are: devices, or their parts of the first of many volumes.
pub fn members_of(devices: &[Named]) -> Vec<Arc<dyn BlockDevice>> {
    let of_group =
        |(_, device): &&Named| version_of(device).is_some_and(|(kind, _)| kind == "label");
    let part = |(name, device): &Named| -> Arc<dyn BlockDevice> {
        let Ok((member, table)) = VolumeTable::read(&**device) else { return Arc::clone(device) };
        let part = table.volumes[0].part_on(member).unwrap();
        let piece = |piece: &std::ops::Range<u64>| WindowPiece {
            device: Arc::clone(device),
            start: piece.start,
            len: piece.end - piece.start,
        };
        Window::open(format!("{name} in part"), part.pieces.iter().map(piece).collect())
    };
    devices.iter().filter(of_group).map(part).collect()
}

/// Bytes that tell where they belong: each sector has a word of its own.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let word = |at: u64| (seed << 32 | (at / 64)).wrapping_mul(0x9e37_79b9).to_le_bytes();
    (0..len.div_ceil(8) as u64).flat_map(word).take(len).collect()
}

fn write(fs: &FileSystem, path: &str, offset: u64, bytes: &[u8], mode: Option<IoMode>) {
    let file = fs.open(path, &OpenOptions { mode, ..OpenOptions::create() }).unwrap();
    file.write_at(&AlignedBuf::from_slice(bytes), offset).unwrap();
}

/// Makes files of every kind, a checkpoint, what changed since, and clones.
fn fill(fs: &FileSystem) {
    let dir = fs.create_dir_all("/a/directory").unwrap().ino;
    write(fs, "/small", 0, b"a line\n", None);
    write(fs, "/a/pages", 0, &pattern(1, 8 * BLOCK), Some(IoMode::Concurrent));
    write(fs, "/a/sparse", 300 << 10, &pattern(2, 100), Some(IoMode::Direct));
    write(fs, "/a/odd", 77, &pattern(3, 2 * BLOCK + 1), Some(IoMode::Cached));
    let untorn = fs.open("/untorn", &OpenOptions::create()).unwrap();
    fs.set_untorn(fs.resolve("/untorn").unwrap().ino, Some(8192)).unwrap();
    untorn.write_at(&AlignedBuf::from_slice(&pattern(4, 4 * BLOCK)), 0).unwrap();
    untorn.allocate(AllocateMode::Preallocate { keep_size: false }, 64 << 10, 32 << 10).unwrap();
    drop(untorn);
    let new = NewFile { mode: 0o777, uid: 5, gid: 6, umask: 0 };
    fs.symlink(dir, b"link", b"../pages", new).unwrap();
    let pages = fs.resolve("/a/pages").unwrap().ino;
    fs.link(pages, dir, b"second name \xff").unwrap();
    fs.set_xattr(pages, b"user.kept", &pattern(5, 300), false, false).unwrap();
    fs.set_io_mode(pages, Some(IoMode::ConcurrentCache)).unwrap();
    fs.create_checkpoint("before", &CheckpointOptions::default()).unwrap();
    write(fs, "/a/pages", 2 * BLOCK as u64, &pattern(6, 2 * BLOCK), Some(IoMode::Concurrent));
    write(fs, "/untorn", 8192, &pattern(7, 2 * BLOCK), Some(IoMode::Concurrent));
    fs.remove("/small").unwrap();
    let past = CloneSource::Checkpoint { name: b"before".to_vec(), path: "/a".into() };
    fs.clone_files(&past, "/clone").unwrap();
    fs.clone_files(&CloneSource::Present("/untorn".into()), "/clone/untorn").unwrap();
    write(fs, "/clone/pages", 0, &pattern(8, BLOCK), Some(IoMode::Concurrent));
    fs.set_schedule(&Schedule {
        name: "daily".into(),
        every_s: 86_400,
        keep: 7,
        paths: vec!["/a".into()],
        last: None,
        failure: None,
    })
    .unwrap();
    fs.tune(&TuneOptions { changes: vec![(Tunable::Cache, Some(8 << 20))], live_only: false })
        .unwrap();
}

/// Returns everything that can be read of a file system, one line for each name, with a checksum of
/// the content: of the present, and of every checkpoint.
pub fn manifest(fs: &FileSystem) -> String {
    let mut lines = BTreeMap::new();
    below(fs, InodeNo::ROOT, "", &mut lines);
    for checkpoint in fs.checkpoints() {
        let path = format!("/.checkpoints/{}", String::from_utf8_lossy(&checkpoint.name));
        below(fs, fs.resolve(&path).unwrap().ino, &path, &mut lines);
    }
    let mut text = String::new();
    for (path, line) in lines {
        writeln!(text, "{path} {line}").unwrap();
    }
    let schedules: Vec<_> = fs
        .schedules()
        .iter()
        .map(|schedule| format!("{} {}", schedule.name, schedule.every_s))
        .collect();
    writeln!(text, "schedules {schedules:?} cache {}", fs.tunable(Tunable::Cache)).unwrap();
    text
}

fn below(fs: &FileSystem, dir: InodeNo, path: &str, lines: &mut BTreeMap<String, String>) {
    for entry in fs.read_dir(dir, None, usize::MAX).unwrap() {
        let path = format!("{path}/{}", entry.name.escape_ascii());
        let attr = fs.attr(entry.ino).unwrap();
        let mut sums = Vec::new();
        for name in fs.list_xattr(entry.ino).unwrap() {
            let value = fs.get_xattr(entry.ino, &name).unwrap();
            sums.push(format!("{}={:08x}", name.escape_ascii(), crc32c(&value)));
        }
        let content = match attr.kind {
            FileKind::Directory => {
                below(fs, entry.ino, &path, lines);
                0
            }
            FileKind::File => {
                let file = fs.open_inode(entry.ino, &OpenOptions::read_only()).unwrap();
                let mut bytes = vec![0; attr.size as usize];
                assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len(), "{path}");
                crc32c(&bytes)
            }
            _ => crc32c(&fs.read_link(entry.ino).unwrap()),
        };
        let untorn = fs.untorn(entry.ino).map_or(0, |untorn| untorn.map_or(0, |u| u.bytes));
        lines.insert(
            path,
            format!(
                "{:?} {:o} {}:{} links {} bytes {} mtime {:?} mode {:?} untorn {untorn} {sums:?} \
                 {content:08x}",
                attr.kind,
                attr.mode,
                attr.uid,
                attr.gid,
                attr.nlink,
                attr.size,
                attr.mtime,
                attr.io_mode
            ),
        );
    }
}

/// CRC-32C, by a table: short enough to be right without the one that is under test.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
    let table: Vec<u32> = (0..256).map(|byte| (0..8).fold(byte, |crc, _| step(crc))).collect();
    let next = |crc: u32, byte: &u8| (crc >> 8) ^ table[(crc as u8 ^ byte) as usize];
    !bytes.iter().fold(!0, next)
}

/// The versions that a device states: of its superblock, its label or its log's head.
pub fn version_of(device: &Arc<dyn BlockDevice>) -> Option<(&'static str, u32)> {
    let mut head = AlignedBuf::zeroed(BLOCK);
    device.read_at(&mut head, 0).unwrap();
    let kinds = [(b"BEDPLATE", "volume"), (b"BEDPGRUP", "label"), (b"BEDPLOGD", "log device")];
    let (_, kind) = kinds.into_iter().find(|(magic, _)| head[..8] == magic[..])?;
    Some((kind, u32::from_le_bytes(head[8..12].try_into().unwrap())))
}
