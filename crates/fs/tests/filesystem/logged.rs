//! Small durable appends, of which the log has the data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::{
    AlignedBuf, BlockDevice, CrashChoice, DeviceCall, Hook, HookedDevice, SimulatedDevice,
    SimulatedOptions, Snapshot,
};
use bedplate_fs::{CheckpointOptions, File, FileSystem, IoMode, MountOptions, OpenOptions};

use crate::common::assert_sound;
use crate::support::{Random, device, format, mount_as, options};

/// A file with a model of it, on a device that forgets.
struct Bed {
    device: Arc<SimulatedDevice>,
    fs: FileSystem,
    file: File,
    model: Vec<u8>,
    random: Random,
}

impl Bed {
    fn new(seed: u64, block: u32, mode: IoMode) -> Self {
        let mut base = Snapshot::empty(40 << 20);
        let stale = vec![0xdb; 1 << 20];
        (0..40).for_each(|mib| base.write(&stale, mib << 20));
        let options = SimulatedOptions { seed, ..SimulatedOptions::default() };
        let device = SimulatedDevice::over(&base, &options);
        let shared: Arc<dyn BlockDevice> = device.clone();
        format(&shared, block);
        let fs = mount_as(&shared, mode);
        let file = fs.open("/log", &OpenOptions::create()).unwrap();
        file.sync_all().unwrap();
        Self { device, fs, file, model: Vec::new(), random: Random::new(seed) }
    }

    fn write(&mut self, at: usize, len: usize) {
        let mut bytes = AlignedBuf::zeroed(len);
        self.random.fill(&mut bytes);
        self.file.write_at(&bytes, at as u64).unwrap();
        self.model.resize(self.model.len().max(at + len), 0);
        self.model[at..at + len].copy_from_slice(&bytes);
    }

    /// Appends, and returns how many writes of the device that was with the sync.
    fn append(&mut self, len: usize) -> usize {
        let before = self.device.counters().writes;
        self.write(self.model.len(), len);
        self.file.sync_data().unwrap();
        (self.device.counters().writes - before) as usize
    }

    fn holds(&self, file: &File, context: &str) {
        let mut seen = vec![0; self.model.len() + 1];
        let len = file.read_at(&mut seen, 0).unwrap();
        assert_eq!(len, self.model.len(), "{context}");
        assert!(seen[..len] == self.model[..], "{context}");
    }

    /// What a power cut leaves now, of which nothing reached the device but what was flushed.
    fn cut(&self, choice: &CrashChoice) -> Arc<dyn BlockDevice> {
        self.device.crash_image(self.device.operation_count(), choice)
    }

    /// A mount after a power cut, read-only and then for writing, has all of it.
    fn survives(&self, context: &str) {
        for choice in [CrashChoice::LoseAll, CrashChoice::KeepAll] {
            let image = self.cut(&choice);
            let read_only = MountOptions { read_only: true, ..options(IoMode::Concurrent) };
            let fs = FileSystem::mount(Arc::clone(&image), None, read_only).unwrap();
            let file = fs.open("/log", &OpenOptions::read_only()).unwrap();
            self.holds(&file, &format!("read-only, {context}"));
            drop(file);
            fs.unmount().unwrap();
            let fs = mount_as(&image, IoMode::Concurrent);
            let file = fs.open("/log", &OpenOptions::read_only()).unwrap();
            self.holds(&file, context);
            drop(file);
            fs.unmount().unwrap();
            assert_sound(&image);
        }
    }
}

/// S-596: one write of the device for each, and a power cut takes none.
#[test]
fn s_596_a_small_durable_append_is_one_write_of_the_device() {
    for (seed, block, len) in [(1, 4096, 512), (2, 4096, 4096), (3, 512, 1024), (4, 16_384, 2048)] {
        let mut bed = Bed::new(seed, block, IoMode::Concurrent);
        bed.append(len);
        let writes: usize = (0..20).map(|_| bed.append(len)).sum();
        // An append that takes another block is no exception.
        assert_eq!(writes, 20, "S-596: {len} bytes in blocks of {block}");
        bed.holds(&bed.file, "S-596: what the log has is read");
        bed.survives("S-596: after a power cut");
    }
}

/// S-596: pieces of any length, overwrites among them and close to the end, and what needs the
/// bytes where they belong: each leaves the file as it was written.
#[test]
fn s_596_what_the_log_has_is_seen_by_everything_that_reads_or_changes_the_file() {
    for seed in 0..12 {
        let mode = IoMode::ALL[seed as usize % IoMode::ALL.len()];
        let mut bed = Bed::new(seed, [4096, 512][seed as usize % 2], mode);
        for step in 0..120 {
            let context = format!("seed {seed}, step {step}, {mode}");
            let len = bed.model.len();
            match bed.random.below(12) {
                0..5 => _ = bed.append(512 * (1 + seed as usize % 4)),
                5 => _ = bed.append(1 + step * 7 % 700),
                6 if len > 600 => {
                    // Near the end, in part of a sector, and not durable before the next sync.
                    let at = len - 1 - bed.random.below(600) as usize;
                    bed.write(at, (len - at).min(100));
                }
                7 if len > 4096 => {
                    let at = bed.random.below(len as u64 - 2048) as usize / 512 * 512;
                    bed.write(at, 1024);
                }
                8 if len > 0 => {
                    let size = bed.random.below(len as u64);
                    bed.file.set_size(size).unwrap();
                    bed.model.truncate(size as usize);
                }
                9 => {
                    let name = format!("/copy{step}");
                    let to = bed.fs.open(&name, &OpenOptions::create()).unwrap();
                    let all = len as u64;
                    bed.file.copy_range(0, &to, 0, all).unwrap();
                    bed.holds(&to, &context);
                    drop(to);
                    bed.fs.remove(&name).unwrap();
                }
                10 => {
                    let name = format!("c{step}");
                    bed.fs.create_checkpoint(name, &CheckpointOptions::default()).unwrap();
                }
                _ => bed.file.sync_all().unwrap(),
            }
            bed.holds(&bed.file, &context);
            if step % 20 == 19 {
                bed.file.sync_all().unwrap();
                bed.survives(&context);
            }
        }
    }
}

/// What keeps the pages of a cached file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pages {
    /// The library cache.
    Library,
    /// The caller, as the kernel above a mount: what it writes passes the library cache.
    Caller,
}

const PAGES: [Pages; 2] = [Pages::Library, Pages::Caller];

impl Bed {
    /// Of a cached file, on a volume with a log of so many bytes.
    fn with_log(seed: u64, block: u32, log_bytes: u64, pages: Pages) -> Self {
        let mut bed = Self::new(seed, block, IoMode::Cached);
        bed.fs.resize_log(log_bytes, false).unwrap();
        if pages == Pages::Caller {
            // Of what was synced through another open nothing is known to this one.
            let caller = OpenOptions {
                caller_caches: true,
                delay_writes: true,
                read_windows: true,
                ..OpenOptions::read_write()
            };
            bed.file = bed.fs.open("/log", &caller).unwrap();
            bed.file.sync_all().unwrap();
        }
        bed
    }

    /// Syncs, and returns how many writes and flushes of the device that was.
    fn sync(&self) -> (u64, u64) {
        let before = self.device.counters();
        self.file.sync_data().unwrap();
        let after = self.device.counters();
        (after.writes - before.writes, after.flushes - before.flushes)
    }
}

/// S-539: a log of which the last page is written over with each commit, as SQLite's is through a
/// cache of pages.
#[test]
fn s_539_pages_over_what_the_log_has_are_one_write_of_the_device_with_what_is_added() {
    let cases = [(1, 4096), (2, 512), (3, 16_384)];
    for ((seed, block), pages) in cases.into_iter().flat_map(|case| PAGES.map(|it| (case, it))) {
        let mut bed = Bed::with_log(seed, block, 8 << 20, pages);
        // No record carries what is synced first.
        bed.write(0, 40 << 10);
        bed.sync();
        for commit in 0..24 {
            let end = bed.model.len();
            let page = end / 4096 * 4096;
            // What is there of the last page goes through the cache once more.
            let kept = bed.model[page..].to_vec();
            bed.file.write_at(&kept, page as u64).unwrap();
            bed.write(end, 4120);
            let costs = bed.sync();
            if commit > 1 {
                assert_eq!(costs, (1, 1), "S-539: {pages:?}, commit {commit}, blocks of {block}");
            }
            bed.holds(&bed.file, "S-539: what the log has is read");
            if commit % 6 == 5 {
                bed.survives(&format!("S-539: after commit {commit}"));
            }
        }
    }
}

/// S-539: a rollback journal, which counts once its head is written over.
#[test]
fn s_539_a_head_that_is_written_over_again_and_again_needs_no_seal() {
    for pages in PAGES {
        let mut bed = Bed::with_log(5, 4096, 8 << 20, pages);
        bed.write(0, 9000);
        bed.sync();
        for round in 0..30 {
            bed.write(round * 7 % 512, 12 + round);
            assert_eq!(bed.sync(), (1, 1), "S-539: {pages:?}, round {round}");
            bed.holds(&bed.file, "S-539: what the log has is read");
            bed.survives(&format!("S-539: {pages:?}, after round {round}"));
        }
    }
}

/// S-539: the first page of a database, which each commit changes beside another one: a record that is
/// written anyway carries it along, and no more of its kind than a record may have between two syncs.
#[test]
fn s_539_a_little_goes_along_with_what_a_record_carries() {
    for pages in PAGES {
        let mut bed = Bed::with_log(11, 4096, 8 << 20, pages);
        bed.write(0, 400 << 10);
        bed.sync();
        // Nothing vouches for any of it.
        bed.fs.sync().unwrap();
        bed.fs.resize_log(6 << 20, false).unwrap();
        bed.append(2000);
        for round in 0..24 {
            let page = |number: usize| (number % 40) * 4096;
            let before = bed.device.counters();
            bed.write(0, 4096);
            bed.write(page(round + 3), 4096);
            bed.append(100);
            let after = bed.device.counters();
            let costs = (after.writes - before.writes, after.flushes - before.flushes);
            assert_eq!(costs, (1, 1), "S-539: {pages:?}, round {round}");
            bed.holds(&bed.file, "S-539: what the log has is read");
            if round % 8 == 7 {
                bed.survives(&format!("S-539: {pages:?}, round {round}"));
            }
        }
        // Of eight more pages half go along, which are 16 KiB, and half to their place.
        let before = bed.device.counters().writes;
        (0..8).for_each(|number| bed.write((42 + 2 * number) * 4096, 4096));
        bed.sync();
        let writes = bed.device.counters().writes - before;
        assert_eq!(writes, 4 + 1, "S-539: {pages:?}");
        bed.survives(&format!("S-539: {pages:?}, much at once"));
    }
}

/// S-539: what a record expects on the device is sealed before it is written over, whatever the log
/// has beside it: a cut finds everything that was synced, also when the data of the log was on its way
/// to its place.
#[test]
fn s_539_what_the_log_has_not_is_sealed_first() {
    for pages in PAGES {
        let mut bed = Bed::with_log(3, 4096, 8 << 20, pages);
        bed.append(2048);
        // More than a record carries, and then over that, over what was carried before it, and over
        // both once more.
        bed.write(bed.model.len(), 40 << 10);
        bed.sync();
        for (at, len) in [(20 << 10, 4000), (0, 512), (20 << 10, 100), (1000, 3000)] {
            bed.write(at, len);
            bed.sync();
        }
        let mut synced = Vec::new();
        for _ in 0..70 {
            let model = bed.model.clone();
            let start = bed.device.operation_count();
            bed.append(4096);
            synced.extend((start..bed.device.operation_count()).map(|at| (at, model.clone())));
        }
        for (at, model) in synced {
            for choice in [CrashChoice::LoseAll, CrashChoice::KeepAll] {
                let image: Arc<dyn BlockDevice> = bed.device.crash_image(at, &choice);
                let seen = content(&image, model.len());
                assert!(seen == model, "S-539: {pages:?}, operation {at}, {choice:?}");
            }
        }
    }
}

/// What a mount of an image finds in the file, of which it reads so many bytes.
fn content(image: &Arc<dyn BlockDevice>, len: usize) -> Vec<u8> {
    let fs = mount_as(image, IoMode::Cached);
    let file = fs.open("/log", &OpenOptions::read_only()).unwrap();
    let mut seen = vec![0; len];
    let len = file.read_at(&mut seen, 0).unwrap();
    seen.truncate(len);
    drop(file);
    fs.unmount().unwrap();
    seen
}

/// S-539: a power cut between syncs leaves what was synced, whole, or what was written since.
#[test]
fn s_539_no_cut_between_two_syncs_takes_what_the_first_one_had() {
    for pages in PAGES {
        let mut bed = Bed::with_log(9, 4096, 8 << 20, pages);
        bed.append(3000);
        for round in 0..12 {
            let (before, start) = (bed.model.clone(), bed.device.operation_count());
            bed.write(bed.model.len() - 900, 1800);
            bed.file.sync_data().unwrap();
            let end = bed.device.operation_count();
            for at in start..=end {
                let choices =
                    [CrashChoice::LoseAll, CrashChoice::KeepAll, CrashChoice::Seeded(at as u64)];
                for choice in choices {
                    let image: Arc<dyn BlockDevice> = bed.device.crash_image(at, &choice);
                    let seen = content(&image, bed.model.len() + 1);
                    let context =
                        format!("S-539: {pages:?}, round {round}, operation {at}, {choice:?}");
                    is_one_or_the_other(&seen, &before, &bed.model, &context);
                    assert!(at < end || seen == bed.model, "{context}");
                }
            }
        }
    }
}

/// Asserts that each byte is as it was before a write of the last 900 bytes and 900 more, or after it.
fn is_one_or_the_other(seen: &[u8], before: &[u8], after: &[u8], context: &str) {
    let kept = before.len() - 900;
    assert!(seen.starts_with(&before[..kept]) && seen.len() >= before.len(), "{context}");
    let either = |at: usize| seen[at] == before[at] || seen[at] == after[at];
    assert!((kept..before.len()).all(either), "{context}");
}

/// Refuses writes of the device that bring much at once, as those that take data out of the log.
#[derive(Debug, Default)]
struct Gate(AtomicBool);

impl Hook for Gate {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        let is_large = matches!(call, DeviceCall::Write { bytes, .. } if bytes.len() >= 64 << 10);
        if is_large && self.0.load(Ordering::SeqCst) {
            return Err(bedplate_block::Error {
                kind: bedplate_block::ErrorKind::Io,
                operation: call.operation(),
                device: "gate".to_owned(),
                offset: None,
                detail: "told to refuse large writes".to_owned(),
                errno: None,
            });
        }
        pass()
    }
}

/// So many appends of a block are more than is to wait.
const COUNT: u64 = 70;

/// S-597: what cannot be written where it belongs stays in the log, with all that was synced.
#[test]
fn s_597_what_cannot_leave_the_log_is_there_after_a_mount() {
    for lasts in [false, true] {
        let inner = device(64 << 20, 512);
        format(&inner, 4096);
        let gate = HookedDevice::new(Arc::clone(&inner), Gate::default());
        let hook = &gate;
        let fs =
            FileSystem::mount(Arc::clone(&gate) as _, None, options(IoMode::Concurrent)).unwrap();
        let file = fs.open("/log", &OpenOptions::create()).unwrap();
        file.sync_all().unwrap();
        hook.0.store(true, Ordering::SeqCst);
        for at in 0..COUNT {
            let bytes = AlignedBuf::from_slice(&[at as u8; 4096]);
            file.write_at(&bytes, at * 4096).unwrap();
            file.sync_data().unwrap();
        }
        let holds = |file: &File| {
            let mut seen = AlignedBuf::zeroed(4096);
            for at in 0..COUNT {
                assert_eq!(file.read_at(&mut seen, at * 4096).unwrap(), 4096, "S-597: {at}");
                assert!(seen.iter().all(|byte| *byte == at as u8), "S-597: {at}");
            }
        };
        holds(&file);
        drop(file);
        hook.0.store(lasts, Ordering::SeqCst);
        let ended = fs.unmount();
        assert_eq!(ended.is_err(), lasts, "S-597: {ended:?}");
        let fs = mount_as(&inner, IoMode::Concurrent);
        holds(&fs.open("/log", &OpenOptions::read_only()).unwrap());
        fs.unmount().unwrap();
        assert_sound(&inner);
    }
}

/// S-596: a log that moves while appends go on loses nothing that only it had.
#[test]
fn s_596_a_log_moves_beside_appends_whose_data_it_has() {
    for seed in 0..4 {
        let mut bed = Bed::new(seed, 4096, IoMode::Concurrent);
        let fs = &bed.fs;
        let (file, ended) = (&bed.file, AtomicBool::new(false));
        let appended = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut appended = Vec::new();
                while !ended.load(Ordering::SeqCst) || appended.len() < 20 {
                    let byte = appended.len() as u8;
                    let at = appended.len() as u64 * 512;
                    file.write_at(&AlignedBuf::from_slice(&[byte; 512]), at).unwrap();
                    file.sync_data().unwrap();
                    appended.push(byte);
                }
                appended
            });
            for mib in [2, 1, 3, 2, 1, 2] {
                fs.resize_log(mib << 20, false).unwrap();
            }
            ended.store(true, Ordering::SeqCst);
            writer.join().unwrap()
        });
        bed.model = appended.iter().flat_map(|byte| [*byte; 512]).collect();
        bed.holds(&bed.file, "S-596: while it is mounted");
        bed.survives("S-596: a log that moved");
    }
}

/// S-596: blocks that another file gets too are on the device by then: it may have a lease.
#[test]
fn s_596_what_a_copied_range_shares_is_on_the_device() {
    let mut bed = Bed::new(7, 4096, IoMode::Concurrent);
    (0..8).for_each(|_| _ = bed.append(4096));
    let on_device = |bed: &Bed, file: &File| -> Vec<u8> {
        let mut bytes = Vec::new();
        for extent in file.extents().unwrap() {
            let mut buf = AlignedBuf::zeroed(extent.len as usize);
            bed.device.read_at(&mut buf, extent.volume_offset).unwrap();
            bytes.extend_from_slice(&buf);
        }
        bytes.truncate(bed.model.len());
        bytes
    };
    assert!(on_device(&bed, &bed.file) != bed.model, "S-596: the log alone has it");
    let copy = bed.fs.open("/copy", &OpenOptions::create()).unwrap();
    let len = bed.model.len() as u64;
    assert_eq!(bed.file.copy_range(0, &copy, 0, len).unwrap(), len);
    assert!(on_device(&bed, &copy) == bed.model, "S-596: the copy reads the device");
}
