//! Files in `concurrent+cache`, whose pages processes read in the library cache by themselves.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use bedplate_fs::{RollbackOptions, SharedCache, Tunable, TuneOptions};
use bedplate_lease::PageReader;

use super::*;

const PAGE: u64 = BLOCK as u64;
/// What is written at once: two pages of one group.
const UNIT: usize = 2 * BLOCK;

fn volume(cache_bytes: u64) -> Volume {
    let sync_interval = Duration::from_secs(3600);
    let mode = IoMode::ConcurrentCache;
    Volume::with(MountOptions { mode, sync_interval, cache_bytes, ..MountOptions::default() })
}

/// A process that reads pages, which is a thread here.
struct Pages {
    reader: Reader<SharedMemory>,
    pages: PageReader<SharedMemory>,
    frames: Descriptor,
}

impl Pages {
    fn attach(fs: &FileSystem) -> Self {
        let SharedCache { frames, directory, uses } = fs.lease_cache().unwrap();
        let frames = Descriptor::from(frames.for_readers().unwrap());
        let bytes = frames.metadata().unwrap().len() as usize;
        let pages = PageReader::open(directory, uses, bytes).unwrap();
        Self { reader: Reader::open(fs.lease_memory().unwrap()).unwrap(), pages, frames }
    }

    /// Reads as the library for programs does; nothing where that asks the mount. `meanwhile`
    /// happens before what was read is looked at again.
    fn read_beside(
        &self,
        lease: Lease,
        offset: u64,
        len: usize,
        meanwhile: impl FnOnce(),
    ) -> Option<Vec<u8>> {
        let file = self.reader.cached_file(lease)?;
        let pages = offset / PAGE..(offset + len as u64).div_ceil(PAGE);
        let seen: Option<Vec<_>> =
            pages.clone().map(|page| self.pages.find(file.file, page)).collect();
        let seen = seen?;
        let mut bytes = vec![0; seen.len() * BLOCK];
        for (seen, part) in seen.iter().zip(bytes.chunks_mut(BLOCK)) {
            self.frames.read_exact_at(part, u64::from(seen.frame) * PAGE).unwrap();
            self.pages.note_use(seen, 0, BLOCK);
        }
        meanwhile();
        let is_still = seen.iter().all(|seen| self.pages.is_still(seen))
            && self.reader.is_still_cached(lease, &file);
        let skip = (offset - pages.start * PAGE) as usize;
        is_still.then(|| bytes[skip..skip + len].to_vec())
    }

    fn read(&self, lease: Lease, offset: u64, len: usize) -> Option<Vec<u8>> {
        self.read_beside(lease, offset, len, || ())
    }

    /// The byte that fills a block of a file.
    fn block(&self, lease: Lease, block: usize) -> Option<u8> {
        let bytes = self.read(lease, block as u64 * PAGE, BLOCK)?;
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a block of one byte");
        Some(bytes[0])
    }
}

/// S-422, I-CACHE-10: a process reads in the cache what the mount has there, all of a page or nothing,
/// and asks the mount for the rest.
#[test]
fn s_422_what_is_read_in_the_cache_is_what_the_mount_reads() {
    let volume = volume(8 << 20);
    let file = volume.filled("f", 8);
    let client = Pages::attach(&volume.fs);
    let lease = file.lease().unwrap();
    assert_eq!(client.reader.find(file.ino().0), Some(lease));
    assert!((0..8).all(|block| client.block(lease, block).is_none()), "not before it is read");
    (0..8).for_each(|block| assert_eq!(read(&file, block), block as u8 + 1));
    (0..8).for_each(|block| assert_eq!(client.block(lease, block), Some(block as u8 + 1)));
    write(&file, 3, 77);
    assert_eq!(client.block(lease, 3), Some(77), "written, and still there");
    let odd = client.read(lease, 2 * PAGE + 100, BLOCK).unwrap();
    assert!(odd[..BLOCK - 100].iter().all(|byte| *byte == 3));
    assert!(odd[BLOCK - 100..].iter().all(|byte| *byte == 77));
    file.write_at(&[9; 100], 8 * PAGE).unwrap();
    let mut part = [0; 200];
    assert_eq!(file.read_at(&mut part, 8 * PAGE).unwrap(), 100);
    assert_eq!(client.read(lease, 8 * PAGE, 100), None, "the end is the mount's to tell");
    write(&file, 8, 10);
    assert_eq!(read(&file, 8), 10);
    assert_eq!(client.block(lease, 8), Some(10), "the page is whole now");
    let direct = Client::attach(&volume.fs);
    let refused = direct.begin(lease, Direction::Read, 0);
    assert_eq!(refused, Err(Fallback::Uncached), "nothing of it is done on the device");
    assert_eq!(direct.begin(lease, Direction::Write, 0), Err(Fallback::Uncached));
    assert_eq!(direct.sync(lease), Err(Fallback::Uncached));
    assert_eq!(file.lease_odd_writes(direct.slots.client()), Err(Reason::Mode));
    drop(file);
    assert_eq!(client.block(lease, 0), None, "its last open has ended");
    volume.end();
}

/// What one unit of the file is at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Filled(u64),
    Absent,
}

/// A file of which one thread changes a unit in every way, one after another, and others read it.
struct Changed<'a> {
    volume: &'a Volume,
    file: &'a File,
    /// What it was, from the first moment on.
    history: Mutex<Vec<State>>,
    /// How many changes have begun, and ended.
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Changed<'_> {
    fn change(&self, to: State, how: impl FnOnce()) {
        self.history.lock().unwrap().push(to);
        self.begun.fetch_add(1, SeqCst);
        how();
        self.ended.fetch_add(1, SeqCst);
    }

    fn write(&self, stamp: u64) {
        self.change(State::Filled(stamp), || {
            let mut unit = AlignedBuf::zeroed(UNIT);
            unit.chunks_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_ne_bytes()));
            self.file.write_at(&unit, 0).unwrap();
        });
    }

    /// One change of another kind, and what makes the file long again.
    fn step(&self, step: u64) {
        let size = UNIT as u64;
        let modes = |mode| self.volume.fs.set_io_mode(self.file.ino(), mode).unwrap();
        match step % 7 {
            0 => {
                self.change(State::Absent, || self.file.set_size(0).unwrap());
                self.change(State::Filled(0), || self.file.set_size(size).unwrap());
            }
            1 => self.change(State::Filled(0), || {
                self.file.allocate(AllocateMode::PunchHole, 0, size).unwrap();
            }),
            2 => {
                modes(Some(IoMode::Concurrent));
                self.write(step + 1_000_000);
                modes(None);
            }
            3 => self.change(State::Filled(0), || {
                let zero = AllocateMode::ZeroRange { keep_size: true };
                self.file.allocate(zero, 0, size).unwrap();
            }),
            4 => {
                self.change(State::Absent, || self.file.set_size(size - 700).unwrap());
                // A write that makes a file longer moves its end before its bytes are there.
                self.change(State::Absent, || self.file.set_size(0).unwrap());
                self.write(step + 2_000_000);
            }
            5 => {
                modes(Some(IoMode::Cached));
                self.write(step + 3_000_000);
                modes(None);
            }
            _ => {}
        }
        // What was served another way is asked for again, as the daemon does.
        let _mixed_or_leased = self.file.lease();
    }

    /// Reads the unit by both ways, and compares with what it was since the read began.
    fn look(&self, client: &Pages, lease: Lease) -> bool {
        let first = self.ended.load(SeqCst) as usize;
        let found = client.read(lease, 0, UNIT);
        let last = self.begun.load(SeqCst) as usize;
        let Some(bytes) = found else {
            let mut unit = AlignedBuf::zeroed(UNIT);
            self.file.read_at(&mut unit, 0).unwrap();
            return false;
        };
        let words: Vec<u64> =
            bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
        let history = self.history.lock().unwrap();
        let was = &history[first..=last];
        let is_one = words.iter().all(|word| *word == words[0]);
        assert!(
            is_one && was.contains(&State::Filled(words[0])),
            "S-422: {} and {}, where it was {was:?}",
            words[0],
            words[words.len() - 1]
        );
        true
    }
}

/// Ends the readers also when the thread that changes the file fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// S-422, S-423: whatever changes the file meanwhile, a process reads in the cache what the file was
/// at some moment of the read; what has returned is seen by every read after it.
#[test]
fn s_422_reads_beside_changes_are_of_some_moment_of_the_read() {
    let volume = volume(8 << 20);
    let file = volume.open("f");
    let history = Mutex::new(vec![State::Absent]);
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    let changed = Changed { volume: &volume, file: &file, history, begun, ended };
    changed.write(1);
    let lease = file.lease().unwrap();
    let (is_over, hits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let client = Pages::attach(&volume.fs);
            let (is_over, hits, changed) = (&is_over, &hits, &changed);
            scope.spawn(move || {
                while !is_over.load(SeqCst) {
                    hits.fetch_add(u64::from(changed.look(&client, lease)), SeqCst);
                }
            });
        }
        let ends = Ends(&is_over);
        for step in 0..1500 {
            (0..4).for_each(|i| changed.write(10 + step * 4 + i));
            changed.step(step);
            if step % 5 == 0 {
                std::thread::yield_now();
            }
        }
        drop(ends);
    });
    assert!(hits.into_inner() > 500, "the cache is of use between the changes");
    drop(file);
    volume.end();
}

/// S-422: writes that overlap in time leave no page that is neither.
#[test]
fn s_422_overlapping_writes_leave_what_the_device_has() {
    let volume = volume(8 << 20);
    let file = volume.filled("f", 4);
    let client = Pages::attach(&volume.fs);
    let lease = file.lease().unwrap();
    for round in 0..100_u8 {
        (0..2).for_each(|block| drop(file.read_at(&mut aligned(0), block * PAGE)));
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let file = &file;
                scope.spawn(move || {
                    let mut unit = AlignedBuf::zeroed(UNIT);
                    unit.fill(round * 2 + writer);
                    file.write_at(&unit, 0).unwrap();
                });
            }
        });
        let found = client.read(lease, 0, UNIT);
        let mut unit = AlignedBuf::zeroed(UNIT);
        file.read_at(&mut unit, 0).unwrap();
        assert!(found.is_none_or(|found| found[..] == unit[..]), "round {round}");
    }
    drop(file);
    volume.end();
}

/// S-423, I-LEA-11: truncation, punching, a rollback, another mode, a mapping and the last close hold for
/// reads in the cache as soon as they have returned.
#[test]
fn s_423_what_takes_pages_away_holds_at_once() {
    let volume = volume(8 << 20);
    let file = volume.filled("f", 8);
    let client = Pages::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let bring = || (0..8).for_each(|block| drop(file.read_at(&mut aligned(0), block * PAGE)));
    bring();
    assert_eq!(client.block(lease, 6), Some(7));
    file.allocate(AllocateMode::PunchHole, 6 * PAGE, PAGE).unwrap();
    assert_eq!(client.block(lease, 6).unwrap_or(0), 0, "punched");
    file.set_size(5 * PAGE + 10).unwrap();
    assert_eq!((client.block(lease, 5), client.block(lease, 7)), (None, None), "cut off");
    assert_eq!(client.block(lease, 4), Some(5), "before the end");
    file.set_size(8 * PAGE).unwrap();
    bring();
    let end = client.read(lease, 5 * PAGE, BLOCK).unwrap();
    assert!(end[..10].iter().all(|byte| *byte == 6) && end[10..].iter().all(|byte| *byte == 0));
    volume.fs.create_checkpoint("then", &CheckpointOptions::default()).unwrap();
    write(&file, 2, 99);
    assert_eq!(client.block(lease, 2).unwrap_or(99), 99);
    volume.fs.rollback("then", &RollbackOptions { path: None, force: true }).unwrap();
    assert!(client.block(lease, 2).is_none_or(|byte| byte == 3), "rolled back");
    bring();
    let direct =
        OpenOptions { direct_flag: true, mode: Some(IoMode::Direct), ..OpenOptions::read_write() };
    let other = volume.fs.open("f", &direct).unwrap();
    assert_eq!(client.block(lease, 0), None, "served without the cache");
    drop(other);
    assert_eq!(client.block(lease, 0), None, "until it is asked for anew");
    assert_eq!(file.lease(), Ok(lease));
    bring();
    assert!(client.block(lease, 0).is_some());
    file.suspend_lease();
    assert_eq!(client.block(lease, 0), None, "mapped");
    assert_eq!(file.lease(), Err(Reason::Suspended));
    drop(file);
    volume.end();
}

/// S-424: nothing waits for a process that reads in the cache, and what it had begun it does not
/// use.
#[test]
fn s_424_nothing_waits_for_a_read_in_the_cache() {
    let volume = volume(8 << 20);
    let file = volume.filled("f", 8);
    let client = Pages::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let bring = || (0..8).for_each(|block| drop(file.read_at(&mut aligned(0), block * PAGE)));
    bring();
    let write_meanwhile = || write(&file, 1, 50);
    assert_eq!(client.read_beside(lease, PAGE, BLOCK, write_meanwhile), None, "written");
    let cut_meanwhile = || file.set_size(PAGE).unwrap();
    assert_eq!(client.read_beside(lease, PAGE, BLOCK, cut_meanwhile), None, "cut off");
    assert_eq!(client.block(lease, 0), Some(1));
    let suspended = || file.suspend_lease();
    assert_eq!(client.read_beside(lease, 0, BLOCK, suspended), None, "mapped");
    assert_eq!(volume.fs.lease_report().unwrap().long_waits, 0);
    drop(file);
    volume.end();
}

/// S-425: what processes read in the cache stays there before what is read once; and what they say
/// of it changes no byte.
#[test]
fn s_425_uses_by_processes_count() {
    const CACHE_PAGES: usize = 256;
    let volume = volume((CACHE_PAGES * BLOCK) as u64);
    let file = volume.filled("f", 16);
    let scanned = volume.open("scanned");
    (0..1200).for_each(|block| write(&scanned, block, block as u8));
    let client = Pages::attach(&volume.fs);
    let (lease, _) = (file.lease().unwrap(), scanned.lease().unwrap());
    (0..16).for_each(|block| assert_eq!(read(&file, block), block as u8 + 1));
    for round in 0..12 {
        for block in 0..16 {
            assert_eq!(client.block(lease, block), Some(block as u8 + 1), "round {round}");
        }
        // At random, so that nothing is read ahead.
        for block in (0..100).map(|i| (round * 100 + i) * 7 % 1200) {
            assert_eq!(read(&scanned, block), block as u8);
        }
    }
    let SharedCache { uses, .. } = volume.fs.lease_cache().unwrap();
    uses[..4096].iter().for_each(|word| word.store(u64::MAX, SeqCst));
    (0..1200).for_each(|block| assert_eq!(read(&scanned, block), block as u8));
    (0..16).for_each(|block| assert_eq!(read(&file, block), block as u8 + 1));
    (0..16).for_each(|block| assert_eq!(client.block(lease, block), Some(block as u8 + 1)));
    drop((file, scanned));
    volume.end();
}

/// A cache that becomes smaller and larger under readers.
#[test]
fn s_422_a_cache_of_another_size_has_the_same_bytes() {
    let volume = volume(8 << 20);
    let file = volume.filled("f", 250);
    let client = Pages::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let (is_over, hits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut seen = HashSet::new();
            while !is_over.load(SeqCst) {
                for block in 0..250 {
                    match client.block(lease, block) {
                        Some(byte) => {
                            assert_eq!(byte, (block + 1) as u8);
                            seen.insert(block);
                            hits.store(seen.len() as u64, SeqCst);
                        }
                        None => assert_eq!(read(&file, block), (block + 1) as u8),
                    }
                }
            }
        });
        let ends = Ends(&is_over);
        let deadline = Instant::now() + Duration::from_secs(60);
        for round in 0.. {
            if round >= 24 && hits.load(SeqCst) > 100 {
                break;
            }
            assert!(Instant::now() < deadline, "{} blocks were found", hits.load(SeqCst));
            let bytes = if round % 2 == 0 { 256 << 10 } else { 8 << 20 };
            let changes = vec![(Tunable::Cache, Some(bytes))];
            volume.fs.tune(&TuneOptions { changes, live_only: true }).unwrap();
            std::thread::sleep(Duration::from_millis(25));
        }
        drop(ends);
        reading.join().unwrap();
    });
    drop(file);
    volume.end();
}
