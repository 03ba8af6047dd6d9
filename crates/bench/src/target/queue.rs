//! Lists of operations: over devices, and over the files of a volume. Both are translations of
//! tokens and offsets, nothing more.

use std::sync::Arc;

use bedplate::{
    AlignedBuf, BlockDevice, Completion, DeviceQueue, File, FileSystem, Queue, QueueCompletion,
    QueueOptions, Request, RequestKind, Segment,
};

use super::{Done, Op, OpKind, QueueSetup, TargetQueue};
use crate::{Error, Result};

/// A part of a device that stands for a file.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    pub device: Arc<dyn BlockDevice>,
    pub start: u64,
}

/// Buffers for a queue: registered ones while they last.
fn buffer_of(taken: Option<AlignedBuf>, setup: &QueueSetup) -> AlignedBuf {
    taken.unwrap_or_else(|| AlignedBuf::zeroed(setup.buffer_bytes))
}

fn options(setup: &QueueSetup) -> QueueOptions {
    QueueOptions { depth_max: setup.depth, buffers: setup.depth, buffer_bytes: setup.buffer_bytes }
}

/// A list over regions of devices: one device queue for each distinct device.
pub(crate) struct RegionQueue {
    queues: Vec<Box<dyn DeviceQueue>>,
    /// For each file, its queue and where it starts there.
    files: Vec<(usize, u64)>,
    setup: QueueSetup,
    scratch: Vec<Completion>,
}

impl RegionQueue {
    pub(crate) fn open(regions: &[Region], setup: &QueueSetup) -> Result<Self> {
        let mut devices: Vec<&Arc<dyn BlockDevice>> = Vec::new();
        let mut files = Vec::new();
        for region in regions {
            let known = devices.iter().position(|d| Arc::ptr_eq(d, &region.device));
            let at = known.unwrap_or_else(|| {
                devices.push(&region.device);
                devices.len() - 1
            });
            files.push((at, region.start));
        }
        let queues = devices
            .iter()
            .map(|device| device.queue(&options(setup)))
            .collect::<std::result::Result<_, _>>()?;
        Ok(Self { queues, files, setup: *setup, scratch: Vec::with_capacity(setup.depth) })
    }

    fn collect(&mut self, out: &mut Vec<Done>) -> Result<()> {
        for completion in self.scratch.drain(..) {
            completion.result?;
            out.push(Done {
                token: completion.token,
                buf: completion.buf.expect("a read or write gives its buffer back"),
            });
        }
        Ok(())
    }
}

impl TargetQueue for RegionQueue {
    fn take_buffer(&mut self) -> AlignedBuf {
        // A buffer is registered with one ring only: with several devices the lists would have to
        // know which buffer belongs where.
        let taken = if self.queues.len() == 1 { self.queues[0].take_buffer() } else { None };
        buffer_of(taken, &self.setup)
    }

    fn push(&mut self, op: Op, buf: AlignedBuf) -> Result<()> {
        let (queue, start) = self.files[op.file];
        let kind = match op.kind {
            OpKind::Read => RequestKind::Read,
            OpKind::Write => RequestKind::Write,
        };
        let first = Segment { offset: start + op.offset, len: buf.len() as u32 };
        let request = Request { token: op.token, kind, buf: Some(buf), first, rest: Vec::new() };
        self.queues[queue]
            .push(request)
            .map_err(|_| Error::target("the queue took fewer operations than it was opened for"))
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Done>) -> Result<()> {
        if let [queue] = &mut self.queues[..] {
            queue.complete(min, &mut self.scratch)?;
            return self.collect(out);
        }
        for queue in &mut self.queues {
            queue.submit()?;
        }
        // Several rings cannot be waited for at once: take what is there, then wait for the
        // fullest.
        let enough = out.len() + min;
        loop {
            for queue in &mut self.queues {
                queue.complete(0, &mut self.scratch)?;
            }
            self.collect(out)?;
            let fullest = self.queues.iter_mut().max_by_key(|queue| queue.in_flight());
            match fullest {
                Some(queue) if out.len() < enough && queue.in_flight() > 0 => {
                    queue.complete(1, &mut self.scratch)?
                }
                _ => return Ok(()),
            };
        }
    }
}

/// A list over files of one volume.
pub(crate) struct VolumeQueue {
    queue: Queue,
    files: Vec<Arc<File>>,
    setup: QueueSetup,
    scratch: Vec<QueueCompletion>,
}

impl VolumeQueue {
    pub(crate) fn open(fs: &FileSystem, files: Vec<Arc<File>>, setup: &QueueSetup) -> Result<Self> {
        Ok(Self {
            queue: Queue::new(fs, &options(setup))?,
            files,
            setup: *setup,
            scratch: Vec::with_capacity(setup.depth),
        })
    }
}

impl TargetQueue for VolumeQueue {
    fn take_buffer(&mut self) -> AlignedBuf {
        buffer_of(self.queue.take_buffer(), &self.setup)
    }

    fn push(&mut self, op: Op, buf: AlignedBuf) -> Result<()> {
        let file = &self.files[op.file];
        let pushed = match op.kind {
            OpKind::Read => self.queue.read(file, buf, op.offset, op.token),
            OpKind::Write => self.queue.write(file, buf, op.offset, op.token),
        };
        pushed.map_err(|_| Error::target("the queue took fewer operations than it was opened for"))
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Done>) -> Result<()> {
        self.queue.complete(min, &mut self.scratch)?;
        for completion in self.scratch.drain(..) {
            completion.result?;
            out.push(Done {
                token: completion.token,
                buf: completion.buf.expect("a read or write gives its buffer back"),
            });
        }
        Ok(())
    }
}
