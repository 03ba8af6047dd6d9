//! What large sequential reads cost small reads of hot pages, through the library cache and past it
//! (`direct-above`), on a device or image of at least 1 GiB whose content is lost:
//!
//! ```sh
//! truncate -s 1G /var/tmp/large.img
//! cargo run --release -p bedplate-fs --example large_reads -- /var/tmp/large.img 5 10
//! ```
//!
//! The arguments are the image, rounds, seconds for each half of a round, and, if wanted, from how many
//! KiB on reads pass the cache in its second half (256). One thread reads a file of 640 MiB from end to
//! end, again and again, in requests of 1 MiB; two read 8 KiB at random places of one of 32 MiB; the
//! cache has 64 MiB. Both halves of a round are beside each other in time, and which is first
//! alternates.
//!
//! One line a half: MiB a second of the scan, small reads a second and what part of them were hits,
//! pages evicted. At the end the medians of the ratios, past the cache over through it, and their range.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate_block::{AlignedBuf, DeviceOptions};
use bedplate_fs::{
    File, FileSystem, FormatOptions, MountOptions, OpenOptions, Result, Tunable, TuneOptions,
};

const MIB: u64 = 1 << 20;
const SCANNED_BYTES: u64 = 640 * MIB;
const HOT_BYTES: u64 = 32 * MIB;
const CACHE_BYTES: u64 = 64 * MIB;
const SMALL_BYTES: usize = 8 << 10;
const SMALL_READERS: u64 = 2;

/// What was reached in half a round.
struct Half {
    scanned_mib: f64,
    small_reads: f64,
    hit_ratio: f64,
    evicted: u64,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(image) = arguments.next() else {
        println!("usage: large_reads IMAGE [ROUNDS [SECONDS [KIB]]]");
        return Ok(());
    };
    let mut number = |or| arguments.next().and_then(|said| said.parse().ok()).unwrap_or(or);
    let (rounds, seconds, kib) = (number(5), number(10), number(256));
    let device = bedplate_block::open(image, &DeviceOptions::default())?;
    FileSystem::format(&device, None, &FormatOptions { force: true, ..FormatOptions::default() })?;
    let options = MountOptions { cache_bytes: CACHE_BYTES, ..MountOptions::default() };
    let fs = FileSystem::mount(device, None, options)?;
    let (scanned, hot) = (filled(&fs, "/scanned", SCANNED_BYTES)?, filled(&fs, "/hot", HOT_BYTES)?);
    let mut ratios: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        let half = |past: bool| -> Result<Half> {
            let bytes = if past { kib << 10 } else { 0 };
            let changes = vec![(Tunable::DirectAbove, Some(bytes))];
            fs.tune(&TuneOptions { changes, live_only: true })?;
            let half = measured(&fs, &scanned, &hot, Duration::from_secs(seconds))?;
            let way = if past { "past" } else { "through" };
            println!(
                "{way:8} scan {:7.0} MiB/s  small {:8.0}/s  hits {:5.1} %  evicted {}",
                half.scanned_mib,
                half.small_reads,
                half.hit_ratio * 100.0,
                half.evicted
            );
            Ok(half)
        };
        let first_past = round % 2 == 1;
        let (first, second) = (half(first_past)?, half(!first_past)?);
        let (past, through) = if first_past { (first, second) } else { (second, first) };
        ratios[0].push(past.scanned_mib / through.scanned_mib);
        ratios[1].push(past.small_reads / through.small_reads);
    }
    for (what, mut ratios) in ["scan", "small reads"].into_iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        if let (Some(least), Some(most)) = (ratios.first(), ratios.last()) {
            let median = ratios[ratios.len() / 2];
            println!("{what:12} past / through {median:.2} ({least:.2} to {most:.2})");
        }
    }
    drop((scanned, hot));
    fs.unmount()
}

fn filled(fs: &FileSystem, path: &str, bytes: u64) -> Result<File> {
    let file = fs.open(path, &OpenOptions::create())?;
    let mut chunk = AlignedBuf::zeroed(MIB as usize);
    for at in (0..bytes).step_by(chunk.len()) {
        chunk.fill((at / MIB) as u8);
        file.write_at(&chunk, at)?;
    }
    file.sync_all()?;
    Ok(file)
}

/// Has all threads read for so long.
fn measured(fs: &FileSystem, scanned: &File, hot: &File, time: Duration) -> Result<Half> {
    // The hot pages are in the cache as it begins.
    let mut page = AlignedBuf::zeroed(SMALL_BYTES);
    for at in (0..HOT_BYTES).step_by(SMALL_BYTES) {
        hot.read_at(&mut page, at)?;
    }
    let (stop, scans, small) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (before, evicted) = (hot.counters(), fs.info().cache.evictions);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let scan = scope.spawn(|| read_in_order(scanned, &stop, &scans));
        let (stop, small) = (&stop, &small);
        let readers: Vec<_> = (1..=SMALL_READERS)
            .map(|seed| scope.spawn(move || read_at_random(hot, seed, stop, small)))
            .collect();
        std::thread::sleep(time);
        stop.store(true, Relaxed);
        let ended = std::iter::once(scan).chain(readers);
        ended.into_iter().try_for_each(|one| one.join().expect("a reader does not panic"))
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let counted = hot.counters().since(&before);
    Ok(Half {
        scanned_mib: scans.load(Relaxed) as f64 / seconds,
        small_reads: small.load(Relaxed) as f64 / seconds,
        hit_ratio: counted.cache_hits as f64 / counted.reads.max(1) as f64,
        evicted: fs.info().cache.evictions - evicted,
    })
}

fn read_in_order(file: &File, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
    let mut buf = AlignedBuf::zeroed(MIB as usize);
    for at in (0..SCANNED_BYTES).step_by(buf.len()).cycle() {
        if stop.load(Relaxed) {
            break;
        }
        file.read_at(&mut buf, at)?;
        done.fetch_add(1, Relaxed);
    }
    Ok(())
}

fn read_at_random(file: &File, seed: u64, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
    let (mut buf, mut place) = (AlignedBuf::zeroed(SMALL_BYTES), seed);
    while !stop.load(Relaxed) {
        place =
            place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        file.read_at(
            &mut buf,
            (place >> 33) % (HOT_BYTES / SMALL_BYTES as u64) * SMALL_BYTES as u64,
        )?;
        done.fetch_add(1, Relaxed);
    }
    Ok(())
}
