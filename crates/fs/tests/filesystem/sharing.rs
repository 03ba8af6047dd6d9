//! What the inode lock of each mode lets happen at once, seen from the device; and promises that
//! only a full volume or a second thread shows.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bedplate_block::{AlignedBuf, DeviceCall, Hook, HookedDevice, Result};
use bedplate_fs::{
    AllocateMode, ErrorKind, File, FileSystem, InodeLockSetting, IoMode, MountOptions, OpenOptions,
};

use crate::support::{device, format, mount_as, options};

/// Only a broken promise waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A device at which writes of some of its bytes wait for each other.
#[derive(Debug)]
struct Meeting {
    /// How many writes must be in flight at once before any goes on.
    wanted: AtomicUsize,
    watched: Mutex<Watched>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Watched {
    ranges: Vec<Range<u64>>,
    in_flight: usize,
    in_flight_max: usize,
}

impl Meeting {
    fn device() -> Arc<HookedDevice<Self>> {
        let inner = device(48 << 20, 512);
        format(&inner, 4096);
        HookedDevice::new(
            inner,
            Self {
                wanted: AtomicUsize::new(1),
                watched: Mutex::default(),
                changed: Condvar::new(),
            },
        )
    }

    /// Lets writes of a file's present blocks wait until so many are in flight.
    fn watch(&self, file: &File, wanted: usize) {
        let ranges = file
            .extents()
            .unwrap()
            .into_iter()
            .map(|extent| extent.volume_offset..extent.volume_offset + extent.len)
            .collect();
        *self.watched.lock().unwrap() = Watched { ranges, ..Watched::default() };
        self.wanted.store(wanted, Ordering::SeqCst);
    }

    fn in_flight_max(&self) -> usize {
        self.watched.lock().unwrap().in_flight_max
    }

    fn wait_for(&self, in_flight: usize) {
        let watched = self.watched.lock().unwrap();
        let (watched, late) = self
            .changed
            .wait_timeout_while(watched, PATIENCE, |watched| watched.in_flight_max < in_flight)
            .unwrap();
        assert!(
            !late.timed_out(),
            "{} writes were in flight at once, not {in_flight}",
            watched.in_flight_max
        );
    }

    fn enter(&self, offset: u64) -> bool {
        let mut watched = self.watched.lock().unwrap();
        if !watched.ranges.iter().any(|range| range.contains(&offset)) {
            return false;
        }
        watched.in_flight += 1;
        watched.in_flight_max = watched.in_flight_max.max(watched.in_flight);
        drop(watched);
        self.changed.notify_all();
        true
    }
}

impl Hook for Meeting {
    fn call(&self, call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        match call {
            DeviceCall::Write { offset, .. } if self.enter(offset) => {}
            _ => return pass(),
        }
        match self.wanted.load(Ordering::SeqCst) {
            // Others get a chance to come in.
            0 | 1 => (0..5).for_each(|_| std::thread::yield_now()),
            wanted => self.wait_for(wanted),
        }
        let result = pass();
        self.watched.lock().unwrap().in_flight -= 1;
        result
    }
}

const LEN: usize = 64 << 10;

fn written_file(
    meeting: &Arc<HookedDevice<Meeting>>,
    mode: IoMode,
    inode_lock: InodeLockSetting,
) -> (FileSystem, File) {
    let fs = FileSystem::mount(
        Arc::clone(meeting) as _,
        None,
        MountOptions { inode_lock, ..options(mode) },
    )
    .unwrap();
    let file = fs.open("f", &OpenOptions { mode: Some(mode), ..OpenOptions::create() }).unwrap();
    file.write_at(&AlignedBuf::zeroed(LEN), 0).unwrap();
    fs.sync().unwrap();
    (fs, file)
}

/// Writes ranges from a thread each, some times over; returns how many writes were in flight at
/// once.
fn writes_at_once(
    mode: IoMode,
    inode_lock: InodeLockSetting,
    ranges: &[Range<usize>],
    wanted: usize,
) -> usize {
    let meeting = Meeting::device();
    let (_fs, file) = written_file(&meeting, mode, inode_lock);
    meeting.watch(&file, wanted);
    std::thread::scope(|scope| {
        for (fill, range) in (1..).zip(ranges) {
            let (file, times) = (&file, if wanted > 1 { 1 } else { 20 });
            scope.spawn(move || {
                let mut buf = AlignedBuf::zeroed(range.len());
                buf.fill(fill);
                (0..times).for_each(|_| {
                    assert_eq!(
                        file.write_at(&buf, range.start as u64).unwrap(),
                        range.start as u64
                    );
                });
            });
        }
    });
    let overlap = ranges.iter().map(|range| range.start).max().unwrap()
        ..ranges.iter().map(|range| range.end).min().unwrap();
    if mode == IoMode::Direct && !overlap.is_empty() {
        let mut buf = AlignedBuf::zeroed(overlap.len());
        file.read_at(&mut buf, overlap.start as u64).unwrap();
        assert!(
            buf.iter().all(|byte| *byte == buf[0]),
            "S-22: one of the writes lies wholly over the others"
        );
    }
    meeting.in_flight_max()
}

const DISJOINT: [Range<usize>; 3] = [0..8192, 16_384..24_576, 32_768..65_536];
const OVERLAPPING: [Range<usize>; 3] = [0..40_960, 8192..49_152, 20_480..65_536];

/// S-22: direct writes of disjoint ranges are in flight at once, of overlapping ones only one is;
/// with `inode-lock=whole` only one of the file is.
#[test]
fn s_22_direct_writes_run_in_parallel_where_they_do_not_overlap() {
    assert_eq!(writes_at_once(IoMode::Direct, InodeLockSetting::Range, &DISJOINT, 3), 3);
    assert_eq!(writes_at_once(IoMode::Direct, InodeLockSetting::Range, &OVERLAPPING, 1), 1);
    assert_eq!(writes_at_once(IoMode::Direct, InodeLockSetting::Whole, &DISJOINT, 1), 1);
}

/// S-23: concurrent writes are in flight at once although they overlap.
#[test]
fn s_23_concurrent_writes_run_in_parallel_where_they_overlap() {
    assert_eq!(writes_at_once(IoMode::Concurrent, InodeLockSetting::Range, &OVERLAPPING, 3), 3);
}

/// S-25: while a write of a concurrent file is at the device, the file grows and holes are filled,
/// on the same open.
#[test]
fn s_25_a_concurrent_file_grows_under_running_io() {
    let meeting = Meeting::device();
    let (fs, file) = written_file(&meeting, IoMode::Concurrent, InodeLockSetting::Range);
    file.set_size(8 * LEN as u64).unwrap();
    meeting.watch(&file, 2);
    let page = AlignedBuf::from_slice(&[5; 4096]);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| file.write_at(&page, 0).unwrap());
        meeting.wait_for(1);
        for at in [8 * LEN as u64, 3 * LEN as u64] {
            file.write_at(&page, at).unwrap();
        }
        assert_eq!(file.size(), 8 * LEN as u64 + 4096);
        file.sync_data().unwrap();
        assert!(!held.is_finished(), "it waits for a second write of these blocks");
        file.write_at(&page, 4096).unwrap();
        held.join().unwrap();
    });
    fs.sync().unwrap();
}

/// S-24: a read finds in the cache nothing older than the last write that had returned, of any
/// thread.
#[test]
fn s_24_cached_reads_are_never_older_than_a_write_that_returned() {
    let device = device(48 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::ConcurrentCache);
    let file = fs.open("f", &OpenOptions::create()).unwrap();
    file.write_at(&AlignedBuf::zeroed(LEN), 0).unwrap();
    let returned = AtomicU8::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 1..=200u8 {
                file.write_at(&AlignedBuf::from_slice(&[version; 16_384]), 4096).unwrap();
                returned.store(version, Ordering::SeqCst);
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut buf = AlignedBuf::zeroed(16_384);
                // The writer may be done before this begins: then the second read finds the first.
                let mut after_the_last = 0;
                while after_the_last < 2 {
                    let least = returned.load(Ordering::SeqCst);
                    after_the_last += u8::from(least == 200);
                    file.read_at(&mut buf, 4096).unwrap();
                    assert!(
                        buf.iter().all(|byte| *byte >= least),
                        "S-24: the cache holds what was written before version {least}"
                    );
                }
            });
        }
    });
    assert!(file.counters().cache_hits > 0, "some reads were served from the cache");
}

/// S-12, S-34: on a full volume a write of what was preallocated finds its room; one that finds
/// none changes nothing.
#[test]
fn s_12_s_34_what_was_preallocated_can_be_written_on_a_full_volume() {
    for mode in IoMode::ALL {
        let device = device(40 << 20, 512);
        format(&device, 4096);
        let fs = mount_as(&device, mode);
        let file = fs.open("f", &OpenOptions::create()).unwrap();
        file.write_at(&[7; 8192], 0).unwrap();
        file.allocate(AllocateMode::Preallocate { keep_size: false }, 8192, 4 << 20).unwrap();
        let filler = fs.open("filler", &OpenOptions::create()).unwrap();
        let (mut at, mut step) = (0, 4 << 20);
        while step >= 4096 {
            match filler.allocate(AllocateMode::Preallocate { keep_size: false }, at, step) {
                Ok(()) => at += step,
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
                    step /= 2;
                }
            }
        }
        let size = filler.size();
        assert_eq!(
            filler.write_at(&[1; 65_536], size).unwrap_err().kind,
            ErrorKind::NoSpace,
            "{mode}: the volume is full"
        );
        assert_eq!(filler.size(), size, "{mode}");
        for at in (8192..8192 + (4 << 20)).step_by(60_000) {
            let len = 60_000.min(8192 + (4 << 20) - at);
            file.write_at(&vec![9; len], at as u64).unwrap_or_else(|e| panic!("S-12: {mode}: {e}"));
        }
        file.sync_all().unwrap();
        let mut content = vec![0; 8192 + (4 << 20)];
        assert_eq!(file.read_at(&mut content, 0).unwrap(), content.len());
        assert!(
            content[..8192].iter().all(|byte| *byte == 7)
                && content[8192..].iter().all(|byte| *byte == 9),
            "S-34: {mode}"
        );
    }
}
