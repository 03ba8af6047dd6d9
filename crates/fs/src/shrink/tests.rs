//! File systems that become smaller: everything that they show stays, of the present, of clones and
//! of checkpoints, and nothing that counts is left beyond the new end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, MemoryDevice, SimulatedDevice, SimulatedOptions, Snapshot,
};
use bedplate_store::{BlockNo, PlantedBug, Run, plant};

use crate::{
    AllocateMode, CheckpointOptions, CloneSource, ErrorKind, FileKind, FileSystem, FormatOptions,
    InodeNo, IoMode, Limits, MountOptions, NewFile, OpenOptions, Result,
};

#[path = "copies_tests.rs"]
mod copies;

const MIB: u64 = 1 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % n
    }
}

fn format(device: &Arc<dyn BlockDevice>, block_size: u32) {
    let options = FormatOptions { block_size, ..FormatOptions::default() };
    FileSystem::format(device, None, &options).unwrap();
}

fn mount(device: &Arc<dyn BlockDevice>) -> FileSystem {
    mount_with(device, Limits::default())
}

fn mount_with(device: &Arc<dyn BlockDevice>, limits: Limits) -> FileSystem {
    let options = MountOptions {
        limits,
        mode: IoMode::Concurrent,
        sync_interval: Duration::from_secs(3600),
        ..MountOptions::default()
    };
    FileSystem::mount(Arc::clone(device), None, options).unwrap()
}

fn fill(fs: &FileSystem, path: &str, offset: u64, len: u64, seed: u64) {
    let mut buf = AlignedBuf::zeroed(len as usize);
    let mut random = Random(seed);
    buf.chunks_mut(4).for_each(|part| {
        let word = (random.below(1 << 30) as u32 | 1).to_le_bytes();
        part.copy_from_slice(&word[..part.len()]);
    });
    let file = fs.open(path, &OpenOptions::create()).unwrap();
    file.write_at(&buf, offset).unwrap();
}

fn read(fs: &FileSystem, path: &str) -> Vec<u8> {
    let file = fs.open(path, &OpenOptions::read_only()).unwrap();
    let mut buf = AlignedBuf::zeroed(file.size() as usize);
    assert_eq!(file.read_at(&mut buf, 0).unwrap() as u64, file.size());
    buf.to_vec()
}

/// All files by path, those of checkpoints too.
fn everything(fs: &FileSystem) -> BTreeMap<String, Vec<u8>> {
    let mut roots = vec![String::new()];
    roots.extend(
        fs.checkpoints()
            .iter()
            .map(|one| format!("/.checkpoints/{}", std::str::from_utf8(&one.name).unwrap())),
    );
    let mut files = BTreeMap::new();
    for root in roots {
        let dir = if root.is_empty() { InodeNo::ROOT } else { fs.resolve(&root).unwrap().ino };
        for entry in fs.read_dir(dir, None, 1000).unwrap() {
            let path = format!("{root}/{}", std::str::from_utf8(&entry.name).unwrap());
            if entry.kind == FileKind::File {
                files.insert(path.clone(), read(fs, &path));
            }
        }
    }
    files
}

fn shrink(fs: &FileSystem, size: u64) -> Result<u64> {
    let mut moved = 0;
    loop {
        let step = fs.shrink(size)?;
        moved += step.moved_bytes;
        if step.is_done {
            assert_eq!((step.size_bytes, step.left_bytes), (size, 0));
            return Ok(moved);
        }
    }
}

/// Spoils the device from a byte on.
fn spoil(device: &Arc<dyn BlockDevice>, from: u64) {
    let mut buf = AlignedBuf::zeroed(MIB as usize);
    buf.fill(0xa5);
    (from..device.size_bytes())
        .step_by(MIB as usize)
        .for_each(|at| device.write_at(&buf, at).unwrap());
}

/// A copy of a device that ends at `size`.
fn cut_off(device: &Arc<dyn BlockDevice>, size: u64) -> Arc<dyn BlockDevice> {
    let shorter: Arc<dyn BlockDevice> = MemoryDevice::new(size);
    let mut buf = AlignedBuf::zeroed(MIB as usize);
    for at in (0..size).step_by(MIB as usize) {
        device.read_at(&mut buf, at).unwrap();
        shorter.write_at(&buf, at).unwrap();
    }
    shorter
}

fn assert_sound(device: &Arc<dyn BlockDevice>) {
    for report in [FileSystem::check(device, None, false), FileSystem::check_data(device, None)] {
        let report = report.unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}

/// Makes files that share blocks in all ways there are.
fn populate(fs: &FileSystem, seed: u64) {
    let mut random = Random(seed);
    let paths = ["/a", "/b", "/c", "/d"];
    for (n, path) in paths.iter().enumerate() {
        fill(fs, path, 0, 600 << 10, n as u64 + 5);
    }
    let summed = fs.open("/d", &OpenOptions::create()).unwrap();
    fs.set_integrity(summed.ino(), true).unwrap();
    let unwritten = fs.open("/e", &OpenOptions::create()).unwrap();
    unwritten.allocate(AllocateMode::Preallocate { keep_size: false }, 0, 3 * MIB).unwrap();
    drop((summed, unwritten));
    for round in 0..60 {
        let path = paths[random.below(4) as usize];
        let (at, len) = (random.below(150) * 4096, (1 + random.below(40)) * 4096);
        match random.below(10) {
            0..=4 => fill(fs, path, at, len, random.below(1 << 20)),
            5 => {
                let file = fs.open(path, &OpenOptions::create()).unwrap();
                file.allocate(AllocateMode::PunchHole, at, len).unwrap();
            }
            6 => fill(fs, "/e", at, len, random.below(1 << 20)),
            7 => {
                let name = format!("c{round}");
                fs.create_checkpoint(&name, &CheckpointOptions::default()).unwrap();
            }
            8 => {
                let from = CloneSource::Present(path.into());
                fs.clone_files(&from, format!("/clone{round}")).unwrap();
            }
            _ => {
                let all = fs.checkpoints();
                if all.len() > 2 {
                    let victim = &all[random.below(all.len() as u64) as usize];
                    fs.delete_checkpoint(&victim.name).unwrap();
                }
            }
        }
    }
    fs.sync().unwrap();
}

/// Runs `work` while nothing is put before a byte of the volume.
fn behind<T>(fs: &FileSystem, bytes: u64, block: u32, work: impl FnOnce() -> T) -> T {
    let run = Run { start: BlockNo(0), blocks: bytes / u64::from(block) };
    let held = fs.state().allocator().withhold(std::iter::once(run));
    let done = work();
    fs.state().allocator().free(&held, 0);
    done
}

/// S-372, S-374, I-CKP-9, I-SHR-1.
fn shrinks(seed: u64, block: u32, window_blocks: usize) {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(160 * MIB);
    format(&device, block);
    let fs = mount_with(&device, Limits { extents_per_record: window_blocks, ..Limits::default() });
    behind(&fs, 60 * MIB, block, || populate(&fs, seed));
    let before = everything(&fs);
    assert!(fs.checkpoints().len() >= 2 && before.len() > 10, "{}", before.len());
    let used = |fs: &FileSystem| fs.statfs().total_bytes - fs.statfs().free_bytes;
    let used_before = used(&fs);
    // Open while all moves.
    let open: Vec<_> = before
        .iter()
        .map(|(path, bytes)| (fs.open(path, &OpenOptions::read_only()).unwrap(), bytes))
        .collect();
    let size = 64 * MIB;
    let plan = fs.plan_shrink(size).unwrap();
    assert!(plan.lacking_bytes == 0 && plan.checkpoint_bytes > 0, "{plan:?}");
    shrink(&fs, size).unwrap();
    spoil(&device, size);
    assert_eq!(fs.info().size_bytes, size);
    for (file, bytes) in &open {
        let mut buf = AlignedBuf::zeroed(bytes.len());
        file.read_at(&mut buf, 0).unwrap();
        assert!(buf[..] == bytes[..], "S-374: what was open shows what it showed");
    }
    drop(open);
    assert!(everything(&fs) == before, "S-374");
    assert!(used(&fs) <= used_before + MIB, "S-374: what is shared stays so");
    fill(&fs, "/new", 0, MIB, 9);
    let all = everything(&fs);
    fs.unmount().unwrap();
    assert_sound(&device);
    let shorter = cut_off(&device, size);
    assert_sound(&shorter);
    let fs = mount(&shorter);
    assert!(everything(&fs) == all, "S-372: nothing beyond the new end counts");
    fs.unmount().unwrap();
}

#[test]
fn s_372_s_374_a_smaller_file_system_shows_what_it_showed() {
    shrinks(1, 4096, 1024);
    // Windows of few blocks cut through rows.
    (2..=4).for_each(|seed| shrinks(seed, 4096, 4 + seed as usize));
    shrinks(5, 1024, 13);
}

fn make(fs: &FileSystem, n: u64) {
    let name = format!("a name of some length {n}");
    let new = NewFile::default();
    let ino = fs.make(InodeNo::ROOT, name.as_bytes(), FileKind::File, new, 0).unwrap().ino;
    fs.set_xattr(ino, b"user.large", &[n as u8; 50_000], false, false).unwrap();
}

/// I-REG-3: the metadata move too, and their lists, while they are in use.
#[test]
fn s_372_metadata_beyond_the_new_end_move() {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(160 * MIB);
    format(&device, 4096);
    let fs = mount(&device);
    behind(&fs, 60 * MIB, 4096, || {
        for n in 0..120 {
            make(&fs, n);
        }
        fill(&fs, "/data", 0, 2 * MIB, 3);
        fs.state().metadata_commit().unwrap();
    });
    assert!(fs.plan_shrink(64 * MIB).unwrap().metadata_bytes > MIB, "they grew beyond");
    let content = read(&fs, "/data");
    shrink(&fs, 64 * MIB).unwrap();
    spoil(&device, 64 * MIB);
    let there = |fs: &FileSystem| {
        assert!(read(fs, "/data") == content);
        for n in (0..120).step_by(7) {
            let name = format!("a name of some length {n}");
            fs.lookup(InodeNo::ROOT, name.as_bytes()).unwrap();
        }
    };
    there(&fs);
    fs.unmount().unwrap();
    assert_sound(&device);
    there(&mount(&cut_off(&device, 64 * MIB)));
}

/// S-373: a power cut at any moment leaves one of the two sizes, and all that there was.
fn cuts(bug: Option<PlantedBug>) -> Option<String> {
    let options = SimulatedOptions { seed: 7, ..SimulatedOptions::default() };
    let simulated = SimulatedDevice::over(&Snapshot::empty(160 * MIB), &options);
    let device: Arc<dyn BlockDevice> = simulated.clone();
    format(&device, 4096);
    let fs = mount_with(&device, Limits { extents_per_record: 60, ..Limits::default() });
    behind(&fs, 60 * MIB, 4096, || {
        populate(&fs, 11);
        (0..120).for_each(|n| {
            make(&fs, n);
        });
        fs.state().metadata_commit().unwrap();
    });
    let before: BTreeMap<_, _> =
        everything(&fs).into_iter().filter(|(path, _)| !path.contains("a name")).collect();
    let (first, size) = (simulated.operation_count(), 64 * MIB);
    plant(bug);
    let shrunk = shrink(&fs, size);
    plant(None);
    if let Err(error) = shrunk {
        return Some(error.to_string());
    }
    let last = simulated.operation_count();
    let step = ((last - first) / 20).max(1);
    let mut sizes = [0, 0];
    // The last operations are those of the superblocks: all of them.
    let cuts = (first..last).filter(|after| (after - first) % step == 0 || after + 12 > last);
    for after in cuts.chain([last]) {
        let choices = [CrashChoice::LoseAll, CrashChoice::Seeded(after as u64)];
        for choice in choices {
            let image: Arc<dyn BlockDevice> = simulated.crash_image(after, &choice);
            let found = judge(&image, size, &before, after == last);
            match found {
                Ok(new) => sizes[usize::from(new)] += 1,
                Err(what) => return Some(format!("cut after {after} of {last}: {what}")),
            }
        }
    }
    assert!(sizes[0] > 10 && sizes[1] > 2, "both sizes are met: {sizes:?}");
    None
}

/// Mounts what a cut left; returns whether it has the new size.
fn judge(
    image: &Arc<dyn BlockDevice>,
    size: u64,
    before: &BTreeMap<String, Vec<u8>>,
    ended: bool,
) -> std::result::Result<bool, String> {
    let options = MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() };
    let fs = FileSystem::mount(Arc::clone(image), None, options).map_err(|e| e.to_string())?;
    let has = fs.info().size_bytes;
    if has == size {
        spoil(image, size);
    }
    let mut seen = BTreeMap::new();
    for path in before.keys() {
        let file = fs.open(path.as_str(), &OpenOptions::read_only()).map_err(|e| e.to_string())?;
        let mut buf = AlignedBuf::zeroed(file.size() as usize);
        file.read_at(&mut buf, 0).map_err(|e| format!("{path}: {e}"))?;
        seen.insert(path.clone(), buf.to_vec());
    }
    if seen != *before {
        return Err("files show something else".into());
    }
    fs.unmount().map_err(|e| e.to_string())?;
    let report = FileSystem::check(image, None, false).map_err(|e| e.to_string())?;
    if !report.findings.is_empty() {
        return Err(format!("{:?}", report.findings));
    }
    if has != size && (has != 160 * MIB || ended) {
        return Err(format!("{has} bytes is neither size, or the shrink had returned"));
    }
    Ok(has == size)
}

#[test]
fn s_373_a_power_cut_leaves_one_of_the_two_sizes_whole() {
    assert_eq!(cuts(None), None);
}

/// What a mistake does to a file system that becomes smaller.
#[test]
fn s_373_planted_mistakes_are_found() {
    for bug in [PlantedBug::ShrinkBeforeMoved, PlantedBug::RegionMovedWithoutCopy] {
        let found = std::panic::catch_unwind(|| cuts(Some(bug)));
        plant(None);
        assert!(found.is_err() || found.is_ok_and(|found| found.is_some()), "{bug:?}");
    }
    plant(Some(PlantedBug::MovedMapStays));
    let found = std::panic::catch_unwind(|| shrinks(1, 4096, 1024));
    plant(None);
    assert!(found.is_err(), "MovedMapStays");
}

/// S-375: too little room is told before anything moves, with what lacks; a shrink that is given up
/// leaves the size and all the space.
#[test]
fn s_375_a_shrink_that_cannot_be_is_refused_and_one_that_is_given_up_leaves_the_space() {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(160 * MIB);
    format(&device, 4096);
    let fs = mount(&device);
    fill(&fs, "/data", 0, 90 * MIB, 3);
    fs.create_checkpoint("all", &CheckpointOptions::default()).unwrap();
    let free = fs.statfs().free_bytes;
    let error = fs.shrink(64 * MIB).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoSpace);
    for part in ["lack", "of files", "1 checkpoints", "or more"] {
        assert!(error.message.contains(part), "{error}");
    }
    assert_eq!(fs.statfs().free_bytes, free, "nothing has changed");
    for (size, part) in [(160 * MIB, "smaller"), (8 * MIB, "its own parts")] {
        let error = fs.shrink(size).unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains(part), "{error}");
    }
    let least = fs.plan_shrink(64 * MIB).unwrap().size_bytes_min;
    assert!((91 * MIB..100 * MIB).contains(&least), "{least}");
    // One step, and no more.
    let fence = BlockNo(100 * MIB / 4096);
    *fs.state().lock_size() = fs.state().begin_shrinking(fence);
    assert!(fs.statfs().free_bytes < free, "what lies beyond is not for use");
    assert_eq!(fs.grow().unwrap_err().kind, ErrorKind::Busy);
    fs.stop_shrink();
    assert_eq!(fs.statfs().free_bytes, free);
    assert_eq!(fs.info().size_bytes, 160 * MIB);
    let room = fs.statfs().available_bytes / MIB * MIB;
    fill(&fs, "/more", 0, room, 4);
    fs.sync().unwrap();
    fs.unlink(InodeNo::ROOT, b"more").unwrap();
    shrink(&fs, least).unwrap();
    assert_eq!(fs.grow().unwrap(), 160 * MIB, "and it grows again");
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// Ends other threads, also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// S-376: programs go on while the file system becomes smaller: they write, make checkpoints and
/// clones, and delete.
#[test]
fn s_376_programs_go_on_while_a_file_system_becomes_smaller() {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(256 * MIB);
    format(&device, 4096);
    let fs = mount(&device);
    behind(&fs, 100 * MIB, 4096, || {
        populate(&fs, 5);
        (0..3).for_each(|n| fill(&fs, &format!("/w{n}"), 0, 4 * MIB, n));
    });
    fs.sync().unwrap();
    let (ended, fs) = (AtomicBool::new(false), &fs);
    std::thread::scope(|scope| {
        let ends = Ends(&ended);
        for n in 0..2u64 {
            let ended = &ended;
            scope.spawn(move || {
                let (mut random, path) = (Random(n + 40), format!("/w{n}"));
                let mut expected = read(fs, &path);
                while !ended.load(Ordering::Relaxed) {
                    let (at, len) = (random.below(1000) * 4096, (1 + random.below(4)) * 4096);
                    let seed = random.below(1 << 20);
                    fill(fs, &path, at, len, seed);
                    let seen = read(fs, &path);
                    let range = at as usize..(at + len) as usize;
                    expected.resize(seen.len(), 0);
                    expected[range.clone()].copy_from_slice(&seen[range]);
                    assert!(seen == expected, "S-376: a byte changed that nothing wrote");
                }
            });
        }
        scope.spawn(|| {
            for n in 0.. {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                fs.create_checkpoint(format!("live{n}"), &CheckpointOptions::default()).unwrap();
                let from = CloneSource::Present("/w2".into());
                fs.clone_files(&from, format!("/copy{n}")).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                fs.unlink(InodeNo::ROOT, format!("copy{n}").as_bytes()).unwrap();
                fs.delete_checkpoint(format!("live{n}").as_bytes()).unwrap();
            }
        });
        for size in [180 * MIB, 140 * MIB, 100 * MIB] {
            shrink(fs, size).unwrap();
        }
        drop(ends);
    });
    assert_eq!(fs.info().size_bytes, 100 * MIB);
    let all = everything(fs);
    fs.sync().unwrap();
    let after = cut_off(&device, 100 * MIB);
    assert!(everything(&mount(&after)) == all);
    assert_sound(&after);
}
