//! What overwriting costs the processor before a checkpoint, directly after it, and once more, on a
//! device that costs nothing else:
//!
//! ```sh
//! cargo run --release -p bedplate-fs --example redirect_cost
//! ```
//!
//! One line a case: microseconds of wall time an 8 KiB write, every page of the file once a pass,
//! in a random order.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Instant;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice, QueueOptions};
use bedplate_fs::{
    CheckpointOptions, File, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, Queue,
    QueueCompletion, Result,
};

const PAGE: usize = 8192;
const PAGES: u64 = 32 << 10;
const DEPTH: usize = 32;
const THREADS: u64 = 16;

fn main() -> Result<()> {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(1 << 30);
    FileSystem::format(&device, None, &FormatOptions::default())?;
    let fs = FileSystem::mount(
        device,
        None,
        MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() },
    )?;
    // The first touch of the device's memory is no business of the file system.
    drop(filled(&fs, 800 << 20)?);
    for (name, order) in [("random", shuffled()), ("sequential", (0..PAGES).collect())] {
        for threads in [false, true] {
            let file = filled(&fs, PAGES * PAGE as u64)?;
            let pass =
                || if threads { by_threads(&file, &order) } else { by_queue(&fs, &file, &order) };
            let before = pass()?;
            fs.create_checkpoint("c", &CheckpointOptions::default())?;
            let (first, second) = (pass()?, pass()?);
            let way = if threads { "threads-16" } else { "depth-32" };
            println!(
                "{name}-{way} before {before:.2} after {first:.2} again {second:.2} ratio {:.2} \
                 {:.2}",
                before / first,
                before / second
            );
            fs.delete_checkpoint("c")?;
        }
    }
    fs.unmount()
}

/// A new file in the place of the one before.
fn filled(fs: &FileSystem, bytes: u64) -> Result<Arc<File>> {
    if fs.resolve("/file").is_ok() {
        fs.remove("/file")?;
        fs.sync()?;
    }
    let file = Arc::new(fs.open("/file", &OpenOptions::create())?);
    let chunk = AlignedBuf::zeroed(1 << 20);
    (0..bytes).step_by(chunk.len()).try_for_each(|at| file.write_at(&chunk, at).map(drop))?;
    fs.sync()?;
    Ok(file)
}

fn shuffled() -> Vec<u64> {
    let (mut order, mut random): (Vec<u64>, u64) = ((0..PAGES).collect(), 7);
    for at in (1..order.len()).rev() {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (random >> 33) as usize % (at + 1));
    }
    order
}

fn micros(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e6 / PAGES as f64
}

fn by_threads(file: &File, order: &[u64]) -> Result<f64> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let work = |thread: u64| -> Result<()> {
            let buf = AlignedBuf::zeroed(PAGE);
            order
                .iter()
                .skip(thread as usize)
                .step_by(THREADS as usize)
                .try_for_each(|page| file.write_at(&buf, page * PAGE as u64).map(drop))
        };
        let running: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
    })?;
    Ok(micros(began))
}

fn by_queue(fs: &FileSystem, file: &Arc<File>, order: &[u64]) -> Result<f64> {
    let mut queue =
        Queue::new(fs, &QueueOptions { depth_max: DEPTH, buffers: 0, buffer_bytes: 0 })?;
    let (mut rest, mut done) = (order.iter(), Vec::<QueueCompletion>::new());
    let mut free: Vec<AlignedBuf> = (0..DEPTH).map(|_| AlignedBuf::zeroed(PAGE)).collect();
    let began = Instant::now();
    loop {
        while !free.is_empty()
            && let Some(page) = rest.next()
        {
            let buf = free.pop().expect("looked");
            queue.write(file, buf, page * PAGE as u64, 0).expect("as many buffers as places");
        }
        if queue.in_flight() == 0 {
            return Ok(micros(began));
        }
        queue.complete(1, &mut done)?;
        for completion in done.drain(..) {
            completion.result?;
            free.extend(completion.buf);
        }
    }
}
