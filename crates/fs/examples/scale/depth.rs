//! Random writes in flight together: of the large file, of a file of 10^4 units, in place, after a
//! checkpoint, and of the device alone, in turns.

use std::sync::Arc;
use std::time::Instant;

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceOptions, QueueOptions, Request, RequestKind, Segment,
};
use bedplate_fs::forge::Large;
use bedplate_fs::{CheckpointOptions, File, FileSystem, OpenOptions, Queue};

use super::Asked;
use super::folded::Folded;
use super::steps::{Random, make, options, tell};

const UNIT: u64 = 8192;
const DEPTH: usize = 32;
const WRITES: u64 = 32 << 10;
const WRITES_OF_SYNC: u64 = 1024;
const ROUNDS: u64 = 7;
/// Units of the file that the large one is compared with.
const UNITS_FEW: u64 = 10_000;
/// What is behind a volume for its data; all of it is written before.
const DATA_BYTES: u64 = 2 << 30;

/// A file under test, with the file system that it is in.
struct Target {
    fs: FileSystem,
    file: Arc<File>,
    units: u64,
    device: Arc<dyn BlockDevice>,
    volume_bytes: u64,
}

impl Target {
    fn open(asked: &Asked) -> Self {
        let image = std::fs::OpenOptions::new().write(true).open(&asked.image).unwrap();
        let volume_bytes = asked.size_bytes;
        image.set_len(volume_bytes + DATA_BYTES).unwrap();
        let device = bedplate_block::open(&asked.image, &DeviceOptions::default()).unwrap();
        let chunk = AlignedBuf::zeroed(8 << 20);
        for at in (0..DATA_BYTES).step_by(8 << 20) {
            device.write_at(&chunk, volume_bytes + at).unwrap();
        }
        device.flush().unwrap();
        let folded = Arc::new(Folded { device: Arc::clone(&device), volume_bytes });
        let fs = FileSystem::mount(folded, None, options()).unwrap();
        let existing = OpenOptions { create: false, ..OpenOptions::create() };
        let file = Arc::new(fs.open(Large::path(0), &existing).unwrap());
        Self { fs, file, units: asked.units, device, volume_bytes }
    }

    fn set_untorn(&self, is_untorn: bool) {
        let ino = self.fs.resolve(Large::path(0)).unwrap().ino;
        self.fs.set_untorn(ino, is_untorn.then_some(UNIT as u32)).unwrap();
    }

    /// Returns writes a second.
    fn write(&self, random: &mut Random) -> f64 {
        let options = QueueOptions { depth_max: DEPTH, buffers: 0, buffer_bytes: 0 };
        let mut queue = Queue::new(&self.fs, &options).unwrap();
        let mut free = buffers();
        let (mut done, mut begun_writes) = (Vec::new(), 0);
        let begun = Instant::now();
        while begun_writes < WRITES || queue.in_flight() > 0 {
            while begun_writes < WRITES
                && let Some(buf) = free.pop()
            {
                let at = random.below(self.units) * UNIT;
                queue.write(&self.file, buf, at, 0).unwrap();
                begun_writes += 1;
                if begun_writes % WRITES_OF_SYNC == 0 {
                    self.file.sync_data().unwrap();
                }
            }
            queue.complete(1, &mut done).unwrap();
            for completion in done.drain(..) {
                completion.result.unwrap();
                free.extend(completion.buf);
            }
        }
        WRITES as f64 / begun.elapsed().as_secs_f64()
    }

    /// Writes the device alone; returns writes a second.
    fn write_raw(&self, random: &mut Random) -> f64 {
        let options = QueueOptions { depth_max: DEPTH, buffers: 0, buffer_bytes: 0 };
        let mut queue = self.device.queue(&options).unwrap();
        let (mut free, mut done, mut begun_writes) = (buffers(), Vec::new(), 0);
        let begun = Instant::now();
        while begun_writes < WRITES || queue.in_flight() > 0 {
            while begun_writes < WRITES
                && let Some(buf) = free.pop()
            {
                let offset = self.volume_bytes + random.below(DATA_BYTES / UNIT) * UNIT;
                let first = Segment { offset, len: UNIT as u32 };
                let (kind, rest) = (RequestKind::Write, Vec::new());
                queue.push(Request { token: 0, kind, buf: Some(buf), first, rest }).unwrap();
                begun_writes += 1;
                if begun_writes % WRITES_OF_SYNC == 0 {
                    self.device.flush().unwrap();
                }
            }
            queue.complete(1, &mut done).unwrap();
            for completion in done.drain(..) {
                completion.result.unwrap();
                free.extend(completion.buf);
            }
        }
        WRITES as f64 / begun.elapsed().as_secs_f64()
    }
}

fn buffers() -> Vec<AlignedBuf> {
    (0..DEPTH).map(|_| AlignedBuf::zeroed(UNIT as usize)).collect()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Tells the medians of rounds in which each takes its turn.
pub fn depth(asked: &Asked) {
    let few = Asked {
        image: format!("{}.few", asked.image),
        units: UNITS_FEW,
        files: 1,
        size_bytes: 1 << 30,
        ..asked.clone()
    };
    make(&few);
    let (many, few_units) = (Target::open(asked), Target::open(&few));
    let mut rates: [Vec<f64>; 5] = Default::default();
    let mut random = Random(29);
    // The first turn fills maps and caches, and is not counted.
    for round in 0..=ROUNDS {
        many.set_untorn(false);
        let in_place = many.write(&mut random);
        many.set_untorn(true);
        let untorn = many.write(&mut random);
        many.fs.create_checkpoint("then", &CheckpointOptions::default()).unwrap();
        let after = many.write(&mut random);
        many.fs.delete_checkpoint("then").unwrap();
        let turn =
            [many.write_raw(&mut random), few_units.write(&mut random), in_place, untorn, after];
        if round > 0 {
            rates.iter_mut().zip(turn).for_each(|(rates, rate)| rates.push(rate));
        }
    }
    let [raw, few, in_place, untorn, after] = rates.map(median);
    tell("the device alone, writes a second", format!("{raw:.0}"));
    tell("10^4 units, untorn, of the device alone", format!("{:.2}", few / raw));
    tell("all units, in place, of the device alone", format!("{:.2}", in_place / raw));
    tell("all units, untorn, of the device alone", format!("{:.2}", untorn / raw));
    tell("all units against 10^4", format!("{:.2}", untorn / few));
    tell("after a checkpoint against before", format!("{:.2}", after / untorn));
    drop((many, few_units));
    std::fs::remove_file(format!("{}.few", asked.image)).unwrap();
}
