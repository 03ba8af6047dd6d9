//! Small writes of several threads that need the file alone: written together, each told by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, DeviceCall, Error, ErrorKind, Hook, HookedDevice,
    Operation, SimulatedDevice, SimulatedOptions, Snapshot,
};
use bedplate_fs::{File, FileSystem, IoMode, Limits, MountOptions, OpenOptions};
use parking_lot::{Condvar, Mutex};

use crate::common::assert_sound;
use crate::support::{Random, device, format, mount_as, options};

const SECTOR: u64 = 512;
/// What the write begins with that the device holds back.
const FIRST: u8 = 0xbe;
/// What the writes begin with that wait behind it.
const LATER: u8 = 0xc0;

/// Holds the first write back while it is shut, and may refuse what is written together.
#[derive(Debug, Default)]
struct Gate {
    /// Whether it is shut, and how many writes stand before it.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
    /// Writes of more than a sector that begin as the later ones fail.
    refuses: bool,
    /// How many writes that begin so came.
    later: AtomicU64,
}

impl Hook for Gate {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        let DeviceCall::Write { bytes, offset, .. } = call else { return pass() };
        match bytes.first() {
            Some(&FIRST) => {
                let mut state = self.state.lock();
                state.1 += 1;
                self.changed.notify_all();
                self.changed.wait_while(&mut state, |(shut, _)| *shut);
            }
            Some(&LATER) => {
                self.later.fetch_add(1, Ordering::Relaxed);
                if self.refuses && bytes.len() as u64 > SECTOR {
                    return Err(Error {
                        kind: ErrorKind::Io,
                        operation: Operation::Write,
                        device: "gate".into(),
                        offset: Some(offset),
                        detail: "refused".into(),
                        errno: None,
                    });
                }
            }
            _ => {}
        }
        pass()
    }
}

fn sector(byte: u8, index: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::from_slice(&[index as u8; SECTOR as usize]);
    buf[0] = byte;
    buf
}

/// Has the device hold the write of the first sector of an empty file back, and threads write some
/// of the next ones meanwhile, in this order. Returns the file and how many writes of the device theirs
/// were.
fn wait_behind(refuses: bool, sectors: &[u64]) -> (FileSystem, File, u64) {
    let inner = device(64 << 20, SECTOR as u32);
    format(&inner, 4096);
    let gate = HookedDevice::new(inner, Gate { refuses, ..Gate::default() });
    let hook = &gate;
    // What is asked is when the device is written.
    let limits = Limits { logged_write_bytes: 0, ..Limits::default() };
    let options = MountOptions { limits, ..options(IoMode::Concurrent) };
    let fs = FileSystem::mount(Arc::clone(&gate) as _, None, options).unwrap();
    let file = fs.open("/log", &OpenOptions::create()).unwrap();
    hook.state.lock().0 = true;
    let waits = || fs.activity(file.ino()).unwrap().waits.lock_count();
    thread::scope(|scope| {
        scope.spawn(|| file.write_at(&sector(FIRST, 0), 0).unwrap());
        let mut state = hook.state.lock();
        hook.changed.wait_while(&mut state, |(_, held)| *held == 0);
        drop(state);
        for index in sectors.iter().copied() {
            let (file, before) = (&file, waits());
            scope.spawn(move || {
                let at = file.write_at(&sector(LATER, index), index * SECTOR).unwrap();
                assert_eq!(at, index * SECTOR);
                file.sync_data().unwrap();
            });
            while waits() == before {
                thread::yield_now();
            }
        }
        hook.state.lock().0 = false;
        hook.changed.notify_all();
    });
    let later = hook.later.load(Ordering::Relaxed);
    (fs, file, later)
}

fn assert_holds(file: &File, sectors: &[u64]) {
    let end = sectors.iter().max().unwrap() + 1;
    assert_eq!(file.size(), end * SECTOR);
    for index in 1..end {
        let mut buf = AlignedBuf::zeroed(SECTOR as usize);
        file.read_at(&mut buf, index * SECTOR).unwrap();
        let is_there = sectors.contains(&index);
        let expected = if is_there { sector(LATER, index) } else { AlignedBuf::zeroed(512) };
        assert_eq!(buf[..], expected[..], "S-523: sector {index}");
    }
}

/// S-523: what waits for the file is one write of the device, also where a writer in between has not
/// come yet; each write is told where it went, and what is between them reads as zeros.
#[test]
fn s_523_writes_that_wait_for_a_file_are_written_together() {
    for sectors in [&[3, 1, 6, 2, 5, 4][..], &[6, 3, 1, 2, 5]] {
        let (fs, file, later) = wait_behind(false, sectors);
        assert_eq!(later, 1, "S-523: all writes are one");
        assert_holds(&file, sectors);
        file.write_at(&sector(LATER, 4), 4 * SECTOR).unwrap();
        assert_holds(&file, &[sectors, &[4]].concat());
        drop(file);
        fs.unmount().unwrap();
    }
}

/// S-523: what would leave a whole block without data between two writes is not written together.
#[test]
fn s_523_no_block_is_written_that_no_write_has_bytes_of() {
    let sectors = [1, 2, 3, 20, 21, 40];
    let (_fs, file, _) = wait_behind(false, &sectors);
    assert_holds(&file, &sectors);
    let allocated = file.attr().unwrap().allocated_bytes;
    assert_eq!(allocated, 3 * 4096, "S-523: the first block, and one for each of the others");
}

/// S-523: where what is written together fails, each writer writes by itself, and is told of that.
#[test]
fn s_523_what_cannot_be_written_together_is_written_one_by_one() {
    let sectors = [3, 1, 6, 2, 5, 4];
    let (_fs, file, later) = wait_behind(true, &sectors);
    assert!(later > 6, "S-523: each alone, after all together: {later}");
    assert_holds(&file, &sectors);
}

/// One write that was synced: where, what, and how many operations the device had seen when it was.
struct Synced {
    at: u64,
    bytes: AlignedBuf,
    by: usize,
}

/// Eight writers append what lies next by turns of a counter, and sync. Returns what they wrote.
fn append(device: &SimulatedDevice, file: &File, rounds: u64) -> Vec<Synced> {
    const WRITERS: u64 = 8;
    let next = AtomicU64::new(0);
    let all = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for writer in 1..=WRITERS {
            let (next, all) = (&next, &all);
            scope.spawn(move || {
                let mut random = Random::new(writer);
                for _ in 0..rounds {
                    let len = SECTOR * (1 + random.below(3));
                    let mut bytes = AlignedBuf::zeroed(len as usize);
                    random.fill(&mut bytes);
                    let at = next.fetch_add(len, Ordering::Relaxed);
                    file.write_at(&bytes, at).unwrap();
                    file.sync_data().unwrap();
                    all.lock().push(Synced { at, bytes, by: device.operation_count() });
                }
            });
        }
    });
    assert_eq!(file.size(), next.into_inner());
    all.into_inner()
}

/// S-523, S-1, S-9: a power cut under eight writers of one log loses nothing that was synced, and shows
/// of the rest what was written there, or zeros.
#[test]
fn s_523_eight_writers_of_one_log_lose_nothing() {
    for (seed, block) in [(1, 4096), (2, 512), (3, 16_384)] {
        let mut base = Snapshot::empty(40 << 20);
        let stale = vec![0xdb; 1 << 20];
        (0..40).for_each(|mib| base.write(&stale, mib << 20));
        let options = SimulatedOptions { seed, ..SimulatedOptions::default() };
        let device = SimulatedDevice::over(&base, &options);
        let shared: Arc<dyn BlockDevice> = device.clone();
        format(&shared, block);
        let fs = mount_as(&shared, IoMode::Concurrent);
        let file = fs.open("/log", &OpenOptions::create()).unwrap();
        fs.sync().unwrap();
        let began = device.operation_count();
        let synced = append(&device, &file, 25);
        let ended = device.operation_count();
        let mut random = Random::new(seed);
        for _ in 0..60 {
            let after = began + random.below((ended - began) as u64 + 1) as usize;
            let image: Arc<dyn BlockDevice> =
                device.crash_image(after, &CrashChoice::Seeded(random.next()));
            judge(&image, &synced, after, &format!("seed {seed}, {after} of {ended}"));
        }
        let all: Arc<dyn BlockDevice> = device.crash_image(ended, &CrashChoice::LoseAll);
        judge(&all, &synced, ended, "all of it");
    }
}

fn judge(image: &Arc<dyn BlockDevice>, synced: &[Synced], after: usize, context: &str) {
    let fs = mount_as(image, IoMode::Concurrent);
    let file = fs.open("/log", &OpenOptions::read_only()).unwrap();
    let mut found = vec![0; file.size() as usize];
    file.read_at(&mut found, 0).unwrap();
    for Synced { at, bytes, by } in synced {
        let seen = found.get(*at as usize..).unwrap_or_default();
        let seen = &seen[..seen.len().min(bytes.len())];
        if *by <= after {
            assert!(seen == &bytes[..], "S-1: {at} was synced; {context}");
        }
        for (index, sector) in seen.chunks(SECTOR as usize).enumerate() {
            let written = &bytes[index * SECTOR as usize..][..sector.len()];
            let is_zero = sector.iter().all(|byte| *byte == 0);
            assert!(sector == written || is_zero, "S-9: {at}, sector {index}; {context}");
        }
    }
    drop(file);
    fs.unmount().unwrap();
    assert_sound(image);
}
