//! What checksums of file data cost: random reads and writes of 8 KiB of a file as it is, with
//! untorn pages, and with checksums, and what the checksums take in the metadata:
//!
//! ```sh
//! cargo run --release -p bedplate-fs --example integrity --features forge -- 32768 5
//! ```
//!
//! Units, at least 256, then rounds, in which the three take turns; medians of what each round's
//! fastest batches took are told, and of each round how fast the file with checksums is beside the
//! others. The device is in memory; with a directory as the third argument it is an image file there,
//! past the page cache, and is removed. The writes are synced after 32; the reads are of a volume that
//! was mounted again, one by one, again, by a queue of 32, and one by one of another file that was
//! written once, in order.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for people")]

use std::sync::Arc;
use std::time::Instant;

use bedplate_block::{
    AlignedBuf, BlockDevice, DeviceOptions, MemoryDevice, QueueOptions, create_image,
};
use bedplate_fs::{
    File, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, Queue, forge,
};

const UNIT: usize = 8192;
const UNITS_OF_SYNC: u64 = 32;
const UNITS_OF_BATCH: u64 = 256;
const DEPTH: usize = 32;
/// The file that is written again and again, and the other one.
const PATHS: [&str; 2] = ["/file", "/ordered"];
const KINDS: [&str; 3] = ["as it is", "untorn", "integrity"];

fn mount(device: &Arc<dyn BlockDevice>) -> FileSystem {
    let options = MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() };
    FileSystem::mount(Arc::clone(device), None, options).unwrap()
}

/// The next of a sequence of random units.
fn next(random: &mut u64, units: u64) -> u64 {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) % units
}

/// Microseconds of each call, by batches of [`UNITS_OF_BATCH`]: of the tenth that were fastest the
/// slowest. What else the machine does lies in the others.
struct Batches {
    began: Instant,
    took: Vec<f64>,
    count: u64,
}

impl Batches {
    fn begin() -> Self {
        Self { began: Instant::now(), took: Vec::new(), count: 0 }
    }

    fn call(&mut self) {
        self.count += 1;
        if self.count.is_multiple_of(UNITS_OF_BATCH) {
            self.took.push(self.began.elapsed().as_secs_f64() * 1e6 / UNITS_OF_BATCH as f64);
            self.began = Instant::now();
        }
    }

    fn end(mut self) -> f64 {
        self.took.sort_by(f64::total_cmp);
        self.took[self.took.len() / 10]
    }
}

/// Calls `each` with so many random units; returns microseconds of each.
fn timed(units: u64, seed: u64, mut each: impl FnMut(u64, u64)) -> f64 {
    let (mut random, mut batches) = (seed, Batches::begin());
    for count in 1..=units {
        each(count, next(&mut random, units));
        batches.call();
    }
    batches.end()
}

/// Reads random units by a queue; returns microseconds of each.
fn queued(fs: &FileSystem, file: &Arc<File>, units: u64, seed: u64) -> f64 {
    let mut queue =
        Queue::new(fs, &QueueOptions { depth_max: DEPTH, ..Default::default() }).unwrap();
    let (mut random, mut batches) = (seed, Batches::begin());
    for _ in 0..DEPTH.min(units as usize) {
        let at = next(&mut random, units) * UNIT as u64;
        queue.read(file, AlignedBuf::zeroed(UNIT), at, 0).unwrap();
    }
    let (mut left, mut done) = (units - DEPTH.min(units as usize) as u64, Vec::new());
    while queue.in_flight() > 0 {
        queue.complete(1, &mut done).unwrap();
        for completion in done.drain(..) {
            completion.result.unwrap();
            batches.call();
            if left > 0 {
                left -= 1;
                let at = next(&mut random, units) * UNIT as u64;
                queue.read(file, completion.buf.unwrap(), at, 0).unwrap();
            }
        }
    }
    batches.end()
}

fn write_all(file: &File, units: u64, seed: u64) -> f64 {
    let mut unit = AlignedBuf::zeroed(UNIT);
    timed(units, seed, |count, at| {
        unit[..8].copy_from_slice(&(count ^ seed).to_le_bytes());
        file.write_at(&unit, at * UNIT as u64).unwrap();
        if count.is_multiple_of(UNITS_OF_SYNC) {
            file.sync_data().unwrap();
        }
    })
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// A device in memory, or in a directory.
fn device(kind: &str, size: u64, directory: Option<&String>) -> Arc<dyn BlockDevice> {
    let Some(directory) = directory else { return MemoryDevice::new(size) };
    let path =
        std::path::Path::new(directory).join(format!("integrity-{kind}.img").replace(' ', "-"));
    create_image(&path, size, true).unwrap();
    let device = bedplate_block::open(&path, &DeviceOptions::default()).unwrap();
    std::fs::remove_file(&path).unwrap();
    device
}

/// A volume with one file, which was written once in order.
fn made(kind: &str, units: u64, directory: Option<&String>) -> Arc<dyn BlockDevice> {
    let device = device(kind, (4 * units * UNIT as u64).max(256 << 20), directory);
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    let fs = mount(&device);
    for path in PATHS {
        let file = fs.open(path, &OpenOptions::create()).unwrap();
        fs.set_untorn(file.ino(), (kind == "untorn").then_some(UNIT as u32)).unwrap();
        fs.set_integrity(file.ino(), kind == "integrity").unwrap();
        for at in 0..units {
            file.write_at(&AlignedBuf::zeroed(UNIT), at * UNIT as u64).unwrap();
        }
    }
    fs.unmount().unwrap();
    device
}

/// What is measured of a volume, in this order.
const PHASES: [&str; 5] = ["write", "read", "again", "queue", "ordered"];

/// One round: in each phase the volumes take turns, the first of them another each time. Returns
/// microseconds by volume and phase.
fn round_of(devices: &[Arc<dyn BlockDevice>; 3], units: u64, round: u64) -> [[f64; 5]; 3] {
    let mut told = [[0.0; 5]; 3];
    let turns = |phase: u64| (0..3).map(move |turn| ((turn + phase + round) % 3) as usize);
    for kind in turns(0) {
        let fs = mount(&devices[kind]);
        let file = fs.open(PATHS[0], &OpenOptions::create()).unwrap();
        told[kind][0] = write_all(&file, units, round);
        drop(file);
        fs.unmount().unwrap();
    }
    let mounted = devices.each_ref().map(mount);
    let mut unit = AlignedBuf::zeroed(UNIT);
    for (phase, path) in (1..).zip([PATHS[0], PATHS[0], PATHS[0], PATHS[1], PATHS[1]]) {
        for kind in turns(phase) {
            let file = Arc::new(mounted[kind].open(path, &OpenOptions::read_only()).unwrap());
            let took = if phase == 3 {
                queued(&mounted[kind], &file, units, round + 100)
            } else {
                timed(units, round + 100, |_, at| {
                    file.read_at(&mut unit, at * UNIT as u64).unwrap();
                })
            };
            // The other file is read twice, too.
            told[kind][(phase as usize).min(4)] = took;
        }
    }
    mounted.into_iter().for_each(|fs| fs.unmount().unwrap());
    told
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, else_: u64| {
        arguments.get(index).map_or(else_, |number| number.parse().unwrap())
    };
    let (units, rounds) = (number(0, 32_768), number(1, 5));
    let devices = KINDS.map(|kind| made(kind, units, arguments.get(2)));
    let told: Vec<_> = (0..rounds).map(|round| round_of(&devices, units, round)).collect();
    let heads = PHASES.map(|phase| format!("{:>9}", format!("{phase} us"))).join(" ");
    println!("{:>20} {heads} {:>9} {:>9}", "", "stored/u", "pages/u");
    let medians = |of: &dyn Fn(&[[f64; 5]; 3], usize) -> f64| {
        let of_phase = |phase| median(told.iter().map(|told| of(told, phase)).collect());
        [0, 1, 2, 3, 4].map(|phase| format!("{:>9.2}", of_phase(phase))).join(" ")
    };
    for (index, (kind, device)) in KINDS.iter().zip(&devices).enumerate() {
        let (stored, pages, _) = forge::sum_table(device).unwrap();
        let of = |bytes: u64| bytes as f64 / units as f64;
        let took = medians(&|told, phase| told[index][phase]);
        println!("{kind:>20} {took} {:>9.2} {:>9.2}", of(stored), of(pages));
    }
    // How fast with checksums, of the round's own turns without.
    for (index, kind) in KINDS.iter().enumerate().take(2) {
        let ratios = medians(&|told, phase| told[index][phase] / told[2][phase]);
        println!("{:>20} {ratios}", format!("of {kind}"));
    }
}
