//! A volume whose data is written behind its end, at places that go around there. So what is written
//! costs what it costs, without the room for a terabyte.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bedplate_block::{
    AlignedBuf, BlockDevice, Completion, DeviceCounters, DeviceQueue, EngineReport, Geometry,
    QueueOptions, Request, RequestKind, Result, Segment,
};

/// All that goes through queues is data.
#[derive(Debug)]
pub struct Folded {
    pub device: Arc<dyn BlockDevice>,
    pub volume_bytes: u64,
}

impl BlockDevice for Folded {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn size_bytes(&self) -> u64 {
        self.volume_bytes
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.device.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.device.write_at(buf, offset)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.device.write_zeroes(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        self.device.discard(offset, len)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        let queue = self.device.queue(options)?;
        Ok(Box::new(FoldedQueue { queue, behind: self.volume_bytes..self.device.size_bytes() }))
    }

    fn engine(&self) -> EngineReport {
        self.device.engine()
    }

    fn counters(&self) -> DeviceCounters {
        self.device.counters()
    }
}

struct FoldedQueue {
    queue: Box<dyn DeviceQueue>,
    behind: Range<u64>,
}

impl FoldedQueue {
    /// Moves a segment to its place behind the volume; what passes the end there begins before it.
    fn fold(&self, segment: &mut Segment) {
        let bytes = self.behind.end - self.behind.start;
        let last = bytes - u64::from(segment.len);
        segment.offset = self.behind.start + (segment.offset % bytes).min(last);
    }
}

impl DeviceQueue for FoldedQueue {
    fn depth_max(&self) -> usize {
        self.queue.depth_max()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn push(&mut self, mut request: Request) -> std::result::Result<(), Request> {
        assert!(request.kind != RequestKind::Read, "what is written here cannot be read");
        self.fold(&mut request.first);
        request.rest.iter_mut().for_each(|segment| self.fold(segment));
        self.queue.push(request)
    }

    fn submit(&mut self) -> Result<()> {
        self.queue.submit()
    }

    fn complete(&mut self, min: usize, out: &mut Vec<Completion>) -> Result<usize> {
        self.queue.complete(min, out)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.queue.readiness()
    }

    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.queue.take_buffer()
    }

    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.queue.give_buffer(buf);
    }
}
