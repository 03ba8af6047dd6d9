//! How fast the data path is on a device that costs nothing but the processor; to be compared with the same of a build that counts nothing:
//!
//! ```sh
//! cargo build --release -p bedplate-fs --example statistics_cost && cp target/release/examples/statistics_cost counted
//! cargo build --release -p bedplate-fs --example statistics_cost --features uncounted && cp target/release/examples/statistics_cost uncounted
//! for round in $(seq 30); do ./counted; ./uncounted; done
//! ```
//!
//! One line a case: its name and 4 KiB operations a second.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use block::{AlignedBuf, BlockDevice, MemoryDevice, QueueOptions};
use fs::{File, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, Queue, QueueCompletion, Result};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 16 << 10;
const WINDOW: Duration = Duration::from_millis(250);
const DEPTH: usize = 128;

fn main() -> Result<()> {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(128 << 20);
    FileSystem::format(&device, None, &FormatOptions::default())?;
    let fs = FileSystem::mount(device, None, MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() })?;
    let file = Arc::new(fs.open("/file", &OpenOptions::create())?);
    let chunk = AlignedBuf::zeroed(1 << 20);
    (0..BLOCKS * BLOCK as u64).step_by(chunk.len()).try_for_each(|at| file.write_at(&chunk, at).map(drop))?;
    for write in [false, true] {
        for threads in [1, 16] {
            println!("{}-threads-{threads} {:.0}", name(write), by_threads(&file, threads, write)?);
        }
        println!("{}-depth-{DEPTH} {:.0}", name(write), by_queue(&fs, &file, write)?);
    }
    drop(file);
    fs.unmount()
}

fn name(write: bool) -> &'static str {
    if write { "write" } else { "read" }
}

/// Places of one thread, all over the file.
struct Places(u64);

impl Places {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % BLOCKS * BLOCK as u64
    }
}

fn by_threads(file: &File, threads: u64, write: bool) -> Result<f64> {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        let work = |seed: u64| -> Result<()> {
            let (mut places, mut buf, mut count) = (Places(seed), AlignedBuf::zeroed(BLOCK), 0_u64);
            while !stop.load(Relaxed) {
                if write {
                    file.write_at(&buf, places.next())?
                } else {
                    file.read_at(&mut buf, places.next())? as u64
                };
                count += 1;
            }
            done.fetch_add(count, Relaxed);
            Ok(())
        };
        let running: Vec<_> = (0..threads).map(|seed| scope.spawn(move || work(seed))).collect();
        std::thread::sleep(WINDOW);
        stop.store(true, Relaxed);
        running.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
    })?;
    Ok(done.load(Relaxed) as f64 / began.elapsed().as_secs_f64())
}

fn by_queue(fs: &FileSystem, file: &Arc<File>, write: bool) -> Result<f64> {
    let mut queue = Queue::new(fs, &QueueOptions { depth_max: DEPTH, buffers: 0, buffer_bytes: 0 })?;
    let (mut places, mut done, mut count) = (Places(7), Vec::<QueueCompletion>::new(), 0_u64);
    let mut free: Vec<AlignedBuf> = (0..DEPTH).map(|_| AlignedBuf::zeroed(BLOCK)).collect();
    let began = Instant::now();
    loop {
        // The clock is read once a turn, not once an operation: it would be most of the cost.
        let open = began.elapsed() < WINDOW;
        if !open && queue.in_flight() == 0 {
            break;
        }
        while open && let Some(buf) = free.pop() {
            let queued = if write { queue.write(file, buf, places.next(), 0) } else { queue.read(file, buf, places.next(), 0) };
            queued.expect("as many buffers as places");
        }
        queue.complete(1, &mut done)?;
        for completion in done.drain(..) {
            completion.result?;
            count += 1;
            free.extend(completion.buf);
        }
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}
