//! Files that are read in order, past the caches, through opens as those of a mount.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceCall, Error, ErrorKind, Hook, HookedDevice, Operation,
    QueueOptions, Result as DeviceResult,
};
use bedplate_fs::{
    AllocateMode, CheckpointOptions, File, FileSystem, IoMode, Limits, MountOptions, OpenOptions,
    Queue, ReadBytes, RollbackOptions,
};

use crate::common::assert_sound;
use crate::support::{device, format, mount_as, options};

const PAGE: usize = 8192;
const PAGES: usize = 512;
/// `cached` is that of callers which cache.
const MODES: [IoMode; 3] = [IoMode::Direct, IoMode::Concurrent, IoMode::Cached];

fn windowed() -> OpenOptions {
    OpenOptions { read_windows: true, ..writing() }
}

fn writing() -> OpenOptions {
    OpenOptions { caller_caches: true, ..OpenOptions::read_write() }
}

/// A file whose pages hold what the model says.
struct Read {
    device: Arc<dyn BlockDevice>,
    fs: FileSystem,
    file: File,
    model: Vec<u8>,
}

impl Read {
    fn new(mode: IoMode) -> Self {
        Self::on(device(64 << 20, 512), mode)
    }

    fn on(device: Arc<dyn BlockDevice>, mode: IoMode) -> Self {
        format(&device, 4096);
        let fs = mount_as(&device, mode);
        let mut model = Vec::new();
        for page in 0..PAGES {
            model.extend([page as u8; PAGE]);
        }
        let new = OpenOptions { caller_caches: true, ..OpenOptions::create() };
        let file = fs.open("/f", &new).unwrap();
        file.write_at(&AlignedBuf::from_slice(&model), 0).unwrap();
        file.sync_all().unwrap();
        let file = fs.open("/f", &windowed()).unwrap();
        Self { device, fs, file, model }
    }

    fn reads(&self) -> u64 {
        self.device.counters().reads
    }

    /// Has no record vouch for bytes of the file any more: a write finds nothing to ask for.
    fn seal(&mut self) {
        for name in ["/sealed", "/sealed too"] {
            drop(self.fs.open(name, &OpenOptions::create()).unwrap());
            self.fs.sync().unwrap();
        }
        let (writer, page) = (self.fs.open("/f", &writing()).unwrap(), [0; PAGE]);
        self.write(&writer, 0, &page);
    }

    /// Reads a page and compares it with the model.
    fn page(&self, page: usize, what: &str) {
        let mut buf = AlignedBuf::zeroed(PAGE);
        let at = page * PAGE;
        let len = self.file.read_at(&mut buf, at as u64).unwrap();
        let due = &self.model[at.min(self.model.len())..self.model.len().min(at + PAGE)];
        assert_eq!(len, due.len(), "{what}: page {page}");
        assert!(buf[..len] == *due, "{what}: page {page} holds {} and not {}", buf[0], due[0]);
    }

    fn write(&mut self, file: &File, at: usize, bytes: &[u8]) {
        file.write_at(&AlignedBuf::from_slice(bytes), at as u64).unwrap();
        self.model.resize(self.model.len().max(at + bytes.len()), 0);
        self.model[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Each page of 8 KiB was a read of the device.
#[test]
fn s_368_a_reader_that_goes_on_reads_the_device_in_large_pieces() {
    for mode in MODES {
        let it = Read::new(mode);
        let before = it.reads();
        (0..PAGES).for_each(|page| it.page(page, "in order"));
        let reads = it.reads() - before;
        assert!(reads <= 20, "{mode}: {reads} reads of the device");
        let counters = it.file.counters();
        assert_eq!(counters.reads, PAGES as u64, "{mode}");
        assert!(counters.window_hits >= 490, "{mode}: {}", counters.window_hits);
        let taken = it.fs.info().window_bytes;
        assert!((1..=4 << 20).contains(&taken), "S-370: {taken} bytes");
        let Read { fs, file, .. } = it;
        drop(file);
        assert_eq!(fs.info().window_bytes, 0, "S-370: its last open has ended");
    }
}

/// Two readers of one open, the second some pages behind the first, as PostgreSQL's read-ahead and
/// its reads; and pages that are read here and there.
#[test]
fn s_368_readers_that_are_near_find_what_the_first_one_left_and_others_leave_nothing() {
    let it = Read::new(IoMode::Concurrent);
    let before = it.reads();
    for page in 0..PAGES {
        let mut buf = AlignedBuf::zeroed(PAGE);
        it.file.read_for_later(&mut buf, (page * PAGE) as u64).unwrap();
        if page > 2 {
            it.page(page - 2, "behind what was named");
        }
    }
    let reads = it.reads() - before;
    assert!(reads <= 40, "{reads} reads of the device");

    let it = Read::new(IoMode::Concurrent);
    let before = it.reads();
    (0..400).for_each(|round| it.page(round * 149 % PAGES, "here and there"));
    assert_eq!((it.reads() - before, it.fs.info().window_bytes), (400, 0));
}

/// Reads of a piece's length: each would have waited for the device by itself.
#[test]
fn s_368_what_comes_next_of_large_reads_is_read_beside_them() {
    const READ: usize = 64 << 10;
    for threads in [0, 2] {
        let it = Read::new(IoMode::Concurrent);
        let Read { device, fs, file, model } = it;
        drop(file);
        fs.unmount().unwrap();
        let limits = Limits {
            read_window_bytes: READ as u64,
            read_window_threads: threads,
            ..Limits::default()
        };
        let options = MountOptions { limits, ..options(IoMode::Concurrent) };
        let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
        for direct_flag in [false, true] {
            let file = fs.open("/f", &OpenOptions { direct_flag, ..windowed() }).unwrap();
            let (before, hits) = (device.counters().reads, file.counters().window_hits);
            let mut lent = 0;
            for (read, due) in model.chunks(READ).enumerate() {
                let mut buf = AlignedBuf::zeroed(READ);
                match file.read_or_lend(&mut buf, (read * READ) as u64).unwrap() {
                    ReadBytes::Copied(len) => assert!(buf[..len] == *due, "read {read}"),
                    ReadBytes::Lent(bytes) => {
                        lent += 1;
                        assert!(*bytes == *due, "read {read}, lent");
                    }
                }
            }
            assert_eq!(file.counters().window_hits - hits, lent);
            if threads == 0 {
                // All but the first, which goes on nowhere, and the second.
                assert_eq!(lent as usize, model.len() / READ - 2);
                assert_eq!(device.counters().reads - before, (model.len() / READ) as u64);
            }
        }
    }
}

/// S-381: three readers that share a scan, each with an open of its own, as PostgreSQL's parallel
/// workers: each page was a read of the device.
#[test]
fn s_381_readers_that_share_a_scan_read_the_device_in_large_pieces() {
    for mode in MODES {
        let it = Read::new(mode);
        let opens = [0; 3].map(|_| it.fs.open("/f", &windowed()).unwrap());
        let before = it.reads();
        let mut buf = AlignedBuf::zeroed(PAGE);
        for chunk in (0..PAGES / 4).step_by(3) {
            for page in 0..4 {
                for (which, open) in opens.iter().enumerate() {
                    let page = (chunk + which) * 4 + page;
                    if page < PAGES {
                        open.read_at(&mut buf, (page * PAGE) as u64).unwrap();
                        assert_eq!(buf[0], page as u8, "S-369");
                    }
                }
            }
        }
        let reads = it.reads() - before;
        assert!(reads <= 60, "{mode}: {reads} reads of the device");
    }
}

/// In the library, unless it is asked for, with `O_DIRECT`, where the tunable says so and where a
/// cache reads ahead by itself there are no windows.
#[test]
fn s_368_only_opens_that_ask_for_windows_have_them() {
    let none = MountOptions { read_window_bytes: 0, ..options(IoMode::Concurrent) };
    let cases = [
        (OpenOptions::read_write(), options(IoMode::Concurrent)),
        (OpenOptions { direct_flag: true, ..windowed() }, options(IoMode::Concurrent)),
        (OpenOptions { caller_caches: false, ..windowed() }, options(IoMode::Cached)),
        (windowed(), options(IoMode::ConcurrentCache)),
        (windowed(), none),
    ];
    for (open, mount) in cases {
        let Read { device, fs, file, .. } = Read::new(IoMode::Concurrent);
        drop(file);
        fs.unmount().unwrap();
        let fs = FileSystem::mount(device, None, mount).unwrap();
        let file = fs.open("/f", &open).unwrap();
        let mut buf = AlignedBuf::zeroed(PAGE);
        for page in 0..PAGES {
            file.read_at(&mut buf, (page * PAGE) as u64).unwrap();
            assert_eq!(buf[0], page as u8);
        }
        assert_eq!((file.counters().window_hits, fs.info().window_bytes), (0, 0), "{open:?}");
    }
}

/// What a program names before it needs it (`posix_fadvise`) is read once, whatever comes between.
#[test]
fn s_371_a_page_that_was_named_is_read_once() {
    let it = Read::new(IoMode::Concurrent);
    let pages: Vec<usize> = (0..60).map(|round| round * 149 % PAGES).collect();
    let mut buf = AlignedBuf::zeroed(PAGE);
    let before = it.reads();
    for page in &pages {
        assert_eq!(it.file.read_for_later(&mut buf, (page * PAGE) as u64).unwrap(), PAGE);
    }
    pages.iter().for_each(|page| it.page(*page, "it was named"));
    assert_eq!((it.reads() - before, it.fs.info().window_bytes), (60, 0), "and is gone then");
    pages.iter().for_each(|page| it.page(*page, "again"));
    assert_eq!(it.reads() - before, 120);
}

/// S-20, S-50: whatever changes the file, a reader that goes on sees it.
#[test]
fn s_369_whatever_else_changes_the_file_is_seen_by_a_reader_that_goes_on() {
    for mode in MODES {
        for other in 0..10 {
            let mut it = Read::new(mode);
            for (round, page) in (8..400).step_by(16).enumerate() {
                (page..page + 16)
                    .for_each(|page| it.page(page, &format!("{mode}, change {other}")));
                change(&mut it, other, page + 20, round as u8);
            }
            if other > 2 {
                (0..PAGES).for_each(|page| it.page(page, &format!("{mode}, after all of {other}")));
            }
            assert!(it.file.counters().window_hits > 100, "{mode}, change {other}");
            let Read { device, fs, file, .. } = it;
            drop(file);
            fs.unmount().unwrap();
            assert_sound(&device);
        }
    }
}

/// Changes what lies at a page that was read ahead.
fn change(it: &mut Read, which: u32, page: usize, round: u8) {
    let (at, fill) = (page * PAGE, 100 + round);
    let other = it.fs.open("/f", &writing()).unwrap();
    match which {
        0 => it.write(&other, at, &[fill; PAGE]),
        1 => it.write(&other, at + 100, &[fill; 700]),
        2 => it.write(&other, at + PAGE - 512, &[fill; 1024]),
        3 => {
            other.allocate(AllocateMode::PunchHole, at as u64, PAGE as u64).unwrap();
            it.model[at..at + PAGE].fill(0);
            // What was freed is used again, by another file.
            let free = it.fs.open(format!("/g{round}"), &OpenOptions::create()).unwrap();
            free.write_at(&AlignedBuf::from_slice(&[222; PAGE]), 0).unwrap();
            it.fs.sync().unwrap();
        }
        4 => {
            other.allocate(AllocateMode::ZeroRange { keep_size: true }, at as u64, 4096).unwrap();
            it.model[at..at + 4096].fill(0);
        }
        5 => {
            it.fs.create_checkpoint(format!("c{round}"), &CheckpointOptions::default()).unwrap();
            it.write(&other, at, &[fill; PAGE]);
        }
        6 => {
            let mut queue = Queue::new(&it.fs, &QueueOptions::default()).unwrap();
            let file = Arc::new(other);
            queue.write(&file, AlignedBuf::from_slice(&[fill; PAGE]), at as u64, 0).unwrap();
            let mut done = Vec::new();
            while done.is_empty() {
                queue.submit().unwrap();
                queue.complete(1, &mut done).unwrap();
            }
            it.model[at..at + PAGE].fill(fill);
        }
        7 => {
            let waits = OpenOptions { delay_writes: true, ..writing() };
            let waits = it.fs.open("/f", &waits).unwrap();
            (0..10).for_each(|next| it.write(&waits, at + next * PAGE, &[fill; PAGE]));
        }
        8 => {
            let end = it.model.len() - PAGE - 300;
            other.set_size(end as u64).unwrap();
            it.model.truncate(end);
            it.write(&other, end, &[fill; 5000]);
        }
        _ => {
            let name = format!("c{round}");
            it.fs.create_checkpoint(&name, &CheckpointOptions::default()).unwrap();
            let before = it.model.clone();
            it.write(&other, at, &[fill; PAGE]);
            it.page(page, "written after the checkpoint");
            let force = RollbackOptions { force: true, ..RollbackOptions::default() };
            it.fs.rollback(&name, &force).unwrap();
            it.model = before;
            it.file = it.fs.open("/f", &windowed()).unwrap();
            (page - 16..page).for_each(|page| it.page(page, "rolled back"));
        }
    }
}

/// Reads and writes of the device take a moment, so that they meet.
#[derive(Debug, Default)]
struct Slow;

impl Hook for Slow {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let passed = pass();
        if matches!(call, DeviceCall::Write { .. } | DeviceCall::Read { .. }) {
            std::thread::sleep(Duration::from_micros(50));
        }
        passed
    }
}

/// S-20, I-WIN-1, I-WIN-2: a read that begins after a write has returned sees that write, whatever
/// was being read ahead beside it.
#[test]
fn s_369_i_win_1_i_win_2_readers_that_go_on_beside_writers_see_what_was_written() {
    const PART: usize = 96;
    for mode in MODES {
        let hooked = HookedDevice::new(device(64 << 20, 512), Slow);
        let it = Read::on(hooked, mode);
        // The last value whose write has returned, of each page.
        let returned: Vec<AtomicU8> = (0..PART).map(|_| AtomicU8::new(0)).collect();
        let all = AlignedBuf::from_slice(&[0; PART * PAGE]);
        it.file.write_at(&all, 0).unwrap();
        let (done, seen) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let (fs, returned, done, seen) = (&it.fs, &returned, &done, &seen);
            for thread in 0..2usize {
                scope.spawn(move || {
                    let file = fs.open("/f", &windowed()).unwrap();
                    let mut buf = AlignedBuf::zeroed(PAGE);
                    let began = Instant::now();
                    while !done.load(Ordering::SeqCst) && began.elapsed() < Duration::from_secs(60)
                    {
                        for (page, due) in returned.iter().enumerate() {
                            let due = due.load(Ordering::SeqCst);
                            file.read_at(&mut buf, (page * PAGE) as u64).unwrap();
                            let least = buf.iter().min().copied().unwrap_or(0);
                            assert!(least >= due, "S-20: {least} is read after {due}, {mode}");
                            seen.fetch_add(u32::from(least > 0), Ordering::Relaxed);
                        }
                        assert!(thread < 2);
                    }
                });
            }
            scope.spawn(move || {
                let file = fs.open("/f", &OpenOptions::read_write()).unwrap();
                for value in 1..=40u8 {
                    for turn in 0..PART {
                        let page = turn * 37 % PART;
                        let bytes = AlignedBuf::from_slice(&[value; PAGE]);
                        file.write_at(&bytes, (page * PAGE) as u64).unwrap();
                        returned[page].store(value, Ordering::SeqCst);
                    }
                }
                done.store(true, Ordering::SeqCst);
            });
        });
        assert!(seen.into_inner() > 0, "readers saw nothing that was written");
    }
}

/// A file was written to and then grew behind that, in one run: what is remembered of it was shorter
/// than the run, and its end was read page by page.
#[test]
fn s_368_a_file_that_grew_is_read_ahead_over_where_it_ended() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = fs.open("/f", &OpenOptions { read_windows: true, ..OpenOptions::create() }).unwrap();
    let page = |fill: usize| AlignedBuf::from_slice(&[fill as u8; PAGE]);
    let append = |pages: std::ops::Range<usize>| {
        for at in pages {
            file.write_at(&page(at), (at * PAGE) as u64).unwrap();
        }
    };
    append(0..100);
    file.write_at(&page(0), 0).unwrap();
    append(100..200);
    file.sync_all().unwrap();
    assert_eq!(file.extents().unwrap().len(), 1, "it lies together");
    let before = device.counters().reads;
    let mut buf = AlignedBuf::zeroed(PAGE);
    for at in 0..200 {
        file.read_at(&mut buf, (at * PAGE) as u64).unwrap();
        assert!(buf[..] == page(at)[..], "page {at}");
    }
    let reads = device.counters().reads - before;
    assert!(reads <= 25, "{reads} reads of the device");
}

/// Lets another thread do something while the next write has begun and not reached the device.
#[derive(Debug, Default)]
struct Beside {
    armed: AtomicBool,
    turns: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Beside {
    /// Waits once, where it is armed, until the other thread is done.
    fn let_others_go(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            let turns = self.turns.lock().unwrap();
            let (begins, ended) = turns.as_ref().unwrap();
            begins.send(()).unwrap();
            ended.recv_timeout(Duration::from_secs(60)).unwrap();
        }
    }
}

impl Hook for Beside {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        if matches!(call, DeviceCall::Write { .. }) {
            self.let_others_go();
        }
        pass()
    }
}

/// S-20, I-WIN-1: what was read ahead before a write reached the device, and after it had begun, is
/// not what a read finds once it has returned.
#[test]
fn s_369_i_win_1_what_is_read_ahead_beside_a_write_does_not_outlive_it() {
    // Windows there are before the write, or they all come during it.
    for (mode, before) in MODES.into_iter().flat_map(|mode| [(mode, 8), (mode, 0)]) {
        let hooked = HookedDevice::new(device(64 << 20, 512), Beside::default());
        let mut it = Read::on(Arc::clone(&hooked) as Arc<dyn BlockDevice>, mode);
        it.seal();
        (0..before).for_each(|page| it.page(page, "before the step"));
        let ((begins, begun), (ends, ended)) = (channel(), channel());
        *hooked.turns.lock().unwrap() = Some((begins, ended));
        let writer = it.fs.open("/f", &writing()).unwrap();
        hooked.armed.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let writer = &writer;
            let bytes = AlignedBuf::from_slice(&[201; PAGE]);
            scope.spawn(move || writer.write_at(&bytes, 12 * PAGE as u64).unwrap());
            begun.recv_timeout(Duration::from_secs(60)).unwrap();
            (before..9).for_each(|page| it.page(page, "beside the write"));
            assert!(it.fs.info().window_bytes > 0, "it was read ahead");
            ends.send(()).unwrap();
        });
        it.model[12 * PAGE..13 * PAGE].fill(201);
        (9..16).for_each(|page| it.page(page, "the write has returned"));
    }
}

/// Lets another thread do something once a thread that reads ahead has its bytes, and before it says
/// so.
#[derive(Debug, Default)]
struct ReadBehind(Beside);

impl Hook for ReadBehind {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let is_behind = std::thread::current().name() == Some("bedplate-window");
        let is_read = matches!(call, DeviceCall::Read { .. });
        let done = pass();
        if is_behind && is_read {
            self.0.let_others_go();
        }
        done
    }
}

/// S-369, I-WIN-1, I-WIN-2: what a thread reads ahead while something is written there, or its blocks
/// leave the file, is not what a read finds afterwards.
#[test]
fn s_369_i_win_1_what_a_thread_reads_ahead_beside_a_change_is_not_found() {
    for (mode, cut) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let hooked = HookedDevice::new(device(64 << 20, 512), ReadBehind::default());
        let mut it = Read::on(Arc::clone(&hooked) as Arc<dyn BlockDevice>, mode);
        it.seal();
        let ((begins, begun), (ends, ended)) = (channel(), channel());
        *hooked.0.turns.lock().unwrap() = Some((begins, ended));
        hooked.0.armed.store(true, Ordering::SeqCst);
        let writer = it.fs.open("/f", &writing()).unwrap();
        // The last one is in the second half of the first window.
        (0..14).for_each(|page| it.page(page, "before the change"));
        begun.recv_timeout(Duration::from_secs(60)).unwrap();
        let range = 16..32;
        if cut {
            writer.set_size((range.start * PAGE) as u64).unwrap();
            it.model.truncate(range.start * PAGE);
        }
        it.write(&writer, range.start * PAGE, &[201; 16 * PAGE]);
        ends.send(()).unwrap();
        (14..range.end).for_each(|page| it.page(page, "the change is done"));
    }
}

/// Fails reads of more than a page.
#[derive(Debug, Default)]
struct Short(AtomicBool);

impl Hook for Short {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let long = matches!(call, DeviceCall::Read { len, .. } if len > PAGE as u64);
        if !long || !self.0.load(Ordering::SeqCst) {
            return pass();
        }
        Err(Error {
            kind: ErrorKind::Io,
            operation: Operation::Read,
            device: "short".to_owned(),
            offset: None,
            detail: "told to fail".to_owned(),
            errno: None,
        })
    }
}

#[test]
fn s_370_what_cannot_be_read_ahead_fails_no_read() {
    let hooked = HookedDevice::new(device(64 << 20, 512), Short::default());
    let it = Read::on(Arc::clone(&hooked) as Arc<dyn BlockDevice>, IoMode::Concurrent);
    hooked.0.store(true, Ordering::SeqCst);
    (0..PAGES).for_each(|page| it.page(page, "beside sectors that cannot be read"));
    assert_eq!((it.fs.info().window_bytes, it.file.counters().window_hits), (0, 0));
}

/// What no reader uses goes within two turns of the sync daemon, and all files together have no more
/// than the tunable says.
#[test]
fn s_370_windows_are_bounded_and_go_when_nothing_uses_them() {
    let device = device(64 << 20, 512);
    format(&device, 4096);
    let mount = MountOptions {
        read_window_bytes: 512 << 10,
        sync_interval: Duration::from_millis(20),
        ..options(IoMode::Concurrent)
    };
    let fs = FileSystem::mount(Arc::clone(&device), None, mount).unwrap();
    let files: Vec<File> = (0..6)
        .map(|i| {
            let file = fs.open(format!("/{i}"), &OpenOptions::create()).unwrap();
            file.write_at(&AlignedBuf::from_slice(&[i; 64 * PAGE]), 0).unwrap();
            fs.open(format!("/{i}"), &windowed()).unwrap()
        })
        .collect();
    let mut most = 0;
    for page in 0..64u64 {
        for (i, file) in files.iter().enumerate() {
            let mut buf = AlignedBuf::zeroed(PAGE);
            file.read_at(&mut buf, page * PAGE as u64).unwrap();
            assert_eq!(buf[PAGE - 1], i as u8);
            most = most.max(fs.info().window_bytes);
        }
    }
    assert!((1..=512 << 10).contains(&most), "S-370: {most} bytes");
    let began = Instant::now();
    while fs.info().window_bytes > 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "they stay");
        std::thread::sleep(Duration::from_millis(5));
    }
}
