//! A device in front of another: notes the moments at which the power may go, and drops flushes on command.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{BlockDevice, DeviceCounters, DeviceQueue, EngineReport, Geometry, QueueOptions, SimulatedDevice};
use parking_lot::Mutex;

/// The moments of a run over one or two devices: how many operations each device had carried out.
#[derive(Debug, Default)]
pub(super) struct Moments {
    devices: Mutex<Vec<Arc<SimulatedDevice>>>,
    moments: Mutex<Vec<Vec<usize>>>,
}

impl Moments {
    pub(super) fn note(&self) {
        let now = self.devices.lock().iter().map(|device| device.operation_count()).collect();
        self.moments.lock().push(now);
    }

    pub(super) fn count(&self) -> usize {
        self.moments.lock().len()
    }

    pub(super) fn at(&self, index: usize) -> Vec<usize> {
        self.moments.lock()[index].clone()
    }
}

#[derive(Debug)]
pub(super) struct Tap {
    inner: Arc<SimulatedDevice>,
    moments: Arc<Moments>,
    /// The planted bug: flushes are acknowledged and not passed on.
    pub(super) drop_flushes: AtomicBool,
}

impl Tap {
    pub(super) fn new(inner: Arc<SimulatedDevice>, moments: &Arc<Moments>) -> Arc<Self> {
        moments.devices.lock().push(Arc::clone(&inner));
        Arc::new(Self { inner, moments: Arc::clone(moments), drop_flushes: AtomicBool::new(false) })
    }

    fn noted<T>(&self, result: T) -> T {
        self.moments.note();
        result
    }
}

impl BlockDevice for Tap {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> block::Result<()> {
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> block::Result<()> {
        self.noted(self.inner.write_at(buf, offset))
    }
    fn flush(&self) -> block::Result<()> {
        if self.drop_flushes.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.noted(self.inner.flush())
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> block::Result<()> {
        self.noted(self.inner.write_zeroes(offset, len))
    }
    fn discard(&self, offset: u64, len: u64) -> block::Result<bool> {
        self.noted(self.inner.discard(offset, len))
    }
    fn queue(&self, options: &QueueOptions) -> block::Result<Box<dyn DeviceQueue>> {
        self.inner.queue(options)
    }
    fn engine(&self) -> EngineReport {
        self.inner.engine()
    }
    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}
