//! What counting and timing cost, on a device that costs nothing but the processor, or on a device
//! or image of at least 128 MiB whose content is lost:
//!
//! ```sh
//! cargo run --release -p bedplate-fs --features statistics-switch --example statistics_cost -- 30
//! cargo run --release -p bedplate-fs --features statistics-switch --example statistics_cost -- 30 /dev/loop7
//! ```
//!
//! The same threads work without a pause, for as many seconds a case as said, while the statistics
//! are switched on and off every few milliseconds: the two rates of a pair of windows come from the
//! same processor, the same memory and the same moment. (Two builds, one after the other, differ by
//! ten times what is looked for.)
//!
//! One line a case: its name, 4 KiB operations a second, their rate with statistics over that
//! without (mean of all pairs, the slowest and fastest tenth left out), its standard error, and the
//! number of pairs.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate_block::{AlignedBuf, BlockDevice, DeviceOptions, MemoryDevice, QueueOptions};
use bedplate_fs::{
    File, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, Queue, QueueCompletion,
    Result,
};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 16 << 10;
const WINDOW: Duration = Duration::from_millis(4);
const DEPTH: usize = 128;

fn main() -> Result<()> {
    let seconds = std::env::args().nth(1).and_then(|said| said.parse().ok()).unwrap_or(10);
    let device: Arc<dyn BlockDevice> = match std::env::args().nth(2) {
        Some(path) => bedplate_block::open(path, &DeviceOptions::default())?,
        None => MemoryDevice::new(128 << 20),
    };
    FileSystem::format(&device, None, &FormatOptions::default())?;
    let fs = FileSystem::mount(
        device,
        None,
        MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() },
    )?;
    let file = Arc::new(fs.open("/file", &OpenOptions::create())?);
    let chunk = AlignedBuf::zeroed(1 << 20);
    (0..BLOCKS * BLOCK as u64)
        .step_by(chunk.len())
        .try_for_each(|at| file.write_at(&chunk, at).map(drop))?;
    for (name, write) in [("read", false), ("write", true)] {
        for threads in [1, 2, 16] {
            let case = format!("{name}-threads-{threads}");
            compare(&case, seconds, threads, |run, seed| by_call(&file, write, run, seed))?;
        }
        let case = format!("{name}-depth-{DEPTH}");
        compare(&case, seconds, 1, |run, _| by_queue(&fs, &file, write, run))?;
    }
    drop(file);
    fs.unmount()
}

/// What a worker is told, and tells.
#[repr(align(128))]
#[derive(Default)]
struct Run {
    stop: AtomicBool,
    done: AtomicU64,
}

impl Run {
    fn add(&self, done: u64) {
        self.done.store(self.done.load(Relaxed) + done, Relaxed);
    }
}

fn compare(
    case: &str,
    seconds: u64,
    threads: usize,
    work: impl Fn(&Run, u64) -> Result<()> + Sync,
) -> Result<()> {
    let runs: Vec<Run> = (0..threads).map(|_| Run::default()).collect();
    let done = || runs.iter().map(|run| run.done.load(Relaxed)).sum::<u64>();
    let window = |counting: bool| {
        bedplate_fs::statistics_switch(counting);
        let (before, began) = (done(), Instant::now());
        std::thread::sleep(WINDOW);
        (done() - before) as f64 / began.elapsed().as_secs_f64()
    };
    let mut pairs = Vec::new();
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> =
            runs.iter().zip(1..).map(|(run, seed)| scope.spawn(move || work(run, seed))).collect();
        let began = Instant::now();
        std::thread::sleep(50 * WINDOW);
        while began.elapsed() < Duration::from_secs(seconds) {
            // The first of a pair is the one that was last in the pair before.
            let counted_first = pairs.len() % 2 == 0;
            let (first, second) = (window(counted_first), window(!counted_first));
            pairs.push(if counted_first { (first, second) } else { (second, first) });
        }
        bedplate_fs::statistics_switch(true);
        runs.iter().for_each(|run| run.stop.store(true, Relaxed));
        running.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
    })?;
    report(case, &pairs);
    Ok(())
}

fn report(case: &str, pairs: &[(f64, f64)]) {
    let mut ratios: Vec<f64> =
        pairs.iter().map(|(counted, uncounted)| counted / uncounted).collect();
    ratios.sort_by(f64::total_cmp);
    let kept = &ratios[ratios.len() / 10..ratios.len() - ratios.len() / 10];
    let mean = kept.iter().sum::<f64>() / kept.len() as f64;
    let error =
        (kept.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>()).sqrt() / kept.len() as f64;
    let rate = pairs.iter().map(|(counted, _)| counted).sum::<f64>() / pairs.len() as f64;
    println!("{case:16} {rate:9.0}/s  {mean:.4} ± {error:.4}  {} pairs", pairs.len());
}

/// Places of one thread, all over the file.
struct Places(u64);

impl Places {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % BLOCKS * BLOCK as u64
    }
}

fn by_call(file: &File, write: bool, run: &Run, seed: u64) -> Result<()> {
    let (mut places, mut buf) = (Places(seed), AlignedBuf::zeroed(BLOCK));
    while !run.stop.load(Relaxed) {
        if write {
            file.write_at(&buf, places.next()).map(drop)?;
        } else {
            file.read_at(&mut buf, places.next()).map(drop)?;
        }
        run.add(1);
    }
    Ok(())
}

fn by_queue(fs: &FileSystem, file: &Arc<File>, write: bool, run: &Run) -> Result<()> {
    let mut queue =
        Queue::new(fs, &QueueOptions { depth_max: DEPTH, buffers: 0, buffer_bytes: 0 })?;
    let (mut places, mut done) = (Places(7), Vec::<QueueCompletion>::new());
    let mut free: Vec<AlignedBuf> = (0..DEPTH).map(|_| AlignedBuf::zeroed(BLOCK)).collect();
    loop {
        let open = !run.stop.load(Relaxed);
        if !open && queue.in_flight() == 0 {
            return Ok(());
        }
        while open && let Some(buf) = free.pop() {
            let queued = if write {
                queue.write(file, buf, places.next(), 0)
            } else {
                queue.read(file, buf, places.next(), 0)
            };
            queued.expect("as many buffers as places");
        }
        queue.complete(1, &mut done)?;
        run.add(done.len() as u64);
        for completion in done.drain(..) {
            completion.result?;
            free.extend(completion.buf);
        }
    }
}
