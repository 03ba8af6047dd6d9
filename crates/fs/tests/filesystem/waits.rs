//! What reads and writes waited for, by file and by class.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceCall, DeviceOptions, Engine, Hook, HookedDevice, QueueOptions,
};
use bedplate_fs::{
    CheckpointOptions, File, FileSystem, InodeLockSetting, IoMode, MountOptions, OpenOptions,
    Queue, QueueCompletion, Waits,
};
use parking_lot::{Condvar, Mutex};

use crate::support::{device, format, options};

const PAGE: u64 = 4096;
const NAP: Duration = Duration::from_millis(5);

/// Holds writes back that begin with a byte, while it is shut.
#[derive(Debug, Default)]
struct Gate {
    /// Whether it is shut, and how many writes stand before it.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

const HELD: u8 = 0xbe;

impl Gate {
    fn shut(&self, shut: bool) {
        self.state.lock().0 = shut;
        self.changed.notify_all();
    }

    fn wait_for_one(&self) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |(_, held)| *held == 0);
    }
}

impl Hook for Gate {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        if let DeviceCall::Write { bytes, .. } = call
            && bytes.first() == Some(&HELD)
        {
            let mut state = self.state.lock();
            state.1 += 1;
            self.changed.notify_all();
            self.changed.wait_while(&mut state, |(shut, _)| *shut);
            state.1 -= 1;
        }
        pass()
    }
}

/// A volume whose device can hold a write back, and two files in it.
struct Bed {
    gate: Arc<HookedDevice<Gate>>,
    fs: FileSystem,
    file: File,
    other: File,
}

impl Bed {
    fn new(mode: IoMode, inode_lock: InodeLockSetting) -> Self {
        let inner = device(64 << 20, 512);
        format(&inner, 4096);
        let gate = HookedDevice::new(inner, Gate::default());
        let options = MountOptions { inode_lock, latency_sample: 1, ..options(mode) };
        let fs = FileSystem::mount(Arc::clone(&gate) as _, None, options).unwrap();
        let open = |name: &str| {
            let file = fs.open(name, &OpenOptions::create()).unwrap();
            file.write_at(&AlignedBuf::zeroed(16 * PAGE as usize), 0).unwrap();
            file.sync_data().unwrap();
            file
        };
        let (file, other) = (open("/f"), open("/other"));
        fs.reset_statistics(None).unwrap();
        for file in [&file, &other] {
            fs.reset_statistics(Some(file.ino())).unwrap();
        }
        Self { gate, fs, file, other }
    }

    fn waits(&self) -> Waits {
        self.fs.activity(self.file.ino()).unwrap().waits
    }

    /// Has the device hold a write of the first page back, and `work` wait for it.
    fn wait_for(&self, work: impl FnOnce(&File) + Send) -> Waits {
        let before = self.waits().lock_count();
        self.gate.shut(true);
        thread::scope(|scope| {
            scope.spawn(|| write(&self.file, 0, HELD));
            self.gate.wait_for_one();
            scope.spawn(|| work(&self.file));
            while self.waits().lock_count() == before {
                thread::yield_now();
            }
            thread::sleep(NAP);
            self.gate.shut(false);
        });
        self.waits()
    }
}

fn write(file: &File, page: u64, byte: u8) {
    file.write_at(&AlignedBuf::from_slice(&[byte; PAGE as usize]), page * PAGE).unwrap();
}

fn counts(waits: &Waits) -> [u64; 3] {
    [waits.inode_shared, waits.inode_exclusive, waits.byte_range].map(|time| time.count)
}

/// S-502: waits are told of the file that was waited for, in the class of what was held, with how
/// long they took; the whole mount has their sum.
#[test]
fn s_502_waits_for_locks_are_told_by_file_and_class() {
    let bed = Bed::new(IoMode::Direct, InodeLockSetting::Range);
    write(&bed.file, 0, 1);
    write(&bed.other, 0, 1);
    assert_eq!(counts(&bed.waits()), [0, 0, 0], "S-502: what is free is not waited for");
    // A writer and a reader of bytes that are being written wait for them; others do not.
    let told = bed.wait_for(|file| {
        write(file, 1, 2);
        write(file, 0, 2);
    });
    assert_eq!(counts(&told), [0, 0, 1], "S-502: {told:?}");
    let ns = NAP.as_nanos() as u64;
    assert!(told.byte_range.ns >= ns && told.byte_range.ns_max == told.byte_range.ns, "S-502");
    let told = bed.wait_for(|file| {
        file.read_at(&mut AlignedBuf::zeroed(512), 0).unwrap();
    });
    assert_eq!(counts(&told), [0, 0, 2], "S-502: {told:?}");
    // A truncation wants the file alone, and what comes after it waits for that.
    let told = bed.wait_for(|file| file.set_size(8 * PAGE).unwrap());
    assert_eq!(counts(&told), [0, 1, 2], "S-502: {told:?}");
    assert!(told.inode_exclusive.ns >= ns && told.lock_ns() >= 3 * ns, "S-502: {told:?}");
    let other = bed.fs.activity(bed.other.ino()).unwrap().waits;
    assert_eq!(counts(&other), [0, 0, 0], "S-502: another file waited for nothing");
    let all = bed.fs.info();
    assert_eq!((all.lock_waits, counts(&all.waits)), (3, counts(&told)), "S-502");
    // A checkpoint waits for the write under way, and is none of these.
    bed.gate.shut(true);
    thread::scope(|scope| {
        scope.spawn(|| write(&bed.file, 0, HELD));
        bed.gate.wait_for_one();
        let made = scope.spawn(|| bed.fs.create_checkpoint("c", &CheckpointOptions::default()));
        thread::sleep(2 * NAP);
        bed.gate.shut(false);
        made.join().unwrap().unwrap();
    });
    assert_eq!(counts(&bed.waits()), counts(&told), "S-502: a checkpoint is no read or write");
    bed.fs.reset_statistics(Some(bed.file.ino())).unwrap();
    assert_eq!(counts(&bed.waits()), [0, 0, 0], "S-502");
}

/// S-502: where the whole file is locked, a wait for it is one for the file's lock.
#[test]
fn s_502_a_lock_of_the_whole_file_is_its_inode_lock() {
    let bed = Bed::new(IoMode::Direct, InodeLockSetting::Whole);
    let told = bed.wait_for(|file| write(file, 7, 2));
    assert_eq!(counts(&told), [0, 1, 0], "S-502: {told:?}");
    let bed = Bed::new(IoMode::Concurrent, InodeLockSetting::Range);
    let told = bed.wait_for(|file| {
        write(file, 0, 2);
        file.set_size(8 * PAGE).unwrap();
    });
    assert_eq!(
        counts(&told),
        [0, 1, 0],
        "S-502: overlapping writes do not wait, a truncation does"
    );
}

/// S-503: what a read or write that is timed waits for the device, and of a queue for a thread of
/// the I/O engine; a class that an engine does not have is left out.
#[test]
fn s_503_waits_for_the_device_and_for_its_threads_are_told() {
    let bed = Bed::new(IoMode::Concurrent, InodeLockSetting::Range);
    bed.gate.shut(true);
    thread::scope(|scope| {
        scope.spawn(|| write(&bed.file, 0, HELD));
        bed.gate.wait_for_one();
        thread::sleep(NAP);
        bed.gate.shut(false);
    });
    let told = bed.waits();
    assert_eq!((told.device.count, told.queue), (1, None), "S-503: memory has no threads");
    assert!(told.device.ns >= NAP.as_nanos() as u64, "S-503: {told:?}");
    let write = bed.fs.activity(bed.file.ino()).unwrap().latencies.write;
    assert!(told.device.ns <= write.sum_ns, "S-503: it is a part of the write");
    assert_eq!(bed.fs.info().waits.device, told.device, "S-503");
}

/// S-503: one thread of the I/O engine, and several requests at once.
#[test]
fn s_503_a_queue_tells_how_long_its_requests_waited_for_a_thread() {
    let place = tempfile::NamedTempFile::new().unwrap();
    place.as_file().set_len(64 << 20).unwrap();
    let engine =
        DeviceOptions { engine: Engine::Threads, server_threads: 1, ..DeviceOptions::default() };
    let device: Arc<dyn BlockDevice> = bedplate_block::open(place.path(), &engine).unwrap();
    format(&device, 4096);
    let options = MountOptions { latency_sample: 1, ..options(IoMode::Concurrent) };
    let fs = FileSystem::mount(device, None, options).unwrap();
    let file = Arc::new(fs.open("/f", &OpenOptions::create()).unwrap());
    file.write_at(&AlignedBuf::zeroed(16 * PAGE as usize), 0).unwrap();
    file.sync_data().unwrap();
    fs.reset_statistics(Some(file.ino())).unwrap();
    let depth = QueueOptions { depth_max: 8, ..QueueOptions::default() };
    let mut queue = Queue::new(&fs, &depth).unwrap();
    let mut done: Vec<QueueCompletion> = Vec::new();
    for page in 0..8 {
        queue.read(&file, AlignedBuf::zeroed(PAGE as usize), page * PAGE, page).unwrap();
    }
    while done.len() < 8 {
        queue.complete(1, &mut done).unwrap();
    }
    let told = fs.activity(file.ino()).unwrap().waits;
    let queued = told.queue.expect("S-503: this engine has threads");
    assert_eq!((queued.count, told.device.count), (7, 8), "S-503: the first finds it idle");
    assert!(queued.ns > 0 && queued.ns_max <= queued.ns && told.device.ns > 0, "S-503: {told:?}");
    assert_eq!(told.lock_count(), 0, "S-503");
}
