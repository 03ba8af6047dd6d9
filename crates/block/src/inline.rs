//! The queue of devices that serve a request faster than a thread could be woken for it: memory.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::counters::LiveCounters;
use crate::pool::BufferPool;
use crate::{AlignedBuf, Completion, DeviceQueue, QueueOptions, Request, RequestKind, Result};

/// Positioned access that a queue carries requests out with. Checks and counts for itself.
pub(crate) trait Positioned: Send + Sync {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()>;
    fn write(&self, buf: &[u8], offset: u64) -> Result<()>;
    fn flush(&self) -> Result<()>;
    /// Refuses a request whose shape is wrong before any of it is carried out.
    fn check(&self, request: &Request) -> Result<()>;
}

/// A device that server threads carry requests out on.
pub(crate) trait Served: Positioned {
    /// Returns the device's name.
    fn name(&self) -> &str;
    /// Returns the device's counters.
    fn counters(&self) -> &LiveCounters;
}

/// Carries one request out from the calling thread.
pub(crate) fn serve<P: Positioned + ?Sized>(device: &P, mut request: Request) -> Completion {
    let result = device.check(&request).and_then(|()| transfer(device, &mut request));
    Completion::new(request.token, result, request.buf)
}

fn transfer<P: Positioned + ?Sized>(device: &P, request: &mut Request) -> Result<()> {
    let Some(buf) = &mut request.buf else { return device.flush() };
    let mut rest: &mut [u8] = buf;
    for segment in std::iter::once(&request.first).chain(&request.rest) {
        debug_assert!(
            segment.len as usize <= rest.len(),
            "the check sees to it that the segments fit the buffer: {segment:?}"
        );
        let (part, tail) = rest.split_at_mut(segment.len as usize);
        match request.kind {
            RequestKind::Read => device.read(part, segment.offset)?,
            RequestKind::Write => device.write(part, segment.offset)?,
            RequestKind::Flush => unreachable!("the check refuses a flush with a buffer"),
        }
        rest = tail;
    }
    Ok(())
}

/// Carries requests out while they are submitted.
pub(crate) struct InlineQueue<P> {
    device: Arc<P>,
    depth_max: usize,
    pushed: VecDeque<Request>,
    done: VecDeque<Completion>,
    pool: BufferPool,
}

impl<P: Positioned> InlineQueue<P> {
    pub fn new(device: Arc<P>, options: &QueueOptions) -> Self {
        let depth_max = options.depth_max.clamp(1, 4096);
        Self {
            device,
            depth_max,
            pushed: VecDeque::new(),
            done: VecDeque::new(),
            pool: BufferPool::new(options),
        }
    }
}

impl<P: Positioned> DeviceQueue for InlineQueue<P> {
    fn depth_max(&self) -> usize {
        self.depth_max
    }

    fn in_flight(&self) -> usize {
        self.pushed.len() + self.done.len()
    }

    fn push(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.depth_max {
            return Err(request);
        }
        self.pushed.push_back(request);
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        while let Some(request) = self.pushed.pop_front() {
            self.done.push_back(serve(&*self.device, request));
        }
        Ok(())
    }

    fn complete(&mut self, _min: usize, out: &mut Vec<Completion>) -> Result<usize> {
        self.submit()?;
        let count = self.done.len();
        out.extend(self.done.drain(..));
        Ok(count)
    }

    fn take_buffer(&mut self) -> Option<AlignedBuf> {
        self.pool.take()
    }

    fn give_buffer(&mut self, buf: AlignedBuf) {
        self.pool.give(buf);
    }
}
