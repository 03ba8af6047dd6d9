//! Redirected writes of several threads at once, and where their blocks come from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};

use crate::{
    ErrorKind, File, FileSystem, FormatOptions, IoMode, Limits, MountOptions, OpenOptions,
};

const UNIT: u64 = 8192;
const UNITS: u64 = 4096;
/// No lot is ever filled.
const NO_LOTS: (usize, u64) = (1, u64::MAX);

fn volume(bytes: u64, lots: Option<(usize, u64)>) -> (Arc<dyn BlockDevice>, FileSystem) {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(bytes);
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    let limits = Limits { lots, ..Limits::default() };
    let options = MountOptions { mode: IoMode::Concurrent, limits, ..MountOptions::default() };
    let fs = FileSystem::mount(Arc::clone(&device), None, options).unwrap();
    (device, fs)
}

fn sound(device: &Arc<dyn BlockDevice>) {
    let report = FileSystem::check(device, None, false).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// A file of all units, in order, that is written untorn from now on.
fn untorn(fs: &FileSystem) -> File {
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    let data = AlignedBuf::zeroed(1 << 20);
    for at in 0..(UNITS * UNIT) >> 20 {
        file.write_at(&data, at << 20).unwrap();
    }
    fs.set_untorn(file.ino(), Some(UNIT as u32)).unwrap();
    fs.sync().unwrap();
    file
}

/// Has threads write units until `next` returns none.
fn write(file: &File, threads: u64, next: &(dyn Fn(u64) -> Option<u64> + Sync)) {
    let work = |thread: u64| {
        let mut data = AlignedBuf::zeroed(UNIT as usize);
        while let Some(unit) = next(thread) {
            data[..8].copy_from_slice(&unit.to_le_bytes());
            file.write_at(&data, unit * UNIT).unwrap();
        }
    };
    thread::scope(|scope| {
        (0..threads).for_each(|thread| drop(scope.spawn(move || work(thread))));
    });
}

/// Random units, so many in all.
fn random(count: u64) -> impl Fn(u64) -> Option<u64> + Sync {
    let written = AtomicU64::new(0);
    move |_| {
        let number = written.fetch_add(1, Ordering::Relaxed);
        (number < count).then(|| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % UNITS)
    }
}

#[test]
fn redirected_writes_seldom_take_the_mutex_of_the_free_space() {
    let turns_of = |lots| {
        let (device, fs) = volume(512 << 20, lots);
        let file = untorn(&fs);
        let before = fs.state().allocator().turns();
        write(&file, 4, &random(8000));
        fs.sync().unwrap();
        let turns = fs.state().allocator().turns() - before;
        drop(file);
        fs.unmount().unwrap();
        sound(&device);
        turns
    };
    let (one_by_one, in_lots) = (turns_of(Some(NO_LOTS)), turns_of(None));
    println!("{one_by_one} and {in_lots} turns for 8,000 writes");
    assert!(one_by_one >= 8000, "{one_by_one}");
    assert!(in_lots <= one_by_one / 4, "{in_lots} turns in place of {one_by_one}");
}

/// How many runs a file lies in once its units were written again.
fn runs_after(
    lots: Option<(usize, u64)>,
    threads: u64,
    next: &(dyn Fn(u64) -> Option<u64> + Sync),
) -> u64 {
    let (device, fs) = volume(512 << 20, lots);
    let file = untorn(&fs);
    write(&file, threads, next);
    let runs = fs.fragmentation(file.ino()).unwrap().runs;
    drop(file);
    fs.unmount().unwrap();
    sound(&device);
    runs
}

fn in_order() -> impl Fn(u64) -> Option<u64> + Sync {
    let written = AtomicU64::new(0);
    move |_| Some(written.fetch_add(1, Ordering::Relaxed)).filter(|unit| *unit < UNITS)
}

#[test]
fn files_lie_in_no_more_runs_where_blocks_come_from_lots() {
    let (with, without) = (None, Some(NO_LOTS));
    for _ in 0..3 {
        println!(
            "in order by four threads: {} and {} runs, at random: {} and {}",
            runs_after(without, 4, &in_order()),
            runs_after(with, 4, &in_order()),
            runs_after(without, 4, &random(8000)),
            runs_after(with, 4, &random(8000)),
        );
    }
    assert!(runs_after(with, 1, &in_order()) <= 2 * runs_after(without, 1, &in_order()));
    assert!(runs_after(with, 1, &random(8000)) <= runs_after(without, 1, &random(8000)) * 11 / 10);
}

/// Fills a volume with units of a sparse file; returns how many there were.
fn fill(lots: Option<(usize, u64)>, threads: u64) -> u64 {
    let (device, fs) = volume(192 << 20, lots);
    let free = fs.info().free_bytes;
    let file = fs.open("/f", &OpenOptions::create()).unwrap();
    file.set_size(1 << 40).unwrap();
    fs.set_untorn(file.ino(), Some(UNIT as u32)).unwrap();
    let (next, written) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        let data = AlignedBuf::zeroed(UNIT as usize);
        loop {
            // Not one behind the other: what continues a file needs no lot.
            let unit = 3 * next.fetch_add(1, Ordering::Relaxed);
            match file.write_at(&data, unit * UNIT) {
                Ok(_) => written.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
                    return;
                }
            };
        }
    };
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    drop(file);
    fs.remove("/f").unwrap();
    fs.sync().unwrap();
    let lost = free.abs_diff(fs.info().free_bytes);
    assert!(lost <= 32 << 20, "all but what the metadata grew by is free again: {lost} bytes");
    fs.unmount().unwrap();
    sound(&device);
    written.into_inner()
}

/// S-501: eight threads fill a volume as one does.
#[test]
fn s_501_threads_that_fill_a_volume_get_what_one_gets() {
    let (one, eight) = (fill(Some(NO_LOTS), 1), fill(None, 8));
    println!("{one} units by one thread, {eight} by eight");
    assert_eq!(one, eight);
}
