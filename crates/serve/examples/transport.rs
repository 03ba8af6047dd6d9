//! Measures requests of a mount through `/dev/fuse` and over io_uring, in turns, on a device in
//! memory: microseconds of one caller, requests a second of eight, and the processor time of the
//! threads that serve, in user space and in the kernel.
//!
//! `cargo run --release -p bedplate-serve --example transport -- [ROUNDS]`
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on says where")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate_block::{BlockDevice, MemoryDevice};
use bedplate_fs::{FileSystem, FormatOptions};
use bedplate_serve::fuse::{Mount, MountSettings};
use rustix::time::{ClockId, clock_gettime};

const FILE_BYTES: u64 = 64 << 20;
const PAGE_BYTES: usize = 8192;
const SPAN: Duration = Duration::from_millis(500);
const NAMES: u32 = 2000;
const TRANSPORTS: [&str; 2] = ["device", "io_uring"];

/// What is measured of a transport; more is better, except of the last five, which are times.
const WHAT: [&str; 9] = [
    "8 KiB reads/s, 1 caller",
    "8 KiB reads/s, 8 callers",
    "8 KiB writes/s, 1 caller",
    "8 KiB writes/s, 8 callers",
    "create, write 1 KiB, close: µs",
    "stat of a name that is not there: µs",
    "unlink: µs",
    "processor time of a read, 1 caller: µs",
    "processor time of a write, 1 caller: µs",
];

fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(5, |text| text.parse().unwrap());
    let mut measured = vec![vec![Vec::new(); WHAT.len()]; TRANSPORTS.len()];
    for round in 0..rounds {
        for turn in 0..TRANSPORTS.len() {
            let at = (round + turn) % TRANSPORTS.len();
            for (values, value) in measured[at].iter_mut().zip(measure(TRANSPORTS[at])) {
                values.push(value);
            }
        }
    }
    println!("medians of {rounds} rounds: {}", TRANSPORTS.join(", "));
    for (number, what) in WHAT.iter().enumerate() {
        let medians: Vec<f64> = measured
            .iter_mut()
            .map(|transport| {
                transport[number].sort_by(f64::total_cmp);
                transport[number][rounds / 2]
            })
            .collect();
        println!("{what:<38} {:>10.1} {:>10.1}", medians[0], medians[1]);
    }
}

/// Mounts a volume in memory and measures.
fn measure(transport: &str) -> [f64; 9] {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(512 << 20);
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    let place = tempfile::tempdir().unwrap();
    let settings = MountSettings::parse(&format!("mode=concurrent,transport={transport}")).unwrap();
    let fs = FileSystem::mount(device, None, settings.file_system.clone()).unwrap();
    let mount = Mount::start(fs, place.path(), &settings).unwrap();
    let path = place.path().join("f");
    let file = File::create(&path).unwrap();
    for part in 0..FILE_BYTES >> 20 {
        file.write_all_at(&[7; 1 << 20], part << 20).unwrap();
    }
    file.sync_all().unwrap();
    let [creates, stats, unlinks] = names(place.path());
    let (read, reading) = rate(&path, 1, false);
    let (written, writing) = rate(&path, 1, true);
    let values = [
        read,
        rate(&path, 8, false).0,
        written,
        rate(&path, 8, true).0,
        creates,
        stats,
        unlinks,
        reading,
        writing,
    ];
    drop(file);
    mount.unmount().unwrap();
    values
}

/// Returns how many pages so many threads read or write in a second, at random, and the processor
/// time of each in the threads that serve, in microseconds.
fn rate(path: &Path, threads: u64, write: bool) -> (f64, f64) {
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let of_callers = AtomicU64::new(0);
    let (began, spent) = (Instant::now(), processor_ns(ClockId::ProcessCPUTime));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (over, done, of_callers) = (&over, &done, &of_callers);
            scope.spawn(move || {
                let file = File::options().read(true).write(true).open(path).unwrap();
                let mut page = vec![thread as u8; PAGE_BYTES];
                let mut random = thread + 1;
                while !over.load(Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = (random >> 33) % (FILE_BYTES / PAGE_BYTES as u64) * PAGE_BYTES as u64;
                    if write {
                        file.write_all_at(&page, at).unwrap();
                    } else {
                        file.read_exact_at(&mut page, at).unwrap();
                    }
                    done.fetch_add(1, Relaxed);
                }
                of_callers.fetch_add(processor_ns(ClockId::ThreadCPUTime), Relaxed);
            });
        }
        std::thread::sleep(SPAN);
        over.store(true, Relaxed);
    });
    let (seconds, done) = (began.elapsed().as_secs_f64(), done.into_inner() as f64);
    let spent = processor_ns(ClockId::ProcessCPUTime) - spent;
    let serving = spent.saturating_sub(of_callers.into_inner());
    (done / seconds, serving as f64 / 1e3 / done)
}

fn processor_ns(of: ClockId) -> u64 {
    let time = clock_gettime(of);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Returns what it takes to make a small file, to ask for one, and to remove one.
fn names(place: &Path) -> [f64; 3] {
    let name = |number: u32| place.join(format!("n{number}"));
    let each = |work: &dyn Fn(u32)| {
        let began = Instant::now();
        (0..NAMES).for_each(work);
        began.elapsed().as_secs_f64() * 1e6 / f64::from(NAMES)
    };
    let made = each(&|number| fs::write(name(number), [1; 1024]).unwrap());
    // A name that is not there is asked for each time.
    let asked = each(&|number| assert!(fs::metadata(name(number + NAMES)).is_err()));
    let removed = each(&|number| fs::remove_file(name(number)).unwrap());
    [made, asked, removed]
}
