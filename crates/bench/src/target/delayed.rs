//! A device that is as slow as it is told: what a lock held during an I/O costs depends on how long
//! the I/O takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate::{
    BlockDevice, DeviceCounters, DeviceError, DeviceErrorKind, DeviceQueue, EngineReport, Geometry,
    MemoryDevice, QueueOptions,
};

type DeviceResult<T> = std::result::Result<T, DeviceError>;

/// Below this a delay is spun away: a sleep takes longer to come back than it lasts.
const SPIN_MAX: Duration = Duration::from_micros(60);

/// Memory with a delay before every operation, none at first; any number of operations wait side by
/// side, as on a disk with deep queues.
#[derive(Debug)]
pub(crate) struct DelayedDevice {
    memory: Arc<MemoryDevice>,
    latency_ns: AtomicU64,
}

impl DelayedDevice {
    pub(crate) fn new(size_bytes: u64, latency: Duration) -> Arc<Self> {
        let device = Self { memory: MemoryDevice::new(size_bytes), latency_ns: AtomicU64::new(0) };
        device.set_latency(latency);
        Arc::new(device)
    }

    /// Sets how long every operation takes from now on.
    pub(crate) fn set_latency(&self, latency: Duration) {
        self.latency_ns.store(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn delay(&self) {
        let latency = Duration::from_nanos(self.latency_ns.load(Relaxed));
        if latency.is_zero() {
            return;
        }
        if latency > SPIN_MAX {
            std::thread::sleep(latency);
            return;
        }
        let until = Instant::now() + latency;
        while Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

impl BlockDevice for DelayedDevice {
    fn name(&self) -> &str {
        "memory"
    }
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DeviceResult<()> {
        self.delay();
        self.memory.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> DeviceResult<()> {
        self.delay();
        self.memory.write_at(buf, offset)
    }
    fn flush(&self) -> DeviceResult<()> {
        self.delay();
        self.memory.flush()
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.delay();
        self.memory.write_zeroes(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> DeviceResult<bool> {
        self.memory.discard(offset, len)
    }
    fn queue(&self, options: &QueueOptions) -> DeviceResult<Box<dyn DeviceQueue>> {
        if self.latency_ns.load(Relaxed) == 0 {
            return self.memory.queue(options);
        }
        Err(DeviceError {
            kind: DeviceErrorKind::Unsupported,
            operation: bedplate_block::Operation::Queue,
            device: self.name().to_owned(),
            offset: None,
            detail: "memory with an added latency serves threads only: leave out --depth"
                .to_owned(),
            errno: None,
        })
    }
    fn engine(&self) -> EngineReport {
        self.memory.engine()
    }
    fn counters(&self) -> DeviceCounters {
        self.memory.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_takes_at_least_the_latency_and_data_arrives() {
        let device = DelayedDevice::new(1 << 20, Duration::from_millis(2));
        let start = Instant::now();
        device.write_at(&bedplate::AlignedBuf::from_slice(&[7; 4096]), 4096).unwrap();
        let mut buf = bedplate::AlignedBuf::zeroed(4096);
        device.read_at(&mut buf, 4096).unwrap();
        device.flush().unwrap();
        assert!(start.elapsed() >= Duration::from_millis(6));
        assert_eq!(buf[100], 7);
        assert_eq!(device.counters().writes, 1);
        assert!(device.queue(&QueueOptions::default()).is_err());
        device.set_latency(Duration::ZERO);
        assert!(device.queue(&QueueOptions::default()).is_ok());
    }
}
