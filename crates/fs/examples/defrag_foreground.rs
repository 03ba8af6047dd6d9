//! What programs feel of defragmentation in the background: on a device or image of at least 512
//! MiB whose content is lost, or in memory:
//!
//! ```sh
//! cargo run --release -p bedplate-fs --example defrag_foreground -- 6 image
//! ```
//!
//! Two threads read and write 8 KiB at random places of a file (seven of ten read) in windows of
//! two seconds: nothing is moved in the first window of a round; then, each time scattered anew,
//! the file next to it is put together at 20 MiB a second, that file itself is, and the same as
//! fast as it goes.
//!
//! One line a case: its name, then medians of all rounds, operations a second, and the 99th and
//! 99.9th percentile of reads and of writes, each with its ratio to the window without
//! defragmentation of the same round, and how much was moved in a second. (Few threads wait for a
//! step: two threads can wait for twenty steps a second. So look at the 99.9th percentile.)
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate_block::{AlignedBuf, BlockDevice, DeviceOptions, MemoryDevice};
use bedplate_fs::{File, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, Result};

const PAGE: usize = 8 << 10;
const BLOCK: usize = 4 << 10;
const FILE_BYTES: u64 = 96 << 20;
const WINDOW: Duration = Duration::from_secs(2);

/// What is moved meanwhile, and how many bytes of it in a second.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    file: Option<usize>,
    rate: u64,
}

const CASES: [Case; 5] = [
    Case { name: "nothing", file: None, rate: 0 },
    Case { name: "beside, 20 MiB/s", file: Some(1), rate: 20 << 20 },
    Case { name: "itself, 20 MiB/s", file: Some(0), rate: 20 << 20 },
    Case { name: "beside, unlimited", file: Some(1), rate: u64::MAX },
    Case { name: "itself, unlimited", file: Some(0), rate: u64::MAX },
];

/// What a window found: operations a second; p99 and p99.9 of reads and of writes in nanoseconds;
/// bytes moved in a second.
type Seen = [f64; 6];

fn main() -> Result<()> {
    let rounds = std::env::args().nth(1).and_then(|said| said.parse().ok()).unwrap_or(3);
    let device: Arc<dyn BlockDevice> = match std::env::args().nth(2) {
        Some(path) => bedplate_block::open(path, &DeviceOptions::default())?,
        None => MemoryDevice::new(512 << 20),
    };
    FileSystem::format(&device, None, &FormatOptions { force: true, ..FormatOptions::default() })?;
    let fs = FileSystem::mount(
        device,
        None,
        MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() },
    )?;
    let mut seen: Vec<[Seen; CASES.len()]> = Vec::new();
    for round in 0..rounds {
        let mut of_round = [Seen::default(); CASES.len()];
        // Each round begins with another case, so that none always follows the same one.
        for at in (0..CASES.len()).map(|at| (at + round) % CASES.len()) {
            let files = [scattered(&fs, "/served", 1)?, scattered(&fs, "/beside", 2)?];
            of_round[at] = window(&fs, &files, CASES[at])?;
            drop(files);
            fs.remove("/served")?;
            fs.remove("/beside")?;
            fs.sync()?;
        }
        seen.push(of_round);
    }
    report(&seen);
    fs.unmount()
}

/// Makes a file whose blocks lie in another order than that of the file.
fn scattered(fs: &FileSystem, path: &str, seed: u64) -> Result<File> {
    let file = fs.open(path, &OpenOptions::create())?;
    file.set_size(FILE_BYTES)?;
    let blocks = FILE_BYTES / BLOCK as u64;
    let page = AlignedBuf::from_slice(&[seed as u8; BLOCK]);
    // An odd step visits every block of a power of two once; of others those below their number.
    let span = blocks.next_power_of_two();
    let all = (0..span)
        .map(|at| at.wrapping_mul(0x9e37_79b9 | 1).wrapping_add(seed) % span)
        .filter(|block| *block < blocks);
    for block in all {
        file.write_at(&page, block * BLOCK as u64)?;
    }
    fs.sync()?;
    Ok(file)
}

/// Lets two threads use the first file for a while, and moves what the case says.
fn window(fs: &FileSystem, files: &[File; 2], case: Case) -> Result<Seen> {
    let stop = AtomicBool::new(false);
    let (stop, began) = (&stop, Instant::now());
    let (times, moved) = std::thread::scope(|scope| -> Result<_> {
        let users: Vec<_> =
            (1..=2).map(|seed| scope.spawn(move || work(&files[0], seed, stop))).collect();
        let mover = case
            .file
            .map(|file| scope.spawn(move || put_together(fs, &files[file], case.rate, stop)));
        std::thread::sleep(WINDOW);
        stop.store(true, Relaxed);
        let mut times = [Vec::new(), Vec::new()];
        for user in users {
            let [reads, writes] = user.join().expect("a user does not panic")?;
            times[0].extend(reads);
            times[1].extend(writes);
        }
        let moved =
            mover.map_or(Ok((0, 1.0)), |mover| mover.join().expect("the mover does not panic"))?;
        Ok((times, moved))
    })?;
    let rate = (times[0].len() + times[1].len()) as f64 / began.elapsed().as_secs_f64();
    let [reads, writes] = times.map(|mut times| {
        times.sort_unstable();
        let at = |share: f64| {
            times.get((times.len() as f64 * share) as usize).copied().unwrap_or(0) as f64
        };
        [at(0.99), at(0.999)]
    });
    Ok([rate, reads[0], reads[1], writes[0], writes[1], moved.0 as f64 / moved.1])
}

/// Reads and writes at random until it is stopped; returns how long each took.
fn work(file: &File, seed: u64, stop: &AtomicBool) -> Result<[Vec<u64>; 2]> {
    let (mut times, mut random) =
        ([Vec::new(), Vec::new()], seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let mut page = AlignedBuf::from_slice(&[seed as u8; PAGE]);
    while !stop.load(Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let (at, write) =
            ((random >> 16) % (FILE_BYTES / PAGE as u64) * PAGE as u64, random % 10 < 3);
        let began = Instant::now();
        if write {
            file.write_at(&page, at)?;
        } else {
            file.read_at(&mut page, at)?;
        }
        times[usize::from(write)]
            .push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(times)
}

/// Moves a file together, step by step, no faster than a rate; returns bytes and seconds until the
/// end or the stop.
fn put_together(fs: &FileSystem, file: &File, rate: u64, stop: &AtomicBool) -> Result<(u64, f64)> {
    let (began, mut moved, mut from) = (Instant::now(), 0, Some(0));
    while let Some(at) = from.filter(|_| !stop.load(Relaxed)) {
        let step = fs.defragment(file.ino(), at, false)?;
        (moved, from) = (moved + step.moved_bytes, step.next);
        let due = Duration::from_secs_f64(moved as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
    Ok((moved, began.elapsed().as_secs_f64()))
}

fn report(rounds: &[[Seen; CASES.len()]]) {
    println!(
        "{:<18} {:>16} {:>16} {:>16} {:>16} {:>16} {:>9}",
        "moved", "ops/s", "read p99", "read p99.9", "write p99", "write p99.9", "moved/s"
    );
    for (at, case) in CASES.iter().enumerate() {
        let value = |of: usize| median(rounds.iter().map(|round| round[at][of]));
        let ratio = |of: usize| median(rounds.iter().map(|round| round[at][of] / round[0][of]));
        let us = |of: usize| format!("{:.0}us ({:.2})", value(of) / 1e3, ratio(of));
        println!(
            "{:<18} {:>16} {:>16} {:>16} {:>16} {:>16} {:>9}",
            case.name,
            format!("{:.0} ({:.2})", value(0), ratio(0)),
            us(1),
            us(2),
            us(3),
            us(4),
            format!("{:.0} MiB", value(5) / f64::from(1 << 20))
        );
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
