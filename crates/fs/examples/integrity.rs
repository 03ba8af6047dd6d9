//! What checksums of file data cost: random reads and writes of 8 KiB of a file as it is, with
//! untorn pages, and with checksums, and what the checksums take in the metadata:
//!
//! ```sh
//! cargo run --release -p bedplate-fs --example integrity --features forge -- 32768 5
//! ```
//!
//! Units, then rounds, in which the three take turns; medians are told. The device is in memory. The
//! writes are synced after 32; the reads are of a volume that was mounted anew.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for people")]

use std::sync::Arc;
use std::time::Instant;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};
use bedplate_fs::{File, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, forge};

const UNIT: usize = 8192;
const UNITS_OF_SYNC: u64 = 32;
const KINDS: [&str; 3] = ["as it is", "untorn", "integrity"];

fn mount(device: &Arc<dyn BlockDevice>) -> FileSystem {
    let options = MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() };
    FileSystem::mount(Arc::clone(device), None, options).unwrap()
}

/// Calls `each` with so many random units; returns microseconds of each.
fn timed(units: u64, seed: u64, mut each: impl FnMut(u64, u64)) -> f64 {
    let (mut random, began) = (seed, Instant::now());
    for count in 1..=units {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        each(count, (random >> 33) % units);
    }
    began.elapsed().as_secs_f64() * 1e6 / units as f64
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

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// A volume with one file, which was written once in order.
fn made(kind: &str, units: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new((3 * units * UNIT as u64).max(256 << 20));
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    let fs = mount(&device);
    let file = fs.open("/file", &OpenOptions::create()).unwrap();
    fs.set_untorn(file.ino(), (kind == "untorn").then_some(UNIT as u32)).unwrap();
    fs.set_integrity(file.ino(), kind == "integrity").unwrap();
    for at in 0..units {
        file.write_at(&AlignedBuf::zeroed(UNIT), at * UNIT as u64).unwrap();
    }
    drop(file);
    fs.unmount().unwrap();
    device
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<u64>().unwrap());
    let (units, rounds) = (numbers.next().unwrap_or(32_768), numbers.next().unwrap_or(5));
    let devices = KINDS.map(|kind| made(kind, units));
    let mut told = [(); KINDS.len()].map(|()| [const { Vec::new() }; 3]);
    for round in 0..rounds {
        for (device, told) in devices.iter().zip(&mut told) {
            let fs = mount(device);
            let file = fs.open("/file", &OpenOptions::create()).unwrap();
            told[0].push(write_all(&file, units, round));
            drop(file);
            fs.unmount().unwrap();
            let fs = mount(device);
            let file = fs.open("/file", &OpenOptions::read_only()).unwrap();
            let mut unit = AlignedBuf::zeroed(UNIT);
            for place in [1, 2] {
                let took = timed(units, round + 100, |_, at| {
                    file.read_at(&mut unit, at * UNIT as u64).unwrap();
                });
                told[place].push(took);
            }
            drop(file);
            fs.unmount().unwrap();
        }
    }
    println!(
        "{:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "write us", "read us", "again us", "stored/u", "pages/u"
    );
    for ((kind, device), told) in KINDS.iter().zip(&devices).zip(&mut told) {
        let (stored, pages, _) = forge::sum_table(device).unwrap();
        let [write, read, again] = told.each_mut().map(|of| median(of));
        let of = |bytes: u64| bytes as f64 / units as f64;
        println!(
            "{kind:>10} {write:>9.2} {read:>9.2} {again:>9.2} {:>9.2} {:>9.2}",
            of(stored),
            of(pages)
        );
    }
}
