//! What a file in pieces of 8 KiB costs in metadata: bytes of the tree and of the log, the time to
//! mount and to open it, and what a million random reads, or one for each piece, take: time, memory of
//! the file's map, and of the process, and how often a part of the map was read:
//!
//! ```sh
//! cargo run --release -p bedplate-fs --example pieces --features forge -- 100000 1000000
//! ```
//!
//! The file is written in one piece, made untorn, and then written once more, unit by unit in a
//! random order. What is told of writes is of up to two million units after that, in another order,
//! with a sync after 32, on a new mount that has the file's map in memory; and of up to half of the
//! units after a checkpoint, which keeps what each of them changes. The device is in memory and keeps
//! no data of the file.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for people")]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceCounters, DeviceQueue, EngineReport, Geometry, MemoryDevice,
    QueueOptions, Result,
};
use bedplate_fs::{
    CheckpointOptions, File, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, forge,
};

const UNIT: u64 = 8192;
const UNITS_OF_SYNC: usize = 32;
/// The most units that are written while it is measured.
const WRITES_MAX: usize = 2_000_000;
/// Fewer units than a part of the file's map has.
const UNITS_OF_PART: usize = 32;
/// What the file is full of.
const DATA: u8 = 0xd7;

/// A device that forgets the file's data, and counts what is written to the log and to the rest.
#[derive(Debug)]
struct Forgetful {
    memory: Arc<MemoryDevice>,
    log: OnceLock<Range<u64>>,
    logged: AtomicU64,
    others: AtomicU64,
}

impl BlockDevice for Forgetful {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.memory.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let ends = [buf.first(), buf.last(), buf.get(buf.len() / 2)];
        if ends == [Some(&DATA); 3] {
            return Ok(());
        }
        let in_log = self.log.get().is_some_and(|log| log.contains(&offset));
        let count = if in_log { &self.logged } else { &self.others };
        count.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.memory.write_at(buf, offset)
    }

    fn flush(&self) -> Result<()> {
        self.memory.flush()
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.write_zeroes(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        self.memory.discard(offset, len)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        self.memory.queue(options)
    }

    fn engine(&self) -> EngineReport {
        self.memory.engine()
    }

    fn counters(&self) -> DeviceCounters {
        self.memory.counters()
    }
}

fn mount(device: &Arc<dyn BlockDevice>, map_bytes: Option<u64>) -> FileSystem {
    let default = MountOptions::default();
    let map_bytes = map_bytes.unwrap_or(default.map_bytes);
    let options = MountOptions { mode: IoMode::Concurrent, map_bytes, ..default };
    FileSystem::mount(Arc::clone(device), None, options).unwrap()
}

fn shuffled(units: u64) -> Vec<u64> {
    let (mut order, mut random): (Vec<u64>, u64) = ((0..units).collect(), 7);
    for at in (1..order.len()).rev() {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (random >> 33) as usize % (at + 1));
    }
    order
}

/// Microseconds of processors that the first thread of this process, which writes, took so far, and
/// that all took.
fn busy() -> [f64; 2] {
    let first = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    let first = first.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e3;
    let all = std::fs::read_to_string("/proc/self/stat").unwrap();
    let ticks = all.split(' ').skip(13).take(2).map(|ticks| ticks.parse::<f64>().unwrap());
    // A tick is a hundredth of a second.
    [first, ticks.sum::<f64>() * 1e4]
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Writes units, with a sync after so many.
fn write<'a>(file: &File, data: &[u8], units: impl Iterator<Item = &'a u64>, sync: usize) {
    for (count, unit) in units.enumerate() {
        file.write_at(&data[..UNIT as usize], unit * UNIT).unwrap();
        if count % sync == sync - 1 {
            file.sync_data().unwrap();
        }
    }
}

/// What writes of units took.
struct Took {
    /// One of them: bytes of the log, of the metadata, microseconds, and those of processors, for the
    /// writing thread and for all.
    each: [f64; 5],
    /// Metadata commits of all.
    commits: u64,
}

/// Makes the file, and measures writes; then those that are the first after a checkpoint.
fn make(device: &Arc<dyn BlockDevice>, counts: &Forgetful, units: u64) -> [Took; 2] {
    // While pieces come into being their map takes five times as much.
    let fs = mount(device, Some(1 << 30));
    let file = fs.open("/file", &OpenOptions::create()).unwrap();
    let mut data = AlignedBuf::zeroed(1 << 20);
    data.fill(DATA);
    let bytes = units * UNIT;
    for at in (0..bytes).step_by(1 << 20) {
        file.write_at(&data[..(bytes - at).min(1 << 20) as usize], at).unwrap();
    }
    fs.set_untorn(fs.resolve("/file").unwrap().ino, Some(UNIT as u32)).unwrap();
    fs.sync().unwrap();
    let order = shuffled(units);
    write(&file, &data, order.iter(), 32 * UNITS_OF_SYNC);
    drop(file);
    fs.unmount().unwrap();

    let fs = mount(device, None);
    let file = fs.open("/file", &OpenOptions::create()).unwrap();
    let mut unit = AlignedBuf::zeroed(UNIT as usize);
    for at in (0..units).step_by(UNITS_OF_PART) {
        file.read_at(&mut unit, at * UNIT).unwrap();
    }
    let writes = order.len().min(WRITES_MAX);
    let mut next = order.iter().rev().take(writes);
    let before =
        measure(&fs, counts, writes as u64, || write(&file, &data, &mut next, UNITS_OF_SYNC));
    fs.create_checkpoint("then", &CheckpointOptions::default()).unwrap();
    // What they change stays on the device, which is twice as large as the file.
    let writes = writes.min(order.len() / 2);
    let mut next = order.iter().take(writes);
    let after =
        measure(&fs, counts, writes as u64, || write(&file, &data, &mut next, UNITS_OF_SYNC));
    fs.delete_checkpoint("then").unwrap();
    drop(file);
    fs.unmount().unwrap();
    [before, after]
}

/// Returns what of these writes one took.
fn measure(fs: &FileSystem, counts: &Forgetful, writes: u64, write: impl FnOnce()) -> Took {
    let written = || [&counts.logged, &counts.others].map(|count| count.load(Ordering::Relaxed));
    let commits = || fs.info().log.metadata_commits;
    let (before, earlier, busy_before, began) = (written(), commits(), busy(), Instant::now());
    write();
    let took = began.elapsed().as_secs_f64() * 1e6;
    let ([first, all], [logged, others]) = (busy(), written());
    let sums = [(logged - before[0]) as f64, (others - before[1]) as f64, took];
    let sums = [sums[0], sums[1], sums[2], first - busy_before[0], all - busy_before[1]];
    Took { each: sums.map(|sum| sum / writes as f64), commits: commits() - earlier }
}

/// Reads at most a million units at random; returns how many microseconds one took.
fn touch(file: &File, units: u64) -> f64 {
    let (mut buf, mut random) = (AlignedBuf::zeroed(UNIT as usize), 11_u64);
    let count = units.min(1_000_000);
    let began = Instant::now();
    for _ in 0..count {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        file.read_at(&mut buf, (random >> 24) % units * UNIT).unwrap();
    }
    began.elapsed().as_secs_f64() * 1e6 / count as f64
}

fn main() {
    println!(
        "{:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "units",
        "stored/u",
        "pages/u",
        "rows",
        "log B/w",
        "tree B/w",
        "us/write",
        "thread",
        "all",
        "commits",
        "mount ms",
        "open ms",
        "us/read",
        "map MiB",
        "RSS MiB",
        "misses"
    );
    for units in std::env::args().skip(1).map(|count| count.parse::<u64>().unwrap()) {
        let memory = MemoryDevice::new((2 * units * UNIT).max(8 << 30));
        let counts = Arc::new(Forgetful {
            memory,
            log: OnceLock::new(),
            logged: AtomicU64::new(0),
            others: AtomicU64::new(0),
        });
        let device: Arc<dyn BlockDevice> = counts.clone();
        FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
        let regions = forge::regions(&device).unwrap();
        let log = regions.iter().find(|region| region.name == "log").unwrap();
        counts.log.set(log.start..log.start + log.len).unwrap();
        let [before, after] = make(&device, &counts, units);
        let [logged, others, took, writer, all] = before.each;
        let commits = before.commits;
        let (stored, pages, rows) = forge::extent_table(&device).unwrap();
        let began = Instant::now();
        let fs = mount(&device, None);
        let mounted = began.elapsed().as_secs_f64() * 1e3;
        let (before, began) = (resident(), Instant::now());
        let file = fs.open("/file", &OpenOptions::create()).unwrap();
        file.read_at(&mut AlignedBuf::zeroed(4096), 0).unwrap();
        let opened = began.elapsed().as_secs_f64() * 1e3;
        let touched = touch(&file, units);
        let maps = fs.info().maps;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (map, grown) = (mib(maps.bytes), mib(resident().saturating_sub(before)));
        let of = |bytes: u64| bytes as f64 / units as f64;
        println!(
            "{units:>9} {:>8.2} {:>8.2} {rows:>8} {logged:>8.1} {others:>8.1} {took:>8.2} {writer:>8.2} {all:>8.2} {commits:>8} {mounted:>8.2} {opened:>8.1} {touched:>8.2} {map:>8.1} {grown:>8.1} {:>8}",
            of(stored),
            of(pages),
            maps.misses
        );
        let [logged, others, took, writer, all] = after.each;
        println!(
            "{:>27} {:>8} {logged:>8.1} {others:>8.1} {took:>8.2} {writer:>8.2} {all:>8.2} {:>8}",
            "after a checkpoint", "", after.commits
        );
        drop(file);
        fs.unmount().unwrap();
    }
}
