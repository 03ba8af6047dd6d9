//! Logs written in odd pieces, as SQLite writes its own: a header of 24 bytes and a page behind it,
//! one frame after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceCall, DeviceCounters, Error, ErrorKind, Hook, HookedDevice,
    Operation, QueueOptions, Result,
};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, File, FileSystem, IoMode, OpenOptions, Queue, RollbackOptions,
    SetAttr, Timestamp,
};

use crate::common::assert_sound;
use crate::support::{device, format, mount_as};

const HEADER: usize = 24;
const PAGE: usize = 4096;
const FRAME: u64 = (HEADER + PAGE) as u64;

struct Log {
    device: Arc<dyn BlockDevice>,
    fs: FileSystem,
    file: File,
    /// What the file holds.
    model: Vec<u8>,
}

impl Log {
    fn new(mode: IoMode, sector: u32) -> Self {
        let device = device(64 << 20, sector);
        format(&device, 4096);
        let fs = mount_as(&device, mode);
        let file = fs.open("/log", &OpenOptions::create()).unwrap();
        Self { device, fs, file, model: Vec::new() }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.file.write_at(bytes, at).unwrap();
        let end = at as usize + bytes.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[at as usize..end].copy_from_slice(bytes);
    }

    /// Writes from memory that no sector of the file lies in as it does on the device: what a write
    /// costs hangs on that, and an array lies wherever the compiler put it.
    fn write_from_odd(&mut self, at: u64, bytes: &[u8]) {
        let skip = (at as usize + 1) % AlignedBuf::ALIGN;
        let mut memory = AlignedBuf::zeroed(skip + bytes.len());
        memory[skip..].copy_from_slice(bytes);
        self.write(at, &memory[skip..]);
    }

    /// Writes a frame in its two pieces and syncs it; returns the device's reads, writes and
    /// flushes.
    fn commit(&mut self, frame: u64, fill: u8) -> (u64, u64, u64) {
        let before = self.device.counters();
        let at = 32 + frame * FRAME;
        self.write_from_odd(at, &[fill; HEADER]);
        self.write_from_odd(at + HEADER as u64, &[fill.wrapping_add(1); PAGE]);
        self.file.sync_data().unwrap();
        let DeviceCounters { reads, writes, flushes, .. } = self.device.counters();
        (reads - before.reads, writes - before.writes, flushes - before.flushes)
    }

    fn holds(file: &File, model: &[u8], what: &str) {
        let mut buf = AlignedBuf::zeroed(model.len().next_multiple_of(4096) + 4096);
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), model.len(), "{what}");
        let differs = (0..model.len()).find(|at| buf[*at] != model[*at]);
        assert_eq!(differs, None, "{what}: the first byte that differs");
    }

    /// Requires the file to hold what was written, as read past all copies and after a crash.
    fn compare(self, what: &str) {
        let Self { device, fs, file, model } = self;
        Self::holds(&file, &model, what);
        let mut odd = vec![0; model.len() - 100];
        file.read_at(&mut odd, 50).unwrap();
        assert!(odd == model[50..model.len() - 50], "{what}: read at an odd offset");
        file.sync_data().unwrap();
        drop((file, fs));
        assert_sound(&device);
        let fs = mount_as(&device, IoMode::Concurrent);
        Self::holds(&fs.open("/log", &OpenOptions::read_only()).unwrap(), &model, what);
    }
}

/// Each write at an odd offset was read-modify-written by itself: a commit of SQLite cost six
/// reads.
#[test]
fn s_145_a_log_that_grows_in_odd_pieces_reads_nothing() {
    for (mode, sector) in
        [(IoMode::Concurrent, 512), (IoMode::Concurrent, 4096), (IoMode::Direct, 512)]
    {
        let mut log = Log::new(mode, sector);
        log.write(0, &[7; 32]);
        for frame in 0..40 {
            let (reads, writes, flushes) = log.commit(frame, frame as u8);
            assert_eq!((reads, flushes), (0, 1), "{mode:?}, sectors of {sector}, frame {frame}");
            // A piece may end in a block of its own, elsewhere on the volume.
            assert!(writes <= 5, "{mode:?}, sectors of {sector}, frame {frame}: {writes} writes");
        }
        log.compare("a log that grew");
    }
}

#[test]
fn s_145_a_log_that_is_written_over_in_odd_pieces_reads_ahead() {
    for sector in [512, 4096] {
        let mut log = Log::new(IoMode::Concurrent, sector);
        log.write(0, &[7; 32]);
        (0..200).for_each(|frame| _ = log.commit(frame, frame as u8));
        log.write(0, &[8; 32]);
        let costs: Vec<_> = (0..150).map(|frame| log.commit(frame, 100 + frame as u8)).collect();
        let reads: u64 = costs.iter().map(|(reads, ..)| reads).sum();
        assert!(reads <= 14, "150 frames, 600 KiB, took {reads} reads in sectors of {sector}");
        log.compare("a log that was written over");
    }
}

/// I-HLD-1: everything else that changes the sectors of a log makes what is held of them go.
#[test]
fn i_hld_1_odd_writes_between_all_other_changes_lose_nothing() {
    for sector in [512, 4096] {
        for other in 0..9 {
            let mut log = Log::new(IoMode::Concurrent, sector);
            (0..20).for_each(|frame| _ = log.commit(frame, frame as u8));
            for round in 0..6u64 {
                // The tail of this write is held, and the sectors behind it.
                let at = 5000 + round * 7000;
                log.write(at - 300, &[200; 100]);
                log.write(at - 200, &[201; 200]);
                change(&mut log, other, at / 4096 * 4096, round as u8);
                log.write(at, &[202; 333]);
            }
            log.compare(&format!("change {other} in sectors of {sector}"));
        }
    }
}

/// Changes the block at `at` and those around it past the way that odd writes go.
fn change(log: &mut Log, which: u32, at: u64, fill: u8) {
    let page = AlignedBuf::from_slice(&[100 + fill; 8192]);
    let zero = |log: &mut Log, range: std::ops::Range<usize>| log.model[range].fill(0);
    let from = at as usize;
    match which {
        0 => log.write(at, &page[..4096]),
        1 => {
            let other = log
                .fs
                .open(
                    "/log",
                    &OpenOptions { mode: Some(IoMode::Cached), ..OpenOptions::read_write() },
                )
                .unwrap();
            other.write_at(&page, at).unwrap();
            log.model[from..from + 8192].copy_from_slice(&page);
        }
        2 => {
            log.file.allocate(AllocateMode::PunchHole, at, 4096).unwrap();
            zero(log, from..from + 4096);
        }
        3 => {
            log.file.allocate(AllocateMode::ZeroRange { keep_size: true }, at + 10, 5000).unwrap();
            zero(log, from + 10..from + 5010);
        }
        4 => {
            log.file.set_size(at + 100).unwrap();
            log.model.truncate(from + 100);
            log.file.set_size(100_000).unwrap();
            log.model.resize(100_000, 0);
        }
        5 => {
            log.fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
            log.write(at, &page);
            log.fs.delete_checkpoint("c").unwrap();
        }
        6 => {
            log.file.allocate(AllocateMode::CollapseRange, at, 4096).unwrap();
            log.model.drain(from..from + 4096);
        }
        7 => {
            let mut queue = Queue::new(&log.fs, &QueueOptions::default()).unwrap();
            let file = Arc::new(log.fs.open("/log", &OpenOptions::read_write()).unwrap());
            queue.write(&file, page, at, 0).unwrap();
            let mut done = Vec::new();
            while queue.in_flight() > 0 || done.is_empty() {
                queue.submit().unwrap();
                queue.complete(1, &mut done).unwrap();
            }
            assert!(done.iter().all(|completion| completion.result.is_ok()));
            log.model[from..from + 8192].fill(100 + fill);
        }
        _ => {
            log.fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
            let before = log.model.clone();
            log.write(at + 100, &[9; 5000]);
            let force = RollbackOptions { force: true, ..RollbackOptions::default() };
            log.fs.rollback("c", &force).unwrap();
            log.model = before;
            for made in log.fs.checkpoints() {
                log.fs.delete_checkpoint(&made.name).unwrap();
            }
        }
    }
}

/// Writes a log whose frames lie on written blocks: from here on nothing of it grows.
fn written_log(mode: IoMode, sector: u32) -> Log {
    let mut log = Log::new(mode, sector);
    log.write(0, &[7; 32]);
    (0..60).for_each(|frame| _ = log.commit(frame, frame as u8));
    // The first overwrite of what a sync has just exposed seals it.
    (0..60).for_each(|frame| _ = log.commit(frame, 100 + frame as u8));
    log
}

/// A commit of several frames was two device writes for each of them.
#[test]
fn s_146_a_commit_over_written_blocks_is_one_write() {
    for (mode, sector) in
        [(IoMode::Concurrent, 512), (IoMode::Concurrent, 4096), (IoMode::Direct, 512)]
    {
        let mut log = written_log(mode, sector);
        for commit in 0..12 {
            let before = log.device.counters();
            for frame in commit * 4..commit * 4 + 3 {
                let at = 32 + frame * FRAME;
                log.write(at, &[150; HEADER]);
                log.write(at + HEADER as u64, &[151 + commit as u8; PAGE]);
            }
            assert_eq!(
                log.device.counters().writes,
                before.writes,
                "{mode:?}: nothing is written before the sync"
            );
            log.file.sync_data().unwrap();
            let after = log.device.counters();
            assert_eq!(
                (after.writes - before.writes, after.flushes - before.flushes),
                (1, 1),
                "{mode:?}, commit {commit}"
            );
            assert!(after.reads - before.reads <= 2, "{mode:?}: only the sectors at both ends");
        }
        assert_eq!(
            log.file.counters().misaligned,
            log.file.counters().writes,
            "each is counted once"
        );
        log.compare("a log whose commits are one write each");
    }
}

/// S-1, S-4, S-6, S-20: every way to read sees what is held, and every sync writes it.
#[test]
fn s_146_what_is_held_is_read_and_synced() {
    for which in 0..6 {
        let mut log = written_log(IoMode::Concurrent, 512);
        log.write(10_001, &[211; 700]);
        log.write(10_701, &[212; 50]);
        match which {
            0 => log.file.sync_all().unwrap(),
            1 => log.fs.sync().unwrap(),
            2 => {
                let durable = log
                    .fs
                    .open("/log", &OpenOptions { data_sync: true, ..OpenOptions::read_write() })
                    .unwrap();
                durable.write_at(&[213; 9], 10_751).unwrap();
                log.model[10_751..10_760].fill(213);
            }
            3 => {
                let cached = log
                    .fs
                    .open(
                        "/log",
                        &OpenOptions { mode: Some(IoMode::Cached), ..OpenOptions::read_write() },
                    )
                    .unwrap();
                let mut buf = [0; 52];
                cached.read_at(&mut buf, 10_700).unwrap();
                assert_eq!(
                    (buf[0], buf[1], buf[50], buf[51]),
                    (211, 212, 212, log.model[10_751]),
                    "a cached open reads it"
                );
                cached.sync_data().unwrap();
            }
            4 => {
                let mut queue = Queue::new(&log.fs, &QueueOptions::default()).unwrap();
                let file = Arc::new(log.fs.open("/log", &OpenOptions::read_write()).unwrap());
                queue.read(&file, AlignedBuf::zeroed(1024), 9728, 0).unwrap();
                queue.sync_data(&file, 1).unwrap();
                let mut done = Vec::new();
                while done.len() < 2 {
                    queue.submit().unwrap();
                    queue.complete(1, &mut done).unwrap();
                }
                let read = done.into_iter().find(|completion| completion.token == 0).unwrap();
                assert_eq!(
                    (read.result.unwrap(), &read.buf.unwrap()[..]),
                    (1024, &log.model[9728..10_752])
                );
            }
            _ => {
                let other = log
                    .fs
                    .open(
                        "/log",
                        &OpenOptions { mode: Some(IoMode::Direct), ..OpenOptions::read_write() },
                    )
                    .unwrap();
                let mut buf = vec![0; 800];
                other.read_at(&mut buf, 10_000).unwrap();
                assert_eq!(buf, log.model[10_000..10_800]);
                drop(other);
                log.fs.sync().unwrap();
            }
        }
        let Log { device, fs, file, model } = log;
        Log::holds(&file, &model, "read on the live file system");
        // A process that dies: nothing is written any more.
        drop((fs, file));
        let fs = mount_as(&device, IoMode::Concurrent);
        Log::holds(
            &fs.open("/log", &OpenOptions::read_only()).unwrap(),
            &model,
            &format!("synced in way {which}"),
        );
    }
}

/// A held write that reaches the device is no new change: the time that was set after it stays.
#[test]
fn s_146_a_time_that_is_set_after_a_held_write_stays() {
    let mut log = written_log(IoMode::Concurrent, 512);
    log.write(10_001, &[211; 700]);
    let mtime = Some(Timestamp(1_000_000_007));
    log.fs.set_attr(log.file.ino(), &SetAttr { mtime, ..SetAttr::default() }).unwrap();
    log.file.sync_all().unwrap();
    assert_eq!(log.file.attr().unwrap().mtime, Timestamp(1_000_000_007));
    log.compare("a log with a time");
}

/// S-50: a checkpoint has the writes that had returned, and none that come after it.
#[test]
fn s_146_a_checkpoint_has_what_is_held() {
    for open in [true, false] {
        let mut log = written_log(IoMode::Concurrent, 512);
        log.write(10_001, &[211; 700]);
        let before = log.model.clone();
        if !open {
            log.file = log.fs.open("/other", &OpenOptions::create()).unwrap();
        }
        log.fs.create_checkpoint("c", &CheckpointOptions::default()).unwrap();
        log.file = log.fs.open("/log", &OpenOptions::read_write()).unwrap();
        log.write(10_301, &[212; 700]);
        log.file.sync_data().unwrap();
        Log::holds(
            &log.fs.open("/.checkpoints/c/log", &OpenOptions::read_only()).unwrap(),
            &before,
            "the checkpoint",
        );
        log.compare("the present");
    }
}

/// Refuses writes while it is told to.
#[derive(Debug, Default)]
pub(crate) struct Refusing(pub(crate) AtomicBool);

impl Hook for Refusing {
    fn call(&self, call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if matches!(call, DeviceCall::Write { .. }) && self.0.load(Ordering::SeqCst) {
            return Err(Error {
                kind: ErrorKind::Io,
                operation: Operation::Write,
                device: "refusing".to_owned(),
                offset: None,
                detail: "told to fail".to_owned(),
                errno: None,
            });
        }
        pass()
    }
}

#[test]
fn s_146_a_sync_tells_what_could_not_be_written_and_tries_again() {
    let inner = device(64 << 20, 512);
    let hooked = HookedDevice::new(inner, Refusing::default());
    let device: Arc<dyn BlockDevice> = Arc::clone(&hooked) as Arc<dyn BlockDevice>;
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = fs.open("/log", &OpenOptions::create()).unwrap();
    file.write_at(&AlignedBuf::from_slice(&[1; 65_536]), 0).unwrap();
    file.sync_all().unwrap();
    // Seals what was exposed, so that an overwrite writes nothing but its bytes.
    file.write_at(&AlignedBuf::from_slice(&[1; 65_536]), 0).unwrap();
    file.sync_all().unwrap();
    hooked.0.store(true, Ordering::SeqCst);
    file.write_at(&[2; 100], 1000).unwrap();
    for _ in 0..2 {
        assert!(file.sync_data().is_err(), "it did not reach the device");
        let mut buf = [0; 102];
        file.read_at(&mut buf, 999).unwrap();
        assert_eq!((buf[0], buf[1], buf[100], buf[101]), (1, 2, 2, 1));
    }
    hooked.0.store(false, Ordering::SeqCst);
    file.sync_data().unwrap();
    drop((file, fs));
    let fs = mount_as(&device, IoMode::Concurrent);
    let mut buf = [0; 102];
    fs.open("/log", &OpenOptions::read_only()).unwrap().read_at(&mut buf, 999).unwrap();
    assert_eq!((buf[0], buf[1], buf[100], buf[101]), (1, 2, 2, 1));
}
