//! Load on block devices: a thread and a queue for each part of them, and how much they moved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate::{
    AlignedBuf, BlockDevice, Completion, DeviceQueue, QueueOptions, Request, RequestKind, Segment,
};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::Result;
use crate::target::fill_pattern;

/// What every thread does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub kind: RequestKind,
    pub request_bytes: u64,
    pub depth: usize,
    pub random: bool,
}

/// A range of a device, one thread's.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub device: Arc<dyn BlockDevice>,
    pub start: u64,
    pub end: u64,
}

/// Cuts a device into equal parts that begin on whole requests.
pub(super) fn parts(
    device: &Arc<dyn BlockDevice>,
    start: u64,
    count: u64,
    request_bytes: u64,
) -> Vec<Part> {
    let step = (device.size_bytes() - start) / count / request_bytes * request_bytes;
    (0..count)
        .map(|n| Part {
            device: Arc::clone(device),
            start: start + n * step,
            end: start + (n + 1) * step,
        })
        .collect()
}

/// Returns requests and bytes per second of all parts together.
pub(super) fn rate(parts: &[Part], load: Load, time: Duration) -> Result<(f64, f64)> {
    let start = Instant::now();
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .iter()
            .enumerate()
            .map(|(at, part)| scope.spawn(move || work(part, load, time, at as u64)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread of load does not panic"))
            .sum::<Result<u64>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    Ok((done as f64 / seconds, (done * load.request_bytes) as f64 / seconds))
}

/// Keeps a queue full until the time is over. Returns how many requests it completed.
fn work(part: &Part, load: Load, time: Duration, seed: u64) -> Result<u64> {
    let mut queue =
        part.device.queue(&QueueOptions { depth_max: load.depth, ..QueueOptions::default() })?;
    let mut buffer = AlignedBuf::zeroed(load.request_bytes as usize);
    fill_pattern(&mut buffer, seed);
    let mut idle: Vec<AlignedBuf> =
        (0..load.depth).map(|_| AlignedBuf::from_slice(&buffer)).collect();
    let (mut rng, mut next, mut count) = (Xoshiro256PlusPlus::seed_from_u64(seed), 0, 0);
    let slots = ((part.end - part.start) / load.request_bytes).max(1);
    let (start, mut done) = (Instant::now(), Vec::new());
    while start.elapsed() < time || queue.in_flight() > 0 {
        while start.elapsed() < time
            && let Some(buf) = idle.pop()
        {
            let slot = if load.random { rng.random_range(0..slots) } else { next % slots };
            next += 1;
            let first = Segment {
                offset: part.start + slot * load.request_bytes,
                len: load.request_bytes as u32,
            };
            let pushed = queue.push(Request {
                token: 0,
                kind: load.kind,
                buf: Some(buf),
                first,
                rest: Vec::new(),
            });
            assert!(pushed.is_ok(), "no more is pushed than the queue holds");
        }
        count += collect(&mut *queue, &mut done, &mut idle)?;
    }
    Ok(count)
}

fn collect(
    queue: &mut dyn DeviceQueue,
    done: &mut Vec<Completion>,
    idle: &mut Vec<AlignedBuf>,
) -> Result<u64> {
    let mut count = 0;
    queue.complete(1, done)?;
    for completion in done.drain(..) {
        completion.result?;
        idle.extend(completion.buf);
        count += 1;
    }
    Ok(count)
}
