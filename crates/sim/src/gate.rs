//! The way from one mount to its device, which ends when the process that mounted dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{BlockDevice, DeviceCounters, DeviceQueue, EngineReport, Error, ErrorKind, Geometry, Operation, QueueOptions, Result, SimulatedDevice};

/// A device that can be taken away from whoever holds it.
#[derive(Debug)]
pub(crate) struct Gate {
    inner: Arc<SimulatedDevice>,
    closed: AtomicBool,
}

impl Gate {
    pub(crate) fn new(inner: &Arc<SimulatedDevice>) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(inner), closed: AtomicBool::new(false) })
    }

    /// Nothing gets through any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    fn pass(&self, operation: Operation) -> Result<&SimulatedDevice> {
        if !self.closed.load(Ordering::SeqCst) {
            return Ok(&self.inner);
        }
        let (device, detail) = ("simulated".to_owned(), "the process is dead".to_owned());
        Err(Error { kind: ErrorKind::Io, operation, device, offset: None, errno: None, detail })
    }
}

impl BlockDevice for Gate {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn refresh_size(&self) -> Result<u64> {
        self.inner.refresh_size()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.pass(Operation::Read)?.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.pass(Operation::Write)?.write_at(buf, offset)
    }
    fn flush(&self) -> Result<()> {
        self.pass(Operation::Flush)?.flush()
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.pass(Operation::Write)?.write_zeroes(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        self.pass(Operation::Discard)?.discard(offset, len)
    }
    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        self.pass(Operation::Queue)?.queue(options)
    }
    fn engine(&self) -> EngineReport {
        self.inner.engine()
    }
    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}
