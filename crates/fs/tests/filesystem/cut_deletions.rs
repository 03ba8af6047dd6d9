//! Deletions of checkpoints that a crash cut short: the sync daemon goes on with them behind the
//! next mount.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bedplate_block::{BlockDevice, CrashChoice, MemoryDevice, SimulatedDevice, SimulatedOptions};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, CloneSource, ErrorKind, FileSystem, IoMode, Limits,
    MountOptions, OpenOptions,
};
use parking_lot::Mutex;

use crate::checkpoints::{sound, write};
use crate::deletion::{BESIDE, Shown, shown};
use crate::interrupted::{Park, mount_with};
use crate::support::{format, options};

/// Waits until nothing is being deleted any more and so much is free.
pub fn ends(fs: &FileSystem, free: u64, context: &str) {
    let began = Instant::now();
    loop {
        fs.sync().unwrap();
        let (left, now) = (fs.checkpoint_counts().deleting, fs.statfs().free_bytes);
        if left == 0 && now == free {
            return;
        }
        let told = format!("{context}: {left} deletions are left, {now} bytes of {free} are free");
        assert!(began.elapsed() < Duration::from_secs(60), "S-484: {told}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a power cut left in the middle of the deletion of the checkpoint `base`, and what comes of
/// that in the end.
struct Cut {
    /// The volume, unmounted, before the deletion.
    before: Arc<MemoryDevice>,
    image: Arc<MemoryDevice>,
    shown: Shown,
    free: u64,
}

/// Options under which a step has so many images, and nothing is done by the sync daemon.
fn by_hand(images_per_record: usize) -> MountOptions {
    let limits = Limits { images_per_record, deletes_behind: false, ..Limits::default() };
    MountOptions { limits, ..options(IoMode::Direct) }
}

/// As [`by_hand`], with the sync daemon.
fn behind(images_per_record: usize) -> MountOptions {
    let limits = Limits { images_per_record, ..Limits::default() };
    MountOptions { limits, ..options(IoMode::Direct) }
}

/// Writes `count` pieces of `/f`, far apart.
fn scattered(fs: &FileSystem, count: u64, bytes: usize, fill: u8) {
    let piece = vec![fill; bytes];
    (0..count).for_each(|at| write(fs, "/f", at * 2 * bytes as u64, &piece, IoMode::Direct));
}

/// A file of some pieces that changed after each of three checkpoints, and a cut after so many steps
/// of the deletion of the middle one, each of which was durable.
fn cut(size: u64, (count, bytes): (u64, usize), steps: u32) -> Cut {
    let device = SimulatedDevice::new(size, 1);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
    format(&shared, 4096);
    let fs = FileSystem::mount(Arc::clone(&shared), None, by_hand(2)).unwrap();
    scattered(&fs, count, bytes, 1);
    for (name, fill) in [("older", 2), ("base", 3), ("newer", 4)] {
        fs.create_checkpoint(name, &CheckpointOptions::default()).unwrap();
        // What the newest has is little.
        scattered(&fs, if name == "newer" { 2 } else { count }, bytes, fill);
    }
    // The log has the deletion alone.
    fs.unmount().unwrap();
    let before = device.crash_image(device.operation_count(), &CrashChoice::KeepAll);
    let at: Arc<Mutex<Vec<usize>>> = Arc::default();
    let mounted: Arc<OnceLock<std::sync::Weak<FileSystem>>> = Arc::default();
    let (own, seen, log) = (Arc::clone(&mounted), Arc::clone(&at), Arc::clone(&device));
    let between = move |what: &'static str| {
        if let (Some(fs), "deletion") = (own.get().and_then(std::sync::Weak::upgrade), what) {
            fs.sync().unwrap();
            seen.lock().push(log.operation_count());
        }
    };
    let limits = Limits {
        images_per_record: 2,
        deletes_behind: false,
        between_records: Some(Arc::new(between)),
        ..Limits::default()
    };
    let options = MountOptions { limits, ..options(IoMode::Direct) };
    let fs = Arc::new(FileSystem::mount(shared, None, options).unwrap());
    mounted.set(Arc::downgrade(&fs)).unwrap();
    fs.delete_checkpoint("base").unwrap();
    fs.sync().unwrap();
    let (shown, free) = (shown(&fs), fs.statfs().free_bytes);
    let after = at.lock()[steps as usize - 1];
    Cut { before, image: device.crash_image(after, &CrashChoice::KeepAll), shown, free }
}

impl Cut {
    fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.image) as _
    }

    /// Another device of the same content.
    fn copy(&self) -> Arc<dyn BlockDevice> {
        MemoryDevice::from_snapshot(&self.image.snapshot(), self.image.geometry())
    }

    /// Mounts it; nothing is done by the sync daemon.
    fn mount(&self) -> FileSystem {
        FileSystem::mount(self.device(), None, by_hand(2)).unwrap()
    }
}

/// What a mount reads and writes.
fn cost(image: &Arc<MemoryDevice>) -> (u64, u64) {
    let before = image.counters();
    let shared: Arc<dyn BlockDevice> = Arc::clone(image) as _;
    let _fs = FileSystem::mount(shared, None, by_hand(2)).unwrap();
    let now = image.counters();
    (now.reads - before.reads, now.writes - before.writes)
}

/// S-484: how much a mount reads and writes does not follow from how much of a deletion is left: it is
/// a few pages more than where none is.
#[test]
fn s_484_a_mount_does_not_wait_for_a_deletion_that_was_cut() {
    let costs = |count: u64| {
        let cut = cut(128 << 20, (count, 4096), 2);
        let costs = (cost(&cut.before), cost(&cut.image));
        assert_eq!(cut.mount().checkpoint_counts().deleting, 1, "it goes on later");
        costs
    };
    let more = |count: u64| {
        let (whole, cut) = costs(count);
        println!("{count} images: reads and writes {whole:?} became {cut:?}");
        (cut.0 - whole.0.min(cut.0), cut.1 - whole.1.min(cut.1))
    };
    let (few, many) = (more(40), more(2000));
    assert!(many.0 <= few.0 + 16 && many.1 <= few.1 + 16, "S-484: {few:?} became {many:?}");
}

/// S-484: the deletion ends by itself, over a second crash and an unmount, and gives everything back;
/// all show the same at every point.
#[test]
fn s_484_a_deletion_that_was_cut_ends_by_itself() {
    for steps in [1, 5, 9] {
        let cut = cut(32 << 20, (24, 4096), steps);
        let context = format!("cut after step {steps}");
        let device = SimulatedDevice::over(&cut.image.snapshot(), &SimulatedOptions::default());
        let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as _;
        let fs = FileSystem::mount(Arc::clone(&shared), None, by_hand(2)).unwrap();
        assert_eq!(shown(&fs), cut.shown, "{context}");
        assert!(fs.delete_step().unwrap() && fs.checkpoint_counts().deleting == 1, "{context}");
        drop(fs);
        let image = device.crash_image(device.operation_count(), &CrashChoice::LoseAll);
        let image: Arc<dyn BlockDevice> = image;
        sound(&image);
        let fs = FileSystem::mount(Arc::clone(&image), None, by_hand(2)).unwrap();
        assert_eq!(shown(&fs), cut.shown, "{context}, and again");
        assert!(fs.delete_step().unwrap() && fs.checkpoint_counts().deleting == 1, "{context}");
        fs.unmount().unwrap();
        sound(&image);
        // Some way, or to its end: the unmount does not wait for it.
        FileSystem::mount(Arc::clone(&image), None, behind(2)).unwrap().unmount().unwrap();
        sound(&image);
        let fs = FileSystem::mount(Arc::clone(&image), None, behind(2)).unwrap();
        ends(&fs, cut.free, &context);
        assert_eq!(shown(&fs), cut.shown, "{context}, at the end");
        fs.unmount().unwrap();
        sound(&image);
    }
}

/// S-484: what comes while the sync daemon stands between two steps meets no checkpoint, and the
/// deletion ends.
#[test]
fn s_484_what_comes_behind_a_mount_meets_no_checkpoint() {
    let cut = cut(32 << 20, (10, 4096), 1);
    for (name, beside) in BESIDE {
        let image = cut.copy();
        let park: Arc<Park> = Arc::default();
        park.state.lock().at = Some(("deletion", 1));
        // The mount is there while the daemon stands.
        let fs = mount_with(&image, &park, 2);
        assert!(park.wait(), "the daemon goes on with it");
        assert_eq!(fs.checkpoint_counts().deleting, 1, "{name}");
        beside(&fs).unwrap_or_else(|e| panic!("{name}: {e}"));
        fs.sync().unwrap();
        let after = shown(&fs);
        for (checkpoint, tree) in &cut.shown.checkpoints {
            if let Some(now) = after.checkpoints.get(checkpoint) {
                assert_eq!(now, tree, "{name}: '{checkpoint}'");
            }
        }
        park.go_on();
        let began = Instant::now();
        while fs.checkpoint_counts().deleting > 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "S-484: {name}: it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(shown(&fs), after, "{name}");
        fs.unmount().unwrap();
        sound(&image);
    }
}

/// S-485: what finds no space takes what a deletion frees that goes on behind the mount, and no more
/// steps of it than it needs.
#[test]
fn s_485_a_full_volume_goes_on_with_a_deletion() {
    let cut = cut(32 << 20, (30, 64 << 10), 1);
    let fs = cut.mount();
    let grow = |path: &str, bytes: u64| {
        let file = fs.open(path, &OpenOptions::create()).unwrap();
        file.allocate(AllocateMode::Preallocate { keep_size: false }, 0, bytes)
    };
    let there = fs.statfs().available_bytes;
    let comes = cut.free - fs.statfs().free_bytes;
    assert!(comes > 1 << 20, "the deletion frees something: {comes} bytes");
    grow("/some", there + (256 << 10)).expect("S-485: a part of what becomes free is enough");
    assert_eq!(fs.checkpoint_counts().deleting, 1, "S-485: it goes on no further than needed");
    grow("/more", comes - (768 << 10)).expect("S-485: most of what becomes free is needed");
    assert_eq!(fs.checkpoint_counts().deleting, 1, "a little of it is left");
    let refused = grow("/too-much", comes).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoSpace, "{refused}");
    assert_eq!(fs.checkpoint_counts().deleting, 0, "S-485: it is refused when nothing is left");
    assert_eq!(shown(&fs).checkpoints, cut.shown.checkpoints);
    fs.unmount().unwrap();
    sound(&cut.device());
}

/// S-485: a file system that has too little room to become smaller ends a deletion first.
#[test]
fn s_485_a_shrink_ends_a_deletion_where_it_needs_the_room() {
    let cut = cut(48 << 20, (160, 64 << 10), 1);
    let fs = cut.mount();
    let size = 32 << 20;
    let comes = cut.free - fs.statfs().free_bytes;
    assert!(comes > 4 << 20, "the deletion frees something: {comes} bytes");
    while !fs.shrink(size).expect("S-485: there is room once it has ended").is_done {}
    assert_eq!((fs.info().size_bytes, fs.checkpoint_counts().deleting), (size, 0));
    assert_eq!(shown(&fs), cut.shown);
    fs.unmount().unwrap();
    sound(&cut.device());
}

/// S-486: a clone is there while a deletion goes on; what it was made of goes behind that.
#[test]
fn s_486_a_clone_does_not_wait_for_a_deletion() {
    let cut = cut(32 << 20, (24, 4096), 1);
    let fs = cut.mount();
    fs.clone_files(&CloneSource::Present("/f".into()), "/clone").unwrap();
    assert_eq!(fs.checkpoint_counts().deleting, 2, "S-486: both go on");
    assert_eq!(shown(&fs).checkpoints, cut.shown.checkpoints);
    fs.unmount().unwrap();
    sound(&cut.device());
    let fs = FileSystem::mount(cut.device(), None, behind(2)).unwrap();
    fs.remove("/clone").unwrap();
    ends(&fs, cut.free, "after the clone");
    assert_eq!(shown(&fs), cut.shown);
    fs.unmount().unwrap();
    sound(&cut.device());
}
