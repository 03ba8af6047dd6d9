//! Files that grow in small steps through opens that let their writes wait, as those of a mount do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bedplate_block::{AlignedBuf, BlockDevice, HookedDevice, QueueOptions};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, File, FileSystem, InodeNo, IoMode, Limits, MountOptions,
    OpenOptions, Queue, RenameMode, SetAttr, Timestamp,
};

use crate::common::assert_sound;
use crate::odd::Refusing;
use crate::support::{device, format, mount_as, options};

pub const MODES: [IoMode; 3] = [IoMode::Direct, IoMode::Concurrent, IoMode::ConcurrentCache];
pub const PAGE: usize = 8192;

pub fn growing() -> OpenOptions {
    OpenOptions { delay_writes: true, ..OpenOptions::create() }
}

pub struct Growing {
    pub device: Arc<dyn BlockDevice>,
    pub fs: FileSystem,
    pub file: File,
    /// What the file holds.
    pub model: Vec<u8>,
}

impl Growing {
    pub fn new(mode: IoMode) -> Self {
        let device = device(64 << 20, 512);
        format(&device, 4096);
        let fs = mount_as(&device, mode);
        let file = fs.open("/f", &growing()).unwrap();
        Self { device, fs, file, model: Vec::new() }
    }

    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.file.write_at(bytes, at as u64).unwrap();
        self.model.resize(self.model.len().max(at + bytes.len()), 0);
        self.model[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn append(&mut self, len: usize, fill: u8) {
        self.write(self.model.len(), &AlignedBuf::from_slice(&vec![fill; len]));
    }

    pub fn waiting(&self) -> u64 {
        self.fs.info().delayed_bytes
    }

    pub fn holds(file: &File, model: &[u8], what: &str) {
        assert_eq!(file.size(), model.len() as u64, "{what}");
        let mut buf = AlignedBuf::zeroed(model.len().next_multiple_of(4096) + 4096);
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), model.len(), "{what}");
        let differs = (0..model.len()).find(|at| buf[*at] != model[*at]);
        assert_eq!(differs, None, "{what}: the first byte that differs");
        let mut odd = vec![0; model.len().saturating_sub(100)];
        file.read_at(&mut odd, 50).unwrap();
        assert!(odd == model[50..model.len() - 50], "{what}: read at an odd offset");
    }

    /// Requires the file to hold what was written, now and on a volume whose process died.
    pub fn compare_after_death(self, what: &str) {
        let Self { device, fs, file, model } = self;
        Self::holds(&file, &model, what);
        let image = Arc::new(AlignedBuf::zeroed(device.size_bytes() as usize));
        let mut image = Arc::try_unwrap(image).unwrap();
        device.read_at(&mut image, 0).unwrap();
        drop((file, fs));
        device.write_at(&image, 0).unwrap();
        assert_sound(&device);
        let fs = mount_as(&device, IoMode::Concurrent);
        Self::holds(&fs.open("/f", &OpenOptions::read_only()).unwrap(), &model, what);
    }
}

/// Each write of 8 KiB that made a file grow was a write of the device and a record.
#[test]
fn s_300_a_file_that_grows_in_pages_is_written_in_large_pieces() {
    for mode in MODES {
        let mut it = Growing::new(mode);
        let before = it.device.counters();
        for round in 0..512 {
            it.append(PAGE, round as u8);
            if round % 97 == 0 {
                Growing::holds(&it.file, &it.model, "read while it grows");
            }
        }
        let misaligned = it.file.counters().misaligned;
        it.append(700, 9);
        it.append(61, 10);
        assert_eq!(it.file.counters().misaligned - misaligned, 2, "S-31: {mode}");
        let attr = it.file.attr().unwrap();
        assert_eq!((attr.size, it.file.counters().delayed), (it.model.len() as u64, 514), "{mode}");
        it.file.sync_data().unwrap();
        let after = it.device.counters();
        let (writes, flushes) = (after.writes - before.writes, after.flushes - before.flushes);
        assert!(writes <= 16 && flushes <= 2, "{mode}: {writes} writes, {flushes} flushes");
        assert_eq!(it.file.extents().unwrap().len(), 1, "{mode}: it lies in one piece");
        assert_eq!(it.waiting(), 0);
        it.compare_after_death(&mode.to_string());
    }
}

/// In the library, unless it is asked for, with `O_DSYNC`, with `O_DIRECT` and where the tunable
/// says so nothing waits.
#[test]
fn s_300_only_writes_that_may_wait_do() {
    let none = MountOptions { delay_writes_bytes: 0, ..options(IoMode::Concurrent) };
    let cases = [
        (OpenOptions::create(), options(IoMode::Concurrent)),
        (OpenOptions { data_sync: true, ..growing() }, options(IoMode::Concurrent)),
        (OpenOptions { direct_flag: true, ..growing() }, options(IoMode::Concurrent)),
        (growing(), options(IoMode::Cached)),
        (growing(), none),
    ];
    for (open, mount) in cases {
        let device = device(32 << 20, 512);
        format(&device, 4096);
        let fs = FileSystem::mount(Arc::clone(&device), None, mount).unwrap();
        let file = fs.open("/f", &open).unwrap();
        file.write_at(&AlignedBuf::from_slice(&[1; PAGE]), 0).unwrap();
        assert_eq!((file.counters().delayed, fs.info().delayed_bytes), (0, 0), "{open:?}");
    }
}

/// S-20, S-50: what needs the bytes on the device has them, and nothing else of the file is lost.
#[test]
fn s_301_whatever_else_changes_the_file_finds_what_waited() {
    for mode in MODES {
        for other in 0..12 {
            let mut it = Growing::new(mode);
            it.append(PAGE * 3 + 100, 1);
            it.file.sync_data().unwrap();
            for round in 0..5u8 {
                it.append(PAGE, 10 + round);
                it.append(333, 20 + round);
                change(&mut it, other, round);
                it.append(500, 30 + round);
                Growing::holds(&it.file, &it.model, &format!("{mode}, change {other}"));
            }
            it.file.sync_all().unwrap();
            it.compare_after_death(&format!("{mode}, change {other}"));
        }
    }
}

/// Changes a file whose end waits in memory.
pub fn change(it: &mut Growing, which: u32, round: u8) {
    let end = it.model.len();
    match which {
        0 => it.write(end - 300, &[40 + round; 200]),
        1 => it.write(end - 100, &[41 + round; 400]),
        2 => it.write((end - 6000) / 4096 * 4096, &AlignedBuf::from_slice(&[42 + round; 4096])),
        3 => {
            it.file.set_size(end as u64 - 150).unwrap();
            it.model.truncate(end - 150);
        }
        4 => {
            it.file.set_size(end as u64 + 9000).unwrap();
            it.model.resize(end + 9000, 0);
        }
        5 => {
            let at = end as u64 / 4096 * 4096 - 4096;
            it.file.allocate(AllocateMode::PunchHole, at, 4096).unwrap();
            it.model[at as usize..at as usize + 4096].fill(0);
        }
        6 => it.file.allocate(AllocateMode::Preallocate { keep_size: true }, 0, 1 << 20).unwrap(),
        7 => it.write(end + 5000, &[43 + round; 10_000]),
        8 => {
            let cached = OpenOptions { mode: Some(IoMode::Cached), ..OpenOptions::read_write() };
            let other = it.fs.open("/f", &cached).unwrap();
            other.write_at(&[44; 100], end as u64 - 50).unwrap();
            it.model.resize(end + 50, 0);
            it.model[end - 50..].fill(44);
        }
        9 => {
            let large = AlignedBuf::from_slice(&vec![45 + round; 400 << 10]);
            it.write(end, &large);
        }
        10 => {
            let mut queue = Queue::new(&it.fs, &QueueOptions::default()).unwrap();
            let file = Arc::new(it.fs.open("/f", &OpenOptions::read_write()).unwrap());
            let at = end as u64 / 4096 * 4096 - 4096;
            queue.write(&file, AlignedBuf::from_slice(&[46 + round; 4096]), at, 0).unwrap();
            let mut done = Vec::new();
            while done.is_empty() {
                queue.submit().unwrap();
                queue.complete(1, &mut done).unwrap();
            }
            assert!(done.iter().all(|completion| completion.result.is_ok()));
            it.model[at as usize..at as usize + 4096].fill(46 + round);
        }
        _ => {
            let name = format!("c{round}");
            it.fs.create_checkpoint(&name, &CheckpointOptions::default()).unwrap();
            assert_eq!(it.waiting(), 0);
            let before = it.model.clone();
            it.append(100, 47);
            let past = format!("/.checkpoints/{name}/f");
            let past = it.fs.open(&past, &OpenOptions::read_only()).unwrap();
            Growing::holds(&past, &before, "the checkpoint");
        }
    }
}

/// S-6: the sync interval bounds how long a write waits; the last close does not leave it there.
#[test]
fn s_301_what_waits_is_written_at_the_last_close_and_within_the_sync_interval() {
    let mut it = Growing::new(IoMode::Concurrent);
    it.append(PAGE, 1);
    assert!(it.waiting() > 0);
    it.file = it.fs.open("/other", &growing()).unwrap();
    assert_eq!(it.waiting(), 0, "its last open has ended");
    assert_eq!(it.fs.open("/f", &growing()).unwrap().extents().unwrap().len(), 1);

    let device = device(32 << 20, 512);
    format(&device, 4096);
    let mount =
        MountOptions { sync_interval: Duration::from_millis(20), ..options(IoMode::Concurrent) };
    let fs = FileSystem::mount(Arc::clone(&device), None, mount).unwrap();
    let file = fs.open("/f", &growing()).unwrap();
    file.write_at(&[1; 100], 0).unwrap();
    let began = Instant::now();
    while fs.info().delayed_bytes > 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "it waits on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A write that reaches the device later is no new change: the time that was set after it stays.
#[test]
fn s_301_a_time_that_is_set_after_a_write_that_waits_stays() {
    let mut it = Growing::new(IoMode::Concurrent);
    for len in [PAGE, 100] {
        it.append(len, 1);
        let mtime = Some(Timestamp(1_000_000_007));
        it.fs.set_attr(it.file.ino(), &SetAttr { mtime, ..SetAttr::default() }).unwrap();
        it.file.sync_all().unwrap();
        assert_eq!(it.file.attr().unwrap().mtime, Timestamp(1_000_000_007), "{len}");
    }
}

/// The new content was gone and so was the old one: the record of the rename came first.
#[test]
fn s_301_what_waits_is_written_before_its_file_replaces_another() {
    let mut it = Growing::new(IoMode::Concurrent);
    it.append(PAGE, 1);
    let root = InodeNo::ROOT;
    it.fs.rename(root, b"f", root, b"free", RenameMode::Replace).unwrap();
    assert!(it.waiting() > 0, "nothing is replaced");
    it.fs.open("/old", &OpenOptions::create()).unwrap();
    it.fs.rename(root, b"free", root, b"old", RenameMode::Replace).unwrap();
    assert_eq!(it.waiting(), 0);
    assert_eq!(it.file.extents().unwrap().len(), 1);
}

#[test]
fn s_301_an_unlinked_file_takes_what_waits_with_it() {
    let mut it = Growing::new(IoMode::Concurrent);
    it.append(PAGE, 1);
    let before = it.device.counters().writes;
    it.fs.unlink(InodeNo::ROOT, b"f").unwrap();
    it.file = it.fs.open("/g", &growing()).unwrap();
    assert_eq!((it.waiting(), it.device.counters().writes), (0, before), "nothing was written");
    it.fs.sync().unwrap();
    let Growing { device, fs, file, .. } = it;
    drop(file);
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// S-32, I-DLY-2: appends of many threads neither overlap nor leave gaps, and other threads read what they
/// have written.
#[test]
fn s_301_i_dly_2_threads_that_make_one_file_grow_lose_nothing() {
    for mode in MODES {
        let it = Growing::new(mode);
        let append = OpenOptions { append: true, ..growing() };
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let (fs, append) = (&it.fs, &append);
                scope.spawn(move || {
                    let file = fs.open("/f", append).unwrap();
                    for _ in 0..200 {
                        let at = file.write_at(&[1 + thread; PAGE], 0).unwrap();
                        let mut buf = [0; PAGE];
                        assert_eq!(file.read_at(&mut buf, at).unwrap(), PAGE);
                        assert_eq!(buf, [1 + thread; PAGE], "S-20, I-DLY-2: it was written");
                    }
                });
            }
            let (fs, count) = (&it.fs, 5);
            scope.spawn(move || (0..count).for_each(|_| fs.sync().unwrap()));
        });
        let mut seen = [0; 5];
        for page in 0..800u64 {
            let mut buf = [0; PAGE];
            it.file.read_at(&mut buf, page * PAGE as u64).unwrap();
            assert!(buf.iter().all(|byte| *byte == buf[0]), "page {page} is of one write");
            seen[usize::from(buf[0])] += 1;
        }
        assert_eq!((it.file.size(), seen), (800 * PAGE as u64, [0, 200, 200, 200, 200]), "{mode}");
    }
}

/// Many files that grow at once keep no more in memory than the tunable says.
#[test]
fn s_302_what_waits_is_bounded() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let mount = MountOptions { delay_writes_bytes: 256 << 10, ..options(IoMode::Concurrent) };
    let fs = FileSystem::mount(Arc::clone(&device), None, mount).unwrap();
    let files: Vec<File> = (0..40).map(|i| fs.open(format!("/{i}"), &growing()).unwrap()).collect();
    for round in 0..12u64 {
        for (i, file) in files.iter().enumerate() {
            file.write_at(&AlignedBuf::from_slice(&[i as u8; PAGE]), round * PAGE as u64).unwrap();
            let waiting = fs.info().delayed_bytes;
            assert!(waiting <= 256 << 10, "S-302: {waiting} bytes wait");
        }
    }
    for (i, file) in files.iter().enumerate() {
        Growing::holds(file, &vec![i as u8; 12 * PAGE], "each file");
    }
}

/// S-34: a write that was answered has its blocks.
#[test]
fn s_302_no_space_is_told_by_the_write_and_not_later() {
    let device = device(32 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = fs.open("/f", &growing()).unwrap();
    let mut at = 0;
    let refused = loop {
        match file.write_at(&AlignedBuf::from_slice(&[7; PAGE]), at) {
            Ok(_) => at += PAGE as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind, bedplate_fs::ErrorKind::NoSpace, "{refused}");
    assert!(at > 4 << 20, "{at} bytes fit");
    file.sync_all().unwrap();
    Growing::holds(&file, &vec![7; at as usize], "all that was answered");
    drop(file);
    fs.unmount().unwrap();
    assert_sound(&device);
}

/// Where the writer that fills a piece writes it.
#[test]
fn s_302_the_next_sync_or_write_tells_what_could_not_be_written() {
    let hooked = HookedDevice::new(device(64 << 20, 512), Refusing::default());
    let device: Arc<dyn BlockDevice> = Arc::clone(&hooked) as Arc<dyn BlockDevice>;
    format(&device, 4096);
    let limits = Limits { delayed_piece_threads: 0, ..Limits::default() };
    let options = MountOptions { limits, ..options(IoMode::Concurrent) };
    let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
    let file = fs.open("/f", &growing()).unwrap();
    hooked.0.store(true, Ordering::SeqCst);
    for page in 0..128u64 {
        file.write_at(&AlignedBuf::from_slice(&[5; PAGE]), page * PAGE as u64).unwrap();
    }
    let model = vec![5; 128 * PAGE];
    assert!(file.write_at(&[6; 100], model.len() as u64).is_err(), "a full piece is still there");
    assert!(file.sync_data().is_err());
    Growing::holds(&file, &model, "what was refused is not there, what was taken is");
    hooked.0.store(false, Ordering::SeqCst);
    file.sync_data().unwrap();
    assert_eq!(fs.info().delayed_bytes, 0);
    Growing::holds(&file, &model, "it was tried again");
}
