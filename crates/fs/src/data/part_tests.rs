//! Maps in parts: what an open file has in memory, and that it does not matter.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::{
    AlignedBuf, BlockDevice, Fault, FaultRule, FlushFault, MemoryDevice, SimulatedDevice, Trigger,
};

use crate::{
    AllocateMode, CheckpointOptions, File, FileSystem, FormatOptions, IoMode, Limits, MountOptions,
    OpenOptions, PlantedBug, Tunable, TuneOptions, plant,
};

const BLOCK: u64 = 4096;
const UNIT: u64 = 8192;

fn formatted(size: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(size);
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    device
}

fn mount(device: &Arc<dyn BlockDevice>, map_bytes: u64, parts: Option<usize>) -> FileSystem {
    let limits = Limits { extents_per_part: parts, ..Limits::default() };
    let options =
        MountOptions { mode: IoMode::Concurrent, limits, map_bytes, ..MountOptions::default() };
    FileSystem::mount(Arc::clone(device), None, options).unwrap()
}

/// Random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn unit_of(number: u64, round: u64) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed(UNIT as usize);
    bytes.fill((number * 31 + round * 7 + 1) as u8);
    bytes
}

/// A file of single units, each with a hole behind it: none joins another.
fn scattered(fs: &FileSystem, units: u64) -> File {
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    for unit in 0..units {
        file.write_at(&unit_of(unit, 0)[..BLOCK as usize], unit * UNIT).unwrap();
    }
    assert_eq!(file.extent_count().unwrap(), units as usize);
    file
}

fn holds(file: &File, unit: u64) {
    let mut bytes = AlignedBuf::zeroed(UNIT as usize);
    let len = file.read_at(&mut bytes, unit * UNIT).unwrap();
    let mut expected = unit_of(unit, 0);
    expected[BLOCK as usize..].fill(0);
    assert!(bytes[..len] == expected[..len] && len >= BLOCK as usize, "unit {unit}");
}

/// S-330: opening a file reads no more of where its data lies the more extents it has, and a read
/// anywhere in it reads what is around that.
#[test]
fn s_330_an_open_reads_one_part_of_the_map() {
    let device = formatted(256 << 20);
    let fs = mount(&device, 1 << 30, None);
    let bytes_of_all = {
        drop(scattered(&fs, 20_000));
        fs.unmount().unwrap();
        20_000 * 8
    };
    let fs = mount(&device, 1 << 30, None);
    let file = fs.open("/f", &OpenOptions::read_write()).unwrap();
    assert_eq!(fs.info().maps.misses, 1, "one part was read");
    holds(&file, 0);
    assert_eq!(fs.info().maps.misses, 1);
    holds(&file, 11_111);
    holds(&file, 11_120);
    let maps = fs.info().maps;
    assert_eq!((maps.misses, maps.evictions), (2, 0));
    assert!(maps.bytes < bytes_of_all / 10, "{maps:?}");
    // A change of the end looks at the end.
    file.set_size(19_999 * UNIT).unwrap();
    assert!(fs.info().maps.misses <= 4, "{:?}", fs.info().maps);
    assert_eq!(file.extent_count().unwrap(), 19_999);
    // Downwards, a part is read with what lies before it.
    for unit in (10_000..11_000).rev() {
        holds(&file, unit);
    }
    assert!(fs.info().maps.misses < 50, "{:?}", fs.info().maps);
    fs.unmount().unwrap();
}

/// S-331: what maps take in memory stays below the cap, but for what is being looked at; the cap
/// counts for all files, at once, and what it did is counted.
#[test]
fn s_331_maps_stay_below_their_cap() {
    let device = formatted(256 << 20);
    let cap = 64 << 10;
    let fs = mount(&device, cap, None);
    let file = scattered(&fs, 20_000);
    // A part in the making has at most 512 extents of 32 bytes, and a vector may be twice as large.
    let slack = 2 * 512 * 32;
    assert!(fs.info().maps.bytes <= cap + slack, "{:?}", fs.info().maps);
    let mut random = Random(5);
    for _ in 0..3_000 {
        holds(&file, random.below(20_000));
        let bytes = fs.info().maps.bytes;
        assert!(bytes <= cap + slack, "{bytes}");
    }
    let maps = fs.info().maps;
    assert_eq!(maps.bytes_max, cap);
    assert!(maps.misses > 1_000 && maps.evictions > 500, "{maps:?}");
    // Another one, and then none but of what is looked at.
    let tune = |bytes| TuneOptions { changes: vec![(Tunable::Maps, Some(bytes))], live_only: true };
    fs.tune(&tune(1 << 30)).unwrap();
    (0..20_000).for_each(|unit| holds(&file, unit));
    let all = fs.info().maps;
    assert!(all.bytes > cap && all.bytes < 20_000 * 12, "packed as it was read: {all:?}");
    (0..20_000).step_by(7).for_each(|unit| holds(&file, unit));
    assert_eq!(fs.info().maps.misses, all.misses, "all is in memory");
    fs.tune(&tune(0)).unwrap();
    assert_eq!(fs.info().maps.bytes, 0);
    holds(&file, 17);
    fs.unmount().unwrap();
    assert_eq!(FileSystem::check(&device, None, false).unwrap().findings.len(), 0);
}

/// What a file holds, beside the file.
struct Pair {
    file: File,
    model: Vec<u8>,
    random: Random,
}

impl Pair {
    fn range(&mut self) -> (u64, u64) {
        let blocks = 40;
        let at = self.random.below(blocks);
        (at * BLOCK, (1 + self.random.below(6)) * BLOCK)
    }

    /// Changes both; returns whether they are the same then.
    fn step(&mut self, round: u64) -> bool {
        let (at, len) = self.range();
        let end = (at + len) as usize;
        let file = &self.file;
        match self.random.below(10) {
            0..5 => {
                let mut bytes = AlignedBuf::zeroed(len as usize);
                bytes.fill(round as u8 + 1);
                file.write_at(&bytes, at).unwrap();
                self.model.resize(self.model.len().max(end), 0);
                self.model[at as usize..end].fill(round as u8 + 1);
            }
            5 => {
                file.write_at(&[round as u8; 700], at + 100).unwrap();
                let to = at as usize + 800;
                self.model.resize(self.model.len().max(to), 0);
                self.model[to - 700..to].fill(round as u8);
            }
            6 => {
                file.allocate(AllocateMode::PunchHole, at, len).unwrap();
                let size = self.model.len();
                self.model[size.min(at as usize)..size.min(end)].fill(0);
            }
            7 => {
                file.set_size(at + 5).unwrap();
                self.model.resize(at as usize + 5, 0);
            }
            8 if end < self.model.len() => {
                file.allocate(AllocateMode::CollapseRange, at, len).unwrap();
                self.model.drain(at as usize..end);
            }
            9 if (at as usize) < self.model.len() => {
                file.allocate(AllocateMode::InsertRange, at, len).unwrap();
                let hole = vec![0; len as usize];
                self.model.splice(at as usize..at as usize, hole);
                self.model.truncate((100 * BLOCK) as usize);
                file.set_size(self.model.len() as u64).unwrap();
            }
            _ => {}
        }
        is_same(&self.file, &self.model)
    }
}

fn is_same(file: &File, model: &[u8]) -> bool {
    let mut bytes = vec![0xee; model.len() + 10];
    file.read_at(&mut bytes, 0).unwrap() == model.len() && bytes[..model.len()] == *model
}

/// Changes two files at random, makes checkpoints and commits of the metadata, and mounts again;
/// returns whether files and their past are always what they are to be.
fn goes_well(seed: u64) -> bool {
    let device = formatted(64 << 20);
    let mut fs = mount(&device, 0, Some(2));
    let pair = |fs: &FileSystem, name: &str, random| Pair {
        file: fs.open(name, &OpenOptions::create()).unwrap(),
        model: Vec::new(),
        random: Random(random),
    };
    let mut pairs = [pair(&fs, "/a", seed), pair(&fs, "/b", seed + 1)];
    fs.set_untorn(pairs[0].file.ino(), Some(UNIT as u32)).unwrap();
    let mut past = None;
    for round in 0..60 {
        if !pairs.iter_mut().all(|pair| pair.step(round)) {
            return false;
        }
        match round % 20 {
            6 => fs.sync().unwrap(),
            11 => {
                let name = format!("c{round}");
                fs.create_checkpoint(&name, &CheckpointOptions::default()).unwrap();
                past = Some((format!("/.checkpoints/{name}/a"), pairs[0].model.clone()));
            }
            17 => {
                let models = pairs.map(|pair| (pair.model, pair.random));
                fs.unmount().unwrap();
                fs = mount(&device, 0, Some(2));
                let mut models = models.into_iter().zip(["/a", "/b"]);
                pairs = std::array::from_fn(|_| {
                    let ((model, random), name) = models.next().unwrap();
                    Pair { file: fs.open(name, &OpenOptions::create()).unwrap(), model, random }
                });
            }
            _ => {}
        }
        if let Some((path, model)) = &past
            && !is_same(&fs.open(path, &OpenOptions::read_only()).unwrap(), model)
        {
            return false;
        }
    }
    assert!(fs.info().maps.evictions > 20, "{:?}", fs.info().maps);
    drop(pairs);
    fs.unmount().unwrap();
    FileSystem::check(&device, None, false).unwrap().findings.is_empty()
}

/// S-332, I-MAP-1: whatever leaves memory and is read again, files, what follows their changes and their past
/// are the same.
#[test]
fn s_332_i_map_1_what_leaves_memory_is_read_again_as_it_was() {
    for seed in 0..6 {
        assert!(goes_well(seed), "seed {seed}");
    }
}

/// S-332: each mistake shows as other bytes, or as a part that is not what the rows say.
#[test]
fn s_332_planted_mistakes_are_found() {
    let mistakes =
        [PlantedBug::ChangedPartEvicted, PlantedBug::PartBeginsLate, PlantedBug::PartTooLong];
    for bug in mistakes {
        let found = (0..20).any(|seed| {
            plant(Some(bug));
            let went = catch_unwind(AssertUnwindSafe(|| goes_well(seed)));
            plant(None);
            went.is_err() || went.is_ok_and(|well| !well)
        });
        assert!(found, "{bug:?}");
    }
}

/// S-332: a file of a checkpoint is read from its middle, also where its rows are images only.
#[test]
fn s_332_a_checkpoint_is_read_from_the_middle() {
    let device = formatted(64 << 20);
    let fs = mount(&device, 0, Some(4));
    let file = scattered(&fs, 100);
    for (name, units) in [("whole", 100), ("half", 50), ("none", 0)] {
        file.set_size(units * UNIT).unwrap();
        fs.create_checkpoint(name, &CheckpointOptions::default()).unwrap();
    }
    for name in ["whole", "half"] {
        let past = fs.open(format!("/.checkpoints/{name}/f"), &OpenOptions::read_only()).unwrap();
        for unit in [40, 3, 49, 41, 17] {
            let before = fs.info().maps.misses;
            holds(&past, unit);
            assert!(fs.info().maps.misses <= before + 2, "unit {unit} of {name}");
        }
    }
    fs.unmount().unwrap();
}

/// S-332: what is in memory stays there once a flush has failed: the rows may lack some of it.
#[test]
fn s_332_after_a_failure_nothing_leaves_memory() {
    let simulated = SimulatedDevice::new(64 << 20, 1);
    let device: Arc<dyn BlockDevice> = Arc::clone(&simulated) as _;
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    let fs = mount(&device, 0, Some(4));
    let file = scattered(&fs, 100);
    simulated.inject(FaultRule::new(Fault::Flush(FlushFault::Fail), Trigger::Next(1)));
    file.sync_all().unwrap_err();
    simulated.clear_faults();
    let before = fs.info().maps.evictions;
    (0..100).for_each(|unit| holds(&file, unit));
    let maps = fs.info().maps;
    assert!(maps.evictions == before && maps.bytes > 0, "{maps:?}");
}

/// S-332: while everything is frozen, as a rollback freezes it that changes rows below the maps, no
/// part leaves memory.
#[test]
fn s_332_no_part_leaves_memory_beside_a_freeze() {
    let device = formatted(64 << 20);
    let fs = mount(&device, 0, Some(4));
    let file = scattered(&fs, 10);
    holds(&file, 3);
    let bytes = fs.info().maps.bytes;
    assert!(bytes > 0, "what was looked at last is in memory");
    let frozen = fs.state().lock_changes();
    fs.state().trim_maps();
    assert_eq!(fs.info().maps.bytes, bytes);
    drop(frozen);
    fs.state().trim_maps();
    assert_eq!(fs.info().maps.bytes, 0);
    fs.unmount().unwrap();
}

/// Ends the threads that look at it, also where the one that made it panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// S-332: with threads beside each other, on one file and on several, while each lookup takes the
/// memory of others.
#[test]
fn s_332_threads_read_and_write_while_maps_leave_memory() {
    let device = formatted(256 << 20);
    let fs = mount(&device, 0, Some(4));
    let file = scattered(&fs, 2_000);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        for reader in 0..2 {
            let (file, stop) = (&file, &stop);
            scope.spawn(move || {
                let mut random = Random(reader);
                while !stop.load(Ordering::Relaxed) {
                    holds(file, 1_000 + random.below(1_000));
                }
            });
        }
        let other = fs.open("/g", &OpenOptions::create()).unwrap();
        let mut random = Random(9);
        for round in 0..400 {
            let unit = random.below(1_000);
            file.write_at(&unit_of(unit, round), unit * UNIT).unwrap();
            other.write_at(&unit_of(unit, round), unit * UNIT).unwrap();
            let mut bytes = AlignedBuf::zeroed(UNIT as usize);
            for file in [&file, &other] {
                file.read_at(&mut bytes, unit * UNIT).unwrap();
                assert!(bytes[..] == unit_of(unit, round)[..], "unit {unit} in round {round}");
            }
        }
    });
    assert!(fs.info().maps.evictions > 100, "{:?}", fs.info().maps);
    fs.unmount().unwrap();
    assert_eq!(FileSystem::check(&device, None, false).unwrap().findings.len(), 0);
}
