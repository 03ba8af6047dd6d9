//! Telling the device what is free: nothing that a file or a checkpoint has goes, and a full volume
//! refuses nothing because of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::{AlignedBuf, BlockDevice, CrashChoice, SimulatedDevice};
use bedplate_fs::{
    CheckpointOptions, ErrorKind, FileSystem, InodeNo, IoMode, MountOptions, OpenOptions,
};

use crate::support::{Random, device, format, mount_as, options};

const MIB: u64 = 1 << 20;

/// All steps; returns bytes discarded and passed.
fn trim(fs: &FileSystem, run_bytes_min: u64) -> (u64, u64) {
    let (mut from, mut discarded, mut passed) = (Some(0), 0, 0);
    while let Some(at) = from {
        let step = fs.trim(at, run_bytes_min).unwrap();
        assert!(step.is_supported && step.next.is_none_or(|next| next > at), "{step:?}");
        from = step.next;
        (discarded, passed) = (discarded + step.discarded_bytes, passed + step.passed_bytes);
    }
    (discarded, passed)
}

fn write(fs: &FileSystem, path: &str, len: usize, seed: u64) -> AlignedBuf {
    let mut content = AlignedBuf::zeroed(len);
    Random::new(seed).fill(&mut content);
    let file = fs.open(path, &OpenOptions::create()).unwrap();
    file.write_at(&content, 0).unwrap();
    content
}

fn holds(fs: &FileSystem, path: &str, content: &[u8]) {
    let mut read = AlignedBuf::zeroed(content.len());
    let file = fs.open(path, &OpenOptions::read_only()).unwrap();
    assert_eq!(file.read_at(&mut read, 0).unwrap(), content.len());
    assert!(*read == *content, "{path} changed");
}

/// Bytes of the device that are not zero.
fn used_bytes(device: &Arc<dyn BlockDevice>) -> u64 {
    let mut part = AlignedBuf::zeroed(MIB as usize);
    let mut used = 0;
    for at in (0..device.size_bytes()).step_by(MIB as usize) {
        device.read_at(&mut part, at).unwrap();
        used += part.chunks(4096).filter(|block| block.iter().any(|b| *b != 0)).count() as u64;
    }
    used * 4096
}

#[test]
fn s_260_what_was_removed_leaves_the_device_and_nothing_else_does() {
    let device = device(64 * MIB, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let kept = write(&fs, "/kept", 3 * MIB as usize, 1);
    let old = write(&fs, "/old", 4 * MIB as usize, 2);
    fs.create_checkpoint("before", &CheckpointOptions::default()).unwrap();
    write(&fs, "/gone", 8 * MIB as usize, 3);
    fs.unlink(InodeNo::ROOT, b"old").unwrap();
    fs.unlink(InodeNo::ROOT, b"gone").unwrap();
    fs.sync().unwrap();
    let before = used_bytes(&device);
    let (discarded, _) = trim(&fs, 0);
    let free = fs.statfs().free_bytes;
    assert!(discarded >= 8 * MIB && discarded <= free, "{discarded} of {free}");
    let after = used_bytes(&device);
    assert!(before - after >= 8 * MIB, "{before} -> {after}");
    holds(&fs, "/kept", &kept);
    holds(&fs, "/.checkpoints/before/old", &old);
    assert_eq!(fs.statfs().free_bytes, free, "what was withheld is free again");
    drop(fs);
    let fs = mount_as(&device, IoMode::Concurrent);
    holds(&fs, "/kept", &kept);
    holds(&fs, "/.checkpoints/before/old", &old);
    assert!(FileSystem::check(&device, None, false).unwrap().is_sound());
}

#[test]
fn s_260_short_runs_are_left_alone_and_a_read_only_mount_is_refused() {
    let device = device(64 * MIB, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    for n in 0..20 {
        write(&fs, &format!("/f{n}"), 16384, n);
    }
    for n in (0..20).step_by(2) {
        fs.unlink(InodeNo::ROOT, format!("f{n}").as_bytes()).unwrap();
    }
    let (discarded, passed) = trim(&fs, MIB);
    assert!(discarded >= MIB && passed >= 9 * 16384, "{discarded} {passed}");
    drop(fs);
    let read_only = MountOptions { read_only: true, ..options(IoMode::Cached) };
    let fs = FileSystem::mount(device, None, read_only).unwrap();
    assert_eq!(fs.trim(0, 0).unwrap_err().kind, ErrorKind::ReadOnly);
}

/// Ends the other thread, also when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// S-261: programs that fill and empty a small volume meet no "no space" while it is trimmed.
#[test]
fn s_261_a_volume_that_is_trimmed_refuses_nothing_that_fits() {
    let device = device(48 * MIB, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let most = (fs.statfs().available_bytes - 4 * MIB) as usize / 4096 * 4096;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                trim(&fs, 0);
            }
        });
        let _ends = Ends(&ended);
        for round in 0..20 {
            let content = write(&fs, "/large", most, round);
            holds(&fs, "/large", &content);
            fs.unlink(InodeNo::ROOT, b"large").unwrap();
            fs.sync().unwrap();
        }
    });
}

/// I-TRM-1: a removal that is not durable comes back with a power cut, and so do its bytes.
#[test]
fn s_260_what_a_power_cut_brings_back_was_not_discarded() {
    let device = SimulatedDevice::new(48 * MIB, 7);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    format(&shared, 4096);
    let fs = mount_as(&shared, IoMode::Concurrent);
    let content = write(&fs, "/file", 65536, 5);
    fs.sync().unwrap();
    let first = device.operation_count();
    fs.unlink(InodeNo::ROOT, b"file").unwrap();
    trim(&fs, 0);
    fs.sync().unwrap();
    let last = device.operation_count();
    drop(fs);
    let mut brought_back = 0;
    for after in first..=last {
        for choice in
            [CrashChoice::LoseAll, CrashChoice::KeepAll, CrashChoice::Seeded(after as u64)]
        {
            let image: Arc<dyn BlockDevice> = device.crash_image(after, &choice);
            let fs = mount_as(&image, IoMode::Concurrent);
            if fs.resolve("/file").is_ok() {
                holds(&fs, "/file", &content);
                brought_back += 1;
            }
        }
    }
    assert!(brought_back > 0, "no cut came before the removal was durable");
}

/// S-378: what is removed leaves the device by itself where that is asked for, and else stays.
#[test]
fn s_378_what_becomes_free_is_discarded_where_that_is_asked_for() {
    for is_on in [false, true] {
        let device = device(64 * MIB, 512);
        format(&device, 4096);
        let options = MountOptions {
            discard: is_on,
            sync_interval: std::time::Duration::from_millis(10),
            ..options(IoMode::Concurrent)
        };
        let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
        let kept = write(&fs, "/kept", 3 * MIB as usize, 1);
        let old = write(&fs, "/old", 4 * MIB as usize, 2);
        fs.create_checkpoint("before", &CheckpointOptions::default()).unwrap();
        write(&fs, "/gone", 8 * MIB as usize, 3);
        fs.sync().unwrap();
        let before = used_bytes(&device);
        fs.unlink(InodeNo::ROOT, b"old").unwrap();
        fs.unlink(InodeNo::ROOT, b"gone").unwrap();
        let began = std::time::Instant::now();
        let patience = std::time::Duration::from_secs(if is_on { 60 } else { 1 });
        while before.saturating_sub(used_bytes(&device)) < 7 * MIB && began.elapsed() < patience {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let left = before.saturating_sub(used_bytes(&device));
        assert_eq!(left >= 6 * MIB, is_on, "{left} bytes left the device");
        holds(&fs, "/kept", &kept);
        holds(&fs, "/.checkpoints/before/old", &old);
        fs.unmount().unwrap();
        assert!(FileSystem::check(&device, None, false).unwrap().is_sound());
    }
}
