//! The steps of the measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bedplate_block::{AlignedBuf, BlockDevice, DeviceOptions};
use bedplate_fs::forge::{self, Large};
use bedplate_fs::{
    CheckpointOptions, File, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions,
};

use super::Asked;
use super::forgetful::{DATA, Forgetful};

const UNIT: u64 = 8192;
const BLOCKS_OF_UNIT: u32 = 2;
const MOUNTS: usize = 3;
/// Units that are touched at random.
const TOUCHED: u64 = 1_000_000;
const UNITS_OF_SYNC: u64 = 32;
const CHECKPOINTS: u64 = 100;
const UNITS_OF_CHECKPOINT: u64 = 10_000;

pub fn device(asked: &Asked) -> Arc<dyn BlockDevice> {
    let file = bedplate_block::open(&asked.image, &DeviceOptions::default()).unwrap();
    Arc::new(Forgetful(file))
}

fn mount(asked: &Asked) -> FileSystem {
    FileSystem::mount(device(asked), None, options()).unwrap()
}

pub fn options() -> MountOptions {
    MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() }
}

pub fn tell(what: &str, value: impl std::fmt::Display) {
    println!("  {what:<58} {value}");
}

pub fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Resident memory of this process in MiB: now, and at most.
fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mib = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    format!("{} MiB resident, at most {}", mib("VmRSS"), mib("VmHWM"))
}

/// Random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(end)) >> 64) as u64
    }
}

/// The files of a volume, opened as they are needed, the last ones kept.
pub struct Files<'a> {
    fs: &'a FileSystem,
    units_of_file: u64,
    open: Vec<Option<(u64, File)>>,
}

impl<'a> Files<'a> {
    pub fn new(fs: &'a FileSystem, asked: &Asked) -> Self {
        let open = (0..64).map(|_| None).collect();
        Self { fs, units_of_file: asked.units / asked.files, open }
    }

    /// Returns the file of a unit, and where in it that begins.
    fn at(&mut self, unit: u64) -> (&File, u64) {
        let (number, index) = (unit / self.units_of_file, unit % self.units_of_file);
        let slot = (number % 64) as usize;
        if self.open[slot].as_ref().is_none_or(|(open, _)| *open != number) {
            let options = OpenOptions { create: false, ..OpenOptions::create() };
            self.open[slot] = Some((number, self.fs.open(Large::path(number), &options).unwrap()));
        }
        (&self.open[slot].as_ref().unwrap().1, index * UNIT)
    }

    /// Writes units at random, a sync after some; returns microseconds a write.
    pub fn write(&mut self, count: u64, random: &mut Random, units: u64) -> f64 {
        let mut data = AlignedBuf::zeroed(UNIT as usize);
        data.fill(DATA);
        let begun = Instant::now();
        for written in 1..=count {
            let (file, at) = self.at(random.below(units));
            file.write_at(&data, at).unwrap();
            if written % UNITS_OF_SYNC == 0 {
                file.sync_data().unwrap();
            }
        }
        begun.elapsed().as_secs_f64() * 1e6 / count as f64
    }
}

pub fn make(asked: &Asked) {
    let begun = Instant::now();
    if std::fs::exists(&asked.image).unwrap() {
        std::fs::remove_file(&asked.image).unwrap();
    }
    bedplate_block::create_image(&asked.image, asked.size_bytes, false).unwrap();
    let device = device(asked);
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    let large = Large {
        files: asked.files,
        units_of_file: asked.units / asked.files,
        unit_blocks: BLOCKS_OF_UNIT,
        slots_percent: asked.slots_percent,
        summed: asked.sums,
    };
    forge::make_large(&device, &large).unwrap();
    tell("made", format!("{:.0} s, {}", begun.elapsed().as_secs_f64(), resident()));
}

pub fn bytes(asked: &Asked) {
    let mut sum = 0;
    for (name, stored, pages, rows) in forge::tables(&device(asked)).unwrap() {
        let of = |bytes: u64| bytes as f64 / asked.units as f64;
        if rows > 0 && pages > asked.units / 100 {
            let told = format!("{:.2} in rows, {:.2} in pages; {rows} rows", of(stored), of(pages));
            tell(&format!("bytes a unit, table {name}"), told);
        }
        sum += pages;
    }
    tell("bytes a unit, all tables", format!("{:.2}", sum as f64 / asked.units as f64));
}

fn timed_mount(asked: &Asked, what: &str) {
    let before = resident();
    let begun = Instant::now();
    let fs = mount(asked);
    let took = ms(begun);
    let report = fs.info().recovery;
    let begun = Instant::now();
    let after = resident();
    fs.unmount().unwrap();
    let unmount = ms(begun);
    let told = format!(
        "{took:.1} ms, {} records; {after} (before: {before}); unmount {unmount:.0} ms",
        report.records
    );
    tell(what, told);
}

pub fn mounts(asked: &Asked) {
    (0..MOUNTS).for_each(|_| timed_mount(asked, "mount, clean"));
}

pub fn crashes(_: &Asked) {
    for _ in 0..MOUNTS {
        assert!(super::again("fill") && super::again("remount"), "a crash or a mount failed");
    }
}

/// Writes until a metadata commit will be due, and ends without an unmount.
pub fn fill(asked: &Asked) {
    let fs = mount(asked);
    let (mut files, mut random, mut most) = (Files::new(&fs, asked), Random(3), 0);
    loop {
        files.write(UNITS_OF_SYNC, &mut random, asked.units);
        let log = fs.info().log;
        if log.metadata_commits > 2 && log.used_bytes * 20 > most * 19 {
            std::process::exit(0);
        }
        most = most.max(log.used_bytes);
    }
}

pub fn remount(asked: &Asked) {
    timed_mount(asked, "mount, after a crash with a full log");
}

pub fn touch(asked: &Asked) {
    let fs = mount(asked);
    let (mut files, mut random) = (Files::new(&fs, asked), Random(11));
    let mut unit = AlignedBuf::zeroed(UNIT as usize);
    let begun = Instant::now();
    for _ in 0..TOUCHED.min(asked.units) {
        let (file, at) = files.at(random.below(asked.units));
        file.read_at(&mut unit, at).unwrap();
    }
    let took = ms(begun) * 1e3 / TOUCHED.min(asked.units) as f64;
    tell("10^6 random reads", format!("{took:.1} us each; {}", resident()));
    for part in 1..=4 {
        let took = files.write(TOUCHED / 4, &mut random, asked.units);
        tell(
            &format!("random writes, part {part} of 10^6"),
            format!("{took:.1} us each; {}", resident()),
        );
    }
    drop(files);
    fs.unmount().unwrap();
    tell("after the unmount", resident());
}

pub fn allocate(asked: &Asked) {
    for threads in [1, 2, 16, 64] {
        let time = Duration::from_secs(2);
        let blocks = u64::from(BLOCKS_OF_UNIT);
        let (count, turns) = forge::allocate_for(&device(asked), threads, time, blocks).unwrap();
        let rate = count as f64 / time.as_secs_f64() / 1e6;
        tell(
            &format!("allocations, {threads} threads"),
            format!(
                "{rate:.2} million a second; the mutex taken {:.1} times in 1,000",
                1e3 * turns as f64 / count as f64
            ),
        );
    }
}

pub fn defragment(asked: &Asked) {
    let fs = mount(asked);
    let ino = fs.resolve(Large::path(0)).unwrap().ino;
    let (begun, mut from, mut moved, mut steps) = (Instant::now(), Some(0), 0, 0);
    while let Some(at) = from.filter(|_| steps < 1000) {
        let step = fs.defragment(ino, at, false).unwrap();
        (from, moved, steps) = (step.next, moved + step.moved_bytes, steps + 1);
    }
    let took = ms(begun) / f64::from(steps);
    let told = format!("{took:.2} ms each, {} MiB in {steps} steps; {}", moved >> 20, resident());
    tell("defragmentation, steps", told);
    fs.unmount().unwrap();
}

/// Appends a block and syncs, again and again; returns the longest time that took in ms.
fn commit_until(over: &AtomicBool, file: &File) -> f64 {
    let mut block = AlignedBuf::zeroed(4096);
    block.fill(DATA);
    let mut longest = 0.0_f64;
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        file.write_at(&block, file.size()).unwrap();
        file.sync_data().unwrap();
        longest = longest.max(ms(begun));
        std::thread::sleep(Duration::from_millis(1));
    }
    longest
}

/// Runs `work` while another thread commits; returns how long it took and the longest wait, in ms.
pub fn beside_commits(file: &File, work: impl FnOnce()) -> (f64, f64) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let commits = scope.spawn(|| commit_until(&over, file));
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        work();
        let took = ms(begun);
        over.store(true, Ordering::Relaxed);
        (took, commits.join().unwrap())
    })
}

pub fn checkpoints(asked: &Asked) {
    let fs = mount(asked);
    let appends = fs.open("/appends", &OpenOptions::create()).unwrap();
    let (mut files, mut random) = (Files::new(&fs, asked), Random(23));
    let before = files.write(10 * UNITS_OF_CHECKPOINT, &mut random, asked.units);
    let (mut created, mut after) = (Vec::new(), Vec::new());
    for number in 0..CHECKPOINTS {
        let begun = Instant::now();
        fs.create_checkpoint(format!("c{number}"), &CheckpointOptions::default()).unwrap();
        created.push(ms(begun));
        after.push(files.write(UNITS_OF_CHECKPOINT, &mut random, asked.units));
    }
    let ten = |from: usize| after[from..from + 10].iter().sum::<f64>() / 10.0;
    tell("random writes before a checkpoint", format!("{before:.1} us each"));
    let told = format!("{:.1} us each, {:.1}", ten(0), ten(90));
    tell("random writes after checkpoints 1 to 10, 91 to 100", told);
    let (first, last) = (&created[..10], &created[90..]);
    let mean = |some: &[f64]| some.iter().sum::<f64>() / some.len() as f64;
    let told = format!("{:.2} ms, {:.2} ms", mean(first), mean(last));
    tell("creation of a checkpoint, the first ten, the last ten", told);
    tell("with 100 checkpoints", resident());
    let (_, quiet) = beside_commits(&appends, || std::thread::sleep(Duration::from_secs(2)));
    tell("longest wait of a commit, nothing else", format!("{quiet:.1} ms"));
    for (name, what) in [("c50", "one in the middle"), ("c0", "the oldest"), ("c99", "the newest")]
    {
        let (took, wait) = beside_commits(&appends, || fs.delete_checkpoint(name).unwrap());
        let told = format!("{took:.1} ms; a commit waited {wait:.1} ms at most");
        tell(&format!("deletion of a checkpoint, {what}"), told);
    }
    drop((files, appends));
    fs.unmount().unwrap();
}

pub fn check(asked: &Asked) {
    let begun = Instant::now();
    let report = FileSystem::check(&device(asked), None, false).unwrap();
    let told = format!(
        "{:.1} s, {} extents, {} findings; {}",
        ms(begun) / 1e3,
        report.extents,
        report.findings.len(),
        resident()
    );
    tell("check", told);
    report.findings.iter().take(3).for_each(|finding| tell("finding", format!("{finding:?}")));
}
