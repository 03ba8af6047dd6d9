//! Writes to blocks that a checkpoint or an untorn unit keeps from being written in place: by
//! queues they stay in flight, and they are right.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_block::{
    AlignedBuf, BlockDevice, Completion, DeviceCall, DeviceQueue, Hook, HookedDevice, MemoryDevice,
    QueueOptions, Request, RequestKind, Result,
};
use bedplate_fs::{
    CheckpointOptions, File, FileSystem, IoMode, OpenOptions, Queue, QueueCompletion,
};

use crate::support::{Random, format, mount_as};

/// A device whose queues carry nothing out before they are asked for completions, the last
/// submitted first.
#[derive(Debug)]
struct Lazy {
    in_flight_max: Arc<AtomicUsize>,
}

impl Hook for Lazy {
    fn call(&self, _: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        pass()
    }

    fn queue(
        &self,
        inner: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> Result<Box<dyn DeviceQueue>> {
        let (device, in_flight_max) = (Arc::clone(inner), Arc::clone(&self.in_flight_max));
        Ok(Box::new(LazyQueue {
            device,
            in_flight_max,
            depth_max: options.depth_max,
            waiting: Vec::new(),
        }))
    }
}

struct LazyQueue {
    device: Arc<dyn BlockDevice>,
    in_flight_max: Arc<AtomicUsize>,
    depth_max: usize,
    waiting: Vec<Request>,
}

impl LazyQueue {
    fn carry_out(&self, mut request: Request) -> Completion {
        let mut at = 0;
        let mut result = Ok(());
        for segment in std::iter::once(&request.first).chain(&request.rest) {
            let buf = &mut request.buf.as_mut().unwrap()[at..at + segment.len as usize];
            result = result.and(match request.kind {
                RequestKind::Write => self.device.write_at(buf, segment.offset),
                _ => self.device.read_at(buf, segment.offset),
            });
            at += segment.len as usize;
        }
        Completion::new(request.token, result, request.buf)
    }
}

impl DeviceQueue for LazyQueue {
    fn depth_max(&self) -> usize {
        self.depth_max
    }
    fn in_flight(&self) -> usize {
        self.waiting.len()
    }
    fn push(&mut self, request: Request) -> std::result::Result<(), Request> {
        self.waiting.push(request);
        self.in_flight_max.fetch_max(self.waiting.len(), Ordering::Relaxed);
        Ok(())
    }
    fn submit(&mut self) -> Result<()> {
        Ok(())
    }
    fn complete(&mut self, min: usize, out: &mut Vec<Completion>) -> Result<usize> {
        for _ in 0..min {
            let request = self.waiting.pop().expect("no more is waited for than is in flight");
            out.push(self.carry_out(request));
        }
        Ok(min)
    }
    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        None
    }
    fn give_buffer(&mut self, _: AlignedBuf) {}
}

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;
const DEPTH: usize = 32;

struct Bed {
    device: Arc<dyn BlockDevice>,
    fs: FileSystem,
    file: Arc<File>,
    in_flight_max: Arc<AtomicUsize>,
}

fn bed(mode: IoMode) -> Bed {
    let in_flight_max = Arc::new(AtomicUsize::new(0));
    let device: Arc<dyn BlockDevice> = HookedDevice::new(
        MemoryDevice::new(64 << 20),
        Lazy { in_flight_max: Arc::clone(&in_flight_max) },
    );
    format(&device, BLOCK as u32);
    let fs = mount_as(&device, mode);
    let file = Arc::new(fs.open("/file", &OpenOptions::create()).unwrap());
    file.write_at(&AlignedBuf::zeroed(BLOCKS as usize * BLOCK), 0).unwrap();
    fs.sync().unwrap();
    Bed { device, fs, file, in_flight_max }
}

impl Bed {
    fn content(&self, path: &str) -> Vec<u8> {
        let file = self.fs.open(path, &OpenOptions::read_only()).unwrap();
        let mut all = AlignedBuf::zeroed(BLOCKS as usize * BLOCK);
        assert_eq!(file.read_at(&mut all, 0).unwrap(), all.len());
        all.chunks(BLOCK)
            .map(|block| block.iter().copied().reduce(|a, b| if a == b { a } else { 255 }).unwrap())
            .collect()
    }
}

/// S-71: writes that a checkpoint, an untorn unit, a hole or unwritten blocks send to new blocks
/// are all in flight at once, and each is wholly there in the end.
#[test]
fn s_71_a_queue_keeps_redirected_writes_in_flight() {
    for (mode, kind) in [
        (IoMode::Concurrent, 0),
        (IoMode::Direct, 0),
        (IoMode::ConcurrentCache, 0),
        (IoMode::Concurrent, 1),
        (IoMode::Concurrent, 2),
    ] {
        let bed = bed(mode);
        match kind {
            0 => drop(bed.fs.create_checkpoint("before", &CheckpointOptions::default()).unwrap()),
            1 => bed.fs.set_untorn(bed.file.ino(), Some(2 * BLOCK as u32)).unwrap(),
            _ => bed
                .file
                .allocate(bedplate_fs::AllocateMode::PunchHole, 0, BLOCKS * BLOCK as u64)
                .unwrap(),
        }
        let mut queue =
            Queue::new(&bed.fs, &QueueOptions { depth_max: DEPTH, ..QueueOptions::default() })
                .unwrap();
        let mut buf = AlignedBuf::zeroed(2 * BLOCK);
        buf.fill(7);
        bed.in_flight_max.store(0, Ordering::Relaxed);
        for at in 0..DEPTH as u64 {
            queue
                .write(&bed.file, AlignedBuf::from_slice(&buf), at * 2 * BLOCK as u64, at)
                .unwrap();
        }
        queue.submit().unwrap();
        assert_eq!(
            bed.in_flight_max.load(Ordering::Relaxed),
            DEPTH,
            "{mode}, {kind}: nothing was carried out by the submitting thread"
        );
        if mode == IoMode::Concurrent {
            assert!(
                bed.content("/file").iter().all(|byte| *byte == 0),
                "what is in flight is not there yet"
            );
        }
        let mut done = Vec::new();
        queue.complete(DEPTH, &mut done).unwrap();
        assert!(
            done.len() == DEPTH
                && done.iter().all(|done| matches!(done.result, Ok(len) if len == 2 * BLOCK))
        );
        assert!(bed.content("/file").iter().all(|byte| *byte == 7));
        if kind == 0 {
            assert!(bed.content("/.checkpoints/before/file").iter().all(|byte| *byte == 0));
        }
        drop(queue);
        let Bed { device, fs, file, .. } = bed;
        drop(file);
        fs.unmount().unwrap();
        assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
    }
}

/// Writes that meet each other in flight, more of them than there is room for, with checkpoints
/// that come and go meanwhile: every block is what its last writer made it, and every checkpoint
/// shows what was complete when it was made.
#[test]
fn s_50_redirected_writes_in_flight_never_harm_a_checkpoint() {
    for seed in 0..4 {
        let mut bed = bed([IoMode::Concurrent, IoMode::Direct][seed as usize % 2]);
        let mut random = Random::new(seed);
        let mut queue =
            Queue::new(&bed.fs, &QueueOptions { depth_max: DEPTH, ..QueueOptions::default() })
                .unwrap();
        let mut now = vec![0u8; BLOCKS as usize];
        let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
        let mut done: Vec<QueueCompletion> = Vec::new();
        for round in 0..60u32 {
            let value = 1 + (round % 200) as u8;
            let mut taken = vec![false; BLOCKS as usize];
            for _ in 0..random.below(DEPTH as u64) {
                let (at, blocks) = (random.below(BLOCKS - 4), 1 + random.below(4));
                let range = at as usize..(at + blocks) as usize;
                let mut buf = AlignedBuf::zeroed(blocks as usize * BLOCK);
                buf.fill(value);
                taken[range].fill(true);
                queue.write(&bed.file, buf, at * BLOCK as u64, 0).unwrap();
            }
            queue.submit().unwrap();
            if random.chance(3) {
                // Waits for what is in flight, and completes it itself.
                let name = format!("c{round}");
                bed.fs.create_checkpoint(&name, &CheckpointOptions::default()).unwrap();
                let shown = bed.content(&format!("/.checkpoints/{name}/file"));
                now.iter_mut()
                    .zip(&taken)
                    .filter(|(_, taken)| **taken)
                    .for_each(|(now, _)| *now = value);
                assert_eq!(shown, now, "what was submitted before is complete");
                kept.push((name, shown));
            }
            while queue.in_flight() > 0 {
                queue.complete(1, &mut done).unwrap();
            }
            assert!(done.drain(..).all(|done| done.result.is_ok()));
            now.iter_mut()
                .zip(&taken)
                .filter(|(_, taken)| **taken)
                .for_each(|(now, _)| *now = value);
            assert_eq!(bed.content("/file"), now, "seed {seed}, round {round}");
            if kept.len() > 3 {
                let (name, _) = kept.remove(random.below(kept.len() as u64) as usize);
                bed.fs.delete_checkpoint(&name).unwrap();
            }
            for (name, content) in &kept {
                assert_eq!(
                    bed.content(&format!("/.checkpoints/{name}/file")),
                    *content,
                    "seed {seed}, round {round}"
                );
            }
            if random.chance(20) {
                drop(queue);
                let Bed { device, fs, file, in_flight_max } = bed;
                drop(file);
                fs.unmount().unwrap();
                assert!(FileSystem::check(&device, None, false).unwrap().findings.is_empty());
                let fs = mount_as(&device, IoMode::Concurrent);
                let file = Arc::new(fs.open("/file", &OpenOptions::read_write()).unwrap());
                bed = Bed { device, fs, file, in_flight_max };
                queue = Queue::new(
                    &bed.fs,
                    &QueueOptions { depth_max: DEPTH, ..QueueOptions::default() },
                )
                .unwrap();
            }
        }
    }
}
